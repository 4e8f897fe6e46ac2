//! Everything that is known of one finished request: plain fields, one per request.
//!
//! Apart from the observer, which makes it, and from its JSON, which is `record_json`. Must not know: how it was
//! measured, who reads it.

use crate::conservation::Violation;
use crate::dialect::Finish;
use crate::engine_timing::UpstreamTiming;
use crate::event::{At, EngineTimes};
use crate::named::named;
use crate::outcome::{Literal, OutcomeKind, Phase, Reason};
use crate::own_cost::OwnCost;
use crate::request::{Endpoint, UsageAsked};
use crate::timing::{Speeds, Times, Transfer};
use crate::tokens::Tokens;
use crate::waterfall::Waterfall;

/// One finished request.
#[derive(Debug, Clone, PartialEq)]
pub struct Record {
    pub id: String,
    pub endpoint: Endpoint,
    pub model: String,
    pub upstream: String,
    /// The name of the caller's key.
    pub key_alias: Option<String>,
    /// Whether the caller asked for a stream.
    pub stream: bool,
    /// Whether the upstream was asked for one.
    pub upstream_stream: bool,
    /// How the upstream's reply came; as asked for where there was none.
    pub transfer: Transfer,
    pub choices: u32,
    pub prompts: u32,
    pub usage_asked: UsageAsked,
    pub request_bytes: u64,
    /// Bytes of the upstream's body that were read.
    pub response_bytes: u64,
    /// Attempts at the upstream; times are those of the last one.
    pub attempts: u32,

    pub outcome: OutcomeKind,
    pub reason: Option<Reason>,
    pub phase: Phase,
    /// What the caller got. Absent if it got nothing.
    pub client_status: Option<u16>,
    pub upstream_status: Option<u16>,
    /// Why the first choice ended; `length` if any choice was cut.
    pub finish: Option<Finish>,
    /// The standard's own overlapping rules.
    pub literal: Literal,
    /// Sorted, each at most once.
    pub flags: Vec<Flag>,
    /// Laws that the numbers broke, each at most once.
    pub violations: Vec<Violation>,

    pub timeline: Timeline,
    pub tokens: Tokens,
    /// The gateway as the client of the engine.
    pub upstream_times: Times,
    pub speeds: Speeds,
    /// The caller's view: all attempts and waiting included.
    pub client_times: Times,
    /// Nanoseconds of the stretches in which each kind of payload was arriving. Absent unless the reply streamed
    /// at least one token.
    pub active: Option<Active>,
    /// The whole time inside writes to the caller, in nanoseconds.
    pub client_backpressure_ns: u64,
    /// What the gateway itself spent. Absent if that was not measured.
    pub own: Option<OwnCost>,
    /// Absent if the engine reported none.
    pub engine: Option<EngineTimes>,
    /// What the reply itself says of the upstream's work. Absent if it says nothing.
    pub upstream_timing: Option<UpstreamTiming>,
    pub waterfall: Waterfall,
}

/// Stamps of the upstream leg, as offsets from `accepted`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Timeline {
    /// Last byte of the request read from the caller.
    pub request_read: At,
    pub request_sent: Option<At>,
    pub head: Option<At>,
    pub first_frame: Option<At>,
    /// The first chunk with a choice in it, whatever that holds; the formats of typed events have none.
    pub first_choice: Option<At>,
    pub first_token: Option<At>,
    pub reasoning_first: Option<At>,
    pub reasoning_last: Option<At>,
    pub content_first: Option<At>,
    pub content_last: Option<At>,
    pub last_token: Option<At>,
    /// The last choice's finish.
    pub finish: Option<At>,
    pub terminal: Option<At>,
    pub upstream_eof: Option<At>,
    /// The last write to the caller returned; the end of the request if there was none.
    pub downstream_done: At,
}

/// reasoning + content + gaps = last token − first token.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Active {
    pub reasoning_ns: u64,
    pub content_ns: u64,
    pub gaps_ns: u64,
}

named! {
    /// Something about a request that a reader of its numbers should know.
    pub enum Flag {
        TruncatedInReasoning = "truncated_in_reasoning": "cut by length before any body payload",
        NoAnswer = "no_answer": "reasoning and nothing else",
        UsageMissing = "usage_missing": "the answer ended without usage",
        TokensEstimated = "tokens_estimated":
            "the answer ended without a count of output tokens; its events with a payload were counted instead",
        EngineTimesMissing = "engine_times_missing": "a token came and the engine's own times did not",
        TotalMismatch = "total_mismatch": "the reported total is not input + output",
        ReasoningOverOutput = "reasoning_over_output": "more reasoning than output was reported; clamped",
        CachedOverInput = "cached_over_input": "more cached than input was reported; clamped",
        CountOverCap = "count_over_cap": "a count above 2^53 was reported; it reads as not reported",
        FrameMalformed = "frame_malformed": "a frame was not JSON of the expected shape; it passed and the next were read",
        FrameOverCap = "frame_over_cap": "a frame was longer than the cap; it passed unread",
        BodyMalformed = "body_malformed": "the body was not JSON of the expected shape",
        BodyOverCap = "body_over_cap": "the body was longer than the cap; it passed unread",
        BodyEncoded = "body_encoded": "the body was compressed against the gateway's asking; it passed unread",
        ChoicesOverCap = "choices_over_cap": "more choices than are kept apart",
        StampClamped = "stamp_clamped": "a stamp went backwards and was held at the one before",
        ReadsHeldBack = "reads_held_back":
            "stamps of some reads are late: the buffer for a slow caller was full",
        EchoLengthUnknown = "echo_length_unknown":
            "the first text of a choice is taken for its echoed prompt, whose length is not known",
        BrokenBehindTerminal = "broken_behind_terminal": "the connection ended badly behind the terminal event",
    }
}

impl Record {
    pub fn has(&self, flag: Flag) -> bool {
        self.flags.contains(&flag)
    }
}
