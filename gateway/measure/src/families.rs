//! The Prometheus families: names, help, kinds, labels, buckets, and what each request adds to them.
//!
//! Apart as the one file of names, so that the page, the sink and the dashboards agree. A sink computes nothing: it
//! adds what [`samples`] gives. Must not know: any metrics library.

use crate::event::At;
use crate::named::named;
use crate::own_cost::BOUNDS_NS;
use crate::quantity::Quantity;
use crate::record::{Flag, Record};
use crate::request::Work;
use crate::timing::Transfer;

/// Labels, whose values are all bounded: models and upstreams by the sink, the others by closed enums.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Label {
    Model,
    Upstream,
    Endpoint,
    Outcome,
    /// `true` or `false`: whether the upstream's reply streamed.
    Streaming,
    /// Where the upstream's own timing was found.
    Source,
    Sink,
}

impl Label {
    pub fn name(self) -> &'static str {
        match self {
            Label::Model => "model",
            Label::Upstream => "upstream",
            Label::Endpoint => "endpoint",
            Label::Outcome => "outcome",
            Label::Streaming => "streaming",
            Label::Source => "source",
            Label::Sink => "sink",
        }
    }
}

/// What a family holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FamilyKind {
    Counter,
    Gauge,
    Histogram,
}

impl FamilyKind {
    pub fn name(self) -> &'static str {
        match self {
            FamilyKind::Counter => "counter",
            FamilyKind::Gauge => "gauge",
            FamilyKind::Histogram => "histogram",
        }
    }
}

/// Upper bounds of the buckets of every histogram but those of the gateway's own cost, in seconds.
pub static BUCKETS_SECONDS: [f64; 25] = [
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0,
    20.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1200.0, 1800.0, 3600.0,
];

/// Upper bounds of the buckets of the gateway's own cost, in seconds: [`BOUNDS_NS`], so that a chunk counts in the
/// bucket that the record keeps it in.
pub static OWN_BUCKETS_SECONDS: [f64; BOUNDS_NS.len()] = {
    let mut seconds = [0.0; BOUNDS_NS.len()];
    let mut place = 0;
    while place < seconds.len() {
        seconds[place] = BOUNDS_NS[place] as f64 / 1e9;
        place += 1;
    }
    seconds
};

named! {
    /// One family each.
    pub enum Family {
        Requests = "pitot_requests_total": "finished requests by their one outcome",
        InFlight = "pitot_in_flight_requests": "requests that were accepted and have not ended",
        FirstToken = "pitot_first_token_seconds": "first_token_time of streamed replies",
        Reasoning = "pitot_reasoning_seconds": "reasoning_time of streamed replies",
        Content = "pitot_content_seconds": "content_time of streamed replies",
        FullResponse = "pitot_full_response_seconds": "full_response_time",
        ClientFirstToken = "pitot_client_first_token_seconds": "client_first_token_time of streamed replies",
        ClientFullResponse = "pitot_client_full_response_seconds": "client_full_response_time",
        TimePerToken = "pitot_time_per_token_seconds": "time_per_token, one per request",
        InputTokens = "pitot_input_tokens_total": "sum of input_tokens where known",
        OutputTokens = "pitot_output_tokens_total": "sum of output_tokens where known and no estimate",
        ReasoningTokens = "pitot_reasoning_tokens_total": "sum of reasoning_tokens where known and no estimate",
        CachedInputTokens = "pitot_cached_input_tokens_total": "sum of cached_tokens where known",
        CacheHits = "pitot_cache_hit_requests_total": "requests with at least one cached token",
        CacheKnown = "pitot_cache_known_requests_total": "requests whose cached_tokens are known, hit or miss",
        EngineQueue = "pitot_engine_queue_seconds": "engine: scheduled − queued",
        EnginePrefill = "pitot_engine_prefill_seconds": "engine: first − scheduled",
        EngineDecode = "pitot_engine_decode_seconds": "engine: last − first",
        UpstreamQueue = "pitot_upstream_queue_seconds": "the reply's own timing: time in the upstream's queue",
        UpstreamPrefill = "pitot_upstream_prefill_seconds": "the reply's own timing: scheduled to first token",
        UpstreamDecode = "pitot_upstream_decode_seconds": "the reply's own timing: first token to last",
        ClientBackpressure = "pitot_client_backpressure_seconds":
            "time inside writes to the caller, of requests that wrote anything",
        OwnRequest = "pitot_own_request_seconds": "time that the gateway itself spent on a request",
        OwnChunk = "pitot_own_chunk_seconds":
            "time that the gateway itself spent on one chunk of a reply (work on several is shared out evenly)",
        ConservationViolations = "pitot_conservation_violation_requests_total":
            "requests whose numbers broke a conservation law",
        UsageMissing = "pitot_usage_missing_requests_total": "answers that ended without usage",
        EngineTimesMissing = "pitot_engine_times_missing_requests_total":
            "requests that got a token and no times from the engine",
        SinkDropped = "pitot_sink_dropped_records_total": "records that a sink could not take",
        ControlConnections = "pitot_control_connections_total": "control channels to the engine that were opened",
        ControlStamps = "pitot_control_stamped_requests_total": "requests whose times came over the control channel",
        ControlStampsEvicted = "pitot_control_evicted_requests_total":
            "times that were let go because no stream asked for them and too many waited",
        ControlErrors = "pitot_control_failed_connections_total": "control channels given up over what the engine sent",
    }
}

/// What a family is called and what it means.
#[derive(Debug, Clone, Copy)]
pub struct About {
    pub name: &'static str,
    pub kind: FamilyKind,
    pub labels: &'static [Label],
    /// Upper bounds of a histogram's buckets, in seconds; none for the other kinds.
    pub buckets: &'static [f64],
    /// Also the definition on the page.
    pub help: &'static str,
}

const NO_BUCKETS: &[f64] = &[];
const SERIES: &[Label] = &[Label::Model, Label::Upstream];
const STREAMING: &[Label] = &[Label::Model, Label::Upstream, Label::Streaming];

impl Family {
    pub fn about(self) -> About {
        let counter = |labels: &'static [Label]| (FamilyKind::Counter, labels, NO_BUCKETS);
        let histogram =
            |labels: &'static [Label]| (FamilyKind::Histogram, labels, BUCKETS_SECONDS.as_slice());
        let (kind, labels, buckets): (FamilyKind, &'static [Label], &'static [f64]) = match self {
            Family::Requests => counter(&[Label::Model, Label::Upstream, Label::Endpoint, Label::Outcome]),
            Family::InFlight => (FamilyKind::Gauge, &[], NO_BUCKETS),
            Family::SinkDropped => counter(&[Label::Sink]),
            Family::ControlConnections
            | Family::ControlStamps
            | Family::ControlStampsEvicted
            | Family::ControlErrors => counter(&[]),
            Family::FullResponse | Family::ClientFullResponse => histogram(STREAMING),
            Family::FirstToken
            | Family::Reasoning
            | Family::Content
            | Family::ClientFirstToken
            | Family::TimePerToken
            | Family::EngineQueue
            | Family::EnginePrefill
            | Family::EngineDecode
            | Family::ClientBackpressure => histogram(SERIES),
            Family::UpstreamQueue | Family::UpstreamPrefill | Family::UpstreamDecode => {
                histogram(&[Label::Model, Label::Upstream, Label::Source])
            }
            Family::OwnRequest | Family::OwnChunk => (FamilyKind::Histogram, SERIES, &OWN_BUCKETS_SECONDS),
            Family::InputTokens
            | Family::OutputTokens
            | Family::ReasoningTokens
            | Family::CachedInputTokens
            | Family::CacheHits
            | Family::CacheKnown
            | Family::ConservationViolations
            | Family::UsageMissing
            | Family::EngineTimesMissing => counter(SERIES),
        };
        About { name: self.name(), kind, labels, buckets, help: self.meaning() }
    }
}

/// What one request adds to a family: 1 or a sum for a counter, an observation for a histogram.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sample {
    pub family: Family,
    pub value: f64,
    /// How often a histogram observes the value; 1 for a counter.
    pub times: u64,
}

/// The value of a label for a record. None for a label that no request has.
pub fn label_value(record: &Record, label: Label) -> Option<&str> {
    match label {
        Label::Model => Some(&record.model),
        Label::Upstream => Some(&record.upstream),
        Label::Endpoint => Some(record.endpoint.name()),
        Label::Outcome => Some(record.outcome.name()),
        Label::Streaming => Some(match record.transfer {
            Transfer::Streamed => "true",
            Transfer::Whole => "false",
        }),
        Label::Source => record.upstream_timing.map(|timing| timing.source.name()),
        Label::Sink => None,
    }
}

/// What a request adds. Requests outside the denominator are counted and nothing else; absent adds nothing.
pub fn samples(record: &Record) -> Vec<Sample> {
    let mut samples = vec![Sample { family: Family::Requests, value: 1.0, times: 1 }];
    if record.endpoint.work() == Work::Apart {
        return samples;
    }
    let mut add = |family, value: Option<f64>| {
        if let Some(value) = value {
            samples.push(Sample { family, value, times: 1 });
        }
    };
    let (times, client, tokens) = (&record.upstream_times, &record.client_times, &record.tokens);
    add(Family::FirstToken, seconds(times.first_token_ns));
    add(Family::Reasoning, seconds(times.reasoning_ns));
    add(Family::Content, seconds(times.content_ns));
    add(Family::FullResponse, seconds(times.full_response_ns));
    add(Family::ClientFirstToken, seconds(client.first_token_ns));
    add(Family::ClientFullResponse, seconds(client.full_response_ns));
    add(Family::TimePerToken, times.time_per_token_ns.value().map(|ns| ns / 1e9));
    add(Family::InputTokens, count(tokens.input));
    add(Family::OutputTokens, count(tokens.output));
    add(Family::ReasoningTokens, count(tokens.reasoning));
    add(Family::CachedInputTokens, count(tokens.cached));
    add(Family::CacheHits, once(tokens.cached.value().is_some_and(|cached| cached > 0)));
    add(Family::CacheKnown, once(tokens.cached.value().is_some()));
    let engine = record.engine.unwrap_or_default();
    let between = |from: Option<At>, to: Option<At>| Some(to?.since(from?)? as f64 / 1e9);
    add(Family::EngineQueue, between(engine.queued, engine.scheduled));
    add(Family::EnginePrefill, between(engine.scheduled, engine.first));
    add(Family::EngineDecode, between(engine.first, engine.last));
    if let Some(timing) = &record.upstream_timing {
        let seconds = |ns: Option<u64>| ns.map(|ns| ns as f64 / 1e9);
        add(Family::UpstreamQueue, seconds(timing.queue_ns));
        add(Family::UpstreamPrefill, seconds(timing.prefill_ns));
        add(Family::UpstreamDecode, seconds(timing.decode_ns));
    }
    let wrote = record.client_backpressure_ns > 0;
    add(Family::ClientBackpressure, wrote.then_some(record.client_backpressure_ns as f64 / 1e9));
    add(Family::ConservationViolations, once(!record.violations.is_empty()));
    add(Family::UsageMissing, once(record.has(Flag::UsageMissing)));
    add(Family::EngineTimesMissing, once(record.has(Flag::EngineTimesMissing)));
    if let Some(own) = &record.own {
        add(Family::OwnRequest, Some(own.request_ns as f64 / 1e9));
        // The mean of a bucket lies within it and keeps the sum.
        samples.extend(own.buckets.iter().filter(|bucket| bucket.chunks > 0).map(|bucket| Sample {
            family: Family::OwnChunk,
            value: bucket.ns as f64 / bucket.chunks as f64 / 1e9,
            times: bucket.chunks,
        }));
    }
    samples
}

fn seconds(time: Quantity<u64>) -> Option<f64> {
    time.value().map(|ns| ns as f64 / 1e9)
}

fn count(tokens: Quantity<u64>) -> Option<f64> {
    // An estimate among the sums could not be told from what was reported.
    tokens.certain().map(|tokens| tokens as f64)
}

/// One request, or nothing to add.
fn once(happened: bool) -> Option<f64> {
    happened.then_some(1.0)
}
