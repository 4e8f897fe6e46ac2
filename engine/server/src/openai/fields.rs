//! A request's fields, read by name, type and range.
//!
//! Apart so that every complaint names the field and what it takes, which a derived reader does not. Null is the
//! same as absent. Must not know: what a field means.

use std::ops::RangeInclusive;

use serde_json::{Map, Value};

use super::error::ApiError;

/// The fields of a request's body.
#[derive(Debug)]
pub struct Fields(Map<String, Value>);

impl Fields {
    /// Reads a body.
    ///
    /// # Errors
    /// When it is not a JSON object.
    pub fn parse(body: &[u8]) -> Result<Fields, ApiError> {
        let value: Value = serde_json::from_slice(body)
            .map_err(|error| ApiError::malformed(format!("the body is not JSON: {error}")))?;
        match value {
            Value::Object(fields) => Ok(Fields(fields)),
            _ => Err(ApiError::malformed("the body must be a JSON object")),
        }
    }

    /// Reads a field that holds an object.
    ///
    /// # Errors
    /// When it holds something else.
    pub fn object(&self, name: &str) -> Result<Option<Fields>, ApiError> {
        match self.get(name) {
            None => Ok(None),
            Some(Value::Object(fields)) => Ok(Some(Fields(fields.clone()))),
            Some(_) => Err(ApiError::field(name, format!("`{name}` must be an object"))),
        }
    }

    /// A field that is there and not null.
    pub fn get(&self, name: &str) -> Option<&Value> {
        self.0.get(name).filter(|value| !value.is_null())
    }

    /// All fields but one.
    pub fn without(&self, name: &str) -> Fields {
        let others = self.0.iter().filter(|(other, _)| *other != name);
        Fields(others.map(|(name, value)| (name.clone(), value.clone())).collect())
    }

    /// All fields.
    pub fn into_map(self) -> Map<String, Value> {
        self.0
    }

    /// Reads a number.
    ///
    /// # Errors
    /// When it is none, or outside the range.
    pub fn number(&self, name: &str, range: RangeInclusive<f64>) -> Result<Option<f64>, ApiError> {
        let Some(value) = self.get(name) else { return Ok(None) };
        match value.as_f64().filter(|number| range.contains(number)) {
            Some(number) => Ok(Some(number)),
            None => {
                let (least, most) = (range.start(), range.end());
                Err(ApiError::field(name, format!("`{name}` must be a number from {least} to {most}")))
            }
        }
    }

    /// Reads a whole number.
    ///
    /// # Errors
    /// When it is none, or outside the range.
    pub fn integer(&self, name: &str, range: RangeInclusive<i64>) -> Result<Option<i64>, ApiError> {
        let Some(value) = self.get(name) else { return Ok(None) };
        match value.as_i64().filter(|number| range.contains(number)) {
            Some(number) => Ok(Some(number)),
            None => {
                let (least, most) = (range.start(), range.end());
                Err(ApiError::field(name, format!("`{name}` must be a whole number from {least} to {most}")))
            }
        }
    }

    /// Reads a count.
    ///
    /// # Errors
    /// When it is none, or outside the range.
    pub fn count(&self, name: &str, range: RangeInclusive<u32>) -> Result<Option<u32>, ApiError> {
        let wide = i64::from(*range.start())..=i64::from(*range.end());
        let count = self.integer(name, wide)?;
        Ok(count.map(|count| u32::try_from(count).expect("the range was checked")))
    }

    /// Reads a switch; absent is off.
    ///
    /// # Errors
    /// When it is neither true nor false.
    pub fn is_on(&self, name: &str) -> Result<bool, ApiError> {
        Ok(self.boolean(name)?.unwrap_or(false))
    }

    /// Reads a switch.
    ///
    /// # Errors
    /// When it is neither true nor false.
    pub fn boolean(&self, name: &str) -> Result<Option<bool>, ApiError> {
        let Some(value) = self.get(name) else { return Ok(None) };
        let wrong = || ApiError::field(name, format!("`{name}` must be true or false"));
        value.as_bool().map(Some).ok_or_else(wrong)
    }

    /// Reads a text.
    ///
    /// # Errors
    /// When it is none.
    pub fn text(&self, name: &str) -> Result<Option<&str>, ApiError> {
        let Some(value) = self.get(name) else { return Ok(None) };
        let wrong = || ApiError::field(name, format!("`{name}` must be a string"));
        value.as_str().map(Some).ok_or_else(wrong)
    }

    /// Refuses a field that asks for something the engine does not do.
    ///
    /// # Errors
    /// When it is there and not what `neutral` takes.
    pub fn unsupported(&self, name: &str, neutral: fn(&Value) -> bool) -> Result<(), ApiError> {
        match self.get(name) {
            Some(value) if !neutral(value) => {
                Err(ApiError::field(name, format!("this value of `{name}` is not supported")))
            }
            Some(_) | None => Ok(()),
        }
    }
}

/// Reads token ids.
pub fn token_ids(value: &Value) -> Option<Vec<u32>> {
    let id = |value: &Value| value.as_u64().and_then(|id| u32::try_from(id).ok());
    value.as_array()?.iter().map(id).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check<T: std::fmt::Debug + PartialEq>(
        body: &str,
        read: fn(&Fields) -> Result<T, ApiError>,
        expected: Result<T, &str>,
    ) {
        let found = read(&Fields::parse(body.as_bytes()).unwrap());
        let found = found.map_err(|error| error.param.expect("a field's error names it"));
        assert_eq!(found, expected.map_err(str::to_owned), "{body}");
    }

    #[test]
    fn ranges_are_kept_and_null_is_absent() {
        let read: fn(&Fields) -> _ = |fields| fields.number("t", 0.0..=2.0);
        check(r#"{"t":1}"#, read, Ok(Some(1.0)));
        check(r#"{"t":null}"#, read, Ok(None));
        check("{}", read, Ok(None));
        for wrong in [r#"{"t":-0.1}"#, r#"{"t":2.1}"#, r#"{"t":"1"}"#, r#"{"t":[]}"#] {
            check(wrong, read, Err("t"));
        }
        let read: fn(&Fields) -> _ = |fields| fields.count("n", 1..=4);
        check(r#"{"n":4}"#, read, Ok(Some(4)));
        for wrong in
            [r#"{"n":0}"#, r#"{"n":5}"#, r#"{"n":1.5}"#, r#"{"n":99999999999999999999}"#, r#"{"n":true}"#]
        {
            check(wrong, read, Err("n"));
        }
    }

    #[test]
    fn only_an_object_is_a_request() {
        for body in ["", "[]", "1", "{", "{\"a\":1}x"] {
            assert!(Fields::parse(body.as_bytes()).is_err(), "{body}");
        }
    }
}
