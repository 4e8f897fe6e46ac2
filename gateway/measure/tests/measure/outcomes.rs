//! The precedence of outcomes and the table of case 2, as data.
//!
//! Apart as the tables of section "Outcomes". Must not know: quantities.

use std::time::Duration;

use pitot_measure::OutcomeKind::*;
use pitot_measure::{
    BodyKind, Case2, Deadline, Ending, Endpoint, Flag, Phase, Reason, RefusalReason, UpstreamFailure,
    UsageAsked, UsageCapability,
};

use crate::play::{DONE, Expect, Play, ROLE, check, content, end_of, finish, reasoning, usage};

/// Two tokens and nothing that ends.
fn begun() -> Play {
    Play::chat().read(20, ROLE).read(100, &content("a")).read(200, &content("b"))
}

fn good() -> Play {
    begun().read(210, &end_of("stop", 5, 2)).ended(220)
}

#[track_caller]
fn outcome(name: &str, play: &Play, kind: pitot_measure::OutcomeKind, reason: Option<Reason>) {
    let record = check(name, play, &[Expect::Outcome(kind)]);
    assert_eq!(record.reason, reason, "{name}");
}

#[test]
fn leaving_is_judged_by_whether_the_end_had_been_handed_over() {
    let left = |play: Play, ms| play.cut(ms, Ending::ClientLeft);
    let waiting = Play::new(Endpoint::ChatCompletions, true).sent(10);
    for (name, play, kind, phase) in [
        ("before the head", left(waiting, 50).status(None), Cancelled, Phase::BeforeHead),
        ("before a token", left(Play::chat().read(20, ROLE), 50), Cancelled, Phase::BeforeFirstToken),
        ("mid-stream", left(begun(), 250), Cancelled, Phase::MidStream),
        (
            "after the finish, usage due",
            left(begun().read(210, &finish("stop")), 250),
            Cancelled,
            Phase::MidStream,
        ),
        (
            "after usage, before [DONE]",
            left(begun().read(210, &[finish("stop"), usage(5, 2)].concat()), 250),
            Success,
            Phase::Complete,
        ),
        ("after [DONE]", left(begun().read(210, &end_of("stop", 5, 2)), 250), Success, Phase::Complete),
        (
            "the end was read but not written",
            left(begun().only_read(210, end_of("stop", 5, 2).as_bytes()), 250),
            Cancelled,
            Phase::Complete,
        ),
        (
            "after an error event",
            left(begun().read(210, "data: {\"error\":{\"message\":\"x\"}}\n\n"), 250),
            Interrupted,
            Phase::MidStream,
        ),
    ] {
        let record = check(name, &play, &[Expect::Outcome(kind)]);
        assert_eq!(record.phase, phase, "{name}");
    }
}

#[test]
fn our_deadlines_are_ours() {
    let cut =
        |deadline| Play::new(Endpoint::ChatCompletions, true).sent(10).cut(900, Ending::Deadline(deadline));
    for (deadline, reason) in [
        (Deadline::Connect, Reason::DeadlineConnect),
        (Deadline::FirstToken, Reason::DeadlineFirstToken),
        (Deadline::Idle, Reason::DeadlineIdle),
        (Deadline::Total, Reason::DeadlineTotal),
    ] {
        let play = cut(deadline).status(Some(504));
        outcome("deadline", &play, Timeout, Some(reason));
        let literal = play.run().literal;
        assert!(literal.timeout && literal.http_error, "our 504 is both by the words of the standard");
    }
    let mid = begun().cut(900, Ending::Deadline(Deadline::Idle));
    outcome("mid-stream", &mid, Timeout, Some(Reason::DeadlineIdle));
    assert!(mid.run().literal.interruption);
    let after = begun().read(210, &end_of("stop", 5, 2)).cut(900, Ending::Deadline(Deadline::Total));
    let record =
        check("after the end", &after, &[Expect::Outcome(Success), Expect::Flag(Flag::BrokenBehindTerminal)]);
    assert!(!record.literal.timeout);
    for status in [408, 504] {
        let upstream = Play::new(Endpoint::ChatCompletions, true)
            .sent(10)
            .head(15, status, BodyKind::Json)
            .read(20, "{\"error\":{}}")
            .ended(21);
        outcome("the upstream's own timeout", &upstream, HttpError, Some(Reason::UpstreamStatus));
    }
}

#[test]
fn the_observed_deadline_counts_without_cutting() {
    // Request read at 5 ms, terminal at 210 ms: 205 ms.
    for (ms, kind) in [(204, Timeout), (205, Success), (206, Success)] {
        let play = good().options(|options| options.observe_deadline = Some(Duration::from_millis(ms)));
        let record = check("observed", &play, &[Expect::Outcome(kind)]);
        assert_eq!(record.reason, (kind == Timeout).then_some(Reason::DeadlineObserved));
        assert_eq!(record.literal.timeout, kind == Timeout);
    }
}

#[test]
fn a_status_is_an_error_above_400() {
    for (status, from, kind, reason) in [
        (400, 401, Other, Reason::UpstreamStatus),
        (400, 400, HttpError, Reason::UpstreamStatus),
        (401, 401, HttpError, Reason::UpstreamStatus),
        (429, 401, HttpError, Reason::UpstreamStatus),
        (500, 401, HttpError, Reason::UpstreamStatus),
        (302, 401, Other, Reason::UnexpectedStatus),
        (302, 0, Other, Reason::UnexpectedStatus),
    ] {
        let play = Play::new(Endpoint::ChatCompletions, true)
            .options(|options| options.http_error_from = from)
            .sent(10)
            .head(15, status, BodyKind::Json)
            .read(20, "{}")
            .ended(21);
        outcome("status", &play, kind, Some(reason));
        assert_eq!(play.run().literal.http_error, status > 400);
    }
}

#[test]
fn refusals_and_a_dead_upstream_are_what_the_caller_got() {
    for (reason, status, kind, expected) in [
        (RefusalReason::BadRequest, 400, Other, Reason::BadRequest),
        (RefusalReason::Unauthorized, 401, HttpError, Reason::Unauthorized),
        (RefusalReason::UnknownPath, 404, HttpError, Reason::UnknownPath),
        (RefusalReason::MethodNotAllowed, 405, HttpError, Reason::MethodNotAllowed),
        (RefusalReason::TooLarge, 413, HttpError, Reason::TooLarge),
        (RefusalReason::TooManyRequests, 429, HttpError, Reason::TooManyRequests),
        (RefusalReason::Draining, 503, HttpError, Reason::Draining),
        (RefusalReason::UpstreamUnreachable, 503, HttpError, Reason::UpstreamUnreachable),
    ] {
        let play =
            Play::new(Endpoint::ChatCompletions, false).cut(3, Ending::Refused(reason)).status(Some(status));
        outcome("refused", &play, kind, Some(expected));
    }
    let down = Play::new(Endpoint::ChatCompletions, true)
        .sent(10)
        .cut(20, Ending::UpstreamFailed(UpstreamFailure::Unreachable))
        .status(Some(503));
    outcome("down", &down, HttpError, Some(Reason::UpstreamUnreachable));
    let half = Play::whole()
        .only_read(20, b"{\"choi")
        .cut(30, Ending::UpstreamFailed(UpstreamFailure::Truncated))
        .status(Some(502));
    outcome("half a body", &half, HttpError, Some(Reason::UpstreamTruncated));
}

#[test]
fn a_stream_that_began_must_end_well() {
    let error = "data: {\"error\":{\"message\":\"x\"}}\n\n";
    let named = "event: error\ndata: {\"message\":\"x\"}\n\n";
    let flat = "data: {\"object\":\"error\",\"message\":\"x\"}\n\n";
    for (name, play, reason) in [
        (
            "truncated",
            begun().cut(250, Ending::UpstreamFailed(UpstreamFailure::Truncated)),
            Reason::UpstreamTruncated,
        ),
        ("dropped", begun().cut(250, Ending::Dropped), Reason::Dropped),
        ("error event and [DONE]", begun().read(210, &[error, DONE].concat()).ended(220), Reason::ErrorEvent),
        ("named error", begun().read(210, named).ended(220), Reason::ErrorEvent),
        ("flat error", begun().read(210, flat).ended(220), Reason::ErrorEvent),
        ("finish error", begun().read(210, &end_of("error", 5, 2)).ended(220), Reason::ErrorEvent),
        ("clean end without a terminal", begun().ended(220), Reason::NoTerminal),
        ("finish without usage", begun().read(210, &finish("stop")).ended(220), Reason::NoTerminalUsage),
        ("case 1", begun().read(210, &[&finish("stop"), DONE].concat()).ended(220), Reason::NoTerminalUsage),
        ("zero bytes", Play::chat().ended(220), Reason::EmptyResponse),
        (
            "usage and nothing else",
            Play::chat().read(20, ROLE).read(30, &end_of("stop", 5, 1)).ended(40),
            Reason::EmptyStop,
        ),
        ("length at once", Play::chat().read(30, &end_of("length", 5, 1)).ended(40), Reason::EmptyLength),
        (
            "no finish",
            Play::chat().read(30, &[usage(5, 0), DONE.into()].concat()).ended(40),
            Reason::EmptyOther,
        ),
    ] {
        outcome(name, &play, Interrupted, Some(reason));
        let bytes = play.run().response_bytes;
        assert!(play.run().literal.interruption, "{name} with {bytes} bytes");
    }
    outcome("nothing wrong", &good(), Success, None);
    assert!(!good().run().literal.interruption);
}

#[test]
fn an_end_that_is_dropped_before_a_head_is_other() {
    let play = Play::new(Endpoint::ChatCompletions, true).sent(10).cut(20, Ending::Dropped).status(None);
    outcome("dropped", &play, Other, Some(Reason::Dropped));
}

#[test]
fn case_2() {
    let reasoned =
        |reason: &str| Play::chat().read(100, &reasoning("hm")).read(210, &end_of(reason, 5, 2)).ended(220);
    for (finish, flag, strict) in [
        ("length", Flag::TruncatedInReasoning, Reason::TruncatedInReasoning),
        ("stop", Flag::NoAnswer, Reason::NoAnswer),
        ("content_filter", Flag::NoAnswer, Reason::NoAnswer),
    ] {
        check(finish, &reasoned(finish), &[Expect::Outcome(Success), Expect::Flag(flag)]);
        let play = reasoned(finish).options(|options| options.case2 = Case2::Strict);
        check(finish, &play, &[Expect::Outcome(Interrupted), Expect::Reason(strict), Expect::Flag(flag)]);
    }
    for body in [
        "{\"tool_calls\":[{\"index\":0,\"function\":{\"arguments\":\"{}\"}}]}",
        "{\"tool_calls\":[{\"index\":0,\"custom\":{\"input\":\"x\"}}]}",
        "{\"function_call\":{\"name\":\"f\"}}",
        "{\"refusal\":\"no\"}",
        "{\"audio\":{\"data\":\"UklGRg==\"}}",
        "{\"content\":\" \"}",
    ] {
        for case2 in [Case2::Default, Case2::Strict] {
            let play = Play::chat()
                .options(|options| options.case2 = case2)
                .read(100, &crate::play::delta(body))
                .read(210, &end_of("stop", 5, 2))
                .ended(220);
            outcome(body, &play, Success, None);
        }
    }
}

#[test]
fn usage_is_due_only_from_who_was_asked_and_can() {
    let without = |change: fn(&mut pitot_measure::RequestFacts), capability| {
        begun()
            .facts(change)
            .options(|options| options.usage_capability = capability)
            .read(210, &[&finish("stop"), DONE].concat())
            .ended(220)
    };
    let asked: fn(&mut pitot_measure::RequestFacts) = |facts| facts.usage = UsageAsked::ByGateway;
    let forced: fn(&mut pitot_measure::RequestFacts) = |facts| facts.usage = UsageAsked::Forced;
    let not: fn(&mut pitot_measure::RequestFacts) = |facts| facts.usage = UsageAsked::Not;
    for (name, change, capability, kind) in [
        ("asked, can", asked, UsageCapability::StreamOptions, Interrupted),
        ("forced, can", forced, UsageCapability::StreamOptions, Interrupted),
        ("not asked", not, UsageCapability::StreamOptions, Success),
        ("asked, cannot", asked, UsageCapability::Never, Success),
        ("not asked, always does", not, UsageCapability::Always, Interrupted),
    ] {
        check(name, &without(change, capability), &[Expect::Outcome(kind), Expect::Flag(Flag::UsageMissing)]);
    }
    let body = "{\"choices\":[{\"message\":{\"content\":\"hi\"},\"finish_reason\":\"stop\"}]}";
    let whole = Play::whole().read(100, body).ended(110);
    check("whole", &whole, &[Expect::Outcome(Success), Expect::Flag(Flag::UsageMissing)]);
    let always = whole.options(|options| options.usage_capability = UsageCapability::Always);
    outcome("whole, always does", &always, Interrupted, Some(Reason::NoTerminalUsage));
}

#[test]
fn bodies_that_do_not_stream() {
    let whole = |body: &str| Play::whole().read(100, body).ended(110);
    let usage = "\"usage\":{\"prompt_tokens\":3,\"completion_tokens\":1}";
    outcome("not JSON", &whole("<html>"), Interrupted, Some(Reason::MalformedBody));
    outcome("no byte", &Play::whole().ended(110), Interrupted, Some(Reason::EmptyResponse));
    let error = whole("{\"error\":{\"message\":\"x\"}}");
    outcome("error in a 200", &error, Interrupted, Some(Reason::ErrorEvent));
    let empty = whole(&format!(
        "{{\"choices\":[{{\"message\":{{\"content\":null}},\"finish_reason\":\"stop\"}}],{usage}}}"
    ));
    outcome("nothing generated", &empty, Interrupted, Some(Reason::EmptyStop));
    let long = whole(&format!("{{\"choices\":[],\"x\":\"{}\"}}", "y".repeat(100)))
        .options(|options| options.frame_bytes_max = 64);
    check("over the cap", &long, &[Expect::Outcome(Success), Expect::Flag(Flag::BodyOverCap)]);
}

#[test]
fn embeddings_take_part_in_success_http_error_and_timeout() {
    let play = |status| {
        let play = Play::new(Endpoint::Embeddings, false).sent(10).head(15, status, BodyKind::Json);
        play.read(20, "{\"data\":[]}").ended(21)
    };
    outcome("good", &play(200), Success, None);
    outcome("error", &play(500), HttpError, Some(Reason::UpstreamStatus));
    let late = play(200).options(|options| options.observe_deadline = Some(Duration::from_millis(1)));
    outcome("late", &late, Timeout, Some(Reason::DeadlineObserved));
    let broken = play(200).cut(30, Ending::UpstreamFailed(UpstreamFailure::Truncated));
    let half = Play::new(Endpoint::Embeddings, false)
        .sent(10)
        .head(15, 200, BodyKind::Json)
        .read(20, "{\"da")
        .cut(30, Ending::UpstreamFailed(UpstreamFailure::Truncated));
    outcome("broken behind its end", &broken, Success, None);
    outcome("half", &half, Other, Some(Reason::UpstreamTruncated));
    assert!(!half.run().literal.interruption);
}
