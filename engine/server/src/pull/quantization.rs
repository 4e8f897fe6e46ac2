//! The block formats of GGUF tensors and how to read them as numbers. Apart because this is plain arithmetic that a person can
//! check by hand. Must not know files or models.
//!
//! Source: the block structures of ggml (`ggml-common.h`); all numbers little-endian, scales in IEEE half precision.

use std::fmt;

use half::{bf16, f16};

/// Elements in one block of every quantised format read here.
const BLOCK: usize = 32;

/// How a tensor's numbers are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Quantization {
    F32,
    F16,
    Bf16,
    /// f16 scale d, 32 nibbles q: w = d·(q − 8). Low nibbles are elements 0–15, high ones 16–31.
    Q4_0,
    /// f16 scale d, f16 minimum m, 32 nibbles q: w = d·q + m. Nibbles as in Q4_0.
    Q4_1,
    /// f16 scale d, 32 signed bytes q: w = d·q.
    Q8_0,
}

impl Quantization {
    /// The format that ggml numbers `kind`, or the name of one that is not read here.
    pub fn of_ggml(kind: u32) -> Result<Quantization, String> {
        match kind {
            0 => Ok(Quantization::F32),
            1 => Ok(Quantization::F16),
            2 => Ok(Quantization::Q4_0),
            3 => Ok(Quantization::Q4_1),
            8 => Ok(Quantization::Q8_0),
            30 => Ok(Quantization::Bf16),
            _ => Err(ggml_name(kind)),
        }
    }

    /// Elements per block; a row is a whole number of blocks.
    pub fn block_elements(self) -> usize {
        match self {
            Quantization::F32 | Quantization::F16 | Quantization::Bf16 => 1,
            Quantization::Q4_0 | Quantization::Q4_1 | Quantization::Q8_0 => BLOCK,
        }
    }

    /// Bytes per block.
    pub fn block_bytes(self) -> usize {
        match self {
            Quantization::F32 => 4,
            Quantization::F16 | Quantization::Bf16 => 2,
            Quantization::Q4_0 => 2 + BLOCK / 2,
            Quantization::Q4_1 => 4 + BLOCK / 2,
            Quantization::Q8_0 => 2 + BLOCK,
        }
    }
}

impl fmt::Display for Quantization {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Quantization::F32 => "F32",
            Quantization::F16 => "F16",
            Quantization::Bf16 => "BF16",
            Quantization::Q4_0 => "Q4_0",
            Quantization::Q4_1 => "Q4_1",
            Quantization::Q8_0 => "Q8_0",
        })
    }
}

fn ggml_name(kind: u32) -> String {
    let name = match kind {
        6 => "Q5_0",
        7 => "Q5_1",
        9 => "Q8_1",
        10 => "Q2_K",
        11 => "Q3_K",
        12 => "Q4_K",
        13 => "Q5_K",
        14 => "Q6_K",
        15 => "Q8_K",
        16 => "IQ2_XXS",
        17 => "IQ2_XS",
        18 => "IQ3_XXS",
        19 => "IQ1_S",
        20 => "IQ4_NL",
        21 => "IQ3_S",
        22 => "IQ2_S",
        23 => "IQ4_XS",
        24 => "I8",
        25 => "I16",
        26 => "I32",
        27 => "I64",
        28 => "F64",
        29 => "IQ1_M",
        34 => "TQ1_0",
        35 => "TQ2_0",
        39 => "MXFP4",
        _ => return format!("number {kind}"),
    };
    name.to_owned()
}

/// Reads `blocks`, a whole number of blocks, as numbers and appends them to `into` rounded to bf16.
/// The arithmetic is in f32, multiplied and added in two roundings; the last step rounds to nearest, ties to even.
///
/// # Panics
/// Never: bytes after the last whole block are left out, and callers hand in whole rows.
pub fn append_as_bf16(quantization: Quantization, blocks: &[u8], into: &mut Vec<u8>) {
    let whole = blocks.chunks_exact(quantization.block_bytes());
    match quantization {
        Quantization::F32 => {
            for block in whole {
                push(f32::from_le_bytes([block[0], block[1], block[2], block[3]]), into);
            }
        }
        Quantization::F16 => {
            for block in whole {
                push(half_at(block, 0), into);
            }
        }
        Quantization::Bf16 => {
            for block in whole {
                into.extend_from_slice(block);
            }
        }
        Quantization::Q4_0 => {
            for block in whole {
                let scale = half_at(block, 0);
                for nibble in nibbles(&block[2..]) {
                    push(scale * (f32::from(nibble) - 8.0), into);
                }
            }
        }
        Quantization::Q4_1 => {
            for block in whole {
                let (scale, minimum) = (half_at(block, 0), half_at(block, 2));
                for nibble in nibbles(&block[4..]) {
                    push(scale * f32::from(nibble) + minimum, into);
                }
            }
        }
        Quantization::Q8_0 => {
            for block in whole {
                let scale = half_at(block, 0);
                for byte in &block[2..] {
                    push(scale * f32::from(byte.cast_signed()), into);
                }
            }
        }
    }
}

fn half_at(block: &[u8], at: usize) -> f32 {
    f16::from_le_bytes([block[at], block[at + 1]]).to_f32()
}

fn nibbles(packed: &[u8]) -> impl Iterator<Item = u8> {
    let low = packed.iter().map(|byte| byte & 0x0f);
    let high = packed.iter().map(|byte| byte >> 4);
    low.chain(high)
}

fn push(value: f32, into: &mut Vec<u8>) {
    into.extend_from_slice(&bf16::from_f32(value).to_le_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(quantization: Quantization, block: &[u8], expected: &[f32]) {
        assert_eq!(block.len() % quantization.block_bytes(), 0);
        let mut bytes = Vec::new();
        append_as_bf16(quantization, block, &mut bytes);
        let values: Vec<f32> =
            bytes.chunks_exact(2).map(|pair| bf16::from_le_bytes([pair[0], pair[1]]).to_f32()).collect();
        assert_eq!(values, expected, "{quantization}");
    }

    #[test]
    fn plain_numbers_are_read_as_they_are() {
        // 1.0 and −2.5: sign, exponent and the first mantissa bits.
        check(Quantization::F32, &[0, 0, 0x80, 0x3f, 0, 0, 0x20, 0xc0], &[1.0, -2.5]);
        check(Quantization::F16, &[0x00, 0x3c, 0x00, 0xc1], &[1.0, -2.5]);
        check(Quantization::Bf16, &[0x80, 0x3f, 0x20, 0xc0], &[1.0, -2.5]);
    }

    #[test]
    fn q8_0_is_scale_times_signed_byte() {
        // d = 0.5 (0x3800); bytes 0, 1, −1, 127, −128, then 27 zeros.
        let mut block = vec![0x00, 0x38, 0, 1, 0xff, 127, 0x80];
        block.resize(34, 0);
        let mut expected = vec![0.0, 0.5, -0.5, 63.5, -64.0];
        expected.resize(32, 0.0);
        check(Quantization::Q8_0, &block, &expected);
    }

    #[test]
    fn q4_0_subtracts_eight_and_takes_low_nibbles_first() {
        // d = 2.0 (0x4000). First byte 0xf0: element 0 is (0 − 8)·2, element 16 is (15 − 8)·2. Last byte 0x19: 9 and 1.
        let mut block = vec![0x00, 0x40, 0xf0];
        block.resize(17, 0x88);
        block.push(0x19);
        let mut expected = vec![0.0; 32];
        (expected[0], expected[16]) = (-16.0, 14.0);
        (expected[15], expected[31]) = (2.0, -14.0);
        check(Quantization::Q4_0, &block, &expected);
    }

    #[test]
    fn q4_1_adds_the_minimum() {
        // d = 0.25 (0x3400), m = −1.0 (0xbc00). Byte 0xf4: 4·0.25 − 1 = 0 and 15·0.25 − 1 = 2.75; zeros give −1.
        let mut block = vec![0x00, 0x34, 0x00, 0xbc, 0xf4];
        block.resize(20, 0);
        let mut expected = vec![-1.0; 32];
        (expected[0], expected[16]) = (0.0, 2.75);
        check(Quantization::Q4_1, &block, &expected);
    }

    #[test]
    fn rounding_to_bf16_is_to_nearest_and_ties_to_even() {
        for (bits, expected) in [
            (0x3f80_0000_u32, 0x3f80_u16), // 1.0, exact
            (0x3f80_7fff, 0x3f80),         // just below half: down
            (0x3f80_8000, 0x3f80),         // half, even below: down
            (0x3f80_8001, 0x3f81),         // just above half: up
            (0x3f81_8000, 0x3f82),         // half, odd below: up
            (0xbf81_8000, 0xbf82),         // the same for a negative number
            (0x3fff_ffff, 0x4000),         // the carry goes into the exponent
            (0x7f7f_ffff, 0x7f80),         // the largest f32 rounds to infinity
            (0x0000_8000, 0x0000),         // a subnormal tie goes to zero
            (0x8000_0000, 0x8000),         // minus zero stays
        ] {
            let mut bytes = Vec::new();
            append_as_bf16(Quantization::F32, &bits.to_le_bytes(), &mut bytes);
            assert_eq!(bytes, expected.to_le_bytes(), "{bits:#x}");
        }
        let mut bytes = Vec::new();
        append_as_bf16(Quantization::F32, &0x7f80_0001_u32.to_le_bytes(), &mut bytes);
        assert!(bf16::from_le_bytes([bytes[0], bytes[1]]).is_nan(), "a NaN stays one");
    }

    #[test]
    fn an_unread_format_is_called_by_its_name() {
        assert_eq!(Quantization::of_ggml(12), Err("Q4_K".to_owned()));
        assert_eq!(Quantization::of_ggml(77), Err("number 77".to_owned()));
    }
}
