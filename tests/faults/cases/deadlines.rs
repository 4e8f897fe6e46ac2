//! Deadlines of the gateway, and connections to the upstream that have gone stale.
//!
//! Apart because these need a configuration of their own (600 ms to the first token, 400 ms between tokens, 2 s in
//! all) and, for the pool, one case at a time. Must not know: other sections.

use std::time::Duration;

use bytes::Bytes;

use crate::faults::case::{Case, End, Pace, Section, case};
use crate::faults::check::{
    Check, all, at_least, counts, http_error, is, known, no_token, null, one_of, success, timeout,
};
use crate::faults::dialect::{Dialect, Finish, GENERATING, MODES, Mode, REASONING, Usage, answer};
use crate::faults::gateway::Profile;
use crate::faults::script::{Act, Play};

use Dialect::{Chat, Messages};

const COUNTS: Usage = Usage { input: 7, output: 5, reasoning: None, cached: None };

pub fn cases() -> Vec<Case> {
    [first_token(), idle(), total(), none_passes(), observed(), stale(), after_faults()].concat()
}

fn of(name: &str, dialect: Dialect, mode: Mode) -> Case {
    case(Section::Timeouts, name, dialect, mode).under(Profile::Deadlines)
}

fn stream(name: &str, dialect: Dialect) -> Case {
    of(name, dialect, Mode::Stream)
}

fn whole_head(dialect: Dialect) -> (String, String) {
    let body = dialect.whole("hello there.", Finish::Stop, &COUNTS);
    let length = body.len();
    (format!("HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n"), body)
}

fn first_token() -> Vec<Case> {
    let mut cases = Vec::new();
    for dialect in GENERATING {
        for mode in MODES {
            cases.push(
                of("f78.silence", dialect, mode)
                    .plays(Play::mute().await_close())
                    .own_error(504)
                    .closes_upstream()
                    .arrives("", 590..=1200)
                    .record(all([timeout("deadline_first_token", "before_head"), no_token()]))
                    .record([
                        is("client_status", 504),
                        is("literal_http_error", true),
                        null("upstream_status"),
                    ]),
            );
        }
        let told = |name: &str, play: Play| {
            stream(name, dialect)
                .plays(play)
                .broken_off()
                .closes_upstream()
                .record(all([timeout("deadline_first_token", "before_first_token"), no_token()]))
                .record([is("client_status", 200), is("literal_http_error", false)])
        };
        cases.push(told("f78.head_and_silence", Play::sse().await_close()));
        cases.push(told(
            "f78.opening_frames_and_silence",
            Play::sse().send(dialect.open(&COUNTS)).await_close(),
        ));
        // Heartbeats are no token, however many come.
        let beats = (0..10).fold(Play::sse(), |play, _| play.send(": ping\n\n").pause(100));
        cases.push(
            told("f37.heartbeats_and_no_token", beats.await_close()).cut_short().record([Check::Between(
                "downstream_done_ns",
                590,
                950,
            )]),
        );
        let (head, _) = whole_head(dialect);
        cases.push(
            of("f78.head_and_silence", dialect, Mode::Whole)
                .plays(Play::head(&head).await_close())
                .own_error(504)
                .closes_upstream()
                .record([
                    is("outcome", "timeout"),
                    is("reason", "deadline_first_token"),
                    is("client_status", 504),
                ]),
        );
    }
    cases
}

fn idle() -> Vec<Case> {
    let mut cases = Vec::new();
    for dialect in GENERATING {
        let told = |name: &str, play: Play| {
            stream(name, dialect)
                .plays(play)
                .broken_off()
                .closes_upstream()
                .record(timeout("deadline_idle", "mid_stream"))
                .record([known("first_token_time_ns"), null("output_tokens"), is("client_status", 200)])
        };
        let begun = || Play::sse().open(dialect, &COUNTS).text(dialect, "hello");
        cases.push(told("f77.silence_behind_a_token", begun().await_close()));
        cases.push(told("f77.silence_within_a_frame", begun().send("data: {\"id").await_close()));
        // A heartbeat says that a server's proxy lives, not that anything is generated.
        let beats = (0..12).fold(begun(), |play, _| play.pause(100).send(": ping\n\n"));
        cases.push(
            told("f37.heartbeats_behind_a_token", beats.await_close()).cut_short().record([Check::Between(
                "downstream_done_ns",
                390,
                800,
            )]),
        );
        let (head, body) = whole_head(dialect);
        cases.push(
            of("f77.silence_within_a_body", dialect, Mode::Whole)
                .plays(Play::head(&head).send(&body[..30]).await_close())
                .own_error(504)
                .closes_upstream()
                .record([
                    is("outcome", "timeout"),
                    one_of("reason", &["deadline_idle", "deadline_first_token"]),
                ]),
        );
        // Nothing is missing any more: the end was handed over, and no deadline makes it undone.
        cases.push(
            stream("f77.silence_behind_the_terminal", dialect)
                .plays(begun().closing(dialect, Finish::Stop, &COUNTS).await_close())
                .ends(End::Any)
                .record(all([success(), counts(7, 5)]))
                .flags_allowed(&["broken_behind_terminal"]),
        );
    }
    cases
}

fn steady(dialect: Dialect, tokens: usize, gap: u64) -> Play {
    (0..tokens).fold(Play::sse().open(dialect, &COUNTS), |play, _| play.pause(gap).text(dialect, "on"))
}

fn total() -> Vec<Case> {
    let stream_of = |dialect: Dialect| {
        stream("f77.longer_than_all_is_allowed", dialect)
            .plays(steady(dialect, 30, 120).await_close())
            .cut_short()
            .closes_upstream()
            .record(timeout("deadline_total", "mid_stream"))
            .record([null("output_tokens"), at_least("downstream_done_ns", 1990)])
    };
    GENERATING.map(stream_of).to_vec()
}

/// Slow and alive: each limit is for its own kind of silence.
fn none_passes() -> Vec<Case> {
    let mut cases = Vec::new();
    for dialect in GENERATING {
        cases.push(
            stream("f77.steady_beyond_both_limits", dialect)
                .plays(steady(dialect, 12, 100).close_with(dialect, Finish::Stop, &COUNTS))
                .record(all([success(), counts(7, 5)]))
                .record([at_least("full_response_time_ns", 1200)]),
        );
        // Longer than the limit between tokens, and before the first one.
        let late = Play::sse().open(dialect, &COUNTS).pause(480).text(dialect, "x");
        cases.push(
            stream("f77.first_token_later_than_the_idle_limit", dialect)
                .plays(late.close_with(dialect, Finish::Stop, &COUNTS))
                .record(success())
                .record([at_least("first_token_time_ns", 480)]),
        );
        for status in [408, 504] {
            cases.push(
                stream(&format!("f79.upstream_says_{status}"), dialect)
                    .plays(Play::json(status, dialect.error_body()))
                    .status(status)
                    .record(http_error(status, "upstream_status")),
            );
        }
    }
    // The upstream waits for nobody but a caller that does not read: no deadline of its own has passed.
    for dialect in [Chat, Messages] {
        let large = Bytes::from(dialect.text(&"long ".repeat(13_000)));
        let sending =
            (0..250).fold(Play::sse().text(dialect, "first"), |play, _| play.send_large(large.clone()));
        cases.push(
            stream("f68.caller_does_not_read", dialect)
                .plays(sending.close_with(dialect, Finish::Stop, &COUNTS))
                .paces(Pace::Stalls { text: "first", time: Duration::from_millis(1000) })
                .record(all([success(), counts(7, 5)]))
                .heavy(),
        );
    }
    for dialect in REASONING {
        let thought = (0..10).fold(Play::sse(), |play, _| play.pause(100).reasoning(dialect, "hm"));
        cases.push(
            stream("f79.a_long_thought", dialect)
                .plays(thought.text(dialect, "x").close_with(dialect, Finish::Stop, &COUNTS))
                .record(success()),
        );
    }
    cases
}

/// An answer later than the observed deadline of 300 ms is counted as timed out and not touched.
fn observed() -> Vec<Case> {
    let mut cases = Vec::new();
    for dialect in GENERATING {
        for (name, pause, checks) in [
            ("f79.observed_late", 500, timeout("deadline_observed", "complete")),
            ("f79.observed_in_time", 20, success()),
        ] {
            let play = Play::sse().open(dialect, &COUNTS).text(dialect, "a").pause(pause).text(dialect, "b");
            cases.push(
                stream(name, dialect)
                    .under(Profile::Observing)
                    .plays(play.close_with(dialect, Finish::Stop, &COUNTS))
                    .record(all([checks.clone(), counts(7, 5)]))
                    .record([known("content_time_ns"), is("client_status", 200)]),
            );
            let (head, body) = whole_head(dialect);
            cases.push(
                of(name, dialect, Mode::Whole)
                    .under(Profile::Observing)
                    .plays(Play::head(&head).pause(pause).send(&body))
                    .record(all([checks, counts(7, 5)])),
            );
        }
    }
    cases
}

/// The upstream closes connections that the gateway has kept. What was never processed is sent again, whole.
fn stale() -> Vec<Case> {
    let mut cases = Vec::new();
    let good = || {
        all([
            success(),
            counts(7, 5),
            vec![Check::OneOf("attempts", vec![1.into(), 2.into(), 3.into(), 4.into()])],
        ])
    };
    let alone = |name: &str, dialect: Dialect, mode: Mode| of(name, dialect, mode).under(Profile::Alone);
    for dialect in GENERATING {
        for mode in MODES {
            cases.push(
                alone("f81.closed_while_idle", dialect, mode)
                    .plays(answer(dialect, mode, &COUNTS).pause(60).close())
                    .record(good())
                    .then(dialect, mode)
                    .pause_before(200)
                    .plays(answer(dialect, mode, &COUNTS))
                    .record(good()),
            );
            cases.push(
                alone("f81.closed_at_the_next_request", dialect, mode)
                    .plays(answer(dialect, mode, &COUNTS).act(Act::CloseAtNext))
                    .record(good())
                    .then(dialect, mode)
                    .pause_before(50)
                    .plays(answer(dialect, mode, &COUNTS))
                    .record(good()),
            );
        }
    }
    let large = Bytes::from(Chat.request(Mode::Whole, &format!(r#","user":"{}""#, "x".repeat(300_000))));
    cases.push(
        alone("f81.closed_at_the_next_request_of_300_kb", Chat, Mode::Whole)
            .plays(answer(Chat, Mode::Whole, &COUNTS).act(Act::CloseAtNext))
            .then(Chat, Mode::Whole)
            .pause_before(50)
            .body(large)
            .plays(answer(Chat, Mode::Whole, &COUNTS))
            .record(good()),
    );
    // Bytes behind the end of a reply belong to nobody's next reply.
    for (name, garbage) in [
        ("garbage", "xx"),
        ("a_second_end", "0\r\n\r\n"),
        ("a_second_reply", "HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\nbad"),
    ] {
        cases.push(
            alone(&format!("g88.{name}_behind_the_reply"), Chat, Mode::Stream)
                .plays(answer(Chat, Mode::Stream, &COUNTS).raw(garbage))
                .record(good())
                .then(Chat, Mode::Stream)
                .pause_before(30)
                .plays(answer(Chat, Mode::Stream, &COUNTS))
                .record(good()),
        );
    }
    // A request that was read and then lost may have been at work: it is not done twice.
    cases.push(
        alone("f81.lost_after_a_while", Chat, Mode::Whole)
            .plays(answer(Chat, Mode::Whole, &COUNTS))
            .then(Chat, Mode::Whole)
            .plays(Play::mute().pause(300).close())
            .own_error(502)
            .record(http_error(502, "upstream_reset"))
            .record([is("attempts", 1)]),
    );
    cases
}

/// A fault, and what is due for it.
type Fault = (&'static str, Mode, Play, fn(Case) -> Case);

/// The caller's connection works on behind each fault, or is closed in order.
fn after_faults() -> Vec<Case> {
    let mut cases = Vec::new();
    for dialect in GENERATING {
        let died = || Play::sse().text(dialect, "x").close();
        let faults: [Fault; 6] = [
            ("a_died_stream", Mode::Stream, died(), Case::broken_off),
            ("an_error_event", Mode::Stream, Play::sse().send(dialect.error()).end(), |case| case),
            ("a_500", Mode::Whole, Play::json(500, dialect.error_body()), |case| case.status(500)),
            ("a_502_of_its_own", Mode::Whole, Play::mute().pause(150).close(), |case| case.own_error(502)),
            ("a_malformed_body", Mode::Whole, Play::json(200, "oops"), |case| {
                case.flags_allowed(&["body_malformed", "usage_missing"])
            }),
            ("an_empty_body", Mode::Whole, Play::json(200, ""), |case| {
                case.flags_allowed(&["body_malformed", "usage_missing"])
            }),
        ];
        for (name, mode, play, fault) in faults {
            let first = of(&format!("g04.after_{name}"), dialect, mode).under(Profile::Default).plays(play);
            cases.push(
                fault(first)
                    .then(dialect, Mode::Stream)
                    .plays(answer(dialect, Mode::Stream, &COUNTS))
                    .record(all([success(), counts(7, 5)]))
                    .then(Messages, Mode::Whole)
                    .plays(answer(Messages, Mode::Whole, &COUNTS))
                    .record(success()),
            );
        }
    }
    cases
}
