//! The CPU device: packed weights, all cores, the widest vectors there are.
//!
//! Apart from the oracle, with which `tests/agree.rs` compares it. float32 arithmetic and float32 keys and values
//! throughout; bf16 weights are widened exactly. Must not know: sequences, models.

use std::cell::RefCell;

use super::bytes::Kept;
use super::panel::{LANES, Packed};
use super::pool::Pool;
use super::vector::{self, Attended, Path, Rows, Tile};
use crate::{Device, DeviceError, HeadShape, Rope, Span, WeightBytes};

/// Below this many values an operation is done by the calling thread alone: to wake another costs more.
const PARALLEL_VALUES_MIN: usize = 16 * 1024;
/// Panels that a thread takes at a time.
const PANELS_PER_TASK: usize = 4;

thread_local! {
    /// Scratch for attention scores; it grows to the longest context and stays.
    static SCORES: RefCell<Vec<f32>> = const { RefCell::new(Vec::new()) };
}

/// All cores of this machine.
pub struct Cpu {
    pool: Pool,
    path: Path,
}

impl Cpu {
    /// Takes the best instruction set there is and `threads` threads (None: one for each processor).
    pub fn new(threads: Option<usize>) -> Result<Self, DeviceError> {
        let path = Path::available().first().copied().unwrap_or(Path::Portable);
        Cpu::with_path(path, threads)
    }

    /// As [`Cpu::new`], with a given instruction set, which must be one of [`Path::available`].
    ///
    /// # Panics
    /// If this machine does not have it.
    pub fn with_path(path: Path, threads: Option<usize>) -> Result<Self, DeviceError> {
        assert!(Path::available().contains(&path), "this machine has no {}", path.name());
        let processors = || std::thread::available_parallelism().map_or(1, usize::from);
        Ok(Cpu { pool: Pool::new(threads.unwrap_or_else(processors))?, path })
    }

    /// Calls `run` for each row, on several threads if there is enough to do. Rows are disjoint parts of `out`.
    fn each_row(&self, rows: usize, out: &mut Table, run: impl Fn(usize, &mut [f32]) + Sync) {
        let columns = out.columns;
        let values = &mut out.values[..rows * columns];
        if values.len() < PARALLEL_VALUES_MIN {
            values.chunks_exact_mut(columns).enumerate().for_each(|(row, out)| run(row, out));
            return;
        }
        let shared = Disjoint::new(values);
        self.pool.run(rows, &|row| {
            // SAFETY: each row is one task, and tasks run once.
            run(row, unsafe { shared.part(row * columns, columns) });
        });
    }
}

/// (rows, columns) float32, row-major.
#[derive(Debug)]
pub struct Table {
    columns: usize,
    values: Vec<f32>,
}

impl Table {
    fn row(&self, row: usize) -> &[f32] {
        &self.values[row * self.columns..(row + 1) * self.columns]
    }
}

/// Keys and values, per layer (blocks, kv_heads, block_tokens, head_dim): a head's tokens of a block lie together.
#[derive(Debug)]
pub struct Cache {
    block_tokens: usize,
    layers: Vec<(Vec<f32>, Vec<f32>)>,
}

/// A slice whose parts several threads write. Whoever takes a part guarantees that no other part overlaps it.
struct Disjoint {
    start: *mut f32,
    length: usize,
}

// SAFETY: parts are handed out by `part`, whose callers guarantee that they do not overlap.
unsafe impl Sync for Disjoint {}

impl Disjoint {
    fn new(values: &mut [f32]) -> Self {
        Disjoint { start: values.as_mut_ptr(), length: values.len() }
    }

    /// # Safety
    /// No two parts in use at the same time may overlap, and the slice must outlive them.
    #[expect(clippy::mut_from_ref, reason = "the point of the type; callers guarantee disjointness")]
    unsafe fn part(&self, at: usize, length: usize) -> &mut [f32] {
        assert!(at + length <= self.length, "a part reaches past the end");
        // SAFETY: in bounds by the assertion, disjoint by the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(at), length) }
    }
}

impl Device for Cpu {
    type Activations = Table;
    type Matrix = Packed;
    type Vector = Vec<f32>;
    type KvCache = Cache;

    fn name(&self) -> String {
        format!("cpu {} {} threads", self.path.name(), self.pool.threads())
    }

    fn matrix(&self, rows: usize, columns: usize, source: WeightBytes<'_>) -> Result<Packed, DeviceError> {
        source.check("matrix", rows, columns)?;
        Ok(Packed::new(columns, &[(rows, source)]))
    }

    fn stacked(&self, columns: usize, parts: &[(usize, WeightBytes<'_>)]) -> Result<Packed, DeviceError> {
        for (rows, source) in parts {
            source.check("part of a stacked matrix", *rows, columns)?;
        }
        Ok(Packed::new(columns, parts))
    }

    fn vector(&self, length: usize, source: WeightBytes<'_>) -> Result<Vec<f32>, DeviceError> {
        source.check("vector", 1, length)?;
        Ok(source.to_vec())
    }

    fn activations(&self, rows: usize, columns: usize) -> Result<Table, DeviceError> {
        Ok(Table { columns, values: zeroed(rows.saturating_mul(columns))? })
    }

    fn kv_cache(
        &self,
        layers: usize,
        blocks: usize,
        block_tokens: usize,
        shape: HeadShape,
    ) -> Result<Cache, DeviceError> {
        let values = blocks.saturating_mul(block_tokens).saturating_mul(shape.kv_heads * shape.head_dim);
        let layer = |_| Ok((zeroed(values)?, zeroed(values)?));
        Ok(Cache { block_tokens, layers: (0..layers).map(layer).collect::<Result<_, DeviceError>>()? })
    }

    fn kv_block_bytes(&self, layers: usize, block_tokens: usize, shape: HeadShape) -> usize {
        layers * block_tokens * shape.kv_heads * shape.head_dim * 2 * size_of::<f32>()
    }

    fn embed(&self, table: &Packed, ids: &[u32], out: &mut Table) {
        self.each_row(ids.len(), out, |row, out| table.read_row(ids[row] as usize, out));
    }

    fn rms_norm(&self, rows: usize, x: &Table, weight: &Vec<f32>, epsilon: f32, out: &mut Table) {
        self.each_row(rows, out, |row, out| vector::rms_norm(self.path, x.row(row), weight, epsilon, out));
    }

    fn add_rms_norm(
        &self,
        rows: usize,
        x: &Table,
        residual: &mut Table,
        weight: &Vec<f32>,
        epsilon: f32,
        out: &mut Table,
    ) {
        self.each_row(rows, residual, |row, residual| {
            for (residual, x) in residual.iter_mut().zip(x.row(row)) {
                *residual += x;
            }
        });
        self.rms_norm(rows, residual, weight, epsilon, out);
    }

    fn matmul(&self, rows: usize, x: &Table, weight: &Packed, out: &mut Table) {
        assert_eq!(x.columns, weight.columns, "the inner sizes of a product differ");
        assert_eq!(out.columns, weight.rows, "the outer size of a product differs");
        let columns = out.columns;
        let x = Rows { values: &x.values[..rows * x.columns], columns: x.columns, rows };
        let shared = Disjoint::new(&mut out.values[..rows * columns]);
        let tasks = weight.panels().div_ceil(PANELS_PER_TASK);
        self.pool.run(tasks, &|task| {
            let first = task * PANELS_PER_TASK;
            let last = (first + PANELS_PER_TASK).min(weight.panels());
            // SAFETY: a task writes only the columns of its own panels, and tasks run once.
            unsafe { multiply_panels(self.path, x, weight, first..last, &shared) };
        });
    }

    fn rope_and_store(
        &self,
        layer: usize,
        shape: HeadShape,
        rope: &Rope,
        positions: &[u32],
        slots: &[u32],
        qkv: &mut Table,
        cache: &mut Cache,
    ) {
        let turned = (shape.heads + shape.kv_heads) * shape.head_dim;
        self.each_row(positions.len(), qkv, |row, qkv| {
            turn_heads(&mut qkv[..turned], shape.head_dim, rope, positions[row]);
        });
        let block_tokens = cache.block_tokens;
        let (keys, values) = &mut cache.layers[layer];
        for (row, slot) in slots.iter().enumerate() {
            let row = qkv.row(row);
            let (block, offset) = (*slot as usize / block_tokens, *slot as usize % block_tokens);
            for head in 0..shape.kv_heads {
                let to = ((block * shape.kv_heads + head) * block_tokens + offset) * shape.head_dim;
                let key = (shape.heads + head) * shape.head_dim;
                let value = key + shape.kv_heads * shape.head_dim;
                keys[to..to + shape.head_dim].copy_from_slice(&row[key..key + shape.head_dim]);
                values[to..to + shape.head_dim].copy_from_slice(&row[value..value + shape.head_dim]);
            }
        }
    }

    fn attend(
        &self,
        layer: usize,
        shape: HeadShape,
        scale: f32,
        spans: &[Span<'_>],
        qkv: &Table,
        cache: &Cache,
        out: &mut Table,
    ) {
        let block_tokens = cache.block_tokens;
        let (keys, values) = &cache.layers[layer];
        let group = shape.heads / shape.kv_heads * shape.head_dim;
        let block_values = shape.kv_heads * block_tokens * shape.head_dim;
        // Where each span's blocks begin for head 0; head h is a fixed distance further on.
        let starts: Vec<Vec<usize>> = spans
            .iter()
            .map(|span| span.blocks.iter().map(|block| *block as usize * block_values).collect())
            .collect();
        let jobs: Vec<(usize, usize)> = spans
            .iter()
            .enumerate()
            .flat_map(|(span, at)| (0..at.rows).map(move |row| (span, row)))
            .collect();
        let columns = out.columns;
        let shared = Disjoint::new(&mut out.values);
        self.pool.run(jobs.len() * shape.kv_heads, &|task| {
            let (span_index, row) = jobs[task / shape.kv_heads];
            let head = task % shape.kv_heads;
            let span = &spans[span_index];
            let shift = head * block_tokens * shape.head_dim;
            let job = Attended {
                queries: &qkv.row(span.row + row)[head * group..(head + 1) * group],
                dim: shape.head_dim,
                scale,
                seen: span.context - span.rows + row + 1,
                block_tokens,
                starts: &starts[span_index],
                keys: &keys[shift..],
                values: &values[shift..],
            };
            // SAFETY: each pair of row and head is one task and has its own part.
            let out = unsafe { shared.part((span.row + row) * columns + head * group, group) };
            SCORES.with_borrow_mut(|scores| vector::attend(self.path, &job, scores, out));
        });
    }

    fn silu_multiply(&self, rows: usize, gate_up: &Table, out: &mut Table) {
        let n = out.columns;
        self.each_row(rows, out, |row, out| {
            let (gate, up) = gate_up.row(row).split_at(n);
            vector::silu(self.path, gate, up, out);
        });
    }

    fn gather(&self, rows: &[u32], x: &Table, out: &mut Table) {
        self.each_row(rows.len(), out, |row, out| out.copy_from_slice(x.row(rows[row] as usize)));
    }

    fn read(&self, rows: usize, x: &Table, out: &mut Vec<f32>) {
        out.clear();
        out.extend_from_slice(&x.values[..rows * x.columns]);
    }
}

/// # Safety
/// No other thread may write the columns of these panels meanwhile.
unsafe fn multiply_panels(
    path: Path,
    x: Rows<'_>,
    weight: &Packed,
    panels: std::ops::Range<usize>,
    out: &Disjoint,
) {
    let bf16 = weight.kept == Kept::Bf16;
    let mut tile: Tile = [[[0.0; LANES]; 2]; 8];
    let mut panel = panels.start;
    while panel < panels.end {
        let width = if path == Path::Avx512 { 2.min(panels.end - panel) } else { 1 };
        let lines = [weight.panel(panel), weight.panel(panel + width - 1)];
        for first in (0..x.rows).step_by(path.tile_rows()) {
            let rows = path.tile_rows().min(x.rows - first);
            let part = Rows { values: &x.values[first * x.columns..], columns: x.columns, rows };
            match width {
                2 => vector::two_panels(path, bf16, part, lines, &mut tile),
                _ => vector::one_panel(path, bf16, part, lines, &mut tile),
            }
            for (row, sums) in tile.iter().take(rows).enumerate() {
                for (at, sums) in sums.iter().take(width).enumerate() {
                    let column = (panel + at) * LANES;
                    let length = LANES.min(weight.rows - column);
                    // SAFETY: these columns belong to this call's panels alone, by the caller's promise.
                    let out = unsafe { out.part((first + row) * weight.rows + column, length) };
                    out.copy_from_slice(&sums[..length]);
                }
            }
        }
        panel += width;
    }
}

fn turn_heads(heads: &mut [f32], dim: usize, rope: &Rope, position: u32) {
    let half = dim / 2;
    for (pair, frequency) in rope.inverse_frequencies.iter().enumerate() {
        let (sine, cosine) = (position as f32 * frequency).sin_cos();
        for head in heads.chunks_exact_mut(dim) {
            let (a, b) = (head[pair], head[pair + half]);
            head[pair] = a * cosine - b * sine;
            head[pair + half] = b * cosine + a * sine;
        }
    }
}

/// Room for values, or an error where there is none; the pages are given by the system when first written.
fn zeroed(values: usize) -> Result<Vec<f32>, DeviceError> {
    let out_of_memory = DeviceError::OutOfMemory { bytes: values.saturating_mul(size_of::<f32>()) };
    let mut room: Vec<f32> = Vec::new();
    if room.try_reserve_exact(values).is_err() {
        return Err(out_of_memory);
    }
    drop(room);
    Ok(vec![0.0; values])
}
