//! Head and body of a request → [`Request`], parsed once.
//!
//! Apart so that everything behind it works on a type that cannot be wrong. Keeps the places of the few values
//! that a rewrite may touch; the bytes themselves are never re-serialised. Must not know: upstreams, replies.

use std::borrow::Cow;
use std::collections::HashMap;
use std::ops::Range;

use pitot_measure::{Echo, Endpoint};
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
    pub stream: StreamWish,
    /// Choices asked for (`n`); null and absent are 1.
    pub choices: u32,
    /// Prompts in a completions request; a list of one is one.
    pub prompts: u32,
    /// What of the prompts the reply will repeat.
    pub echo: Echo,
    pub usage: UsageWish,
}

/// A change to the body at one place: what stands there gives way to the text. Offsets are bytes into the body.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Edit {
    pub place: Range<usize>,
    pub text: String,
}

/// Whether the caller wants a stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StreamWish {
    Wanted,
    /// Not wanted; the edit that asks for one all the same.
    NotWanted(Edit),
    /// Not wanted, or said in a way that is the upstream's to refuse, and not to be changed.
    Untouchable,
}

/// What the caller said about usage in a stream, and where.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum UsageWish {
    /// `include_usage: true`.
    Wanted,
    /// Not wanted; the edit that asks for it all the same.
    NotWanted(Edit),
    /// The wire format has no such question.
    Unasked,
}

impl Request {
    pub fn streams(&self) -> bool {
        self.stream == StreamWish::Wanted
    }
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
        "/v1/responses" => Endpoint::Responses,
        "/v1/messages" => Endpoint::Messages,
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
    #[serde(borrow, default)]
    echo: Option<&'a RawValue>,
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
    let echo = endpoint == Endpoint::Completions && of(parsed.echo) == "true";
    Ok(Request {
        endpoint,
        model: serde_json::from_str::<Option<String>>(&of(parsed.model)).ok().flatten().unwrap_or_default(),
        stream: stream_wish(text, open, parsed.stream),
        choices: serde_json::from_str::<Option<u32>>(&of(parsed.n)).ok().flatten().unwrap_or(1),
        prompts: parsed.prompt.map_or(1, prompts),
        echo: if echo { Echo::Prompts(prompt_bytes(parsed.prompt)) } else { Echo::Nothing },
        usage: match endpoint {
            Endpoint::ChatCompletions | Endpoint::Completions => {
                usage_wish(text, open, parsed.stream_options)?
            }
            Endpoint::Responses | Endpoint::Messages | Endpoint::Embeddings | Endpoint::Other => {
                UsageWish::Unasked
            }
        },
    })
}

/// A request to an endpoint whose body the gateway does not read, or not yet.
pub fn opaque(endpoint: Endpoint) -> Request {
    Request {
        endpoint,
        model: String::new(),
        stream: StreamWish::Untouchable,
        choices: 1,
        prompts: 1,
        echo: Echo::Nothing,
        usage: UsageWish::Unasked,
    }
}

/// Length of the text of each prompt that a reply with `echo` repeats.
fn prompt_bytes(raw: Option<&RawValue>) -> Vec<Option<u64>> {
    let length =
        |raw: &RawValue| serde_json::from_str::<String>(raw.get()).ok().map(|text| text.len() as u64);
    let Some(raw) = raw else { return vec![Some(0)] };
    match serde_json::from_str::<Vec<&RawValue>>(raw.get()) {
        Ok(items) if items.first().is_some_and(|item| item.get().starts_with(['"', '['])) => {
            items.into_iter().map(length).collect()
        }
        Ok(_) | Err(_) => vec![length(raw)],
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

fn stream_wish(text: &str, open: usize, stream: Option<&RawValue>) -> StreamWish {
    let instead = |place| StreamWish::NotWanted(Edit { place, text: "true".to_owned() });
    match stream {
        Some(value) if value.get() == "true" => StreamWish::Wanted,
        Some(value) if value.get() == "false" => instead(place_of(text, value)),
        Some(_) => StreamWish::Untouchable,
        None => match null_place(text, "stream") {
            Some(place) => instead(place),
            // A request without any member is one to be refused, not to be answered in a stream.
            None if is_empty_object(&text[open..]) => StreamWish::Untouchable,
            None => {
                StreamWish::NotWanted(Edit { place: open + 1..open + 1, text: "\"stream\":true,".to_owned() })
            }
        },
    }
}

fn usage_wish(text: &str, open: usize, options: Option<&RawValue>) -> Result<UsageWish, RequestError> {
    let inserted = |behind: usize, member: &str, object: &str| Edit {
        place: behind..behind,
        text: if is_empty_object(object) { member.to_owned() } else { format!("{member},") },
    };
    let Some(options) = options else {
        // serde reads an explicit null as absent too, so look whether the key stands there.
        return Ok(UsageWish::NotWanted(match null_place(text, "stream_options") {
            Some(place) => Edit { place, text: r#"{"include_usage":true}"#.to_owned() },
            None => inserted(open + 1, r#""stream_options":{"include_usage":true}"#, &text[open..]),
        }));
    };
    let place = place_of(text, options);
    let inner = serde_json::from_str::<StreamOptions<'_>>(options.get()).ok();
    let Some(inner) = inner.filter(|_| options.get().starts_with('{')) else {
        // Not an object: the upstream will refuse it, in its own words.
        return Ok(UsageWish::Wanted);
    };
    let instead = |place| UsageWish::NotWanted(Edit { place, text: "true".to_owned() });
    Ok(match inner.include_usage {
        Some(value) if value.get() == "false" => instead(place_of(text, value)),
        // True is wanted, and what is neither is the upstream's to refuse.
        Some(_) => UsageWish::Wanted,
        None => match null_place(&text[place.clone()], "include_usage") {
            Some(within) => instead(place.start + within.start..place.start + within.end),
            None => UsageWish::NotWanted(inserted(place.start + 1, r#""include_usage":true"#, &text[place])),
        },
    })
}

/// Where the value of a member of this name stands, also if it is null.
fn null_place(object: &str, name: &str) -> Option<Range<usize>> {
    let members = serde_json::from_str::<HashMap<Cow<'_, str>, &RawValue>>(object).ok()?;
    members.get(name).map(|value| place_of(object, value))
}

/// Where a borrowed value stands in the text that it was parsed from.
pub fn place_of(text: &str, raw: &RawValue) -> Range<usize> {
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
        assert_eq!(
            (request.streams(), request.choices, request.prompts),
            (stream, choices, prompts),
            "{body}"
        );
    }

    #[test]
    fn shape_of_a_request() {
        check(r#"{"model":"m"}"#, false, 1, 1);
        check(r#"{"stream":true,"n":null,"prompt":["a"]}"#, true, 1, 1);
        check(r#"{"n":3,"prompt":["a","b"]}"#, false, 3, 2);
        check(r#"{"prompt":[1,2,3]}"#, false, 1, 1);
        check(r#"{"prompt":[[1],[2,3]]}"#, false, 1, 2);
    }

    #[track_caller]
    fn check_streamed(body: &str, expected: Option<&str>) {
        let request = parse(Endpoint::ChatCompletions, body.as_bytes()).unwrap();
        let edited = match request.stream {
            StreamWish::Wanted | StreamWish::Untouchable => None,
            StreamWish::NotWanted(Edit { place, text }) => {
                Some([&body[..place.start], &text, &body[place.end..]].concat())
            }
        };
        assert_eq!(edited.as_deref(), expected, "{body}");
    }

    #[test]
    fn asking_for_a_stream_changes_one_place() {
        check_streamed(r#"{"model":"m"}"#, Some(r#"{"stream":true,"model":"m"}"#));
        check_streamed(r#"{"a":1, "stream" : false }"#, Some(r#"{"a":1, "stream" : true }"#));
        check_streamed(r#"{"stream":null,"a":"stream"}"#, Some(r#"{"stream":true,"a":"stream"}"#));
        for other in [r#"{"stream":true}"#, r#"{"stream":"no"}"#, "{}"] {
            check_streamed(other, None);
        }
    }

    #[test]
    fn an_echo_is_as_long_as_its_prompts() {
        let echo = |body: &str| parse(Endpoint::Completions, body.as_bytes()).unwrap().echo;
        assert_eq!(echo(r#"{"prompt":"a"}"#), Echo::Nothing);
        assert_eq!(echo(r#"{"prompt":"\u00e9\n","echo":true}"#), Echo::Prompts(vec![Some(3)]));
        assert_eq!(echo(r#"{"prompt":["ab",[1,2]],"echo":true}"#), Echo::Prompts(vec![Some(2), None]));
        assert_eq!(echo(r#"{"prompt":[1,2],"echo":true}"#), Echo::Prompts(vec![None]));
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
