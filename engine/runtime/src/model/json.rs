//! Numbers from config.json, each refused by its name when it cannot be believed.
//!
//! Apart so that no family reads a number in another way. Must not know: what a number is for.

use serde_json::Value as Json;

use super::LoadError;

/// Largest size that is believed of any one dimension; the products of two then fit a usize.
const SIZE_MAX: u64 = 1 << 24;

pub(super) fn size(json: &Json, key: &'static str) -> Result<usize, LoadError> {
    optional_size(json, key)?.ok_or(LoadError::Missing { key })
}

pub(super) fn optional_size(json: &Json, key: &'static str) -> Result<Option<usize>, LoadError> {
    if json[key].is_null() {
        return Ok(None);
    }
    let size = json[key].as_u64().filter(|size| (1..=SIZE_MAX).contains(size));
    size.map(|size| Some(size as usize))
        .ok_or_else(|| invalid(json, key, "a whole number from 1 to 16777216 is needed"))
}

pub(super) fn positive(json: &Json, key: &'static str) -> Result<Option<f64>, LoadError> {
    if json[key].is_null() {
        return Ok(None);
    }
    let number = json[key].as_f64().filter(|number| *number > 0.0);
    number.map(Some).ok_or_else(|| invalid(json, key, "a number above 0 is needed"))
}

pub(super) fn required(json: &Json, key: &'static str) -> Result<f64, LoadError> {
    positive(json, key)?.ok_or(LoadError::Missing { key })
}

/// Numbers above 0, `count` of them.
pub(super) fn positives(json: &Json, key: &'static str, count: usize) -> Result<Vec<f64>, LoadError> {
    let list = json[key].as_array().ok_or(LoadError::Missing { key })?;
    let numbers: Option<Vec<f64>> =
        list.iter().map(|number| number.as_f64().filter(|number| *number > 0.0)).collect();
    numbers
        .filter(|numbers| numbers.len() == count)
        .ok_or_else(|| invalid(json, key, "a number above 0 is needed for each pair that turns"))
}

/// Refuses a switch that is on.
pub(super) fn must_be_off(json: &Json, key: &'static str) -> Result<(), LoadError> {
    match json[key].as_bool() {
        Some(true) => Err(LoadError::Unsupported { key, value: "true".to_owned() }),
        Some(false) | None => Ok(()),
    }
}

/// Refuses an activation of another name.
pub(super) fn activation(json: &Json, key: &'static str, expected: &str) -> Result<(), LoadError> {
    match json[key].as_str().filter(|found| *found != expected) {
        Some(other) => Err(LoadError::Unsupported { key, value: other.to_owned() }),
        None => Ok(()),
    }
}

pub(super) fn invalid(json: &Json, key: &'static str, why: &'static str) -> LoadError {
    LoadError::Invalid { key, value: json[key].to_string(), why }
}
