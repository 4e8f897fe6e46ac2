//! The inner loops, written once over 16 lanes and compiled for each instruction set.
//!
//! Apart because this is the only arithmetic of the fast path and the only file that names instruction sets. Each
//! loop is an `inline(always)` function over arrays of 16; a macro wraps it in one function per set, inside which
//! the compiler turns the arrays into registers. What runs is chosen once, when the device is made. Must not
//! know: threads, layouts beyond a panel's lines.

#![expect(
    clippy::needless_range_loop,
    reason = "loops over lanes, panels and rows are written alike to be unrolled"
)]

use super::panel::{LANES, Line};

type Lanes = [f32; LANES];

/// Instruction sets, the plainest last.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Path {
    Avx512,
    Avx2,
    Neon,
    Portable,
}

impl Path {
    /// The sets this machine has, the fastest first.
    pub fn available() -> Vec<Path> {
        let mut paths = Vec::new();
        #[cfg(target_arch = "x86_64")]
        {
            let avx2 = is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma");
            if avx2 && is_x86_feature_detected!("avx512f") {
                paths.push(Path::Avx512);
            }
            if avx2 {
                paths.push(Path::Avx2);
            }
        }
        #[cfg(target_arch = "aarch64")]
        if std::arch::is_aarch64_feature_detected!("neon") {
            paths.push(Path::Neon);
        }
        paths.push(Path::Portable);
        paths
    }

    pub fn name(self) -> &'static str {
        match self {
            Path::Avx512 => "avx512",
            Path::Avx2 => "avx2",
            Path::Neon => "neon",
            Path::Portable => "portable",
        }
    }

    /// Rows of activations that one tile covers. Bounded by registers: rows times two panels of accumulators on
    /// AVX-512, rows times one panel (two or four registers each) elsewhere.
    pub fn tile_rows(self) -> usize {
        match self {
            Path::Avx512 => 8,
            Path::Avx2 | Path::Neon | Path::Portable => 4,
        }
    }
}

/// Rows of activations as the inner loops take them: `rows` rows of `columns`, from `values`.
#[derive(Clone, Copy)]
pub struct Rows<'a> {
    pub values: &'a [f32],
    pub columns: usize,
    pub rows: usize,
}

impl Rows<'_> {
    #[inline(always)]
    fn at(&self, row: usize, column: usize) -> f32 {
        self.values[row * self.columns + column]
    }
}

/// Sums of one tile: (row, panel, lane).
pub type Tile = [[Lanes; 2]; 8];

#[inline(always)]
fn fma(sum: &mut Lanes, weight: &Lanes, x: f32) {
    for lane in 0..LANES {
        sum[lane] = weight[lane].mul_add(x, sum[lane]);
    }
}

#[inline(always)]
fn halves(line: &Line) -> (Lanes, Lanes) {
    let (mut even, mut odd) = ([0.0; LANES], [0.0; LANES]);
    for lane in 0..LANES {
        even[lane] = f32::from_bits(line.0[lane] << 16);
        odd[lane] = f32::from_bits(line.0[lane] & 0xffff_0000);
    }
    (even, odd)
}

/// Products of MR rows with P panels of bf16 lines.
#[inline(always)]
fn tile_bf16<const MR: usize, const P: usize>(x: Rows<'_>, panels: [&[Line]; 2], out: &mut Tile) {
    let mut sums = [[[0.0; LANES]; P]; MR];
    let pairs = x.columns / 2;
    for pair in 0..pairs {
        let mut weights = [([0.0; LANES], [0.0; LANES]); P];
        for panel in 0..P {
            weights[panel] = halves(&panels[panel][pair]);
        }
        for row in 0..MR {
            let (even, odd) = (x.at(row, 2 * pair), x.at(row, 2 * pair + 1));
            for panel in 0..P {
                fma(&mut sums[row][panel], &weights[panel].0, even);
                fma(&mut sums[row][panel], &weights[panel].1, odd);
            }
        }
    }
    if x.columns % 2 == 1 {
        for panel in 0..P {
            let (even, _) = halves(&panels[panel][pairs]);
            for row in 0..MR {
                fma(&mut sums[row][panel], &even, x.at(row, x.columns - 1));
            }
        }
    }
    for row in 0..MR {
        out[row][..P].copy_from_slice(&sums[row]);
    }
}

/// Products of MR rows with P panels of f32 lines.
#[inline(always)]
fn tile_f32<const MR: usize, const P: usize>(x: Rows<'_>, panels: [&[Line]; 2], out: &mut Tile) {
    let mut sums = [[[0.0; LANES]; P]; MR];
    for column in 0..x.columns {
        for panel in 0..P {
            let weight = panels[panel][column].0.map(f32::from_bits);
            for row in 0..MR {
                fma(&mut sums[row][panel], &weight, x.at(row, column));
            }
        }
    }
    for row in 0..MR {
        out[row][..P].copy_from_slice(&sums[row]);
    }
}

#[inline(always)]
fn tile<const P: usize>(bf16: bool, x: Rows<'_>, panels: [&[Line]; 2], out: &mut Tile) {
    macro_rules! rows {
        ($($mr:literal)*) => {
            match (x.rows, bf16) {
                $(($mr, true) => tile_bf16::<$mr, P>(x, panels, out),
                ($mr, false) => tile_f32::<$mr, P>(x, panels, out),)*
                (rows, _) => unreachable!("a tile of {rows} rows"),
            }
        };
    }
    rows!(1 2 3 4 5 6 7 8);
}

/// exp, 16 at a time: 2^n times a polynomial on ±ln2/2 (Cephes' expf), relative error below 2e-7; results under
/// the smallest normal number come out as about 0, as softmax and SiLU want them.
#[inline(always)]
pub fn exp(x: &Lanes) -> Lanes {
    let mut out = [0.0; LANES];
    for lane in 0..LANES {
        let x = x[lane].clamp(-87.0, 88.0);
        let n = (x * std::f32::consts::LOG2_E + 0.5).floor();
        let r = n.mul_add(2.121_944_4e-4, n.mul_add(-0.693_359_4, x));
        let mut p = 1.987_569_1e-4_f32;
        for c in [1.398_2e-3, 8.333_452e-3, 4.166_579_6e-2, 1.666_666_5e-1, 5e-1] {
            p = p.mul_add(r, c);
        }
        let fraction = (p * r).mul_add(r, r) + 1.0;
        out[lane] = fraction * f32::from_bits((((n as i32) + 127) << 23) as u32);
    }
    out
}

#[inline(always)]
fn each_lanes(out: &mut [f32], mut compute: impl FnMut(usize, &mut Lanes)) {
    for (chunk, out) in out.chunks_mut(LANES).enumerate() {
        let mut lanes = [0.0; LANES];
        lanes[..out.len()].copy_from_slice(out);
        compute(chunk * LANES, &mut lanes);
        let length = out.len();
        out.copy_from_slice(&lanes[..length]);
    }
}

#[inline(always)]
fn load(from: &[f32], at: usize) -> Lanes {
    let mut lanes = [0.0; LANES];
    let rest = &from[at..];
    let length = rest.len().min(LANES);
    lanes[..length].copy_from_slice(&rest[..length]);
    lanes
}

#[inline(always)]
fn silu_row(gate: &[f32], up: &[f32], out: &mut [f32]) {
    each_lanes(out, |at, lanes| {
        let (gate, up) = (load(gate, at), load(up, at));
        let e = exp(&gate.map(|g| -g));
        for lane in 0..LANES {
            lanes[lane] = gate[lane] / (1.0 + e[lane]) * up[lane];
        }
    });
}

/// Attention of several query heads that share keys and values, over cached positions.
pub struct Attended<'a> {
    /// (heads, dim), the queries of one row.
    pub queries: &'a [f32],
    pub dim: usize,
    pub scale: f32,
    /// Positions seen, the row's own included.
    pub seen: usize,
    pub block_tokens: usize,
    /// Where block `i` of the sequence begins in `keys` and `values`: (block_tokens, dim) from there.
    pub starts: &'a [usize],
    pub keys: &'a [f32],
    pub values: &'a [f32],
}

#[inline(always)]
fn dot(a: &[f32], b: &[f32]) -> f32 {
    let mut sum = [0.0; LANES];
    let whole = a.len() / LANES * LANES;
    for (a, b) in a[..whole].chunks_exact(LANES).zip(b[..whole].chunks_exact(LANES)) {
        for lane in 0..LANES {
            sum[lane] = a[lane].mul_add(b[lane], sum[lane]);
        }
    }
    let rest: f32 = a[whole..].iter().zip(&b[whole..]).map(|(a, b)| a * b).sum();
    sum.iter().sum::<f32>() + rest
}

/// Two passes over the positions: scores, then the sum of values weighted by softmax. `scores` is scratch.
#[inline(always)]
fn attend_row(job: &Attended<'_>, scores: &mut Vec<f32>, out: &mut [f32]) {
    let heads = job.queries.len() / job.dim;
    scores.clear();
    scores.resize(heads * job.seen, 0.0);
    let token = |position: usize| {
        let start = job.starts[position / job.block_tokens] + position % job.block_tokens * job.dim;
        start..start + job.dim
    };
    for position in 0..job.seen {
        let key = &job.keys[token(position)];
        for head in 0..heads {
            let query = &job.queries[head * job.dim..(head + 1) * job.dim];
            scores[head * job.seen + position] = job.scale * dot(query, key);
        }
    }
    for head in 0..heads {
        let scores = &mut scores[head * job.seen..(head + 1) * job.seen];
        let highest = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        each_lanes(scores, |_, lanes| *lanes = exp(&lanes.map(|score| score - highest)));
        let total: f32 = scores.iter().sum();
        for score in scores.iter_mut() {
            *score /= total;
        }
    }
    out.fill(0.0);
    for position in 0..job.seen {
        let value = &job.values[token(position)];
        for head in 0..heads {
            let probability = scores[head * job.seen + position];
            for (out, value) in out[head * job.dim..(head + 1) * job.dim].iter_mut().zip(value) {
                *out = value.mul_add(probability, *out);
            }
        }
    }
}

#[inline(always)]
fn rms_row(x: &[f32], weight: &[f32], epsilon: f32, out: &mut [f32]) {
    let scale = 1.0 / (dot(x, x) / x.len() as f32 + epsilon).sqrt();
    for ((out, x), weight) in out.iter_mut().zip(x).zip(weight) {
        *out = x * scale * weight;
    }
}

/// Makes one function for each instruction set and the one that chooses.
macro_rules! for_each_path {
    ($(#[$doc:meta])* $name:ident($($arg:ident: $type:ty),*) = $body:expr) => {
        $(#[$doc])*
        #[inline]
        pub fn $name(path: Path, $($arg: $type),*) {
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx512f,avx2,fma")]
            fn avx512($($arg: $type),*) { $body }
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,fma")]
            fn avx2($($arg: $type),*) { $body }
            #[cfg(target_arch = "aarch64")]
            #[target_feature(enable = "neon")]
            fn neon($($arg: $type),*) { $body }
            fn portable($($arg: $type),*) { $body }
            match path {
                // SAFETY (all three): a device is made with a path that `Path::available` found on this machine.
                #[cfg(target_arch = "x86_64")]
                Path::Avx512 => unsafe { avx512($($arg),*) },
                #[cfg(target_arch = "x86_64")]
                Path::Avx2 => unsafe { avx2($($arg),*) },
                #[cfg(target_arch = "aarch64")]
                Path::Neon => unsafe { neon($($arg),*) },
                #[allow(unreachable_patterns, reason = "which of the paths above exist depends on the target")]
                Path::Avx512 | Path::Avx2 | Path::Neon | Path::Portable => portable($($arg),*),
            }
        }
    };
}

for_each_path! {
    /// Products of up to `tile_rows` rows with two panels.
    two_panels(bf16: bool, x: Rows<'_>, panels: [&[Line]; 2], out: &mut Tile) = tile::<2>(bf16, x, panels, out)
}
for_each_path! {
    /// Products of up to `tile_rows` rows with one panel, the first of the two.
    one_panel(bf16: bool, x: Rows<'_>, panels: [&[Line]; 2], out: &mut Tile) = tile::<1>(bf16, x, panels, out)
}
for_each_path! {
    /// out = silu(gate) * up.
    silu(gate: &[f32], up: &[f32], out: &mut [f32]) = silu_row(gate, up, out)
}
for_each_path! {
    /// Attention of one row and one key/value head.
    attend(job: &Attended<'_>, scores: &mut Vec<f32>, out: &mut [f32]) = attend_row(job, scores, out)
}
for_each_path! {
    /// out = x / rms(x) * weight.
    rms_norm(x: &[f32], weight: &[f32], epsilon: f32, out: &mut [f32]) = rms_row(x, weight, epsilon, out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exp_is_close_to_the_librarys() {
        for step in -8700..=8800 {
            let x = step as f32 / 100.0;
            let expected = f64::from(x).exp();
            let found = f64::from(exp(&[x; LANES])[0]);
            assert!((found / expected - 1.0).abs() < 3e-7, "exp({x}) = {found}, not {expected}");
        }
        assert!(exp(&[f32::NEG_INFINITY; LANES])[0] < 1e-37);
    }
}
