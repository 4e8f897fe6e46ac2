//! Whole replies of all four wire formats, as servers send them, read frame by frame and cut everywhere.
//!
//! Apart because the bytes lie in files: written after the public references and the servers' own tests, one frame
//! each 10 ms here. Must not know: the parsers.

use pitot_measure::OutcomeKind::Success;
use pitot_measure::definitions::Metric::*;
use pitot_measure::{Absent, BodyKind, Echo, Endpoint, Finish, sse};

use crate::play::Expect::{Count, Ms, NoFlags, Null, Outcome, Source};
use crate::play::{Play, check};

const CHAT_REASONING: &str = include_str!("../recordings/chat_reasoning.sse");
const CHAT_TOOLS: &str = include_str!("../recordings/chat_tools_crlf.sse");
const CHAT_TIMINGS: &str = include_str!("../recordings/chat_timings_cr.sse");
const COMPLETIONS: &str = include_str!("../recordings/completions.sse");
const RESPONSES: &str = include_str!("../recordings/responses.sse");
const RESPONSES_WHOLE: &str = include_str!("../recordings/responses.json");
const MESSAGES: &str = include_str!("../recordings/messages.sse");
const MESSAGES_WHOLE: &str = include_str!("../recordings/messages.json");

/// Sent at 10 ms, the first frame at 100 ms and one each 10 ms.
fn streamed(endpoint: Endpoint, stream: &str) -> Play {
    let mut play = Play::new(endpoint, true).sent(10).head(15, 200, BodyKind::EventStream);
    let (mut rest, mut ms) = (stream, 100);
    while let Some(end) = sse::frame_end(rest.as_bytes()) {
        let (frame, after) = rest.split_at(end);
        play = play.read(ms, frame);
        rest = after;
        ms += 10;
    }
    assert!(rest.is_empty(), "{rest:?} is left");
    play.ended(ms)
}

fn whole(endpoint: Endpoint, body: &str) -> Play {
    Play::new(endpoint, false).sent(10).head(15, 200, BodyKind::Json).read(100, body).ended(110)
}

#[test]
fn chat_with_reasoning() {
    // Frames: 0 role, 1 comment, 2 and 3 reasoning, 4 to 6 content (6 with the finish), 7 usage, 8 [DONE].
    let record = check(
        "chat_reasoning",
        &streamed(Endpoint::ChatCompletions, CHAT_REASONING),
        &[
            Outcome(Success),
            Count(InputTokens, 12),
            Count(OutputTokens, 7),
            Count(ReasoningTokens, 3),
            Count(ContentTokens, 4),
            Count(CachedTokens, 8),
            Ms(FirstTokenTime, 110),
            Ms(ReasoningTime, 10),
            Ms(ContentTime, 20),
            Ms(FullResponseTime, 150),
            NoFlags,
        ],
    );
    assert_eq!(record.finish, Some(Finish::Stop));
}

#[test]
fn chat_with_a_tool_call() {
    // Frames: 0 comment, 1 role, 2 name, 3 and 4 arguments, 5 finish, 6 usage, 7 [DONE].
    let record = check(
        "chat_tools",
        &streamed(Endpoint::ChatCompletions, CHAT_TOOLS),
        &[
            Outcome(Success),
            Count(TotalTokens, 41),
            Count(ReasoningTokens, 0),
            Count(ContentTokens, 11),
            Null(CachedTokens, Absent::NotReported),
            Ms(FirstTokenTime, 110),
            Ms(ContentTime, 20),
            Null(ReasoningTime, Absent::NoReasoning),
            NoFlags,
        ],
    );
    assert_eq!(record.finish, Some(Finish::ToolCalls));
}

#[test]
fn both_names_of_reasoning_count_once() {
    // Frames: 0 role, 1 reasoning under both names, 2 and 3 content, 4 finish, 5 usage, 6 [DONE].
    check(
        "chat_timings",
        &streamed(Endpoint::ChatCompletions, CHAT_TIMINGS),
        &[
            Outcome(Success),
            Null(ReasoningTokens, Absent::ReasoningUnknown),
            Ms(FirstTokenTime, 100),
            Ms(ReasoningTime, 0),
            Source(ReasoningTime, pitot_measure::Source::Inferred),
            Ms(ContentTime, 10),
            NoFlags,
        ],
    );
}

#[test]
fn completions_with_an_echo() {
    let play = streamed(Endpoint::Completions, COMPLETIONS)
        .facts(|facts| facts.echo = Echo::Prompts(vec![Some("Once upon a time".len() as u64)]));
    check(
        "completions",
        &play,
        &[Outcome(Success), Ms(FirstTokenTime, 100), Ms(ContentTime, 20), Count(OutputTokens, 4), NoFlags],
    );
}

#[test]
fn responses() {
    // Frames: 0 created, 1 in progress, 2 item, 3 and 4 reasoning, 5 done, 6 item, 7 and 8 text, 9 done,
    // 10 item with the tool's name, 11 arguments, 12 done, 13 completed.
    let record = check(
        "responses",
        &streamed(Endpoint::Responses, RESPONSES),
        &[
            Outcome(Success),
            Count(InputTokens, 40),
            Count(OutputTokens, 21),
            Count(ReasoningTokens, 9),
            Count(CachedTokens, 32),
            Ms(FirstTokenTime, 120),
            Ms(ReasoningTime, 10),
            Ms(ContentTime, 40),
            Ms(FullResponseTime, 200),
            NoFlags,
        ],
    );
    assert_eq!(record.timeline.first_frame, Some(crate::play::at(100)));
    assert_eq!(record.timeline.terminal, Some(crate::play::at(230)));
    check(
        "responses, whole",
        &whole(Endpoint::Responses, RESPONSES_WHOLE),
        &[
            Outcome(Success),
            Count(TotalTokens, 61),
            Count(ContentTokens, 12),
            Ms(FullResponseTime, 90),
            NoFlags,
        ],
    );
}

#[test]
fn messages() {
    // Frames: 0 start, 1 block, 2 ping, 3 and 4 thinking, 5 signature, 6 stop, 7 block, 8 text, 9 stop, 10 block
    // with the tool's name, 11 empty input, 12 input, 13 stop, 14 message_delta, 15 message_stop.
    let record = check(
        "messages",
        &streamed(Endpoint::Messages, MESSAGES),
        &[
            Outcome(Success),
            Count(InputTokens, 425), // 25 + 300 read from the cache + 100 written into it
            Count(OutputTokens, 47),
            Count(CachedTokens, 300),
            Null(ReasoningTokens, Absent::ReasoningUnknown),
            Ms(FirstTokenTime, 120),
            Ms(ReasoningTime, 10),
            Ms(ContentTime, 40),
            Ms(FullResponseTime, 210),
            NoFlags,
        ],
    );
    assert_eq!(record.finish, Some(Finish::ToolCalls));
    assert_eq!(record.timeline.terminal, Some(crate::play::at(250)));
    let record = check(
        "messages, whole",
        &whole(Endpoint::Messages, MESSAGES_WHOLE),
        &[Outcome(Success), Count(InputTokens, 30), Count(OutputTokens, 9), Count(CachedTokens, 5), NoFlags],
    );
    assert_eq!(record.finish, Some(Finish::Length));
}

/// The recordings of streams.
pub const STREAMS: [(Endpoint, &str); 6] = [
    (Endpoint::ChatCompletions, CHAT_REASONING),
    (Endpoint::ChatCompletions, CHAT_TOOLS),
    (Endpoint::ChatCompletions, CHAT_TIMINGS),
    (Endpoint::Completions, COMPLETIONS),
    (Endpoint::Responses, RESPONSES),
    (Endpoint::Messages, MESSAGES),
];

/// The recordings of whole replies.
pub const WHOLE: [(Endpoint, &str); 2] =
    [(Endpoint::Responses, RESPONSES_WHOLE), (Endpoint::Messages, MESSAGES_WHOLE)];

/// Every recording as one read, which can be cut anywhere.
fn all() -> impl Iterator<Item = (String, Play)> {
    let name = |endpoint: Endpoint, text: &str| format!("{} of {} bytes", endpoint.name(), text.len());
    let streams = STREAMS.into_iter().map(move |(endpoint, text)| {
        let play = Play::new(endpoint, true).sent(10).head(15, 200, BodyKind::EventStream);
        (name(endpoint, text), play.read(100, text).ended(110))
    });
    streams
        .chain(WHOLE.into_iter().map(move |(endpoint, text)| (name(endpoint, text), whole(endpoint, text))))
}

#[test]
fn every_cut_of_every_recording_gives_the_same_record() {
    for (name, play) in all() {
        let uncut = play.run();
        assert_eq!(uncut.outcome, Success, "{name}");
        let bytes = play.run_cut(&mut |read| read.iter().map(|byte| vec![*byte]).collect());
        assert_eq!(uncut, bytes, "{name}, byte by byte");
        let mut cut = 0;
        let mut length = usize::MAX;
        while cut < length {
            let two = play.run_cut(&mut |read| {
                length = read.len();
                let (before, after) = read.split_at(cut);
                vec![before.to_vec(), after.to_vec()]
            });
            assert_eq!(uncut, two, "{name}, cut at {cut}");
            cut += 1;
        }
    }
}

#[test]
fn a_recording_that_breaks_off_is_no_success() {
    for (name, play) in all() {
        let whole = play.run();
        // Before its last two frames every recording lacks its terminal event; a body lacks its last byte.
        let mut kept = 0;
        let cut = play.run_cut(&mut |read| {
            let text = std::str::from_utf8(read).unwrap();
            let ends = ["data: [DONE]", "event: response.completed", "event: message_delta"];
            kept = ends.iter().find_map(|end| text.find(end)).unwrap_or(text.len() - 1);
            // Usage and finish end a stream of chunks before [DONE].
            kept = text[..kept].rfind("\"usage\":{").map_or(kept, |usage| usage.min(kept));
            vec![read[..kept].to_vec()]
        });
        assert_ne!(cut.outcome, Success, "{name}: {kept} bytes of {}", whole.response_bytes);
    }
}
