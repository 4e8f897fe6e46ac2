//! What the shell knows of a request before it is forwarded, and the few switches of measuring.
//!
//! Apart so that the observer takes plain values and needs neither HTTP nor configuration. Must not know: headers,
//! bodies, configuration files.

use std::time::Duration;

use serde::Serialize;

use crate::event::At;

/// Endpoints as far as measuring tells them apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Endpoint {
    ChatCompletions,
    Completions,
    /// `/v1/responses`.
    Responses,
    /// `/v1/messages`.
    Messages,
    Embeddings,
    /// Models, health, tokenising, unknown paths: counted apart from everything else.
    Other,
}

/// What kind of work an endpoint does, which decides what can be asked of its reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Work {
    /// Takes part in every outcome.
    Generating,
    /// Takes part in success, HTTP error and timeout.
    Embedding,
    /// Not in the denominator.
    Apart,
}

impl Endpoint {
    pub const ALL: [Endpoint; 6] = [
        Endpoint::ChatCompletions,
        Endpoint::Completions,
        Endpoint::Responses,
        Endpoint::Messages,
        Endpoint::Embeddings,
        Endpoint::Other,
    ];

    /// The name used as label and in the journal.
    pub fn name(self) -> &'static str {
        match self {
            Endpoint::ChatCompletions => "chat_completions",
            Endpoint::Completions => "completions",
            Endpoint::Responses => "responses",
            Endpoint::Messages => "messages",
            Endpoint::Embeddings => "embeddings",
            Endpoint::Other => "other",
        }
    }

    pub fn work(self) -> Work {
        match self {
            Endpoint::ChatCompletions | Endpoint::Completions | Endpoint::Responses | Endpoint::Messages => {
                Work::Generating
            }
            Endpoint::Embeddings => Work::Embedding,
            Endpoint::Other => Work::Apart,
        }
    }
}

/// Who asked the upstream for usage in a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum UsageAsked {
    ByClient,
    /// Asked for and hidden again.
    ByGateway,
    Not,
    /// Shown although the client did not ask.
    Forced,
}

/// What of the prompt the reply repeats, which is not generated and therefore no token.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Echo {
    /// Nothing, as without `echo`.
    #[default]
    Nothing,
    /// Each choice begins with the text of its prompt: one length in bytes of UTF-8 for each prompt, in order.
    /// None where the length of the text is not known, such as for a prompt of token ids.
    Prompts(Vec<Option<u64>>),
}

impl Echo {
    /// What the choice of this index repeats: choices of one prompt lie together, `choices` to each.
    pub(crate) fn of_choice(&self, index: u32, choices: u32) -> EchoLeft {
        match self {
            Echo::Nothing => EchoLeft::Bytes(0),
            Echo::Prompts(lengths) => {
                let prompt = usize::try_from(index / choices.max(1)).unwrap_or(usize::MAX);
                match lengths.get(prompt).or(lengths.last()) {
                    Some(Some(length)) => EchoLeft::Bytes(*length),
                    Some(None) | None => EchoLeft::OneChunk,
                }
            }
        }
    }
}

/// What of the echoed prompt one choice has still to bring.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum EchoLeft {
    Bytes(u64),
    /// The next text, whatever its length.
    OneChunk,
}

/// What the shell knows of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequestFacts {
    /// The gateway's own id, unique.
    pub id: String,
    pub endpoint: Endpoint,
    /// The model that the caller named; empty where the endpoint has none.
    pub model: String,
    /// The name of the upstream.
    pub upstream: String,
    /// The name of the caller's key, if keys have names here; never the key.
    pub key_alias: Option<String>,
    /// Whether the caller asked for a stream.
    pub stream: bool,
    /// Whether the upstream was asked for one. Where only it was, the gateway assembles one reply for the caller:
    /// the upstream leg has all its times, the leg to the caller its full response time alone.
    pub upstream_stream: bool,
    pub echo: Echo,
    /// Choices asked for (`n`), at least 1.
    pub choices: u32,
    /// Prompts of a completions request, at least 1.
    pub prompts: u32,
    pub usage: UsageAsked,
    /// Length of the request's body.
    pub request_bytes: u64,
    /// When the last byte of the request had been read from the caller.
    pub last_request_byte: At,
}

impl RequestFacts {
    /// Sequences that the reply is expected to hold.
    pub fn sequences(&self) -> u64 {
        u64::from(self.choices.max(1)).saturating_mul(u64::from(self.prompts.max(1)))
    }
}

/// Whether an answer of nothing but reasoning is a success.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Case2 {
    /// It is, with a flag.
    Default,
    /// Body payload is asked for even after reasoning.
    Strict,
}

/// What a leading `<think>…</think>` inside content counts as.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InlineThink {
    Reasoning,
    Content,
}

/// Whether an upstream gives usage in a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UsageCapability {
    /// When `stream_options.include_usage` asks for it.
    StreamOptions,
    /// Without being asked.
    Always,
    /// It does not; its streams are judged by finish reason and `[DONE]`.
    Never,
}

/// The switches of measuring.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Options {
    /// Lowest status of the caller's reply that counts as an HTTP error. 401 by the standard's words (over 400).
    pub http_error_from: u16,
    pub case2: Case2,
    pub inline_think: InlineThink,
    /// Longest frame, or body of a reply that does not stream, that is read; longer ones pass and are marked.
    pub frame_bytes_max: usize,
    /// An answer whose terminal event is read later than this after the last byte of the request counts as a
    /// timeout; nothing is cut.
    pub observe_deadline: Option<Duration>,
    pub usage_capability: UsageCapability,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            http_error_from: 401,
            case2: Case2::Default,
            inline_think: InlineThink::Content,
            frame_bytes_max: 16 * 1024 * 1024,
            observe_deadline: None,
            usage_capability: UsageCapability::StreamOptions,
        }
    }
}
