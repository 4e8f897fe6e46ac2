//! Speed on the demo model's shapes, beside what this machine's memory gives in the same seconds.
//!
//! `cargo bench -p pitot-kernels`. Each figure is the fastest of several runs that take turns with a plain read of
//! memory, so that another process on the same cores slows both; compare the two, not figures of different days.

#![expect(clippy::disallowed_types, reason = "a benchmark reads a clock; the library never does")]

use std::time::Instant;

use pitot_kernels::cpu::{Cpu, Path};
use pitot_kernels::{Activation, Attention, Device, HeadShape, Rope, Span, WeightBytes};

/// A figure is the best of as many rounds as fit this many seconds, and of three at least.
const SECONDS: f64 = 0.4;
const ROUNDS_MIN: usize = 3;
const LAYERS: usize = 30;
const HIDDEN: usize = 576;
const INTERMEDIATE: usize = 1536;
const VOCABULARY: usize = 49152;
const HEADS: HeadShape = HeadShape { heads: 9, kv_heads: 3, head_dim: 64 };
const ATTENTION: Attention = Attention { scale: 0.125, window: None, soft_cap: None };
const BLOCK_TOKENS: usize = 16;
const BLOCKS: usize = 256;

fn seconds(run: impl FnOnce()) -> f64 {
    let began = Instant::now();
    run();
    began.elapsed().as_secs_f64()
}

/// Four places at once, as the product of one row reads four panels.
fn read_quarters(words: &[u64]) -> u64 {
    let mut quarters = words.chunks_exact(words.len() / 4);
    let mut next = || quarters.next().unwrap_or_default();
    let (a, b, c, d) = (next(), next(), next(), next());
    a.iter().zip(b).zip(c).zip(d).fold(0, |sum, (((a, b), c), d)| sum ^ a ^ b ^ c ^ d)
}

/// Reads memory with plain loads on some threads.
struct Memory {
    words: Vec<u64>,
    threads: usize,
}

impl Memory {
    /// 256 MiB, about the demo model's weights.
    fn new(threads: usize) -> Self {
        Memory { words: vec![1; 32 << 20], threads }
    }

    fn read(&self) {
        std::thread::scope(|scope| {
            for part in self.words.chunks(self.words.len().div_ceil(self.threads)) {
                scope.spawn(|| std::hint::black_box(read_quarters(part)));
            }
        });
    }

    /// Runs in turns with reads; gives the fastest run in seconds and the fastest read in bytes per second.
    fn beside(&self, mut run: impl FnMut()) -> (f64, f64) {
        let (mut fastest, mut read) = (f64::INFINITY, f64::INFINITY);
        run();
        let (began, mut rounds) = (Instant::now(), 0);
        while rounds < ROUNDS_MIN || began.elapsed().as_secs_f64() < SECONDS {
            read = read.min(seconds(|| self.read()));
            fastest = fastest.min(seconds(&mut run));
            rounds += 1;
        }
        (fastest, (self.words.len() * size_of::<u64>()) as f64 / read)
    }
}

fn products(device: &Cpu, memory: &Memory) {
    let shapes = [
        ("qkv", HEADS.qkv_columns(), HIDDEN),
        ("output", HIDDEN, HIDDEN),
        ("gate_up", 2 * INTERMEDIATE, HIDDEN),
        ("down", HIDDEN, INTERMEDIATE),
        ("lm_head", VOCABULARY, HIDDEN),
    ];
    for (name, n, k) in shapes {
        // Copies of the matrix together exceed the caches, as the layers of a model do.
        let copies = (128_usize << 20).div_ceil(n * k * 2);
        let weights: Vec<_> = (0..copies).map(|_| matrix(device, n, k)).collect();
        for rows in [1, 4, 16, 64, 256] {
            let x = device.activations(rows, k).expect("there is room");
            let mut out = device.activations(rows, n).expect("there is room");
            let copies = copies.min((4096 / rows).max(1));
            let multiply = || weights[..copies].iter().for_each(|w| device.matmul(rows, &x, w, &mut out));
            let (fastest, read) = memory.beside(multiply);
            let moved = (copies * n * k * 2) as f64 / fastest;
            let done = (copies * 2 * rows * n * k) as f64 / fastest;
            println!(
                "  {name:8} {rows:4} rows {:7.1} GB/s of {:5.1} {:8.1} GFLOP/s",
                moved / 1e9,
                read / 1e9,
                done / 1e9
            );
        }
    }
}

fn matrix(device: &Cpu, n: usize, k: usize) -> <Cpu as Device>::Matrix {
    device.matrix(n, k, WeightBytes::Bf16(&vec![0x3c; n * k * 2])).expect("the sizes fit")
}

struct Layer {
    qkv: <Cpu as Device>::Matrix,
    output: <Cpu as Device>::Matrix,
    gate_up: <Cpu as Device>::Matrix,
    down: <Cpu as Device>::Matrix,
}

/// The demo model's weights and cache, with values of no meaning.
struct Model {
    layers: Vec<Layer>,
    table: <Cpu as Device>::Matrix,
    norm: <Cpu as Device>::Vector,
    cache: <Cpu as Device>::KvCache,
    rope: Rope,
}

impl Model {
    fn new(device: &Cpu) -> Self {
        let layer = |_| Layer {
            qkv: matrix(device, HEADS.qkv_columns(), HIDDEN),
            output: matrix(device, HIDDEN, HIDDEN),
            gate_up: matrix(device, 2 * INTERMEDIATE, HIDDEN),
            down: matrix(device, HIDDEN, INTERMEDIATE),
        };
        let norm = WeightBytes::Bf16(&[0x3c; 2 * HIDDEN]);
        Model {
            layers: (0..LAYERS).map(layer).collect(),
            table: matrix(device, VOCABULARY, HIDDEN),
            norm: device.vector(HIDDEN, norm).expect("the sizes fit"),
            cache: device.kv_cache(LAYERS, BLOCKS, BLOCK_TOKENS, HEADS).expect("there is room"),
            rope: Rope { inverse_frequencies: (0..32).map(|pair| 0.7_f32.powi(pair)).collect(), scale: 1.0 },
        }
    }

    fn bytes() -> usize {
        let layer = HIDDEN * (HEADS.qkv_columns() + HIDDEN + 3 * INTERMEDIATE);
        2 * (LAYERS * layer + VOCABULARY * HIDDEN)
    }

    /// One step of the last `rows` tokens of each of some sequences of `context` tokens, and the logits of one
    /// row of each, as the runtime does it.
    fn step<'a>(
        &'a mut self,
        device: &'a Cpu,
        sequences: usize,
        rows: usize,
        context: usize,
    ) -> impl FnMut() + 'a {
        let make = |columns| device.activations(sequences * rows, columns).expect("there is room");
        let (mut residual, mut normed, mut projected) = (make(HIDDEN), make(HIDDEN), make(HIDDEN));
        let (mut qkv, mut attended) = (make(HEADS.qkv_columns()), make(HEADS.output_columns()));
        let (mut gate_up, mut gated) = (make(2 * INTERMEDIATE), make(INTERMEDIATE));
        let mut logits = device.activations(sequences, VOCABULARY).expect("there is room");
        let each = context.div_ceil(BLOCK_TOKENS);
        let blocks: Vec<u32> = (0..BLOCKS as u32).collect();
        let row = move |row: usize| (row / rows, context - rows + row % rows);
        let positions: Vec<u32> = (0..sequences * rows).map(|r| row(r).1 as u32).collect();
        let slot = |r| (row(r).0 * each * BLOCK_TOKENS + row(r).1) as u32;
        let slots: Vec<u32> = (0..sequences * rows).map(slot).collect();
        move || {
            let count = sequences * rows;
            let span =
                |at| Span { row: at * rows, rows, context, blocks: &blocks[at * each..(at + 1) * each] };
            let spans: Vec<Span<'_>> = (0..sequences).map(span).collect();
            device.embed(&self.table, &vec![7; count], &mut residual);
            for (index, layer) in self.layers.iter().enumerate() {
                device.add_rms_norm(count, &projected, &mut residual, &self.norm, 1e-5, &mut normed);
                device.matmul(count, &normed, &layer.qkv, &mut qkv);
                let cache = &mut self.cache;
                device.rope_and_store(index, HEADS, &self.rope, &positions, &slots, &mut qkv, cache);
                device.attend(index, HEADS, ATTENTION, &spans, &qkv, cache, &mut attended);
                device.matmul(count, &attended, &layer.output, &mut projected);
                device.add_rms_norm(count, &projected, &mut residual, &self.norm, 1e-5, &mut normed);
                device.matmul(count, &normed, &layer.gate_up, &mut gate_up);
                device.gate(count, Activation::Silu, &gate_up, &mut gated);
                device.matmul(count, &gated, &layer.down, &mut projected);
            }
            device.matmul(sequences, &residual, &self.table, &mut logits);
        }
    }
}

/// Sequences, tokens of each in the step, context of each.
const STEPS: [(usize, usize, usize); 7] =
    [(1, 1, 64), (1, 64, 64), (1, 1, 1024), (8, 1, 64), (32, 1, 64), (1, 256, 256), (1, 512, 2048)];

fn steps(device: &Cpu, memory: &Memory, steps: &[(usize, usize, usize)]) {
    let mut model = Model::new(device);
    for &(sequences, rows, context) in steps {
        let (fastest, read) = memory.beside(model.step(device, sequences, rows, context));
        let floor = Model::bytes() as f64 / read;
        println!(
            "  step of {sequences:2} x {rows:3} tokens at {context:4}: {:7.2} ms, {:7.1} tok/s; \
             to read the weights takes {:5.2} ms",
            fastest * 1e3,
            (sequences * rows) as f64 / fastest,
            floor * 1e3
        );
    }
}

fn main() {
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    for threads in if processors > 1 { vec![1, processors] } else { vec![1] } {
        let device = Cpu::new(Some(threads)).expect("threads can be started");
        println!("{}", device.name());
        let memory = Memory::new(threads);
        steps(&device, &memory, &STEPS);
        products(&device, &memory);
    }
    for path in &Path::available()[1..] {
        let device = Cpu::with_path(*path, None).expect("threads can be started");
        println!("{}", device.name());
        steps(&device, &Memory::new(processors), &STEPS[..2]);
    }
}
