//! Callers that leave: before the head, before the first token, within the stream, and behind its end.
//!
//! Apart from other outcomes, over which leaving has precedence until the end has been handed over. The upstream must
//! see the connection close at once. Must not know: other sections.

use std::time::Duration;

use crate::faults::case::{Case, Leaves, Leaving, Section, case};
use crate::faults::check::{Check, all, at_least, cancelled, counts, is, known, no_token, null, success};
use crate::faults::dialect::{ASKED, Dialect, Finish, GENERATING, MODES, Mode, Usage, frame};
use crate::faults::script::Play;

use Dialect::{Chat, Completions, Embeddings, Messages, Plain, Responses};

const COUNTS: Usage = Usage { input: 7, output: 5, reasoning: None, cached: None };

const WAYS: [(&str, Leaving); 3] =
    [("closes", Leaving::Close), ("resets", Leaving::Reset), ("half_closes", Leaving::HalfClose)];

pub fn cases() -> Vec<Case> {
    let ways = WAYS.into_iter().flat_map(|(name, leaving)| leaves(name, leaving));
    ways.chain(behind_the_end()).chain(within_the_request()).collect()
}

fn of(name: &str, dialect: Dialect, mode: Mode, leaving: Leaving) -> Case {
    let case = case(Section::Outcome, name, dialect, mode);
    // In HTTP/2 every request ends its sending side; shutting that down is no leaving there.
    if leaving == Leaving::HalfClose { case.http11_only() } else { case }
}

fn after(milliseconds: u64, leaving: Leaving) -> Leaves {
    Leaves::After(Duration::from_millis(milliseconds), leaving)
}

fn leaves(name: &str, leaving: Leaving) -> Vec<Case> {
    let mut cases = Vec::new();
    for dialect in GENERATING {
        for mode in MODES {
            cases.push(
                of(&format!("e72.{name}_before_the_head"), dialect, mode, leaving)
                    .plays(Play::mute().await_close())
                    .leaves(after(150, leaving))
                    .no_reply()
                    .closes_upstream()
                    .record(all([cancelled("before_head"), no_token()]))
                    .record([
                        null("client_status"),
                        null("upstream_status"),
                        at_least("downstream_done_ns", 145),
                    ]),
            );
        }
        // Half a body is no use to anybody: nothing has been handed over.
        let body = dialect.whole("hello there.", Finish::Stop, &COUNTS);
        let head = format!(
            "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
            body.len()
        );
        cases.push(
            of(&format!("e72.{name}_within_a_whole_body"), dialect, Mode::Whole, leaving)
                .plays(Play::head(&head).send(&body[..20]).await_close())
                .leaves(after(150, leaving))
                .no_reply()
                .closes_upstream()
                .record([is("outcome", "cancelled"), is("reason", "client_left"), null("output_tokens")]),
        );
        let stream = |point: &str| of(&format!("e72.{name}_{point}"), dialect, Mode::Stream, leaving);
        cases.push(
            stream("before_the_first_token")
                .plays(Play::sse().open(dialect, &COUNTS).send(": ping\n\n").await_close())
                .leaves(after(150, leaving))
                .closes_upstream()
                .record(all([cancelled("before_first_token"), no_token()]))
                .record([is("upstream_status", 200)]),
        );
        let texts = || Play::sse().open(dialect, &COUNTS).text(dialect, "hello");
        cases.push(
            stream("mid_stream")
                .plays(texts().await_close())
                .leaves(Leaves::Seeing("hello", leaving))
                .closes_upstream()
                .record(cancelled("mid_stream"))
                .record([known("first_token_time_ns"), null("output_tokens"), null("terminal_ns")]),
        );
        // The upstream goes on sending: nothing is generated for nobody.
        let sending = (0..40).fold(texts(), |play, _| play.pause(25).text(dialect, "on"));
        cases.push(
            stream("while_the_upstream_sends")
                .plays(sending.await_close())
                .leaves(Leaves::Seeing("hello", leaving))
                .closes_upstream()
                .record(cancelled("mid_stream")),
        );
    }
    cases
}

/// Text by which a caller knows that the protocol has ended.
fn terminal(dialect: Dialect) -> &'static str {
    match dialect {
        Chat | Completions | Embeddings | Plain => "[DONE]",
        Responses => "response.completed\"",
        Messages => "message_stop\"}",
    }
}

fn behind_the_end() -> Vec<Case> {
    let mut cases = Vec::new();
    for (name, leaving) in WAYS {
        for dialect in GENERATING {
            let play = Play::sse().open(dialect, &COUNTS).pause(60).text(dialect, "hello");
            cases.push(
                of(&format!("e69.{name}_behind_the_terminal"), dialect, Mode::Stream, leaving)
                    .plays(play.closing(dialect, Finish::Stop, &COUNTS).await_close())
                    .leaves(Leaves::Seeing(terminal(dialect), leaving))
                    .record(all([success(), counts(7, 5)]))
                    .record([
                        at_least("first_token_time_ns", 60),
                        known("full_response_time_ns"),
                        known("client_full_response_time_ns"),
                        known("terminal_ns"),
                    ]),
            );
        }
    }
    for dialect in ASKED {
        // The finish has come, what was to follow it has not: the protocol had not ended.
        let play = Play::sse().text(dialect, "hello").send(dialect.finish(Finish::Stop)).await_close();
        cases.push(
            of("e69.leaves_between_finish_and_usage", dialect, Mode::Stream, Leaving::Close)
                .plays(play)
                .leaves(Leaves::Seeing("\"stop\"", Leaving::Close))
                .closes_upstream()
                .record(cancelled("mid_stream"))
                .record([null("output_tokens")]),
        );
        // An error was told before: that is what became of it.
        let play =
            Play::sse().text(dialect, "hello").send(dialect.error()).send(frame("[DONE]")).await_close();
        cases.push(
            of("e69.leaves_behind_an_error_event", dialect, Mode::Stream, Leaving::Close)
                .plays(play)
                .leaves(Leaves::Seeing("[DONE]", Leaving::Close))
                .record([is("outcome", "interrupted"), is("reason", "error_event")]),
        );
    }
    cases
}

/// The request never was complete: nothing goes upstream.
fn within_the_request() -> Vec<Case> {
    let checks = || -> Vec<Check> {
        all([cancelled("before_head"), vec![null("request_sent_ns"), is("attempts", 0)]])
    };
    let close = GENERATING.map(|dialect| {
        of("e72.closes_within_the_request", dialect, Mode::Stream, Leaving::Close)
            .plays(Play::mute())
            .leaves(Leaves::WithinRequest(Leaving::Close))
            .no_reply()
            .arrivals(0..=0)
            .record(checks())
    });
    let reset = GENERATING.map(|dialect| {
        of("e72.resets_within_the_request", dialect, Mode::Whole, Leaving::Reset)
            .plays(Play::mute())
            .leaves(Leaves::WithinRequest(Leaving::Reset))
            .no_reply()
            .arrivals(0..=0)
            .record(checks())
    });
    close.into_iter().chain(reset).collect()
}
