//! The one layout of weights: panels of 16 output rows, so that a load brings 16 outputs for the same inputs.
//!
//! Apart because packing happens once, at load, and the layout is shared by every instruction set: a bf16 line
//! holds 16 rows times two neighbouring columns (64 bytes), which is also what a later matrix unit reads. f32
//! weights keep one column per line. Must not know: how products are computed.

use super::bytes::Kept;
use crate::WeightBytes;

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
    pub kept: Kept,
    lines: Vec<Line>,
}

impl Packed {
    /// Packs parts that are stacked by rows. Their sizes have been checked.
    pub fn new(columns: usize, parts: &[(usize, WeightBytes<'_>)]) -> Self {
        let rows = parts.iter().map(|(rows, _)| rows).sum::<usize>();
        let all_bf16 = parts.iter().all(|(_, source)| source.kept() == Kept::Bf16);
        let kept = if all_bf16 { Kept::Bf16 } else { Kept::F32 };
        let mut packed = Packed { rows, columns, kept, lines: Vec::new() };
        packed.lines = vec![Line([0; LANES]); packed.panels() * packed.lines_per_panel()];
        let mut first = 0;
        for (rows, source) in parts {
            for row in 0..*rows {
                packed.put_row(first + row, source, row);
            }
            first += rows;
        }
        packed
    }

    fn put_row(&mut self, row: usize, source: &WeightBytes<'_>, source_row: usize) {
        let (panel, lane) = (row / LANES, row % LANES);
        let start = panel * self.lines_per_panel();
        for column in 0..self.columns {
            let index = source_row * self.columns + column;
            match self.kept {
                Kept::Bf16 => {
                    let bits = u32::from(source.bf16_bits(index)) << (16 * (column % 2));
                    self.lines[start + column / 2].0[lane] |= bits;
                }
                Kept::F32 => self.lines[start + column].0[lane] = source.value(index).to_bits(),
            }
        }
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
    pub fn panel(&self, panel: usize) -> &[Line] {
        let lines = self.lines_per_panel();
        &self.lines[panel * lines..(panel + 1) * lines]
    }

    /// Copies one row out, exactly.
    pub fn read_row(&self, row: usize, out: &mut [f32]) {
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
