//! One outcome per request, with its reason, from evidence.
//!
//! Apart so that the precedence can be read, and tested, as a table. Must not know: stamps, bytes, counts.

use crate::dialect::Finish;
use crate::event::{Deadline, Ending, RefusalReason, UpstreamFailure};
use crate::named::named;
use crate::request::{Case2, Work};

named! {
    /// What became of a request.
    pub enum OutcomeKind {
        Success = "success": "2xx, terminal event, terminal usage, some payload, no error event",
        Cancelled = "cancelled": "the caller left before the terminal event had been handed to it",
        Timeout = "timeout": "one of the gateway's deadlines passed, or the observed one",
        HttpError = "http_error": "the caller got a status over 400 (from 400 on if configured)",
        Interrupted = "interrupted": "the reply began and did not end well",
        Other = "other": "a 400, and whatever is neither of the above",
    }
}

named! {
    /// How far a request had come when it ended, seen from the upstream's reply.
    pub enum Phase {
        BeforeHead = "before_head": "no head of a reply had come",
        BeforeFirstToken = "before_first_token": "a head had come and no token",
        MidStream = "mid_stream": "a token had come and no terminal event",
        Complete = "complete": "the terminal event had come",
    }
}

named! {
    /// Why the outcome is not a plain success.
    pub enum Reason {
        ClientLeft = "client_left": "the caller closed its connection",
        DeadlineConnect = "deadline_connect": "no connection to the upstream in time",
        DeadlineFirstToken = "deadline_first_token": "no first token in time",
        DeadlineIdle = "deadline_idle": "too long between two reads",
        DeadlineTotal = "deadline_total": "not complete in time",
        DeadlineObserved = "deadline_observed": "later than the observed deadline; nothing was cut",
        BadRequest = "bad_request": "refused: the request made no sense",
        Unauthorized = "unauthorized": "refused: no valid key",
        UnknownPath = "unknown_path": "refused: nothing there",
        MethodNotAllowed = "method_not_allowed": "refused: wrong method",
        TooLarge = "too_large": "refused: body over the limit",
        TooManyRequests = "too_many_requests": "refused: the gateway's own limit",
        Draining = "draining": "refused: the gateway is shutting down",
        UpstreamStatus = "upstream_status": "the upstream answered with an error",
        UpstreamUnreachable = "upstream_unreachable": "no connection to the upstream",
        UpstreamReset = "upstream_reset": "the connection ended before any reply",
        UpstreamTruncated = "upstream_truncated": "the reply ended before its framing said so",
        UpstreamProtocol = "upstream_protocol": "what came was not the protocol",
        ErrorEvent = "error_event": "an error inside a 200",
        EmptyResponse = "empty_response": "a 200 without a byte",
        MalformedBody = "malformed_body": "a body that is not JSON of the expected shape",
        NoTerminal = "no_terminal": "the stream ended cleanly without a terminal event",
        NoTerminalUsage = "no_terminal_usage": "case 1: the answer finished and the usage that was due did not come",
        EmptyStop = "empty_stop": "case 2: no payload, finish stop",
        EmptyLength = "empty_length": "case 2: no payload, finish length",
        EmptyToolCalls = "empty_tool_calls": "case 2: no payload, finish tool_calls",
        EmptyContentFilter = "empty_content_filter": "case 2: no payload, finish content_filter",
        EmptyAbort = "empty_abort": "case 2: no payload, finish abort",
        EmptyOther = "empty_other": "case 2: no payload, another finish or none",
        TruncatedInReasoning = "truncated_in_reasoning": "strict case 2: reasoning only, finish length",
        NoAnswer = "no_answer": "strict case 2: reasoning only",
        DrainOver = "drained_cut": "the gateway ended before the request did",
        Dropped = "dropped": "the gateway itself gave the request up",
        UnexpectedStatus = "unexpected_status": "neither 2xx nor an error",
    }
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
        | Ending::DrainOver
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
        Ending::DrainOver => Some(Reason::DrainOver),
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

fn reasoning_only(finish: Option<Finish>) -> Reason {
    if finish == Some(Finish::Length) { Reason::TruncatedInReasoning } else { Reason::NoAnswer }
}
