//! Reads the header of a GGUF file: its metadata and where each tensor's bytes lie. Apart because the file comes from anybody:
//! every count, length and offset is checked here, against a limit and against the size of the file, before it is believed,
//! so that what comes out can be used without checking again. Must not know what the metadata mean or what a tensor is for.
//!
//! Format: the "GGUF" page of the ggml documentation, versions 2 and 3, little-endian.

use std::collections::BTreeMap;
use std::io::Read;

use super::metadata::{Metadata, MetadataError, Value};
use super::quantization::Quantization;

/// Metadata entries in one file; real ones have some dozens.
const ENTRIES_MAX: u64 = 4096;
/// Tensors in one file; the largest real ones have a few thousand.
const TENSORS_MAX: u64 = 65_536;
/// Elements in one array; vocabularies and their merges reach a few hundred thousand.
const ELEMENTS_MAX: u64 = 4 << 20;
/// Bytes in one key or tensor name.
const NAME_BYTES_MAX: u64 = 256;
/// Bytes in one string; a chat template is the longest real one, some tens of kilobytes.
const TEXT_BYTES_MAX: u64 = 4 << 20;
/// Bytes in the whole header; a vocabulary of 256 thousand pieces with merges takes some 10 MB.
const HEADER_BYTES_MAX: u64 = 256 << 20;
/// Dimensions of one tensor, as in ggml.
const DIMENSIONS_MAX: u32 = 4;

/// A header that was checked against its file.
#[derive(Debug)]
pub struct Gguf {
    pub metadata: Metadata,
    /// In the order of the file.
    pub tensors: Vec<TensorEntry>,
}

/// One tensor: its bytes lie whole inside the file.
#[derive(Debug, Clone, PartialEq)]
pub struct TensorEntry {
    pub name: String,
    /// Elements per dimension, the innermost (contiguous) one first, as GGUF has it: the reverse of a safetensors shape.
    /// The product fits u64 and the innermost is a whole number of quantisation blocks.
    pub dimensions: Vec<u64>,
    pub quantization: Quantization,
    /// From the start of the file.
    pub offset_bytes: u64,
    pub size_bytes: u64,
}

#[derive(Debug, thiserror::Error)]
pub enum GgufError {
    #[error("reading failed")]
    Io(#[from] std::io::Error),
    #[error("not a GGUF file: it does not begin with the letters GGUF")]
    Magic,
    #[error("GGUF version {version} is not supported: versions 2 and 3 (little-endian) are")]
    Version { version: u32 },
    #[error("{what} is {value}, more than the {limit} allowed")]
    Limit { what: &'static str, value: u64, limit: u64 },
    #[error("the file ends inside its header: {what} needs {needed} bytes and {left} are left")]
    Truncated { what: &'static str, needed: u64, left: u64 },
    #[error("{what} is not UTF-8")]
    Encoding { what: &'static str },
    #[error("metadata {key}: unknown value type {kind}")]
    ValueType { key: String, kind: u32 },
    #[error("metadata {key}: an array of arrays is not supported")]
    Nested { key: String },
    #[error("metadata {key}: a truth value of {byte} is neither 0 nor 1")]
    Truth { key: String, byte: u8 },
    #[error("metadata {key} appears twice")]
    DuplicateKey { key: String },
    #[error(transparent)]
    Metadata(#[from] MetadataError),
    #[error("general.alignment is {alignment}, not a power of two between 1 and 65536")]
    Alignment { alignment: u64 },
    #[error("tensor {name} appears twice")]
    DuplicateTensor { name: String },
    #[error("tensor {name} has {dimensions} dimensions, not 1 to 4")]
    Dimensions { name: String, dimensions: u32 },
    #[error(
        "tensor {name}: its dimensions {dimensions:?} are empty, too large, or no whole number of {quantization} blocks"
    )]
    Shape { name: String, dimensions: Vec<u64>, quantization: Quantization },
    #[error(
        "tensor {name} has the type {kind}, which this program cannot read: F32, F16, BF16, Q4_0, Q4_1 and Q8_0 it can"
    )]
    TensorType { name: String, kind: String },
    #[error("tensor {name} begins at {offset_bytes}, which is not a multiple of the alignment {alignment}")]
    Unaligned { name: String, offset_bytes: u64, alignment: u64 },
    #[error("tensor {name} ends at byte {end} of a file of {file_bytes} bytes: the file is cut short")]
    OutOfFile { name: String, end: u64, file_bytes: u64 },
    #[error("tensors {first} and {second} overlap")]
    Overlap { first: String, second: String },
}

/// Reads and checks the header of a file of `file_bytes` bytes from its start. Use a buffered reader.
///
/// # Errors
/// Anything that the format does not allow, that passes a limit, or that does not fit in `file_bytes`.
pub fn read(reader: &mut dyn Read, file_bytes: u64) -> Result<Gguf, GgufError> {
    let mut header = Header { reader, position: 0, end: file_bytes.min(HEADER_BYTES_MAX) };
    if header.bytes::<4>("the magic number")? != *b"GGUF" {
        return Err(GgufError::Magic);
    }
    let version = header.u32("the version")?;
    if !(2..=3).contains(&version) {
        return Err(GgufError::Version { version });
    }
    let tensor_count = bounded(header.u64("the tensor count")?, TENSORS_MAX, "the tensor count")?;
    let entry_count = bounded(header.u64("the entry count")?, ENTRIES_MAX, "the metadata count")?;

    let mut metadata = BTreeMap::new();
    for _ in 0..entry_count {
        let key = header.text("a metadata key", NAME_BYTES_MAX)?;
        let value = header.value(&key)?;
        if metadata.insert(key.clone(), value).is_some() {
            return Err(GgufError::DuplicateKey { key });
        }
    }
    let metadata = Metadata(metadata);
    let alignment = alignment(&metadata)?;

    let mut tensors = Vec::new();
    for _ in 0..tensor_count {
        tensors.push(header.tensor()?);
    }
    // Below 2^28 plus 2^16: the header is bounded, so this cannot overflow.
    let data_start = header.position.next_multiple_of(alignment);
    place(&mut tensors, data_start, alignment, file_bytes)?;
    Ok(Gguf { metadata, tensors })
}

fn alignment(metadata: &Metadata) -> Result<u64, GgufError> {
    let alignment = metadata.find_unsigned("general.alignment")?.unwrap_or(32);
    if alignment.is_power_of_two() && alignment <= 65_536 {
        Ok(alignment)
    } else {
        Err(GgufError::Alignment { alignment })
    }
}

/// Turns offsets into the data section into offsets into the file, and checks that the tensors lie in it one beside the other.
fn place(
    tensors: &mut [TensorEntry],
    data_start: u64,
    alignment: u64,
    file_bytes: u64,
) -> Result<(), GgufError> {
    for tensor in tensors.iter_mut() {
        if !tensor.offset_bytes.is_multiple_of(alignment) {
            return Err(GgufError::Unaligned {
                name: tensor.name.clone(),
                offset_bytes: tensor.offset_bytes,
                alignment,
            });
        }
        let start = tensor.offset_bytes.saturating_add(data_start);
        let end = start.saturating_add(tensor.size_bytes);
        if end > file_bytes {
            return Err(GgufError::OutOfFile { name: tensor.name.clone(), end, file_bytes });
        }
        tensor.offset_bytes = start;
    }
    let mut order: Vec<&TensorEntry> = tensors.iter().collect();
    order.sort_by_key(|tensor| tensor.offset_bytes);
    for pair in order.windows(2) {
        if pair[0].offset_bytes + pair[0].size_bytes > pair[1].offset_bytes {
            return Err(GgufError::Overlap { first: pair[0].name.clone(), second: pair[1].name.clone() });
        }
    }
    order.sort_by(|left, right| left.name.cmp(&right.name));
    match order.windows(2).find(|pair| pair[0].name == pair[1].name) {
        Some(pair) => Err(GgufError::DuplicateTensor { name: pair[0].name.clone() }),
        None => Ok(()),
    }
}

fn bounded(value: u64, limit: u64, what: &'static str) -> Result<u64, GgufError> {
    if value > limit {
        return Err(GgufError::Limit { what, value, limit });
    }
    Ok(value)
}

/// The reader and how far it may go. Nothing is allocated for a length that the rest of the file cannot hold.
struct Header<'a> {
    reader: &'a mut dyn Read,
    position: u64,
    end: u64,
}

impl Header<'_> {
    fn claim(&mut self, needed: u64, what: &'static str) -> Result<(), GgufError> {
        let left = self.end - self.position;
        if needed > left {
            return Err(GgufError::Truncated { what, needed, left });
        }
        self.position += needed;
        Ok(())
    }

    fn bytes<const N: usize>(&mut self, what: &'static str) -> Result<[u8; N], GgufError> {
        self.claim(N as u64, what)?;
        let mut bytes = [0; N];
        self.reader.read_exact(&mut bytes)?;
        Ok(bytes)
    }

    fn u32(&mut self, what: &'static str) -> Result<u32, GgufError> {
        Ok(u32::from_le_bytes(self.bytes(what)?))
    }

    fn u64(&mut self, what: &'static str) -> Result<u64, GgufError> {
        Ok(u64::from_le_bytes(self.bytes(what)?))
    }

    fn text(&mut self, what: &'static str, limit: u64) -> Result<String, GgufError> {
        let length = bounded(self.u64(what)?, limit, what)?;
        self.claim(length, what)?;
        // Bounded by the limit, which fits usize everywhere.
        let mut bytes = vec![0; length as usize];
        self.reader.read_exact(&mut bytes)?;
        String::from_utf8(bytes).map_err(|_| GgufError::Encoding { what })
    }

    fn value(&mut self, key: &str) -> Result<Value, GgufError> {
        let kind = self.u32("a value type")?;
        Ok(match kind {
            0 | 2 | 4 | 10 => Value::Unsigned(self.unsigned(kind)?),
            1 | 3 | 5 | 11 => Value::Signed(self.signed(kind)?),
            6 | 12 => Value::Float(self.float(kind)?),
            7 => Value::Bool(self.truth(key)?),
            8 => Value::Text(self.text("a metadata text", TEXT_BYTES_MAX)?),
            9 => self.array(key)?,
            kind => {
                return Err(GgufError::ValueType { key: key.to_owned(), kind });
            }
        })
    }

    fn array(&mut self, key: &str) -> Result<Value, GgufError> {
        let kind = self.u32("an element type")?;
        let count = bounded(self.u64("an array length")?, ELEMENTS_MAX, "an array length")?;
        // The least that an element can take; checked before the first one is kept.
        let needed = count * element_bytes_min(kind);
        let left = self.end - self.position;
        if needed > left {
            let what = "an array";
            return Err(GgufError::Truncated { what, needed, left });
        }
        Ok(match kind {
            0 | 2 | 4 | 10 => Value::Unsigneds(repeat(count, || self.unsigned(kind))?),
            1 | 3 | 5 | 11 => Value::Signeds(repeat(count, || self.signed(kind))?),
            6 | 12 => Value::Floats(repeat(count, || self.float(kind))?),
            7 => Value::Bools(repeat(count, || self.truth(key))?),
            8 => Value::Texts(repeat(count, || self.text("a text of an array", TEXT_BYTES_MAX))?),
            9 => {
                return Err(GgufError::Nested { key: key.to_owned() });
            }
            kind => {
                return Err(GgufError::ValueType { key: key.to_owned(), kind });
            }
        })
    }

    fn unsigned(&mut self, kind: u32) -> Result<u64, GgufError> {
        let what = "a metadata number";
        Ok(match kind {
            0 => self.bytes::<1>(what)?[0].into(),
            2 => u16::from_le_bytes(self.bytes(what)?).into(),
            4 => self.u32(what)?.into(),
            _ => self.u64(what)?,
        })
    }

    fn signed(&mut self, kind: u32) -> Result<i64, GgufError> {
        let what = "a metadata number";
        Ok(match kind {
            1 => i8::from_le_bytes(self.bytes(what)?).into(),
            3 => i16::from_le_bytes(self.bytes(what)?).into(),
            5 => i32::from_le_bytes(self.bytes(what)?).into(),
            _ => i64::from_le_bytes(self.bytes(what)?),
        })
    }

    fn float(&mut self, kind: u32) -> Result<f64, GgufError> {
        let what = "a metadata number";
        if kind == 12 {
            return Ok(f64::from_le_bytes(self.bytes(what)?));
        }
        let single = f32::from_le_bytes(self.bytes(what)?);
        // Display gives the shortest decimal that names this f32; "NaN" and "inf" parse as well.
        Ok(single.to_string().parse().unwrap_or(f64::from(single)))
    }

    fn truth(&mut self, key: &str) -> Result<bool, GgufError> {
        match self.bytes::<1>("a truth value")?[0] {
            0 => Ok(false),
            1 => Ok(true),
            byte => Err(GgufError::Truth { key: key.to_owned(), byte }),
        }
    }

    /// One tensor's entry, its offset still counted from the data section.
    fn tensor(&mut self) -> Result<TensorEntry, GgufError> {
        let name = self.text("a tensor name", NAME_BYTES_MAX)?;
        let count = self.u32("a dimension count")?;
        if !(1..=DIMENSIONS_MAX).contains(&count) {
            return Err(GgufError::Dimensions { name, dimensions: count });
        }
        let dimensions = repeat(count.into(), || self.u64("a dimension"))?;
        let kind = self.u32("a tensor type")?;
        let quantization = match Quantization::of_ggml(kind) {
            Ok(quantization) => quantization,
            Err(kind) => return Err(GgufError::TensorType { name, kind }),
        };
        let offset_bytes = self.u64("a tensor offset")?;
        let Some(size_bytes) = size_bytes(&dimensions, quantization) else {
            return Err(GgufError::Shape { name, dimensions, quantization });
        };
        Ok(TensorEntry { name, dimensions, quantization, offset_bytes, size_bytes })
    }
}

/// The fewest bytes that an element of this type takes in the file; 1 for types that are refused later.
fn element_bytes_min(kind: u32) -> u64 {
    match kind {
        2 | 3 => 2,
        4..=6 => 4,
        8 | 10..=12 => 8,
        _ => 1,
    }
}

fn repeat<T>(count: u64, mut element: impl FnMut() -> Result<T, GgufError>) -> Result<Vec<T>, GgufError> {
    (0..count).map(|_| element()).collect()
}

/// Bytes of a tensor, or none where a dimension is 0, the innermost is no whole number of blocks, or the product overflows.
fn size_bytes(dimensions: &[u64], quantization: Quantization) -> Option<u64> {
    let block = quantization.block_elements() as u64;
    let elements = dimensions.iter().try_fold(1_u64, |product, dimension| product.checked_mul(*dimension))?;
    if elements == 0 || !dimensions.first()?.is_multiple_of(block) {
        return None;
    }
    (elements / block).checked_mul(quantization.block_bytes() as u64)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::testing::{Meta, Tensor, gguf, tiny_llama};
    use super::*;

    fn parse(bytes: &[u8]) -> Result<Gguf, GgufError> {
        read(&mut { bytes }, bytes.len() as u64)
    }

    fn one_tensor(dimensions: &[u64], kind: u32, bytes: usize) -> Vec<u8> {
        gguf(&[], &[Tensor("t", dimensions, kind, vec![0; bytes])])
    }

    #[test]
    fn values_and_places_are_read() {
        let metadata = [
            ("whole", Meta::U32(7)),
            ("small", Meta::F32(1e-5)),
            ("texts", Meta::Texts(&["a", "bc"])),
            ("signed", Meta::I32s(&[-3, 4])),
            ("yes", Meta::Bool(true)),
        ];
        let tensors = [Tensor("first", &[32, 2], 8, vec![1; 68]), Tensor("second", &[3], 0, vec![2; 12])];
        let bytes = gguf(&metadata, &tensors);
        let file = parse(&bytes).unwrap();
        assert_eq!(file.metadata.unsigned("whole").unwrap(), 7);
        assert_eq!(file.metadata.float("small").unwrap(), 1e-5, "as the shortest decimal");
        assert_eq!(file.metadata.texts("texts").unwrap(), ["a", "bc"]);
        assert_eq!(file.metadata.find_signeds("signed").unwrap(), Some(&[-3, 4][..]));
        assert_eq!(file.metadata.find_bool("yes").unwrap(), Some(true));
        // 68 bytes are padded to 96, the second tensor's 12 to 32: the data section is the last 128 bytes.
        let data = bytes.len() as u64 - 128;
        let places: Vec<(u64, u64)> =
            file.tensors.iter().map(|tensor| (tensor.offset_bytes - data, tensor.size_bytes)).collect();
        assert_eq!(places, [(0, 68), (96, 12)]);
    }

    #[track_caller]
    fn check_refused(bytes: &[u8], expected: &str) {
        let error = parse(bytes).expect_err("it must be refused").to_string();
        assert!(error.contains(expected), "{error}");
    }

    #[test]
    fn what_is_no_such_file_is_refused() {
        check_refused(b"", "ends inside its header");
        check_refused(b"PK\x03\x04aaaaaaaaaaaaaaaaaaaa", "does not begin with the letters GGUF");
        check_refused(b"GGUF\x01\0\0\0", "version 1");
        check_refused(b"GGUF\0\0\0\x03", "version 50331648");
    }

    #[test]
    fn tensors_that_cannot_be_are_refused() {
        check_refused(&one_tensor(&[32], 12, 144), "Q4_K");
        check_refused(&one_tensor(&[31], 8, 34), "no whole number of Q8_0 blocks");
        check_refused(&one_tensor(&[0], 0, 0), "empty");
        check_refused(&one_tensor(&[1 << 40, 1 << 40], 0, 4), "too large");
        check_refused(&one_tensor(&[1 << 62], 0, 4), "too large");
        check_refused(&one_tensor(&[1, 1, 1, 1, 1], 0, 4), "5 dimensions");
        check_refused(&one_tensor(&[], 0, 4), "0 dimensions");
        check_refused(&one_tensor(&[1000], 0, 4), "cut short");
        let twice = [Tensor("t", &[1], 0, vec![0; 4]), Tensor("t", &[1], 0, vec![0; 4])];
        check_refused(&gguf(&[], &twice), "appears twice");
        // Says 9 numbers and brings 8: it reaches into the next.
        let long = [Tensor("t", &[9], 0, vec![0; 32]), Tensor("u", &[1], 0, vec![0; 4])];
        check_refused(&gguf(&[], &long), "tensors t and u overlap");
    }

    #[test]
    fn metadata_that_cannot_be_are_refused() {
        let twice = [("a", Meta::U32(1)), ("a", Meta::U32(2))];
        check_refused(&gguf(&twice, &[]), "a appears twice");
        for alignment in [0, 3, 1 << 20] {
            let metadata = [("general.alignment", Meta::U32(alignment))];
            check_refused(&gguf(&metadata, &[]), "power of two");
        }
        let file = parse(&gguf(&[("a", Meta::Text("x"))], &[])).unwrap();
        assert!(file.metadata.unsigned("a").is_err());
        assert!(file.metadata.unsigned("b").is_err());
    }

    /// A header of one entry "a" whose type and first eight bytes are given.
    fn entry(kind: u32, next: &[u8]) -> Vec<u8> {
        let mut bytes = b"GGUF\x03\0\0\0".to_vec();
        bytes.extend(0_u64.to_le_bytes());
        bytes.extend(1_u64.to_le_bytes());
        bytes.extend(1_u64.to_le_bytes());
        bytes.push(b'a');
        bytes.extend(kind.to_le_bytes());
        bytes.extend(next);
        bytes
    }

    #[test]
    fn lengths_are_not_believed() {
        check_refused(&entry(8, &u64::MAX.to_le_bytes()), "more than the");
        check_refused(&entry(8, &1000_u64.to_le_bytes()), "1000 bytes and 0 are left");
        let mut array = 8_u32.to_le_bytes().to_vec();
        array.extend(u64::MAX.to_le_bytes());
        check_refused(&entry(9, &array), "more than the");
        let mut array = 8_u32.to_le_bytes().to_vec();
        array.extend(4_000_000_u64.to_le_bytes());
        check_refused(&entry(9, &array), "32000000 bytes and 0 are left");
        let mut nested = 9_u32.to_le_bytes().to_vec();
        nested.extend(0_u64.to_le_bytes());
        check_refused(&entry(9, &nested), "array of arrays");
        check_refused(&entry(13, &[0; 8]), "unknown value type 13");
        check_refused(&entry(7, &[2]), "neither 0 nor 1");
        check_refused(&entry(8, &[1, 0, 0, 0, 0, 0, 0, 0, 0xff]), "not UTF-8");
    }

    #[test]
    fn every_shorter_file_is_refused() {
        let whole = tiny_llama();
        parse(&whole).unwrap();
        // The last tensor has 32 bytes, a multiple of the alignment: without the last byte it is cut.
        for length in 0..whole.len() {
            assert!(parse(&whole[..length]).is_err(), "{length} bytes");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]

        #[test]
        fn random_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
            let _ = parse(&bytes);
            let mut dressed = b"GGUF\x03\0\0\0\x02\0\0\0\0\0\0\0\x02\0\0\0\0\0\0\0".to_vec();
            dressed.extend(&bytes);
            let _ = parse(&dressed);
        }

        #[test]
        fn a_changed_file_never_panics_and_stays_inside_itself(
            at in any::<prop::sample::Index>(),
            bytes in proptest::collection::vec(any::<u8>(), 1..9),
        ) {
            let mut file = tiny_llama();
            let at = at.index(file.len());
            for (place, byte) in file[at..].iter_mut().zip(bytes) {
                *place = byte;
            }
            if let Ok(gguf) = parse(&file) {
                for tensor in gguf.tensors {
                    prop_assert!(tensor.offset_bytes + tensor.size_bytes <= file.len() as u64);
                }
            }
        }
    }
}
