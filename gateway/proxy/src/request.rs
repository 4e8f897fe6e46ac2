//! Head and body of a request → [`Request`], parsed once.
//!
//! Apart so that everything behind it works on a type that cannot be wrong. Keeps the places of the few values
//! that a rewrite may touch; the bytes themselves are never re-serialised. Must not know: upstreams, replies.

use std::ops::Range;

use pitot_measure::Endpoint;
use serde::Deserialize;
use serde_json::value::RawValue;
use thiserror::Error;

/// Longest id that a caller may bring in `x-request-id`.
pub const REQUEST_ID_BYTES_MAX: usize = 128;

/// What the gateway knows of one request once its body has been read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    pub endpoint: Endpoint,
    /// The model that the caller named; empty where the endpoint has none.
    pub model: String,
    pub stream: bool,
    /// Choices asked for (`n`); null and absent are 1.
    pub choices: u32,
    /// Prompts in a completions request; a list of one is one.
    pub prompts: u32,
    pub usage: UsageWish,
}

/// What the caller said about usage in a stream, and where.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum UsageWish {
    /// `include_usage: true`.
    Wanted,
    /// Not wanted; the edit that asks for it all the same.
    NotWanted(UsageEdit),
}

/// The one place at which the body must be changed to ask for usage. Offsets are bytes into the body.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum UsageEdit {
    /// `include_usage` stands there as something else than true: put true in its place.
    Value(Range<usize>),
    /// `stream_options` is an object without it: add the key behind the opening brace.
    Key { behind: usize, object_is_empty: bool },
    /// `stream_options` is null: put an object in its place.
    Options(Range<usize>),
    /// No `stream_options`: add it behind the body's opening brace.
    Member { behind: usize, object_is_empty: bool },
}

/// Why a body could not be taken. The message is for the caller.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum RequestError {
    #[error("the request body is not valid JSON: {0}")]
    Json(String),
    #[error("the request body must be a JSON object")]
    NotObject,
}

/// Tells which endpoint a method and path name.
pub fn endpoint_of(method: &http::Method, path: &str) -> Endpoint {
    if *method != http::Method::POST {
        return Endpoint::Other;
    }
    match path {
        "/v1/chat/completions" => Endpoint::ChatCompletions,
        "/v1/completions" => Endpoint::Completions,
        "/v1/embeddings" => Endpoint::Embeddings,
        _ => Endpoint::Other,
    }
}

#[derive(Deserialize)]
struct Body<'a> {
    #[serde(borrow, default)]
    model: Option<&'a RawValue>,
    #[serde(borrow, default)]
    stream: Option<&'a RawValue>,
    #[serde(borrow, default)]
    stream_options: Option<&'a RawValue>,
    #[serde(borrow, default)]
    n: Option<&'a RawValue>,
    #[serde(borrow, default)]
    prompt: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct StreamOptions<'a> {
    #[serde(borrow, default)]
    include_usage: Option<&'a RawValue>,
}

/// Parses the body of a generating request.
///
/// Only the shape that measuring needs is judged; whether the values make sense is the upstream's to say.
pub fn parse(endpoint: Endpoint, body: &[u8]) -> Result<Request, RequestError> {
    let first = body.iter().position(|b| !b.is_ascii_whitespace());
    let text = std::str::from_utf8(body).map_err(|error| RequestError::Json(error.to_string()))?;
    let parsed: Body<'_> = match serde_json::from_str(text) {
        Ok(parsed) => parsed,
        Err(error) if error.is_data() && first.is_some_and(|at| body[at] != b'{') => {
            return Err(RequestError::NotObject);
        }
        Err(error) => return Err(RequestError::Json(error.to_string())),
    };
    let Some(open) = first.filter(|at| body[*at] == b'{') else {
        return Err(RequestError::NotObject);
    };
    let of = |raw: Option<&RawValue>| raw.map(RawValue::get).unwrap_or("null").to_owned();
    Ok(Request {
        endpoint,
        model: serde_json::from_str::<Option<String>>(&of(parsed.model)).ok().flatten().unwrap_or_default(),
        stream: of(parsed.stream) == "true",
        choices: serde_json::from_str::<Option<u32>>(&of(parsed.n)).ok().flatten().unwrap_or(1),
        prompts: parsed.prompt.map_or(1, prompts),
        usage: usage_wish(text, open, parsed.stream_options)?,
    })
}

/// A request to an endpoint whose body the gateway does not read.
pub fn opaque(endpoint: Endpoint) -> Request {
    Request {
        endpoint,
        model: String::new(),
        stream: false,
        choices: 1,
        prompts: 1,
        usage: UsageWish::Wanted,
    }
}

/// A text or a list of token ids is one prompt; a list of texts or of lists is as many as it holds.
fn prompts(raw: &RawValue) -> u32 {
    let Ok(items) = serde_json::from_str::<Vec<&RawValue>>(raw.get()) else {
        return 1;
    };
    let nested = items.first().is_some_and(|item| item.get().starts_with(['"', '[']));
    if nested { u32::try_from(items.len()).unwrap_or(u32::MAX) } else { 1 }
}

fn usage_wish(text: &str, open: usize, options: Option<&RawValue>) -> Result<UsageWish, RequestError> {
    let Some(options) = options else {
        // serde reads an explicit null as absent too, so look whether the key stands there.
        return Ok(UsageWish::NotWanted(match null_options(text) {
            Some(place) => UsageEdit::Options(place),
            None => UsageEdit::Member { behind: open + 1, object_is_empty: is_empty_object(&text[open..]) },
        }));
    };
    let place = place_of(text, options);
    let inner = serde_json::from_str::<StreamOptions<'_>>(options.get()).ok();
    let Some(inner) = inner.filter(|_| options.get().starts_with('{')) else {
        // Not an object: the upstream will refuse it, in its own words.
        return Ok(UsageWish::Wanted);
    };
    Ok(match inner.include_usage {
        Some(value) if value.get() == "false" => {
            UsageWish::NotWanted(UsageEdit::Value(place_of(text, value)))
        }
        // True is wanted, and what is neither is the upstream's to refuse.
        Some(_) => UsageWish::Wanted,
        None => match null_usage(text, &place) {
            Some(value) => UsageWish::NotWanted(UsageEdit::Value(value)),
            None => UsageWish::NotWanted(UsageEdit::Key {
                behind: place.start + 1,
                object_is_empty: is_empty_object(&text[place]),
            }),
        },
    })
}

#[derive(Deserialize)]
struct AnyOptions<'a> {
    #[serde(borrow, default, deserialize_with = "present")]
    stream_options: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct AnyUsage<'a> {
    #[serde(borrow, default, deserialize_with = "present")]
    include_usage: Option<&'a RawValue>,
}

/// Unlike serde's own rule for options, keeps an explicit null as a value.
fn present<'de: 'a, 'a, D: serde::Deserializer<'de>>(from: D) -> Result<Option<&'a RawValue>, D::Error> {
    <&RawValue>::deserialize(from).map(Some)
}

fn null_options(text: &str) -> Option<Range<usize>> {
    let options = serde_json::from_str::<AnyOptions<'_>>(text).ok()?.stream_options?;
    Some(place_of(text, options))
}

fn null_usage(text: &str, options: &Range<usize>) -> Option<Range<usize>> {
    let value = serde_json::from_str::<AnyUsage<'_>>(&text[options.clone()]).ok()?.include_usage?;
    Some(place_of(text, value))
}

/// Where a borrowed value stands in the text that it was parsed from.
fn place_of(text: &str, raw: &RawValue) -> Range<usize> {
    let start = raw.get().as_ptr() as usize - text.as_ptr() as usize;
    start..start + raw.get().len()
}

fn is_empty_object(object: &str) -> bool {
    object[1..].trim_start().starts_with('}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(body: &str, stream: bool, choices: u32, prompts: u32) {
        let request = parse(Endpoint::Completions, body.as_bytes()).unwrap();
        assert_eq!((request.stream, request.choices, request.prompts), (stream, choices, prompts), "{body}");
    }

    #[test]
    fn shape_of_a_request() {
        check(r#"{"model":"m"}"#, false, 1, 1);
        check(r#"{"stream":true,"n":null,"prompt":["a"]}"#, true, 1, 1);
        check(r#"{"n":3,"prompt":["a","b"]}"#, false, 3, 2);
        check(r#"{"prompt":[1,2,3]}"#, false, 1, 1);
        check(r#"{"prompt":[[1],[2,3]]}"#, false, 1, 2);
    }

    #[test]
    fn what_is_not_an_object_is_refused() {
        for body in ["", "{", "nul", "{\"a\":}", "\u{feff}{}"] {
            assert!(
                matches!(parse(Endpoint::ChatCompletions, body.as_bytes()), Err(RequestError::Json(_))),
                "{body}"
            );
        }
        for body in ["[]", "3", "\"x\"", "null"] {
            assert_eq!(
                parse(Endpoint::ChatCompletions, body.as_bytes()),
                Err(RequestError::NotObject),
                "{body}"
            );
        }
        assert!(matches!(parse(Endpoint::ChatCompletions, b"{\"a\":\"\xff\"}"), Err(RequestError::Json(_))));
    }
}
