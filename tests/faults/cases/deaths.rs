//! Connections to the upstream that die: before the head, within the stream, behind its end.
//!
//! Apart from other outcomes, since how a caller learns of it is half of each case: an error event, a status, or
//! broken framing, and never an invented end. Must not know: other sections.

use crate::faults::case::{Body, Case, End, Section, case};
use crate::faults::check::{all, counts, http_error, interrupted, is, no_token, null, success};
use crate::faults::dialect::{ASKED, Dialect, Finish, GENERATING, MODES, Mode, Usage};
use crate::faults::script::Play;

const COUNTS: Usage = Usage { input: 7, output: 5, reasoning: None, cached: None };

pub fn cases() -> Vec<Case> {
    [before_the_head(), within_the_stream(), elsewhere()].concat()
}

fn of(name: &str, dialect: Dialect, mode: Mode) -> Case {
    case(Section::Outcome, name, dialect, mode)
}

fn stream(name: &str, dialect: Dialect) -> Case {
    of(name, dialect, Mode::Stream)
}

/// A way in which a connection dies.
type Death = (&'static str, fn(Play) -> Play);

const DEATHS: [Death; 2] = [("closed", Play::close), ("reset", |play| play.pause(60).reset())];

fn before_the_head() -> Vec<Case> {
    let mut cases = Vec::new();
    for dialect in GENERATING {
        for mode in MODES {
            for (how, die) in DEATHS {
                // Late enough that nobody takes the request for one that was never read.
                let name = format!("e57.{how}_before_the_head");
                cases.push(
                    of(&name, dialect, mode)
                        .plays(die(Play::mute().pause(150)))
                        .own_error(502)
                        .record(http_error(502, "upstream_reset"))
                        .record([is("phase", "before_head"), null("upstream_status"), is("attempts", 1)]),
                );
            }
        }
    }
    cases
}

fn within_the_stream() -> Vec<Case> {
    let mut cases = Vec::new();
    for dialect in GENERATING {
        for (how, die) in DEATHS {
            let broken = |point: &str, play: Play, phase: &str| {
                stream(&format!("e57.{how}_{point}"), dialect)
                    .plays(die(play))
                    .broken_off()
                    .record(interrupted("upstream_truncated", phase))
            };
            let begun = || Play::sse().open(dialect, &COUNTS).text(dialect, "hello");
            let cut = dialect.text(" there");
            cases.push(
                broken("behind_the_head", Play::sse().pause(20), "before_first_token").record(no_token()),
            );
            cases.push(broken(
                "before_the_first_token",
                Play::sse().send(dialect.open(&COUNTS)),
                "before_first_token",
            ));
            cases.push(
                broken("behind_a_frame", begun(), "mid_stream")
                    .record([null("output_tokens"), null("terminal_ns")]),
            );
            cases.push(broken("within_a_frame", begun().send(&cut[..cut.len() / 2]), "mid_stream"));
            // Nothing is held back for a caller that asked for usage itself.
            cases.push(
                broken("within_a_frame_asked", begun().send(&cut[..cut.len() / 2]), "mid_stream")
                    .asking_usage(),
            );
            cases.push(broken("within_a_chunk", begun().raw("400\r\n"), "mid_stream"));
            cases.push(
                stream(&format!("e57.{how}_behind_the_terminal"), dialect)
                    .plays(die(begun().closing(dialect, Finish::Stop, &COUNTS)))
                    .ends(End::Any)
                    .record(all([success(), counts(7, 5)]))
                    .flags_allowed(&["broken_behind_terminal"]),
            );
        }
    }
    cases
}

fn elsewhere() -> Vec<Case> {
    let mut cases = Vec::new();
    for dialect in GENERATING {
        cases.push(
            of("e57.whole_body_cut", dialect, Mode::Whole)
                .plays(cut_body(dialect).close())
                .own_error(502)
                .record(http_error(502, "upstream_truncated"))
                .record([is("upstream_status", 200)]),
        );
    }
    for dialect in ASKED {
        let finished = || Play::sse().text(dialect, "x").send(dialect.finish(Finish::Stop));
        cases.push(
            stream("e57.closed_between_finish_and_usage", dialect)
                .plays(finished().close())
                .broken_off()
                .record(interrupted("upstream_truncated", "mid_stream"))
                .record([null("output_tokens")]),
        );
        cases.push(
            stream("e57.closed_between_usage_and_done", dialect)
                .plays(finished().if_asked(dialect.usage_chunk(&COUNTS)).close())
                .sees(Body::AsSentOrBrokenOff)
                .ends(End::Any)
                .record(all([success(), counts(7, 5)]))
                .flags_allowed(&["broken_behind_terminal"]),
        );
        // The caller was promised a length, so broken framing may tell it.
        let text = dialect.text("x");
        let lines = format!("content-length: {}\r\n", text.len() + 100);
        cases.push(
            stream("e57.length_not_reached", dialect)
                .asking_usage()
                .plays(Play::sse_with(&lines).send(&text).pause(20).close())
                .sees(Body::BrokenSomehow)
                .ends(End::Any)
                .record(interrupted("upstream_truncated", "mid_stream")),
        );
    }
    cases
}

/// A length that is not reached.
fn cut_body(dialect: Dialect) -> Play {
    let body = dialect.whole("hello there.", Finish::Stop, &COUNTS);
    let head = format!(
        "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    Play::head(&head).send(&body[..body.len() / 2]).pause(20)
}
