//! What becomes of a request: every row of the table of outcomes, by what the upstream did.
//!
//! Apart from callers that leave (`leaving`) and deadlines (`deadlines`), which come before these in precedence. A
//! gateway never invents an end. Must not know: other sections.

use crate::faults::case::{Case, End, Section, case};
use crate::faults::check::{all, counts, http_error, interrupted, is, no_token, null, success};
use crate::faults::dialect::{
    ASKED, Dialect, Finish, GENERATING, MODES, Mode, REASONING, Usage, chat_delta, frame, named_frame, usage,
};
use crate::faults::gateway::Profile;
use crate::faults::script::Play;

use Dialect::{Chat, Completions, Embeddings, Messages, Responses};

const COUNTS: Usage = Usage { input: 7, output: 5, reasoning: None, cached: None };

pub fn cases() -> Vec<Case> {
    [clean_ends(), behind_the_end(), error_events(), payloads(), empty(), statuses(), refusals(), bodies()]
        .concat()
}

fn of(name: &str, dialect: Dialect, mode: Mode) -> Case {
    case(Section::Outcome, name, dialect, mode)
}

fn stream(name: &str, dialect: Dialect) -> Case {
    of(name, dialect, Mode::Stream)
}

/// The stream ends as its framing says and says too little.
fn clean_ends() -> Vec<Case> {
    let mut cases = Vec::new();
    for dialect in GENERATING {
        let begun = || Play::sse().open(dialect, &COUNTS).text(dialect, "hello").text(dialect, " there");
        cases.push(
            stream("e59.no_end_at_all", dialect)
                .plays(begun().end())
                .record(interrupted("no_terminal", "mid_stream")),
        );
        cases.push(
            stream("e65.no_byte", dialect)
                .plays(Play::sse().end())
                .record(interrupted("empty_response", "before_first_token"))
                .record(no_token()),
        );
        cases.push(
            stream("e59.comments_and_no_more", dialect)
                .plays(Play::sse().send(": ping\n\n").end())
                .record(interrupted("no_terminal", "before_first_token")),
        );
    }
    for dialect in ASKED {
        let finished = Play::sse().text(dialect, "x").send(dialect.finish(Finish::Stop));
        cases.push(
            stream("e59.finish_and_no_usage", dialect)
                .plays(finished.end())
                .record([
                    is("outcome", "interrupted"),
                    is("reason", "no_terminal_usage"),
                    null("input_tokens"),
                ])
                .flags_allowed(&["usage_missing", "tokens_estimated"]),
        );
        let two = r#","n":2"#;
        let one_of_two = Play::sse()
            .text(dialect, "x")
            .send(dialect.finish(Finish::Stop))
            .if_asked(dialect.usage_chunk(&COUNTS));
        cases.push(
            stream("e59.one_of_two_choices_finished", dialect)
                .asking(two)
                .plays(one_of_two.end())
                .record([is("outcome", "interrupted"), is("reason", "no_terminal")]),
        );
    }
    cases
}

/// What ends the protocol, and what may follow it.
fn behind_the_end() -> Vec<Case> {
    let mut cases = Vec::new();
    // `response.completed` ends the protocol; no `[DONE]` is due, and one that comes does no harm.
    let completed = || Play::sse().text(Responses, "x").send(Responses.terminal(Finish::Stop, &COUNTS));
    cases.push(stream("e60.completed_without_done", Responses).plays(completed().end()).record(success()));
    cases.push(
        stream("e60.completed_and_done", Responses)
            .plays(completed().send(frame("[DONE]")).end())
            .record(success()),
    );
    let incomplete = Play::sse().text(Responses, "x").send(Responses.terminal(Finish::Length, &COUNTS)).end();
    cases.push(
        stream("e60.incomplete", Responses)
            .plays(incomplete)
            .record(all([success(), counts(7, 5)]))
            .record([is("finish", "length")]),
    );
    // Noise behind the end passes, and changes nothing.
    for dialect in GENERATING {
        let done = Play::sse().text(dialect, "x").closing(dialect, Finish::Stop, &COUNTS);
        let noise = done.send(": bye\n\n").send("garbage\n").send("data: {\"x\":\n\n");
        cases.push(
            stream("e69.noise_behind_the_terminal", dialect)
                .plays(noise.end())
                .record(all([success(), counts(7, 5)]))
                .flags_allowed(&["frame_malformed"]),
        );
    }
    cases
}

/// An error inside a 200, whole, split, with or without an end behind it.
fn error_events() -> Vec<Case> {
    let mut cases = Vec::new();
    for dialect in GENERATING {
        let error = dialect.error();
        let (first, rest) = error.split_at(error.len() / 2);
        let begun = || Play::sse().open(dialect, &COUNTS).text(dialect, "x");
        for (name, play, phase) in [
            ("e62.error_event", begun().send(&error), "mid_stream"),
            ("e63.error_event_in_two_reads", begun().send(first).pause(40).send(rest), "mid_stream"),
            ("e62.error_event_at_once", Play::sse().send(&error), "before_first_token"),
        ] {
            cases.push(
                stream(name, dialect)
                    .plays(play.end())
                    .record(interrupted("error_event", phase))
                    .record([null("output_tokens")]),
            );
        }
        // The connection may die behind it: the caller has been told, and is not told twice.
        cases.push(
            stream("e62.error_event_and_death", dialect)
                .plays(begun().send(&error).pause(20).close())
                .ends(End::Any)
                .record([is("outcome", "interrupted"), is("reason", "error_event")]),
        );
        cases.push(
            of("e62.error_in_a_whole_200", dialect, Mode::Whole)
                .plays(Play::json(200, dialect.error_body()))
                .record([is("outcome", "interrupted"), is("reason", "error_event"), null("output_tokens")]),
        );
    }
    for dialect in ASKED {
        let begun = || Play::sse().text(dialect, "x");
        for (name, event) in [
            ("e62.error_event_and_done", dialect.error()),
            ("e62.error_as_text", frame(r#"{"error":"out of memory"}"#)),
            ("e62.error_with_a_name", named_frame("error", r#"{"error":{"message":"gone"}}"#)),
            ("e62.error_without_a_message", frame(r#"{"error":{"code":500}}"#)),
        ] {
            cases.push(stream(name, dialect).plays(begun().send(event).send(frame("[DONE]")).end()).record(
                [is("outcome", "interrupted"), is("reason", "error_event"), is("client_status", 200)],
            ));
        }
    }
    let failed = r#"{"type":"response.failed","sequence_number":5,"response":{"id":"r-1","object":"response","status":"failed","error":{"code":"server_error","message":"gone"},"usage":null}}"#;
    cases.push(
        stream("e62.response_failed", Responses)
            .plays(Play::sse().text(Responses, "x").send(named_frame("response.failed", failed)).end())
            .record([is("outcome", "interrupted"), is("reason", "error_event"), is("client_status", 200)]),
    );
    let failed = r#"{"id":"r-1","object":"response","status":"failed","error":{"code":"server_error","message":"gone"},"output":[],"usage":null}"#;
    cases.push(
        of("e62.response_failed", Responses, Mode::Whole)
            .plays(Play::json(200, failed))
            .record([is("outcome", "interrupted"), is("reason", "error_event")]),
    );
    cases
}

/// The table of payloads and finishes, as it is by default and when reasoning alone is no answer.
fn payloads() -> Vec<Case> {
    let mut cases = Vec::new();
    for dialect in REASONING {
        let thought = |finish: Finish| {
            Play::sse().open(dialect, &COUNTS).reasoning(dialect, "hm").close_with(dialect, finish, &COUNTS)
        };
        let then = |payload: String| {
            Play::sse().open(dialect, &COUNTS).reasoning(dialect, "hm").send(payload).close_with(
                dialect,
                Finish::Tool,
                &COUNTS,
            )
        };
        for (name, profile) in [("default", Profile::Default), ("strict", Profile::Strict)] {
            let of = |what: &str, play: Play| {
                stream(&format!("e52.{name}_{what}"), dialect).under(profile).plays(play)
            };
            let strict = profile == Profile::Strict;
            let judged = |reason: &str| if strict { interrupted(reason, "complete") } else { success() };
            cases.push(
                of("reasoning_and_length", thought(Finish::Length))
                    .record(judged("truncated_in_reasoning"))
                    .flags(&["truncated_in_reasoning"]),
            );
            cases.push(
                of("reasoning_and_stop", thought(Finish::Stop))
                    .record(judged("no_answer"))
                    .flags(&["no_answer"]),
            );
            cases.push(of("reasoning_and_tool_call", then(dialect.tool("{}"))).record(success()));
            cases.push(of("reasoning_and_text", then(dialect.text("a"))).record(success()));
            cases.push(
                of(
                    "tool_call_alone",
                    Play::sse().send(dialect.tool("{}")).close_with(dialect, Finish::Tool, &COUNTS),
                )
                .record(success()),
            );
        }
    }
    let refusal = chat_delta(r#"{"refusal":"no"}"#);
    cases.push(
        stream("e52.strict_refusal_alone", Chat)
            .under(Profile::Strict)
            .plays(Play::sse().send(refusal).close_with(Chat, Finish::Stop, &COUNTS))
            .record(success()),
    );
    let tool = r#"{"role":"assistant","content":null,"tool_calls":[{"id":"k","type":"function","function":{"name":"f","arguments":"{}"}}]}"#;
    let thought = r#"{"role":"assistant","content":null,"reasoning":"hm"}"#;
    for (what, message, finish, flags) in [
        ("tool_call_alone", tool, Finish::Tool, &[][..]),
        ("reasoning_and_length", thought, Finish::Length, &["truncated_in_reasoning"][..]),
        ("reasoning_and_stop", thought, Finish::Stop, &["no_answer"][..]),
    ] {
        cases.push(
            of(&format!("e52.default_{what}"), Chat, Mode::Whole)
                .plays(Play::json(200, Chat.whole_chat(message, finish, &COUNTS.json(Chat))))
                .record(success())
                .flags(flags),
        );
    }
    cases
}

/// Usage and no payload: an immediate end keeps its reason.
fn empty() -> Vec<Case> {
    let mut cases = Vec::new();
    for dialect in GENERATING {
        for (finish, reason) in [
            (Finish::Stop, "empty_stop"),
            (Finish::Length, "empty_length"),
            (Finish::Tool, "empty_tool_calls"),
            (Finish::Filter, "empty_content_filter"),
        ] {
            // A Responses stream does not say that a tool was called unless it shows the call.
            if dialect == Responses && finish == Finish::Tool {
                continue;
            }
            let play = Play::sse().open(dialect, &COUNTS).close_with(dialect, finish, &usage(7, 1));
            let play = if dialect == Responses { empty_response(finish) } else { play };
            cases.push(
                stream(&format!("e04.{reason}"), dialect)
                    .plays(play)
                    .record(all([interrupted(reason, "complete"), no_token(), counts(7, 1)]))
                    .record([null("time_per_token_ns"), null("average_speed_tokens_per_second")]),
            );
        }
    }
    // Tokens were counted and every text is empty: no crash, no first token, and no zero in its place.
    let empties = (0..3).fold(Play::sse(), |play, _| play.text(Chat, ""));
    cases.push(
        stream("e04.texts_all_empty", Chat)
            .plays(empties.close_with(Chat, Finish::Stop, &COUNTS))
            .record(all([interrupted("empty_stop", "complete"), no_token(), counts(7, 5)])),
    );
    cases.push(
        of("e04.whole_and_empty", Chat, Mode::Whole)
            .plays(Play::json(200, Chat.whole("", Finish::Stop, &usage(7, 1))))
            .record([is("outcome", "interrupted"), is("reason", "empty_stop"), is("output_tokens", 1)]),
    );
    // Zero is a count.
    cases.push(
        stream("d50.zero_output", Chat)
            .plays(Play::sse().close_with(Chat, Finish::Stop, &usage(7, 0)))
            .record([
                is("output_tokens", 0),
                is("output_tokens_mark", "reported"),
                is("reason", "empty_stop"),
            ]),
    );
    cases
}

fn empty_response(finish: Finish) -> Play {
    let terminal = Responses.terminal(finish, &usage(7, 1)).replace("\"text\":\"hello\"", "\"text\":\"\"");
    Play::sse().open(Responses, &COUNTS).send(terminal).end()
}

/// Statuses of the upstream pass with their bodies and headers.
fn statuses() -> Vec<Case> {
    let mut cases = Vec::new();
    for dialect in GENERATING {
        for mode in MODES {
            for status in [401, 403, 404, 408, 422, 429, 500, 502, 503, 504] {
                cases.push(
                    of(&format!("e26.status_{status}"), dialect, mode)
                        .plays(Play::reply(
                            status,
                            "content-type: application/json\r\nretry-after: 7\r\nx-odd:  kept\r\n",
                            dialect.error_body(),
                        ))
                        .status(status)
                        .header("retry-after", "7")
                        .header("x-odd", "kept")
                        .record(http_error(status, "upstream_status"))
                        .record([is("upstream_status", status), is("attempts", 1)]),
                );
            }
            cases.push(
                of("e26.status_400", dialect, mode)
                    .plays(Play::json(400, dialect.error_body()))
                    .status(400)
                    .record([
                        is("outcome", "other"),
                        is("reason", "upstream_status"),
                        is("client_status", 400),
                        is("literal_http_error", false),
                    ]),
            );
            cases.push(
                of("e26.status_400_counted", dialect, mode)
                    .under(Profile::From400)
                    .plays(Play::json(400, dialect.error_body()))
                    .status(400)
                    .record([
                        is("outcome", "http_error"),
                        is("reason", "upstream_status"),
                        is("literal_http_error", false),
                    ]),
            );
        }
    }
    cases.push(
        of("e26.status_302", Chat, Mode::Whole)
            .plays(Play::reply(302, "location: /elsewhere\r\n", ""))
            .status(302)
            .header("location", "/elsewhere")
            .record([is("outcome", "other"), is("reason", "unexpected_status")]),
    );
    cases.push(
        of("e26.status_500", Embeddings, Mode::Whole)
            .plays(Play::json(500, Embeddings.error_body()))
            .status(500)
            .record([is("outcome", "http_error"), is("reason", "upstream_status")]),
    );
    cases
}

/// What the gateway itself refuses does not reach the upstream, and is in the denominator.
fn refusals() -> Vec<Case> {
    let mut cases = Vec::new();
    for dialect in GENERATING {
        for (name, body) in
            [("no_json", "{\"model\":"), ("a_list", "[1]"), ("no_body", ""), ("no_text", "hello")]
        {
            cases.push(
                of(&format!("e26.refused_{name}"), dialect, Mode::Whole)
                    .body(body)
                    .plays(Play::mute())
                    .arrivals(0..=0)
                    .own_error(400)
                    .record([
                        is("outcome", "other"),
                        is("reason", "bad_request"),
                        is("attempts", 0),
                        null("upstream_status"),
                        null("first_token_time_ns"),
                    ]),
            );
        }
        cases.push(
            of("i99.nobody_behind", dialect, Mode::Stream)
                .under(Profile::NoUpstream)
                .plays(Play::mute())
                .arrivals(0..=0)
                .own_error(503)
                .header("retry-after", "")
                .arrives("", 0..=1500)
                .record(http_error(503, "upstream_unreachable")),
        );
    }
    for dialect in ASKED {
        cases.push(
            of("e26.refused_method", dialect, Mode::Whole)
                .request(|request| request.method = "GET")
                .body("")
                .plays(Play::mute())
                .arrivals(0..=0)
                .own_error(405)
                .record([is("outcome", "http_error"), is("reason", "method_not_allowed")]),
        );
    }
    cases.push(
        of("e26.unknown_path", Chat, Mode::Whole)
            .request(|request| request.path = "/v9/chat".to_owned())
            .plays(Play::mute())
            .arrivals(0..=0)
            .own_error(404)
            .record([is("outcome", "http_error"), is("reason", "unknown_path"), is("endpoint", "other")]),
    );
    cases
}

/// Whole bodies that are not what they should be pass unchanged, and are told apart.
fn bodies() -> Vec<Case> {
    let mut cases = Vec::new();
    for dialect in GENERATING {
        for (name, body) in
            [("no_json", "<html>oops</html>"), ("cut_json", "{\"choices\":[{\"message\":"), ("a_list", "[]")]
        {
            cases.push(
                of(&format!("e41.body_{name}"), dialect, Mode::Whole)
                    .plays(Play::json(200, body))
                    .record([
                        is("outcome", "interrupted"),
                        is("reason", "malformed_body"),
                        null("output_tokens"),
                    ])
                    .flags_allowed(&["body_malformed", "usage_missing"]),
            );
        }
        cases.push(
            of("e65.whole_and_no_byte", dialect, Mode::Whole)
                .plays(Play::json(200, ""))
                .record([is("outcome", "interrupted"), is("reason", "empty_response")])
                .flags_allowed(&["body_malformed", "usage_missing"]),
        );
    }
    let odd = "{\"b\":1,  \"a\":123456789012345678901234567890,\n\"choices\":[{\"message\":{\"content\":\"\\u65e5\"},\"finish_reason\":\"stop\",\"index\":0}],\"usage\":{\"completion_tokens\":5,\"prompt_tokens\":7,\"total_tokens\":12}} \n";
    cases.push(
        of("g06.odd_json_passes", Chat, Mode::Whole)
            .plays(Play::json(200, odd))
            .record(all([success(), counts(7, 5)])),
    );
    for dialect in [Completions, Messages] {
        let body = dialect.whole("x", Finish::Stop, &COUNTS).replace(",\"", ",\n  \"");
        cases.push(
            of("g06.odd_json_passes", dialect, Mode::Whole)
                .plays(Play::json(200, body))
                .record(all([success(), counts(7, 5)])),
        );
    }
    cases
}
