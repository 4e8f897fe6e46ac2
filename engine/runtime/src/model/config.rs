//! A decoder's shape, as every family describes it, read from config.json into sizes that fit together.
//!
//! Apart so that the forward pass can trust the numbers and knows no family by name. Must not know: tensors,
//! devices beyond the head shape.

use pitot_kernels::{Activation, Attention, HeadShape, Rope};
use serde_json::Value as Json;

use super::LoadError;
use super::json::{invalid, optional_size, positive, size};
use super::rope::{self, Pairs};

/// A decoder's shape.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Config {
    pub hidden: usize,
    pub heads: HeadShape,
    pub vocabulary: usize,
    pub context_max: usize,
    pub epsilon: f32,
    pub activation: Activation,
    /// Where the output projection comes from.
    pub output: OutputWeights,
    pub projections: Projections,
    pub bias: Bias,
    pub norms: Norms,
    pub norm_weights: NormWeights,
    pub head_norms: HeadNorms,
    /// Multiplies the embedding.
    pub embedding_scale: Option<f32>,
    /// Logits x become cap * tanh(x / cap).
    pub logit_soft_cap: Option<f32>,
    pub ropes: Vec<Rope>,
    pub layers: Vec<LayerConfig>,
}

/// What one layer has of its own.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct LayerConfig {
    /// Index of its rotation.
    pub rope: usize,
    pub attention: Attention,
    pub mlp: Mlp,
}

/// The second half of a layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mlp {
    Dense { intermediate: usize },
    Experts(Experts),
}

/// A layer whose every token goes through a few of its experts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Experts {
    pub count: usize,
    /// Experts of a token; at most `count`.
    pub used: usize,
    /// Columns within each.
    pub intermediate: usize,
    pub weights: ExpertWeights,
}

/// What a token's experts are weighted with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ExpertWeights {
    /// Their probabilities among all experts.
    Probabilities,
    /// The same, made to add up to 1.
    Shares,
}

/// Where the output projection comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum OutputWeights {
    /// The embedding table.
    Tied,
    /// Its own tensor.
    Own,
}

/// How queries, keys and values, and gate and up, lie in the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Projections {
    Apart,
    Fused,
}

/// Which projections of attention have a bias.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Bias {
    None,
    /// Queries, keys and values.
    Inputs,
    InputsAndOutput,
}

/// Which halves of a layer are normalised.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Norms {
    /// What goes into each.
    Before,
    /// What goes in and what comes out.
    BeforeAndAfter,
}

/// What a norm multiplies with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NormWeights {
    AsTheyAre,
    /// The file has them less 1.
    PlusOne,
}

/// Whether heads of queries and keys are normalised before they turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum HeadNorms {
    None,
    Each,
}

/// What an absent `tie_word_embeddings` means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TiedWhenAbsent {
    Yes,
    No,
}

impl Config {
    /// What most families have in common; each changes what it does otherwise.
    ///
    /// # Errors
    /// Names the key that is missing, invalid or not supported.
    pub fn plain(json: &Json, tied: TiedWhenAbsent, theta: f64) -> Result<Config, LoadError> {
        if !json["quantization_config"].is_null() {
            let value = json["quantization_config"].to_string();
            return Err(LoadError::Unsupported { key: "quantization_config", value });
        }
        let hidden = size(json, "hidden_size")?;
        let heads = heads(json, hidden)?;
        let intermediate = size(json, "intermediate_size")?;
        let context_max = optional_size(json, "max_position_embeddings")?.unwrap_or(2048);
        let rope = rope::of_model(json, theta, Pairs::of(json, heads.head_dim)?, context_max)?;
        let scale = 1.0 / (heads.head_dim as f32).sqrt();
        let layer = LayerConfig {
            rope: 0,
            attention: Attention { scale, window: None, soft_cap: None },
            mlp: Mlp::Dense { intermediate },
        };
        let tied = json["tie_word_embeddings"].as_bool().unwrap_or(tied == TiedWhenAbsent::Yes);
        Ok(Config {
            hidden,
            heads,
            vocabulary: size(json, "vocab_size")?,
            context_max: rope.context_max,
            epsilon: positive(json, "rms_norm_eps")?.unwrap_or(1e-6) as f32,
            activation: Activation::Silu,
            output: if tied { OutputWeights::Tied } else { OutputWeights::Own },
            projections: Projections::Apart,
            bias: Bias::None,
            norms: Norms::Before,
            norm_weights: NormWeights::AsTheyAre,
            head_norms: HeadNorms::None,
            embedding_scale: None,
            logit_soft_cap: None,
            ropes: vec![rope.rope],
            layers: vec![layer; layers(json)?],
        })
    }

    /// Gives a window to the layers that `layer_types` names, or, where the file does not list them, to those that
    /// `sliding` takes.
    ///
    /// # Errors
    /// When the list does not fit the layers or names another kind.
    pub fn set_windows(
        &mut self,
        json: &Json,
        window: Option<usize>,
        sliding: impl Fn(usize) -> bool,
    ) -> Result<(), LoadError> {
        let listed = layer_types(json, self.layers.len())?;
        for (index, layer) in self.layers.iter_mut().enumerate() {
            let slides = listed.as_ref().map_or_else(|| sliding(index), |listed| listed[index]);
            layer.attention.window = window.filter(|_| slides);
        }
        Ok(())
    }
}

/// Which layers slide, where the file says so.
pub(super) fn layer_types(json: &Json, layers: usize) -> Result<Option<Vec<bool>>, LoadError> {
    let Some(listed) = json["layer_types"].as_array() else { return Ok(None) };
    if listed.len() != layers {
        return Err(invalid(json, "layer_types", "it does not name each layer"));
    }
    let slides = |kind: &Json| match kind.as_str() {
        Some("sliding_attention") => Ok(true),
        Some("full_attention") => Ok(false),
        Some(_) | None => {
            let value = kind.to_string();
            Err(LoadError::Unsupported { key: "layer_types", value })
        }
    };
    listed.iter().map(slides).collect::<Result<_, _>>().map(Some)
}

/// Most layers that are believed.
const LAYERS_MAX: usize = 4096;

fn layers(json: &Json) -> Result<usize, LoadError> {
    let layers = size(json, "num_hidden_layers")?;
    if layers > LAYERS_MAX {
        return Err(invalid(json, "num_hidden_layers", "at most 4096 are believed"));
    }
    Ok(layers)
}

fn heads(json: &Json, hidden: usize) -> Result<HeadShape, LoadError> {
    let heads = size(json, "num_attention_heads")?;
    let kv_heads = optional_size(json, "num_key_value_heads")?.unwrap_or(heads);
    if !heads.is_multiple_of(kv_heads) {
        return Err(invalid(json, "num_key_value_heads", "it does not divide num_attention_heads"));
    }
    let head_dim = optional_size(json, "head_dim")?.unwrap_or(hidden / heads);
    if head_dim == 0 || !head_dim.is_multiple_of(2) {
        return Err(invalid(json, "head_dim", "a head needs an even number of dimensions"));
    }
    Ok(HeadShape { heads, kv_heads, head_dim })
}
