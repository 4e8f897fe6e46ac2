//! The oracle: every operation as its definition reads, in plain loops on one thread.
//!
//! Apart because it is what every faster path is compared with, and must stay obviously right. Must not know:
//! speed.

use crate::{Activation, Attention, Device, DeviceError, HeadShape, Rope, Span, WeightBytes};

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
    let half = rope.inverse_frequencies.len();
    for (pair, frequency) in rope.inverse_frequencies.iter().enumerate() {
        let (sine, cosine) = (position as f32 * frequency).sin_cos();
        let (a, b) = (head[pair] * rope.scale, head[pair + half] * rope.scale);
        head[pair] = a * cosine - b * sine;
        head[pair + half] = b * cosine + a * sine;
    }
}

fn activate(activation: Activation, x: f32) -> f32 {
    match activation {
        Activation::Silu => x / (1.0 + (-x).exp()),
        Activation::GeluTanh => {
            let inner = (2.0 / std::f32::consts::PI).sqrt() * (x + 0.044_715 * x * x * x);
            x / 2.0 * (1.0 + inner.tanh())
        }
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
        attention: Attention,
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
                let first = seen.saturating_sub(attention.window.unwrap_or(seen));
                for head in 0..shape.heads {
                    let query = &qkv.row(span.row + row)[head * dim..(head + 1) * dim];
                    let kv = head / group * dim..(head / group + 1) * dim;
                    let score = |position: usize| {
                        let key = &keys.row(cache.slot(span, position))[kv.clone()];
                        let score = attention.scale * query.iter().zip(key).map(|(q, k)| q * k).sum::<f32>();
                        attention.soft_cap.map_or(score, |cap| cap * (score / cap).tanh())
                    };
                    let scores: Vec<f32> = (first..seen).map(score).collect();
                    let highest = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
                    let total: f32 = scores.iter().map(|score| (score - highest).exp()).sum();
                    let out = &mut out.row_mut(span.row + row)[head * dim..(head + 1) * dim];
                    out.fill(0.0);
                    for (position, score) in (first..seen).zip(&scores) {
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

    fn gate(&self, rows: usize, activation: Activation, gate_up: &Table, out: &mut Table) {
        let n = out.columns;
        for row in 0..rows {
            let (gate, up) = gate_up.row(row).split_at(n);
            for ((out, gate), up) in out.row_mut(row).iter_mut().zip(gate).zip(up) {
                *out = activate(activation, *gate) * up;
            }
        }
    }

    fn add_vector(&self, rows: usize, vector: &Vec<f32>, x: &mut Table) {
        for row in 0..rows {
            x.row_mut(row).iter_mut().zip(vector).for_each(|(x, add)| *x += add);
        }
    }

    fn scale(&self, rows: usize, factor: f32, x: &mut Table) {
        for row in 0..rows {
            x.row_mut(row).iter_mut().for_each(|x| *x *= factor);
        }
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
        let dim = shape.head_dim;
        for row in 0..rows {
            for (head, part) in qkv.row_mut(row).chunks_exact_mut(dim).enumerate() {
                if head < shape.heads + shape.kv_heads {
                    let weight = if head < shape.heads { queries } else { keys };
                    let before = part.to_vec();
                    normalise(&before, weight, epsilon, part);
                }
            }
        }
    }

    fn scatter_add(&self, rows: &[u32], weights: &[f32], x: &Table, out: &mut Table) {
        for (from, (to, weight)) in rows.iter().zip(weights).enumerate() {
            let sums = out.row_mut(*to as usize).iter_mut();
            sums.zip(x.row(from)).for_each(|(sum, x)| *sum += weight * x);
        }
    }

    fn clear(&self, rows: usize, x: &mut Table) {
        x.values[..rows * x.columns].fill(0.0);
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

#[cfg(test)]
mod tests {
    use std::f32::consts::FRAC_PI_2;

    use super::*;

    fn table(columns: usize, values: &[f32]) -> Table {
        Table { columns, values: values.to_vec() }
    }

    #[track_caller]
    fn check(found: &[f32], expected: &[f32]) {
        assert_eq!(found.len(), expected.len());
        let close = |(found, expected): (&f32, &f32)| (found - expected).abs() < 1e-5;
        assert!(found.iter().zip(expected).all(close), "{found:?}, expected {expected:?}");
    }

    #[test]
    fn weights_keep_their_value_in_every_format() {
        // 1.5 is 0x3fc0 as bf16, 0x3e00 as f16; -2 is 0xc000 as both.
        let bf16 = Naive.vector(2, WeightBytes::Bf16(&[0xc0, 0x3f, 0x00, 0xc0])).unwrap();
        let f16 = Naive.vector(2, WeightBytes::F16(&[0x00, 0x3e, 0x00, 0xc0])).unwrap();
        let f32 = Naive.vector(2, WeightBytes::F32(&[0, 0, 0xc0, 0x3f, 0, 0, 0, 0xc0])).unwrap();
        assert_eq!([bf16, f16, f32], [[1.5, -2.0], [1.5, -2.0], [1.5, -2.0]]);
    }

    #[test]
    fn a_product_is_of_rows_with_rows() {
        // (1, 2) with (3, 4), (5, 6), (7, 8): 3 + 8, 5 + 12, 7 + 16. The second row is not asked for.
        let mut out = Table::zeroed(2, 3);
        Naive.matmul(
            1,
            &table(2, &[1.0, 2.0, 9.0, 9.0]),
            &table(2, &[3.0, 4.0, 5.0, 6.0, 7.0, 8.0]),
            &mut out,
        );
        assert_eq!(out.values, [11.0, 17.0, 23.0, 0.0, 0.0, 0.0]);
    }

    #[test]
    fn rows_are_picked_by_id() {
        let source = table(2, &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
        let mut out = Table::zeroed(3, 2);
        Naive.embed(&source, &[2, 0, 2], &mut out);
        assert_eq!(out.values, [5.0, 6.0, 1.0, 2.0, 5.0, 6.0]);
        Naive.gather(&[1], &source, &mut out);
        assert_eq!(out.values, [3.0, 4.0, 1.0, 2.0, 5.0, 6.0]);
    }

    #[test]
    fn a_norm_divides_by_the_root_of_the_mean_square() {
        // (1, 7) has the mean square 25; with epsilon 11 the root is 6.
        let mut out = Table::zeroed(1, 2);
        Naive.rms_norm(1, &table(2, &[1.0, 7.0]), &vec![10.0, 1.0], 0.0, &mut out);
        check(&out.values, &[2.0, 1.4]);
        Naive.rms_norm(1, &table(2, &[1.0, 7.0]), &vec![6.0, 6.0], 11.0, &mut out);
        check(&out.values, &[1.0, 7.0]);
        let mut residual = table(2, &[-2.0, 3.0]);
        Naive.add_rms_norm(1, &table(2, &[3.0, 4.0]), &mut residual, &vec![10.0, 1.0], 0.0, &mut out);
        assert_eq!(residual.values, [1.0, 7.0]);
        check(&out.values, &[2.0, 1.4]);
    }

    #[test]
    fn a_gate_is_silu() {
        // silu(0) = 0; silu(ln 3) = ln 3 / (1 + 1/3) = 0.75 ln 3; silu(-ln 3) = -0.25 ln 3.
        let ln3 = 3.0_f32.ln();
        let mut out = Table::zeroed(1, 3);
        Naive.gate(1, Activation::Silu, &table(6, &[0.0, ln3, -ln3, 5.0, 4.0, 4.0]), &mut out);
        check(&out.values, &[0.0, 3.0 * ln3, -ln3]);
    }

    #[test]
    fn heads_turn_by_pairs_half_a_head_apart() {
        // One query, one key, one value head of 4. Pair (0, 2) turns by 90 degrees a position, pair (1, 3) not at
        // all: (a, b, c, d) becomes (-c, b, a, d) at position 1, (-a, b, -c, d) at position 2.
        let shape = HeadShape { heads: 1, kv_heads: 1, head_dim: 4 };
        let rope = Rope { inverse_frequencies: vec![FRAC_PI_2, 0.0], scale: 1.0 };
        let mut cache = Naive.kv_cache(2, 2, 2, shape).unwrap();
        let row = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0, 11.0, 12.0];
        let mut qkv = table(12, &[row, row].concat());
        Naive.rope_and_store(1, shape, &rope, &[1, 2], &[3, 0], &mut qkv, &mut cache);
        check(qkv.row(0), &[-3.0, 2.0, 1.0, 4.0, -7.0, 6.0, 5.0, 8.0, 9.0, 10.0, 11.0, 12.0]);
        check(qkv.row(1), &[-1.0, 2.0, -3.0, 4.0, -5.0, 6.0, -7.0, 8.0, 9.0, 10.0, 11.0, 12.0]);
        let (keys, values) = &cache.layers[1];
        check(keys.row(3), &[-7.0, 6.0, 5.0, 8.0]);
        check(keys.row(0), &[-5.0, 6.0, -7.0, 8.0]);
        check(values.row(3), &[9.0, 10.0, 11.0, 12.0]);
        assert!(cache.layers[0].0.values.iter().chain(keys.row(1)).all(|value| *value == 0.0));
    }

    #[test]
    fn attention_weighs_values_by_softmax() {
        // Two query heads on one key/value head of 2, nothing turned, blocks of one token in the order 1, 0. Keys
        // (2 ln 3, 0) and (0, 0), scale 1/2: query (1, 0) weighs the two 3 to 1, query (-1, 0) 1 to 3. The first
        // position sees only itself.
        let shape = HeadShape { heads: 2, kv_heads: 1, head_dim: 2 };
        let rope = Rope { inverse_frequencies: vec![0.0], scale: 1.0 };
        let mut cache = Naive.kv_cache(1, 2, 1, shape).unwrap();
        let key = 2.0 * 3.0_f32.ln();
        let first = [1.0, 0.0, -1.0, 0.0, key, 0.0, 4.0, 0.0];
        let second = [1.0, 0.0, -1.0, 0.0, 0.0, 0.0, 0.0, 8.0];
        let mut qkv = table(8, &[first, second].concat());
        Naive.rope_and_store(0, shape, &rope, &[0, 1], &[1, 0], &mut qkv, &mut cache);
        let mut out = Table::zeroed(2, 4);
        let plain = Attention { scale: 0.5, window: None, soft_cap: None };
        let span = Span { row: 0, rows: 2, context: 2, blocks: &[1, 0] };
        Naive.attend(0, shape, plain, &[span], &qkv, &cache, &mut out);
        check(out.row(0), &[4.0, 0.0, 4.0, 0.0]);
        check(out.row(1), &[3.0, 2.0, 1.0, 6.0]);
        // A later chunk: the second row alone, as row 0 of its batch.
        let alone = table(8, &second);
        let span = Span { row: 0, rows: 1, context: 2, blocks: &[1, 0] };
        Naive.attend(0, shape, plain, &[span], &alone, &cache, &mut out);
        check(out.row(0), &[3.0, 2.0, 1.0, 6.0]);
    }

    #[test]
    fn a_window_hides_what_is_far_and_a_cap_flattens() {
        // Three tokens, values 1, 10, 100, keys (ln 3, 0, 0): with scale 1 and query 1 the first weighs 3, the
        // others 1. One head of 2 of which only the first dimension is used.
        let shape = HeadShape { heads: 1, kv_heads: 1, head_dim: 2 };
        let rope = Rope { inverse_frequencies: vec![0.0], scale: 1.0 };
        let mut cache = Naive.kv_cache(1, 1, 4, shape).unwrap();
        let key = 3.0_f32.ln();
        let rows = [
            [1.0, 0.0, key, 0.0, 1.0, 0.0],
            [1.0, 0.0, 0.0, 0.0, 10.0, 0.0],
            [1.0, 0.0, 0.0, 0.0, 100.0, 0.0],
        ];
        let mut qkv = table(6, rows.as_flattened());
        Naive.rope_and_store(0, shape, &rope, &[0, 1, 2], &[0, 1, 2], &mut qkv, &mut cache);
        let span = Span { row: 0, rows: 3, context: 3, blocks: &[0] };
        let attend = |window, soft_cap| {
            let mut out = Table::zeroed(3, 2);
            let attention = Attention { scale: 1.0, window, soft_cap };
            Naive.attend(0, shape, attention, &[span], &qkv, &cache, &mut out);
            [out.row(0)[0], out.row(1)[0], out.row(2)[0]]
        };
        check(&attend(None, None), &[1.0, 13.0 / 4.0, 113.0 / 5.0]);
        check(&attend(Some(3), None), &[1.0, 13.0 / 4.0, 113.0 / 5.0]);
        check(&attend(Some(2), None), &[1.0, 13.0 / 4.0, 55.0]);
        check(&attend(Some(1), None), &[1.0, 10.0, 100.0]);
        // A cap of ln 3 makes ln 3 to ln 3 * tanh 1, and tanh 1 = (e² - 1) / (e² + 1).
        let e2 = 1.0_f32.exp().powi(2);
        let weight = (key * (e2 - 1.0) / (e2 + 1.0)).exp();
        check(
            &attend(None, Some(key)),
            &[1.0, (weight + 10.0) / (weight + 1.0), (weight + 110.0) / (weight + 2.0)],
        );
    }

    #[test]
    fn part_of_a_head_turns_and_grows() {
        // Heads of 4 of which pair (0, 1) turns by 90 degrees and doubles: (a, b, c, d) becomes (-2b, 2a, c, d).
        let shape = HeadShape { heads: 1, kv_heads: 1, head_dim: 4 };
        let rope = Rope { inverse_frequencies: vec![FRAC_PI_2], scale: 2.0 };
        let mut cache = Naive.kv_cache(1, 1, 1, shape).unwrap();
        let mut qkv = table(12, &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0, 11.0, 12.0]);
        Naive.rope_and_store(0, shape, &rope, &[1], &[0], &mut qkv, &mut cache);
        check(qkv.row(0), &[-4.0, 2.0, 3.0, 4.0, -12.0, 10.0, 7.0, 8.0, 9.0, 10.0, 11.0, 12.0]);
    }

    #[test]
    fn a_gate_is_gelu() {
        // gelu(0) = 0; for large x it is x, for very negative x 0. gelu(1) = 0.8412 by the table of the paper's
        // approximation: 0.5 (1 + tanh(0.79788 * 1.044715)) = 0.5 (1 + tanh 0.83356) = 0.5 (1 + 0.68238).
        let mut out = Table::zeroed(1, 4);
        let gate_up = table(8, &[0.0, 20.0, -20.0, 1.0, 5.0, 2.0, 2.0, 1.0]);
        Naive.gate(1, Activation::GeluTanh, &gate_up, &mut out);
        check(&out.values[..3], &[0.0, 40.0, 0.0]);
        assert!((out.values[3] - 0.84119).abs() < 2e-5, "{:?}", out.values);
    }

    #[test]
    fn small_operations_do_what_they_say() {
        let mut x = table(2, &[1.0, 2.0, 3.0, 4.0]);
        Naive.add_vector(1, &vec![10.0, 20.0], &mut x);
        Naive.scale(1, 2.0, &mut x);
        assert_eq!(x.values, [22.0, 44.0, 3.0, 4.0]);
        let mut out = table(2, &[1.0, 1.0, 2.0, 2.0]);
        Naive.scatter_add(&[1, 1], &[1.0, 0.5], &x, &mut out);
        assert_eq!(out.values, [1.0, 1.0, 25.5, 48.0]);
        Naive.clear(1, &mut out);
        assert_eq!(out.values, [0.0, 0.0, 25.5, 48.0]);
        // Two query heads, one key head and one value head of 2; (1, 7) has the root mean square 5.
        let shape = HeadShape { heads: 2, kv_heads: 1, head_dim: 2 };
        let mut qkv = table(8, &[1.0, 7.0, 5.0, 5.0, 1.0, 7.0, 1.0, 7.0]);
        Naive.norm_heads(1, shape, &vec![5.0, 5.0], &vec![10.0, 5.0], 0.0, &mut qkv);
        check(&qkv.values, &[1.0, 7.0, 5.0, 5.0, 2.0, 7.0, 1.0, 7.0]);
    }
}
