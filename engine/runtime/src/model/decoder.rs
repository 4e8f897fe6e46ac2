//! The forward pass of a decoder of any family over any device.
//!
//! Apart so that a model is only a sequence of device operations. Must not know: families by name, the device's
//! kind, requests, sampling.
//!
//! Queries, keys and values are one product, gate and up another; logits are made for the rows that are asked for
//! only.

use pitot_kernels::{Device, DeviceError, Span};

use super::LoadError;
use super::config::{Config, LayerConfig, OutputWeights};
use super::layer::{HeadNormWeights, Layer, Loader};
use super::mlp::MlpRoom;
use super::weights::Weights;
use crate::batch::{Batch, BatchSequence};
use crate::runner::{Logits, Reservation, RunError, Runner};

/// Most rows whose logits exist on the device at once; teacher forcing of a long prompt takes turns.
const LOGIT_ROWS_MAX: usize = 64;

/// A model on a device.
pub struct ModelRunner<D: Device> {
    device: D,
    config: Config,
    embedding: D::Matrix,
    layers: Vec<Layer<D>>,
    norm: D::Vector,
    /// Absent when the embedding is the output projection too.
    output: Option<D::Matrix>,
    room: Option<Room<D>>,
}

/// What was reserved: the cache and the activations, each (rows_max, columns).
struct Room<D: Device> {
    block_tokens: usize,
    rows_max: usize,
    logit_rows_max: usize,
    cache: D::KvCache,
    residual: D::Activations,
    normed: D::Activations,
    qkv: D::Activations,
    attended: D::Activations,
    projected: D::Activations,
    mlp: MlpRoom<D>,
    /// (logit_rows_max, hidden).
    gathered: D::Activations,
    /// (logit_rows_max, vocabulary).
    logits: D::Activations,
}

/// Where each row of a batch stands.
struct Rows {
    ids: Vec<u32>,
    positions: Vec<u32>,
    /// Block id * block_tokens + offset.
    slots: Vec<u32>,
}

impl<D: Device> ModelRunner<D> {
    pub(super) fn new(config: Config, weights: &Weights<'_>, device: D) -> Result<ModelRunner<D>, LoadError> {
        let Config { hidden, vocabulary, .. } = config;
        let table = weights.tensor("model.embed_tokens.weight", &[vocabulary, hidden])?;
        let embedding = device.matrix(vocabulary, hidden, table)?;
        let loader = Loader { config: &config, weights, device: &device };
        let layers = (0..config.layers.len()).map(|index| loader.layer(index)).collect::<Result<_, _>>()?;
        let norm = loader.norm("model.norm.weight", hidden)?;
        let output = match config.output {
            OutputWeights::Tied => None,
            OutputWeights::Own => {
                let source = weights.tensor("lm_head.weight", &[vocabulary, hidden])?;
                Some(device.matrix(vocabulary, hidden, source)?)
            }
        };
        Ok(ModelRunner { device, config, embedding, layers, norm, output, room: None })
    }

    fn check(&self, batch: &Batch, rows_max: usize) -> Result<(), RunError> {
        let rows = batch.rows();
        if rows > rows_max {
            return Err(RunError::TooManyRows { rows, max: rows_max });
        }
        let vocabulary = self.config.vocabulary;
        let mut tokens = batch.sequences.iter().flat_map(|sequence| &sequence.tokens);
        match tokens.find(|token| **token as usize >= vocabulary) {
            Some(token) => Err(RunError::UnknownToken { token: *token, vocabulary }),
            None => Ok(()),
        }
    }
}

impl<D: Device> Runner for ModelRunner<D> {
    fn name(&self) -> String {
        self.device.name()
    }

    fn vocabulary(&self) -> usize {
        self.config.vocabulary
    }

    fn context_max(&self) -> usize {
        self.config.context_max
    }

    fn block_bytes(&self, block_tokens: usize) -> usize {
        self.device.kv_block_bytes(self.config.layers.len(), block_tokens, self.config.heads)
    }

    fn reserve(&mut self, reservation: Reservation) -> Result<(), RunError> {
        // The old room is given up first, so that the device need not hold both.
        self.room = None;
        self.room = Some(Room::new(&self.device, &self.config, reservation)?);
        Ok(())
    }

    fn run(&mut self, batch: &Batch) -> Result<Logits, RunError> {
        let rows_max = self.room.as_ref().ok_or(RunError::NotReserved)?.rows_max;
        self.check(batch, rows_max)?;
        let ModelRunner { device, config, embedding, layers, norm, output, room } = self;
        let room = room.as_mut().ok_or(RunError::NotReserved)?;
        let rows = Rows::new(batch, room.block_tokens);
        let spans = spans(batch);
        device.embed(embedding, &rows.ids, &mut room.residual);
        if let Some(scale) = config.embedding_scale {
            device.scale(rows.ids.len(), scale, &mut room.residual);
        }
        for (index, layer) in layers.iter().enumerate() {
            room.attention(device, config, layer, index, &rows, &spans);
            room.mlp(device, config, layer, rows.ids.len());
        }
        Ok(room.logits(device, config, norm, output.as_ref().unwrap_or(embedding), batch))
    }
}

impl<D: Device> Room<D> {
    fn new(device: &D, config: &Config, reservation: Reservation) -> Result<Room<D>, DeviceError> {
        let Reservation { blocks, block_tokens, rows_max, logit_rows_max } = reservation;
        let logit_rows_max = logit_rows_max.clamp(1, LOGIT_ROWS_MAX);
        let rows = |columns: usize| device.activations(rows_max, columns);
        Ok(Room {
            block_tokens,
            rows_max,
            logit_rows_max,
            cache: device.kv_cache(config.layers.len(), blocks, block_tokens, config.heads)?,
            residual: rows(config.hidden)?,
            normed: rows(config.hidden)?,
            qkv: rows(config.heads.qkv_columns())?,
            attended: rows(config.heads.output_columns())?,
            projected: rows(config.hidden)?,
            mlp: MlpRoom::new(device, config, rows_max)?,
            gathered: device.activations(logit_rows_max, config.hidden)?,
            logits: device.activations(logit_rows_max, config.vocabulary)?,
        })
    }

    /// Leaves the layer's attention output in `projected`, not yet added to the residual.
    fn attention(
        &mut self,
        device: &D,
        config: &Config,
        layer: &Layer<D>,
        index: usize,
        rows: &Rows,
        spans: &[Span<'_>],
    ) {
        let count = rows.ids.len();
        if index == 0 {
            device.rms_norm(count, &self.residual, &layer.norm_attention, config.epsilon, &mut self.normed);
        } else {
            // `projected` is the MLP output of the layer before.
            let Room { projected, residual, normed, .. } = self;
            device.add_rms_norm(count, projected, residual, &layer.norm_attention, config.epsilon, normed);
        }
        device.matmul(count, &self.normed, &layer.qkv, &mut self.qkv);
        if let Some(bias) = &layer.qkv_bias {
            device.add_vector(count, bias, &mut self.qkv);
        }
        let heads = config.heads;
        if let Some(HeadNormWeights { queries, keys }) = &layer.head_norms {
            device.norm_heads(count, heads, queries, keys, config.epsilon, &mut self.qkv);
        }
        let LayerConfig { rope, attention, mlp: _ } = config.layers[index];
        let Rows { positions, slots, .. } = rows;
        let rope = &config.ropes[rope];
        device.rope_and_store(index, heads, rope, positions, slots, &mut self.qkv, &mut self.cache);
        device.attend(index, heads, attention, spans, &self.qkv, &self.cache, &mut self.attended);
        device.matmul(count, &self.attended, &layer.output, &mut self.projected);
        if let Some(bias) = &layer.output_bias {
            device.add_vector(count, bias, &mut self.projected);
        }
        self.norm_projected(device, config, layer.norm_after_attention.as_ref(), count);
    }

    /// Adds `projected` to the residual and leaves the layer's MLP output in `projected`.
    fn mlp(&mut self, device: &D, config: &Config, layer: &Layer<D>, count: usize) {
        let Room { projected, residual, normed, mlp, .. } = self;
        device.add_rms_norm(count, projected, residual, &layer.norm_mlp, config.epsilon, normed);
        mlp.run(device, config.activation, &layer.mlp, count, normed, projected);
        self.norm_projected(device, config, layer.norm_after_mlp.as_ref(), count);
    }

    /// Normalises what a half of a layer gave, where the family does.
    fn norm_projected(&mut self, device: &D, config: &Config, norm: Option<&D::Vector>, count: usize) {
        if let Some(norm) = norm {
            device.rms_norm(count, &self.projected, norm, config.epsilon, &mut self.normed);
            std::mem::swap(&mut self.projected, &mut self.normed);
        }
    }

    /// Logits of the rows asked for: the last norm, then only those rows through the output projection.
    fn logits(
        &mut self,
        device: &D,
        config: &Config,
        norm: &D::Vector,
        output: &D::Matrix,
        batch: &Batch,
    ) -> Logits {
        let wanted = batch.logit_rows();
        let vocabulary = config.vocabulary;
        let mut values = Vec::with_capacity(wanted.len() * vocabulary);
        if wanted.is_empty() {
            return Logits { values, vocabulary };
        }
        let Room { projected, residual, normed, gathered, logits, .. } = self;
        device.add_rms_norm(batch.rows(), projected, residual, norm, config.epsilon, normed);
        let mut part = Vec::new();
        for rows in wanted.chunks(self.logit_rows_max) {
            device.gather(rows, normed, gathered);
            device.matmul(rows.len(), gathered, output, logits);
            device.read(rows.len(), logits, &mut part);
            values.extend_from_slice(&part[..rows.len() * vocabulary]);
            part.clear();
        }
        if let Some(cap) = config.logit_soft_cap {
            values.iter_mut().for_each(|logit| *logit = cap * (*logit / cap).tanh());
        }
        Logits { values, vocabulary }
    }
}

impl Rows {
    fn new(batch: &Batch, block_tokens: usize) -> Rows {
        let count = batch.rows();
        let mut rows = Rows {
            ids: Vec::with_capacity(count),
            positions: Vec::with_capacity(count),
            slots: Vec::with_capacity(count),
        };
        for sequence in &batch.sequences {
            rows.ids.extend_from_slice(&sequence.tokens);
            for position in sequence.context - sequence.tokens.len()..sequence.context {
                let block = sequence.blocks[position / block_tokens];
                rows.positions.push(position as u32);
                rows.slots.push(block * block_tokens as u32 + (position % block_tokens) as u32);
            }
        }
        rows
    }
}

fn spans(batch: &Batch) -> Vec<Span<'_>> {
    let mut row = 0;
    let mut spans = Vec::with_capacity(batch.sequences.len());
    for BatchSequence { tokens, context, blocks, logits: _ } in &batch.sequences {
        spans.push(Span { row, rows: tokens.len(), context: *context, blocks });
        row += tokens.len();
    }
    spans
}

impl From<DeviceError> for RunError {
    fn from(error: DeviceError) -> RunError {
        RunError::Device(error.to_string())
    }
}
