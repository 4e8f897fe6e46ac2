//! Byte-exact edits: ask for usage upstream, cut our own chunk out of the stream, splice objects in.
//!
//! Apart so that "the caller gets what the upstream sent" is one file to read. Edits insert, replace or leave
//! out a run of bytes; nothing is parsed and written again, so that big integers, key order, unknown fields and
//! white space survive. Must not know: sockets, time, how the inserted objects are made.

use bytes::{Bytes, BytesMut};
use memchr::memmem;
use pitot_measure::sse;
use serde::Deserialize;
use serde_json::value::RawValue;

use crate::request::UsageEdit;

/// Most of an unfinished frame that is held back to learn whether it is the usage chunk. A usage chunk is well
/// under 4 KiB; a longer frame is something else and passes on.
const HELD_BYTES_MAX: usize = 64 * 1024;

/// Gives the body with usage asked for.
pub fn ask_for_usage(body: &[u8], edit: &UsageEdit) -> Bytes {
    let (place, text) = match edit {
        UsageEdit::Value(place) => (place.clone(), "true".to_owned()),
        UsageEdit::Options(place) => (place.clone(), r#"{"include_usage":true}"#.to_owned()),
        UsageEdit::Key { behind, object_is_empty } => {
            (*behind..*behind, member(r#""include_usage":true"#, *object_is_empty))
        }
        UsageEdit::Member { behind, object_is_empty } => {
            (*behind..*behind, member(r#""stream_options":{"include_usage":true}"#, *object_is_empty))
        }
    };
    let mut edited = BytesMut::with_capacity(body.len() + text.len());
    edited.extend_from_slice(&body[..place.start]);
    edited.extend_from_slice(text.as_bytes());
    edited.extend_from_slice(&body[place.end..]);
    edited.freeze()
}

fn member(text: &str, object_is_empty: bool) -> String {
    if object_is_empty { text.to_owned() } else { format!("{text},") }
}

/// What is to happen to the usage chunk of a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UsageChunk {
    /// The gateway asked for it, the caller did not: leave it out.
    Cut,
    /// The caller gets it, with the members that [`StreamRewriter::push`] is handed.
    Splice,
}

/// Edits a stream of server-sent events as it passes. Bytes come out in order, each at most once.
#[derive(Debug)]
pub struct StreamRewriter {
    action: UsageChunk,
    held: BytesMut,
    /// Inside a frame that grew past what is held back; it passes until it ends.
    passing: bool,
}

impl StreamRewriter {
    pub fn new(action: UsageChunk) -> Self {
        StreamRewriter { action, held: BytesMut::new(), passing: false }
    }

    /// Takes what a read brought, gives what may go on. `members` makes the text to add to a usage chunk, such
    /// as `"metrics":{…}`, given the chunk's JSON; it is called at most once per usage chunk.
    pub fn push(&mut self, bytes: &Bytes, members: &mut dyn FnMut(&[u8]) -> Option<String>) -> Bytes {
        if self.held.is_empty() && !self.passing && ends_frame(bytes) && !may_hold_usage(bytes) {
            return bytes.clone();
        }
        self.held.extend_from_slice(bytes);
        let mut out = BytesMut::new();
        while let Some(end) = sse::frame_end(&self.held) {
            let frame = self.held.split_to(end);
            if self.passing {
                self.passing = false;
                out.extend_from_slice(&frame);
            } else {
                self.edit(&frame, &mut out, members);
            }
        }
        if self.passing || self.held.len() > HELD_BYTES_MAX {
            self.passing = true;
            // The last three bytes stay: they may be the beginning of the blank line that ends the frame.
            let keep = self.held.len().min(3);
            out.extend_from_slice(&self.held.split_to(self.held.len() - keep));
        }
        out.freeze()
    }

    /// Gives what is still held once the upstream has ended.
    pub fn finish(self) -> Bytes {
        self.held.freeze()
    }

    fn edit(&self, frame: &[u8], out: &mut BytesMut, members: &mut dyn FnMut(&[u8]) -> Option<String>) {
        let usage_chunk = sse::data(frame).filter(|data| is_usage_chunk(data));
        match (usage_chunk, self.action) {
            (None, _) => out.extend_from_slice(frame),
            (Some(_), UsageChunk::Cut) => {}
            (Some(data), UsageChunk::Splice) => match members(&data) {
                Some(text) => out.extend_from_slice(&splice_frame(frame, &text)),
                None => out.extend_from_slice(frame),
            },
        }
    }
}

fn ends_frame(bytes: &[u8]) -> bool {
    bytes.ends_with(b"\n\n") || bytes.ends_with(b"\r\n\r\n") || bytes.ends_with(b"\r\r")
}

fn may_hold_usage(bytes: &[u8]) -> bool {
    memmem::find(bytes, b"\"usage\"").is_some()
}

#[derive(Deserialize)]
struct Chunk<'a> {
    #[serde(borrow, default)]
    choices: Option<Vec<&'a RawValue>>,
    #[serde(borrow, default)]
    usage: Option<&'a RawValue>,
    #[serde(borrow, default)]
    error: Option<&'a RawValue>,
}

/// Whether this is the chunk that only carries usage: no choices, a usage object.
fn is_usage_chunk(data: &[u8]) -> bool {
    if !may_hold_usage(data) {
        return false;
    }
    let Ok(text) = std::str::from_utf8(data) else { return false };
    let Ok(chunk) = serde_json::from_str::<Chunk<'_>>(text) else { return false };
    chunk.choices.is_some_and(|choices| choices.is_empty())
        && chunk.usage.is_some_and(|usage| usage.get().starts_with('{'))
        && chunk.error.is_none()
}

/// Adds members at the end of the JSON object in a frame of one data line.
fn splice_frame(frame: &[u8], members: &str) -> Vec<u8> {
    splice_object(frame, members).unwrap_or_else(|| frame.to_vec())
}

/// Adds members as the last ones of a JSON object, before its closing brace. None if there is no brace.
///
/// `object` may have white space (or a frame's blank line) behind the brace. `members` is `"name":value` text,
/// several joined by commas.
pub fn splice_object(object: &[u8], members: &str) -> Option<Vec<u8>> {
    let close = object.iter().rposition(|byte| *byte == b'}')?;
    let last = object[..close].iter().rfind(|byte| !byte.is_ascii_whitespace())?;
    let mut out = Vec::with_capacity(object.len() + members.len() + 1);
    out.extend_from_slice(&object[..close]);
    if *last != b'{' {
        out.push(b',');
    }
    out.extend_from_slice(members.as_bytes());
    out.extend_from_slice(&object[close..]);
    Some(out)
}

/// Whether this is a JSON object that has no such member yet (null counts as none).
pub fn may_take_member(object: &[u8], name: &str) -> bool {
    std::str::from_utf8(object)
        .ok()
        .and_then(|text| serde_json::from_str::<std::collections::HashMap<String, &RawValue>>(text).ok())
        .is_some_and(|members| members.get(name).is_none_or(|value| value.get() == "null"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::{self, UsageWish};
    use pitot_measure::Endpoint;

    #[track_caller]
    fn check_ask(body: &str, expected: Option<&str>) {
        let request = request::parse(Endpoint::ChatCompletions, body.as_bytes()).unwrap();
        let edited = match &request.usage {
            UsageWish::Wanted => None,
            UsageWish::NotWanted(edit) => Some(ask_for_usage(body.as_bytes(), edit)),
        };
        assert_eq!(edited.as_deref().map(|b| std::str::from_utf8(b).unwrap()), expected, "{body}");
    }

    #[test]
    fn asking_for_usage_changes_one_place() {
        check_ask(r#"{}"#, Some(r#"{"stream_options":{"include_usage":true}}"#));
        check_ask(
            " {\"seed\": 12345678901234567890123 }\n",
            Some(" {\"stream_options\":{\"include_usage\":true},\"seed\": 12345678901234567890123 }\n"),
        );
        check_ask(r#"{"stream_options":null}"#, Some(r#"{"stream_options":{"include_usage":true}}"#));
        check_ask(r#"{"stream_options":{ }}"#, Some(r#"{"stream_options":{"include_usage":true }}"#));
        check_ask(
            r#"{"stream_options":{"x":1}}"#,
            Some(r#"{"stream_options":{"include_usage":true,"x":1}}"#),
        );
        check_ask(
            r#"{"stream_options":{"include_usage": false}}"#,
            Some(r#"{"stream_options":{"include_usage": true}}"#),
        );
        check_ask(
            r#"{"stream_options":{"include_usage":null}}"#,
            Some(r#"{"stream_options":{"include_usage":true}}"#),
        );
        check_ask(r#"{"stream_options":{"include_usage":true}}"#, None);
        check_ask(r#"{"stream_options":{"include_usage":"yes"}}"#, None);
        check_ask(r#"{"stream_options":[]}"#, None);
        // The same words inside a string are text, not a key.
        check_ask(
            r#"{"a":"\"stream_options\":null"}"#,
            Some(r#"{"stream_options":{"include_usage":true},"a":"\"stream_options\":null"}"#),
        );
    }

    const DELTA: &str =
        "data: {\"choices\":[{\"delta\":{\"content\":\"\\\"usage\\\":{}\"}}],\"usage\":null}\n\n";
    const USAGE: &str = "data: {\"choices\":[],\"usage\":{\"total_tokens\":3}}\n\n";
    const DONE: &str = "data: [DONE]\n\n";

    #[track_caller]
    fn check_stream(action: UsageChunk, frames: &[&str], expected: &str) {
        let stream = frames.concat();
        for cut in 1..=stream.len() {
            let mut rewriter = StreamRewriter::new(action);
            let mut out = Vec::new();
            for piece in stream.as_bytes().chunks(cut) {
                let mut members = |_: &[u8]| Some("\"metrics\":{\"a\":1}".to_owned());
                out.extend_from_slice(&rewriter.push(&Bytes::copy_from_slice(piece), &mut members));
            }
            out.extend_from_slice(&rewriter.finish());
            assert_eq!(String::from_utf8_lossy(&out), expected, "cut every {cut} bytes");
        }
    }

    #[test]
    fn exactly_the_usage_chunk_is_cut() {
        check_stream(UsageChunk::Cut, &[DELTA, USAGE, DONE], &[DELTA, DONE].concat());
        check_stream(
            UsageChunk::Cut,
            &[": ping\r\n\r\n", DELTA, "data: x"],
            &[": ping\r\n\r\n", DELTA, "data: x"].concat(),
        );
    }

    #[test]
    fn members_go_into_the_usage_chunk_only() {
        let spliced = "data: {\"choices\":[],\"usage\":{\"total_tokens\":3},\"metrics\":{\"a\":1}}\n\n";
        check_stream(UsageChunk::Splice, &[DELTA, USAGE, DONE], &[DELTA, spliced, DONE].concat());
    }

    #[test]
    fn a_frame_too_long_to_hold_passes_unchanged() {
        let long = format!("data: {{\"x\":\"{}\"}}\n\n", "y".repeat(3 * HELD_BYTES_MAX));
        let stream = [long.as_str(), USAGE, DONE].concat();
        for cut in [1000, 65_536, 70_001, stream.len()] {
            let mut rewriter = StreamRewriter::new(UsageChunk::Cut);
            let mut out = Vec::new();
            for piece in stream.as_bytes().chunks(cut) {
                out.extend_from_slice(&rewriter.push(&Bytes::copy_from_slice(piece), &mut |_| None));
            }
            out.extend_from_slice(&rewriter.finish());
            assert_eq!(out, [long.as_str(), DONE].concat().as_bytes(), "cut every {cut} bytes");
        }
    }

    #[test]
    fn only_an_object_without_the_member_takes_it() {
        assert!(may_take_member(br#"{"a":1}"#, "m") && may_take_member(br#"{"m":null}"#, "m"));
        for other in [&br#"{"m":{}}"#[..], b"{\"choices\":[}", b"[]", b"\x1f\x8b}", b""] {
            assert!(!may_take_member(other, "m"));
        }
    }

    #[test]
    fn an_object_gets_its_members_last() {
        let check = |object: &str, expected: &str| {
            assert_eq!(splice_object(object.as_bytes(), "\"m\":1").unwrap(), expected.as_bytes());
        };
        check("{}", "{\"m\":1}");
        check("{\"a\":{}}\n", "{\"a\":{},\"m\":1}\n");
        check("{ \"a\" : 1 }", "{ \"a\" : 1 ,\"m\":1}");
        assert_eq!(splice_object(b"no object", "\"m\":1"), None);
    }
}
