//! The two wire formats made of typed events: what ends them, which usage counts, what is no token.
//!
//! Apart from the chunk formats, which end otherwise. Must not know: the parsers.

use pitot_measure::OutcomeKind::{Interrupted, Success};
use pitot_measure::definitions::Metric::*;
use pitot_measure::{Absent, BodyKind, Endpoint, Finish, Flag, Reason, UsageAsked, UsageCapability};

use crate::play::Expect::{Count, Ms, NoFlags, Null, Outcome};
use crate::play::{Expect, Play, check};

fn responses() -> Play {
    Play::new(Endpoint::Responses, true).sent(10).head(15, 200, BodyKind::EventStream)
}

fn messages() -> Play {
    Play::new(Endpoint::Messages, true).sent(10).head(15, 200, BodyKind::EventStream)
}

fn event(kind: &str, rest: &str) -> String {
    let comma = if rest.is_empty() { "" } else { "," };
    format!("event: {kind}\ndata: {{\"type\":\"{kind}\"{comma}{rest}}}\n\n")
}

fn text(text: &str) -> String {
    event("response.output_text.delta", &format!("\"delta\":\"{text}\""))
}

const USAGE: &str = "\"usage\":{\"input_tokens\":5,\"output_tokens\":3,\"total_tokens\":8}";

fn ended(kind: &str, response: &str) -> String {
    event(kind, &format!("\"response\":{{{response}}}"))
}

#[test]
fn a_response_ends_with_one_of_three_events() {
    let ends = |end: &str| responses().read(50, &text("a")).read(80, end).ended(90);
    let completed = ended("response.completed", &format!("\"status\":\"completed\",{USAGE}"));
    let record = check("completed", &ends(&completed), &[Outcome(Success), Count(OutputTokens, 3), NoFlags]);
    assert_eq!(record.finish, Some(Finish::Stop));
    let cut = format!(
        "\"status\":\"incomplete\",\"incomplete_details\":{{\"reason\":\"max_output_tokens\"}},{USAGE}"
    );
    for kind in ["response.incomplete", "response.completed"] {
        let record = check(kind, &ends(&ended(kind, &cut)), &[Outcome(Success), Count(OutputTokens, 3)]);
        assert_eq!(record.finish, Some(Finish::Length), "{kind}");
    }
    let failed = ended(
        "response.failed",
        &format!("\"status\":\"failed\",\"error\":{{\"code\":\"server_error\"}},{USAGE}"),
    );
    check("failed", &ends(&failed), &[Outcome(Interrupted), Expect::Reason(Reason::ErrorEvent)]);
    check(
        "an error event",
        &ends(&event("error", "\"message\":\"x\"")),
        &[Outcome(Interrupted), Expect::Reason(Reason::ErrorEvent)],
    );
    check(
        "[DONE] ends nothing here",
        &ends("data: [DONE]\n\n"),
        &[Outcome(Interrupted), Expect::Reason(Reason::NoTerminal)],
    );
    // These formats have nothing to ask for usage with: it is due all the same.
    let silent = ends(&ended("response.completed", "\"status\":\"completed\",\"usage\":null"))
        .facts(|facts| facts.usage = UsageAsked::Not);
    check("no usage", &silent, &[Outcome(Interrupted), Expect::Reason(Reason::NoTerminalUsage)]);
    let never = silent.options(|options| options.usage_capability = UsageCapability::Never);
    check("an upstream without usage", &never, &[Outcome(Success), Expect::Flag(Flag::UsageMissing)]);
}

#[test]
fn usage_along_the_way_of_a_response_is_not_its_end() {
    let early = responses()
        .read(20, &ended("response.created", &format!("\"status\":\"in_progress\",{USAGE}")))
        .read(50, &text("a"))
        .ended(60);
    check("created with usage", &early, &[Outcome(Interrupted), Null(OutputTokens, Absent::NotReported)]);
}

#[test]
fn kinds_of_deltas() {
    let completed = ended("response.completed", &format!("\"status\":\"completed\",{USAGE}"));
    for (kind, reasoning) in [
        ("response.output_text.delta", false),
        ("response.refusal.delta", false),
        ("response.function_call_arguments.delta", false),
        ("response.custom_tool_call_input.delta", false),
        ("response.mcp_call_arguments.delta", false),
        ("response.code_interpreter_call_code.delta", false),
        ("response.audio.delta", false),
        ("response.reasoning_text.delta", true),
        ("response.reasoning_summary_text.delta", true),
    ] {
        let delta = |text: &str| event(kind, &format!("\"delta\":\"{text}\""));
        let play = responses().read(40, &delta("")).read(50, &delta("a")).read(80, &completed).ended(90);
        let record = check(kind, &play, &[Outcome(Success), Ms(FirstTokenTime, 40)]);
        assert_eq!(record.timeline.reasoning_first.is_some(), reasoning, "{kind}");
        assert_eq!(record.timeline.content_first.is_some(), !reasoning, "{kind}");
    }
}

#[test]
fn a_response_without_deltas_brings_its_text_at_the_end() {
    let output =
        "\"output\":[{\"type\":\"message\",\"content\":[{\"type\":\"output_text\",\"text\":\"a\"}]}]";
    let end = ended("response.completed", &format!("\"status\":\"completed\",{output},{USAGE}"));
    let alone = responses().read(80, &end).ended(90);
    check("only at the end", &alone, &[Outcome(Success), Ms(FirstTokenTime, 70), Ms(FullResponseTime, 70)]);
    let repeated = responses().read(50, &text("a")).read(80, &end).ended(90);
    check("repeated at the end", &repeated, &[Outcome(Success), Ms(FullResponseTime, 40)]);
    let empty = ended("response.completed", &format!("\"status\":\"completed\",\"output\":[],{USAGE}"));
    check(
        "nothing at all",
        &responses().read(80, &empty).ended(90),
        &[Outcome(Interrupted), Expect::Reason(Reason::EmptyStop)],
    );
}

fn start(usage: &str) -> String {
    event("message_start", &format!("\"message\":{{\"content\":[],\"usage\":{{{usage}}}}}"))
}

fn said(text: &str) -> String {
    event(
        "content_block_delta",
        &format!("\"index\":0,\"delta\":{{\"type\":\"text_delta\",\"text\":\"{text}\"}}"),
    )
}

fn delta(reason: &str, usage: &str) -> String {
    let usage = if usage.is_empty() { String::new() } else { format!(",\"usage\":{{{usage}}}") };
    event("message_delta", &format!("\"delta\":{{\"stop_reason\":\"{reason}\"}}{usage}"))
}

#[test]
fn a_message_ends_with_message_stop_and_the_usage_before_it() {
    let stop = event("message_stop", "");
    let begun = || messages().read(20, &start("\"input_tokens\":9,\"output_tokens\":1")).read(50, &said("a"));
    let whole = begun().read(70, &delta("end_turn", "\"output_tokens\":4")).read(80, &stop).ended(90);
    check(
        "start and delta",
        &whole,
        &[Outcome(Success), Count(InputTokens, 9), Count(OutputTokens, 4), Ms(FirstTokenTime, 40), NoFlags],
    );
    let repeated = begun()
        .read(70, &delta("end_turn", "\"input_tokens\":0,\"output_tokens\":4"))
        .read(80, &stop)
        .ended(90);
    check("the larger one of each field", &repeated, &[Count(InputTokens, 9), Count(OutputTokens, 4)]);
    check(
        "no message_stop",
        &begun().read(70, &delta("end_turn", "\"output_tokens\":4")).ended(90),
        &[Outcome(Interrupted), Expect::Reason(Reason::NoTerminal)],
    );
    check(
        "only the usage of the start",
        &begun().read(70, &delta("end_turn", "")).read(80, &stop).ended(90),
        &[
            Outcome(Interrupted),
            Expect::Reason(Reason::NoTerminalUsage),
            Null(InputTokens, Absent::NotReported),
        ],
    );
    check(
        "an error event",
        &begun().read(70, &event("error", "\"error\":{\"type\":\"overloaded_error\"}")).ended(90),
        &[Outcome(Interrupted), Expect::Reason(Reason::ErrorEvent)],
    );
    for (word, finish) in [
        ("end_turn", Finish::Stop),
        ("stop_sequence", Finish::Stop),
        ("max_tokens", Finish::Length),
        ("tool_use", Finish::ToolCalls),
        ("refusal", Finish::ContentFilter),
        ("pause_turn", Finish::Other),
    ] {
        let play = begun().read(70, &delta(word, "\"output_tokens\":4")).read(80, &stop).ended(90);
        assert_eq!(play.run().finish, Some(finish), "{word}");
    }
}

#[test]
fn counts_that_cannot_be_are_not_reported() {
    // 2^53 + 2 is a count above the bound; 2^53 is the bound itself.
    for (count, taken) in
        [("18446744073709551615", false), ("9007199254740994", false), ("9007199254740992", true)]
    {
        let usage = format!("\"usage\":{{\"prompt_tokens\":5,\"completion_tokens\":{count}}}");
        let end = format!(
            "data: {{\"choices\":[{{\"index\":0,\"delta\":{{}},\"finish_reason\":\"stop\"}}],{usage}}}\n\n"
        );
        let play = Play::chat().read(50, &crate::play::content("a")).read(60, &end).ended(70);
        let record = check(count, &play, &[Outcome(Success), Count(InputTokens, 5)]);
        assert_eq!(record.tokens.output.certain(), taken.then_some(1 << 53), "{count}");
        assert_eq!(record.has(Flag::CountOverCap), !taken, "{count}");
    }
}
