//! What a frame or a whole reply says, in words common to all wire formats.
//!
//! Apart from the observer so that a new wire format is one more file with the same four parts: delta, usage,
//! finish, error. Nothing is collected: what is said is handed on as it is read, so that a frame costs no
//! allocation. Must not know: time, outcomes.

mod anthropic_messages;
mod openai_chat;
mod openai_chunk;
mod openai_completions;
mod openai_responses;
mod usage;

use crate::engine_timing::UpstreamTiming;
use crate::json::{self, Malformed, Text};
use crate::named::named;
use crate::request::Endpoint;
pub use usage::Usage;

/// The wire formats.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dialect {
    OpenAiChat,
    OpenAiCompletions,
    OpenAiResponses,
    AnthropicMessages,
}

/// One thing that a frame, or a reply that does not stream, says.
#[derive(Debug, Clone, Copy)]
pub enum Said<'a> {
    Delta(Delta<'a>),
    /// Something that a terminal event repeats: news only if no delta brought it before.
    Restated(Delta<'a>),
    /// Counts, the latest ones so far.
    Usage(Usage),
    /// Counts that come before the answer and do not end it.
    UsageAhead(Usage),
    /// The server's own timing.
    Timing(UpstreamTiming),
    Error,
    /// The event that ends the protocol.
    End,
}

/// Who listens to what is said.
pub type Listener<'l, 'a> = dyn FnMut(Said<'a>) + 'l;

/// What a frame adds to one choice.
#[derive(Debug, Clone, Copy, Default)]
pub struct Delta<'a> {
    pub choice: u32,
    /// A reasoning field holds something.
    pub reasoning: bool,
    /// Content text; may hold inline reasoning.
    pub text: Text<'a>,
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

/// Longest word that is looked at where a finish or a type is said.
const WORD_BYTES_MAX: usize = 64;

impl Finish {
    /// Reads `finish_reason` and its kin, with the words of several servers. None if it is empty.
    pub fn of(text: Text<'_>) -> Option<Self> {
        if text.is_empty() {
            return None;
        }
        Some(match text.within(&mut [0; WORD_BYTES_MAX]) {
            b"stop" | b"eos" | b"eos_token" | b"stop_sequence" | b"end_turn" => Finish::Stop,
            b"length"
            | b"max_tokens"
            | b"model_length"
            | b"max_output_tokens"
            | b"model_context_window_exceeded" => Finish::Length,
            b"tool_calls" | b"function_call" | b"tool_use" => Finish::ToolCalls,
            b"content_filter" | b"refusal" => Finish::ContentFilter,
            b"abort" => Finish::Abort,
            b"error" => Finish::Error,
            b"repetition" => Finish::Repetition,
            _ => Finish::Other,
        })
    }
}

/// The payload that ends a stream of chunks.
pub const DONE: &[u8] = b"[DONE]";

/// How a stream of a wire format ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ends {
    /// With every choice's finish and the usage, or with [`DONE`].
    WithLastChunk,
    /// With an event that says so.
    WithEvent,
}

impl Dialect {
    /// The wire format of an endpoint. None where replies are not read.
    pub fn of(endpoint: Endpoint) -> Option<Self> {
        match endpoint {
            Endpoint::ChatCompletions => Some(Dialect::OpenAiChat),
            Endpoint::Completions => Some(Dialect::OpenAiCompletions),
            Endpoint::Responses => Some(Dialect::OpenAiResponses),
            Endpoint::Messages => Some(Dialect::AnthropicMessages),
            Endpoint::Embeddings | Endpoint::Other => None,
        }
    }

    pub fn ends(self) -> Ends {
        match self {
            Dialect::OpenAiChat | Dialect::OpenAiCompletions => Ends::WithLastChunk,
            Dialect::OpenAiResponses | Dialect::AnthropicMessages => Ends::WithEvent,
        }
    }

    /// Reads one frame of a stream: its `event` field and its data. What was said before a part that has not the
    /// expected shape has been said.
    pub fn frame<'a>(
        self,
        event: Option<&[u8]>,
        data: &'a [u8],
        listener: &mut Listener<'_, 'a>,
    ) -> Result<(), Malformed> {
        let reader = json::object(data)?;
        match self {
            Dialect::OpenAiChat => openai_chat::frame(reader, listener),
            Dialect::OpenAiCompletions => openai_completions::frame(reader, listener),
            Dialect::OpenAiResponses => openai_responses::frame(reader, event, listener),
            Dialect::AnthropicMessages => anthropic_messages::frame(reader, event, listener),
        }
    }

    /// Reads a whole reply that does not stream.
    pub fn body<'a>(self, body: &'a [u8], listener: &mut Listener<'_, 'a>) -> Result<(), Malformed> {
        let reader = json::object(body)?;
        match self {
            Dialect::OpenAiChat => openai_chat::frame(reader, listener),
            Dialect::OpenAiCompletions => openai_completions::frame(reader, listener),
            Dialect::OpenAiResponses => openai_responses::body(reader, listener),
            Dialect::AnthropicMessages => anthropic_messages::body(reader, listener),
        }
    }
}

/// Reads the usage of a reply that generates nothing, such as embeddings.
pub fn usage_of(body: &[u8]) -> Option<Usage> {
    usage::openai(&mut json::object(body).ok()?.find(b"usage")?)
}
