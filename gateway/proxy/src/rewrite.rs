//! Byte-exact edits: ask for usage upstream, cut our own chunk out of the stream, splice objects in.
//!
//! Apart so that "the caller gets what the upstream sent" is one file to read. Edits insert, replace or leave
//! out a run of bytes; nothing is parsed and written again, so that big integers, key order, unknown fields and
//! white space survive. Must not know: sockets, time, how the inserted objects are made.

use std::borrow::Cow;
use std::collections::HashMap;

use bytes::{Bytes, BytesMut};
use memchr::memmem;
use pitot_measure::sse;
use serde::Deserialize;
use serde_json::value::RawValue;

use crate::request::{Edit, place_of};

/// Gives the body with the edits made, which must not overlap.
pub fn edited(body: &[u8], edits: &[&Edit]) -> Bytes {
    let mut edits = edits.to_vec();
    edits.sort_by_key(|edit| edit.place.start);
    let added: usize = edits.iter().map(|edit| edit.text.len()).sum();
    let mut out = BytesMut::with_capacity(body.len() + added);
    let mut copied = 0;
    for edit in edits {
        out.extend_from_slice(&body[copied..edit.place.start]);
        out.extend_from_slice(edit.text.as_bytes());
        copied = edit.place.end;
    }
    out.extend_from_slice(&body[copied..]);
    out.freeze()
}

/// What is changed in a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StreamEdit {
    /// The gateway asked for the usage chunk, the caller did not: leave it out.
    CutUsage,
    /// The usage chunk gets members at its end.
    SpliceUsage,
    /// The response inside the event that ends a Responses stream gets members at its end.
    SpliceResponse,
}

impl StreamEdit {
    /// Most of an unfinished frame that is held back to learn whether it is the one to be edited.
    fn held_bytes_max(self) -> usize {
        match self {
            // A usage chunk is well under 4 KiB; a longer frame is something else and passes on.
            StreamEdit::CutUsage | StreamEdit::SpliceUsage => 64 * 1024,
            // The event repeats the whole response.
            StreamEdit::SpliceResponse => sse::FRAME_BYTES_MAX,
        }
    }

    /// Words without which a frame is not the one.
    fn mark(self) -> &'static [u8] {
        match self {
            StreamEdit::CutUsage | StreamEdit::SpliceUsage => b"\"usage\"",
            StreamEdit::SpliceResponse => b"\"response\"",
        }
    }
}

/// A member that is added to a JSON object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    name: &'static str,
    json: String,
}

impl Member {
    /// `json` is the text of the value.
    pub fn new(name: &'static str, json: String) -> Self {
        Member { name, json }
    }
}

/// Makes the members for a frame that is edited.
pub type Members<'m> = &'m mut dyn FnMut() -> Vec<Member>;

/// Edits a stream of server-sent events as it passes. Bytes come out in order, each at most once.
#[derive(Debug)]
pub struct StreamRewriter {
    edit: StreamEdit,
    held: BytesMut,
    /// Inside a frame that grew past what is held back; it passes until it ends.
    passing: bool,
}

impl StreamRewriter {
    pub fn new(edit: StreamEdit) -> Self {
        StreamRewriter { edit, held: BytesMut::new(), passing: false }
    }

    /// Takes what a read brought, gives what may go on. `members` is called at most once per edited frame.
    pub fn push(&mut self, bytes: &Bytes, members: Members<'_>) -> Bytes {
        let marked = |bytes: &[u8]| memmem::find(bytes, self.edit.mark()).is_some();
        if self.held.is_empty() && !self.passing && ends_frame(bytes) && !marked(bytes) {
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
        if self.passing || self.held.len() > self.edit.held_bytes_max() {
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

    fn edit(&self, frame: &[u8], out: &mut BytesMut, members: Members<'_>) {
        let edited = match self.edit {
            StreamEdit::CutUsage => usage_chunk(frame).map(|_| Vec::new()),
            StreamEdit::SpliceUsage => {
                usage_chunk(frame).and_then(|data| splice_within(frame, &data, &members()))
            }
            StreamEdit::SpliceResponse => splice_response(frame, members),
        };
        out.extend_from_slice(edited.as_deref().unwrap_or(frame));
    }
}

/// The data of a frame that only carries usage.
fn usage_chunk(frame: &[u8]) -> Option<Cow<'_, [u8]>> {
    memmem::find(frame, b"\"usage\"")?;
    sse::data(frame).filter(|data| is_usage_chunk(data))
}

#[derive(Deserialize)]
struct ResponseEvent<'a> {
    #[serde(rename = "type")]
    kind: &'a str,
    #[serde(borrow)]
    response: &'a RawValue,
}

/// Puts the members into the response of the event that ends a Responses stream; None for any other frame.
fn splice_response(frame: &[u8], members: Members<'_>) -> Option<Vec<u8>> {
    let data = sse::data(frame)?;
    let event: ResponseEvent<'_> = serde_json::from_slice(&data).ok()?;
    if !matches!(event.kind, "response.completed" | "response.incomplete") {
        return None;
    }
    splice_within(frame, event.response.get().as_bytes(), &members())
}

/// Adds members to an object within a frame. It is found again as it stands there: data of several lines has been
/// joined anew and is left alone.
fn splice_within(frame: &[u8], object: &[u8], members: &[Member]) -> Option<Vec<u8>> {
    let start = memmem::find(frame, object)?;
    let spliced = splice_object(object, members)?;
    Some([&frame[..start], &spliced, &frame[start + object.len()..]].concat())
}

fn ends_frame(bytes: &[u8]) -> bool {
    bytes.ends_with(b"\n\n") || bytes.ends_with(b"\r\n\r\n") || bytes.ends_with(b"\r\r")
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
    let Ok(text) = std::str::from_utf8(data) else { return false };
    let Ok(chunk) = serde_json::from_str::<Chunk<'_>>(text) else { return false };
    chunk.choices.is_none_or(|choices| choices.is_empty())
        && chunk.usage.is_some_and(|usage| usage.get().starts_with('{'))
        && chunk.error.is_none()
}

/// Adds members as the last ones of a JSON object. Where one stands already it is kept, or takes the place of a null.
/// None if nothing is added or this is no object.
///
/// `object` may have white space behind its brace.
pub fn splice_object(object: &[u8], members: &[Member]) -> Option<Vec<u8>> {
    let text = std::str::from_utf8(object).ok()?;
    let present = serde_json::from_str::<HashMap<Cow<'_, str>, &RawValue>>(text).ok()?;
    let mut edits = Vec::new();
    let mut added = Vec::new();
    for Member { name, json } in members {
        match present.get(*name) {
            None => added.push(format!("\"{name}\":{json}")),
            Some(value) if value.get() == "null" => {
                edits.push(Edit { place: place_of(text, value), text: json.clone() });
            }
            Some(_) => {}
        }
    }
    if !added.is_empty() {
        let close = text.rfind('}')?;
        let comma = if present.is_empty() { "" } else { "," };
        edits.push(Edit { place: close..close, text: format!("{comma}{}", added.join(",")) });
    }
    let edits: Vec<&Edit> = edits.iter().collect();
    (!edits.is_empty()).then(|| edited(object, &edits).to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::{self, UsageWish};
    use pitot_measure::Endpoint;

    #[track_caller]
    fn check_ask(body: &str, expected: Option<&str>) {
        let request = request::parse(Endpoint::ChatCompletions, body.as_bytes()).unwrap();
        let asked = match &request.usage {
            UsageWish::Wanted | UsageWish::Unasked => None,
            UsageWish::NotWanted(edit) => Some(edited(body.as_bytes(), &[edit])),
        };
        assert_eq!(asked.as_deref().map(|b| std::str::from_utf8(b).unwrap()), expected, "{body}");
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
    fn check_stream(action: StreamEdit, frames: &[&str], expected: &str) {
        let stream = frames.concat();
        for cut in 1..=stream.len() {
            let mut rewriter = StreamRewriter::new(action);
            let mut out = Vec::new();
            for piece in stream.as_bytes().chunks(cut) {
                let mut members = || vec![Member::new("metrics", "{\"a\":1}".to_owned())];
                out.extend_from_slice(&rewriter.push(&Bytes::copy_from_slice(piece), &mut members));
            }
            out.extend_from_slice(&rewriter.finish());
            assert_eq!(String::from_utf8_lossy(&out), expected, "cut every {cut} bytes");
        }
    }

    #[test]
    fn exactly_the_usage_chunk_is_cut() {
        check_stream(StreamEdit::CutUsage, &[DELTA, USAGE, DONE], &[DELTA, DONE].concat());
        check_stream(
            StreamEdit::CutUsage,
            &[": ping\r\n\r\n", DELTA, "data: x"],
            &[": ping\r\n\r\n", DELTA, "data: x"].concat(),
        );
    }

    #[test]
    fn members_go_into_the_usage_chunk_only() {
        let spliced = "data: {\"choices\":[],\"usage\":{\"total_tokens\":3},\"metrics\":{\"a\":1}}\n\n";
        check_stream(StreamEdit::SpliceUsage, &[DELTA, USAGE, DONE], &[DELTA, spliced, DONE].concat());
    }

    #[test]
    fn members_go_into_the_response_of_the_last_event() {
        let delta = "event: response.output_text.delta\ndata: {\"type\":\"response.output_text.delta\",\"delta\":\"x\"}\n\n";
        let begun =
            "event: response.created\ndata: {\"type\":\"response.created\",\"response\":{\"id\":1}}\n\n";
        let ended = "event: response.completed\ndata: {\"response\": {\"a\":{}, \"b\" : 1 }, \"type\":\"response.completed\"}\n\n";
        let spliced = ended.replace("\"b\" : 1 }", "\"b\" : 1 ,\"metrics\":{\"a\":1}}");
        let expected = [begun, delta, &spliced].concat();
        check_stream(StreamEdit::SpliceResponse, &[begun, delta, ended], &expected);
    }

    #[test]
    fn a_frame_too_long_to_hold_passes_unchanged() {
        let long = format!("data: {{\"x\":\"{}\"}}\n\n", "y".repeat(3 * 64 * 1024));
        let stream = [long.as_str(), USAGE, DONE].concat();
        for cut in [1000, 65_536, 70_001, stream.len()] {
            let mut rewriter = StreamRewriter::new(StreamEdit::CutUsage);
            let mut out = Vec::new();
            for piece in stream.as_bytes().chunks(cut) {
                out.extend_from_slice(&rewriter.push(&Bytes::copy_from_slice(piece), &mut || Vec::new()));
            }
            out.extend_from_slice(&rewriter.finish());
            assert_eq!(out, [long.as_str(), DONE].concat().as_bytes(), "cut every {cut} bytes");
        }
    }

    #[test]
    fn an_object_gets_its_members_last_and_once() {
        let check = |object: &str, expected: Option<&str>| {
            let spliced = splice_object(object.as_bytes(), &[Member::new("m", "1".to_owned())]);
            assert_eq!(
                spliced.map(|bytes| String::from_utf8(bytes).unwrap()).as_deref(),
                expected,
                "{object}"
            );
        };
        check("{}", Some("{\"m\":1}"));
        check("{\"a\":{}}\n", Some("{\"a\":{},\"m\":1}\n"));
        check("{ \"a\" : 1 }", Some("{ \"a\" : 1 ,\"m\":1}"));
        check("{\"m\": null, \"a\":2}", Some("{\"m\": 1, \"a\":2}"));
        for unchanged in ["no object", "{\"m\":{}}", "[]", "{\"choices\":[}", ""] {
            check(unchanged, None);
        }
        assert_eq!(splice_object(b"{}", &[]), None);
        assert_eq!(splice_object(b"\x1f\x8b}", &[Member::new("m", "1".to_owned())]), None);
    }
}
