//! The weights of one layer, found by their names in the file and packed for the device.
//!
//! Apart from the forward pass, which only uses them. Must not know: batches, caches.

use pitot_kernels::{Device, WeightBytes};

use super::LoadError;
use super::config::{Bias, Config, Experts, HeadNorms, Mlp, NormWeights, Norms, Projections};
use super::weights::Weights;

/// One layer of a decoder.
pub(super) struct Layer<D: Device> {
    pub norm_attention: D::Vector,
    pub head_norms: Option<HeadNormWeights<D>>,
    /// (qkv_columns, hidden).
    pub qkv: D::Matrix,
    pub qkv_bias: Option<D::Vector>,
    /// (hidden, heads * head_dim).
    pub output: D::Matrix,
    pub output_bias: Option<D::Vector>,
    pub norm_after_attention: Option<D::Vector>,
    pub norm_mlp: D::Vector,
    pub mlp: MlpWeights<D>,
    pub norm_after_mlp: Option<D::Vector>,
}

/// What the heads of queries and of keys are multiplied with, (head_dim) each.
pub(super) struct HeadNormWeights<D: Device> {
    pub queries: D::Vector,
    pub keys: D::Vector,
}

/// The second half of a layer.
pub(super) enum MlpWeights<D: Device> {
    Dense(Gated<D>),
    Experts {
        shape: Experts,
        /// (experts, hidden).
        router: D::Matrix,
        experts: Vec<Gated<D>>,
    },
}

/// down(activation(gate(x)) * up(x)).
pub(super) struct Gated<D: Device> {
    /// (2 * intermediate, hidden).
    pub gate_up: D::Matrix,
    /// (hidden, intermediate).
    pub down: D::Matrix,
}

/// Where weights come from and go to.
pub(super) struct Loader<'a, D: Device> {
    pub config: &'a Config,
    pub weights: &'a Weights<'a>,
    pub device: &'a D,
}

impl<D: Device> Loader<'_, D> {
    /// # Errors
    /// Names the tensor that is missing or does not fit; when the device has no room.
    pub fn layer(&self, index: usize) -> Result<Layer<D>, LoadError> {
        let Config { hidden, heads, .. } = *self.config;
        let prefix = format!("model.layers.{index}");
        let norm = |name: &str| self.norm(&format!("{prefix}.{name}.weight"), hidden);
        let queries = heads.output_columns();
        let (before_mlp, after) = match self.config.norms {
            Norms::Before => ("post_attention_layernorm", None),
            Norms::BeforeAndAfter => {
                let after = (norm("post_attention_layernorm")?, norm("post_feedforward_layernorm")?);
                ("pre_feedforward_layernorm", Some(after))
            }
        };
        let (norm_after_attention, norm_after_mlp) = after.unzip();
        let attention = format!("{prefix}.self_attn");
        let output = self.tensor(&format!("{attention}.o_proj.weight"), &[hidden, queries])?;
        let output_bias = match self.config.bias {
            Bias::None | Bias::Inputs => None,
            Bias::InputsAndOutput => Some(self.vector(&format!("{attention}.o_proj.bias"), hidden)?),
        };
        Ok(Layer {
            norm_attention: norm("input_layernorm")?,
            head_norms: self.head_norms(&attention)?,
            qkv: self.qkv(&attention)?,
            qkv_bias: self.qkv_bias(&attention)?,
            output: self.device.matrix(hidden, queries, output)?,
            output_bias,
            norm_after_attention,
            norm_mlp: norm(before_mlp)?,
            mlp: self.mlp(&format!("{prefix}.mlp"), self.config.layers[index].mlp)?,
            norm_after_mlp,
        })
    }

    /// A norm's weights, as it multiplies with them.
    pub fn norm(&self, name: &str, length: usize) -> Result<D::Vector, LoadError> {
        let source = self.tensor(name, &[length])?;
        match self.config.norm_weights {
            NormWeights::AsTheyAre => Ok(self.device.vector(length, source)?),
            NormWeights::PlusOne => {
                let bytes: Vec<u8> =
                    source.to_vec().into_iter().flat_map(|weight| (weight + 1.0).to_le_bytes()).collect();
                Ok(self.device.vector(length, WeightBytes::F32(&bytes))?)
            }
        }
    }

    fn tensor(&self, name: &str, shape: &[usize]) -> Result<WeightBytes<'_>, LoadError> {
        self.weights.tensor(name, shape)
    }

    fn vector(&self, name: &str, length: usize) -> Result<D::Vector, LoadError> {
        Ok(self.device.vector(length, self.tensor(name, &[length])?)?)
    }

    /// Names and rows of the projections for queries, keys and values.
    fn inputs(&self) -> [(&'static str, usize); 3] {
        let heads = self.config.heads;
        let keys = heads.kv_heads * heads.head_dim;
        [("q_proj", heads.output_columns()), ("k_proj", keys), ("v_proj", keys)]
    }

    fn qkv(&self, attention: &str) -> Result<D::Matrix, LoadError> {
        let hidden = self.config.hidden;
        match self.config.projections {
            Projections::Apart => self.stacked(attention, &self.inputs()),
            Projections::Fused => {
                let rows = self.config.heads.qkv_columns();
                let source = self.tensor(&format!("{attention}.qkv_proj.weight"), &[rows, hidden])?;
                Ok(self.device.matrix(rows, hidden, source)?)
            }
        }
    }

    /// Projections from the hidden size, one above the other.
    fn stacked(&self, place: &str, parts: &[(&str, usize)]) -> Result<D::Matrix, LoadError> {
        let hidden = self.config.hidden;
        let part = |(name, rows): &(&str, usize)| {
            Ok((*rows, self.tensor(&format!("{place}.{name}.weight"), &[*rows, hidden])?))
        };
        let parts: Vec<(usize, WeightBytes<'_>)> =
            parts.iter().map(part).collect::<Result<_, LoadError>>()?;
        Ok(self.device.stacked(hidden, &parts)?)
    }

    fn qkv_bias(&self, attention: &str) -> Result<Option<D::Vector>, LoadError> {
        match self.config.bias {
            Bias::None => return Ok(None),
            Bias::Inputs | Bias::InputsAndOutput => {}
        }
        let mut bytes = Vec::new();
        for (name, rows) in self.inputs() {
            let values = self.tensor(&format!("{attention}.{name}.bias"), &[rows])?.to_vec();
            bytes.extend(values.into_iter().flat_map(f32::to_le_bytes));
        }
        let length = self.config.heads.qkv_columns();
        Ok(Some(self.device.vector(length, WeightBytes::F32(&bytes))?))
    }

    fn head_norms(&self, attention: &str) -> Result<Option<HeadNormWeights<D>>, LoadError> {
        let norm = |name: &str| self.norm(&format!("{attention}.{name}.weight"), self.config.heads.head_dim);
        match self.config.head_norms {
            HeadNorms::None => Ok(None),
            HeadNorms::Each => Ok(Some(HeadNormWeights { queries: norm("q_norm")?, keys: norm("k_norm")? })),
        }
    }

    fn mlp(&self, place: &str, mlp: Mlp) -> Result<MlpWeights<D>, LoadError> {
        match mlp {
            Mlp::Dense { intermediate } => Ok(MlpWeights::Dense(self.gated(place, intermediate)?)),
            Mlp::Experts(shape) => {
                let hidden = self.config.hidden;
                let router = self.tensor(&format!("{place}.gate.weight"), &[shape.count, hidden])?;
                let expert =
                    |index: usize| self.gated(&format!("{place}.experts.{index}"), shape.intermediate);
                Ok(MlpWeights::Experts {
                    shape,
                    router: self.device.matrix(shape.count, hidden, router)?,
                    experts: (0..shape.count).map(expert).collect::<Result<_, _>>()?,
                })
            }
        }
    }

    fn gated(&self, place: &str, intermediate: usize) -> Result<Gated<D>, LoadError> {
        let hidden = self.config.hidden;
        let gate_up = match self.config.projections {
            Projections::Apart => {
                self.stacked(place, &[("gate_proj", intermediate), ("up_proj", intermediate)])?
            }
            Projections::Fused => {
                let source =
                    self.tensor(&format!("{place}.gate_up_proj.weight"), &[2 * intermediate, hidden])?;
                self.device.matrix(2 * intermediate, hidden, source)?
            }
        };
        let down = self.tensor(&format!("{place}.down_proj.weight"), &[hidden, intermediate])?;
        Ok(Gated { gate_up, down: self.device.matrix(hidden, intermediate, down)? })
    }
}
