//! What a frame or a whole reply says, in words common to all wire formats.
//!
//! Apart from the observer so that a new wire format is one more file with the same four parts: delta, usage,
//! finish, error. Must not know: time, outcomes.

mod json;
mod openai_chat;
mod openai_completions;
mod usage;

use std::borrow::Cow;

use crate::named::named;
use crate::request::Endpoint;
pub use usage::Usage;

/// The wire formats.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dialect {
    OpenAiChat,
    OpenAiCompletions,
}

/// A payload that is not JSON of the expected shape.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Malformed;

/// What one frame, or one reply that does not stream, says.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Frame<'a> {
    pub deltas: Vec<Delta<'a>>,
    /// A usage object with a count in it.
    pub usage: Option<Usage>,
    pub error: bool,
}

/// What a frame adds to one choice.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Delta<'a> {
    pub choice: u32,
    /// A reasoning field holds something.
    pub reasoning: bool,
    /// Content text; may hold inline reasoning.
    pub text: Cow<'a, str>,
    /// Body payload that is not text: tool call, refusal, audio.
    pub body: bool,
    pub finish: Option<Finish>,
}

named! {
    /// Why a choice ended.
    pub enum Finish {
        Stop = "stop": "a stop token or stop string",
        Length = "length": "the token limit or the context's end",
        ToolCalls = "tool_calls": "a call of a tool or function",
        ContentFilter = "content_filter": "a filter",
        Abort = "abort": "the server gave up, such as by a shutdown",
        Error = "error": "the server failed; counts as an error event",
        Repetition = "repetition": "the server saw the answer repeat itself",
        Other = "other": "a word that is not known here",
    }
}

impl Finish {
    /// Reads `finish_reason`, with the words of several servers.
    pub fn of(text: &str) -> Self {
        match text {
            "stop" | "eos" | "eos_token" | "stop_sequence" => Finish::Stop,
            "length" | "max_tokens" | "model_length" => Finish::Length,
            "tool_calls" | "function_call" => Finish::ToolCalls,
            "content_filter" => Finish::ContentFilter,
            "abort" => Finish::Abort,
            "error" => Finish::Error,
            "repetition" => Finish::Repetition,
            _ => Finish::Other,
        }
    }
}

/// The payload that ends a stream of either dialect.
pub const DONE: &[u8] = b"[DONE]";

impl Dialect {
    /// The wire format of an endpoint. None where replies are not read.
    pub fn of(endpoint: Endpoint) -> Option<Self> {
        match endpoint {
            Endpoint::ChatCompletions => Some(Dialect::OpenAiChat),
            Endpoint::Completions => Some(Dialect::OpenAiCompletions),
            Endpoint::Responses | Endpoint::Messages | Endpoint::Embeddings | Endpoint::Other => None,
        }
    }

    /// Reads the data of one frame of a stream.
    pub fn frame(self, data: &[u8]) -> Result<Frame<'_>, Malformed> {
        object(data)?;
        match self {
            Dialect::OpenAiChat => openai_chat::frame(data),
            Dialect::OpenAiCompletions => openai_completions::frame(data),
        }
    }

    /// Reads a whole reply that does not stream.
    pub fn body(self, body: &[u8]) -> Result<Frame<'_>, Malformed> {
        object(body)?;
        match self {
            Dialect::OpenAiChat => openai_chat::body(body),
            Dialect::OpenAiCompletions => openai_completions::body(body),
        }
    }
}

/// The parser would take a list for an object whose members come in order.
fn object(json: &[u8]) -> Result<(), Malformed> {
    if json.trim_ascii_start().starts_with(b"{") { Ok(()) } else { Err(Malformed) }
}

/// Reads the usage of a reply that generates nothing, such as embeddings.
pub fn usage_of(body: &[u8]) -> Option<Usage> {
    usage::of_body(body)
}
