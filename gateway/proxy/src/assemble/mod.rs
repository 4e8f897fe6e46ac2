//! The frames of a stream → the one reply that the upstream would have given without streaming.
//!
//! Apart from `rewrite`, which never parses and writes again: here the reply does not exist before it is put
//! together. One file for each wire format with its own way of building up. Must not know: sessions, time.

mod chunks;
mod messages;
mod responses;

use bytes::{Bytes, BytesMut};
use pitot_measure::{Endpoint, sse};
use serde_json::{Map, Value};
use thiserror::Error;

/// The object of a JSON reply.
type Object = Map<String, Value>;

/// Builds one reply.
#[derive(Debug)]
pub struct Assembler {
    held: BytesMut,
    reply: Reply,
    failed: Option<Unassembled>,
}

#[derive(Debug)]
enum Reply {
    Chunks(chunks::Chunks),
    Responses(responses::Response),
    Messages(messages::Message),
}

/// Why there is no reply.
#[derive(Debug, Clone, PartialEq, Error)]
pub enum Unassembled {
    /// The upstream told of an error inside the stream; the body is what it said.
    #[error("the stream brought an error")]
    ErrorEvent { status: u16, body: Value },
    #[error("the stream ended before the reply was complete")]
    Incomplete,
    #[error("the stream brought what cannot be understood: {0}")]
    Malformed(String),
}

impl Assembler {
    /// None for an endpoint whose replies do not stream.
    pub fn new(endpoint: Endpoint) -> Option<Self> {
        let reply = match endpoint {
            Endpoint::ChatCompletions => Reply::Chunks(chunks::Chunks::new(chunks::Kind::Chat)),
            Endpoint::Completions => Reply::Chunks(chunks::Chunks::new(chunks::Kind::Completion)),
            Endpoint::Responses => Reply::Responses(responses::Response::default()),
            Endpoint::Messages => Reply::Messages(messages::Message::default()),
            Endpoint::Embeddings | Endpoint::Other => return None,
        };
        Some(Assembler { held: BytesMut::new(), reply, failed: None })
    }

    /// Takes what a read brought. After a failure the rest is let go.
    pub fn push(&mut self, bytes: &[u8]) {
        self.held.extend_from_slice(bytes);
        while let Some(end) = sse::frame_end(&self.held) {
            let frame = self.held.split_to(end);
            self.frame(&frame);
        }
    }

    /// Gives the reply once the upstream has ended.
    pub fn finish(mut self) -> Result<Bytes, Unassembled> {
        // A last frame without its blank line; clients take it too.
        let rest = self.held.split();
        self.frame(&rest);
        if let Some(failed) = self.failed {
            return Err(failed);
        }
        let reply = match self.reply {
            Reply::Chunks(chunks) => chunks.finish(),
            Reply::Responses(response) => return response.finish().ok_or(Unassembled::Incomplete),
            Reply::Messages(message) => message.finish(),
        };
        let reply = reply.ok_or(Unassembled::Incomplete)?;
        let text = serde_json::to_vec(&reply).map_err(|error| Unassembled::Malformed(error.to_string()))?;
        Ok(text.into())
    }

    fn frame(&mut self, frame: &[u8]) {
        let Some(data) = sse::data(frame) else { return };
        let data = data.trim_ascii();
        if self.failed.is_some() || data.is_empty() || data == b"\"\"" {
            return;
        }
        if let Reply::Responses(response) = &mut self.reply {
            // Its last event holds the whole reply, which goes out as it came.
            if let Err(failed) = response.event(data) {
                self.failed = Some(failed);
            }
            return;
        }
        if data == b"[DONE]" {
            if let Reply::Chunks(chunks) = &mut self.reply {
                chunks.done();
            }
            return;
        }
        let object: Object = match serde_json::from_slice(data) {
            Ok(object) => object,
            Err(error) => {
                self.failed = Some(Unassembled::Malformed(error.to_string()));
                return;
            }
        };
        if let Some(failed) = error_event(&object) {
            self.failed = Some(failed);
            return;
        }
        match &mut self.reply {
            Reply::Chunks(chunks) => chunks.chunk(object),
            Reply::Messages(message) => message.event(object),
            Reply::Responses(_) => {}
        }
    }
}

/// The failure that an error event tells of. Its status is the code in the error where that is one.
fn error_event(object: &Object) -> Option<Unassembled> {
    let said = |name: &str| object.get(name).is_some_and(|value| *value == "error");
    let error = object.get("error").filter(|error| !error.is_null());
    if error.is_none() && !said("object") && !said("type") {
        return None;
    }
    let code = error.and_then(|error| error.get("code")).or_else(|| object.get("code"));
    let status = code.and_then(Value::as_u64).and_then(|code| u16::try_from(code).ok());
    let status = status.filter(|status| (400..600).contains(status)).unwrap_or(502);
    Some(Unassembled::ErrorEvent { status, body: Value::Object(object.clone()) })
}

/// Appends a text to a member that is one, or makes it one.
fn append(object: &mut Object, name: &str, text: &str) {
    match object.get_mut(name) {
        Some(Value::String(so_far)) => so_far.push_str(text),
        Some(_) | None => {
            object.insert(name.to_owned(), Value::String(text.to_owned()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[track_caller]
    fn check(endpoint: Endpoint, events: &[Value], expected: Result<Value, Unassembled>) {
        let mut stream: String = events.iter().map(|event| format!("data: {event}\n\n")).collect();
        if matches!(endpoint, Endpoint::ChatCompletions | Endpoint::Completions) {
            stream.push_str("data: [DONE]\n\n");
        }
        for cut in [1, 7, stream.len()] {
            let mut assembler = Assembler::new(endpoint).unwrap();
            stream.as_bytes().chunks(cut).for_each(|bytes| assembler.push(bytes));
            let reply = assembler.finish().map(|bytes| serde_json::from_slice::<Value>(&bytes).unwrap());
            assert_eq!(reply, expected, "cut every {cut} bytes");
        }
    }

    fn chunk(choice: Value) -> Value {
        json!({"id": "c1", "object": "chat.completion.chunk", "created": 7, "model": "m", "choices": [choice]})
    }

    #[test]
    fn text_and_reasoning_of_several_choices() {
        let delta =
            |index: u32, delta: Value| chunk(json!({"index": index, "delta": delta, "finish_reason": null}));
        let end =
            |index: u32, reason: &str| chunk(json!({"index": index, "delta": {}, "finish_reason": reason}));
        let usage = json!({"id": "c1", "choices": [], "usage": {"total_tokens": 9}});
        let events = [
            delta(1, json!({"role": "assistant", "content": ""})),
            delta(0, json!({"role": "assistant", "content": ""})),
            delta(0, json!({"reasoning_content": "hm"})),
            delta(1, json!({"content": "b"})),
            delta(0, json!({"reasoning_content": "m"})),
            delta(0, json!({"content": "a"})),
            end(1, "length"),
            end(0, "stop"),
            usage,
        ];
        let expected = json!({
            "id": "c1", "object": "chat.completion", "created": 7, "model": "m",
            "choices": [
                {"index": 0, "message": {"role": "assistant", "content": "a", "reasoning_content": "hmm"}, "finish_reason": "stop"},
                {"index": 1, "message": {"role": "assistant", "content": "b"}, "finish_reason": "length"},
            ],
            "usage": {"total_tokens": 9},
        });
        check(Endpoint::ChatCompletions, &events, Ok(expected));
    }

    #[test]
    fn tool_calls_and_log_probabilities_grow() {
        let calls =
            |calls: Value| chunk(json!({"index": 0, "delta": {"tool_calls": calls}, "finish_reason": null}));
        let events = [
            chunk(
                json!({"index": 0, "delta": {"role": "assistant", "content": null}, "logprobs": {"content": [{"token": "x"}]}}),
            ),
            calls(
                json!([{"index": 0, "id": "t0", "type": "function", "function": {"name": "f", "arguments": ""}}]),
            ),
            calls(
                json!([{"index": 0, "function": {"arguments": "{\"a\""}}, {"index": 1, "id": "t1", "type": "function", "function": {"name": "g", "arguments": "{}"}}]),
            ),
            calls(json!([{"index": 0, "function": {"arguments": ":1}"}}])),
            chunk(
                json!({"index": 0, "delta": {}, "logprobs": {"content": [{"token": "y"}]}, "finish_reason": "tool_calls", "stop_reason": 5}),
            ),
        ];
        let expected = json!({
            "id": "c1", "object": "chat.completion", "created": 7, "model": "m",
            "choices": [{
                "index": 0,
                "message": {"role": "assistant", "content": null, "tool_calls": [
                    {"id": "t0", "type": "function", "function": {"name": "f", "arguments": "{\"a\":1}"}},
                    {"id": "t1", "type": "function", "function": {"name": "g", "arguments": "{}"}},
                ]},
                "logprobs": {"content": [{"token": "x"}, {"token": "y"}]},
                "finish_reason": "tool_calls", "stop_reason": 5,
            }],
        });
        check(Endpoint::ChatCompletions, &events, Ok(expected));
    }

    #[test]
    fn completions_join_their_texts() {
        let piece = |text: &str, finish: Value, logprobs: Value| json!({"id": "c", "object": "text_completion", "choices": [{"index": 0, "text": text, "logprobs": logprobs, "finish_reason": finish}]});
        let events = [
            piece("a", Value::Null, json!({"tokens": ["a"], "text_offset": [0]})),
            piece("b", json!("stop"), json!({"tokens": ["b"], "text_offset": [1]})),
        ];
        let expected = json!({"id": "c", "object": "text_completion", "choices": [
            {"index": 0, "text": "ab", "logprobs": {"tokens": ["a", "b"], "text_offset": [0, 1]}, "finish_reason": "stop"},
        ]});
        check(Endpoint::Completions, &events, Ok(expected));
    }

    #[test]
    fn a_message_is_built_block_by_block() {
        let events = [
            json!({"type": "message_start", "message": {"id": "m", "content": [], "stop_reason": null, "usage": {"input_tokens": 3, "output_tokens": 1}}}),
            json!({"type": "ping"}),
            json!({"type": "content_block_start", "index": 0, "content_block": {"type": "thinking", "thinking": "", "signature": ""}}),
            json!({"type": "content_block_delta", "index": 0, "delta": {"type": "thinking_delta", "thinking": "hm"}}),
            json!({"type": "content_block_delta", "index": 0, "delta": {"type": "signature_delta", "signature": "s"}}),
            json!({"type": "content_block_stop", "index": 0}),
            json!({"type": "content_block_start", "index": 1, "content_block": {"type": "text", "text": ""}}),
            json!({"type": "content_block_delta", "index": 1, "delta": {"type": "text_delta", "text": "a"}}),
            json!({"type": "content_block_delta", "index": 1, "delta": {"type": "text_delta", "text": "b"}}),
            json!({"type": "content_block_start", "index": 2, "content_block": {"type": "tool_use", "id": "t", "name": "f", "input": {}}}),
            json!({"type": "content_block_delta", "index": 2, "delta": {"type": "input_json_delta", "partial_json": "{\"x\""}}),
            json!({"type": "content_block_delta", "index": 2, "delta": {"type": "input_json_delta", "partial_json": ":1}"}}),
            json!({"type": "content_block_stop", "index": 2}),
            json!({"type": "message_delta", "delta": {"stop_reason": "tool_use"}, "usage": {"output_tokens": 9}}),
            json!({"type": "message_stop"}),
        ];
        let expected = json!({
            "id": "m", "stop_reason": "tool_use", "usage": {"input_tokens": 3, "output_tokens": 9},
            "content": [
                {"type": "thinking", "thinking": "hm", "signature": "s"},
                {"type": "text", "text": "ab"},
                {"type": "tool_use", "id": "t", "name": "f", "input": {"x": 1}},
            ],
        });
        check(Endpoint::Messages, &events, Ok(expected));
    }

    #[test]
    fn a_response_is_taken_as_it_came() {
        let response = json!({"id": "r", "status": "completed", "output": []});
        let created = json!({"type": "response.created", "response": {"id": "r", "status": "in_progress"}});
        let delta = json!({"type": "response.output_text.delta", "delta": "a"});
        let ended = json!({"type": "response.completed", "response": response});
        check(Endpoint::Responses, &[created.clone(), delta.clone(), ended], Ok(response));
        check(Endpoint::Responses, &[created, delta], Err(Unassembled::Incomplete));
    }

    #[test]
    fn what_does_not_end_well_is_no_reply() {
        let begun = chunk(json!({"index": 0, "delta": {"content": "a"}, "finish_reason": null}));
        let mut assembler = Assembler::new(Endpoint::ChatCompletions).unwrap();
        assembler.push(format!("data: {begun}\n\n").as_bytes());
        assert_eq!(assembler.finish(), Err(Unassembled::Incomplete));
        let error = json!({"error": {"message": "m", "code": 503}});
        let told = Unassembled::ErrorEvent { status: 503, body: error.clone() };
        check(Endpoint::ChatCompletions, &[begun.clone(), error], Err(told));
        let odd = json!({"error": {"message": "m", "code": "e"}});
        check(
            Endpoint::Completions,
            std::slice::from_ref(&odd),
            Err(Unassembled::ErrorEvent { status: 502, body: odd.clone() }),
        );
    }
}
