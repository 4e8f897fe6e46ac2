//! Every message of the control channel, as plain data.
//!
//! Apart from the codec so that the vocabulary can be read on one page. Must not know how it is framed or sent.

use serde::{Deserialize, Serialize};

/// Versions of the protocol that one side speaks, both ends included.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct VersionRange {
    pub lowest: u16,
    pub highest: u16,
}

/// The versions that this build speaks.
pub const VERSIONS: VersionRange = VersionRange { lowest: 1, highest: 1 };

impl VersionRange {
    /// Gives the highest version that both ranges hold, if there is one.
    pub fn common(self, other: VersionRange) -> Option<u16> {
        let highest = self.highest.min(other.highest);
        (highest >= self.lowest.max(other.lowest)).then_some(highest)
    }
}

/// What the engine says.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum FromEngine {
    /// First message on a connection.
    Hello {
        versions: VersionRange,
        /// Version of the engine program.
        engine_version: String,
        /// Process id of the engine; a new one means a restart.
        process_id: u32,
        /// Identity of the running kernel; stamps of another boot are not comparable. Absent if it cannot be had.
        boot_id: Option<String>,
        /// Names under which the model is served.
        models: Vec<String>,
    },
    /// The connection will be closed; `reason` is for people.
    Refused {
        reason: String,
    },
    State(State),
    Stamps(RequestStamps),
    Pong {
        nonce: u64,
    },
}

/// What the gateway says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum FromGateway {
    Hello {
        versions: VersionRange,
        gateway_version: String,
    },
    /// Ends the request's work at once. Unknown ids are ignored: the request may have ended meanwhile.
    Abort {
        request_id: String,
    },
    /// Finish what runs, refuse what comes.
    Drain,
    Ping {
        nonce: u64,
    },
}

/// What the engine holds at one instant.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct State {
    pub at_ns: u64,
    pub requests_running: u32,
    pub requests_waiting: u32,
    pub kv_blocks_total: u32,
    pub kv_blocks_used: u32,
    /// Tokens that one KV block holds.
    pub block_tokens: u32,
    /// Longest sequence in tokens.
    pub context_tokens_max: u32,
    pub draining: bool,
}

/// What the engine lived through with one request. A stamp that never happened is absent, never 0.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RequestStamps {
    /// The id the gateway gave in [`crate::REQUEST_ID_HEADER`].
    pub request_id: String,
    /// The scheduler took the request in (tokenising is before it).
    pub queued_ns: Option<u64>,
    /// Top of the first step that admitted it; kept across preemption and all chunks of its prefill.
    pub scheduled_ns: Option<u64>,
    /// End of the step that produced the first token.
    pub first_ns: Option<u64>,
    /// End of the step that produced the last token.
    pub last_ns: Option<u64>,
    pub tokens_prompt: u32,
    /// Prompt tokens whose keys came from the prefix cache; 0 where it is off. Of a prompt with several choices
    /// what the first one found, as the prompt counts once. Absent when the engine does not say.
    pub tokens_cached: Option<u32>,
    /// Generated tokens, a stop token included.
    pub tokens_output: u32,
    pub output: OutputSplit,
    pub preemptions: u32,
    pub finish: FinishReason,
}

/// How the generated tokens divide; reasoning + content + unclassified = tokens_output.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OutputSplit {
    pub reasoning: OutputPart,
    pub content: OutputPart,
    /// Markers, framing and stop tokens.
    pub tokens_unclassified: u32,
}

/// One kind of output.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OutputPart {
    pub tokens: u32,
    pub first_ns: Option<u64>,
    pub last_ns: Option<u64>,
}

/// Why generation ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FinishReason {
    /// A stop token or stop string.
    Stop,
    /// max_tokens or the context's end.
    Length,
    /// The client or the gateway gave up.
    Abort,
    /// The engine failed.
    Error,
}
