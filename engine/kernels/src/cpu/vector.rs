//! What is done to one row of activations at a time.
//!
//! Apart from products, which take several rows. Must not know: threads.

use std::f32::consts::{FRAC_1_SQRT_2, FRAC_2_SQRT_PI};

use super::panel::LANES;
use super::path::{Set, for_each_path};
use super::tile::Lanes;

/// exp, 16 at a time: 2^n times a polynomial on ±ln2/2 (Cephes' expf), relative error below 3e-7; results under
/// the smallest normal number come out as about 0, as softmax and SiLU want them.
#[inline(always)]
pub fn exp<S: Set>(x: &Lanes) -> Lanes {
    let mut out = [0.0; LANES];
    for lane in 0..LANES {
        let x = x[lane].clamp(-87.0, 88.0);
        let n = (x * std::f32::consts::LOG2_E + 0.5).floor();
        let r = S::multiply_add(n, 2.121_944_4e-4, S::multiply_add(n, -0.693_359_4, x));
        let mut p = 1.987_569_1e-4_f32;
        for c in [1.398_2e-3, 8.333_452e-3, 4.166_579_6e-2, 1.666_666_5e-1, 5e-1] {
            p = S::multiply_add(p, r, c);
        }
        let fraction = S::multiply_add(p * r, r, r) + 1.0;
        out[lane] = fraction * f32::from_bits((((n as i32) + 127) << 23) as u32);
    }
    out
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
fn silu_lanes<S: Set>(gate: &Lanes, up: &Lanes) -> Lanes {
    let e = exp::<S>(&gate.map(|gate| -gate));
    let mut out = [0.0; LANES];
    for lane in 0..LANES {
        out[lane] = gate[lane] / (1.0 + e[lane]) * up[lane];
    }
    out
}

/// gelu(x) = x / (1 + e^-2u) with u = √(2/π) (x + 0.044715 x³), which is the form with tanh.
#[inline(always)]
fn gelu_lanes<S: Set>(gate: &Lanes, up: &Lanes) -> Lanes {
    let mut twice = [0.0; LANES];
    for lane in 0..LANES {
        let x = gate[lane];
        twice[lane] = -2.0 * FRAC_2_SQRT_PI * FRAC_1_SQRT_2 * S::multiply_add(0.044_715 * x * x, x, x);
    }
    let e = exp::<S>(&twice);
    let mut out = [0.0; LANES];
    for lane in 0..LANES {
        out[lane] = gate[lane] / (1.0 + e[lane]) * up[lane];
    }
    out
}

#[inline(always)]
fn gelu_row<S: Set>(gate: &[f32], up: &[f32], out: &mut [f32]) {
    for (chunk, out) in out.chunks_mut(LANES).enumerate() {
        let lanes = gelu_lanes::<S>(&load(gate, chunk * LANES), &load(up, chunk * LANES));
        out.copy_from_slice(&lanes[..out.len()]);
    }
}

#[inline(always)]
fn rms_row_in_place<S: Set>(weight: &[f32], epsilon: f32, x: &mut [f32]) {
    let scale = 1.0 / (sum_of_squares::<S>(x) / x.len() as f32 + epsilon).sqrt();
    for (x, weight) in x.iter_mut().zip(weight) {
        *x = *x * scale * weight;
    }
}

#[inline(always)]
fn silu_row<S: Set>(gate: &[f32], up: &[f32], out: &mut [f32]) {
    for (chunk, out) in out.chunks_mut(LANES).enumerate() {
        let lanes = silu_lanes::<S>(&load(gate, chunk * LANES), &load(up, chunk * LANES));
        out.copy_from_slice(&lanes[..out.len()]);
    }
}

/// Sum of squares, in 16 sums that are added at the end.
#[inline(always)]
fn sum_of_squares<S: Set>(x: &[f32]) -> f32 {
    let mut sums = [0.0; LANES];
    for chunk in 0..x.len().div_ceil(LANES) {
        let lanes = load(x, chunk * LANES);
        for lane in 0..LANES {
            sums[lane] = S::multiply_add(lanes[lane], lanes[lane], sums[lane]);
        }
    }
    sums.iter().sum()
}

#[inline(always)]
fn rms_row<S: Set>(x: &[f32], weight: &[f32], epsilon: f32, out: &mut [f32]) {
    let scale = 1.0 / (sum_of_squares::<S>(x) / x.len() as f32 + epsilon).sqrt();
    for ((out, x), weight) in out.iter_mut().zip(x).zip(weight) {
        *out = x * scale * weight;
    }
}

for_each_path! {
    /// out = silu(gate) * up.
    silu(gate: &[f32], up: &[f32], out: &mut [f32]) = silu_row::<S>(gate, up, out)
}
for_each_path! {
    /// out = gelu(gate) * up.
    gelu(gate: &[f32], up: &[f32], out: &mut [f32]) = gelu_row::<S>(gate, up, out)
}
for_each_path! {
    /// x = x / rms(x) * weight.
    rms_norm_in_place(weight: &[f32], epsilon: f32, x: &mut [f32]) = rms_row_in_place::<S>(weight, epsilon, x)
}
for_each_path! {
    /// out = x / rms(x) * weight.
    rms_norm(x: &[f32], weight: &[f32], epsilon: f32, out: &mut [f32]) = rms_row::<S>(x, weight, epsilon, out)
}

#[cfg(test)]
mod tests {
    use super::super::path::{Narrow, Plain, Wide};
    use super::*;

    #[track_caller]
    fn check<S: Set>() {
        for step in -8700..=8800 {
            let x = step as f32 / 100.0;
            let expected = f64::from(x).exp();
            let found = f64::from(exp::<S>(&[x; LANES])[0]);
            assert!((found / expected - 1.0).abs() < 3e-7, "exp({x}) = {found}, not {expected}");
        }
        assert!(exp::<S>(&[f32::NEG_INFINITY; LANES])[0] < 1e-37);
        assert!(exp::<S>(&[f32::NAN; LANES])[0].is_nan());
    }

    #[test]
    fn exp_is_close_to_the_librarys() {
        check::<Wide>();
        check::<Narrow>();
        check::<Plain>();
    }
}
