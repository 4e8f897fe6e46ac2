//! Little-endian weight bytes to float32, exactly.
//!
//! Apart because both CPU devices read the same files. Must not know: layouts.

use half::{bf16, f16};

use crate::{DeviceError, WeightBytes};

/// How the values of a weight are kept. bf16 stays as it is; the others become float32 without loss.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kept {
    Bf16,
    F32,
}

impl WeightBytes<'_> {
    /// Number of values.
    pub(crate) fn len(&self) -> usize {
        match self {
            WeightBytes::Bf16(bytes) | WeightBytes::F16(bytes) => bytes.len() / 2,
            WeightBytes::F32(bytes) => bytes.len() / 4,
        }
    }

    pub(crate) fn kept(&self) -> Kept {
        match self {
            WeightBytes::Bf16(_) => Kept::Bf16,
            WeightBytes::F16(_) | WeightBytes::F32(_) => Kept::F32,
        }
    }

    /// Value `index`, exactly.
    pub(crate) fn value(&self, index: usize) -> f32 {
        match self {
            WeightBytes::Bf16(bytes) => {
                bf16::from_le_bytes([bytes[2 * index], bytes[2 * index + 1]]).to_f32()
            }
            WeightBytes::F16(bytes) => f16::from_le_bytes([bytes[2 * index], bytes[2 * index + 1]]).to_f32(),
            WeightBytes::F32(bytes) => {
                let at = 4 * index;
                f32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
            }
        }
    }

    /// All values, exactly.
    pub fn to_vec(self) -> Vec<f32> {
        (0..self.len()).map(|index| self.value(index)).collect()
    }

    /// Refuses a weight whose number of values is not rows * columns.
    pub(crate) fn check(&self, what: &'static str, rows: usize, columns: usize) -> Result<(), DeviceError> {
        let expected = rows * columns;
        match self.len() {
            found if found == expected => Ok(()),
            found => Err(DeviceError::Shape { what, rows, columns, expected, found }),
        }
    }
}
