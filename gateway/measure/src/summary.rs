//! The state of an observer at its end → the record.
//!
//! Apart from the observer, which only collects: here everything is put together once. Must not know: events.

use std::time::Duration;

use crate::conservation;
use crate::dialect::{Finish, Usage};
use crate::event::{At, Ending};
use crate::metrics_object::SoFar;
use crate::observer::Observer;
use crate::outcome::{self, Evidence, Outcome, OutcomeKind, Payload, Phase, Reply, UsageSeen};
use crate::quantity::Absent;
use crate::record::{Active, Flag, Record, Timeline};
use crate::request::Work;
use crate::stages::{Mark, Span};
use crate::timing::{self, Leg, Shape, Times, Transfer};
use crate::tokens::{self, Estimate, ReasoningSeen, Tokens};
use crate::waterfall::{self, Stamps};

/// Makes the record of a request that ended at `at`.
pub(crate) fn record(observer: Observer, at: At, ending: Ending, client_status: Option<u16>) -> Record {
    let attempt = &observer.attempt;
    let answer = &attempt.answer;
    let timeline = timeline(&observer, at);
    let evidence = evidence(&observer, &timeline, ending, client_status);
    let outcome = outcome::judge(&evidence);
    let mut flags = flags(&observer, &evidence, outcome);
    let seen = reasoning_seen(&observer);
    let (usage, engine) = (terminal_usage(&observer), observer.engine.as_ref());
    let tokens = tokens::tokens(usage, engine, seen, estimate(&observer), &mut flags);
    flags.sort_unstable();
    flags.dedup();
    let upstream_times = upstream_times(&observer, &timeline, &tokens);
    let facts = &observer.facts;
    Record {
        attempts: observer.attempts,
        choices: facts.choices,
        prompts: facts.prompts,
        endpoint: facts.endpoint,
        stream: facts.stream,
        upstream_stream: facts.upstream_stream,
        transfer: attempt.transfer,
        usage_asked: facts.usage,
        request_bytes: facts.request_bytes,
        response_bytes: attempt.bytes,
        outcome: outcome.kind,
        reason: outcome.reason,
        phase: phase(&observer),
        client_status,
        upstream_status: attempt.head.map(|(_, status)| status),
        finish: answer.finish,
        literal: outcome::literal(&evidence),
        flags,
        violations: conservation::violations(&timeline, observer.engine.as_ref(), &tokens, facts.sequences()),
        tokens,
        speeds: timing::speeds(&upstream_times, &tokens),
        upstream_times,
        client_times: client_times(&observer, &tokens),
        active: active(&observer),
        client_backpressure_ns: observer.blocked.up_to(timeline.downstream_done),
        own: observer.own,
        engine: observer.engine,
        upstream_timing: answer.timing.or_else(|| attempt.head_timing.timing()),
        waterfall: divide(&observer, &timeline),
        timeline,
        id: observer.facts.id,
        model: observer.facts.model,
        upstream: observer.facts.upstream,
        key_alias: observer.facts.key_alias,
    }
}

/// Counts, times and speeds of the upstream leg as far as they are known.
pub(crate) fn so_far(observer: &Observer) -> SoFar {
    let mut flags = Vec::new();
    let seen = reasoning_seen(observer);
    let (usage, engine) = (terminal_usage(observer), observer.engine.as_ref());
    let tokens = tokens::tokens(usage, engine, seen, estimate(observer), &mut flags);
    let timeline = timeline(observer, observer.attempt.last_read.unwrap_or_default());
    let times = upstream_times(observer, &timeline, &tokens);
    SoFar { speeds: timing::speeds(&times, &tokens), tokens, times }
}

fn timeline(observer: &Observer, ended: At) -> Timeline {
    let attempt = &observer.attempt;
    let stages = &attempt.answer.stages;
    // A body that came whole says nothing of when its tokens came.
    let span = |span: &Span| match attempt.transfer {
        Transfer::Streamed => span.read(),
        Transfer::Whole => (None, None),
    };
    let (first_token, last_token) = span(&stages.tokens);
    let (reasoning_first, reasoning_last) = span(&stages.reasoning);
    let (content_first, content_last) = span(&stages.body);
    let first_frame = match attempt.transfer {
        Transfer::Streamed => attempt.answer.first_frame,
        Transfer::Whole => attempt.first_byte,
    };
    // The last write ends the request only if it brought the end: after one in the middle, time went on.
    let ended_upstream = attempt.eof.is_some() || attempt.answer.terminal.is_some();
    let all_passed = observer.forwarded.filter(|(_, bytes)| ended_upstream && attempt.bytes <= *bytes);
    Timeline {
        request_read: observer.facts.last_request_byte,
        request_sent: attempt.sent,
        head: attempt.head.map(|(at, _)| at),
        first_frame,
        first_choice: match attempt.transfer {
            Transfer::Streamed => attempt.answer.first_choice,
            Transfer::Whole => None,
        },
        first_token,
        reasoning_first,
        reasoning_last,
        content_first,
        content_last,
        last_token,
        finish: attempt.answer.finish_mark.map(|mark| mark.at),
        terminal: attempt.answer.terminal.map(|mark| mark.at),
        upstream_eof: attempt.eof,
        downstream_done: all_passed.map_or(ended, |(at, _)| at),
    }
}

fn terminal_usage(observer: &Observer) -> Option<Usage> {
    match (observer.attempt.transfer, observer.facts.endpoint.work()) {
        (Transfer::Streamed, Work::Generating) => observer.attempt.answer.terminal_usage(),
        (Transfer::Streamed | Transfer::Whole, Work::Generating | Work::Embedding | Work::Apart) => {
            observer.attempt.answer.usage
        }
    }
}

fn evidence(
    observer: &Observer,
    timeline: &Timeline,
    ending: Ending,
    client_status: Option<u16>,
) -> Evidence {
    let attempt = &observer.attempt;
    let answer = &attempt.answer;
    let usage = match (terminal_usage(observer), answer.expects_usage()) {
        (Some(_), _) => UsageSeen::Terminal,
        (None, true) => UsageSeen::Missing,
        (None, false) => UsageSeen::NotExpected,
    };
    let delivered = |mark: Option<Mark>| mark.is_some_and(|mark| mark.delivered.is_some());
    let answered = timeline.terminal.unwrap_or(timeline.downstream_done);
    let waited = answered.since(timeline.request_read).unwrap_or(0);
    Evidence {
        work: observer.facts.endpoint.work(),
        ending,
        status: client_status.or(attempt.head.map(|(_, status)| status)),
        http_error_from: observer.options.http_error_from,
        case2: observer.options.case2,
        end_delivered: delivered(answer.terminal) || delivered(answer.error),
        observed_late: observer
            .options
            .observe_deadline
            .is_some_and(|deadline| Duration::from_nanos(waited) > deadline),
        reply: Reply {
            bytes: attempt.bytes,
            error_event: answer.error.is_some(),
            terminal: answer.terminal.is_some(),
            finished: answer.finished(),
            usage,
            payload: attempt.payload(),
            finish: answer.finish,
        },
    }
}

fn flags(observer: &Observer, evidence: &Evidence, outcome: Outcome) -> Vec<Flag> {
    let mut flags = observer.attempt.answer.flags.clone();
    let reply = &evidence.reply;
    let generating = evidence.work == Work::Generating;
    let answered = evidence.status.is_some_and(|status| (200..300).contains(&status));
    let answer_ended = generating && answered && reply.terminal && !reply.error_event;
    if answer_ended && reply.usage != UsageSeen::Terminal {
        flags.push(Flag::UsageMissing);
    }
    if answer_ended && reply.payload == Payload::ReasoningOnly {
        let cut = reply.finish == Some(Finish::Length);
        flags.push(if cut { Flag::TruncatedInReasoning } else { Flag::NoAnswer });
    }
    let token = match reply.payload {
        Payload::Body | Payload::ReasoningOnly => true,
        Payload::None | Payload::NotRead | Payload::Malformed => false,
    };
    if generating && token && observer.engine.is_none() {
        flags.push(Flag::EngineTimesMissing);
    }
    let ended_badly = match evidence.ending {
        Ending::UpstreamEnded | Ending::ClientLeft => false,
        Ending::Deadline(_)
        | Ending::UpstreamFailed(_)
        | Ending::Refused(_)
        | Ending::DrainOver
        | Ending::Dropped => true,
    };
    if outcome.kind == OutcomeKind::Success && ended_badly {
        flags.push(Flag::BrokenBehindTerminal);
    }
    flags
}

fn reasoning_seen(observer: &Observer) -> ReasoningSeen {
    if observer.facts.endpoint.work() != Work::Generating {
        return ReasoningSeen::NotRead;
    }
    match observer.attempt.payload() {
        Payload::NotRead | Payload::Malformed => ReasoningSeen::NotRead,
        Payload::Body | Payload::ReasoningOnly | Payload::None => {
            let seen = observer.attempt.answer.stages.reasoning.events > 0;
            if seen { ReasoningSeen::Yes } else { ReasoningSeen::No }
        }
    }
}

/// What can be said of the tokens of a complete stream without a count: nothing of one that broke off, that was not
/// read in whole or that did not stream.
fn estimate(observer: &Observer) -> Option<Estimate> {
    let answer = &observer.attempt.answer;
    let complete = answer.terminal.is_some() && answer.error.is_none();
    let unread = [Flag::FrameOverCap, Flag::FrameMalformed, Flag::EchoLengthUnknown];
    let read = !unread.iter().any(|flag| answer.flags.contains(flag));
    let streamed = observer.attempt.transfer == Transfer::Streamed;
    let stages = &answer.stages;
    (complete && read && streamed && stages.tokens.events > 0)
        .then_some(Estimate { output: stages.tokens.events, reasoning: stages.reasoning.events })
}

fn phase(observer: &Observer) -> Phase {
    let attempt = &observer.attempt;
    let answer = &attempt.answer;
    if answer.terminal.is_some() {
        return Phase::Complete;
    }
    let begun = match attempt.transfer {
        Transfer::Streamed => answer.stages.tokens.events > 0,
        Transfer::Whole => attempt.bytes > 0,
    };
    match (attempt.head, begun) {
        (None, _) => Phase::BeforeHead,
        (Some(_), false) => Phase::BeforeFirstToken,
        (Some(_), true) => Phase::MidStream,
    }
}

fn shape(observer: &Observer, transfer: Transfer, missing: Absent) -> Shape {
    let stages = &observer.attempt.answer.stages;
    Shape {
        transfer,
        reasoning_payloads: stages.reasoning.events,
        content_payloads: stages.body.events,
        sequences: observer.facts.sequences(),
        missing,
    }
}

/// Why a request has no times at all.
fn untimed(observer: &Observer) -> Option<Absent> {
    match observer.facts.endpoint.work() {
        Work::Generating | Work::Embedding => None,
        Work::Apart => Some(Absent::NotGenerating),
    }
}

fn upstream_times(observer: &Observer, timeline: &Timeline, tokens: &Tokens) -> Times {
    if let Some(reason) = untimed(observer) {
        return timing::no_times(reason);
    }
    let leg = Leg {
        origin: timeline.request_sent.ok_or(Absent::NotSent),
        first_token: timeline.first_token,
        reasoning_last: timeline.reasoning_last,
        content_first: timeline.content_first,
        content_last: timeline.content_last,
        last: match observer.attempt.transfer {
            Transfer::Streamed => timeline.last_token.ok_or(Absent::NoValidToken),
            Transfer::Whole => whole_end(observer).map(|(read, _)| read),
        },
    };
    timing::times(&leg, &shape(observer, observer.attempt.transfer, Absent::NoValidToken), tokens)
}

fn client_times(observer: &Observer, tokens: &Tokens) -> Times {
    if let Some(reason) = untimed(observer) {
        return timing::no_times(reason);
    }
    let attempt = &observer.attempt;
    let stages = &attempt.answer.stages;
    let (first_token, last_token) = stages.tokens.delivered();
    let (content_first, content_last) = stages.body.delivered();
    // A reply that the gateway assembled from a stream reached the caller whole.
    let assembled = observer.facts.upstream_stream && !observer.facts.stream;
    let transfer = if assembled { Transfer::Whole } else { attempt.transfer };
    let missing = if stages.tokens.events > 0 { Absent::NotDelivered } else { Absent::NoValidToken };
    let leg = Leg {
        origin: attempt.sent.map(|_| observer.facts.last_request_byte).ok_or(Absent::NotSent),
        first_token,
        reasoning_last: stages.reasoning.delivered().1,
        content_first,
        content_last,
        last: match transfer {
            Transfer::Streamed => last_token.ok_or(missing),
            Transfer::Whole => {
                whole_end(observer).and_then(|(_, delivered)| delivered.ok_or(Absent::NotDelivered))
            }
        },
    };
    timing::times(&leg, &shape(observer, transfer, missing), tokens)
}

/// The last byte of a body that did not stream, if it came and held something: read, and handed to the caller.
fn whole_end(observer: &Observer) -> Result<(At, Option<At>), Absent> {
    let attempt = &observer.attempt;
    let Some(end) = attempt.answer.terminal else { return Err(Absent::NotComplete) };
    let held = match (observer.facts.endpoint.work(), attempt.payload()) {
        (Work::Embedding | Work::Apart, _) => {
            attempt.bytes > 0 && attempt.head.is_some_and(|(_, status)| (200..300).contains(&status))
        }
        (Work::Generating, Payload::Body | Payload::ReasoningOnly | Payload::NotRead) => true,
        (Work::Generating, Payload::None | Payload::Malformed) => false,
    };
    if held { Ok((end.at, end.delivered)) } else { Err(Absent::NoValidToken) }
}

fn active(observer: &Observer) -> Option<Active> {
    let stages = &observer.attempt.answer.stages;
    let streamed = observer.attempt.transfer == Transfer::Streamed && stages.tokens.events > 0;
    streamed.then_some(Active {
        reasoning_ns: stages.reasoning_active_ns,
        content_ns: stages.content_active_ns,
        gaps_ns: stages.gaps_ns,
    })
}

fn divide(observer: &Observer, timeline: &Timeline) -> waterfall::Waterfall {
    let attempt = &observer.attempt;
    let stamps = Stamps {
        request_sent: timeline.request_sent,
        engine: observer.engine.as_ref(),
        answer_end: timeline.finish.or(timeline.last_token).or(timeline.terminal),
        upstream_end: timeline.upstream_eof.or(timeline.terminal).or(attempt.last_read),
        downstream_done: timeline.downstream_done,
    };
    waterfall::waterfall(&stamps, &observer.blocked)
}
