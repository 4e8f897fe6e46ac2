//! Keys and values in the order in which attention reads them.
//!
//! Apart because the layout is shared by what stores and what reads. Both lie in lines of 16 values like a weight's
//! panels: a line of keys holds one dimension of 16 tokens, a line of values 16 dimensions of one token, so that
//! scores and weighted sums are products of the same kind as a matrix's and no sum runs across lanes. Must not
//! know: sequences, arithmetic.

use super::panel::LANES;
use super::tile::Lanes;
use crate::{DeviceError, HeadShape};

/// Where the lines of a block are.
#[derive(Debug, Clone, Copy)]
pub struct Layout {
    pub kv_heads: usize,
    pub head_dim: usize,
    pub block_tokens: usize,
}

impl Layout {
    pub fn new(shape: HeadShape, block_tokens: usize) -> Self {
        Layout { kv_heads: shape.kv_heads, head_dim: shape.head_dim, block_tokens }
    }

    /// Groups of 16 tokens in a block, the last one perhaps not full.
    pub fn groups(&self) -> usize {
        self.block_tokens.div_ceil(LANES)
    }

    /// Chunks of 16 dimensions in a head, the last one perhaps not full.
    pub fn chunks(&self) -> usize {
        self.head_dim.div_ceil(LANES)
    }

    /// Lines of keys in a block: (kv_heads, groups, head_dim).
    fn key_lines(&self) -> usize {
        self.kv_heads * self.groups() * self.head_dim
    }

    /// Lines of values in a block: (kv_heads, chunks, block_tokens).
    fn value_lines(&self) -> usize {
        self.kv_heads * self.chunks() * self.block_tokens
    }

    /// Bytes of a block in one layer.
    pub fn block_bytes(&self) -> usize {
        (self.key_lines() + self.value_lines()) * size_of::<Lanes>()
    }

    /// First of the `head_dim` lines with the keys of one group of tokens.
    pub fn keys(&self, block: u32, head: usize, group: usize) -> usize {
        block as usize * self.key_lines() + (head * self.groups() + group) * self.head_dim
    }

    /// First of the `block_tokens` lines with one chunk of dimensions of the values.
    pub fn values(&self, block: u32, head: usize, chunk: usize) -> usize {
        block as usize * self.value_lines() + (head * self.chunks() + chunk) * self.block_tokens
    }
}

/// Lines that start at a cache line's edge, zeroed; the system gives their pages when they are first written.
#[derive(Debug)]
pub struct Lines {
    values: Vec<f32>,
    skip: usize,
    count: usize,
}

impl Lines {
    fn new(count: usize) -> Result<Self, DeviceError> {
        let values = zeroed(count.saturating_add(1).saturating_mul(LANES))?;
        // The vector never grows, so its start stays where it is.
        let skip = values.as_ptr().align_offset(size_of::<Lanes>()).min(LANES);
        Ok(Lines { values, skip, count })
    }

    pub fn all(&self) -> &[Lanes] {
        self.values[self.skip..self.skip + self.count * LANES].as_chunks().0
    }

    fn all_mut(&mut self) -> &mut [Lanes] {
        self.values[self.skip..self.skip + self.count * LANES].as_chunks_mut().0
    }
}

/// Keys and values of one layer.
#[derive(Debug)]
pub struct Layer {
    pub keys: Lines,
    pub values: Lines,
}

/// Keys and values of all layers.
#[derive(Debug)]
pub struct Cache {
    pub layout: Layout,
    pub layers: Vec<Layer>,
}

impl Cache {
    pub fn new(layers: usize, blocks: usize, layout: Layout) -> Result<Self, DeviceError> {
        let layer = |_| {
            let keys = Lines::new(blocks.saturating_mul(layout.key_lines()))?;
            Ok(Layer { keys, values: Lines::new(blocks.saturating_mul(layout.value_lines()))? })
        };
        Ok(Cache { layout, layers: (0..layers).map(layer).collect::<Result<_, DeviceError>>()? })
    }

    /// Stores the (kv_heads, head_dim) keys and values of one token.
    pub fn store(&mut self, layer: usize, slot: u32, keys: &[f32], values: &[f32]) {
        let Cache { layout, layers } = self;
        let dim = layout.head_dim;
        let (block, token) = (slot / layout.block_tokens as u32, slot as usize % layout.block_tokens);
        let Layer { keys: key_lines, values: value_lines } = &mut layers[layer];
        let (key_lines, value_lines) = (key_lines.all_mut(), value_lines.all_mut());
        for (head, (keys, values)) in keys.chunks_exact(dim).zip(values.chunks_exact(dim)).enumerate() {
            let first = layout.keys(block, head, token / LANES);
            for (line, key) in key_lines[first..first + dim].iter_mut().zip(keys) {
                line[token % LANES] = *key;
            }
            for (chunk, values) in values.chunks(LANES).enumerate() {
                let line = &mut value_lines[layout.values(block, head, chunk) + token];
                line[..values.len()].copy_from_slice(values);
            }
        }
    }
}

/// Zeroed room for values, or an error where there is none.
pub fn zeroed(values: usize) -> Result<Vec<f32>, DeviceError> {
    let out_of_memory = DeviceError::OutOfMemory { bytes: values.saturating_mul(size_of::<f32>()) };
    let mut room: Vec<f32> = Vec::new();
    if room.try_reserve_exact(values).is_err() {
        return Err(out_of_memory);
    }
    drop(room);
    Ok(vec![0.0; values])
}
