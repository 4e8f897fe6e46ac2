//! What the gateway itself does between the two legs: assembles, looks ahead, spends time, holds reads back; and
//! what of a reply is no token because it repeats the prompt.
//!
//! Apart because these are facts about the gateway, not about what the upstream sent. Must not know: rules.

use pitot_measure::OutcomeKind::{Interrupted, Success};
use pitot_measure::definitions::Metric::*;
use pitot_measure::families::{self, Family};
use pitot_measure::{Absent, At, BodyKind, Echo, Endpoint, Event, Flag, Observer, Options, Reason};

use crate::play::Expect::{Ms, NoFlags, Null, Outcome};
use crate::play::{DONE, Expect, MS, Play, at, check, content, end_of, finish, reasoning, usage};

#[test]
fn a_reply_assembled_from_a_stream_has_times_upstream_and_an_end_downstream() {
    let play = Play::new(Endpoint::ChatCompletions, false)
        .facts(|facts| facts.upstream_stream = true)
        .sent(10)
        .head(15, 200, BodyKind::EventStream)
        .only_read(50, reasoning("a").as_bytes())
        .only_read(80, content("b").as_bytes())
        .only_read(100, [content("c"), end_of("stop", 5, 3)].concat().as_bytes())
        .write(110, 2)
        .ended(110);
    let record = check(
        "assembled",
        &play,
        &[
            Outcome(Success),
            Ms(FirstTokenTime, 40),
            Ms(ContentTime, 20),
            Ms(FullResponseTime, 90),
            Null(ClientFirstTokenTime, Absent::NotStreamed),
            Null(ClientContentTime, Absent::NotStreamed),
            Null(ClientTimePerToken, Absent::NotStreamed),
            Ms(ClientFullResponseTime, 105), // written at 110, the request had been read at 5
            NoFlags,
        ],
    );
    assert!(!record.stream && record.upstream_stream);
}

#[test]
fn a_look_ahead_sees_what_the_observer_sees_afterwards() {
    let begun = |stream: bool, body| {
        let play = Play::new(Endpoint::ChatCompletions, stream);
        let mut observer = Observer::new(play.facts, Options::default());
        observer.observe(at(10), Event::AttemptStarted);
        observer.observe(at(10), Event::RequestSent);
        observer.observe(at(15), Event::Head { status: 200, body });
        observer
    };
    let mut streamed = begun(true, BodyKind::EventStream);
    let before = [content("a"), content("b")].concat();
    streamed.observe(at(30), Event::UpstreamBytes(before.as_bytes()));
    streamed.observe(at(60), Event::UpstreamBytes([content("c"), finish("stop")].concat().as_bytes()));
    let frame = usage(5, 3);
    let ahead = streamed.so_far_with(at(70), frame.as_bytes());
    assert_eq!(streamed.so_far().tokens.output.value(), None);
    assert_eq!((ahead.tokens.input.value(), ahead.tokens.output.value()), (Some(5), Some(3)));
    assert_eq!(ahead.times.time_per_token_ns.value(), Some(15e6)); // (60 − 30) ms over 2
    streamed.observe(at(70), Event::UpstreamBytes(frame.as_bytes()));
    assert_eq!(streamed.so_far(), ahead);

    // A read may bring the last content with the usage, and begin in the middle of a frame.
    let mut cut = begun(true, BodyKind::EventStream);
    let whole = [content("a"), content("b"), finish("stop"), usage(5, 2)].concat();
    let (first, rest) = whole.split_at(content("a").len() + 9);
    cut.observe(at(30), Event::UpstreamBytes(first.as_bytes()));
    let ahead = cut.so_far_with(at(60), rest.as_bytes());
    assert_eq!(ahead.tokens.total.value(), Some(7));
    assert_eq!(ahead.times.content_ns.value(), Some(30 * MS)); // 60 − 30
    cut.observe(at(60), Event::UpstreamBytes(rest.as_bytes()));
    assert_eq!(cut.so_far(), ahead);
}

#[test]
fn an_echoed_prompt_is_no_token() {
    let text = |index: u32, text: &str| {
        format!(
            "data: {{\"choices\":[{{\"index\":{index},\"text\":\"{text}\",\"finish_reason\":null}}]}}\n\n"
        )
    };
    let stop = |index: u32| {
        format!("data: {{\"choices\":[{{\"index\":{index},\"text\":\"\",\"finish_reason\":\"stop\"}}]}}\n\n")
    };
    let asked = |lengths: &[Option<u64>]| {
        let echo = Echo::Prompts(lengths.to_vec());
        Play::new(Endpoint::Completions, true)
            .facts(|facts| {
                facts.prompts = lengths.len() as u32;
                facts.echo = echo;
            })
            .sent(10)
            .head(15, 200, BodyKind::EventStream)
    };
    // "Grüß" is six bytes; the prompt and the first token share a chunk.
    let shared = asked(&[Some(6)])
        .read(30, &text(0, "Grüß dich"))
        .read(50, &text(0, "."))
        .read(60, &[stop(0), usage(2, 2), DONE.into()].concat())
        .ended(70);
    check("prompt and token in one chunk", &shared, &[Outcome(Success), Ms(FirstTokenTime, 20), NoFlags]);
    let cut = asked(&[Some(6)])
        .read(30, &text(0, "Gr"))
        .read(40, &text(0, "\\u00fcß"))
        .read(50, &text(0, " dich"))
        .read(60, &[stop(0), usage(2, 1), DONE.into()].concat())
        .ended(70);
    check("prompt in two chunks", &cut, &[Outcome(Success), Ms(FirstTokenTime, 40), NoFlags]);
    let only = asked(&[Some(6)])
        .read(30, &text(0, "Grüß"))
        .read(60, &[stop(0), usage(2, 1), DONE.into()].concat())
        .ended(70);
    check("nothing but the prompt", &only, &[Outcome(Interrupted), Expect::Reason(Reason::EmptyStop)]);
    let unknown = asked(&[None])
        .read(30, &text(0, "whatever"))
        .read(50, &text(0, "a"))
        .read(60, &[stop(0), usage(2, 2), DONE.into()].concat())
        .ended(70);
    let flagged = [Ms(FirstTokenTime, 40), Expect::Flag(Flag::EchoLengthUnknown), Outcome(Success)];
    check("a prompt of ids", &unknown, &flagged);
    let two = asked(&[Some(1), Some(3)])
        .read(30, &text(0, "a"))
        .read(40, &text(1, "bcd"))
        .read(50, &text(1, "e"))
        .read(60, &text(0, "f"))
        .read(70, &[stop(0), stop(1), usage(4, 2), DONE.into()].concat())
        .ended(80);
    check("two prompts", &two, &[Outcome(Success), Ms(FirstTokenTime, 40), Ms(FullResponseTime, 50)]);
}

#[test]
fn own_cost_is_kept_and_exported() {
    let mut observer = Observer::new(Play::chat().facts, Options::default());
    observer.observe(at(1), Event::Worked { ns: 30_000, chunks: 0 });
    observer.observe(at(2), Event::Worked { ns: 2_000, chunks: 1 });
    observer.observe(at(3), Event::Worked { ns: 6_000, chunks: 2 });
    let record = observer.finish(at(9), pitot_measure::Ending::ClientLeft, None);
    let own = record.own.unwrap();
    assert_eq!((own.request_ns, own.chunks, own.chunks_ns), (38_000, 3, 8_000));
    let found: Vec<_> = families::samples(&record)
        .into_iter()
        .filter(|sample| [Family::OwnRequest, Family::OwnChunk].contains(&sample.family))
        .map(|sample| (sample.family, (sample.value * 1e9).round(), sample.times))
        .collect();
    let expected =
        [(Family::OwnRequest, 38_000.0, 1), (Family::OwnChunk, 2_000.0, 1), (Family::OwnChunk, 3_000.0, 2)];
    assert_eq!(found, expected);
    let line = serde_json::to_value(&record).unwrap();
    assert_eq!((&line["own_request_ns"], &line["own_chunks"]), (&38_000.into(), &3.into()));
}

#[test]
fn what_the_gateway_says_of_itself_is_on_the_record() {
    let play = Play::chat().facts(|facts| facts.key_alias = Some("team-a".into()));
    let mut observer = Observer::new(play.facts, Options::default());
    observer.observe(at(1), Event::ReadsHeldBack);
    observer.observe(at(2), Event::HeadField { name: "x-queue-time", value: "5" });
    let record = observer.finish(At(9), pitot_measure::Ending::ClientLeft, None);
    assert!(record.has(Flag::ReadsHeldBack));
    assert_eq!(record.key_alias.as_deref(), Some("team-a"));
    assert_eq!(serde_json::to_value(&record).unwrap()["key_alias"], "team-a");
}
