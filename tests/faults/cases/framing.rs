//! Events as bytes: line ends, comments, cuts anywhere, long lines. Bytes pass, and every event is seen once.
//!
//! Apart from transport, which is about what carries the bytes. A read is not an event: the same stream in any
//! pieces gives the same record. Must not know: other sections.

use bytes::Bytes;

use crate::faults::case::{Case, Exchange, Section, case};
use crate::faults::check::{Check, all, counts, is, success};
use crate::faults::dialect::{
    ASKED, Dialect, Finish, GENERATING, Mode, Usage, chat_delta, frame, named_frame, usage,
};
use crate::faults::script::{Play, Whose};

use Dialect::{Chat, Completions, Messages, Responses};

const COUNTS: Usage = Usage { input: 7, output: 5, reasoning: None, cached: None };

pub fn cases() -> Vec<Case> {
    [line_ends(), cuts(), splits(), comments(), odd_frames(), long_lines(), malformed()].concat()
}

fn stream(name: &str, dialect: Dialect) -> Case {
    case(Section::Framing, name, dialect, Mode::Stream)
}

type Piece = (Bytes, Whose);

/// A short answer in pieces, one for each frame.
fn pieces(dialect: Dialect) -> Vec<Piece> {
    let callers = |text: String| (text, Whose::Callers);
    let mut pieces = vec![
        callers(dialect.open(&COUNTS)),
        callers(dialect.text("日本語 🙂 é")),
        callers(dialect.text(" \"usage\":{} data: [DONE]")),
    ];
    pieces.extend(dialect.close(Finish::Stop, &COUNTS));
    pieces
        .into_iter()
        .filter(|(text, _)| !text.is_empty())
        .map(|(text, whose)| (text.into(), whose))
        .collect()
}

fn seen() -> Vec<Check> {
    all([success(), counts(7, 5)])
}

/// The pieces cut anew: each run of bytes is a write of its own, with a pause between.
fn cut(pieces: &[Piece], sizes: &mut dyn FnMut() -> usize, pause: u64) -> Play {
    let mut play = Play::sse();
    let (mut write, mut left): (Vec<Piece>, usize) = (Vec::new(), sizes());
    for (bytes, whose) in pieces {
        let mut bytes = bytes.clone();
        while !bytes.is_empty() {
            let part = bytes.split_to(left.min(bytes.len()));
            left -= part.len();
            write.push((part, *whose));
            if left == 0 {
                play = play.write(std::mem::take(&mut write)).pause(pause);
                left = sizes().max(1);
            }
        }
    }
    play.write(write).end()
}

fn with_line_ends(pieces: Vec<Piece>, end: &str) -> Vec<Piece> {
    let changed = |bytes: Bytes| Bytes::from(String::from_utf8_lossy(&bytes).replace('\n', end));
    pieces.into_iter().map(|(bytes, whose)| (changed(bytes), whose)).collect()
}

fn line_ends() -> Vec<Case> {
    let mut cases = Vec::new();
    for dialect in GENERATING {
        for (name, end) in [("c31.crlf", "\r\n"), ("c31.cr", "\r")] {
            let pieces = with_line_ends(pieces(dialect), end);
            let frame_by_frame =
                pieces.iter().fold(Play::sse(), |play, piece| play.write(vec![piece.clone()]).pause(5));
            cases.push(stream(name, dialect).plays(frame_by_frame.end()).record(seen()));
            let name = format!("{name}_bytewise");
            cases.push(stream(&name, dialect).plays(cut(&pieces, &mut || 1, 0)).record(seen()));
        }
        // Each write ends between the two characters of a line end.
        let joined = with_line_ends(pieces(dialect), "\r\n");
        let play =
            joined.iter().fold((Play::sse(), Vec::<Piece>::new()), |(play, mut carried), (bytes, whose)| {
                let at = bytes.len() - 1;
                carried.push((bytes.slice(..at), *whose));
                (play.write(carried).pause(8), vec![(bytes.slice(at..), *whose)])
            });
        cases.push(stream("c31.crlf_split", dialect).plays(play.0.write(play.1).end()).record(seen()));
        let no_space = pieces(dialect).into_iter().map(|(bytes, whose)| {
            let text = String::from_utf8_lossy(&bytes).replace("\ndata: ", "\ndata:");
            (
                Bytes::from(text.strip_prefix("data: ").map(|rest| format!("data:{rest}")).unwrap_or(text)),
                whose,
            )
        });
        let play = no_space.fold(Play::sse(), |play, piece| play.write(vec![piece]));
        cases.push(stream("c32.no_space", dialect).plays(play.end()).record(seen()));
    }
    cases
}

fn cuts() -> Vec<Case> {
    let mut cases = Vec::new();
    for dialect in GENERATING {
        let all_pieces = pieces(dialect);
        let mut step = 0;
        let mut slowly = || {
            step += 1;
            1
        };
        cases
            .push(stream("c29.byte_by_byte", dialect).plays(cut(&all_pieces, &mut slowly, 0)).record(seen()));
        cases.push(
            stream("c29.one_write", dialect)
                .plays(Play::sse().write(vec_of_one(&all_pieces)).end())
                .record(seen())
                .record([is("content_time_ns", 0)]),
        );
        // In chunks of their own and in one write: one read, so one stamp.
        cases.push(
            stream("c29.one_write_of_chunks", dialect)
                .plays(Play::sse().write(all_pieces.clone()).end())
                .record(seen())
                .record([is("content_time_ns", 0)]),
        );
        for seed in 1..=4_u64 {
            let mut random = seed * 0x9e37_79b9_7f4a_7c15;
            let mut sizes = || {
                random ^= random << 13;
                random ^= random >> 7;
                random ^= random << 17;
                1 + (random % 40) as usize
            };
            let name = format!("c29.random_cuts_{seed}");
            cases.push(stream(&name, dialect).plays(cut(&all_pieces, &mut sizes, 1)).record(seen()));
        }
        // Three and seven bytes fall into every character and every line end sooner or later.
        for size in [3, 7] {
            let name = format!("c28.every_{size}_bytes");
            cases.push(stream(&name, dialect).plays(cut(&all_pieces, &mut || size, 1)).record(seen()));
        }
    }
    cases
}

/// All pieces as one chunk, apart from those that are the caller's only if asked for.
fn vec_of_one(pieces: &[Piece]) -> Vec<Piece> {
    let mut joined: Vec<(Vec<u8>, Whose)> = Vec::new();
    for (bytes, whose) in pieces {
        match joined.last_mut() {
            Some((last, of)) if of == whose => last.extend_from_slice(bytes),
            Some(_) | None => joined.push((bytes.to_vec(), *whose)),
        }
    }
    joined.into_iter().map(|(bytes, whose)| (Bytes::from(bytes), whose)).collect()
}

/// A recording as short as it can be.
fn recording(dialect: Dialect) -> Vec<Piece> {
    let counted = usage(7, 5);
    let texts: Vec<(String, Whose)> = match dialect {
        Chat => vec![
            (frame(r#"{"choices":[{"index":0,"delta":{"content":"é🙂"}}]}"#), Whose::Callers),
            (frame(r#"{"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}"#), Whose::Callers),
            (frame(&format!(r#"{{"choices":[],"usage":{}}}"#, counted.json(Chat))), Whose::IfAsked),
            (frame("[DONE]"), Whose::Callers),
        ],
        Completions => vec![
            (frame(r#"{"choices":[{"index":0,"text":"é🙂"}]}"#), Whose::Callers),
            (frame(r#"{"choices":[{"index":0,"text":"","finish_reason":"stop"}]}"#), Whose::Callers),
            (frame(&format!(r#"{{"choices":[],"usage":{}}}"#, counted.json(Chat))), Whose::IfAsked),
            (frame("[DONE]"), Whose::Callers),
        ],
        Responses => vec![
            (frame(r#"{"type":"response.output_text.delta","delta":"é🙂"}"#), Whose::Callers),
            (
                frame(&format!(
                    r#"{{"type":"response.completed","response":{{"status":"completed","usage":{}}}}}"#,
                    counted.json(Responses)
                )),
                Whose::Callers,
            ),
        ],
        Messages | Dialect::Embeddings | Dialect::Plain => vec![
            (Messages.text("é🙂"), Whose::Callers),
            (Messages.message_delta(Finish::Stop, &counted.json(Messages)), Whose::Callers),
            (named_frame("message_stop", r#"{"type":"message_stop"}"#), Whose::Callers),
        ],
    };
    texts.into_iter().map(|(text, whose)| (text.into(), whose)).collect()
}

/// Every way to cut a recording in two, one request each.
fn splits() -> Vec<Case> {
    let case_of = |dialect: Dialect| {
        let recording = recording(dialect);
        let length: usize = recording.iter().map(|(bytes, _)| bytes.len()).sum();
        let mut case = stream("c29.every_split", dialect);
        case.exchanges = (1..length)
            .map(|at| {
                let mut sizes = [at, length].into_iter();
                let mut exchange = Exchange::new(dialect, Mode::Stream);
                exchange.plays = vec![cut(&recording, &mut || sizes.next().unwrap_or(length), 2)];
                exchange.record = Some(seen());
                exchange
            })
            .collect();
        case
    };
    GENERATING.map(case_of).to_vec()
}

fn comments() -> Vec<Case> {
    let mut cases = Vec::new();
    for dialect in GENERATING {
        for (name, text) in [
            ("c33.openrouter_comment", ": OPENROUTER PROCESSING\n\n"),
            ("c34.bare_colon", ":\n\n"),
            ("c38.empty_data", "data:\n\n"),
            ("c38.empty_data_with_space", "data: \n\n"),
            ("c38.empty_json_text", "data: \"\"\n\n"),
            ("c34.blank_lines", "\n\n\n"),
            ("c34.retry_and_id", "retry: 3000\nid: 7\n\n"),
            ("c34.unknown_field", "mood: good\n\n"),
        ] {
            let play = pieces(dialect)
                .into_iter()
                .fold(Play::sse().send(text), |play, piece| play.write(vec![piece]).send(text));
            cases.push(stream(name, dialect).plays(play.end()).record(seen()));
        }
    }
    cases
}

fn odd_frames() -> Vec<Case> {
    let mut cases = Vec::new();
    let plain = |name: &str, before: &str, text: &str, after: &str| {
        let play = Play::sse().send(before).send(text).send(after);
        stream(name, Chat).plays(play.close_with(Chat, Finish::Stop, &COUNTS)).record(seen())
    };
    let delta = r#"{"choices":[{"index":0,"delta":{"content":"x"}}]}"#;
    cases.push(plain(
        "c34.event_and_id_lines",
        "",
        &format!("event: message\nid: 1\ndata: {delta}\nretry: 1\n\n"),
        "",
    ));
    cases.push(plain(
        "c34.data_in_two_lines",
        "",
        "data: {\"choices\":[{\"index\":0,\ndata: \"delta\":{\"content\":\"x\"}}]}\n\n",
        "",
    ));
    cases.push(plain("c34.comment_within_a_frame", "", &format!(": note\ndata: {delta}\n: more\n\n"), ""));
    cases.push(plain("c37.heartbeat_before_a_frame", ":ping\n", &format!("data: {delta}\n\n"), ""));
    cases.push(plain("c31.byte_order_mark", "", &format!("\u{feff}data: {delta}\n\n"), ""));
    cases.push(plain(
        "c28.odd_json",
        "",
        "data:  { \"z\" : 1 ,\t\"choices\" : [ { \"delta\" : { \"content\" : \"\\u65e5\\ud83d\\ude42\" } , \"index\":0 } ] , \"big\" : 123456789012345678901234567890 , \"a\":1.50 }  \n\n",
        "",
    ));
    cases.push(plain(
        "c28.text_that_looks_like_usage",
        &chat_delta(r#"{"content":"{\"choices\":[],\"usage\":{\"total_tokens\":1}}"}"#),
        "",
        "",
    ));
    cases.push(plain(
        "c28.text_that_looks_like_an_error",
        &chat_delta(r#"{"content":"{\"error\":{}}"}"#),
        "",
        "",
    ));
    cases.push(plain(
        "c28.null_error",
        &frame(r#"{"choices":[{"index":0,"delta":{"content":"x"}}],"error":null}"#),
        "",
        "",
    ));
    for dialect in ASKED {
        // The last frame has no blank line behind it.
        let play = Play::sse()
            .text(dialect, "x")
            .send(dialect.finish(Finish::Stop))
            .if_asked(dialect.usage_chunk(&COUNTS))
            .send("data: [DONE]");
        cases.push(stream("c38.no_blank_line_at_the_end", dialect).plays(play.end()).record(seen()));
        let play = Play::sse().text(dialect, "x").close_with(dialect, Finish::Stop, &COUNTS);
        cases.push(stream("c29.asked_by_the_caller", dialect).asking_usage().plays(play).record(seen()));
    }
    cases
}

/// Lines of any length pass. One over the reader's cap is not read, and says so.
fn long_lines() -> Vec<Case> {
    let mut cases = Vec::new();
    let long = |dialect: Dialect, bytes: usize| {
        Play::sse()
            .open(dialect, &COUNTS)
            .text(dialect, "first")
            .send_large(dialect.text(&"long ".repeat(bytes / 5)).into())
            .close_with(dialect, Finish::Stop, &COUNTS)
    };
    for dialect in GENERATING {
        cases.push(stream("c39.line_of_70_kb", dialect).plays(long(dialect, 70_000)).record(seen()));
        cases.push(
            stream("c39.line_of_1_5_mb", dialect).plays(long(dialect, 1_500_000)).record(seen()).heavy(),
        );
    }
    cases.push(stream("c39.line_of_4_mb", Chat).plays(long(Chat, 4_000_000)).record(seen()).heavy());
    cases.push(
        stream("c39.line_of_17_mib", Chat)
            .plays(long(Chat, 17 * 1024 * 1024))
            .record(seen())
            .flags(&["frame_over_cap"])
            .heavy(),
    );
    cases
}

/// One frame that makes no sense, between good ones.
fn malformed() -> Vec<Case> {
    let mut cases = Vec::new();
    for dialect in GENERATING {
        for (name, bad) in [
            ("c41.cut_json", "data: {\"choices\":[{\"delta\":{\"content\":\"x\"\n\n"),
            ("c41.no_json", "data: hello\n\n"),
            ("c41.a_list", "data: []\n\n"),
        ] {
            let play = Play::sse()
                .open(dialect, &COUNTS)
                .text(dialect, "before")
                .send(bad)
                .text(dialect, "behind")
                .close_with(dialect, Finish::Stop, &COUNTS);
            cases.push(stream(name, dialect).plays(play).record(seen()).flags(&["frame_malformed"]));
        }
        let play = Play::sse()
            .open(dialect, &COUNTS)
            .text(dialect, "a")
            .send(named_frame("unheard.of", r#"{"type":"unheard.of","x":[1,2]}"#))
            .text(dialect, "b")
            .close_with(dialect, Finish::Stop, &COUNTS);
        cases.push(stream("c41.unknown_event", dialect).plays(play).record(seen()));
    }
    // Bytes that are no text at all pass too.
    let play =
        Play::sse().text(Chat, "a").send(b"data: \xff\xfe\n\n").close_with(Chat, Finish::Stop, &COUNTS);
    cases.push(stream("c28.no_utf_8", Chat).plays(play).record(seen()).flags(&["frame_malformed"]));
    cases
}
