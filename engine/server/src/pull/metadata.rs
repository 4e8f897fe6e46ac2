//! The metadata of a GGUF file, asked for by key and kind. Apart from the reader because the reader deals in bytes and whoever asks
//! deals in meanings. Must not know which keys there are.

use std::collections::BTreeMap;

/// The metadata, by key.
#[derive(Debug, Default)]
pub struct Metadata(pub BTreeMap<String, Value>);

/// A metadata value. The file's twelve widths fall together into what a reader asks for.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    Unsigned(u64),
    Signed(i64),
    /// A 32-bit number is kept as the shortest decimal that names it, so that 1e-5 stays 0.00001 in 64 bits.
    Float(f64),
    Bool(bool),
    Text(String),
    Unsigneds(Vec<u64>),
    Signeds(Vec<i64>),
    Floats(Vec<f64>),
    Bools(Vec<bool>),
    Texts(Vec<String>),
}

#[derive(Debug, PartialEq, thiserror::Error)]
pub enum MetadataError {
    #[error("metadata {key} is missing")]
    Missing { key: String },
    #[error("metadata {key} is not {wanted}")]
    Kind { key: String, wanted: &'static str },
}

/// `find_` answers none for a key that is not there; all answer an error for a value of another kind.
impl Metadata {
    pub fn find_unsigned(&self, key: &str) -> Result<Option<u64>, MetadataError> {
        match self.0.get(key) {
            None => Ok(None),
            Some(Value::Unsigned(value)) => Ok(Some(*value)),
            Some(Value::Signed(value)) if *value >= 0 => Ok(Some(value.unsigned_abs())),
            Some(_) => Err(kind(key, "a whole number")),
        }
    }

    pub fn unsigned(&self, key: &str) -> Result<u64, MetadataError> {
        present(self.find_unsigned(key)?, key)
    }

    pub fn find_float(&self, key: &str) -> Result<Option<f64>, MetadataError> {
        match self.0.get(key) {
            None => Ok(None),
            Some(Value::Float(value)) if value.is_finite() => Ok(Some(*value)),
            Some(_) => Err(kind(key, "a finite number")),
        }
    }

    pub fn float(&self, key: &str) -> Result<f64, MetadataError> {
        present(self.find_float(key)?, key)
    }

    pub fn find_bool(&self, key: &str) -> Result<Option<bool>, MetadataError> {
        match self.0.get(key) {
            None => Ok(None),
            Some(Value::Bool(value)) => Ok(Some(*value)),
            Some(_) => Err(kind(key, "a truth value")),
        }
    }

    pub fn find_text(&self, key: &str) -> Result<Option<&str>, MetadataError> {
        match self.0.get(key) {
            None => Ok(None),
            Some(Value::Text(value)) => Ok(Some(value)),
            Some(_) => Err(kind(key, "a text")),
        }
    }

    pub fn text(&self, key: &str) -> Result<&str, MetadataError> {
        present(self.find_text(key)?, key)
    }

    pub fn texts(&self, key: &str) -> Result<&[String], MetadataError> {
        match self.0.get(key) {
            None => Err(missing(key)),
            Some(Value::Texts(values)) => Ok(values),
            Some(_) => Err(kind(key, "a list of texts")),
        }
    }

    pub fn find_signeds(&self, key: &str) -> Result<Option<&[i64]>, MetadataError> {
        match self.0.get(key) {
            None => Ok(None),
            Some(Value::Signeds(values)) => Ok(Some(values)),
            Some(_) => Err(kind(key, "a list of signed numbers")),
        }
    }
}

fn present<T>(value: Option<T>, key: &str) -> Result<T, MetadataError> {
    value.ok_or_else(|| missing(key))
}

fn missing(key: &str) -> MetadataError {
    MetadataError::Missing { key: key.to_owned() }
}

fn kind(key: &str, wanted: &'static str) -> MetadataError {
    MetadataError::Kind { key: key.to_owned(), wanted }
}
