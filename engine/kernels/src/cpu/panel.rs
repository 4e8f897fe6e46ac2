//! The one layout of weights: panels of 16 output rows, so that a load brings 16 outputs for the same inputs.
//!
//! Apart because packing happens once, at load, and the layout is shared by every instruction set: a bf16 line
//! holds 16 rows times two neighbouring columns (64 bytes), which is also what a later matrix unit reads. f32
//! weights keep one column per line. Must not know: how products are computed.

use super::bytes::Kept;
use super::pool::{Disjoint, Pool};
use super::tile::{PANELS_MAX, Panels};
use crate::{DeviceError, WeightBytes};

/// Rows of a panel; also the width of all vectors here.
pub const LANES: usize = 16;

/// 64 bytes of one panel.
#[derive(Debug, Clone, Copy)]
#[repr(C, align(64))]
pub struct Line(pub [u32; LANES]);

/// A packed (rows, columns) matrix.
#[derive(Debug)]
pub struct Packed {
    pub rows: usize,
    pub columns: usize,
    kept: Kept,
    lines: Vec<Line>,
}

impl Packed {
    /// Packs parts that are stacked by rows. Their sizes have been checked.
    pub fn new(pool: &Pool, columns: usize, parts: &[(usize, WeightBytes<'_>)]) -> Result<Self, DeviceError> {
        let rows = parts.iter().map(|(rows, _)| rows).sum::<usize>();
        let all_bf16 = parts.iter().all(|(_, source)| source.kept() == Kept::Bf16);
        let kept = if all_bf16 { Kept::Bf16 } else { Kept::F32 };
        let mut packed = Packed { rows, columns, kept, lines: Vec::new() };
        let lines_per_panel = packed.lines_per_panel();
        let count = packed.panels() * lines_per_panel;
        if packed.lines.try_reserve_exact(count).is_err() {
            return Err(DeviceError::OutOfMemory { bytes: count.saturating_mul(size_of::<Line>()) });
        }
        packed.lines.resize(count, Line([0; LANES]));
        let sources: Vec<(WeightBytes<'_>, usize)> =
            parts.iter().flat_map(|(rows, source)| (0..*rows).map(move |row| (*source, row))).collect();
        let shared = Disjoint::new(&mut packed.lines);
        pool.run(rows.div_ceil(LANES), &|panel| {
            // SAFETY: each panel is one task, and tasks run once.
            let lines = unsafe { shared.part(panel * lines_per_panel, lines_per_panel) };
            for (lane, (source, row)) in sources[panel * LANES..].iter().take(LANES).enumerate() {
                put_row(kept, source, row * columns, columns, lines, lane);
            }
        });
        Ok(packed)
    }

    pub fn panels(&self) -> usize {
        self.rows.div_ceil(LANES)
    }

    fn lines_per_panel(&self) -> usize {
        match self.kept {
            Kept::Bf16 => self.columns.div_ceil(2),
            Kept::F32 => self.columns,
        }
    }

    /// The lines of one panel. bf16: column pair `i` in line `i`, the even column in the low half. f32: column `i`.
    fn panel(&self, panel: usize) -> &[Line] {
        let lines = self.lines_per_panel();
        &self.lines[panel * lines..(panel + 1) * lines]
    }

    /// `count` panels from `first` on.
    pub fn panels_from(&self, first: usize, count: usize) -> Panels<'_> {
        let mut panels: [&[Line]; PANELS_MAX] = [&[]; PANELS_MAX];
        for (at, panel) in panels.iter_mut().take(count).enumerate() {
            *panel = self.panel(first + at);
        }
        match self.kept {
            Kept::Bf16 => Panels::Bf16(panels),
            Kept::F32 => Panels::F32(panels),
        }
    }

    /// Copies one row out, exactly.
    pub fn read_row(&self, row: usize, out: &mut [f32]) {
        assert!(row < self.rows, "row {row} of a table of {}", self.rows);
        let (lines, lane) = (self.panel(row / LANES), row % LANES);
        for (column, out) in out.iter_mut().enumerate() {
            *out = f32::from_bits(match self.kept {
                Kept::Bf16 if column % 2 == 0 => lines[column / 2].0[lane] << 16,
                Kept::Bf16 => lines[column / 2].0[lane] & 0xffff_0000,
                Kept::F32 => lines[column].0[lane],
            });
        }
    }
}

/// Puts the row that begins at value `start` of `source` into one lane.
fn put_row(
    kept: Kept,
    source: &WeightBytes<'_>,
    start: usize,
    columns: usize,
    lines: &mut [Line],
    lane: usize,
) {
    match (kept, source) {
        // Two neighbouring little-endian bf16 are the 32 bits of a lane.
        (Kept::Bf16, WeightBytes::Bf16(bytes)) => {
            let row = &bytes[2 * start..2 * (start + columns)];
            for (line, pair) in lines.iter_mut().zip(row.chunks(4)) {
                let mut word = [0; 4];
                word[..pair.len()].copy_from_slice(pair);
                line.0[lane] = u32::from_le_bytes(word);
            }
        }
        (Kept::Bf16 | Kept::F32, source) => {
            for (column, line) in lines.iter_mut().enumerate() {
                line.0[lane] = source.value(start + column).to_bits();
            }
        }
    }
}
