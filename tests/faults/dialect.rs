//! The four wire formats as texts: requests, frames of a stream, whole replies.
//!
//! Apart from the cases so that a situation is said once for all formats. Texts are as public servers send them.
//! Must not know: what anything measures.

use super::script::{Play, Whose};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dialect {
    Chat,
    Completions,
    Responses,
    Messages,
    Embeddings,
    /// A path that nothing generates on.
    Plain,
}

use Dialect::{Chat, Completions, Embeddings, Messages, Plain, Responses};

/// The formats that generate.
pub const GENERATING: [Dialect; 4] = [Chat, Completions, Responses, Messages];
/// Those whose usage in a stream has to be asked for.
pub const ASKED: [Dialect; 2] = [Chat, Completions];
/// Those that carry reasoning.
pub const REASONING: [Dialect; 3] = [Chat, Responses, Messages];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    Stream,
    Whole,
}

pub const MODES: [Mode; 2] = [Mode::Stream, Mode::Whole];

impl Mode {
    pub fn name(self) -> &'static str {
        match self {
            Mode::Stream => "stream",
            Mode::Whole => "whole",
        }
    }
}

/// Why an answer ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Finish {
    Stop,
    Length,
    Tool,
    Filter,
}

/// Token counts as a server would report them; input includes what was cached.
#[derive(Debug, Clone, Copy, Default)]
pub struct Usage {
    pub input: u64,
    pub output: u64,
    pub reasoning: Option<u64>,
    pub cached: Option<u64>,
}

pub fn usage(input: u64, output: u64) -> Usage {
    Usage { input, output, reasoning: None, cached: None }
}

/// `data: …` and its blank line.
pub fn frame(data: &str) -> String {
    format!("data: {data}\n\n")
}

/// A frame with an event's name, as Responses and Messages have it.
pub fn named_frame(event: &str, data: &str) -> String {
    format!("event: {event}\ndata: {data}\n\n")
}

pub fn chat_delta(delta: &str) -> String {
    frame(&chat_chunk(&format!(r#"{{"index":0,"delta":{delta},"finish_reason":null}}"#), ""))
}

/// A chunk with these choices and these further members, each with a leading comma.
pub fn chat_chunk(choices: &str, more: &str) -> String {
    format!(
        r#"{{"id":"c-1","object":"chat.completion.chunk","created":1700000000,"model":"m","choices":[{choices}]{more}}}"#
    )
}

pub fn completions_chunk(choices: &str, more: &str) -> String {
    format!(
        r#"{{"id":"t-1","object":"text_completion","created":1700000000,"model":"m","choices":[{choices}]{more}}}"#
    )
}

fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

impl Usage {
    pub fn json(&self, dialect: Dialect) -> String {
        let Usage { input, output, reasoning, cached } = self;
        let details = |name: &str, key: &str, value: &Option<u64>| {
            value.map(|value| format!(r#","{name}":{{"{key}":{value}}}"#)).unwrap_or_default()
        };
        match dialect {
            Chat | Completions | Embeddings | Plain => format!(
                r#"{{"prompt_tokens":{input},"completion_tokens":{output},"total_tokens":{}{}{}}}"#,
                input + output,
                details("prompt_tokens_details", "cached_tokens", cached),
                details("completion_tokens_details", "reasoning_tokens", reasoning),
            ),
            Responses => format!(
                r#"{{"input_tokens":{input}{},"output_tokens":{output}{},"total_tokens":{}}}"#,
                details("input_tokens_details", "cached_tokens", cached),
                details("output_tokens_details", "reasoning_tokens", reasoning),
                input + output,
            ),
            Messages => {
                let read = cached.map(|cached| format!(r#","cache_read_input_tokens":{cached}"#));
                format!(
                    r#"{{"input_tokens":{}{},"output_tokens":{output}}}"#,
                    input - cached.unwrap_or(0),
                    read.unwrap_or_default()
                )
            }
        }
    }
}

impl Finish {
    fn word(self, dialect: Dialect) -> &'static str {
        match (dialect, self) {
            (Messages, Finish::Stop) => "end_turn",
            (Messages, Finish::Length) => "max_tokens",
            (Messages, Finish::Tool) => "tool_use",
            (Messages, Finish::Filter) => "refusal",
            (_, Finish::Stop) => "stop",
            (_, Finish::Length) => "length",
            (_, Finish::Tool) => "tool_calls",
            (_, Finish::Filter) => "content_filter",
        }
    }
}

impl Dialect {
    pub fn name(self) -> &'static str {
        match self {
            Chat => "chat",
            Completions => "completions",
            Responses => "responses",
            Messages => "messages",
            Embeddings => "embeddings",
            Plain => "plain",
        }
    }

    pub fn path(self) -> &'static str {
        match self {
            Chat => "/v1/chat/completions",
            Completions => "/v1/completions",
            Responses => "/v1/responses",
            Messages => "/v1/messages",
            Embeddings => "/v1/embeddings",
            Plain => "/v1/models",
        }
    }

    /// The body of a request with these further members, each with a leading comma.
    pub fn request(self, mode: Mode, members: &str) -> String {
        let what = match self {
            Chat => r#""messages":[{"role":"user","content":"hi"}]"#,
            Completions => r#""prompt":"hi""#,
            Responses | Embeddings => r#""input":"hi""#,
            Messages => r#""max_tokens":64,"messages":[{"role":"user","content":"hi"}]"#,
            Plain => return String::new(),
        };
        let stream = if mode == Mode::Stream { r#","stream":true"# } else { "" };
        format!(r#"{{"model":"@MODEL@",{what}{stream}{members}}}"#)
    }

    /// What a server sends before the first token.
    pub fn open(self, usage: &Usage) -> String {
        match self {
            Chat => chat_delta(r#"{"role":"assistant","content":""}"#),
            Completions => self.text(""),
            Responses => [
                named_frame("response.created", r#"{"type":"response.created","sequence_number":0,"response":{"id":"r-1","object":"response","status":"in_progress","output":[],"usage":null}}"#),
                named_frame("response.in_progress", r#"{"type":"response.in_progress","sequence_number":1,"response":{"id":"r-1","object":"response","status":"in_progress","output":[],"usage":null}}"#),
                named_frame("response.output_item.added", r#"{"type":"response.output_item.added","sequence_number":2,"output_index":0,"item":{"id":"i-1","type":"message","role":"assistant","status":"in_progress","content":[]}}"#),
                named_frame("response.content_part.added", r#"{"type":"response.content_part.added","sequence_number":3,"item_id":"i-1","output_index":0,"content_index":0,"part":{"type":"output_text","text":"","annotations":[]}}"#),
            ]
            .concat(),
            Messages => [
                named_frame("message_start", &format!(r#"{{"type":"message_start","message":{{"id":"m-1","type":"message","role":"assistant","model":"m","content":[],"stop_reason":null,"usage":{}}}}}"#, Usage { output: 1, ..*usage }.json(Messages))),
                named_frame("content_block_start", r#"{"type":"content_block_start","index":0,"content_block":{"type":"text","text":""}}"#),
                named_frame("ping", r#"{"type":"ping"}"#),
            ]
            .concat(),
            Embeddings | Plain => String::new(),
        }
    }

    pub fn text(self, text: &str) -> String {
        let text = quoted(text);
        match self {
            Chat => chat_delta(&format!(r#"{{"content":{text}}}"#)),
            Completions => frame(&completions_chunk(
                &format!(r#"{{"index":0,"text":{text},"logprobs":null,"finish_reason":null}}"#),
                "",
            )),
            Responses => named_frame(
                "response.output_text.delta",
                &format!(
                    r#"{{"type":"response.output_text.delta","sequence_number":4,"item_id":"i-1","output_index":0,"content_index":0,"delta":{text}}}"#
                ),
            ),
            Messages => named_frame(
                "content_block_delta",
                &format!(
                    r#"{{"type":"content_block_delta","index":0,"delta":{{"type":"text_delta","text":{text}}}}}"#
                ),
            ),
            Embeddings | Plain => String::new(),
        }
    }

    pub fn reasoning(self, text: &str) -> String {
        let text = quoted(text);
        match self {
            Chat => chat_delta(&format!(r#"{{"reasoning_content":{text}}}"#)),
            Responses => named_frame(
                "response.reasoning_text.delta",
                &format!(
                    r#"{{"type":"response.reasoning_text.delta","sequence_number":4,"item_id":"i-0","output_index":0,"content_index":0,"delta":{text}}}"#
                ),
            ),
            Messages => named_frame(
                "content_block_delta",
                &format!(
                    r#"{{"type":"content_block_delta","index":0,"delta":{{"type":"thinking_delta","thinking":{text}}}}}"#
                ),
            ),
            Completions | Embeddings | Plain => String::new(),
        }
    }

    /// A fragment of a tool call's arguments; the first one brings the name with it where the format has it there.
    pub fn tool(self, fragment: &str) -> String {
        let fragment = quoted(fragment);
        match self {
            Chat => chat_delta(&format!(
                r#"{{"tool_calls":[{{"index":0,"id":"call-1","type":"function","function":{{"name":"look","arguments":{fragment}}}}}]}}"#
            )),
            Responses => named_frame(
                "response.function_call_arguments.delta",
                &format!(
                    r#"{{"type":"response.function_call_arguments.delta","sequence_number":5,"item_id":"i-1","output_index":0,"delta":{fragment}}}"#
                ),
            ),
            Messages => named_frame(
                "content_block_delta",
                &format!(
                    r#"{{"type":"content_block_delta","index":0,"delta":{{"type":"input_json_delta","partial_json":{fragment}}}}}"#
                ),
            ),
            Completions | Embeddings | Plain => String::new(),
        }
    }

    pub fn finish(self, finish: Finish) -> String {
        let word = finish.word(self);
        match self {
            Chat => {
                frame(&chat_chunk(&format!(r#"{{"index":0,"delta":{{}},"finish_reason":"{word}"}}"#), ""))
            }
            Completions => frame(&completions_chunk(
                &format!(r#"{{"index":0,"text":"","logprobs":null,"finish_reason":"{word}"}}"#),
                "",
            )),
            Responses | Messages | Embeddings | Plain => String::new(),
        }
    }

    /// The chunk without choices that carries usage.
    pub fn usage_chunk(self, usage: &Usage) -> String {
        let more = format!(r#","usage":{}"#, usage.json(self));
        match self {
            Chat => frame(&chat_chunk("", &more)),
            Completions => frame(&completions_chunk("", &more)),
            Responses | Messages | Embeddings | Plain => String::new(),
        }
    }

    /// Everything behind the last token, in frames: the usage chunk of a server that was asked is marked.
    pub fn close(self, finish: Finish, usage: &Usage) -> Vec<(String, Whose)> {
        let callers = |text: String| (text, Whose::Callers);
        match self {
            Chat | Completions => vec![
                callers(self.finish(finish)),
                (self.usage_chunk(usage), Whose::IfAsked),
                callers(frame("[DONE]")),
            ],
            Responses => vec![callers(self.terminal(finish, usage))],
            Messages => vec![
                callers(named_frame("content_block_stop", r#"{"type":"content_block_stop","index":0}"#)),
                callers(self.message_delta(finish, &usage.json(Messages))),
                callers(self.terminal(finish, usage)),
            ],
            Embeddings | Plain => Vec::new(),
        }
    }

    pub fn message_delta(self, finish: Finish, usage: &str) -> String {
        let word = finish.word(Messages);
        named_frame(
            "message_delta",
            &format!(
                r#"{{"type":"message_delta","delta":{{"stop_reason":"{word}","stop_sequence":null}},"usage":{usage}}}"#
            ),
        )
    }

    /// The event that ends the protocol.
    pub fn terminal(self, finish: Finish, usage: &Usage) -> String {
        match self {
            Chat | Completions => frame("[DONE]"),
            Responses => {
                let (status, details) = response_status(finish);
                let kind = format!("response.{status}");
                named_frame(
                    &kind,
                    &format!(
                        r#"{{"type":"{kind}","sequence_number":9,"response":{{"id":"r-1","object":"response","status":"{status}"{details},"output":[{{"id":"i-1","type":"message","role":"assistant","content":[{{"type":"output_text","text":"hello","annotations":[]}}]}}],"usage":{}}}}}"#,
                        usage.json(Responses)
                    ),
                )
            }
            Messages => named_frame("message_stop", r#"{"type":"message_stop"}"#),
            Embeddings | Plain => String::new(),
        }
    }

    /// A whole reply.
    pub fn whole(self, text: &str, finish: Finish, usage: &Usage) -> String {
        let text = quoted(text);
        match self {
            Chat => self.whole_chat(&format!(r#"{{"role":"assistant","content":{text}}}"#), finish, &usage.json(Chat)),
            Completions => format!(r#"{{"id":"t-1","object":"text_completion","created":1700000000,"model":"m","choices":[{{"index":0,"text":{text},"logprobs":null,"finish_reason":"{}"}}],"usage":{}}}"#, finish.word(self), usage.json(self)),
            Responses => self.whole_response(&format!(r#"{{"id":"i-1","type":"message","role":"assistant","content":[{{"type":"output_text","text":{text},"annotations":[]}}]}}"#), finish, usage),
            Messages => self.whole_message(&format!(r#"{{"type":"text","text":{text}}}"#), finish, &usage.json(Messages)),
            Embeddings => format!(r#"{{"object":"list","data":[{{"object":"embedding","index":0,"embedding":[0.5,-0.25]}}],"model":"m","usage":{{"prompt_tokens":{},"total_tokens":{}}}}}"#, usage.input, usage.input),
            Plain => r#"{"object":"list","data":[{"id":"m","object":"model"}]}"#.to_owned(),
        }
    }

    pub fn whole_chat(self, message: &str, finish: Finish, usage: &str) -> String {
        format!(
            r#"{{"id":"c-1","object":"chat.completion","created":1700000000,"model":"m","choices":[{{"index":0,"message":{message},"finish_reason":"{}"}}],"usage":{usage}}}"#,
            finish.word(Chat)
        )
    }

    pub fn whole_response(self, output: &str, finish: Finish, usage: &Usage) -> String {
        let (status, details) = response_status(finish);
        format!(
            r#"{{"id":"r-1","object":"response","status":"{status}"{details},"model":"m","output":[{output}],"usage":{}}}"#,
            usage.json(Responses)
        )
    }

    pub fn whole_message(self, content: &str, finish: Finish, usage: &str) -> String {
        format!(
            r#"{{"id":"m-1","type":"message","role":"assistant","model":"m","content":[{content}],"stop_reason":"{}","stop_sequence":null,"usage":{usage}}}"#,
            finish.word(Messages)
        )
    }

    /// An error event as servers of this format send it.
    pub fn error(self) -> String {
        match self {
            Chat | Completions | Embeddings | Plain => frame(
                r#"{"error":{"message":"the GPU is gone","type":"server_error","param":null,"code":500}}"#,
            ),
            Responses => named_frame(
                "error",
                r#"{"type":"error","sequence_number":7,"code":"server_error","message":"the GPU is gone","param":null}"#,
            ),
            Messages => named_frame(
                "error",
                r#"{"type":"error","error":{"type":"overloaded_error","message":"the GPU is gone"}}"#,
            ),
        }
    }

    /// A whole error body.
    pub fn error_body(self) -> &'static str {
        match self {
            Messages => r#"{"type":"error","error":{"type":"api_error","message":"no,  not now"}}"#,
            Chat | Completions | Responses | Embeddings | Plain => {
                r#"{"error":{"message":"no,  not now","type":"server_error","param":null,"code":"x"}}"#
            }
        }
    }
}

/// The word for a response's end, and the member that explains it.
fn response_status(finish: Finish) -> (&'static str, &'static str) {
    match finish {
        Finish::Stop | Finish::Tool => ("completed", ""),
        Finish::Length => ("incomplete", r#","incomplete_details":{"reason":"max_output_tokens"}"#),
        Finish::Filter => ("incomplete", r#","incomplete_details":{"reason":"content_filter"}"#),
    }
}

/// Streams in the words of a dialect.
impl Play {
    pub fn open(self, dialect: Dialect, usage: &Usage) -> Play {
        let text = dialect.open(usage);
        if text.is_empty() { self } else { self.send(text) }
    }

    pub fn text(self, dialect: Dialect, text: &str) -> Play {
        self.send(dialect.text(text))
    }

    pub fn reasoning(self, dialect: Dialect, text: &str) -> Play {
        self.send(dialect.reasoning(text))
    }

    /// All that follows the last token, each frame in a write of its own, and the end of the body.
    pub fn close_with(self, dialect: Dialect, finish: Finish, usage: &Usage) -> Play {
        self.closing(dialect, finish, usage).end()
    }

    /// The same without the end of the body.
    pub fn closing(self, dialect: Dialect, finish: Finish, usage: &Usage) -> Play {
        dialect.close(finish, usage).into_iter().fold(self, |play, (text, whose)| match whose {
            Whose::Callers => play.send(text),
            Whose::IfAsked => play.if_asked(text),
        })
    }
}

/// A plain answer of three texts, or whole.
pub fn answer(dialect: Dialect, mode: Mode, counts: &Usage) -> Play {
    match mode {
        Mode::Whole => Play::json(200, dialect.whole("hello there.", Finish::Stop, counts)),
        Mode::Stream => Play::sse()
            .open(dialect, counts)
            .text(dialect, "hello")
            .text(dialect, " there")
            .text(dialect, ".")
            .close_with(dialect, Finish::Stop, counts),
    }
}
