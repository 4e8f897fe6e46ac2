//! One outcome per request, with its reason, from evidence.
//!
//! Apart so that the precedence can be read, and tested, as a table. Must not know: stamps, bytes, counts.

use std::fmt;

use serde::Serialize;

use crate::dialect::Finish;
use crate::event::{Deadline, Ending, RefusalReason, UpstreamFailure};
use crate::request::{Case2, Work};

/// What became of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum OutcomeKind {
    Success,
    Cancelled,
    Timeout,
    HttpError,
    Interrupted,
    Other,
}

impl OutcomeKind {
    pub const ALL: [OutcomeKind; 6] = [
        OutcomeKind::Success,
        OutcomeKind::Cancelled,
        OutcomeKind::Timeout,
        OutcomeKind::HttpError,
        OutcomeKind::Interrupted,
        OutcomeKind::Other,
    ];

    pub fn name(self) -> &'static str {
        match self {
            OutcomeKind::Success => "success",
            OutcomeKind::Cancelled => "cancelled",
            OutcomeKind::Timeout => "timeout",
            OutcomeKind::HttpError => "http_error",
            OutcomeKind::Interrupted => "interrupted",
            OutcomeKind::Other => "other",
        }
    }
}

impl fmt::Display for OutcomeKind {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.name())
    }
}

/// How far a request had come when it ended, seen from the upstream's reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    BeforeHead,
    BeforeFirstToken,
    MidStream,
    /// The terminal event had come.
    Complete,
}

/// Why the outcome is not a plain success.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Reason {
    // cancelled
    ClientLeft,
    // timeout
    DeadlineConnect,
    DeadlineFirstToken,
    DeadlineIdle,
    DeadlineTotal,
    DeadlineObserved,
    // refused by the gateway
    BadRequest,
    Unauthorized,
    UnknownPath,
    MethodNotAllowed,
    TooLarge,
    TooManyRequests,
    Draining,
    // the upstream
    UpstreamStatus,
    UpstreamUnreachable,
    UpstreamReset,
    UpstreamTruncated,
    UpstreamProtocol,
    // interrupted
    ErrorEvent,
    EmptyResponse,
    MalformedBody,
    NoTerminal,
    NoTerminalUsage,
    EmptyStop,
    EmptyLength,
    EmptyToolCalls,
    EmptyContentFilter,
    EmptyAbort,
    EmptyOther,
    TruncatedInReasoning,
    NoAnswer,
    // any
    Dropped,
    /// Neither 2xx nor an error.
    UnexpectedStatus,
}

/// What a reply held, as far as the outcome asks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Payload {
    Body,
    ReasoningOnly,
    None,
    /// The reply was too long to be read.
    NotRead,
    /// The reply could not be understood.
    Malformed,
}

/// Terminal usage.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UsageSeen {
    Terminal,
    /// Missing, and the upstream should have sent it.
    Missing,
    /// Missing, from an upstream that is judged without.
    NotExpected,
}

/// The reply as it was read from the upstream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reply {
    /// Whether any byte of a body came.
    pub bytes: u64,
    pub error_event: bool,
    /// Whether the event that ends the protocol came.
    pub terminal: bool,
    /// Whether every choice that was expected gave its finish.
    pub finished: bool,
    pub usage: UsageSeen,
    pub payload: Payload,
    pub finish: Option<Finish>,
}

/// All that decides.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Evidence {
    pub work: Work,
    pub ending: Ending,
    /// What the caller got, else what the upstream sent.
    pub status: Option<u16>,
    pub http_error_from: u16,
    pub case2: Case2,
    /// Whether the event that ends the protocol (or an error event) was handed to the caller.
    pub end_delivered: bool,
    /// Whether a complete answer took longer than the observed deadline.
    pub observed_late: bool,
    pub reply: Reply,
}

/// What became of a request and why.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Outcome {
    pub kind: OutcomeKind,
    pub reason: Option<Reason>,
}

/// The standard's own overlapping rules, beside the one outcome.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Literal {
    /// Any final status over 400.
    pub http_error: bool,
    /// No complete response within the specified time.
    pub timeout: bool,
    /// The response began and did not end well, whatever the cause.
    pub interruption: bool,
}

fn outcome_of(kind: OutcomeKind, reason: Reason) -> Outcome {
    Outcome { kind, reason: Some(reason) }
}

/// Judges a request. The first rule that fits decides.
pub fn judge(evidence: &Evidence) -> Outcome {
    if evidence.ending == Ending::ClientLeft && !evidence.end_delivered {
        return outcome_of(OutcomeKind::Cancelled, Reason::ClientLeft);
    }
    if let Some(reason) = timeout(evidence) {
        return outcome_of(OutcomeKind::Timeout, reason);
    }
    let Some(status) = evidence.status else {
        return outcome_of(OutcomeKind::Other, ending_reason(evidence).unwrap_or(Reason::Dropped));
    };
    if status >= evidence.http_error_from && status >= 400 {
        return outcome_of(OutcomeKind::HttpError, ending_reason(evidence).unwrap_or(Reason::UpstreamStatus));
    }
    if !(200..300).contains(&status) {
        let reason = if status >= 400 { Reason::UpstreamStatus } else { Reason::UnexpectedStatus };
        return outcome_of(OutcomeKind::Other, ending_reason(evidence).unwrap_or(reason));
    }
    match evidence.work {
        Work::Generating => generated(evidence),
        Work::Embedding | Work::Apart => match ending_reason(evidence) {
            Some(reason) => outcome_of(OutcomeKind::Other, reason),
            None => Outcome { kind: OutcomeKind::Success, reason: None },
        },
    }
}

/// The standard's overlapping rules for the same evidence.
pub fn literal(evidence: &Evidence) -> Literal {
    let kind = judge(evidence).kind;
    let began =
        evidence.reply.bytes > 0 && evidence.status.is_some_and(|status| (200..300).contains(&status));
    let ended_well = generated(evidence).kind == OutcomeKind::Success;
    Literal {
        http_error: evidence.status.is_some_and(|status| status > 400),
        timeout: timeout(evidence).is_some(),
        interruption: evidence.work == Work::Generating
            && (kind == OutcomeKind::Interrupted || began && !ended_well),
    }
}

fn timeout(evidence: &Evidence) -> Option<Reason> {
    let cut = match evidence.ending {
        Ending::Deadline(Deadline::Connect) => Some(Reason::DeadlineConnect),
        Ending::Deadline(Deadline::FirstToken) => Some(Reason::DeadlineFirstToken),
        Ending::Deadline(Deadline::Idle) => Some(Reason::DeadlineIdle),
        Ending::Deadline(Deadline::Total) => Some(Reason::DeadlineTotal),
        Ending::UpstreamEnded
        | Ending::ClientLeft
        | Ending::UpstreamFailed(_)
        | Ending::Refused(_)
        | Ending::Dropped => None,
    };
    // A deadline that passes behind the terminal event cut nothing that mattered.
    cut.filter(|_| !evidence.end_delivered)
        .or_else(|| evidence.observed_late.then_some(Reason::DeadlineObserved))
}

/// What the ending itself gives as a reason. None for an ending that is none, or that came after the end.
fn ending_reason(evidence: &Evidence) -> Option<Reason> {
    let reason = match evidence.ending {
        Ending::UpstreamEnded => None,
        Ending::ClientLeft => Some(Reason::ClientLeft),
        Ending::Deadline(Deadline::Connect) => Some(Reason::DeadlineConnect),
        Ending::Deadline(Deadline::FirstToken) => Some(Reason::DeadlineFirstToken),
        Ending::Deadline(Deadline::Idle) => Some(Reason::DeadlineIdle),
        Ending::Deadline(Deadline::Total) => Some(Reason::DeadlineTotal),
        Ending::UpstreamFailed(UpstreamFailure::Unreachable) => Some(Reason::UpstreamUnreachable),
        Ending::UpstreamFailed(UpstreamFailure::Reset) => Some(Reason::UpstreamReset),
        Ending::UpstreamFailed(UpstreamFailure::Truncated) => Some(Reason::UpstreamTruncated),
        Ending::UpstreamFailed(UpstreamFailure::Protocol) => Some(Reason::UpstreamProtocol),
        Ending::Refused(RefusalReason::BadRequest) => Some(Reason::BadRequest),
        Ending::Refused(RefusalReason::Unauthorized) => Some(Reason::Unauthorized),
        Ending::Refused(RefusalReason::UnknownPath) => Some(Reason::UnknownPath),
        Ending::Refused(RefusalReason::MethodNotAllowed) => Some(Reason::MethodNotAllowed),
        Ending::Refused(RefusalReason::TooLarge) => Some(Reason::TooLarge),
        Ending::Refused(RefusalReason::TooManyRequests) => Some(Reason::TooManyRequests),
        Ending::Refused(RefusalReason::Draining) => Some(Reason::Draining),
        Ending::Refused(RefusalReason::UpstreamUnreachable) => Some(Reason::UpstreamUnreachable),
        Ending::Dropped => Some(Reason::Dropped),
    };
    reason.filter(|_| !evidence.end_delivered)
}

/// Judges a generating request with a 2xx status by what its reply held.
fn generated(evidence: &Evidence) -> Outcome {
    let reply = &evidence.reply;
    let interrupted = |reason| outcome_of(OutcomeKind::Interrupted, reason);
    let success = Outcome { kind: OutcomeKind::Success, reason: None };
    if reply.error_event {
        return interrupted(Reason::ErrorEvent);
    }
    if let Some(reason) = ending_reason(evidence) {
        return interrupted(reason);
    }
    if reply.bytes == 0 {
        return interrupted(Reason::EmptyResponse);
    }
    match reply.payload {
        Payload::Malformed => return interrupted(Reason::MalformedBody),
        // What was too long to be read is judged by what could be seen of it.
        Payload::NotRead if reply.terminal => return success,
        Payload::Body | Payload::ReasoningOnly | Payload::None | Payload::NotRead => {}
    }
    if reply.usage == UsageSeen::Missing && (reply.terminal || reply.finished) {
        return interrupted(Reason::NoTerminalUsage);
    }
    if !reply.terminal {
        return interrupted(Reason::NoTerminal);
    }
    match reply.payload {
        Payload::Body | Payload::NotRead | Payload::Malformed => success,
        Payload::None => interrupted(empty(reply.finish)),
        Payload::ReasoningOnly => match evidence.case2 {
            Case2::Default => success,
            Case2::Strict => interrupted(reasoning_only(reply.finish)),
        },
    }
}

fn empty(finish: Option<Finish>) -> Reason {
    match finish {
        Some(Finish::Stop) => Reason::EmptyStop,
        Some(Finish::Length) => Reason::EmptyLength,
        Some(Finish::ToolCalls) => Reason::EmptyToolCalls,
        Some(Finish::ContentFilter) => Reason::EmptyContentFilter,
        Some(Finish::Abort) => Reason::EmptyAbort,
        Some(Finish::Error | Finish::Repetition | Finish::Other) | None => Reason::EmptyOther,
    }
}

/// What an answer of reasoning alone lacks.
pub fn reasoning_only(finish: Option<Finish>) -> Reason {
    if finish == Some(Finish::Length) { Reason::TruncatedInReasoning } else { Reason::NoAnswer }
}
