//! Usage: where it stands, when it counts, who asked for it, and what reaches the caller of it.
//!
//! Apart from arithmetic, which takes the counts for granted. The caller gets a usage chunk if it asked, and else
//! exactly the bytes of a server that was not asked. Must not know: other sections.

use crate::faults::case::{Case, Leaves, Leaving, Section, Sent, case};
use crate::faults::check::{
    Check, all, at_least, counts, interrupted, is, known, no_counts, nothing_cached, null, split, success,
};
use crate::faults::dialect::{
    ASKED, Dialect, Finish, GENERATING, Mode, Usage, answer, chat_chunk, frame, named_frame, usage,
};
use crate::faults::gateway::Profile;
use crate::faults::script::Play;

use Dialect::{Chat, Completions, Messages, Responses};

const COUNTS: Usage = Usage { input: 7, output: 5, reasoning: None, cached: None };

pub fn cases() -> Vec<Case> {
    [asking(), shapes(), places(), reads(), running(), cached(), messages(), never(), always(), refused()]
        .concat()
}

fn of(name: &str, dialect: Dialect, mode: Mode) -> Case {
    case(Section::Usage, name, dialect, mode)
}

fn stream(name: &str, dialect: Dialect) -> Case {
    of(name, dialect, Mode::Stream)
}

fn seen() -> Vec<Check> {
    all([success(), counts(7, 5)])
}

/// What a caller may say of usage. Unless it says true it gets none, and the request is changed in one place.
fn asking() -> Vec<Case> {
    let mut cases = Vec::new();
    for dialect in ASKED {
        for (name, members) in [
            ("d42.silent", ""),
            ("d42.false", r#","stream_options":{"include_usage":false}"#),
            ("d42.null", r#","stream_options":null"#),
            ("d42.empty", r#","stream_options":{}"#),
            ("d42.include_null", r#","stream_options":{"include_usage":null}"#),
            ("d42.spaced_false", ",  \"stream_options\" : { \"include_usage\" :\tfalse } "),
            ("d42.another_option", r#","stream_options":{"continuous_usage_stats":false}"#),
            ("d42.named_in_text", r#","user":"\"stream_options\":{\"include_usage\":true}""#),
            ("d42.escaped_key", r#","stream_opti\u006fns":{"include_usage":false}"#),
            ("d42.odd_members", r#","seed":123456789012345678901234567890, "x" : [ ] ,"top_p":1.0"#),
        ] {
            cases.push(
                stream(name, dialect)
                    .asking(members)
                    .plays(answer(dialect, Mode::Stream, &COUNTS))
                    .record(seen())
                    .record([is("usage_asked", "by_gateway")]),
            );
        }
        for (name, members) in [
            ("d42.true", r#","stream_options":{"include_usage":true}"#),
            ("d42.spaced_true", ", \"stream_options\":\n{\"x\":1, \"include_usage\" : true}"),
        ] {
            cases.push(
                stream(name, dialect)
                    .asking(members)
                    .request(|request| request.asks = true)
                    .plays(answer(dialect, Mode::Stream, &COUNTS))
                    .record(seen())
                    .record([is("usage_asked", "by_client")]),
            );
        }
        for (name, members) in [
            ("d43.silent", ""),
            ("d43.stream_false", r#","stream":false"#),
            ("d43.stream_null", r#","stream":null"#),
            ("d43.options_without_stream", r#","stream_options":{"include_usage":false}"#),
        ] {
            cases.push(
                of(name, dialect, Mode::Whole)
                    .asking(members)
                    .plays(answer(dialect, Mode::Whole, &COUNTS))
                    .record(seen()),
            );
        }
    }
    // These formats have no such option, and nothing is added to them.
    for dialect in [Responses, Messages] {
        cases
            .push(stream("d42.silent", dialect).plays(answer(dialect, Mode::Stream, &COUNTS)).record(seen()));
        cases.push(
            of("d43.silent", dialect, Mode::Whole)
                .plays(answer(dialect, Mode::Whole, &COUNTS))
                .record(seen()),
        );
    }
    cases
}

/// The usage chunk in the many shapes of its servers: it is cut out whole, and it counts.
fn shapes() -> Vec<Case> {
    let json = r#"{"prompt_tokens":7,"completion_tokens":5,"total_tokens":12}"#;
    let shapes = [
        (
            "d42.chunk_with_spaces",
            frame(
                r#"{"id": "c-1", "choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 5, "total_tokens": 12}}"#,
            ),
        ),
        ("d42.chunk_usage_first", frame(&format!(r#"{{"usage":{json},"choices":[]}}"#))),
        ("d42.chunk_in_two_lines", format!("data: {{\"choices\":[],\ndata: \"usage\":{json}}}\n\n")),
        (
            "d42.chunk_with_an_event_and_id",
            format!("event: message\nid: 9\ndata: {{\"choices\":[],\"usage\":{json}}}\n\n"),
        ),
        (
            "d42.chunk_with_more_members",
            frame(&format!(
                r#"{{"choices":[],"usage":{json},"system_fingerprint":null,"service_tier":"default","obfuscation":"xyz","timings":{{"predicted_ms":1.5}}}}"#
            )),
        ),
        (
            "d42.chunk_without_choices",
            frame(&format!(r#"{{"id":"c-1","object":"chat.completion.chunk","usage":{json}}}"#)),
        ),
        ("d42.chunk_with_null_error", frame(&format!(r#"{{"choices":[],"usage":{json},"error":null}}"#))),
    ];
    let mut cases = Vec::new();
    for dialect in ASKED {
        for (name, chunk) in &shapes {
            for asks in [false, true] {
                let play = Play::sse().text(dialect, "x").send(dialect.finish(Finish::Stop)).if_asked(chunk);
                let name = if asks { format!("{name}_asked") } else { (*name).to_owned() };
                let case = stream(&name, dialect).plays(play.send(frame("[DONE]")).end()).record(seen());
                cases.push(if asks { case.asking_usage() } else { case });
            }
        }
    }
    cases
}

fn chat_text(more: &str) -> String {
    frame(&chat_chunk(r#"{"index":0,"delta":{"content":"x"},"finish_reason":null}"#, more))
}

fn chat_stop(more: &str) -> String {
    frame(&chat_chunk(r#"{"index":0,"delta":{},"finish_reason":"stop"}"#, more))
}

/// Every place in which servers put usage.
fn places() -> Vec<Case> {
    let five = format!(r#","usage":{}"#, COUNTS.json(Chat));
    let done = frame("[DONE]");
    let null_usage = r#","usage":null"#;
    let cases = vec![
        stream("d44.null_until_the_last", Chat).plays(
            Play::sse()
                .send(chat_text(null_usage))
                .send(chat_stop(null_usage))
                .if_asked(Chat.usage_chunk(&COUNTS))
                .send(&done)
                .end(),
        ),
        stream("d44.with_the_finish", Chat)
            .plays(Play::sse().send(chat_text("")).send(chat_stop(&five)).send(&done).end()),
        stream("d44.with_the_finish_and_no_done", Chat)
            .plays(Play::sse().send(chat_text("")).send(chat_stop(&five)).end()),
        stream("d44.with_the_last_text", Chat).plays(
            Play::sse()
                .send(frame(&chat_chunk(
                    r#"{"index":0,"delta":{"content":"x"},"finish_reason":"stop"}"#,
                    &five,
                )))
                .send(&done)
                .end(),
        ),
        stream("d44.groq", Chat).plays(
            Play::sse()
                .send(chat_text(""))
                .send(chat_stop(r#","x_groq":{"id":"q","usage":{"queue_time":0.01,"prompt_tokens":7,"prompt_time":0.02,"completion_tokens":5,"completion_time":0.1,"total_tokens":12,"total_time":0.12}}"#))
                .send(&done)
                .end(),
        ),
        stream("d44.filter_results_without_choices", Chat).plays(
            Play::sse()
                .send(frame(r#"{"choices":[],"created":0,"id":"","prompt_filter_results":[{"prompt_index":0}],"usage":null}"#))
                .send(chat_text(""))
                .send(chat_stop(""))
                .if_asked(Chat.usage_chunk(&COUNTS))
                .send("data: [DONE] \n\n")
                .end(),
        ),
        stream("d44.null_behind_the_usage", Chat).plays(
            Play::sse()
                .send(chat_text(""))
                .send(chat_stop(&five))
                .send(frame(&chat_chunk("", null_usage)))
                .send(&done)
                .end(),
        ),
    ];
    cases.into_iter().map(|case| case.record(seen())).chain([flat_count()]).collect()
}

/// Usage in a read of its own, before or behind others.
fn reads() -> Vec<Case> {
    let mut cases = Vec::new();
    let done = frame("[DONE]");
    for dialect in ASKED {
        cases.push(
            stream("d46.done_comes_late", dialect).plays(
                Play::sse()
                    .text(dialect, "x")
                    .send(dialect.finish(Finish::Stop))
                    .if_asked(dialect.usage_chunk(&COUNTS))
                    .pause(200)
                    .send(&done)
                    .end(),
            ),
        );
        cases.push(
            stream("d46.done_never_comes", dialect).plays(
                Play::sse()
                    .text(dialect, "x")
                    .send(dialect.finish(Finish::Stop))
                    .if_asked(dialect.usage_chunk(&COUNTS))
                    .end(),
            ),
        );
        // A caller that has its usage may leave: nothing that it waited for is missing.
        cases.push(
            stream("d46.left_with_the_usage", dialect)
                .asking_usage()
                .plays(
                    Play::sse()
                        .text(dialect, "x")
                        .send(dialect.finish(Finish::Stop))
                        .if_asked(dialect.usage_chunk(&COUNTS))
                        .await_close(),
                )
                .leaves(Leaves::Seeing("total_tokens", Leaving::Close)),
        );
        cases.push(
            stream("d46.usage_before_the_finish", dialect).plays(
                Play::sse()
                    .text(dialect, "x")
                    .if_asked(dialect.usage_chunk(&COUNTS))
                    .send(dialect.finish(Finish::Stop))
                    .send(&done)
                    .end(),
            ),
        );
    }
    cases.into_iter().map(|case| case.record(seen())).collect()
}

/// SGLang has the count of reasoning beside the others.
fn flat_count() -> Case {
    let flat = r#"{"prompt_tokens":7,"completion_tokens":5,"total_tokens":12,"reasoning_tokens":3,"prompt_tokens_details":null}"#;
    let done = frame("[DONE]");
    stream("d53.reasoning_count_flat", Chat)
        .plays(
            Play::sse()
                .reasoning(Chat, "hm")
                .text(Chat, "x")
                .send(chat_stop(""))
                .if_asked(frame(&chat_chunk("", &format!(r#","usage":{flat}"#))))
                .send(&done)
                .end(),
        )
        .record(all([seen(), split(3, 2, "reported")]))
}

/// Usage on every chunk grows: the last counts, not the sum, and an early one is no end.
fn running() -> Vec<Case> {
    let so_far = |output: u64| format!(r#","usage":{}"#, usage(7, output).json(Chat));
    let texts = || Play::sse().send(chat_text(&so_far(1))).send(chat_text(&so_far(3)));
    let cut_short = || all([interrupted("no_terminal", "mid_stream"), vec![null("output_tokens")]]);
    vec![
        stream("d47.on_every_chunk", Chat)
            .plays(texts().send(chat_stop(&so_far(5))).send(frame("[DONE]")).end())
            .record(seen()),
        stream("d47.on_every_chunk_and_at_the_end", Chat)
            .plays(
                texts()
                    .send(chat_stop(&so_far(5)))
                    .if_asked(Chat.usage_chunk(&COUNTS))
                    .send(frame("[DONE]"))
                    .end(),
            )
            .record(seen()),
        stream("d47.only_early", Chat).plays(texts().end()).record(cut_short()),
        stream("d51.zeros_until_the_end", Chat)
            .plays(
                Play::sse()
                    .send(chat_text(&format!(r#","usage":{}"#, usage(0, 0).json(Chat))))
                    .send(chat_stop(&so_far(5)))
                    .send(frame("[DONE]"))
                    .end(),
            )
            .record(seen()),
    ]
}

/// Unknown is not a miss, and zero is not unknown.
fn cached() -> Vec<Case> {
    let mut cases = Vec::new();
    for dialect in GENERATING {
        for mode in [Mode::Stream, Mode::Whole] {
            for (name, cached) in [("d54.hit", Some(4)), ("d54.miss", Some(0)), ("d54.unknown", None)] {
                let counted = Usage { cached, ..COUNTS };
                let checks = match cached {
                    Some(cached) => vec![is("cached_tokens", cached), is("cached_tokens_mark", "reported")],
                    None => nothing_cached(),
                };
                cases.push(
                    of(name, dialect, mode)
                        .plays(answer(dialect, mode, &counted))
                        .record(seen())
                        .record(checks),
                );
            }
        }
    }
    let deepseek = r#"{"prompt_tokens":7,"completion_tokens":5,"total_tokens":12,"prompt_cache_hit_tokens":6,"prompt_cache_miss_tokens":1}"#;
    cases.push(
        of("d54.deepseek", Chat, Mode::Whole)
            .plays(Play::json(
                200,
                Chat.whole_chat(r#"{"role":"assistant","content":"x"}"#, Finish::Stop, deepseek),
            ))
            .record(seen())
            .record([is("cached_tokens", 6)]),
    );
    cases
}

/// Messages says its input at the start and all at the end; input leaves out what was cached.
fn messages() -> Vec<Case> {
    let start = |usage: &str| {
        named_frame(
            "message_start",
            &format!(
                r#"{{"type":"message_start","message":{{"id":"m-1","type":"message","role":"assistant","content":[],"usage":{usage}}}}}"#
            ),
        )
    };
    let play = |at_start: &str, at_end: &str| {
        Play::sse()
            .send(start(at_start))
            .text(Messages, "x")
            .send(Messages.message_delta(Finish::Stop, at_end))
            .send(Messages.terminal(Finish::Stop, &COUNTS))
            .end()
    };
    let cases = [
        (
            "d48.input_at_both_ends",
            r#"{"input_tokens":7,"output_tokens":1}"#,
            r#"{"input_tokens":7,"output_tokens":5}"#,
            counts(7, 5),
        ),
        (
            "d48.input_at_the_start",
            r#"{"input_tokens":7,"output_tokens":1}"#,
            r#"{"output_tokens":5}"#,
            counts(7, 5),
        ),
        (
            "d48.input_at_the_end",
            r#"{"input_tokens":0,"output_tokens":0}"#,
            r#"{"input_tokens":7,"output_tokens":5}"#,
            counts(7, 5),
        ),
        (
            "d48.cache_read_and_creation",
            r#"{"input_tokens":7,"cache_read_input_tokens":100,"cache_creation_input_tokens":20,"output_tokens":1}"#,
            r#"{"output_tokens":5}"#,
            all([counts(127, 5), vec![is("cached_tokens", 100)]]),
        ),
        (
            "d48.cache_at_both_ends",
            r#"{"input_tokens":7,"cache_read_input_tokens":100,"cache_creation_input_tokens":0,"output_tokens":1}"#,
            r#"{"input_tokens":7,"cache_read_input_tokens":100,"cache_creation_input_tokens":0,"output_tokens":5}"#,
            all([counts(107, 5), vec![is("cached_tokens", 100)]]),
        ),
    ];
    let mut cases: Vec<Case> = cases
        .into_iter()
        .map(|(name, at_start, at_end, checks)| {
            stream(name, Messages).plays(play(at_start, at_end)).record(success()).record(checks)
        })
        .collect();
    cases.extend(ends_of_messages());
    cases
}

/// Usage that grows, and usage of the start alone.
fn ends_of_messages() -> Vec<Case> {
    let start = r#"{"type":"message_start","message":{"id":"m-1","type":"message","role":"assistant","content":[],"usage":{"input_tokens":7,"output_tokens":1}}}"#;
    let start = named_frame("message_start", start);
    let mut cases = Vec::new();
    // Several deltas with usage: the last one.
    let play = Play::sse()
        .send(&start)
        .text(Messages, "x")
        .send(named_frame(
            "message_delta",
            r#"{"type":"message_delta","delta":{},"usage":{"output_tokens":3}}"#,
        ))
        .send(Messages.message_delta(Finish::Stop, r#"{"output_tokens":5}"#))
        .send(Messages.terminal(Finish::Stop, &COUNTS))
        .end();
    cases.push(stream("d47.several_deltas", Messages).plays(play).record(seen()));
    // What stands at the start alone is no terminal usage: one output token is not what came.
    let play = Play::sse().send(&start).text(Messages, "x").pause(20).text(Messages, "y").close();
    cases.push(
        stream("d48.died_with_the_usage_of_the_start", Messages)
            .plays(play)
            .broken_off()
            .record(interrupted("upstream_truncated", "mid_stream"))
            .record([null("output_tokens")]),
    );
    cases
}

/// A server that cannot give usage is judged by finish and `[DONE]`, and counted as such.
fn never() -> Vec<Case> {
    let mut cases = Vec::new();
    let of = |name: &str, dialect: Dialect, play: Play| {
        stream(name, dialect).under(Profile::UsageNever).plays(play).sent(Sent::Unchanged)
    };
    for dialect in ASKED {
        let text = || Play::sse().pause(80).text(dialect, "x");
        for (name, play) in [
            ("d52.finish_and_done", text().send(dialect.finish(Finish::Stop)).send(frame("[DONE]"))),
            ("d52.finish_alone", text().send(dialect.finish(Finish::Stop))),
            ("d52.done_alone", text().send(frame("[DONE]"))),
        ] {
            cases.push(
                of(name, dialect, play.end())
                    .record(all([success(), no_counts()]))
                    .record([
                        at_least("first_token_time_ns", 80),
                        known("full_response_time_ns"),
                        null("time_per_token_ns"),
                        null("average_speed_tokens_per_second"),
                    ])
                    .flags(&["usage_missing"])
                    .flags_allowed(&["tokens_estimated"]),
            );
        }
        cases.push(of("d52.neither", dialect, text().end()).record(interrupted("no_terminal", "mid_stream")));
        // It comes all the same: nobody of ours asked, so it is the caller's, and it counts.
        let unasked = text()
            .send(dialect.finish(Finish::Stop))
            .send(dialect.usage_chunk(&COUNTS))
            .send(frame("[DONE]"))
            .end();
        cases.push(of("d52.comes_all_the_same", dialect, unasked).record(seen()));
    }
    // A whole reply is not asked for usage either.
    for dialect in ASKED {
        let body = dialect.whole("x", Finish::Stop, &COUNTS);
        let without = body.split(r#","usage""#).next().unwrap_or_default().to_owned() + "}";
        cases.push(
            self::of("d52.whole_without", dialect, Mode::Whole)
                .plays(Play::json(200, without))
                .record(all([success(), no_counts()]))
                .flags(&["usage_missing"])
                .flags_allowed(&["tokens_estimated"]),
        );
    }
    cases
}

/// A server that gives usage without being asked: the chunk is its own, and due.
fn always() -> Vec<Case> {
    let mut cases = Vec::new();
    for dialect in ASKED {
        let begun = || Play::sse().text(dialect, "x").send(dialect.finish(Finish::Stop));
        let whole = begun().send(dialect.usage_chunk(&COUNTS)).send(frame("[DONE]")).end();
        let without = begun().send(frame("[DONE]")).end();
        let of = |name: &str, play: Play| {
            stream(name, dialect).under(Profile::UsageAlways).plays(play).sent(Sent::Unchanged)
        };
        cases.push(of("d52.always", whole).record(seen()));
        cases.push(
            of("d52.always_but_now", without)
                .record(interrupted("no_terminal_usage", "complete"))
                .record(no_counts())
                .flags_allowed(&["usage_missing", "tokens_estimated"]),
        );
        // Asked for and ignored: case 1.
        let ignored = begun().send(frame("[DONE]")).end();
        cases.push(
            stream("d52.asked_and_ignored", dialect)
                .plays(ignored)
                .record(interrupted("no_terminal_usage", "complete"))
                .record(no_counts())
                .flags_allowed(&["usage_missing", "tokens_estimated"]),
        );
    }
    cases
}

/// A 400 that refuses `stream_options` is answered by asking again without, once, and remembered.
fn refused() -> Vec<Case> {
    let refusal = r#"{"error":{"message":"Unrecognized request argument supplied: stream_options","type":"invalid_request_error","param":"stream_options","code":null}}"#;
    let other = r#"{"error":{"message":"temperature must be below 2","type":"invalid_request_error","param":"temperature","code":null}}"#;
    let plain = |dialect: Dialect| {
        Play::sse().text(dialect, "x").send(dialect.finish(Finish::Stop)).send(frame("[DONE]")).end()
    };
    let of = |name: &str, dialect: Dialect| stream(name, dialect).under(Profile::Refusing).http11_only();
    // In this order, and once: each depends on what the gateway has learned of those before.
    vec![
        of("d52.refused_1_of_a_caller_that_asked", Chat)
            .asking_usage()
            .plays(Play::json(400, refusal))
            .status(400)
            .record([is("outcome", "other"), is("client_status", 400), is("attempts", 1)]),
        of("d52.refused_2_another_400", Chat)
            .plays(Play::json(400, other))
            .status(400)
            .record([is("outcome", "other"), is("attempts", 1)]),
        of("d52.refused_3_asks_again", Chat)
            .plays(Play::json(400, refusal))
            .plays(plain(Chat))
            .arrivals(2..=2)
            .sent(Sent::FirstAsking)
            .record(all([success(), no_counts()]))
            .record([is("attempts", 2)])
            .flags(&["usage_missing"])
            .flags_allowed(&["tokens_estimated"]),
        of("d52.refused_4_remembered", Chat)
            .plays(plain(Chat))
            .sent(Sent::Unchanged)
            .record(all([success(), no_counts()]))
            .record([is("attempts", 1)])
            .flags(&["usage_missing"])
            .flags_allowed(&["tokens_estimated"]),
        of("d52.refused_5_remembered_for_completions", Completions)
            .plays(plain(Completions))
            .sent(Sent::Unchanged)
            .record(success())
            .flags(&["usage_missing"])
            .flags_allowed(&["tokens_estimated"]),
    ]
}
