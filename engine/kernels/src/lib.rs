//! Arithmetic on a device: the operations a transformer is made of.
//!
//! Apart from the runtime so that a kernel can be read, tested against its oracle and timed without knowing
//! what a sequence or a model is. Must not know: sequences, batches, models, clocks, HTTP.
//!
//! Shapes are written (rows, columns), row-major. Activations are float32 on every CPU path.

pub mod cpu;

use thiserror::Error;

/// What a device refuses to do.
#[derive(Debug, Error)]
pub enum DeviceError {
    #[error("a {what} of shape ({rows}, {columns}) needs {expected} values, but {found} were given")]
    Shape { what: &'static str, rows: usize, columns: usize, expected: usize, found: usize },
    #[error("a row of {columns} values is not supported by this device: {why}")]
    Columns { columns: usize, why: &'static str },
    #[error("the device has no room for {bytes} more bytes")]
    OutOfMemory { bytes: usize },
    #[error("could not start a worker thread: {0}")]
    Thread(std::io::Error),
}

/// Values of a weight as they lie in a file, little-endian, row-major.
#[derive(Debug, Clone, Copy)]
pub enum WeightBytes<'a> {
    Bf16(&'a [u8]),
    F16(&'a [u8]),
    F32(&'a [u8]),
}

/// Shape of the attention of one layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HeadShape {
    /// Query heads.
    pub heads: usize,
    /// Key/value heads; divides `heads`.
    pub kv_heads: usize,
    /// Values per head; even.
    pub head_dim: usize,
}

impl HeadShape {
    /// Columns of a fused query/key/value row: heads, then kv_heads keys, then kv_heads values.
    pub fn qkv_columns(self) -> usize {
        (self.heads + 2 * self.kv_heads) * self.head_dim
    }

    /// Columns of an attention output row.
    pub fn output_columns(self) -> usize {
        self.heads * self.head_dim
    }
}

/// The tokens of one sequence inside a batch.
#[derive(Debug, Clone, Copy)]
pub struct Span<'a> {
    /// First row of this sequence's tokens in the batch.
    pub row: usize,
    /// How many rows it has in this batch.
    pub rows: usize,
    /// Tokens of the sequence whose keys are in the cache once this batch is stored, these rows included.
    /// Row `i` of the span is at position `context - rows + i` and sees positions `0..=` that one.
    pub context: usize,
    /// Ids of the KV blocks that hold the sequence, in order.
    pub blocks: &'a [u32],
}

/// Rotation angles, precomputed by the model (which knows about scaling), one entry per dimension pair.
///
/// With n pairs, pair `i` of a head is (x[i], x[i + n]) as in the Hugging Face Llama layout; at position `p` it is
/// turned by `p * inverse_frequencies[i]` radians and multiplied by `scale`. Dimensions from 2n on stay as they are.
#[derive(Debug, Clone, PartialEq)]
pub struct Rope {
    /// Radians per position; at most head_dim / 2 of them.
    pub inverse_frequencies: Vec<f32>,
    /// 1 where the model does not say otherwise.
    pub scale: f32,
}

/// How scores become probabilities.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Attention {
    /// Multiplies each q·k.
    pub scale: f32,
    /// Positions that a row sees at most, its own included; at least 1.
    pub window: Option<usize>,
    /// Scaled scores s become cap * tanh(s / cap).
    pub soft_cap: Option<f32>,
}

/// What a gate goes through before it multiplies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Activation {
    /// x / (1 + e^-x).
    Silu,
    /// x / 2 * (1 + tanh(√(2/π) (x + 0.044715 x³))), the approximation of GELU (Hendrycks, Gimpel 2016).
    GeluTanh,
}

/// About a dozen operations on one device. Every method mutates only its `&mut` arguments.
///
/// `rows` counts the leading rows of each activation that hold data; it is at most the rows the activation was
/// made with. Shapes that do not fit are a bug of the caller and panic.
pub trait Device: Send + Sync + 'static {
    /// Activations, (rows, columns) float32.
    type Activations: Send;
    /// A weight matrix in the device's own layout.
    type Matrix: Send + Sync;
    /// A weight vector, float32.
    type Vector: Send + Sync;
    /// Keys and values of all layers, in fixed blocks of tokens.
    type KvCache: Send;

    /// Names the device and the path chosen on it, such as "cpu avx512 2 threads".
    fn name(&self) -> String;

    /// Packs a (rows, columns) matrix that will be multiplied as x · Wᵀ.
    fn matrix(
        &self,
        rows: usize,
        columns: usize,
        source: WeightBytes<'_>,
    ) -> Result<Self::Matrix, DeviceError>;

    /// Packs several matrices with the same columns as one, stacked by rows (for fused projections).
    fn stacked(
        &self,
        columns: usize,
        parts: &[(usize, WeightBytes<'_>)],
    ) -> Result<Self::Matrix, DeviceError>;

    /// Loads a vector.
    fn vector(&self, length: usize, source: WeightBytes<'_>) -> Result<Self::Vector, DeviceError>;

    /// Makes zeroed activations of (rows, columns).
    fn activations(&self, rows: usize, columns: usize) -> Result<Self::Activations, DeviceError>;

    /// Makes a cache of `blocks` blocks of `block_tokens` tokens each, for `layers` layers.
    fn kv_cache(
        &self,
        layers: usize,
        blocks: usize,
        block_tokens: usize,
        shape: HeadShape,
    ) -> Result<Self::KvCache, DeviceError>;

    /// Bytes that one block takes in the cache, over all layers.
    fn kv_block_bytes(&self, layers: usize, block_tokens: usize, shape: HeadShape) -> usize;

    /// out[r] = table[ids[r]]; out is (ids.len(), columns of table).
    fn embed(&self, table: &Self::Matrix, ids: &[u32], out: &mut Self::Activations);

    /// out[r] = x[r] / sqrt(mean(x[r]²) + epsilon) * weight.
    fn rms_norm(
        &self,
        rows: usize,
        x: &Self::Activations,
        weight: &Self::Vector,
        epsilon: f32,
        out: &mut Self::Activations,
    );

    /// residual[r] += x[r], then out[r] = rms_norm(residual[r]).
    fn add_rms_norm(
        &self,
        rows: usize,
        x: &Self::Activations,
        residual: &mut Self::Activations,
        weight: &Self::Vector,
        epsilon: f32,
        out: &mut Self::Activations,
    );

    /// out (rows, n) = x (rows, k) · weightᵀ, weight being (n, k).
    fn matmul(&self, rows: usize, x: &Self::Activations, weight: &Self::Matrix, out: &mut Self::Activations);

    /// Turns queries and keys of `qkv` (rows, qkv_columns) in place and stores keys and values of `layer`.
    /// Row r is at position `positions[r]` and goes to cache slot `slots[r]` = block id * block_tokens + offset.
    #[expect(clippy::too_many_arguments, reason = "one fused operation; a struct would only rename them")]
    fn rope_and_store(
        &self,
        layer: usize,
        shape: HeadShape,
        rope: &Rope,
        positions: &[u32],
        slots: &[u32],
        qkv: &mut Self::Activations,
        cache: &mut Self::KvCache,
    );

    /// Causal attention of the turned queries in `qkv` over the cached keys and values of `layer`, with
    /// probabilities softmax(scores); out is (rows, heads * head_dim). Query head h reads
    /// key/value head h / (heads / kv_heads).
    #[expect(clippy::too_many_arguments, reason = "one fused operation; a struct would only rename them")]
    fn attend(
        &self,
        layer: usize,
        shape: HeadShape,
        attention: Attention,
        spans: &[Span<'_>],
        qkv: &Self::Activations,
        cache: &Self::KvCache,
        out: &mut Self::Activations,
    );

    /// out[r][i] = activation(gate_up[r][i]) * gate_up[r][n + i], gate_up being (rows, 2n), out (rows, n).
    fn gate(
        &self,
        rows: usize,
        activation: Activation,
        gate_up: &Self::Activations,
        out: &mut Self::Activations,
    );

    /// x[r] += vector.
    fn add_vector(&self, rows: usize, vector: &Self::Vector, x: &mut Self::Activations);

    /// x[r] *= factor.
    fn scale(&self, rows: usize, factor: f32, x: &mut Self::Activations);

    /// Makes each head of the queries and of the keys in `qkv` (rows, qkv_columns) head / rms(head) * weight, with
    /// one weight (head_dim) for all query heads and one for all key heads.
    fn norm_heads(
        &self,
        rows: usize,
        shape: HeadShape,
        queries: &Self::Vector,
        keys: &Self::Vector,
        epsilon: f32,
        qkv: &mut Self::Activations,
    );

    /// out[rows[i]] += weights[i] * x[i].
    fn scatter_add(&self, rows: &[u32], weights: &[f32], x: &Self::Activations, out: &mut Self::Activations);

    /// Makes the leading `rows` rows 0.
    fn clear(&self, rows: usize, x: &mut Self::Activations);

    /// out[i] = x[rows[i]].
    fn gather(&self, rows: &[u32], x: &Self::Activations, out: &mut Self::Activations);

    /// Copies the leading `rows` rows to the host, (rows, columns).
    fn read(&self, rows: usize, x: &Self::Activations, out: &mut Vec<f32>);
}
