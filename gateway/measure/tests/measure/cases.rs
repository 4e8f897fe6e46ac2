//! Situations that hurt somebody who ran such a gateway, as a table: what comes from the upstream and what must be
//! recorded. The tags name the kind; each is public knowledge about the wire formats.
//!
//! Apart because these are examples of kinds, not rules. Must not know: how the rules are written down.

use pitot_measure::OutcomeKind::{Cancelled, HttpError, Interrupted, Success};
use pitot_measure::definitions::Metric::*;
use pitot_measure::{
    Absent, BodyKind, Deadline, Ending, Endpoint, Flag, OutcomeKind, Reason, UpstreamFailure, UsageAsked,
    UsageCapability,
};

use crate::play::Expect::{Count, Ms, NoFlags, Null, Outcome};
use crate::play::{
    DONE, Expect, Play, ROLE, at, check, content, delta, end_of, finish, reasoning, usage, usage_of,
};

type Case = (&'static str, Play, &'static [Expect]);

#[track_caller]
fn run(cases: &[Case]) {
    for (name, play, expected) in cases {
        check(name, play, expected);
    }
}

fn null_role() -> String {
    delta("{\"role\":\"assistant\",\"content\":null}")
}

#[test]
fn when_is_the_first_token() {
    let end = end_of("stop", 5, 3);
    let tools = "{\"tool_calls\":[{\"index\":0,\"id\":\"c\",\"type\":\"function\",\"function\":{\"name\":\"\",\"arguments\":\"\"}}]}";
    let named = "{\"tool_calls\":[{\"index\":0,\"function\":{\"name\":\"f\"}}]}";
    run(&[
        (
            "role at 5 ms, text at 214 ms",
            Play::chat().read(15, &null_role()).read(224, &content("Hi")).read(230, &end).ended(240),
            &[Ms(FirstTokenTime, 214), Outcome(Success), NoFlags],
        ),
        (
            "reasoning for seconds, then content",
            Play::chat().read(210, &reasoning("a")).read(3010, &content("b")).read(3020, &end).ended(3030),
            &[Ms(FirstTokenTime, 200), Outcome(Success)],
        ),
        (
            "cut by max_tokens while still reasoning",
            Play::chat()
                .read(210, &delta("{\"reasoning_content\":\"a\"}"))
                .read(900, &end_of("length", 5, 3))
                .ended(910),
            &[
                Ms(FirstTokenTime, 200),
                Null(ContentTime, Absent::NoBody),
                Outcome(Success),
                Expect::Flag(Flag::TruncatedInReasoning),
            ],
        ),
        (
            "tokens counted, every content empty",
            Play::chat().read(20, ROLE).read(50, ROLE).read(60, &end).ended(70),
            &[Null(FirstTokenTime, Absent::NoValidToken), Outcome(Interrupted), Expect::Reason(Reason::EmptyStop)],
        ),
        (
            "tool deltas only: an id and an empty name are no payload",
            Play::chat().read(20, &delta(tools)).read(60, &delta(named)).read(70, &end_of("tool_calls", 5, 3)).ended(80),
            &[Ms(FirstTokenTime, 50), Outcome(Success)],
        ),
        (
            "the whole answer in one chunk, then usage",
            Play::chat().read(100, &content("all")).read(400, &end).ended(410),
            &[Ms(FirstTokenTime, 90), Ms(FullResponseTime, 90)],
        ),
        (
            "one sample of time per token, (last − first) / (N − 1)",
            Play::chat()
                .read(110, &content("a"))
                .read(120, &content("b"))
                .read(210, &[content("c"), end_of("stop", 5, 3)].concat())
                .ended(220),
            &[Expect::Float(TimePerToken, 50e6)],
        ),
        (
            "prompt progress is no token",
            Play::chat()
                .read(50, "data: {\"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":null}}],\"prompt_progress\":{\"total\":9,\"processed\":3}}\n\n")
                .read(90, &content("a"))
                .read(95, &end)
                .ended(99),
            &[Ms(FirstTokenTime, 80)],
        ),
        (
            "keep-alives from the start",
            Play::chat().read(20, ": PROCESSING\n\n").read(30, ":\n\n").read(90, &content("a")).read(95, &end).ended(99),
            &[Ms(FirstTokenTime, 80), Outcome(Success), NoFlags],
        ),
    ]);
}

#[test]
fn head_first_frame_and_first_token_are_three_stamps() {
    let play = Play::chat().read(20, ": hello\n\n").read(40, ROLE).read(90, &content("a")).ended(100);
    let timeline = play.run().timeline;
    assert_eq!(timeline.head, Some(at(15)));
    assert_eq!(timeline.first_frame, Some(at(40)));
    assert_eq!(timeline.first_token, Some(at(90)));
}

#[test]
fn arithmetic() {
    let end = end_of("stop", 90, 1);
    let first = Play::new(Endpoint::ChatCompletions, true).sent(10).head(15, 500, BodyKind::Json).sent(100);
    let retried = first.head(105, 200, BodyKind::EventStream);
    run(&[
        (
            "max_tokens 1",
            Play::chat().read(110, &[content("a"), end.clone()].concat()).ended(120),
            &[Null(TimePerToken, Absent::OneToken), Ms(FirstTokenTime, 100), Ms(FullResponseTime, 100), Count(TotalTokens, 91)],
        ),
        (
            "reads that go back in time are held",
            Play::chat().read(110, &content("a")).read(105, &[content("b"), end_of("stop", 5, 2)].concat()).ended(120),
            &[Ms(FullResponseTime, 100), Expect::Flag(Flag::StampClamped)],
        ),
        (
            "stamps of an earlier attempt do not leak",
            retried.read(210, &[content("a"), end.clone()].concat()).ended(220),
            &[Ms(FirstTokenTime, 110), Outcome(Success)],
        ),
        (
            "reasoning is part of the completion already",
            Play::chat()
                .read(110, &reasoning("a"))
                .read(200, &[content("b"), finish("stop"), usage_of("{\"prompt_tokens\":5,\"completion_tokens\":10,\"total_tokens\":15,\"completion_tokens_details\":{\"reasoning_tokens\":4}}"), DONE.into()].concat())
                .ended(210),
            &[Count(OutputTokens, 10), Count(ContentTokens, 6), NoFlags],
        ),
        (
            "everything at one instant has no speed",
            Play::chat().read(10, &[content("a"), content("b"), end_of("stop", 5, 9)].concat()).ended(11),
            &[Null(AverageSpeed, Absent::TimeZero), Null(ContentSpeed, Absent::TimeZero)],
        ),
    ]);
}

#[test]
fn framing() {
    let end = end_of("stop", 5, 2);
    let crlf = [content("a"), end.clone()].concat().replace('\n', "\r\n");
    let cr = [content("a"), end.clone()].concat().replace('\n', "\r");
    let tight = [content("a"), end.clone()].concat().replace("data: ", "data:");
    let long = content(&"x".repeat(1_500_000));
    run(&[
        (
            "CRLF",
            Play::chat().read(100, &crlf).ended(110),
            &[Ms(FirstTokenTime, 90), Count(OutputTokens, 2), Outcome(Success), NoFlags],
        ),
        (
            "bare CR",
            Play::chat().read(100, &cr).ended(110),
            &[Ms(FirstTokenTime, 90), Count(OutputTokens, 2), Outcome(Success), NoFlags],
        ),
        (
            "no space",
            Play::chat().read(100, &tight).ended(110),
            &[Ms(FirstTokenTime, 90), Outcome(Success), NoFlags],
        ),
        (
            "empty data and an empty JSON text are heartbeats",
            Play::chat()
                .read(50, "data:\n\ndata: \"\"\n\n")
                .read(100, &[content("a"), end.clone()].concat())
                .ended(110),
            &[Ms(FirstTokenTime, 90), Outcome(Success), NoFlags],
        ),
        (
            "a heartbeat as an event",
            Play::chat()
                .read(50, "event: ping\ndata: {\"type\":\"ping\"}\n\n")
                .read(100, &[content("a"), end.clone()].concat())
                .ended(110),
            &[Ms(FirstTokenTime, 90), Outcome(Success)],
        ),
        (
            "a frame of 1.5 MB is read",
            Play::chat().read(100, &long).read(105, &end).ended(110),
            &[Ms(FirstTokenTime, 90), Outcome(Success), NoFlags],
        ),
        (
            "a frame over the cap passes, and the next ones are read",
            Play::chat()
                .options(|options| options.frame_bytes_max = 1000)
                .read(90, &long)
                .read(100, &[content("a"), end.clone()].concat())
                .ended(110),
            &[Ms(FirstTokenTime, 90), Outcome(Success), Expect::Flag(Flag::FrameOverCap)],
        ),
        (
            "malformed JSON between good frames",
            Play::chat()
                .read(50, &content("a"))
                .read(60, "data: {\"choices\":[{\n\n")
                .read(100, &[content("b"), end.clone()].concat())
                .ended(110),
            &[Ms(ContentTime, 50), Outcome(Success), Expect::Flag(Flag::FrameMalformed)],
        ),
        (
            "the last frame without its blank line",
            Play::chat()
                .read(100, &[content("a"), finish("stop"), usage(5, 2), "data: [DONE]".into()].concat())
                .ended(110),
            &[Outcome(Success), NoFlags],
        ),
    ]);
}

/// A chunk of one choice with usage beside it.
fn with_usage(delta: &str, finish: &str, usage: &str) -> String {
    format!(
        "data: {{\"choices\":[{{\"index\":0,\"delta\":{delta},\"finish_reason\":{finish}}}],\"usage\":{usage}}}\n\n"
    )
}

fn counted(output: u64) -> String {
    format!("{{\"prompt_tokens\":5,\"completion_tokens\":{output},\"total_tokens\":{}}}", 5 + output)
}

/// A content chunk of a server that counts along.
fn continuous(output: u64) -> String {
    with_usage("{\"content\":\"a\"}", "null", &counted(output))
}

#[test]
fn usage_in_all_its_places() {
    let nulls = with_usage("{\"content\":\"a\"}", "null", "null");
    run(&[
        (
            "null on every chunk, then the usage chunk",
            Play::chat()
                .read(100, &nulls)
                .read(110, &[finish("stop"), usage(5, 7), DONE.into()].concat())
                .ended(120),
            &[Count(OutputTokens, 7), Outcome(Success), NoFlags],
        ),
        (
            "on the finish chunk",
            Play::chat()
                .read(100, &content("a"))
                .read(110, &with_usage("{}", "\"stop\"", &counted(7)))
                .read(111, DONE)
                .ended(120),
            &[Count(OutputTokens, 7), Outcome(Success), NoFlags],
        ),
        (
            "on the last content chunk, before the finish",
            Play::chat()
                .read(100, &continuous(7))
                .read(110, &[finish("stop"), DONE.into()].concat())
                .ended(120),
            &[Count(OutputTokens, 7), Outcome(Success)],
        ),
        (
            "cumulative on every chunk: the last, never the sum",
            Play::chat()
                .read(100, &continuous(10))
                .read(110, &continuous(50))
                .read(120, &continuous(100))
                .read(
                    130,
                    &[with_usage("{}", "\"stop\"", &counted(100)), usage(5, 100), DONE.into()].concat(),
                )
                .ended(140),
            &[Count(OutputTokens, 100), Outcome(Success), NoFlags],
        ),
        (
            "cumulative and cut: what was counted along the way is not terminal",
            Play::chat().read(100, &continuous(10)).read(110, &continuous(50)).ended(120),
            &[
                Null(OutputTokens, Absent::NotReported),
                Outcome(Interrupted),
                Expect::Reason(Reason::NoTerminal),
            ],
        ),
    ]);
}

#[test]
fn usage_that_is_zero_missing_or_late() {
    run(&[
        (
            "zeros are zeros",
            Play::chat()
                .read(100, &content("a"))
                .read(110, &[finish("stop"), usage(0, 0), DONE.into()].concat())
                .ended(120),
            &[Count(InputTokens, 0), Count(OutputTokens, 0), Null(TimePerToken, Absent::OneToken)],
        ),
        (
            "an empty usage object is none",
            Play::chat()
                .read(100, &content("a"))
                .read(110, &[finish("stop"), usage_of("{}"), DONE.into()].concat())
                .ended(120),
            &[
                Expect::Source(OutputTokens, pitot_measure::Source::Estimated),
                Outcome(Interrupted),
                Expect::Reason(Reason::NoTerminalUsage),
            ],
        ),
        (
            "usage in a read of its own before [DONE]",
            Play::chat()
                .read(100, &content("a"))
                .read(110, &finish("stop"))
                .read(115, &usage(5, 2))
                .read(130, DONE)
                .ended(140),
            &[Count(OutputTokens, 2), Outcome(Success), NoFlags],
        ),
        (
            "an engine that never sends usage",
            Play::chat()
                .options(|options| options.usage_capability = UsageCapability::Never)
                .facts(|facts| facts.usage = UsageAsked::Not)
                .read(100, &content("a"))
                .read(110, &[finish("stop"), DONE.into()].concat())
                .ended(120),
            &[
                Outcome(Success),
                Expect::Flag(Flag::UsageMissing),
                Count(OutputTokens, 1),
                Expect::Source(OutputTokens, pitot_measure::Source::Estimated),
            ],
        ),
        (
            "both names of reasoning in one delta are one payload",
            Play::chat()
                .read(100, &delta("{\"reasoning\":\"a\",\"reasoning_content\":\"a\"}"))
                .read(150, &[content("b"), end_of("stop", 5, 3)].concat())
                .ended(160),
            &[Ms(ReasoningTime, 0), Ms(FirstTokenTime, 90)],
        ),
    ]);
}

#[test]
fn outcomes() {
    let error = "data: {\"error\":{\"message\":\"boom\"}}\n\n";
    let begun = || Play::chat().read(100, &content("a"));
    run(&[
        (
            "40 of 60 tokens, then closed",
            begun().cut(200, Ending::UpstreamFailed(UpstreamFailure::Truncated)),
            &[Outcome(Interrupted), Expect::Reason(Reason::UpstreamTruncated)],
        ),
        (
            "clean end without anything final",
            begun().ended(200),
            &[Outcome(Interrupted), Expect::Reason(Reason::NoTerminal)],
        ),
        (
            "an error under 200, then [DONE]",
            begun().read(110, error).read(120, DONE).ended(130),
            &[Outcome(Interrupted), Expect::Reason(Reason::ErrorEvent)],
        ),
        (
            "200 and zero bytes",
            Play::chat().ended(130),
            &[Outcome(Interrupted), Expect::Reason(Reason::EmptyResponse)],
        ),
        (
            "the caller leaves during prefill",
            Play::new(Endpoint::ChatCompletions, true).sent(10).cut(50, Ending::ClientLeft).status(None),
            &[Outcome(Cancelled), Expect::Reason(Reason::ClientLeft)],
        ),
        (
            "our own read deadline is not the caller's doing",
            begun().cut(900, Ending::Deadline(Deadline::Idle)),
            &[Outcome(OutcomeKind::Timeout), Expect::Reason(Reason::DeadlineIdle)],
        ),
        (
            "an SDK that closes right after [DONE]",
            begun().read(200, &end_of("stop", 5, 2)).cut(205, Ending::ClientLeft),
            &[Outcome(Success), Count(OutputTokens, 2), NoFlags],
        ),
        (
            "finish and usage without [DONE]",
            begun().read(200, &[finish("stop"), usage(5, 2)].concat()).ended(205),
            &[Outcome(Success), NoFlags],
        ),
        (
            "no body of a 500 is read for tokens",
            Play::new(Endpoint::ChatCompletions, true)
                .sent(10)
                .head(15, 500, BodyKind::EventStream)
                .read(20, &content("a"))
                .ended(21),
            &[Outcome(HttpError), Null(FirstTokenTime, Absent::NotStreamed)],
        ),
    ]);
    // The error event, cut anywhere between two reads.
    for cut in 1..error.len() {
        let (first, second) = error.split_at(cut);
        let play = begun().read(110, first).read(120, second).ended(130);
        check("a split error event", &play, &[Outcome(Interrupted), Expect::Reason(Reason::ErrorEvent)]);
    }
    let chunk = usage(5, 7);
    for cut in 1..chunk.len() {
        let (first, second) = chunk.split_at(cut);
        let play = begun()
            .read(110, &[&finish("stop"), first].concat())
            .read(120, &[second, DONE].concat())
            .ended(130);
        check("a split usage chunk", &play, &[Outcome(Success), Count(OutputTokens, 7), NoFlags]);
    }
}
