//! Bytes moved and operations done per second for the demo model's shapes, beside what this machine's memory gives.
//!
//! `cargo bench -p pitot-kernels`. Figures are medians over repetitions; compare them with the memory line of the
//! same run only, since the machine's speed varies.

#![expect(clippy::disallowed_types, reason = "a benchmark reads a clock; the library never does")]

use std::time::Instant;

use pitot_kernels::cpu::Cpu;
use pitot_kernels::{Device, WeightBytes};

const REPETITIONS: usize = 15;

fn median(mut run: impl FnMut()) -> f64 {
    run();
    let mut seconds: Vec<f64> = (0..REPETITIONS)
        .map(|_| {
            let began = Instant::now();
            run();
            began.elapsed().as_secs_f64()
        })
        .collect();
    seconds.sort_by(f64::total_cmp);
    seconds[REPETITIONS / 2]
}

fn memory(threads: usize) -> f64 {
    let words: Vec<u64> = vec![1; 32 << 20];
    let seconds = median(|| {
        std::thread::scope(|scope| {
            for part in words.chunks(words.len() / threads) {
                scope.spawn(|| std::hint::black_box(part.iter().fold(0_u64, |sum, word| sum ^ word)));
            }
        });
    });
    (words.len() * 8) as f64 / seconds / 1e9
}

fn main() {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    for threads in if threads > 1 { vec![1, threads] } else { vec![1] } {
        let device = Cpu::new(Some(threads)).expect("threads can be started");
        println!("{}: memory reads {:.1} GB/s", device.name(), memory(threads));
        for (name, n, k) in [
            ("qkv", 960, 576),
            ("output", 576, 576),
            ("gate_up", 3072, 576),
            ("down", 576, 1536),
            ("lm_head", 49152, 576),
        ] {
            // Copies of the matrix together exceed the caches, as the layers of a model do.
            let copies = (192_usize << 20).div_ceil(n * k * 2);
            let bytes = vec![0x3c_u8; n * k * 2];
            let weights: Vec<_> = (0..copies)
                .map(|_| device.matrix(n, k, WeightBytes::Bf16(&bytes)).expect("the sizes fit"))
                .collect();
            for rows in [1, 4, 16, 64, 256] {
                let x = device.activations(rows, k).expect("there is room");
                let mut out = device.activations(rows, n).expect("there is room");
                let copies = if rows <= 4 { copies } else { copies.min(4) };
                let seconds =
                    median(|| weights[..copies].iter().for_each(|w| device.matmul(rows, &x, w, &mut out)));
                let (moved, done) = ((copies * n * k * 2) as f64, (copies * 2 * rows * n * k) as f64);
                println!(
                    "  {name:8} {rows:4} rows {:7.1} GB/s {:8.1} GFLOP/s",
                    moved / seconds / 1e9,
                    done / seconds / 1e9
                );
            }
        }
    }
}
