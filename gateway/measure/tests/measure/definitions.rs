//! Every definition of a quantity, with values worked out by hand, and every rule by which one is null.
//!
//! Apart as the tables of section "Quantities". Must not know: outcomes.

use pitot_measure::definitions::Metric::*;
use pitot_measure::timing::rounded_up;
use pitot_measure::{
    Absent, Active, BodyKind, Ending, Endpoint, Flag, InlineThink, RefusalReason, Source, UsageCapability,
};

use crate::play::Expect::{Count, Float, Ms, NoFlags, Null};
use crate::play::{
    DONE, Expect, MS, Play, ROLE, check, content, delta, end_of, engine, finish, reasoning, usage, usage_of,
};

/// Reasoning at 110, 210, 310 ms and content at 410, 510, 610, 710 ms; 50 tokens in, 8 out, 3 of them reasoning.
fn reasoned() -> Play {
    let usage = usage_of(
        "{\"prompt_tokens\":50,\"completion_tokens\":8,\"total_tokens\":58,\
         \"prompt_tokens_details\":{\"cached_tokens\":16},\"completion_tokens_details\":{\"reasoning_tokens\":3}}",
    );
    Play::chat()
        .read(20, ROLE)
        .read(110, &reasoning("a"))
        .read(210, &reasoning("b"))
        .read(310, &reasoning("c"))
        .read(410, &content("d"))
        .read(510, &content("e"))
        .read(610, &content("f"))
        .read(710, &content("g"))
        .read(715, &finish("stop"))
        .read(720, &[usage, DONE.into()].concat())
        .ended(725)
}

#[test]
fn every_quantity_of_a_reasoned_answer() {
    let record = check(
        "reasoned",
        &reasoned(),
        &[
            Count(InputTokens, 50),
            Count(OutputTokens, 8),
            Count(TotalTokens, 58),
            Count(ReasoningTokens, 3),
            Count(ContentTokens, 5),
            Count(CachedTokens, 16),
            Ms(FirstTokenTime, 100),   // 110 − 10
            Ms(ReasoningTime, 200),    // 310 − 110
            Ms(ContentTime, 300),      // 710 − 410
            Ms(FullResponseTime, 700), // 710 − 10
            Float(TimePerToken, 600e6 / 7.0),
            Ms(ClientFirstTokenTime, 106), // 111 − 5
            Ms(ClientReasoningTime, 200),
            Ms(ClientContentTime, 300),
            Ms(ClientFullResponseTime, 706), // 711 − 5
            Float(ClientTimePerToken, 600e6 / 7.0),
            Count(ReasoningSpeed, 15), // 3 / 0.2
            Float(ReasoningSpeedExact, 15.0),
            Count(ContentSpeed, 17), // 5 / 0.3 = 16.67
            Float(ContentSpeedExact, 5.0 / 0.3),
            Count(AverageSpeed, 83), // 58 / 0.7 = 82.86
            Float(AverageSpeedExact, 58.0 / 0.7),
            Float(AverageOutputSpeed, 8.0 / 0.7),
            Expect::Source(InputTokens, Source::Reported),
            Expect::Source(FirstTokenTime, Source::Measured),
            NoFlags,
        ],
    );
    let active = Active { reasoning_ns: 200 * MS, content_ns: 300 * MS, gaps_ns: 100 * MS };
    assert_eq!(record.active, Some(active));
}

#[test]
fn stages_that_alternate_keep_their_spans_and_share_out_the_time() {
    // r 100, r 130, c 150, c 190, r 200, c 260: reasoning 30, content 40, gaps 20 + 10 + 60.
    let play = Play::chat()
        .read(100, &reasoning("a"))
        .read(130, &reasoning("b"))
        .read(150, &content("c"))
        .read(190, &content("d"))
        .read(200, &reasoning("e"))
        .read(260, &[content("f"), end_of("stop", 1, 9)].concat())
        .ended(270);
    let record = check(
        "alternating",
        &play,
        &[Ms(ReasoningTime, 100), Ms(ContentTime, 110), Ms(FullResponseTime, 250)],
    );
    let active = Active { reasoning_ns: 30 * MS, content_ns: 40 * MS, gaps_ns: 90 * MS };
    assert_eq!(record.active, Some(active));
}

#[test]
fn rounding_up_is_exact() {
    for (tokens, ns, expected) in [
        (50, 1_000_000_000, Some(50)),
        (50, 999_999_999, Some(51)),
        (50, 1_000_000_001, Some(50)),
        (5, 100_000_000, Some(50)), // 5 / 0.1 is 50.000000000000004 for some roundings of 0.1
        (3, 60_000_000, Some(50)),
        (7, 140_000_000, Some(50)),
        (0, 5, Some(0)),
        (1, 0, None),
        (u64::MAX, 1, Some(u64::MAX)),
    ] {
        assert_eq!(rounded_up(tokens, ns), expected, "{tokens} tokens in {ns} ns");
    }
}

fn one_chunk() -> Play {
    Play::chat().read(100, &content("all of it"))
}

#[test]
fn a_single_token_or_payload_takes_no_time() {
    let one = Play::chat()
        .read(100, &content("a"))
        .read(150, &content(" "))
        .read(160, &end_of("stop", 5, 1))
        .ended(170);
    check(
        "one token, two payloads",
        &one,
        &[
            Ms(ContentTime, 0),
            Ms(FullResponseTime, 140),
            Null(TimePerToken, Absent::OneToken),
            Null(ContentSpeed, Absent::TimeZero),
            Expect::Source(ContentTime, Source::Measured),
        ],
    );
    let reasoned = "{\"prompt_tokens\":5,\"completion_tokens\":4,\"completion_tokens_details\":{\"reasoning_tokens\":1}}";
    let play = Play::chat()
        .read(100, &content("x"))
        .read(120, &reasoning("a"))
        .read(150, &[content("b"), finish("stop"), usage_of(reasoned), DONE.into()].concat())
        .ended(160);
    check("one reasoning token", &play, &[Ms(ReasoningTime, 0), Null(ReasoningSpeed, Absent::TimeZero)]);
    // Reasoning seen, its count not reported: both counts unknown, one payload each.
    let play = Play::chat()
        .read(100, &reasoning("a"))
        .read(150, &[content("b"), end_of("stop", 5, 9)].concat())
        .ended(160);
    check(
        "counts unknown",
        &play,
        &[
            Ms(ReasoningTime, 0),
            Expect::Source(ReasoningTime, Source::Inferred),
            Ms(ContentTime, 0),
            Expect::Source(ContentTime, Source::Inferred),
            Null(ReasoningTokens, Absent::ReasoningUnknown),
            Null(ContentTokens, Absent::ReasoningUnknown),
        ],
    );
    // Many tokens in one chunk: the count is known, so 0 is a measurement.
    check(
        "one chunk",
        &one_chunk().read(110, &end_of("stop", 5, 9)).ended(120),
        &[
            Ms(ContentTime, 0),
            Expect::Source(ContentTime, Source::Measured),
            Null(ContentSpeed, Absent::TimeZero),
        ],
    );
}

#[test]
fn null_has_its_reason() {
    let plain = one_chunk().read(200, &[content("b"), end_of("stop", 5, 9)].concat()).ended(210);
    check(
        "no reasoning",
        &plain,
        &[
            Null(ReasoningTime, Absent::NoReasoning),
            Null(ReasoningSpeed, Absent::NoReasoning),
            Count(ReasoningTokens, 0),
            Expect::Source(ReasoningTokens, Source::Inferred),
            Null(CachedTokens, Absent::NotReported),
        ],
    );
    let tools = Play::chat()
        .read(100, &reasoning("a"))
        .read(150, &reasoning("b"))
        .read(160, &end_of("length", 5, 9))
        .ended(170);
    check(
        "no body",
        &tools,
        &[Null(ContentTime, Absent::NoBody), Null(ContentTokens, Absent::ReasoningUnknown)],
    );
    let empty = Play::chat().read(100, ROLE).read(160, &end_of("stop", 5, 1)).ended(170);
    for metric in [FirstTokenTime, FullResponseTime, ClientFirstTokenTime, ClientFullResponseTime] {
        check("no token", &empty, &[Null(metric, Absent::NoValidToken)]);
    }
    let several = plain.clone().facts(|facts| facts.prompts = 2);
    check("two prompts", &several, &[Null(TimePerToken, Absent::SeveralSequences), Ms(FirstTokenTime, 90)]);
    let no_usage = one_chunk().read(200, &[content("b"), finish("stop"), DONE.into()].concat()).ended(210);
    check(
        "no usage",
        &no_usage,
        &[
            Ms(FirstTokenTime, 90),
            Expect::Source(OutputTokens, Source::Estimated),
            Null(InputTokens, Absent::NotReported),
            Null(TotalTokens, Absent::NotReported),
            Null(AverageSpeed, Absent::TokensUnknown),
        ],
    );
    let refused = Play::new(Endpoint::ChatCompletions, true)
        .cut(3, Ending::Refused(RefusalReason::TooLarge))
        .status(Some(413));
    check(
        "never sent",
        &refused,
        &[
            Null(FirstTokenTime, Absent::NotSent),
            Null(FullResponseTime, Absent::NotSent),
            Null(ClientFullResponseTime, Absent::NotSent),
            Null(InputTokens, Absent::NotReported),
        ],
    );
    let models =
        Play::new(Endpoint::Other, false).sent(10).head(15, 200, BodyKind::Json).read(20, "{}").ended(21);
    check(
        "models",
        &models,
        &[Null(FullResponseTime, Absent::NotGenerating), Null(FirstTokenTime, Absent::NotGenerating)],
    );
}

#[test]
fn a_reply_that_does_not_stream_has_one_time() {
    let body = "{\"choices\":[{\"index\":0,\"message\":{\"content\":\"hi\",\"reasoning\":\"hm\"},\
                \"finish_reason\":\"stop\"}],\"usage\":{\"prompt_tokens\":6,\"completion_tokens\":4,\"total_tokens\":10,\
                \"completion_tokens_details\":{\"reasoning_tokens\":1}}}";
    let (first, rest) = body.split_at(40);
    let record = check(
        "whole",
        &Play::whole()
            .only_read(100, first.as_bytes())
            .only_read(110, rest.as_bytes())
            .write(130, 2)
            .ended(130),
        &[
            Ms(FullResponseTime, 100),       // 110 − 10
            Ms(ClientFullResponseTime, 125), // 130 − 5
            Null(FirstTokenTime, Absent::NotStreamed),
            Null(ReasoningTime, Absent::NotStreamed),
            Null(ContentTime, Absent::NotStreamed),
            Null(TimePerToken, Absent::NotStreamed),
            Null(ClientFirstTokenTime, Absent::NotStreamed),
            Count(ContentTokens, 3),
            Count(AverageSpeed, 100),
            NoFlags,
        ],
    );
    assert_eq!(record.active, None);
    assert_eq!(record.timeline.first_token, None);
    let embedding = Play::new(Endpoint::Embeddings, false)
        .sent(10)
        .head(15, 200, BodyKind::Json)
        .read(40, "{\"data\":[{\"embedding\":[0.1]}],\"usage\":{\"prompt_tokens\":8,\"total_tokens\":8}}")
        .ended(41);
    check(
        "embedding",
        &embedding,
        &[
            Ms(FullResponseTime, 30),
            Count(InputTokens, 8),
            Null(OutputTokens, Absent::NotReported),
            Null(ReasoningTokens, Absent::NotReported),
            NoFlags,
        ],
    );
}

#[track_caller]
fn check_usage(object: &str, expected: &[Expect]) {
    let play = Play::chat()
        .read(100, &content("a"))
        .read(200, &[content("b"), finish("stop"), usage_of(object), DONE.into()].concat())
        .ended(210);
    check(object, &play, expected);
}

#[test]
fn vendors_say_usage_differently() {
    check_usage(
        "{\"prompt_tokens\":4,\"completion_tokens\":9,\"reasoning_tokens\":2}",
        &[Count(ReasoningTokens, 2), Count(ContentTokens, 7), Count(TotalTokens, 13)],
    );
    check_usage(
        "{\"prompt_tokens\":4,\"completion_tokens\":9,\"prompt_cache_hit_tokens\":3}",
        &[Count(CachedTokens, 3)],
    );
    check_usage(
        "{\"prompt_tokens\":4,\"completion_tokens\":9,\"prompt_tokens_details\":{\"cached_tokens\":0}}",
        &[Count(CachedTokens, 0), Expect::Source(CachedTokens, Source::Reported)],
    );
    check_usage(
        "{\"prompt_tokens\":4,\"completion_tokens\":9,\"prompt_tokens_details\":null}",
        &[Null(CachedTokens, Absent::NotReported)],
    );
    // Reasoning beside the completion, as the total shows.
    let apart = "{\"prompt_tokens\":4,\"completion_tokens\":9,\"total_tokens\":18,\
                 \"completion_tokens_details\":{\"reasoning_tokens\":5}}";
    check_usage(apart, &[Count(OutputTokens, 14), Count(ContentTokens, 9), Count(TotalTokens, 18), NoFlags]);
    let over = "{\"prompt_tokens\":4,\"completion_tokens\":9,\"total_tokens\":13,\"reasoning_tokens\":11}";
    check_usage(
        over,
        &[Count(ReasoningTokens, 9), Count(ContentTokens, 0), Expect::Flag(Flag::ReasoningOverOutput)],
    );
    let wrong = "{\"prompt_tokens\":4,\"completion_tokens\":9,\"total_tokens\":99}";
    check_usage(wrong, &[Count(TotalTokens, 13), Expect::Flag(Flag::TotalMismatch)]);
    check_usage(
        "{\"prompt_tokens\":4,\"completion_tokens\":9,\"cached_tokens\":7}",
        &[Count(CachedTokens, 4), Expect::Flag(Flag::CachedOverInput)],
    );
    check_usage("{\"prompt_tokens\":4.0,\"completion_tokens\":9}", &[Count(InputTokens, 4)]);
    check_usage("{\"prompt_tokens\":-4,\"completion_tokens\":9}", &[Null(InputTokens, Absent::NotReported)]);
    check_usage(
        "{\"prompt_tokens\":0,\"completion_tokens\":0}",
        &[Count(InputTokens, 0), Count(TotalTokens, 0)],
    );
}

#[test]
fn the_engine_fills_in_what_the_reply_does_not_say() {
    let mut times = engine(20, 30, 90, 195, 5, 9);
    times.tokens_cached = Some(4);
    times.reasoning.tokens = 3;
    times.content.tokens = 5;
    times.tokens_unclassified = 1;
    let play = Play::chat()
        .read(100, &reasoning("a"))
        .engine(195, times)
        .read(200, &[content("b"), end_of("stop", 5, 9)].concat())
        .ended(210);
    let record = check(
        "engine",
        &play,
        &[Count(CachedTokens, 4), Count(ReasoningTokens, 3), Count(ContentTokens, 6), Expect::NoFlags],
    );
    assert_eq!(record.violations, []);
    assert!(!record.has(Flag::EngineTimesMissing));
}

#[test]
fn only_the_attempt_that_answered_is_timed() {
    let play = Play::new(Endpoint::ChatCompletions, true)
        .sent(10)
        .sent(500)
        .head(505, 200, BodyKind::EventStream)
        .read(600, &[content("a"), end_of("stop", 5, 2)].concat())
        .ended(610);
    let record = check("retry", &play, &[Ms(FirstTokenTime, 100), Ms(ClientFirstTokenTime, 596)]);
    assert_eq!(record.attempts, 2);
}

#[test]
fn a_caller_that_got_less_has_its_own_times() {
    let play = Play::chat()
        .read(100, &content("a"))
        .read(200, &content("b"))
        .only_read(300, content("c").as_bytes())
        .cut(400, Ending::ClientLeft);
    check(
        "left",
        &play,
        &[Ms(ContentTime, 200), Ms(ClientContentTime, 100), Ms(ClientFullResponseTime, 196)],
    );
    let nothing = Play::chat().only_read(100, content("a").as_bytes()).cut(400, Ending::ClientLeft);
    check(
        "got nothing",
        &nothing,
        &[
            Ms(FirstTokenTime, 90),
            Null(ClientFirstTokenTime, Absent::NotDelivered),
            Null(ClientContentTime, Absent::NotDelivered),
        ],
    );
}

#[test]
fn inline_reasoning_is_told_apart_if_wanted() {
    let stream = |think| {
        Play::chat()
            .options(|options| options.inline_think = think)
            .read(100, &content("<thi"))
            .read(110, &content("nk>"))
            .read(150, &content("hm"))
            .read(200, &content("</think>"))
            .read(250, &content("yes"))
            .read(300, &[content("."), end_of("stop", 5, 9)].concat())
            .ended(310)
    };
    let record = check(
        "reasoning",
        &stream(InlineThink::Reasoning),
        &[
            Ms(FirstTokenTime, 90),
            Ms(ReasoningTime, 100), // 200 − 100
            Ms(ContentTime, 50),    // 300 − 250
            Null(ReasoningTokens, Absent::ReasoningUnknown),
        ],
    );
    let active = Active { reasoning_ns: 100 * MS, content_ns: 50 * MS, gaps_ns: 50 * MS };
    assert_eq!(record.active, Some(active));
    check(
        "content",
        &stream(InlineThink::Content),
        &[Null(ReasoningTime, Absent::NoReasoning), Ms(ContentTime, 200)],
    );
}

#[test]
fn an_upstream_that_never_gives_usage_still_has_times() {
    let play = Play::chat()
        .options(|options| options.usage_capability = UsageCapability::Never)
        .read(100, &content("a"))
        .read(200, &[content("b"), finish("stop"), DONE.into()].concat())
        .ended(210);
    check("never", &play, &[Ms(FullResponseTime, 190), Expect::Flag(Flag::UsageMissing)]);
    let tool = delta("{\"tool_calls\":[{\"index\":0,\"function\":{\"name\":\"f\",\"arguments\":\"\"}}]}");
    let play = Play::chat()
        .read(100, &tool)
        .read(150, &usage(1, 2))
        .read(160, &end_of("tool_calls", 1, 2))
        .ended(170);
    check("tool call", &play, &[Ms(FirstTokenTime, 90), Count(ContentTokens, 2)]);
}
