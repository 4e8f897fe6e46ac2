//! A frame costs no allocation once a stream is under way.
//!
//! Apart as a binary of its own, because the counter replaces the allocator of the whole process. Must not know: what
//! is measured.

use allocation_counter::measure;
use pitot_measure::{
    At, BodyKind, Echo, Endpoint, Event, InlineThink, Observer, Options, RequestFacts, UsageAsked,
};

const WARM_UP: usize = 20;
const FRAMES: usize = 20_000;

fn observer(inline_think: InlineThink) -> Observer {
    let facts = RequestFacts {
        id: "r".into(),
        endpoint: Endpoint::ChatCompletions,
        model: "m".into(),
        upstream: "u".into(),
        key_alias: None,
        stream: true,
        upstream_stream: true,
        echo: Echo::Nothing,
        choices: 1,
        prompts: 1,
        usage: UsageAsked::ByClient,
        request_bytes: 100,
        last_request_byte: At(5),
    };
    let mut observer = Observer::new(facts, Options { inline_think, ..Options::default() });
    observer.observe(At(6), Event::AttemptStarted);
    observer.observe(At(7), Event::RequestSent);
    observer.observe(At(8), Event::Head { status: 200, body: BodyKind::EventStream });
    observer
}

/// Frames as servers send them: escapes, long logprobs, usage on each chunk, a comment between.
fn frames() -> Vec<String> {
    let chunk = |delta: &str, rest: &str| {
        format!(
            "data: {{\"id\":\"chatcmpl-7f\",\"object\":\"chat.completion.chunk\",\"created\":1764562601,\
             \"model\":\"m\",\"choices\":[{{\"index\":0,\"delta\":{delta},\"logprobs\":{{\"content\":[{{\"token\":\
             \"a\",\"logprob\":-0.25,\"bytes\":[97],\"top_logprobs\":[]}}]}},\"finish_reason\":null}}]{rest}}}\n\n"
        )
    };
    let call = "{\"tool_calls\":[{\"index\":0,\"function\":{\"arguments\":\"{\\\"city\\\":\"}}]}";
    let usage = ",\"usage\":{\"prompt_tokens\":7,\"completion_tokens\":3,\"total_tokens\":10,\
                 \"prompt_tokens_details\":{\"cached_tokens\":0}}";
    vec![
        chunk("{\"content\":\" wörld\\n\\u00e9 <b\"}", ""),
        chunk("{\"reasoning\":\"so \\\"that\\\"\"}", ""),
        chunk("{\"reasoning\":\"x\",\"reasoning_content\":\"x\"}", usage),
        chunk(call, ""),
        chunk("{\"content\":\"\"}", usage),
        ": keep-alive\n\n".to_owned(),
    ]
}

/// Plays so many frames, each as one read or cut in two, with a write behind each.
fn play(observer: &mut Observer, frames: &[String], count: usize, at: &mut u64, bytes: &mut u64) {
    for turn in 0..count {
        let frame = frames[turn % frames.len()].as_bytes();
        let cut = if turn % 3 == 0 { frame.len() } else { (turn * 7) % frame.len() };
        let (first, second) = frame.split_at(cut);
        for read in [first, second] {
            *at += 1_000;
            observer.observe(At(*at), Event::UpstreamBytes(read));
            *bytes += read.len() as u64;
        }
        observer.observe(At(*at + 600), Event::Forwarded { upstream_bytes: *bytes, since: At(*at + 100) });
        observer.observe(At(*at + 600), Event::Worked { ns: 900, chunks: 2 });
    }
}

#[test]
fn no_frame_of_a_chat_allocates_in_the_steady_state() {
    let frames = frames();
    for inline_think in [InlineThink::Content, InlineThink::Reasoning] {
        let mut observer = observer(inline_think);
        let (mut at, mut bytes) = (10, 0);
        play(&mut observer, &frames, WARM_UP, &mut at, &mut bytes);
        let steady = measure(|| play(&mut observer, &frames, FRAMES, &mut at, &mut bytes));
        assert_eq!(steady.count_total, 0, "{FRAMES} frames, {inline_think:?}");
        // The frames were read, not passed over.
        let record = observer.finish(At(at + 1), pitot_measure::Ending::ClientLeft, Some(200));
        assert!(record.active.is_some_and(|active| active.reasoning_ns > 0 && active.gaps_ns > 0));
        assert_eq!(record.flags.len(), 1, "{:?}", record.flags); // the engine's times are missing
    }
    // The counter counts: an allocation that must be seen is.
    let seen = measure(|| drop(std::hint::black_box(vec![0_u8; 100])));
    assert_eq!(seen.count_total, 1);
}
