//! What carries the bytes: sizes, codings, versions of HTTP, framing of both sides, callers that do not read.
//!
//! Apart from event framing, which is about what the bytes say. Must not know: other sections.

use std::time::Duration;

use bytes::Bytes;

use crate::faults::case::{Case, End, Pace, Section, Sending, Sent, Version, case};
use crate::faults::check::{Check, all, at_least, counts, http_error, interrupted, is, known, success};
use crate::faults::dialect::{Dialect, Finish, GENERATING, MODES, Mode, Usage, answer, frame};
use crate::faults::gateway::Profile;
use crate::faults::script::Play;

use Dialect::{Chat, Completions, Embeddings, Messages, Plain};

const COUNTS: Usage = Usage { input: 7, output: 5, reasoning: None, cached: None };

pub fn cases() -> Vec<Case> {
    [
        sizes(),
        refused_sizes(),
        codings(),
        old_callers(),
        requests(),
        heads(),
        kinds(),
        replies(),
        no_http(),
        odd_framing(),
        not_reading(),
        flushing(),
    ]
    .concat()
}

fn of(name: &str, dialect: Dialect, mode: Mode) -> Case {
    case(Section::Transport, name, dialect, mode)
}

fn seen() -> Vec<Check> {
    all([success(), counts(7, 5)])
}

/// A request of about this many bytes.
fn large(dialect: Dialect, mode: Mode, bytes: usize) -> Bytes {
    Bytes::from(dialect.request(mode, &format!(r#","user":"{}""#, "long ".repeat(bytes / 5))))
}

fn sizes() -> Vec<Case> {
    let mut cases = Vec::new();
    for dialect in GENERATING {
        for mode in MODES {
            let request = |name: &str, bytes: usize, sending: Sending| {
                of(name, dialect, mode)
                    .body(large(dialect, mode, bytes))
                    .sends(sending)
                    .plays(answer(dialect, mode, &COUNTS))
                    .record(seen())
            };
            cases.push(request("g84.request_of_33_kb", 33_000, Sending::AtOnce));
            cases.push(request("g84.request_of_220_kb", 220_000, Sending::AtOnce));
            cases.push(request("g84.request_of_33_kb_in_chunks", 33_000, Sending::InChunks(1000)));
        }
        cases.push(
            of("g84.request_of_2_5_mb", dialect, Mode::Stream)
                .body(large(dialect, Mode::Stream, 2_500_000))
                .plays(answer(dialect, Mode::Stream, &COUNTS))
                .record(seen())
                .heavy(),
        );
        let body = dialect.whole(&"long ".repeat(600_000), Finish::Stop, &COUNTS);
        cases.push(
            of("g84.reply_of_3_mb", dialect, Mode::Whole).plays(Play::json(200, body)).record(seen()).heavy(),
        );
    }
    for (mode, sending) in [(Mode::Stream, Sending::AtOnce), (Mode::Whole, Sending::InChunks(65_536))] {
        cases.push(
            of("g84.request_of_12_mb", Chat, mode)
                .body(large(Chat, mode, 12_000_000))
                .sends(sending)
                .plays(answer(Chat, mode, &COUNTS))
                .record(seen())
                .heavy(),
        );
    }
    let numbers = "0.123456789,".repeat(400_000);
    let vectors = Embeddings.whole("", Finish::Stop, &COUNTS).replace("0.5,", &numbers);
    cases.push(
        of("g84.embeddings_of_5_mb", Embeddings, Mode::Whole)
            .plays(Play::json(200, vectors))
            .record([is("outcome", "success"), is("input_tokens", 7)])
            .heavy(),
    );
    // Over what is held in memory: it passes, and is not read.
    let body = Chat.whole(&"long ".repeat(3_600_000), Finish::Stop, &COUNTS);
    cases.push(
        of("g84.reply_of_18_mb", Chat, Mode::Whole)
            .plays(Play::json(200, body))
            .record([is("outcome", "success"), is("client_status", 200)])
            .flags(&["body_over_cap"])
            .flags_allowed(&["usage_missing", "tokens_estimated"])
            .heavy(),
    );
    cases
}

/// Over the limit of 65536 bytes: the caller gets to read why, and its connection works on or closes in order.
fn refused_sizes() -> Vec<Case> {
    let mut cases = Vec::new();
    let of = |name: &str, dialect: Dialect| of(name, dialect, Mode::Whole).under(Profile::SmallBody);
    for dialect in GENERATING {
        for (name, bytes, sending) in [
            ("g84.over_the_limit", 1_000_000, Sending::AtOnce),
            ("g84.over_the_limit_by_little", 65_600, Sending::AtOnce),
            ("g84.over_the_limit_in_chunks", 100_000, Sending::InChunks(4096)),
            ("g84.far_over_the_limit", 8_000_000, Sending::AtOnce),
            ("g84.over_the_limit_expecting_100", 1_000_000, Sending::Expecting),
        ] {
            cases.push(
                of(name, dialect)
                    .body(large(dialect, Mode::Whole, bytes))
                    .sends(sending)
                    .plays(Play::mute())
                    .arrivals(0..=0)
                    .own_error(413)
                    .record(http_error(413, "too_large"))
                    .record([is("attempts", 0)])
                    .then(dialect, Mode::Whole)
                    .plays(answer(dialect, Mode::Whole, &COUNTS))
                    .record(seen()),
            );
        }
        cases.push(
            of("g84.below_the_limit", dialect)
                .body(large(dialect, Mode::Whole, 65_000))
                .plays(answer(dialect, Mode::Whole, &COUNTS))
                .record(seen()),
        );
    }
    cases
}

/// Some bytes under a gzip header: the deflated part is one stored block, which holds the plain text.
fn gzip(text: &str) -> Vec<u8> {
    let bytes = text.as_bytes();
    let mut out = vec![0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 255];
    let length = u16::try_from(bytes.len()).unwrap_or(u16::MAX);
    out.push(1);
    out.extend(length.to_le_bytes());
    out.extend((!length).to_le_bytes());
    out.extend_from_slice(&bytes[..usize::from(length)]);
    out.extend(crc32(&bytes[..usize::from(length)]).to_le_bytes());
    out.extend(u32::from(length).to_le_bytes());
    out
}

/// The checksum of RFC 1952, section 8.
fn crc32(bytes: &[u8]) -> u32 {
    let bit = |crc: u32, _| if crc & 1 == 1 { (crc >> 1) ^ 0xedb8_8320 } else { crc >> 1 };
    !bytes.iter().fold(!0, |crc, byte| (0..8).fold(crc ^ u32::from(*byte), bit))
}

/// Compressed although it was not asked for: the bytes pass, nothing is read out of them, and the record says so.
fn codings() -> Vec<Case> {
    let mut cases = Vec::new();
    for dialect in GENERATING {
        for coding in ["gzip", "br", "zstd"] {
            let head = |kind: &str| format!("content-type: {kind}\r\ncontent-encoding: {coding}\r\n");
            let whole = gzip(&dialect.whole("hello", Finish::Stop, &COUNTS));
            let events = gzip(&[dialect.text("x"), dialect.usage_chunk(&COUNTS), frame("[DONE]")].concat());
            let checks = || {
                [
                    Check::Marked,
                    is("client_status", 200),
                    Check::Null("output_tokens"),
                    Check::Null("first_token_time_ns"),
                ]
            };
            let asking = |case: Case| {
                case.request(|request| request.lines = "accept-encoding: gzip, br, zstd\r\n".to_owned())
                    .without("accept-encoding")
                    .header("content-encoding", coding)
                    .record(checks())
            };
            cases.push(asking(of(&format!("g86.{coding}"), dialect, Mode::Whole).plays(Play::reply(
                200,
                &head("application/json"),
                whole,
            ))));
            let stream =
                Play::sse_with(&format!("content-encoding: {coding}\r\ntransfer-encoding: chunked\r\n"));
            cases.push(asking(
                of(&format!("g86.{coding}"), dialect, Mode::Stream).plays(stream.send(events).end()),
            ));
        }
        for mode in MODES {
            // Nobody compresses: what the caller would have taken is not asked for upstream, since replies are read.
            cases.push(
                of("g86.identity_is_asked_for", dialect, mode)
                    .request(|request| request.lines = "accept-encoding: gzip, br\r\n".to_owned())
                    .without("accept-encoding")
                    .plays(answer(dialect, mode, &COUNTS))
                    .record(seen()),
            );
        }
    }
    cases
}

/// Callers of HTTP/1.0 know no chunks: they get a length, or the end of the connection.
fn old_callers() -> Vec<Case> {
    let mut cases = Vec::new();
    let old = |case: Case| case.request(|request| request.version = Version::Http10).http11_only();
    for dialect in GENERATING {
        for mode in MODES {
            cases.push(
                old(of("g10.http_1_0", dialect, mode)).plays(answer(dialect, mode, &COUNTS)).record(seen()),
            );
        }
        let died = Play::sse().text(dialect, "hello").pause(20).close();
        cases.push(
            old(of("g10.http_1_0_died", dialect, Mode::Stream))
                .plays(died)
                .broken_off()
                .record(interrupted("upstream_truncated", "mid_stream")),
        );
        cases.push(
            old(of("g10.http_1_0_error", dialect, Mode::Whole))
                .plays(Play::mute().pause(150).close())
                .own_error(502),
        );
    }
    cases.push(
        old(of("g10.http_1_0_bodyless", Plain, Mode::Whole)).request(models).plays(Play::json(200, "{}")),
    );
    cases
}

fn models(request: &mut crate::faults::case::Request) {
    request.method = "GET";
    request.path = "/v1/models?case=@MODEL@".to_owned();
    request.body = Bytes::new();
}

/// Requests in every framing arrive whole, once.
fn requests() -> Vec<Case> {
    let mut cases = Vec::new();
    for dialect in GENERATING {
        for mode in MODES {
            let request = |name: &str, sending: Sending| {
                of(name, dialect, mode).sends(sending).plays(answer(dialect, mode, &COUNTS)).record(seen())
            };
            // In HTTP/2 the last frame of these is empty: upstream there is one end, and not two.
            let chunks = request("g88.request_in_chunks", Sending::InChunks(7));
            cases.push(chunks.then(dialect, mode).plays(answer(dialect, mode, &COUNTS)).record(seen()));
            cases.push(request("g88.request_byte_by_byte", Sending::ByteByByte));
            cases.push(request("g88.request_expecting_100", Sending::Expecting).without("expect"));
        }
    }
    let plain = |name: &str| of(name, Plain, Mode::Whole).request(models);
    cases.push(
        plain("g89.get_without_a_body")
            .plays(Play::json(200, Plain.whole("", Finish::Stop, &COUNTS)))
            .record([is("outcome", "success"), is("endpoint", "other")]),
    );
    cases.push(
        plain("g89.post_without_a_body")
            .request(|request| {
                request.method = "POST";
                request.path = "/v1/load?case=@MODEL@".to_owned();
            })
            .plays(Play::json(200, "{}")),
    );
    cases.push(
        plain("g90.delete_and_no_content")
            .request(|request| {
                request.method = "DELETE";
                request.path = "/v1/responses/r-1?case=@MODEL@".to_owned();
            })
            .plays(Play::head("HTTP/1.1 204 No Content\r\nx-kept: yes\r\n\r\n"))
            .status(204)
            .header("x-kept", "yes"),
    );
    cases.push(
        plain("g90.not_modified")
            .plays(Play::head("HTTP/1.1 304 Not Modified\r\netag: \"a\"\r\n\r\n"))
            .status(304)
            .header("etag", "\"a\""),
    );
    cases
}

/// What belongs to the caller's request goes on, what belongs to its connection stays.
fn heads() -> Vec<Case> {
    let lines = "authorization: Bearer k-1\r\ntraceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01\r\nx-odd-Name: A b  c\r\nconnection: x-hop\r\nx-hop: 1\r\n";
    let case_of = |dialect: Dialect| {
        of("g06.heads", dialect, Mode::Stream)
            .http11_only()
            .request(|request| request.lines = lines.to_owned())
            .with_header("authorization", "Bearer k-1")
            .with_header("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
            .with_header("x-odd-name", "A b  c")
            .without("x-hop")
            .plays(answer(dialect, Mode::Stream, &COUNTS))
            .record(seen())
    };
    let closing = |dialect: Dialect| {
        of("g04.caller_wants_it_closed", dialect, Mode::Stream)
            .http11_only()
            .request(|request| request.lines = "connection: close\r\n".to_owned())
            .without("connection")
            .header("connection", "close")
            .plays(answer(dialect, Mode::Stream, &COUNTS))
            .record(seen())
    };
    let early = |dialect: Dialect| {
        // It refuses a head and reads no more: the refusal is the caller's, not the failed write.
        of("g84.upstream_refuses_early", dialect, Mode::Whole)
            .request(|request| request.path = format!("{}?early=1&case=@MODEL@", dialect.path()))
            .body(large(dialect, Mode::Whole, 2_500_000))
            .sent(Sent::Any)
            .plays(
                Play::reply(
                    413,
                    "content-type: application/json\r\nconnection: close\r\n",
                    dialect.error_body(),
                )
                .pause(300)
                .close(),
            )
            .status(413)
            .record(http_error(413, "upstream_status"))
            .heavy()
    };
    let deep = |dialect: Dialect| {
        let nested = format!(r#","deep":{}{}"#, "[".repeat(3000), "]".repeat(3000));
        of("g84.deep_json", dialect, Mode::Stream)
            .asking(&nested)
            .plays(answer(dialect, Mode::Stream, &COUNTS))
            .record(seen())
    };
    let spaced = |dialect: Dialect| {
        let body = format!("\r\n \t{}\n ", dialect.request(Mode::Stream, ""));
        of("g06.space_around_the_body", dialect, Mode::Stream)
            .body(body)
            .plays(answer(dialect, Mode::Stream, &COUNTS))
            .record(seen())
    };
    GENERATING
        .into_iter()
        .flat_map(|dialect| {
            [case_of(dialect), closing(dialect), early(dialect), deep(dialect), spaced(dialect)]
        })
        .collect()
}

/// Replies in every framing that HTTP allows, and some that it does not.
fn replies() -> Vec<Case> {
    let mut cases = Vec::new();
    for dialect in GENERATING {
        let text = || [dialect.open(&COUNTS), dialect.text("x")].concat();
        let until_close =
            Play::sse_until_close().send(text()).closing(dialect, Finish::Stop, &COUNTS).close();
        cases.push(of("g90.stream_until_close", dialect, Mode::Stream).plays(until_close).record(seen()));
        let old = Play::head("HTTP/1.0 200 OK\r\nContent-Type: text/event-stream\r\n\r\n").send(text());
        cases.push(
            of("g90.stream_of_http_1_0", dialect, Mode::Stream)
                .plays(old.closing(dialect, Finish::Stop, &COUNTS).close())
                .record(seen()),
        );
        let body = dialect.whole("x", Finish::Stop, &COUNTS);
        let until_close =
            Play::head("HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n\r\n").send(&body).close();
        cases.push(of("g90.body_until_close", dialect, Mode::Whole).plays(until_close).record(seen()));
        let chunked = Play::head(
            "HTTP/1.1 200 OK\r\ncontent-type: application/json; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n",
        );
        cases.push(
            of("g90.body_in_chunks", dialect, Mode::Whole)
                .plays(chunked.send(&body[..9]).pause(10).send(&body[9..]).end())
                .record(seen()),
        );
        let kind = Play::head(
            "HTTP/1.1 200 OK\r\ncontent-type: Text/Event-Stream; charset=UTF-8\r\ntransfer-encoding: chunked\r\n\r\n",
        );
        cases.push(
            of("g90.content_type_in_capitals", dialect, Mode::Stream)
                .plays(kind.send(text()).close_with(dialect, Finish::Stop, &COUNTS))
                .record(seen()),
        );
        let hints = Play::mute().raw("HTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\n").pause(30);
        cases.push(
            of("g90.early_hints", dialect, Mode::Stream)
                .plays(answer(dialect, Mode::Stream, &COUNTS).delayed(hints))
                .record(seen()),
        );
    }
    cases
}

/// What is no HTTP at all.
fn no_http() -> Vec<Case> {
    let mut cases = Vec::new();
    for dialect in GENERATING {
        let noise = Play::mute().raw("nothing like a reply\r\n\r\n").close();
        cases.push(
            of("e57.no_http", dialect, Mode::Whole)
                .plays(noise)
                .arrivals(1..=4)
                .own_error(502)
                .record(http_error(502, "upstream_protocol")),
        );
        let broken = Play::sse().text(dialect, "hello").raw("zz\r\nnonsense\r\n").pause(20);
        cases.push(of("e57.no_chunk", dialect, Mode::Stream).plays(broken.close()).broken_off().record([
            is("outcome", "interrupted"),
            Check::OneOf("reason", vec!["upstream_truncated".into(), "upstream_protocol".into()]),
        ]));
    }
    cases
}

/// Odd ways to frame a body, each of them allowed.
fn odd_framing() -> Vec<Case> {
    let mut cases = Vec::new();
    let text = Chat.text("x");
    let size = text.len();
    let odd = format!("{size:08X};name=\"value\"\r\n{text}\r\n");
    cases.push(
        of("g90.chunk_with_an_extension", Chat, Mode::Stream)
            .plays(Play::sse().framed_as(odd, &text).close_with(Chat, Finish::Stop, &COUNTS))
            .record(seen()),
    );
    let ended = Play::sse().text(Chat, "x").closing(Chat, Finish::Stop, &COUNTS);
    cases.push(
        of("g90.trailers", Chat, Mode::Stream).plays(ended.raw("0\r\nx-checksum: 7\r\n\r\n")).record(seen()),
    );
    let exact = [
        Completions.text("x"),
        Completions.finish(Finish::Stop),
        Completions.usage_chunk(&COUNTS),
        frame("[DONE]"),
    ]
    .concat();
    let lines = format!("content-length: {}\r\n", exact.len());
    cases.push(
        of("g90.stream_with_a_length", Completions, Mode::Stream)
            .asking_usage()
            .plays(Play::sse_with(&lines).send(exact))
            .record(seen()),
    );
    // The reply breaks off where its length says; what follows is nobody's.
    cases.push(
        of("g90.more_than_the_length", Plain, Mode::Whole).request(models).plays(
            Play::head("HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n")
                .framed_as("{}garbage", "{}")
                .close(),
        ),
    );
    cases
}

/// Replies that are not of the kind that was asked for, or do not say what they are.
fn kinds() -> Vec<Case> {
    let mut cases = Vec::new();
    for dialect in GENERATING {
        cases.push(
            of("e59.whole_reply_to_a_stream", dialect, Mode::Stream)
                .plays(answer(dialect, Mode::Whole, &COUNTS))
                .record(seen())
                .record([
                    is("transfer", "whole"),
                    is("stream", true),
                    is("first_token_time_mark", "not_streamed"),
                ]),
        );
        let streamed = Play::sse().open(dialect, &COUNTS).pause(60).text(dialect, "x");
        cases.push(
            of("e59.stream_to_a_whole_request", dialect, Mode::Whole)
                .plays(streamed.close_with(dialect, Finish::Stop, &COUNTS))
                // The player sends usage to those that ask, and this request does not.
                .record([is("transfer", "streamed"), is("stream", false), is("outcome", "success")])
                .record([at_least("first_token_time_ns", 60)])
                .flags_allowed(&["usage_missing", "tokens_estimated"]),
        );
        for (name, line) in [("no_content_type", ""), ("text_plain", "content-type: text/plain\r\n")] {
            let head = format!("HTTP/1.1 200 OK\r\n{line}transfer-encoding: chunked\r\n\r\n");
            let play = Play::head(&head).open(dialect, &COUNTS).pause(60).text(dialect, "x");
            cases.push(
                of(&format!("e59.stream_under_{name}"), dialect, Mode::Stream)
                    .plays(play.close_with(dialect, Finish::Stop, &COUNTS))
                    .record(seen())
                    .record([at_least("first_token_time_ns", 60)]),
            );
        }
    }
    cases
}

/// A caller that reads nothing for 2 s while 16 MB come: the first token is where it was, and the stall has a name.
fn not_reading() -> Vec<Case> {
    let frames = |dialect: Dialect| {
        let large = Bytes::from(dialect.text(&"long ".repeat(13_000)));
        let begun = Play::sse().open(dialect, &COUNTS).pause(100).text(dialect, "first");
        let sending = (0..250).fold(begun, |play, _| play.send_large(large.clone()));
        sending.close_with(dialect, Finish::Stop, &COUNTS)
    };
    let checks = || {
        all([
            seen(),
            vec![
                Check::Between("first_token_time_ns", 100, 600),
                Check::Between("client_backpressure_ns", 800, 4000),
                known("client_full_response_time_ns"),
                known("last_token_ns"),
            ],
        ])
    };
    [Chat, Messages]
        .into_iter()
        .flat_map(|dialect| {
            let stalls = |name: &str, text: &'static str| {
                of(name, dialect, Mode::Stream)
                    .plays(frames(dialect))
                    .paces(Pace::Stalls { text, time: Duration::from_secs(2) })
                    .record(checks())
                    .heavy()
            };
            [stalls("g09.stalls_from_the_start", ""), stalls("g09.stalls_behind_the_first", "first")]
        })
        .collect()
}

/// Each event goes on at once: the gaps of the upstream are the gaps of the caller.
fn flushing() -> Vec<Case> {
    let case_of = |dialect: Dialect| {
        let play = Play::sse()
            .open(dialect, &COUNTS)
            .pause(150)
            .text(dialect, "one")
            .pause(150)
            .text(dialect, "two")
            .pause(150)
            .text(dialect, "three");
        of("g92.each_event_at_once", dialect, Mode::Stream)
            .plays(play.close_with(dialect, Finish::Stop, &COUNTS))
            .arrives("", 0..=140)
            .arrives("one", 150..=290)
            .arrives("two", 300..=440)
            .arrives("three", 450..=590)
            .record(seen())
            .record([at_least("client_first_token_time_ns", 150)])
    };
    let large = |dialect: Dialect| {
        // A large prompt is read once and passed on; it costs no time of the first token's order.
        of("g93.large_prompt", dialect, Mode::Stream)
            .body(large(dialect, Mode::Stream, 220_000))
            .plays(Play::sse().pause(50).text(dialect, "one").close_with(dialect, Finish::Stop, &COUNTS))
            .arrives("one", 50..=300)
            .ends(End::Complete)
            .sent(Sent::Due)
            .record(seen())
    };
    GENERATING.into_iter().flat_map(|dialect| [case_of(dialect), large(dialect)]).collect()
}
