//! When the first token is, and how long each stage takes: what counts as a token and what does not.
//!
//! Apart from arithmetic, which takes these times for granted. Gaps tell right from wrong by a factor of two at
//! least. Must not know: other sections.

use std::time::Duration;

use crate::faults::case::{Case, Section, Sending, case};
use crate::faults::check::{
    Check, about, all, at_least, behind, counts, is, known, not_streamed, null, split, split_unknown, success,
};
use crate::faults::dialect::{
    Dialect, Finish, GENERATING, Mode, REASONING, Usage, chat_delta, frame, named_frame, usage,
};
use crate::faults::gateway::Profile;
use crate::faults::script::Play;

use Dialect::{Chat, Completions, Messages, Responses};

const FIVE: Usage = Usage { input: 7, output: 5, reasoning: None, cached: None };

pub fn cases() -> Vec<Case> {
    [
        before_the_first(),
        stages(),
        one_chunk(),
        other_payloads(),
        names_of_reasoning(),
        inline_thoughts(),
        whole(),
        heads(),
        slow_request(),
    ]
    .concat()
}

fn stream(name: &str, dialect: Dialect) -> Case {
    case(Section::FirstToken, name, dialect, Mode::Stream)
}

/// Frames without a payload come at once, the first token 200 ms later.
fn late_token(name: &str, dialect: Dialect, before: &str) -> Case {
    let play =
        Play::sse().send(before).pause(200).text(dialect, " ").pause(100).text(dialect, "b").close_with(
            dialect,
            Finish::Stop,
            &FIVE,
        );
    stream(name, dialect).plays(play).record(all([success(), counts(7, 5), split(0, 5, "inferred")])).record(
        [
            at_least("first_token_time_ns", 200),
            at_least("full_response_time_ns", 300),
            about("content_time_ns", 100),
            is("first_token_time_mark", "measured"),
            null("reasoning_time_ns"),
            is("reasoning_time_mark", "no_reasoning"),
            known("client_first_token_time_ns"),
        ],
    )
}

fn before_the_first() -> Vec<Case> {
    let mut cases = Vec::new();
    for dialect in GENERATING {
        cases.push(late_token("a01.opening_frames", dialect, &dialect.open(&FIVE)).record([behind(
            "first_token_ns",
            "first_frame_ns",
            150,
        )]));
        cases.push(late_token("a12.comments", dialect, ": keep-alive\n\n: keep-alive\n\n"));
    }
    let none = [
        ("a01.role_null", chat_delta(r#"{"role":"assistant","content":null}"#)),
        ("a01.role_alone", chat_delta(r#"{"role":"assistant"}"#)),
        ("a01.empty_delta", chat_delta("{}")),
        ("a01.empty_reasoning", chat_delta(r#"{"reasoning_content":"","reasoning":""}"#)),
        ("a01.null_reasoning", chat_delta(r#"{"reasoning_content":null,"tool_calls":null,"refusal":null}"#)),
        ("a01.empty_tool_calls", chat_delta(r#"{"tool_calls":[]}"#)),
        ("a01.no_choices", frame(r#"{"id":"c-1","object":"chat.completion.chunk","choices":[]}"#)),
        (
            "a01.prompt_progress",
            frame(r#"{"choices":[],"prompt_progress":{"total":10,"cache":0,"processed":4,"time_ms":5}}"#),
        ),
        ("a01.usage_null", frame(r#"{"choices":[{"index":0,"delta":{"content":""}}],"usage":null}"#)),
    ];
    cases.extend(none.into_iter().map(|(name, before)| late_token(name, Chat, &before)));
    let ping = named_frame("ping", r#"{"type":"ping"}"#);
    cases.push(late_token("a01.pings", Messages, &[Messages.open(&FIVE), ping.clone(), ping].concat()));
    let queued = named_frame(
        "response.queued",
        r#"{"type":"response.queued","sequence_number":0,"response":{"id":"r-1","status":"queued"}}"#,
    );
    cases.push(late_token("a16.queued", Responses, &queued));
    cases
}

/// Reasoning for 200 ms, a gap of 50 ms, text for 100 ms.
fn thinking(dialect: Dialect, counts: &Usage, finish: Finish) -> Play {
    Play::sse()
        .open(dialect, counts)
        .pause(50)
        .reasoning(dialect, "hm")
        .pause(200)
        .reasoning(dialect, "so")
        .pause(50)
        .text(dialect, "a")
        .pause(100)
        .text(dialect, "b")
        .close_with(dialect, finish, counts)
}

/// Reasoning and nothing else, cut by the limit.
fn cut_in_thought(dialect: Dialect, counts: &Usage) -> Play {
    Play::sse()
        .open(dialect, counts)
        .pause(50)
        .reasoning(dialect, "hm")
        .pause(200)
        .reasoning(dialect, "so")
        .close_with(dialect, Finish::Length, counts)
}

fn stages() -> Vec<Case> {
    let mut cases = Vec::new();
    for dialect in REASONING {
        // Messages counts thinking within its output and says no more of it.
        let says = dialect != Messages;
        let counted = Usage { reasoning: says.then_some(6), ..usage(10, 16) };
        let of_reasoning = if says { split(6, 10, "reported") } else { split_unknown() };
        cases.push(
            stream("a03.reasoning_then_text", dialect)
                .plays(thinking(dialect, &counted, Finish::Stop))
                .record(all([success(), counts(10, 16), of_reasoning]))
                .record([
                    at_least("first_token_time_ns", 50),
                    about("reasoning_time_ns", 200),
                    about("content_time_ns", 100),
                    at_least("full_response_time_ns", 400),
                    behind("content_first_ns", "reasoning_last_ns", 20),
                ]),
        );
        let cut = Usage { reasoning: says.then_some(8), ..usage(10, 8) };
        let of_reasoning = if says { split(8, 0, "reported") } else { split_unknown() };
        cases.push(
            stream("a03.cut_in_reasoning", dialect)
                .plays(cut_in_thought(dialect, &cut))
                .record(all([success(), counts(10, 8), of_reasoning]))
                .record([
                    is("finish", "length"),
                    at_least("first_token_time_ns", 50),
                    about("reasoning_time_ns", 200),
                    null("content_first_ns"),
                    null("content_time_ns"),
                    is("content_time_mark", "no_body"),
                ])
                .flags(&["truncated_in_reasoning"]),
        );
        // One reasoning payload of unknown count has no inside; one counted token takes no time.
        let one = Usage { reasoning: says.then_some(1), ..usage(10, 3) };
        cases.push(
            stream("a03.one_reasoning_token", dialect)
                .plays(
                    Play::sse()
                        .open(dialect, &one)
                        .reasoning(dialect, "hm")
                        .pause(100)
                        .text(dialect, "a")
                        .pause(100)
                        .text(dialect, "b")
                        .close_with(dialect, Finish::Stop, &one),
                )
                .record(success())
                .record([
                    is("reasoning_time_ns", 0),
                    is("reasoning_time_mark", if says { "measured" } else { "inferred" }),
                    null("reasoning_speed_tokens_per_second"),
                    about("content_time_ns", 100),
                ]),
        );
    }
    cases.push(interleaved());
    cases
}

/// Thought, text, thought, text: the spans overlap, the active stretches and gaps do not.
fn interleaved() -> Case {
    let counts = Usage { reasoning: Some(2), ..usage(3, 4) };
    let play = Play::sse()
        .reasoning(Chat, "one")
        .pause(100)
        .text(Chat, "a")
        .pause(100)
        .reasoning(Chat, "two")
        .pause(100)
        .text(Chat, "b")
        .close_with(Chat, Finish::Stop, &counts);
    stream("a03.interleaved", Chat).plays(play).record(success()).record([
        about("reasoning_time_ns", 200),
        about("content_time_ns", 200),
        is("reasoning_active_ns", 0),
        is("content_active_ns", 0),
        about("gaps_ns", 300),
    ])
}

fn one_chunk() -> Vec<Case> {
    let one = |dialect: Dialect| {
        let play = Play::sse()
            .open(dialect, &FIVE)
            .pause(150)
            .text(dialect, "the whole answer")
            .pause(150)
            .close_with(dialect, Finish::Stop, &FIVE);
        stream("a06.one_chunk", dialect).plays(play).record(all([success(), counts(7, 5)])).record([
            at_least("first_token_time_ns", 150),
            at_least("full_response_time_ns", 150),
            is("content_time_ns", 0),
            null("content_speed_tokens_per_second"),
            is("time_per_token_ns", 0),
            behind("terminal_ns", "last_token_ns", 100),
        ])
    };
    let steady = |dialect: Dialect| {
        let texts =
            (0..5).fold(Play::sse().open(dialect, &FIVE), |play, _| play.pause(60).text(dialect, "steady"));
        stream("a09.steady", dialect)
            .plays(texts.close_with(dialect, Finish::Stop, &FIVE))
            .arrives("steady", 60..=400)
            .record(all([success(), counts(7, 5)]))
            .record([
                at_least("first_token_time_ns", 60),
                about("content_time_ns", 240),
                about("time_per_token_ns", 60),
            ])
    };
    GENERATING.into_iter().flat_map(|dialect| [one(dialect), steady(dialect)]).collect()
}

/// Payloads that are no text: each is the first token, and each but reasoning is body.
fn other_payloads() -> Vec<Case> {
    let body = [
        (
            "a04.tool_name",
            Chat,
            chat_delta(r#"{"tool_calls":[{"index":0,"id":"k","type":"function","function":{"name":"f"}}]}"#),
        ),
        ("a04.tool_arguments", Chat, Chat.tool("{")),
        ("a04.tool_arguments", Responses, Responses.tool("{")),
        ("a04.tool_arguments", Messages, Messages.tool("{")),
        ("a04.function_call", Chat, chat_delta(r#"{"function_call":{"name":"f","arguments":"{}"}}"#)),
        ("a04.refusal", Chat, chat_delta(r#"{"refusal":"I will not"}"#)),
        (
            "a04.refusal",
            Responses,
            named_frame(
                "response.refusal.delta",
                r#"{"type":"response.refusal.delta","sequence_number":4,"item_id":"i-1","output_index":0,"content_index":0,"delta":"no"}"#,
            ),
        ),
        ("a04.audio", Chat, chat_delta(r#"{"audio":{"id":"a","data":"UklGRg=="}}"#)),
        (
            "a04.text_and_finish",
            Completions,
            frame(r#"{"choices":[{"index":0,"text":"x","finish_reason":"stop"}]}"#),
        ),
        (
            "a04.text_and_finish",
            Chat,
            frame(r#"{"choices":[{"index":0,"delta":{"content":"x"},"finish_reason":"stop"}]}"#),
        ),
    ];
    let case_of = |(name, dialect, payload): (&str, Dialect, String)| {
        let play = Play::sse().open(dialect, &FIVE).pause(150).send(payload).pause(100).close_with(
            dialect,
            Finish::Tool,
            &FIVE,
        );
        stream(name, dialect)
            .plays(play)
            .record(all([success(), counts(7, 5), split(0, 5, "inferred")]))
            .record([
                at_least("first_token_time_ns", 150),
                known("content_first_ns"),
                null("reasoning_first_ns"),
            ])
    };
    body.into_iter().map(case_of).collect()
}

/// Every name of reasoning, once where it stands there twice.
fn names_of_reasoning() -> Vec<Case> {
    let reasoning = [
        ("a53.reasoning", r#"{"reasoning":"hm"}"#),
        ("a53.reasoning_content", r#"{"reasoning_content":"hm"}"#),
        ("a53.reasoning_both", r#"{"reasoning":"hm","reasoning_content":"hm"}"#),
        ("a53.reasoning_one_empty", r#"{"reasoning":"","reasoning_content":"hm","content":""}"#),
    ];
    let thought = |(name, delta): (&str, &str)| {
        let counts = Usage { reasoning: Some(4), ..usage(3, 6) };
        let play = Play::sse()
            .send(chat_delta(delta))
            .pause(150)
            .send(chat_delta(delta))
            .pause(50)
            .text(Chat, "a")
            .close_with(Chat, Finish::Stop, &counts);
        stream(name, Chat)
            .plays(play)
            .record(all([success(), split(4, 2, "reported")]))
            .record([about("reasoning_time_ns", 150), is("content_time_ns", 0)])
    };
    reasoning.into_iter().map(thought).collect()
}

/// A leading `<think>…</think>` in the text is reasoning where that is configured, and text where it is not.
fn inline_thoughts() -> Vec<Case> {
    let counted = usage(3, 6);
    let texts = |texts: &[&str]| {
        let begun = texts.iter().fold(Play::sse(), |play, text| play.text(Chat, text).pause(60));
        begun.close_with(Chat, Finish::Stop, &counted)
    };
    let thought: [(&str, &[&str], u64); 3] = [
        ("a53.think", &["<think>hm", " so</think>", "a", "b"], 60),
        ("a53.think_cut_anywhere", &["<thi", "nk>hm</th", "ink>", "a", "b"], 120),
        ("a53.think_behind_white_space", &["\n <think>", "hm</think>", "a", "b"], 60),
    ];
    let mut cases = Vec::new();
    for (name, pieces, reasoning) in thought {
        cases.push(
            stream(name, Chat)
                .under(Profile::InlineThink)
                .plays(texts(pieces))
                .record(all([success(), split_unknown()]))
                .record([about("reasoning_time_ns", reasoning), about("content_time_ns", 60)])
                .record([behind("content_first_ns", "reasoning_last_ns", 30)]),
        );
        cases.push(
            stream(&format!("{name}_as_text"), Chat)
                .plays(texts(pieces))
                .record(all([success(), split(0, 6, "inferred")]))
                .record([null("reasoning_first_ns"), about("content_time_ns", reasoning + 120)]),
        );
    }
    let unclosed = texts(&["<think>hm", " so"]);
    cases.push(
        stream("a53.think_and_no_answer", Chat)
            .under(Profile::InlineThink)
            .plays(unclosed)
            .record(success())
            .record([null("content_first_ns"), known("reasoning_first_ns")])
            .flags(&["no_answer"]),
    );
    cases.push(
        stream("a53.think_not_leading", Chat)
            .under(Profile::InlineThink)
            .plays(texts(&["a <think>", "b</think>"]))
            .record(all([success(), split(0, 6, "inferred")]))
            .record([null("reasoning_first_ns")]),
    );
    cases
}

/// A reply that does not stream has no first token, and its time is that of its last byte.
fn whole() -> Vec<Case> {
    let case_of = |dialect: Dialect| {
        let body = dialect.whole("hello there.", Finish::Stop, &FIVE);
        let (first, rest) = body.split_at(body.len() / 2);
        let head = format!(
            "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
            body.len()
        );
        let play = Play::head(&head).pause(100).send(first).pause(100).send(rest);
        case(Section::FirstToken, "a11.whole", dialect, Mode::Whole)
            .plays(play)
            .record(all([success(), counts(7, 5), split(0, 5, "inferred"), not_streamed()]))
            .record([
                at_least("full_response_time_ns", 200),
                is("full_response_time_mark", "measured"),
                behind("terminal_ns", "first_frame_ns", 50),
                null("first_token_ns"),
            ])
    };
    GENERATING.map(case_of).to_vec()
}

/// A request that takes 300 ms to arrive: neither leg begins before its last byte.
fn slow_request() -> Vec<Case> {
    let case_of = |dialect: Dialect| {
        let play = Play::sse().open(dialect, &FIVE).pause(60).text(dialect, "x");
        stream("a17.slow_request", dialect)
            .sends(Sending::InHalves(Duration::from_millis(300)))
            .plays(play.close_with(dialect, Finish::Stop, &FIVE))
            .record(success())
            .record([
                at_least("request_read_ns", 290),
                Check::Between("first_token_time_ns", 60, 280),
                Check::Between("client_first_token_time_ns", 60, 280),
                Check::Between("client_full_response_time_ns", 60, 280),
            ])
    };
    GENERATING.map(case_of).to_vec()
}

/// Head, first frame and first token are three things, and the head is passed on at once.
fn heads() -> Vec<Case> {
    let case_of = |dialect: Dialect| {
        let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n";
        let play = Play::mute().pause(100);
        let play =
            Play::head(head).pause(200).open(dialect, &FIVE).pause(200).text(dialect, "x").delayed(play);
        stream("a13.head_frame_token", dialect)
            .plays(play.close_with(dialect, Finish::Stop, &FIVE))
            .arrives("", 100..=280)
            .record(success())
            .record([
                behind("head_ns", "request_sent_ns", 100),
                behind("first_frame_ns", "head_ns", 120),
                behind("first_token_ns", "first_frame_ns", 120),
                at_least("first_token_time_ns", 500),
            ])
    };
    [Chat, Responses, Messages].map(case_of).to_vec()
}
