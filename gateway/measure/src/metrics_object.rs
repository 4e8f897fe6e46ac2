//! The `metrics` object of a response: the engine's view, five keys in a fixed order.
//!
//! Apart because its keys, their order and their nulls are a public contract (per-request metrics as Aphrodite and
//! vLLM give them). Must not know: where in a response it goes.
//!
//! `time_to_first_token_ms` here begins at *scheduling*; the first-token time of the record begins when the request
//! was sent. Both are right and neither is the other.

use crate::event::{At, EngineTimes, OutputPart};
use crate::quantity::Quantity;
use crate::timing::{Speed, Speeds, Times};
use crate::tokens::Tokens;

/// Whether a request carries the object at all.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Suppression {
    Shown,
    /// Several choices or several prompts share the response; there is no key.
    Suppressed,
}

impl Suppression {
    /// `choices` is `n` (null is 1), `prompts` the prompts of a completions request (a list of one is 1).
    pub fn of(choices: u32, prompts: u32) -> Self {
        if choices > 1 || prompts > 1 { Suppression::Suppressed } else { Suppression::Shown }
    }
}

/// The object's values. Milliseconds, unrounded; tokens per second.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct MetricsObject {
    /// first − scheduled.
    pub time_to_first_token_ms: Option<f64>,
    /// last − first.
    pub generation_time_ms: Option<f64>,
    /// scheduled − queued.
    pub queue_time_ms: Option<f64>,
    /// (last − first) / (N − 1); absent too for N ≤ 1.
    pub mean_itl_ms: Option<f64>,
    /// N / (last − scheduled); absent too for an interval that is not positive.
    pub tokens_per_second: Option<f64>,
}

impl MetricsObject {
    /// Makes the values. `tokens_output` is N, the completion count of the usage. A missing stamp makes null of
    /// what needs it, and so do stamps that go backwards.
    pub fn of(times: &EngineTimes, tokens_output: u64) -> Self {
        let between = |from: Option<At>, to: Option<At>| to?.since(from?);
        let generation = between(times.first, times.last);
        let busy = between(times.scheduled, times.last).filter(|ns| *ns > 0);
        MetricsObject {
            time_to_first_token_ms: between(times.scheduled, times.first).map(ms),
            generation_time_ms: generation.map(ms),
            queue_time_ms: between(times.queued, times.scheduled).map(ms),
            mean_itl_ms: generation
                .filter(|_| tokens_output > 1)
                .map(|ns| ms(ns) / (tokens_output - 1) as f64),
            tokens_per_second: busy.map(|ns| tokens_output as f64 / (ns as f64 / 1e9)),
        }
    }

    /// The JSON text, all five keys in order.
    pub fn json(&self) -> String {
        let keys = [
            ("time_to_first_token_ms", self.time_to_first_token_ms),
            ("generation_time_ms", self.generation_time_ms),
            ("queue_time_ms", self.queue_time_ms),
            ("mean_itl_ms", self.mean_itl_ms),
            ("tokens_per_second", self.tokens_per_second),
        ];
        let members: Vec<String> =
            keys.iter().map(|(key, value)| format!("\"{key}\":{}", number(*value))).collect();
        format!("{{{}}}", members.join(","))
    }
}

/// The object's JSON text for what the engine reported; five nulls if it reported nothing. N is the engine's count.
pub fn json(times: Option<&EngineTimes>) -> String {
    times.map(|times| MetricsObject::of(times, times.tokens_output)).unwrap_or_default().json()
}

/// The `output` object beside the five keys: how the output divides, from the engine's classification.
///
/// Each part's `time_to_first_token_ms` begins at scheduling and its `generation_time_ms` goes from its own first
/// to its own last token, gaps of the other part included.
pub fn output_json(times: &EngineTimes) -> String {
    let part = |name: &str, part: &OutputPart| {
        let first = part.first.zip(times.scheduled).and_then(|(first, scheduled)| first.since(scheduled));
        let generation = part.last.zip(part.first).and_then(|(last, first)| last.since(first));
        format!(
            "\"{name}\":{{\"token_count\":{},\"time_to_first_token_ms\":{},\"generation_time_ms\":{}}}",
            part.tokens,
            number(first.map(ms)),
            number(generation.map(ms)),
        )
    };
    format!(
        "{{{},{},\"unclassified_token_count\":{}}}",
        part("reasoning", &times.reasoning),
        part("content", &times.content),
        times.tokens_unclassified
    )
}

/// What the gateway knows of a request while its response is being passed on.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SoFar {
    pub tokens: Tokens,
    pub times: Times,
    pub speeds: Speeds,
}

/// The `client` object beside the five keys: the request as the gateway, the client of the upstream, saw it. Times
/// begin when the request was sent.
pub fn client_json(seen: &SoFar) -> String {
    let time = |time: Quantity<u64>| number(time.value().map(ms));
    let speed = |speed: Quantity<Speed>| {
        speed.value().map_or_else(|| "null".to_owned(), |speed| speed.rounded_up.to_string())
    };
    format!(
        "{{\"first_token_time_ms\":{},\"reasoning_time_ms\":{},\"content_time_ms\":{},\
         \"full_response_time_ms\":{},\"time_per_token_ms\":{},\"reasoning_speed\":{},\"content_speed\":{},\
         \"average_speed\":{},\"average_output_speed\":{}}}",
        time(seen.times.first_token_ns),
        time(seen.times.reasoning_ns),
        time(seen.times.content_ns),
        time(seen.times.full_response_ns),
        number(seen.times.time_per_token_ns.value().map(|ns| ns / 1e6)),
        speed(seen.speeds.reasoning),
        speed(seen.speeds.content),
        speed(seen.speeds.average),
        number(seen.speeds.average_output.value()),
    )
}

/// The value of a `Server-Timing` header for a reply that does not stream: the engine's phases, and as `gateway` the
/// rest of the time up to now (the gateway and the hops), in milliseconds. None if the engine reported no phase.
pub fn server_timing(times: &EngineTimes, now: At) -> Option<String> {
    let phases = [
        ("queue", times.queued, times.scheduled),
        ("prefill", times.scheduled, times.first),
        ("decode", times.first, times.last),
    ];
    let phase = |(name, from, to): &(&str, Option<At>, Option<At>)| {
        let ns = to.as_ref()?.since((*from)?)?;
        Some(format!("{name};dur={:.3}", ms(ns)))
    };
    let mut parts: Vec<String> = phases.iter().filter_map(phase).collect();
    if parts.is_empty() {
        return None;
    }
    if let Some(engine) = times.last.zip(times.queued).and_then(|(last, queued)| last.since(queued)) {
        parts.push(format!("gateway;dur={:.3}", ms(now.0.saturating_sub(engine))));
    }
    Some(parts.join(", "))
}

fn ms(ns: u64) -> f64 {
    ns as f64 / 1e6
}

fn number(value: Option<f64>) -> String {
    // A float that JSON cannot hold would be a division by zero, which is ruled out above.
    value
        .and_then(serde_json::Number::from_f64)
        .map_or_else(|| "null".to_owned(), |number| number.to_string())
}
