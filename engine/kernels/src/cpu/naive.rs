//! The oracle: every operation as its definition reads, in plain loops on one thread.
//!
//! Apart because it is what every faster path is compared with, and must stay obviously right. Must not know:
//! speed.

use crate::{Device, DeviceError, HeadShape, Rope, Span, WeightBytes};

/// The plain device.
#[derive(Debug, Clone, Copy, Default)]
pub struct Naive;

/// (rows, columns) float32, row-major.
#[derive(Debug, Clone, PartialEq)]
pub struct Table {
    pub columns: usize,
    pub values: Vec<f32>,
}

impl Table {
    fn zeroed(rows: usize, columns: usize) -> Self {
        Table { columns, values: vec![0.0; rows * columns] }
    }

    fn row(&self, row: usize) -> &[f32] {
        &self.values[row * self.columns..(row + 1) * self.columns]
    }

    fn row_mut(&mut self, row: usize) -> &mut [f32] {
        &mut self.values[row * self.columns..(row + 1) * self.columns]
    }
}

/// Keys and values, (layers, slots, kv_heads * head_dim) each.
#[derive(Debug, Clone)]
pub struct Cache {
    block_tokens: usize,
    layers: Vec<(Table, Table)>,
}

impl Cache {
    fn slot(&self, span: &Span<'_>, position: usize) -> usize {
        span.blocks[position / self.block_tokens] as usize * self.block_tokens + position % self.block_tokens
    }
}

fn normalise(x: &[f32], weight: &[f32], epsilon: f32, out: &mut [f32]) {
    let mean_square = x.iter().map(|v| v * v).sum::<f32>() / x.len() as f32;
    let scale = 1.0 / (mean_square + epsilon).sqrt();
    for ((out, x), weight) in out.iter_mut().zip(x).zip(weight) {
        *out = x * scale * weight;
    }
}

fn turn(head: &mut [f32], rope: &Rope, position: u32) {
    let half = head.len() / 2;
    for (pair, frequency) in rope.inverse_frequencies.iter().enumerate() {
        let (sine, cosine) = (position as f32 * frequency).sin_cos();
        let (a, b) = (head[pair], head[pair + half]);
        head[pair] = a * cosine - b * sine;
        head[pair + half] = b * cosine + a * sine;
    }
}

impl Device for Naive {
    type Activations = Table;
    type Matrix = Table;
    type Vector = Vec<f32>;
    type KvCache = Cache;

    fn name(&self) -> String {
        "cpu naive".to_owned()
    }

    fn matrix(&self, rows: usize, columns: usize, source: WeightBytes<'_>) -> Result<Table, DeviceError> {
        source.check("matrix", rows, columns)?;
        Ok(Table { columns, values: source.to_vec() })
    }

    fn stacked(&self, columns: usize, parts: &[(usize, WeightBytes<'_>)]) -> Result<Table, DeviceError> {
        let mut values = Vec::new();
        for (rows, source) in parts {
            source.check("part of a stacked matrix", *rows, columns)?;
            values.extend(source.to_vec());
        }
        Ok(Table { columns, values })
    }

    fn vector(&self, length: usize, source: WeightBytes<'_>) -> Result<Vec<f32>, DeviceError> {
        source.check("vector", 1, length)?;
        Ok(source.to_vec())
    }

    fn activations(&self, rows: usize, columns: usize) -> Result<Table, DeviceError> {
        Ok(Table::zeroed(rows, columns))
    }

    fn kv_cache(
        &self,
        layers: usize,
        blocks: usize,
        block_tokens: usize,
        shape: HeadShape,
    ) -> Result<Cache, DeviceError> {
        let table = || Table::zeroed(blocks * block_tokens, shape.kv_heads * shape.head_dim);
        Ok(Cache { block_tokens, layers: (0..layers).map(|_| (table(), table())).collect() })
    }

    fn kv_block_bytes(&self, layers: usize, block_tokens: usize, shape: HeadShape) -> usize {
        layers * block_tokens * shape.kv_heads * shape.head_dim * 2 * size_of::<f32>()
    }

    fn embed(&self, table: &Table, ids: &[u32], out: &mut Table) {
        for (row, id) in ids.iter().enumerate() {
            out.row_mut(row).copy_from_slice(table.row(*id as usize));
        }
    }

    fn rms_norm(&self, rows: usize, x: &Table, weight: &Vec<f32>, epsilon: f32, out: &mut Table) {
        for row in 0..rows {
            normalise(x.row(row), weight, epsilon, out.row_mut(row));
        }
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
        for row in 0..rows {
            for (residual, x) in residual.row_mut(row).iter_mut().zip(x.row(row)) {
                *residual += x;
            }
            normalise(residual.row(row), weight, epsilon, out.row_mut(row));
        }
    }

    fn matmul(&self, rows: usize, x: &Table, weight: &Table, out: &mut Table) {
        assert_eq!(x.columns, weight.columns, "the inner sizes of a product differ");
        for row in 0..rows {
            for column in 0..out.columns {
                let products = x.row(row).iter().zip(weight.row(column)).map(|(x, w)| x * w);
                out.values[row * out.columns + column] = products.sum();
            }
        }
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
        let keys = shape.heads * shape.head_dim..turned;
        let values = turned..shape.qkv_columns();
        let (cached_keys, cached_values) = &mut cache.layers[layer];
        for (row, (position, slot)) in positions.iter().zip(slots).enumerate() {
            let row = qkv.row_mut(row);
            for head in row[..turned].chunks_exact_mut(shape.head_dim) {
                turn(head, rope, *position);
            }
            cached_keys.row_mut(*slot as usize).copy_from_slice(&row[keys.clone()]);
            cached_values.row_mut(*slot as usize).copy_from_slice(&row[values.clone()]);
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
        let dim = shape.head_dim;
        let group = shape.heads / shape.kv_heads;
        let (keys, values) = &cache.layers[layer];
        for span in spans {
            for row in 0..span.rows {
                let seen = span.context - span.rows + row + 1;
                for head in 0..shape.heads {
                    let query = &qkv.row(span.row + row)[head * dim..(head + 1) * dim];
                    let kv = head / group * dim..(head / group + 1) * dim;
                    let score = |position: usize| {
                        let key = &keys.row(cache.slot(span, position))[kv.clone()];
                        scale * query.iter().zip(key).map(|(q, k)| q * k).sum::<f32>()
                    };
                    let scores: Vec<f32> = (0..seen).map(score).collect();
                    let highest = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
                    let total: f32 = scores.iter().map(|score| (score - highest).exp()).sum();
                    let out = &mut out.row_mut(span.row + row)[head * dim..(head + 1) * dim];
                    out.fill(0.0);
                    for (position, score) in scores.iter().enumerate() {
                        let probability = (score - highest).exp() / total;
                        let value = &values.row(cache.slot(span, position))[kv.clone()];
                        for (out, value) in out.iter_mut().zip(value) {
                            *out += probability * value;
                        }
                    }
                }
            }
        }
    }

    fn silu_multiply(&self, rows: usize, gate_up: &Table, out: &mut Table) {
        let n = out.columns;
        for row in 0..rows {
            let (gate, up) = gate_up.row(row).split_at(n);
            for ((out, gate), up) in out.row_mut(row).iter_mut().zip(gate).zip(up) {
                *out = gate / (1.0 + (-gate).exp()) * up;
            }
        }
    }

    fn gather(&self, rows: &[u32], x: &Table, out: &mut Table) {
        for (to, from) in rows.iter().enumerate() {
            out.row_mut(to).copy_from_slice(x.row(*from as usize));
        }
    }

    fn read(&self, rows: usize, x: &Table, out: &mut Vec<f32>) {
        out.clear();
        out.extend_from_slice(&x.values[..rows * x.columns]);
    }
}
