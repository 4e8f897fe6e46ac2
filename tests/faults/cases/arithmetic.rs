//! Counts and what is made of them: sums, nulls, clamps, and where a number may not be made at all.
//!
//! Apart from usage, which is about where counts stand. The formulas themselves are held by `laws` for every record.
//! Must not know: other sections.

use crate::faults::case::{Case, Section, case};
use crate::faults::check::{
    Check, about, all, at_least, counts, is, known, not_streamed, nothing_cached, null, split, success,
};
use crate::faults::dialect::{
    Dialect, Finish, GENERATING, MODES, Mode, Usage, chat_chunk, completions_chunk, frame, usage,
};
use crate::faults::script::{Play, Whose};

use Dialect::{Chat, Completions, Embeddings, Messages, Responses};

pub fn cases() -> Vec<Case> {
    [few_tokens(), odd_counts(), several(), cached(), speeds(), embeddings()].concat()
}

fn of(name: &str, dialect: Dialect, mode: Mode) -> Case {
    case(Section::Arithmetic, name, dialect, mode)
}

/// One token: nothing lies between tokens, and everything else is there.
fn few_tokens() -> Vec<Case> {
    let one = |dialect: Dialect| {
        let play = Play::sse().open(dialect, &usage(7, 1)).pause(80).text(dialect, "x");
        of("b21.one_token", dialect, Mode::Stream)
            .plays(play.close_with(dialect, Finish::Length, &usage(7, 1)))
            .record(all([success(), counts(7, 1)]))
            .record([
                null("time_per_token_ns"),
                is("time_per_token_mark", "one_token"),
                null("client_time_per_token_ns"),
                is("content_time_ns", 0),
                null("content_speed_tokens_per_second"),
                at_least("first_token_time_ns", 80),
                known("average_speed_tokens_per_second"),
                known("average_output_speed_tokens_per_second"),
                is("finish", "length"),
            ])
    };
    let mut cases = GENERATING.map(one).to_vec();
    // One counted body token takes no time, however many frames it came in.
    let counted = Usage { reasoning: Some(4), ..usage(3, 5) };
    let play = Play::sse().reasoning(Chat, "hm").pause(60).text(Chat, "a").pause(120).text(Chat, "b");
    cases.push(
        of("b21.one_body_token", Chat, Mode::Stream)
            .plays(play.close_with(Chat, Finish::Stop, &counted))
            .record(all([success(), split(4, 1, "reported")]))
            .record([
                is("content_time_ns", 0),
                null("content_speed_tokens_per_second"),
                about("content_active_ns", 120),
            ]),
    );
    cases
}

/// A chat answer with a thought in it and this usage, in both modes.
fn with_usage(
    name: &str,
    reasoning: &str,
    json: &str,
    checks: Vec<Check>,
    flags: &[&'static str],
) -> Vec<Case> {
    let stream = Play::sse();
    let stream = if reasoning.is_empty() { stream } else { stream.reasoning(Chat, reasoning) };
    let chunk = frame(&chat_chunk("", &format!(r#","usage":{json}"#)));
    let stream =
        stream.text(Chat, "a").send(Chat.finish(Finish::Stop)).if_asked(chunk).send(frame("[DONE]")).end();
    let thought = match reasoning.is_empty() {
        true => String::new(),
        false => format!(r#","reasoning_content":"{reasoning}""#),
    };
    let message = format!(r#"{{"role":"assistant","content":"a"{thought}}}"#);
    let whole = Play::json(200, Chat.whole_chat(&message, Finish::Stop, json));
    let case_of =
        |(mode, play)| of(name, Chat, mode).plays(play).record(success()).record(checks.clone()).flags(flags);
    [(Mode::Stream, stream), (Mode::Whole, whole)].map(case_of).to_vec()
}

fn odd_counts() -> Vec<Case> {
    [
        with_usage(
            "b24.reasoning_outside_output",
            "hm",
            r#"{"prompt_tokens":10,"completion_tokens":4,"total_tokens":20,"completion_tokens_details":{"reasoning_tokens":6}}"#,
            all([vec![is("output_tokens", 10), is("total_tokens", 20), is("total_tokens_reported", 20)], split(6, 4, "reported")]),
            &[],
        ),
        with_usage(
            "b24.reasoning_within_output",
            "hm",
            r#"{"prompt_tokens":10,"completion_tokens":10,"total_tokens":20,"completion_tokens_details":{"reasoning_tokens":6}}"#,
            all([counts(10, 10), split(6, 4, "reported")]),
            &[],
        ),
        with_usage(
            "b24.reasoning_over_output",
            "hm",
            r#"{"prompt_tokens":10,"completion_tokens":5,"total_tokens":15,"completion_tokens_details":{"reasoning_tokens":9}}"#,
            all([counts(10, 5), vec![is("reasoning_tokens", 5), is("content_tokens", 0)]]),
            &["reasoning_over_output"],
        ),
        with_usage(
            "b24.reasoning_zero_though_seen",
            "hm",
            r#"{"prompt_tokens":10,"completion_tokens":5,"total_tokens":15,"completion_tokens_details":{"reasoning_tokens":0}}"#,
            vec![null("reasoning_tokens"), is("reasoning_tokens_mark", "reasoning_unknown"), null("content_tokens")],
            &[],
        ),
        with_usage(
            "b24.reasoning_silent_though_seen",
            "hm",
            r#"{"prompt_tokens":10,"completion_tokens":5,"total_tokens":15}"#,
            vec![null("reasoning_tokens"), is("reasoning_tokens_mark", "reasoning_unknown"), null("content_tokens")],
            &[],
        ),
        with_usage(
            "b24.reasoning_zero_and_none_seen",
            "",
            r#"{"prompt_tokens":10,"completion_tokens":5,"total_tokens":15,"completion_tokens_details":{"reasoning_tokens":0}}"#,
            split(0, 5, "reported"),
            &[],
        ),
        with_usage(
            "b48.total_mismatch",
            "",
            r#"{"prompt_tokens":10,"completion_tokens":5,"total_tokens":99}"#,
            all([counts(10, 5), vec![is("total_tokens_reported", 99)]]),
            &["total_mismatch"],
        ),
        with_usage(
            "b48.total_absent",
            "",
            r#"{"prompt_tokens":10,"completion_tokens":5}"#,
            all([counts(10, 5), vec![null("total_tokens_reported")]]),
            &[],
        ),
        with_usage(
            "b25.cached_over_input",
            "",
            r#"{"prompt_tokens":10,"completion_tokens":5,"total_tokens":15,"prompt_tokens_details":{"cached_tokens":12}}"#,
            vec![is("cached_tokens", 10)],
            &["cached_over_input"],
        ),
    ]
    .concat()
}

/// Two sequences of completions, of which one is cut.
fn two_texts() -> Play {
    let text = |index: u32, text: &str, finish: &str| {
        let choice = format!(r#"{{"index":{index},"text":"{text}","finish_reason":{finish}}}"#);
        frame(&completions_chunk(&choice, ""))
    };
    Play::sse()
        .send(text(0, "a", "null"))
        .send(text(1, "b", "null"))
        .send(text(0, "", r#""stop""#))
        .send(text(1, "", r#""length""#))
        .if_asked(Completions.usage_chunk(&usage(7, 8)))
        .send(frame("[DONE]"))
        .end()
}

/// Several choices or prompts: counts are sums, and a time per token cannot be made.
fn several() -> Vec<Case> {
    let chat = |index: u32, text: &str| {
        frame(&chat_chunk(
            &format!(r#"{{"index":{index},"delta":{{"content":"{text}"}},"finish_reason":null}}"#),
            "",
        ))
    };
    let ends = |index: u32| {
        frame(&chat_chunk(&format!(r#"{{"index":{index},"delta":{{}},"finish_reason":"stop"}}"#), ""))
    };
    let chat_play = Play::sse()
        .send(chat(0, "a"))
        .pause(50)
        .send(chat(1, "b"))
        .pause(50)
        .send(chat(0, "c"))
        .send(ends(1))
        .send(ends(0))
        .if_asked(Chat.usage_chunk(&usage(7, 8)))
        .send(frame("[DONE]"))
        .end();
    let checks = || {
        all([
            success(),
            counts(7, 8),
            vec![
                null("time_per_token_ns"),
                is("time_per_token_mark", "several_sequences"),
                known("first_token_time_ns"),
            ],
        ])
    };
    vec![
        of("b10.two_choices", Chat, Mode::Stream)
            .asking(r#","n":2"#)
            .plays(chat_play)
            .record(checks())
            .record([is("choices", 2)]),
        of("b10.two_choices", Completions, Mode::Stream)
            .asking(r#","n":2"#)
            .plays(two_texts())
            .record(checks())
            .record([is("finish", "length")]),
        of("b10.two_prompts", Completions, Mode::Stream)
            .body(r#"{"model":"@MODEL@","prompt":["a","b"],"stream":true}"#)
            .plays(two_texts())
            .record(checks())
            .record([is("prompts", 2)]),
        of("b10.one_prompt_in_a_list", Completions, Mode::Stream)
            .body(r#"{"model":"@MODEL@","prompt":["a"],"stream":true}"#)
            .plays(Play::sse().text(Completions, "a").close_with(Completions, Finish::Stop, &usage(7, 8)))
            .record(all([success(), counts(7, 8), vec![is("prompts", 1), known("time_per_token_ns")]])),
        of("b10.one_prompt_of_tokens", Completions, Mode::Stream)
            .body(r#"{"model":"@MODEL@","prompt":[1,2,3],"stream":true}"#)
            .plays(Play::sse().text(Completions, "a").close_with(Completions, Finish::Stop, &usage(7, 8)))
            .record(all([success(), vec![is("prompts", 1), known("time_per_token_ns")]])),
        of("b10.n_null", Chat, Mode::Stream)
            .asking(r#","n":null"#)
            .plays(Play::sse().text(Chat, "a").close_with(Chat, Finish::Stop, &usage(7, 8)))
            .record(all([success(), vec![is("choices", 1), known("time_per_token_ns")]])),
    ]
}

/// An answer from a cache comes at once: no speed is made of a time of nothing.
fn cached() -> Vec<Case> {
    let counted = Usage { cached: Some(900), ..usage(1000, 50) };
    let case_of = |dialect: Dialect| {
        let mut pieces =
            vec![(dialect.open(&counted), Whose::Callers), (dialect.text("all of it"), Whose::Callers)];
        pieces.extend(dialect.close(Finish::Stop, &counted));
        let pieces = pieces.into_iter().map(|(text, whose)| (text.into(), whose)).collect();
        of("b25.cached_at_once", dialect, Mode::Stream)
            .plays(Play::sse().write(pieces).end())
            .record(all([success(), counts(1000, 50)]))
            .record([
                is("cached_tokens", 900),
                is("cached_tokens_mark", "reported"),
                is("content_time_ns", 0),
                null("content_speed_tokens_per_second"),
                is("time_per_token_ns", 0),
            ])
    };
    GENERATING.map(case_of).to_vec()
}

/// The literal average counts the input, ours does not; both are there, apart.
fn speeds() -> Vec<Case> {
    let case_of = |dialect: Dialect| {
        let counted = usage(1000, 10);
        let play =
            Play::sse().open(dialect, &counted).pause(100).text(dialect, "a").pause(400).text(dialect, "b");
        of("b23.average_speeds", dialect, Mode::Stream)
            .plays(play.close_with(dialect, Finish::Stop, &counted))
            .record(success())
            .record(counts(1000, 10))
            // 1010 tokens in 500 to 900 ms, and 10 in the same time.
            .record([
                Check::Between("full_response_time_ns", 500, 900),
                known("average_speed_tokens_per_second"),
                known("average_output_speed_tokens_per_second"),
            ])
    };
    GENERATING.map(case_of).to_vec()
}

/// Endpoints that generate nothing have input and no more.
fn embeddings() -> Vec<Case> {
    vec![
        of("b11.embeddings", Embeddings, Mode::Whole)
            .plays(Play::json(200, Embeddings.whole("", Finish::Stop, &usage(7, 0))))
            .record(all([vec![is("outcome", "success"), is("input_tokens", 7)], nothing_cached()]))
            .record([null("output_tokens"), null("first_token_time_ns"), null("time_per_token_ns")]),
    ]
    .into_iter()
    .chain([Messages, Responses, Chat, Completions].map(|dialect| {
        of("b11.no_stages_of_a_whole_reply", dialect, MODES[1])
            .plays(Play::json(200, dialect.whole("x", Finish::Stop, &usage(7, 5))))
            .record(all([success(), not_streamed(), nothing_cached()]))
            .record([null("content_speed_tokens_per_second"), known("average_speed_tokens_per_second")])
    }))
    .collect()
}
