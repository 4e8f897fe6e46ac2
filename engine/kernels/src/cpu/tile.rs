//! The inner loop of every product: a few rows of activations times a few panels of 16 lanes.
//!
//! Apart because matrices and attention share it: a panel's line holds 16 outputs for one input (float32) or for
//! two (bf16), so a product is a broadcast and a multiply-add, and no sum runs across lanes. Must not know:
//! threads, where panels lie.

#![expect(
    clippy::needless_range_loop,
    reason = "loops over lanes, panels and rows are alike, to be unrolled"
)]

use super::panel::{LANES, Line};
use super::path::{Set, for_each_path};

pub type Lanes = [f32; LANES];

/// Most rows and panels of a tile.
pub const ROWS_MAX: usize = 8;
pub const PANELS_MAX: usize = 4;

/// Sums of one tile: (row, panel, lane).
pub type Tile = [[Lanes; PANELS_MAX]; ROWS_MAX];

/// Rows of activations as the inner loops take them: `columns` values, `stride` after those of the row before.
#[derive(Clone, Copy)]
pub struct Rows<'a> {
    pub values: &'a [f32],
    pub stride: usize,
    pub columns: usize,
    pub rows: usize,
}

impl<'a> Rows<'a> {
    #[inline(always)]
    fn split<const MR: usize>(self) -> [&'a [f32]; MR] {
        let mut rows: [&[f32]; MR] = [&[]; MR];
        for row in 0..MR {
            rows[row] = &self.values[row * self.stride..][..self.columns];
        }
        rows
    }
}

/// Panels of one of the two kinds of line.
#[derive(Clone, Copy)]
pub enum Panels<'a> {
    Bf16([&'a [Line]; PANELS_MAX]),
    F32([&'a [Line]; PANELS_MAX]),
}

/// A line of 16 float32 values.
pub trait FloatLine {
    fn lanes(&self) -> Lanes;
}

impl FloatLine for Lanes {
    #[inline(always)]
    fn lanes(&self) -> Lanes {
        *self
    }
}

impl FloatLine for Line {
    #[inline(always)]
    fn lanes(&self) -> Lanes {
        let mut lanes = [0.0; LANES];
        for lane in 0..LANES {
            lanes[lane] = f32::from_bits(self.0[lane]);
        }
        lanes
    }
}

#[inline(always)]
fn multiply_add<S: Set>(sum: &mut Lanes, weight: &Lanes, x: f32) {
    for lane in 0..LANES {
        sum[lane] = S::multiply_add(weight[lane], x, sum[lane]);
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

/// Adds the products of MR rows with P panels of bf16 lines.
#[inline(always)]
fn add_bf16<S: Set, const MR: usize, const P: usize>(
    sums: &mut [[Lanes; P]; MR],
    x: Rows<'_>,
    panels: &[&[Line]; PANELS_MAX],
) {
    let rows = x.split::<MR>();
    let pairs = x.columns / 2;
    for pair in 0..pairs {
        let mut weights = [([0.0; LANES], [0.0; LANES]); P];
        for panel in 0..P {
            weights[panel] = halves(&panels[panel][pair]);
        }
        for row in 0..MR {
            let (even, odd) = (rows[row][2 * pair], rows[row][2 * pair + 1]);
            for panel in 0..P {
                multiply_add::<S>(&mut sums[row][panel], &weights[panel].0, even);
                multiply_add::<S>(&mut sums[row][panel], &weights[panel].1, odd);
            }
        }
    }
    if x.columns % 2 == 1 {
        for panel in 0..P {
            let (even, _) = halves(&panels[panel][pairs]);
            for row in 0..MR {
                multiply_add::<S>(&mut sums[row][panel], &even, rows[row][x.columns - 1]);
            }
        }
    }
}

/// Adds the products of MR rows with P panels of float32 lines.
#[inline(always)]
pub fn add_f32<S: Set, L: FloatLine, const MR: usize, const P: usize>(
    sums: &mut [[Lanes; P]; MR],
    x: Rows<'_>,
    panels: [&[L]; P],
) {
    let rows = x.split::<MR>();
    for column in 0..x.columns {
        for panel in 0..P {
            let weight = panels[panel][column].lanes();
            for row in 0..MR {
                multiply_add::<S>(&mut sums[row][panel], &weight, rows[row][column]);
            }
        }
    }
}

#[inline(always)]
fn sized<S: Set, const MR: usize, const P: usize>(x: Rows<'_>, panels: Panels<'_>, out: &mut Tile) {
    let mut sums = [[[0.0; LANES]; P]; MR];
    match panels {
        Panels::Bf16(panels) => add_bf16::<S, MR, P>(&mut sums, x, &panels),
        Panels::F32(panels) => {
            let mut first = [panels[0]; P];
            first.copy_from_slice(&panels[..P]);
            add_f32::<S, Line, MR, P>(&mut sums, x, first);
        }
    }
    for row in 0..MR {
        out[row][..P].copy_from_slice(&sums[row]);
    }
}

#[inline(always)]
fn tile<S: Set>(x: Rows<'_>, count: usize, panels: Panels<'_>, out: &mut Tile) {
    macro_rules! sizes {
        ($(($mr:literal, $p:literal))*) => {
            match (x.rows, count) {
                $(($mr, $p) => sized::<S, $mr, $p>(x, panels, out),)*
                (rows, count) => unreachable!("a tile of {rows} rows and {count} panels"),
            }
        };
    }
    sizes!((1, 4)(2, 4)(3, 4)(4, 4)(1, 2)(2, 2)(3, 2)(4, 2)(5, 2)(6, 2)(7, 2)(8, 2)(1, 1)(2, 1)(3, 1)(4, 1)(
        5, 1
    )(6, 1)(7, 1)(8, 1));
}

for_each_path! {
    /// Products of `x` with the first `count` of `panels`, in sizes that `Path::tile` gives.
    multiply(x: Rows<'_>, count: usize, panels: Panels<'_>, out: &mut Tile) = tile::<S>(x, count, panels, out)
}
