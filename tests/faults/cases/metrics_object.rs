//! The `metrics` object of a reply: where it stands, what it looks like, and where there must be none.
//!
//! Apart from the records: this is what callers see. No engine of ours is behind the gateway here, so each of the five
//! is null, and bytes can be compared whole. Must not know: other sections.

use crate::faults::case::{Body, Case, Exchange, Section, case};
use crate::faults::check::{Check, all, counts, is, success};
use crate::faults::dialect::{
    ASKED, Dialect, Finish, GENERATING, MODES, Mode, Usage, answer, chat_chunk, frame, usage,
};
use crate::faults::gateway::Profile;
use crate::faults::script::Play;

use Dialect::{Chat, Completions, Embeddings, Messages, Responses};

const COUNTS: Usage = Usage { input: 7, output: 5, reasoning: None, cached: None };

/// The member that is added.
const NULLS: &str = r#","metrics":{"time_to_first_token_ms":null,"generation_time_ms":null,"queue_time_ms":null,"mean_itl_ms":null,"tokens_per_second":null}"#;

pub fn cases() -> Vec<Case> {
    [whole(), streams(), responses(), suppressed(), never_twice(), elsewhere(), forced()].concat()
}

fn of(name: &str, dialect: Dialect, mode: Mode) -> Case {
    case(Section::MetricsObject, name, dialect, mode).under(Profile::Metrics)
}

fn seen() -> Vec<Check> {
    all([success(), counts(7, 5)])
}

/// This text with the member added before its last brace.
fn with_nulls(text: &str) -> String {
    let at = text.rfind('}').unwrap_or(0);
    [&text[..at], NULLS, &text[at..]].concat()
}

fn replacing(from: &str) -> Body {
    Body::Replacing(from.to_owned().into(), with_nulls(from).into())
}

/// Last member of a whole body, and nothing else moves.
fn whole() -> Vec<Case> {
    let mut cases = Vec::new();
    for dialect in [Chat, Completions, Responses] {
        let body = dialect.whole("hello", Finish::Stop, &COUNTS);
        let spaced = body.replace(",\"usage\"", ",\n \"big\":123456789012345678901234567890 ,\"usage\"");
        for (name, body) in [
            ("m05.whole", body.clone()),
            ("m05.whole_with_a_line_end", format!("{body}\n")),
            ("m05.whole_with_odd_space", format!("\n {spaced} \r\n\t")),
        ] {
            cases.push(
                of(name, dialect, Mode::Whole)
                    .plays(Play::json(200, &body))
                    .sees(Body::Exactly(with_nulls(&body).into()))
                    .record(seen()),
            );
        }
        let chunked = Play::head(
            "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n",
        );
        cases.push(
            of("m05.whole_in_chunks", dialect, Mode::Whole)
                .plays(chunked.send(&body[..11]).pause(20).send(&body[11..]).end())
                .sees(Body::Exactly(with_nulls(&body).into()))
                .record(seen()),
        );
    }
    cases
}

/// On the usage chunk alone, and only for callers that see one.
fn streams() -> Vec<Case> {
    let mut cases = Vec::new();
    for dialect in ASKED {
        let chunk = dialect.usage_chunk(&COUNTS);
        cases.push(
            of("m05.stream_asked", dialect, Mode::Stream)
                .asking_usage()
                .plays(answer(dialect, Mode::Stream, &COUNTS))
                .sees(replacing(&chunk))
                .record(seen()),
        );
        cases.push(
            of("m05.stream_not_asked", dialect, Mode::Stream)
                .plays(answer(dialect, Mode::Stream, &COUNTS))
                .record(seen()),
        );
        cases.push(
            of("m05.stream_asked_not", dialect, Mode::Stream)
                .asking(r#","stream_options":{"include_usage":false}"#)
                .plays(answer(dialect, Mode::Stream, &COUNTS))
                .record(seen()),
        );
        let text = [dialect.text("x"), dialect.finish(Finish::Stop), chunk.clone(), frame("[DONE]")].concat();
        let at = text.find("\"usage\"").unwrap_or(0) + 3;
        for (name, play) in [
            ("m05.stream_in_one_read", Play::sse().send(&text).end()),
            (
                "m05.stream_usage_in_two_reads",
                Play::sse().send(&text[..at]).pause(40).send(&text[at..]).end(),
            ),
            (
                "m05.stream_byte_by_byte",
                text.as_bytes().chunks(1).fold(Play::sse(), |play, byte| play.send(byte)).end(),
            ),
        ] {
            cases.push(
                of(name, dialect, Mode::Stream)
                    .asking_usage()
                    .plays(play)
                    .sees(replacing(&chunk))
                    .record(seen()),
            );
        }
        let crlf = text.replace('\n', "\r\n");
        cases.push(
            of("m05.stream_with_crlf", dialect, Mode::Stream)
                .asking_usage()
                .plays(Play::sse().send(&crlf).end())
                .sees(replacing(chunk.trim_end()))
                .record(seen()),
        );
        // An error leaves nothing to add to, and none is made.
        let error = Play::sse().text(dialect, "x").send(dialect.error()).send(frame("[DONE]")).end();
        cases.push(
            of("m05.stream_with_an_error", dialect, Mode::Stream)
                .asking_usage()
                .plays(error)
                .record([is("outcome", "interrupted"), is("reason", "error_event")]),
        );
    }
    cases
}

/// Inside the response of `response.completed`, as its last member.
fn responses() -> Vec<Case> {
    let completed = Responses.terminal(Finish::Stop, &COUNTS);
    // The event ends with the response's brace and its own.
    let at = completed.trim_end().len() - 2;
    let expected = [&completed[..at], NULLS, &completed[at..]].concat();
    let of = |name: &str| of(name, Responses, Mode::Stream);
    let cut = completed.len() / 2;
    let begun = || Play::sse().open(Responses, &COUNTS).text(Responses, "x");
    [
        ("m05.completed", begun().send(&completed)),
        ("m05.completed_in_two_reads", begun().send(&completed[..cut]).pause(40).send(&completed[cut..])),
    ]
    .into_iter()
    .map(|(name, play)| {
        let body = Body::Replacing(completed.clone().into(), expected.clone().into());
        of(name).plays(play.end()).sees(body).record(seen())
    })
    .chain([of("m05.failed")
        .plays(Play::sse().text(Responses, "x").send(Responses.error()).end())
        .record([is("outcome", "interrupted")])])
    .collect()
}

/// For several choices and several prompts there is none; for one of them, however it is said, there is.
fn suppressed() -> Vec<Case> {
    let mut cases = Vec::new();
    let body = |dialect: Dialect| dialect.whole("x", Finish::Stop, &COUNTS);
    for dialect in ASKED {
        for (name, members, shown) in [
            ("m05.n_2", r#","n":2"#, false),
            ("m05.n_1", r#","n":1"#, true),
            ("m05.n_null", r#","n":null"#, true),
        ] {
            let body = body(dialect);
            let case = of(name, dialect, Mode::Whole).asking(members).plays(Play::json(200, &body));
            let case = if shown { case.sees(Body::Exactly(with_nulls(&body).into())) } else { case };
            // One choice of two is no whole answer to the record; the bytes are what is looked at.
            cases.push(case.flags_allowed(&["usage_missing"]));
        }
        let two = Play::sse()
            .text(dialect, "x")
            .send(dialect.finish(Finish::Stop))
            .send(dialect.finish(Finish::Stop).replace("\"index\":0", "\"index\":1"))
            .if_asked(dialect.usage_chunk(&COUNTS))
            .send(frame("[DONE]"))
            .end();
        let mut case =
            of("m05.n_2", dialect, Mode::Stream).asking(r#","n":2,"stream_options":{"include_usage":true}"#);
        case.now().request.asks = true;
        cases.push(case.plays(two).record(seen()));
    }
    for (name, prompt, shown) in [
        ("m05.two_prompts", r#"["a","b"]"#, false),
        ("m05.one_prompt_in_a_list", r#"["a"]"#, true),
        ("m05.one_prompt_of_tokens", "[1,2]", true),
        ("m05.two_prompts_of_tokens", "[[1,2],[3]]", false),
    ] {
        let body = body(Completions);
        let request = format!(r#"{{"model":"@MODEL@","prompt":{prompt}}}"#);
        let case = of(name, Completions, Mode::Whole).body(request).plays(Play::json(200, &body));
        cases.push(if shown { case.sees(Body::Exactly(with_nulls(&body).into())) } else { case });
    }
    cases
}

/// A server's own object passes unchanged, and none is put beside it.
fn never_twice() -> Vec<Case> {
    let own = r#","metrics":{"time_to_first_token_ms":1.5,"generation_time_ms":2,"queue_time_ms":0,"mean_itl_ms":null,"tokens_per_second":9}"#;
    let mut cases = Vec::new();
    for dialect in ASKED {
        let body = dialect.whole("x", Finish::Stop, &COUNTS);
        let with = |member: &str| [&body[..body.len() - 1], member, "}"].concat();
        cases.push(
            of("m05.upstream_has_its_own", dialect, Mode::Whole)
                .plays(Play::json(200, with(own)))
                .record(seen()),
        );
        cases.push(
            of("m05.upstream_has_a_null", dialect, Mode::Whole)
                .plays(Play::json(200, with(r#","metrics":null"#)))
                .sees(Body::MetricsOnce)
                .record(seen()),
        );
        let chunk = dialect.usage_chunk(&COUNTS).replace("}}\n", &format!("}}{own}}}\n"));
        let play = Play::sse()
            .text(dialect, "x")
            .send(dialect.finish(Finish::Stop))
            .if_asked(chunk)
            .send(frame("[DONE]"));
        cases.push(
            of("m05.upstream_has_its_own", dialect, Mode::Stream)
                .asking_usage()
                .plays(play.end())
                .record(seen()),
        );
    }
    cases
}

/// Where there is none: other endpoints, errors, running usage, what cannot be read.
fn elsewhere() -> Vec<Case> {
    let mut cases = vec![
        of("m05.none_on_embeddings", Embeddings, Mode::Whole).plays(answer(Embeddings, Mode::Whole, &COUNTS)),
        of("m05.none_on_a_broken_body", Chat, Mode::Whole)
            .plays(Play::json(200, "{\"choices\":["))
            .flags_allowed(&["body_malformed", "usage_missing"]),
        of("m05.none_on_a_list", Chat, Mode::Whole)
            .plays(Play::json(200, "[{}]"))
            .flags_allowed(&["body_malformed", "usage_missing"]),
    ];
    for mode in MODES {
        cases.push(
            of("m05.none_on_messages", Messages, mode).plays(answer(Messages, mode, &COUNTS)).record(seen()),
        );
    }
    for dialect in GENERATING {
        for status in [400, 429, 500] {
            cases.push(
                of(&format!("m05.none_on_a_{status}"), dialect, Mode::Whole)
                    .plays(Play::json(status, dialect.error_body()))
                    .status(status),
            );
        }
    }
    let so_far = |output: u64| format!(r#","usage":{}"#, usage(7, output).json(Chat));
    let text = |output: u64| {
        frame(&chat_chunk(r#"{"index":0,"delta":{"content":"x"},"finish_reason":null}"#, &so_far(output)))
    };
    let running = Play::sse()
        .send(text(1))
        .send(text(2))
        .send(frame(&chat_chunk(r#"{"index":0,"delta":{},"finish_reason":"stop"}"#, &so_far(5))))
        .if_asked(Chat.usage_chunk(&COUNTS))
        .send(frame("[DONE]"))
        .end();
    let mut case = of("m05.only_on_the_last_usage", Chat, Mode::Stream)
        .asking(r#","stream_options":{"include_usage":true,"continuous_usage_stats":true}"#)
        .plays(running)
        .sees(replacing(&Chat.usage_chunk(&COUNTS)))
        .record(seen());
    let Exchange { request, .. } = case.now();
    request.asks = true;
    cases.push(case);
    cases
}

/// With `force_include_usage` every stream has the usage chunk, with the object on it.
fn forced() -> Vec<Case> {
    let mut cases = Vec::new();
    for dialect in ASKED {
        let chunk = dialect.usage_chunk(&COUNTS);
        for (name, members) in [("m05.forced_silent", ""), ("m05.forced_null", r#","stream_options":null"#)] {
            cases.push(
                of(name, dialect, Mode::Stream)
                    .under(Profile::Forced)
                    .asking(members)
                    .plays(answer(dialect, Mode::Stream, &COUNTS))
                    .sees(replacing(&chunk))
                    .record(seen())
                    .record([is("usage_asked", "forced")]),
            );
        }
        cases.push(
            of("m05.forced_and_asked", dialect, Mode::Stream)
                .under(Profile::Forced)
                .asking_usage()
                .plays(answer(dialect, Mode::Stream, &COUNTS))
                .sees(replacing(&chunk))
                .record([is("usage_asked", "by_client")]),
        );
        let body = dialect.whole("x", Finish::Stop, &COUNTS);
        cases.push(
            of("m05.forced_whole", dialect, Mode::Whole)
                .under(Profile::Forced)
                .plays(Play::json(200, &body))
                .sees(Body::Exactly(with_nulls(&body).into()))
                .record(seen()),
        );
    }
    cases
}
