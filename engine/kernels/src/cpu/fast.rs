//! The CPU device: packed weights, all cores, the widest vectors there are.
//!
//! Apart from the oracle, with which `tests/agree.rs` compares it. float32 arithmetic and float32 keys and values
//! throughout; bf16 weights are widened exactly. Must not know: sequences, models.

use std::cell::RefCell;
use std::ops::Range;

use super::attention::{self, Queries};
use super::cache::{Cache, Layout, zeroed};
use super::panel::{LANES, Packed};
use super::path::Path;
use super::pool::{Disjoint, Pool};
use super::tile::{self, PANELS_MAX, ROWS_MAX, Rows, Tile};
use super::vector;
use crate::{Activation, Attention, Device, DeviceError, HeadShape, Rope, Span, WeightBytes};

/// Below this many values an operation is done by the calling thread alone: to wake another costs more.
const PARALLEL_VALUES_MIN: usize = 16 * 1024;
/// Multiply-adds of one task of a product: some 0.1 ms on AVX-512, well under what the pool takes for a stall on
/// slower machines.
const PRODUCTS_PER_TASK_MAX: usize = 5 << 20;
/// Queries that attention takes as one task, about: enough that keys and values are read from a near cache, few
/// enough that their scores stay in it.
const QUERIES_PER_TASK: usize = 24;

thread_local! {
    static SCRATCH: RefCell<Scratch> = const { RefCell::new(Scratch::new()) };
}

/// What one thread of attention works in; it grows to the longest context and stays.
struct Scratch {
    queries: Vec<f32>,
    scores: Vec<f32>,
    out: Vec<f32>,
}

impl Scratch {
    const fn new() -> Self {
        Scratch { queries: Vec::new(), scores: Vec::new(), out: Vec::new() }
    }
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
        Packed::new(&self.pool, columns, &[(rows, source)])
    }

    fn stacked(&self, columns: usize, parts: &[(usize, WeightBytes<'_>)]) -> Result<Packed, DeviceError> {
        for (rows, source) in parts {
            source.check("part of a stacked matrix", *rows, columns)?;
        }
        Packed::new(&self.pool, columns, parts)
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
        Cache::new(layers, blocks, Layout::new(shape, block_tokens))
    }

    fn kv_block_bytes(&self, layers: usize, block_tokens: usize, shape: HeadShape) -> usize {
        layers * Layout::new(shape, block_tokens).block_bytes()
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
        let x = Rows { values: &x.values[..rows * x.columns], stride: x.columns, columns: x.columns, rows };
        let shared = Disjoint::new(&mut out.values[..rows * columns]);
        let cut = Cut::new(rows, x.columns, weight.panels(), self.pool.threads());
        self.pool.run(cut.tasks(), &|task| {
            let (rows, panels) = cut.task(task);
            // SAFETY: a task writes only its own rows and the columns of its own panels, and tasks run once.
            unsafe { multiply_panels(self.path, x, weight, rows, panels, &shared) };
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
        for (row, slot) in slots.iter().enumerate() {
            let (keys, values) =
                qkv.row(row)[shape.output_columns()..].split_at(shape.kv_heads * shape.head_dim);
            cache.store(layer, *slot, keys, values);
        }
    }

    fn attend(
        &self,
        layer: usize,
        shape: HeadShape,
        attention: Attention,
        spans: &[Span<'_>],
        qkv: &Table,
        cache: &Cache,
        out: &mut Table,
    ) {
        let (layout, layer) = (cache.layout, &cache.layers[layer]);
        let group = shape.heads / shape.kv_heads;
        let rows_each = (QUERIES_PER_TASK / group).max(1);
        // The last rows of a span see the most, so they go first and no thread is left with one at the end.
        let parts = |span: usize| (0..spans[span].rows).step_by(rows_each).rev().map(move |row| (span, row));
        let jobs: Vec<(usize, usize)> = (0..spans.len()).flat_map(parts).collect();
        let columns = out.columns;
        let shared = Disjoint::new(&mut out.values);
        self.pool.run(jobs.len() * shape.kv_heads, &|task| {
            let (span, first) = jobs[task / shape.kv_heads];
            let (span, head) = (&spans[span], task % shape.kv_heads);
            let rows = rows_each.min(span.rows - first);
            let width = group * shape.head_dim;
            SCRATCH.with_borrow_mut(|scratch| {
                let Scratch { queries, scores, out } = scratch;
                queries.clear();
                for row in span.row + first..span.row + first + rows {
                    let row = &qkv.row(row)[head * width..(head + 1) * width];
                    queries.extend(row.iter().map(|query| query * attention.scale));
                }
                out.resize(rows * width, 0.0);
                let job = Queries {
                    values: queries,
                    group,
                    seen: span.context - span.rows + first + 1,
                    window: attention.window.unwrap_or(usize::MAX),
                    soft_cap: attention.soft_cap,
                    head,
                    blocks: span.blocks,
                    layout,
                    key_lines: layer.keys.all(),
                    value_lines: layer.values.all(),
                };
                attention::attend(self.path, &job, scores, out);
                for (row, out) in out.chunks_exact(width).enumerate() {
                    let at = (span.row + first + row) * columns + head * width;
                    // SAFETY: each pair of row and head belongs to one task and has its own part.
                    unsafe { shared.part(at, width) }.copy_from_slice(out);
                }
            });
        });
    }

    fn gate(&self, rows: usize, activation: Activation, gate_up: &Table, out: &mut Table) {
        let n = out.columns;
        self.each_row(rows, out, |row, out| {
            let (gate, up) = gate_up.row(row).split_at(n);
            match activation {
                Activation::Silu => vector::silu(self.path, gate, up, out),
                Activation::GeluTanh => vector::gelu(self.path, gate, up, out),
            }
        });
    }

    fn add_vector(&self, rows: usize, vector: &Vec<f32>, x: &mut Table) {
        self.each_row(rows, x, |_, x| x.iter_mut().zip(vector).for_each(|(x, add)| *x += add));
    }

    fn scale(&self, rows: usize, factor: f32, x: &mut Table) {
        self.each_row(rows, x, |_, x| x.iter_mut().for_each(|x| *x *= factor));
    }

    fn norm_heads(
        &self,
        rows: usize,
        shape: HeadShape,
        queries: &Vec<f32>,
        keys: &Vec<f32>,
        epsilon: f32,
        qkv: &mut Table,
    ) {
        self.each_row(rows, qkv, |_, qkv| {
            let (heads, rest) = qkv.split_at_mut(shape.output_columns());
            let rest = &mut rest[..shape.kv_heads * shape.head_dim];
            for (part, weight) in [(heads, queries), (rest, keys)] {
                for head in part.chunks_exact_mut(shape.head_dim) {
                    vector::rms_norm_in_place(self.path, weight, epsilon, head);
                }
            }
        });
    }

    fn scatter_add(&self, rows: &[u32], weights: &[f32], x: &Table, out: &mut Table) {
        // Two of the rows may be one, so they are not shared out.
        for (from, (to, weight)) in rows.iter().zip(weights).enumerate() {
            let to = *to as usize * out.columns;
            let sums = out.values[to..to + out.columns].iter_mut();
            sums.zip(x.row(from)).for_each(|(sum, x)| *sum += weight * x);
        }
    }

    fn clear(&self, rows: usize, x: &mut Table) {
        x.values[..rows * x.columns].fill(0.0);
    }

    fn gather(&self, rows: &[u32], x: &Table, out: &mut Table) {
        self.each_row(rows.len(), out, |row, out| out.copy_from_slice(x.row(rows[row] as usize)));
    }

    fn read(&self, rows: usize, x: &Table, out: &mut Vec<f32>) {
        out.clear();
        out.extend_from_slice(&x.values[..rows * x.columns]);
    }
}

/// How a product is shared out: blocks of rows times parts of four panels, of which the last ones, one for each
/// thread, are cut in halves, so that threads end together.
struct Cut {
    rows: usize,
    rows_each: usize,
    panels: usize,
    wide: usize,
}

impl Cut {
    fn new(rows: usize, columns: usize, panels: usize, threads: usize) -> Self {
        let row_products = columns.max(1) * PANELS_MAX * LANES;
        // Whole tiles of 8.
        let rows_each = (PRODUCTS_PER_TASK_MAX / row_products).max(1).next_multiple_of(ROWS_MAX);
        Cut { rows, rows_each, panels, wide: (panels / PANELS_MAX).saturating_sub(threads) }
    }

    fn parts(&self) -> usize {
        self.wide + (self.panels - self.wide * PANELS_MAX).div_ceil(2)
    }

    fn tasks(&self) -> usize {
        self.rows.div_ceil(self.rows_each) * self.parts()
    }

    /// Rows and panels of one task.
    fn task(&self, task: usize) -> (Range<usize>, Range<usize>) {
        let (block, part) = (task / self.parts(), task % self.parts());
        let rows = block * self.rows_each..((block + 1) * self.rows_each).min(self.rows);
        if part < self.wide {
            return (rows, part * PANELS_MAX..(part + 1) * PANELS_MAX);
        }
        let first = self.wide * PANELS_MAX + (part - self.wide) * 2;
        (rows, first..(first + 2).min(self.panels))
    }
}

/// # Safety
/// No other thread may write the columns of these panels in these rows meanwhile.
unsafe fn multiply_panels(
    path: Path,
    x: Rows<'_>,
    weight: &Packed,
    rows: Range<usize>,
    panels: Range<usize>,
    out: &Disjoint<'_, f32>,
) {
    let mut tile: Tile = [[[0.0; LANES]; PANELS_MAX]; ROWS_MAX];
    let (rows_max, panels_max) = path.tile(rows.len());
    let mut panel = panels.start;
    while panel < panels.end {
        let left = panels.end - panel;
        let count = [4, 2, 1].into_iter().find(|count| *count <= left.min(panels_max)).unwrap_or(1);
        let lines = weight.panels_from(panel, count);
        for first in rows.clone().step_by(rows_max) {
            let rows = rows_max.min(rows.end - first);
            let part = Rows { values: &x.values[first * x.stride..], rows, ..x };
            tile::multiply(path, part, count, lines, &mut tile);
            let column = panel * LANES;
            let length = (count * LANES).min(weight.rows - column);
            for (row, sums) in tile.iter().take(rows).enumerate() {
                // SAFETY: these columns belong to this call's panels alone, by the caller's promise.
                let out = unsafe { out.part((first + row) * weight.rows + column, length) };
                out.copy_from_slice(&sums.as_flattened()[..length]);
            }
        }
        panel += count;
    }
}

fn turn_heads(heads: &mut [f32], dim: usize, rope: &Rope, position: u32) {
    let half = rope.inverse_frequencies.len();
    for (pair, frequency) in rope.inverse_frequencies.iter().enumerate() {
        let (sine, cosine) = (position as f32 * frequency).sin_cos();
        let (sine, cosine) = (sine * rope.scale, cosine * rope.scale);
        for head in heads.chunks_exact_mut(dim) {
            let (a, b) = (head[pair], head[pair + half]);
            head[pair] = a * cosine - b * sine;
            head[pair + half] = b * cosine + a * sine;
        }
    }
}
