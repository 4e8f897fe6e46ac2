//! Whole replies that the gateway assembles of a stream (`measure.stream_upstream`): what the caller gets, and the
//! times that only a stream can give.
//!
//! Apart because the upstream's bytes are not the caller's here. A body is compared by the members that it must hold.
//! Must not know: other sections.

use serde_json::{Value, json};

use crate::faults::case::{Body, Case, Section, Sent, case};
use crate::faults::check::{
    Check, about, all, at_least, counts, http_error, is, known, one_of, split, success,
};
use crate::faults::dialect::{
    Dialect, Finish, GENERATING, Mode, Usage, answer, chat_chunk, chat_delta, completions_chunk, frame, usage,
};
use crate::faults::gateway::Profile;
use crate::faults::script::Play;

use Dialect::{Chat, Completions, Messages, Responses};

const COUNTS: Usage = Usage { input: 7, output: 5, reasoning: None, cached: None };

pub fn cases() -> Vec<Case> {
    [texts(), parts(), several(), failures(), untouched()].concat()
}

fn of(name: &str, dialect: Dialect) -> Case {
    case(Section::Assembled, name, dialect, Mode::Whole).under(Profile::Assembling).sent(Sent::Streaming)
}

fn holding(case: Case, value: Value) -> Case {
    case.sees(Body::Holding(value)).header("content-type", "application/json")
}

fn seen() -> Vec<Check> {
    all([success(), counts(7, 5), vec![is("stream", false), is("transfer", "streamed")]])
}

/// Text arrives in two parts, 100 and 200 ms after the request, and as one.
fn texts() -> Vec<Case> {
    let expected = |dialect: Dialect| match dialect {
        Completions => json!({
            "id": "t-1", "object": "text_completion", "created": 1_700_000_000, "model": "m",
            "choices": [{"index": 0, "text": "hello 日本", "finish_reason": "stop"}],
            "usage": {"prompt_tokens": 7, "completion_tokens": 5, "total_tokens": 12},
        }),
        Responses => json!({
            "id": "r-1", "object": "response", "status": "completed",
            "usage": {"input_tokens": 7, "output_tokens": 5, "total_tokens": 12},
        }),
        Messages => json!({
            "id": "m-1", "type": "message", "role": "assistant", "model": "m",
            "content": [{"type": "text", "text": "hello 日本"}], "stop_reason": "end_turn",
            "usage": {"input_tokens": 7, "output_tokens": 5},
        }),
        Chat | Dialect::Embeddings | Dialect::Plain => json!({
            "id": "c-1", "object": "chat.completion", "created": 1_700_000_000, "model": "m",
            "choices": [{
                "index": 0, "message": {"role": "assistant", "content": "hello 日本"}, "finish_reason": "stop",
            }],
            "usage": {"prompt_tokens": 7, "completion_tokens": 5, "total_tokens": 12},
        }),
    };
    let case_of = |dialect: Dialect| {
        let play = Play::sse()
            .open(dialect, &COUNTS)
            .pause(100)
            .text(dialect, "hello ")
            .pause(100)
            .text(dialect, "日本")
            .close_with(dialect, Finish::Stop, &COUNTS);
        holding(of("s08.text", dialect).plays(play), expected(dialect)).record(seen()).record([
            at_least("first_token_time_ns", 100),
            is("first_token_time_mark", "measured"),
            about("content_time_ns", 100),
            known("time_per_token_ns"),
        ])
    };
    // The assembling of Responses and Messages is judged by the same rule as that of the other two.
    GENERATING.map(case_of).to_vec()
}

fn chat(name: &str, deltas: &[&str], finish: Finish, counts: &Usage, message: Value, word: &str) -> Case {
    let play = deltas.iter().fold(Play::sse(), |play, delta| play.send(chat_delta(delta)).pause(60));
    let choice = json!({"index": 0, "message": message, "finish_reason": word});
    holding(of(name, Chat).plays(play.close_with(Chat, finish, counts)), json!({"choices": [choice]}))
}

/// Each kind of payload comes out as a server that does not stream would have put it.
fn parts() -> Vec<Case> {
    let counted = Usage { reasoning: Some(3), ..COUNTS };
    vec![
        chat(
            "s08.reasoning_content",
            &[r#"{"role":"assistant"}"#, r#"{"reasoning_content":"hm "}"#, r#"{"reasoning_content":"so"}"#, r#"{"content":"a"}"#],
            Finish::Stop,
            &counted,
            json!({"role": "assistant", "reasoning_content": "hm so", "content": "a"}),
            "stop",
        )
        .record(all([success(), split(3, 2, "reported")]))
        .record([about("reasoning_time_ns", 60), is("content_time_ns", 0)]),
        chat(
            "s08.reasoning",
            &[r#"{"reasoning":"hm "}"#, r#"{"reasoning":"so"}"#, r#"{"content":"a"}"#],
            Finish::Length,
            &counted,
            json!({"reasoning": "hm so", "content": "a"}),
            "length",
        )
        .record(success()),
        chat(
            "s08.tool_calls",
            &[
                r#"{"role":"assistant","content":null}"#,
                r#"{"tool_calls":[{"index":0,"id":"k0","type":"function","function":{"name":"f","arguments":""}}]}"#,
                r#"{"tool_calls":[{"index":0,"function":{"arguments":"{\"a\""}}]}"#,
                r#"{"tool_calls":[{"index":1,"id":"k1","type":"function","function":{"name":"g","arguments":"{}"}}]}"#,
                r#"{"tool_calls":[{"index":0,"function":{"arguments":":1}"}}]}"#,
            ],
            Finish::Tool,
            &COUNTS,
            json!({"role": "assistant", "content": null, "tool_calls": [
                {"id": "k0", "type": "function", "function": {"name": "f", "arguments": "{\"a\":1}"}},
                {"id": "k1", "type": "function", "function": {"name": "g", "arguments": "{}"}},
            ]}),
            "tool_calls",
        )
        .record(seen()),
        chat("s08.refusal", &[r#"{"refusal":"I "}"#, r#"{"refusal":"will not"}"#], Finish::Stop, &COUNTS, json!({"refusal": "I will not"}), "stop")
            .record(seen()),
        logprobs(),
        usage_passes(),
    ]
}

fn logprobs() -> Case {
    let piece = |text: &str, value: f64| {
        let choice = format!(
            r#"{{"index":0,"delta":{{"content":"{text}"}},"logprobs":{{"content":[{{"token":"{text}","logprob":{value},"bytes":null,"top_logprobs":[]}}]}},"finish_reason":null}}"#
        );
        frame(&chat_chunk(&choice, ""))
    };
    let play = Play::sse().send(piece("a", -0.25)).send(piece("b", -0.5));
    let expected = json!({"choices": [{
        "message": {"content": "ab"},
        "logprobs": {"content": [{"token": "a", "logprob": -0.25}, {"token": "b", "logprob": -0.5}]},
    }]});
    holding(
        of("s08.logprobs", Chat).asking(r#","logprobs":true"#).plays(play.close_with(
            Chat,
            Finish::Stop,
            &COUNTS,
        )),
        expected,
    )
    .record(seen())
}

/// Usage with every detail, and members that nobody here knows.
fn usage_passes() -> Case {
    let counted = Usage { reasoning: Some(0), cached: Some(4), ..COUNTS };
    let first = frame(&chat_chunk(
        r#"{"index":0,"delta":{"content":"a"},"finish_reason":null}"#,
        r#","system_fingerprint":"fp-1""#,
    ));
    let expected = json!({
        "system_fingerprint": "fp-1",
        "usage": {
            "prompt_tokens": 7, "completion_tokens": 5, "total_tokens": 12,
            "prompt_tokens_details": {"cached_tokens": 4},
            "completion_tokens_details": {"reasoning_tokens": 0},
        },
    });
    holding(
        of("s08.usage_details", Chat).plays(Play::sse().send(first).close_with(Chat, Finish::Stop, &counted)),
        expected,
    )
    .record(seen())
    .record([is("cached_tokens", 4)])
}

fn several() -> Vec<Case> {
    let delta = |index: u32, text: &str| {
        frame(&chat_chunk(
            &format!(r#"{{"index":{index},"delta":{{"content":"{text}"}},"finish_reason":null}}"#),
            "",
        ))
    };
    let end = |index: u32, word: &str| {
        frame(&chat_chunk(&format!(r#"{{"index":{index},"delta":{{}},"finish_reason":"{word}"}}"#), ""))
    };
    let play = Play::sse()
        .send(delta(1, "b"))
        .send(delta(0, "a"))
        .send(delta(1, "d"))
        .send(end(1, "length"))
        .send(delta(0, "c"))
        .send(end(0, "stop"))
        .if_asked(Chat.usage_chunk(&COUNTS))
        .send(frame("[DONE]"))
        .end();
    let expected = json!({"choices": [
        {"index": 0, "message": {"content": "ac"}, "finish_reason": "stop"},
        {"index": 1, "message": {"content": "bd"}, "finish_reason": "length"},
    ]});
    let text = |index: u32, text: &str, finish: &str| {
        frame(&completions_chunk(
            &format!(r#"{{"index":{index},"text":"{text}","finish_reason":{finish}}}"#),
            "",
        ))
    };
    let prompts = Play::sse()
        .send(text(1, "b", "null"))
        .send(text(0, "a", r#""stop""#))
        .send(text(1, "d", r#""stop""#))
        .if_asked(Completions.usage_chunk(&COUNTS))
        .send(frame("[DONE]"))
        .end();
    let of_prompts = json!({"choices": [{"index": 0, "text": "a"}, {"index": 1, "text": "bd"}]});
    vec![
        holding(of("s08.two_choices", Chat).asking(r#","n":2"#).plays(play), expected).record(seen()),
        holding(
            of("s08.two_prompts", Completions)
                .body(r#"{"model":"@MODEL@","prompt":["a","b"]}"#)
                .plays(prompts),
            of_prompts,
        )
        .record(seen()),
    ]
}

/// Nothing has gone to the caller yet, so a fault within the stream is a status.
fn failures() -> Vec<Case> {
    let mut cases = Vec::new();
    for dialect in GENERATING {
        cases.push(
            of("s08.died", dialect)
                .plays(Play::sse().text(dialect, "x").pause(20).close())
                .own_error(502)
                .record([
                    is("outcome", "http_error"),
                    is("reason", "upstream_truncated"),
                    is("client_status", 502),
                ]),
        );
        cases.push(
            of("s08.upstream_says_500", dialect)
                .plays(Play::json(500, dialect.error_body()))
                .status(500)
                .record(http_error(500, "upstream_status")),
        );
        // A server that does not stream after all: its reply is the caller's.
        cases.push(
            of("s08.upstream_does_not_stream", dialect)
                .plays(answer(dialect, Mode::Whole, &COUNTS))
                .record(all([success(), counts(7, 5), vec![is("transfer", "whole")]])),
        );
    }
    for dialect in [Chat, Completions] {
        cases.push(
            of("s08.error_event", dialect)
                .plays(Play::sse().text(dialect, "x").send(dialect.error()).send(frame("[DONE]")).end())
                // The event says that it is a 500, and so does the reply.
                .own_error(500)
                .record([
                    is("client_status", 500),
                    is("outcome", "http_error"),
                    one_of("reason", &["error_event", "upstream_status"]),
                ]),
        );
    }
    cases
}

/// Callers that stream are served as ever.
fn untouched() -> Vec<Case> {
    let case_of = |dialect: Dialect| {
        case(Section::Assembled, "s08.streaming_callers", dialect, Mode::Stream)
            .under(Profile::Assembling)
            .plays(answer(dialect, Mode::Stream, &usage(7, 5)))
            .record(all([success(), counts(7, 5)]))
    };
    GENERATING.map(case_of).to_vec()
}
