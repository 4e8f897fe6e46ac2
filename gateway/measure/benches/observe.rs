//! What measuring costs: per frame and per request, against passing the same reads on and parsing nothing.
//!
//! Apart as a program for people: `cargo bench -p pitot-measure`. Throughput is frames (or requests) per second of
//! one core. Must not know: what is measured.

use std::hint::black_box;

use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};
use pitot_measure::sse::Splitter;
use pitot_measure::{
    At, BodyKind, Echo, Ending, Endpoint, Event, Observer, Options, RequestFacts, UsageAsked,
};

/// Frames of one request; a common length of an answer.
const FRAMES: usize = 256;

fn begun(endpoint: Endpoint) -> Observer {
    let facts = RequestFacts {
        id: "0199f0c8-5d0a-7000-8000-000000000000".into(),
        endpoint,
        model: "small".into(),
        upstream: "local".into(),
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
    let mut observer = Observer::new(facts, Options::default());
    observer.observe(At(6), Event::AttemptStarted);
    observer.observe(At(7), Event::RequestSent);
    observer.observe(At(8), Event::Head { status: 200, body: BodyKind::EventStream });
    observer
}

/// One frame of content of each wire format, as servers write them.
fn frame(endpoint: Endpoint) -> String {
    match endpoint {
        Endpoint::ChatCompletions => "data: {\"id\":\"chatcmpl-7f3a\",\"object\":\"chat.completion.chunk\",\"created\":1764562601,\"model\":\"small\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\" word\\n\"},\"logprobs\":null,\"finish_reason\":null}]}\n\n",
        Endpoint::Completions => "data: {\"id\":\"cmpl-7f3a\",\"object\":\"text_completion\",\"created\":1764562601,\"model\":\"small\",\"choices\":[{\"index\":0,\"text\":\" word\",\"logprobs\":null,\"finish_reason\":null}]}\n\n",
        Endpoint::Responses => "event: response.output_text.delta\ndata: {\"type\":\"response.output_text.delta\",\"sequence_number\":7,\"item_id\":\"msg_1\",\"output_index\":0,\"content_index\":0,\"delta\":\" word\",\"logprobs\":[]}\n\n",
        Endpoint::Messages => "event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"index\":0,\"delta\":{\"type\":\"text_delta\",\"text\":\" word\"}}\n\n",
        Endpoint::Embeddings | Endpoint::Other => ": nothing is read\n\n",
    }
    .to_owned()
}

/// Feeds one read a frame and a write behind each, as the gateway does.
fn observe(mut observer: Observer, frame: &[u8]) -> Observer {
    let mut bytes = 0;
    for turn in 0..FRAMES as u64 {
        let at = At(100 + turn * 1_000);
        observer.observe(at, Event::UpstreamBytes(frame));
        bytes += frame.len() as u64;
        observer.observe(At(at.0 + 300), Event::Forwarded { upstream_bytes: bytes, since: At(at.0 + 100) });
    }
    observer
}

fn per_frame(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("frame");
    group.throughput(Throughput::Elements(FRAMES as u64));
    let chat = frame(Endpoint::ChatCompletions);
    group.bench_function("forward and parse nothing", |bencher| {
        bencher.iter_batched(
            || begun(Endpoint::Other),
            |observer| observe(observer, black_box(chat.as_bytes())),
            BatchSize::SmallInput,
        );
    });
    group.bench_function("split and parse nothing", |bencher| {
        bencher.iter_batched(
            Splitter::default,
            |mut splitter| {
                let mut seen = 0;
                for _ in 0..FRAMES {
                    splitter.visit(black_box(chat.as_bytes()), |_, frame| seen += frame.len());
                }
                seen
            },
            BatchSize::SmallInput,
        );
    });
    for endpoint in
        [Endpoint::ChatCompletions, Endpoint::Completions, Endpoint::Responses, Endpoint::Messages]
    {
        let frame = frame(endpoint);
        group.bench_function(endpoint.name(), |bencher| {
            bencher.iter_batched(
                || begun(endpoint),
                |observer| observe(observer, black_box(frame.as_bytes())),
                BatchSize::SmallInput,
            );
        });
    }
    group.finish();
}

fn per_request(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("request");
    let end = "data: {\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"stop\"}]}\n\n\
               data: {\"choices\":[],\"usage\":{\"prompt_tokens\":20,\"completion_tokens\":256,\"total_tokens\":276}}\n\n\
               data: [DONE]\n\n";
    let chat = frame(Endpoint::ChatCompletions);
    group.bench_function("record of 256 frames", |bencher| {
        bencher.iter_batched(
            || observe(begun(Endpoint::ChatCompletions), chat.as_bytes()),
            |mut observer| {
                observer.observe(At(900_000), Event::UpstreamBytes(black_box(end.as_bytes())));
                observer.observe(At(900_001), Event::UpstreamEof);
                observer.finish(At(900_002), Ending::UpstreamEnded, Some(200))
            },
            BatchSize::SmallInput,
        );
    });
    group.bench_function("whole, of 256 frames", |bencher| {
        bencher.iter(|| {
            let observer = observe(begun(Endpoint::ChatCompletions), black_box(chat.as_bytes()));
            observer.finish(At(900_002), Ending::UpstreamEnded, Some(200))
        });
    });
    group.finish();
}

criterion_group!(benches, per_frame, per_request);
criterion_main!(benches);
