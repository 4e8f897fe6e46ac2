//! Every operation, random shapes: the fast device on each instruction set against the oracle, whose own cases are
//! worked by hand beside it.
//!
//! Tolerance: both sum the same float32 products in different orders. The error of a sum of k products is bounded
//! by about k/2 units in the last place of the sum of magnitudes and is in practice its square root; with inputs
//! of about 1 and k <= 300 that is 300 * 6e-8 * 2 < 4e-5 of the magnitudes' sum. Values are compared to 1e-4
//! relative to the largest magnitude in the row.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use pitot_kernels::cpu::naive::Naive;
use pitot_kernels::cpu::{Cpu, Path};
use pitot_kernels::{Activation, Attention, Device, HeadShape, Rope, Span, WeightBytes};

const TOLERANCE: f32 = 1e-4;

/// A small generator (Marsaglia's xorshift), so that each case is the same each time.
struct Random(u64);

impl Random {
    fn bits(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, limit: usize) -> usize {
        (self.bits() % limit as u64) as usize
    }

    fn value(&mut self) -> f32 {
        (self.bits() >> 40) as f32 / (1 << 23) as f32 - 1.0
    }

    fn f32_bytes(&mut self, count: usize) -> Vec<u8> {
        (0..count).flat_map(|_| self.value().to_le_bytes()).collect()
    }
}

/// The formats a weight may come in.
#[derive(Debug, Clone, Copy)]
enum Format {
    Bf16,
    F16,
    F32,
}

impl Format {
    fn bytes(self, random: &mut Random, count: usize) -> Vec<u8> {
        match self {
            Format::F32 => random.f32_bytes(count),
            Format::Bf16 => {
                (0..count).flat_map(|_| half::bf16::from_f32(random.value()).to_le_bytes()).collect()
            }
            Format::F16 => {
                (0..count).flat_map(|_| half::f16::from_f32(random.value()).to_le_bytes()).collect()
            }
        }
    }

    fn weight(self, bytes: &[u8]) -> WeightBytes<'_> {
        match self {
            Format::Bf16 => WeightBytes::Bf16(bytes),
            Format::F16 => WeightBytes::F16(bytes),
            Format::F32 => WeightBytes::F32(bytes),
        }
    }
}

/// Fills activations of any device by embedding them from an f32 table.
fn fill<D: Device>(device: &D, rows: usize, columns: usize, seed: u64) -> D::Activations {
    let bytes = Random(seed).f32_bytes(rows * columns);
    let table = device.matrix(rows, columns, WeightBytes::F32(&bytes)).unwrap();
    let mut out = device.activations(rows, columns).unwrap();
    let ids: Vec<u32> = (0..rows as u32).collect();
    device.embed(&table, &ids, &mut out);
    out
}

fn values<D: Device>(device: &D, rows: usize, x: &D::Activations) -> Vec<f32> {
    let mut out = Vec::new();
    device.read(rows, x, &mut out);
    out
}

#[track_caller]
fn check(found: &[f32], expected: &[f32], columns: usize, what: &str) {
    assert_eq!(found.len(), expected.len(), "{what}");
    for (row, (found, expected)) in found.chunks(columns).zip(expected.chunks(columns)).enumerate() {
        let scale = expected.iter().fold(1e-3_f32, |most, v| most.max(v.abs()));
        for (column, (found, expected)) in found.iter().zip(expected).enumerate() {
            assert!(
                (found - expected).abs() <= TOLERANCE * scale,
                "{what}: row {row}, column {column}: {found}, the oracle says {expected}"
            );
        }
    }
}

fn devices() -> Vec<Cpu> {
    let paths = Path::available();
    paths
        .into_iter()
        .flat_map(|path| [1, 3].map(|threads| Cpu::with_path(path, Some(threads)).unwrap()))
        .collect()
}

#[test]
fn products_agree() {
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    for device in devices() {
        for round in 0..24 {
            let (rows, k, n) = (1 + random.below(40), 1 + random.below(300), 1 + random.below(200));
            product_agrees(&device, &mut random, round, (rows, k, n));
        }
        // Each number of rows that a tile may have, and enough rows for several tasks.
        for rows in (1..=9).chain([400]) {
            product_agrees(&device, &mut random, rows, (rows, 258, 113));
        }
    }
}

#[track_caller]
fn product_agrees(device: &Cpu, random: &mut Random, round: usize, (rows, k, n): (usize, usize, usize)) {
    let format = [Format::Bf16, Format::F16, Format::F32][round % 3];
    let bytes = format.bytes(random, n * k);
    let x = fill(device, rows, k, round as u64 + 1);
    let oracle_x = fill(&Naive, rows, k, round as u64 + 1);
    let weight = device.matrix(n, k, format.weight(&bytes)).unwrap();
    let oracle_weight = Naive.matrix(n, k, format.weight(&bytes)).unwrap();
    let (mut out, mut expected) = (device.activations(rows, n).unwrap(), Naive.activations(rows, n).unwrap());
    device.matmul(rows, &x, &weight, &mut out);
    Naive.matmul(rows, &oracle_x, &oracle_weight, &mut expected);
    let what = format!("{} ({rows}, {k}) x ({n}, {k}) {format:?}", device.name());
    check(&values(device, rows, &out), &values(&Naive, rows, &expected), n, &what);
}

/// Rows past those that an operation is asked for stay as they are.
#[test]
fn rows_past_the_count_are_left_alone() {
    for device in devices() {
        let bytes = Random(5).f32_bytes(6 * 6);
        let weight = device.matrix(6, 6, WeightBytes::F32(&bytes)).unwrap();
        let norm = device.vector(6, WeightBytes::F32(&bytes[..24])).unwrap();
        let (x, gate_up) = (fill(&device, 4, 6, 1), fill(&device, 4, 12, 2));
        let before = values(&device, 4, &fill(&device, 4, 6, 3));
        for operation in 0..4 {
            for rows in [0, 1, 3] {
                let mut out = fill(&device, 4, 6, 3);
                match operation {
                    0 => device.matmul(rows, &x, &weight, &mut out),
                    1 => device.rms_norm(rows, &x, &norm, 1e-5, &mut out),
                    2 => device.gate(rows, Activation::Silu, &gate_up, &mut out),
                    _ => device.gather(&[3, 2, 1][..rows], &x, &mut out),
                }
                let after = values(&device, 4, &out);
                assert_eq!(after[rows * 6..], before[rows * 6..], "operation {operation}, {rows} rows");
                assert!(rows == 0 || after[..rows * 6] != before[..rows * 6], "operation {operation}");
            }
        }
    }
}

#[test]
fn packed_rows_read_back_exactly() {
    let mut random = Random(7);
    for device in devices() {
        for format in [Format::Bf16, Format::F16, Format::F32] {
            let (rows, columns) = (37, 21);
            let bytes = format.bytes(&mut random, rows * columns);
            let (head, tail) = bytes.split_at(bytes.len() / rows * 16);
            let packed =
                device.stacked(columns, &[(16, format.weight(head)), (21, format.weight(tail))]).unwrap();
            let plain = Naive.matrix(rows, columns, format.weight(&bytes)).unwrap();
            let ids: Vec<u32> = vec![36, 0, 15, 16, 17, 3];
            let (mut out, mut expected) =
                (device.activations(6, columns).unwrap(), Naive.activations(6, columns).unwrap());
            device.embed(&packed, &ids, &mut out);
            Naive.embed(&plain, &ids, &mut expected);
            assert_eq!(values(&device, 6, &out), values(&Naive, 6, &expected), "{format:?}");
        }
    }
}

#[test]
fn row_operations_agree() {
    let mut random = Random(11);
    for device in devices() {
        for round in 0..12 {
            let (rows, columns) = (1 + random.below(40), 1 + random.below(700));
            let bytes = random.f32_bytes(columns);
            let weight = device.vector(columns, WeightBytes::F32(&bytes)).unwrap();
            let oracle_weight = Naive.vector(columns, WeightBytes::F32(&bytes)).unwrap();
            let (x, oracle_x) =
                (fill(&device, rows, columns, round + 1), fill(&Naive, rows, columns, round + 1));
            let (mut residual, mut oracle_residual) =
                (fill(&device, rows, columns, round + 99), fill(&Naive, rows, columns, round + 99));
            let (mut out, mut expected) =
                (device.activations(rows, columns).unwrap(), Naive.activations(rows, columns).unwrap());
            device.add_rms_norm(rows, &x, &mut residual, &weight, 1e-5, &mut out);
            Naive.add_rms_norm(rows, &oracle_x, &mut oracle_residual, &oracle_weight, 1e-5, &mut expected);
            check(&values(&device, rows, &out), &values(&Naive, rows, &expected), columns, "add_rms_norm");
            check(
                &values(&device, rows, &residual),
                &values(&Naive, rows, &oracle_residual),
                columns,
                "residual",
            );
            let picked: Vec<u32> = (0..rows).map(|_| random.below(rows) as u32).collect();
            device.gather(&picked, &x, &mut out);
            Naive.gather(&picked, &oracle_x, &mut expected);
            check(&values(&device, rows, &out), &values(&Naive, rows, &expected), columns, "gather");
            let (gate_up, oracle_gate_up) =
                (fill(&device, rows, 2 * columns, round + 7), fill(&Naive, rows, 2 * columns, round + 7));
            for activation in [Activation::Silu, Activation::GeluTanh] {
                device.gate(rows, activation, &gate_up, &mut out);
                Naive.gate(rows, activation, &oracle_gate_up, &mut expected);
                let what = format!("{activation:?}");
                check(&values(&device, rows, &out), &values(&Naive, rows, &expected), columns, &what);
            }
            device.add_vector(rows, &weight, &mut out);
            Naive.add_vector(rows, &oracle_weight, &mut expected);
            device.scale(rows, 1.7, &mut out);
            Naive.scale(rows, 1.7, &mut expected);
            let weights: Vec<f32> = (0..rows).map(|_| random.value()).collect();
            device.scatter_add(&picked, &weights, &x, &mut out);
            Naive.scatter_add(&picked, &weights, &oracle_x, &mut expected);
            device.clear(rows / 3, &mut out);
            Naive.clear(rows / 3, &mut expected);
            check(&values(&device, rows, &out), &values(&Naive, rows, &expected), columns, "sums");
        }
    }
}

/// Fills the whole cache with what another sequence may have left there: nothing that is a number.
fn poison<D: Device>(device: &D, shape: HeadShape, rope: &Rope, slots: usize, cache: &mut D::KvCache) {
    let columns = shape.qkv_columns();
    let nan: Vec<u8> = (0..columns).flat_map(|_| f32::NAN.to_le_bytes()).collect();
    let table = device.matrix(1, columns, WeightBytes::F32(&nan)).unwrap();
    let mut qkv = device.activations(slots, columns).unwrap();
    device.embed(&table, &vec![0; slots], &mut qkv);
    let all: Vec<u32> = (0..slots as u32).collect();
    for layer in 0..2 {
        device.rope_and_store(layer, shape, rope, &vec![0; slots], &all, &mut qkv, cache);
    }
}

/// Three sequences on any device, in two chunks of a prefill, stored in scattered blocks of a cache that is full
/// of another's values; gives the turned rows and the attention of the last chunk.
fn attention<D: Device>(device: &D, shape: HeadShape, seed: u64) -> (Vec<f32>, Vec<f32>) {
    let mut random = Random(seed);
    let block_tokens = [1, 3, 8, 16, 20, 32][random.below(6)];
    let contexts: Vec<usize> = (0..3).map(|_| 1 + random.below(90)).collect();
    let blocks = contexts.iter().map(|context| context.div_ceil(block_tokens)).sum::<usize>() + 2;
    let mut cache = device.kv_cache(2, blocks, block_tokens, shape).unwrap();
    // Sometimes a part of the head only.
    let pairs = shape.head_dim / 2 - random.below(2) * (shape.head_dim / 4);
    let rope =
        Rope { inverse_frequencies: (0..pairs).map(|pair| 0.7_f32.powi(pair as i32)).collect(), scale: 1.1 };
    let attention = Attention {
        scale: 0.3,
        window: [None, Some(1), Some(5), Some(16), Some(40)][random.below(5)],
        soft_cap: [None, None, Some(0.5)][random.below(3)],
    };
    let bytes = random.f32_bytes(2 * shape.head_dim);
    let (queries, keys) = bytes.split_at(bytes.len() / 2);
    let queries = device.vector(shape.head_dim, WeightBytes::F32(queries)).unwrap();
    let keys = device.vector(shape.head_dim, WeightBytes::F32(keys)).unwrap();
    poison(device, shape, &rope, blocks * block_tokens, &mut cache);
    let mut free: Vec<u32> = (0..blocks as u32).collect();
    let mut table = |context: &usize| -> Vec<u32> {
        (0..context.div_ceil(block_tokens)).map(|_| free.swap_remove(random.below(free.len()))).collect()
    };
    let tables: Vec<Vec<u32>> = contexts.iter().map(&mut table).collect();
    let earlier: Vec<usize> = contexts.iter().map(|context| random.below(*context)).collect();
    let mut last = (Vec::new(), Vec::new());
    for pass in 0..2 {
        let (mut spans, mut positions, mut slots) = (Vec::new(), Vec::new(), Vec::new());
        for (index, context) in contexts.iter().enumerate() {
            let (from, to) = if pass == 0 { (0, earlier[index]) } else { (earlier[index], *context) };
            if from == to {
                continue;
            }
            spans.push(Span { row: positions.len(), rows: to - from, context: to, blocks: &tables[index] });
            for position in from..to {
                positions.push(position as u32);
                let block = tables[index][position / block_tokens] as usize;
                slots.push((block * block_tokens + position % block_tokens) as u32);
            }
        }
        // Spans need not come in the order of their rows.
        spans.reverse();
        let rows = positions.len();
        let mut qkv = fill(device, rows, shape.qkv_columns(), seed + pass + 3);
        let mut out = device.activations(rows, shape.output_columns()).unwrap();
        for layer in 0..2 {
            device.norm_heads(rows, shape, &queries, &keys, 1e-5, &mut qkv);
            device.rope_and_store(layer, shape, &rope, &positions, &slots, &mut qkv, &mut cache);
            device.attend(layer, shape, attention, &spans, &qkv, &cache, &mut out);
        }
        last = (values(device, rows, &qkv), values(device, rows, &out));
    }
    last
}

#[test]
fn attention_agrees() {
    for device in devices() {
        for seed in 1..25 {
            for (heads, kv_heads, head_dim) in [(1, 1, 2), (6, 2, 8), (9, 3, 64), (4, 4, 34), (8, 1, 48)] {
                let shape = HeadShape { heads, kv_heads, head_dim };
                let (qkv, out) = attention(&device, shape, seed);
                let (expected_qkv, expected) = attention(&Naive, shape, seed);
                check(&qkv, &expected_qkv, shape.qkv_columns(), "turned heads");
                check(
                    &out,
                    &expected,
                    shape.output_columns(),
                    &format!("{} {shape:?} seed {seed}", device.name()),
                );
            }
        }
    }
}

/// Three tokens, one head of two dimensions, each query (1, 0): keys (0, 0), (ln 3, 0), (200, 0). The second row
/// weighs the first two values 1 to 3, however high the third, which it does not see, would score.
#[test]
fn a_later_token_has_no_say_in_the_scale() {
    for device in devices() {
        let shape = HeadShape { heads: 1, kv_heads: 1, head_dim: 2 };
        let key = 3.0_f32.ln();
        let rows = [
            [1.0, 0.0, 0.0, 0.0, 4.0, 0.0],
            [1.0, 0.0, key, 0.0, 0.0, 8.0],
            [1.0, 0.0, 200.0, 0.0, 1.0, 2.0],
        ];
        let bytes: Vec<u8> = rows.as_flattened().iter().flat_map(|value| value.to_le_bytes()).collect();
        let table = device.matrix(3, 6, WeightBytes::F32(&bytes)).unwrap();
        let mut qkv = device.activations(3, 6).unwrap();
        device.embed(&table, &[0, 1, 2], &mut qkv);
        let rope = Rope { inverse_frequencies: vec![0.0], scale: 1.0 };
        let mut cache = device.kv_cache(1, 1, 16, shape).unwrap();
        device.rope_and_store(0, shape, &rope, &[0, 1, 2], &[0, 1, 2], &mut qkv, &mut cache);
        let mut out = device.activations(3, 2).unwrap();
        let span = Span { row: 0, rows: 3, context: 3, blocks: &[0] };
        let attention = Attention { scale: 1.0, window: None, soft_cap: None };
        device.attend(0, shape, attention, &[span], &qkv, &cache, &mut out);
        check(&values(&device, 3, &out), &[4.0, 0.0, 1.0, 6.0, 1.0, 2.0], 2, &device.name());
    }
}

#[test]
fn a_weight_of_the_wrong_size_is_refused() {
    let error = Naive.matrix(2, 3, WeightBytes::F32(&[0; 20])).unwrap_err();
    assert_eq!(error.to_string(), "a matrix of shape (2, 3) needs 6 values, but 5 were given");
    let device = Cpu::new(Some(1)).unwrap();
    assert!(device.stacked(3, &[(1, WeightBytes::Bf16(&[0; 4]))]).is_err());
    assert!(device.vector(3, WeightBytes::F16(&[0; 4])).is_err());
    assert!(device.activations(usize::MAX, 2).is_err());
}
