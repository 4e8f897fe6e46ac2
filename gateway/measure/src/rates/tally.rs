//! Sums over finished requests, and the rates that are made of them at the very end.
//!
//! Apart because every aggregate is a quotient of sums, never a mean of quotients. Must not know: time, which
//! requests these are.

use serde::Serialize;

use super::sketch::{Mapping, Sketch};
use crate::outcome::OutcomeKind;
use crate::quantity::Quantity;
use crate::record::{Flag, Record};
use crate::request::Work;
use crate::timing;

/// A sum of tokens over a sum of time, of the requests that have both.
#[derive(Debug, Clone, Copy, Default)]
struct Pace {
    tokens: u64,
    ns: u64,
}

impl Pace {
    fn add(&mut self, tokens: Quantity<u64>, ns: Quantity<u64>) {
        if let (Some(tokens), Some(ns)) = (tokens.certain(), ns.value()) {
            self.tokens = self.tokens.saturating_add(tokens);
            self.ns = self.ns.saturating_add(ns);
        }
    }

    fn merge(&mut self, other: Pace) {
        self.tokens = self.tokens.saturating_add(other.tokens);
        self.ns = self.ns.saturating_add(other.ns);
    }
}

/// Sums over requests.
#[derive(Debug, Clone, Default)]
pub struct Tally {
    requests: u64,
    apart: u64,
    outcomes: [u64; OutcomeKind::ALL.len()],
    literal: [u64; 3],
    attempts: u64,
    /// Requests with known cached tokens, and those with at least one.
    cache: [u64; 2],
    /// Cached and input tokens of requests that have both.
    cached: [u64; 2],
    /// Input, output, reasoning tokens, each where known.
    tokens: [u64; 3],
    usage_missing: u64,
    violated: u64,
    paces: [Pace; 4],
    times: [Sketch; TIMES.len()],
}

/// The times that are sketched, by the names they go by.
const TIMES: [&str; 7] = [
    "first_token_time_ns",
    "reasoning_time_ns",
    "content_time_ns",
    "full_response_time_ns",
    "time_per_token_ns",
    "client_first_token_time_ns",
    "client_full_response_time_ns",
];

impl Tally {
    /// Adds a finished request.
    pub fn add(&mut self, record: &Record, mapping: Mapping) {
        if record.endpoint.work() == Work::Apart {
            self.apart += 1;
            return;
        }
        self.requests += 1;
        self.outcomes[place(record.outcome)] += 1;
        let literal = [record.literal.http_error, record.literal.timeout, record.literal.interruption];
        for (sum, happened) in self.literal.iter_mut().zip(literal) {
            *sum += u64::from(happened);
        }
        self.attempts += u64::from(record.attempts);
        self.usage_missing += u64::from(record.has(Flag::UsageMissing));
        self.violated += u64::from(!record.violations.is_empty());
        self.add_tokens(record);
        self.add_times(record, mapping);
    }

    fn add_tokens(&mut self, record: &Record) {
        let tokens = &record.tokens;
        if let Some(cached) = tokens.cached.value() {
            self.cache[0] += 1;
            self.cache[1] += u64::from(cached > 0);
            if let Some(input) = tokens.input.value() {
                self.cached[0] = self.cached[0].saturating_add(cached);
                self.cached[1] = self.cached[1].saturating_add(input);
            }
        }
        for (sum, count) in self.tokens.iter_mut().zip([tokens.input, tokens.output, tokens.reasoning]) {
            *sum = sum.saturating_add(count.certain().unwrap_or(0));
        }
        let times = &record.upstream_times;
        let paces = [
            (tokens.reasoning, times.reasoning_ns),
            (tokens.content, times.content_ns),
            (tokens.total, times.full_response_ns),
            (tokens.output, times.full_response_ns),
        ];
        for (pace, (tokens, ns)) in self.paces.iter_mut().zip(paces) {
            pace.add(tokens, ns);
        }
    }

    fn add_times(&mut self, record: &Record, mapping: Mapping) {
        let (times, client) = (&record.upstream_times, &record.client_times);
        let whole = |time: Quantity<u64>| time.value().map(|ns| ns as f64);
        let values = [
            whole(times.first_token_ns),
            whole(times.reasoning_ns),
            whole(times.content_ns),
            whole(times.full_response_ns),
            times.time_per_token_ns.value(),
            whole(client.first_token_ns),
            whole(client.full_response_ns),
        ];
        for (sketch, value) in self.times.iter_mut().zip(values) {
            if let Some(value) = value {
                sketch.add(mapping, value);
            }
        }
    }

    /// Adds what another tally holds.
    pub fn merge(&mut self, other: &Tally) {
        self.requests += other.requests;
        self.apart += other.apart;
        sum_into(&mut self.outcomes, &other.outcomes);
        sum_into(&mut self.literal, &other.literal);
        self.attempts += other.attempts;
        sum_into(&mut self.cache, &other.cache);
        sum_into(&mut self.cached, &other.cached);
        sum_into(&mut self.tokens, &other.tokens);
        self.usage_missing += other.usage_missing;
        self.violated += other.violated;
        for (pace, other) in self.paces.iter_mut().zip(other.paces) {
            pace.merge(other);
        }
        for (sketch, other) in self.times.iter_mut().zip(&other.times) {
            sketch.merge(other);
        }
    }

    pub fn is_empty(&self) -> bool {
        self.requests == 0 && self.apart == 0
    }

    /// Makes the rates.
    pub fn summary(&self, mapping: Mapping) -> Summary {
        let of_all = |part: u64| share(part, self.requests);
        let outcome = |kind| of_all(self.outcomes[place(kind)]);
        let [reasoning, content, total, output] = self.paces;
        Summary {
            requests: self.requests,
            requests_apart: self.apart,
            attempts: self.attempts,
            success_rate: outcome(OutcomeKind::Success),
            cancelled_rate: outcome(OutcomeKind::Cancelled),
            timeout_rate: outcome(OutcomeKind::Timeout),
            http_error_rate: outcome(OutcomeKind::HttpError),
            interruption_rate: outcome(OutcomeKind::Interrupted),
            other_rate: outcome(OutcomeKind::Other),
            literal_http_error_rate: of_all(self.literal[0]),
            literal_timeout_rate: of_all(self.literal[1]),
            literal_interruption_rate: of_all(self.literal[2]),
            cache_hit_rate: of_all(self.cache[1]),
            cache_hit_coverage: of_all(self.cache[0]),
            cached_token_ratio: share(self.cached[0], self.cached[1]),
            input_tokens: self.tokens[0],
            output_tokens: self.tokens[1],
            reasoning_tokens: self.tokens[2],
            usage_missing_requests: self.usage_missing,
            violated_requests: self.violated,
            reasoning_speed_tokens_per_second: timing::rounded_up(reasoning.tokens, reasoning.ns),
            content_speed_tokens_per_second: timing::rounded_up(content.tokens, content.ns),
            average_speed_tokens_per_second: timing::rounded_up(total.tokens, total.ns),
            average_output_speed_tokens_per_second: (output.ns > 0)
                .then(|| output.tokens as f64 / (output.ns as f64 / 1e9)),
            times: TIMES
                .iter()
                .zip(&self.times)
                .map(|(name, sketch)| distribution(name, sketch, mapping))
                .collect(),
        }
    }
}

fn place(kind: OutcomeKind) -> usize {
    match kind {
        OutcomeKind::Success => 0,
        OutcomeKind::Cancelled => 1,
        OutcomeKind::Timeout => 2,
        OutcomeKind::HttpError => 3,
        OutcomeKind::Interrupted => 4,
        OutcomeKind::Other => 5,
    }
}

fn sum_into<const N: usize>(sums: &mut [u64; N], others: &[u64; N]) {
    for (sum, other) in sums.iter_mut().zip(others) {
        *sum = sum.saturating_add(*other);
    }
}

/// A share between 0 and 1. None of nothing.
fn share(part: u64, whole: u64) -> Option<f64> {
    (whole > 0).then(|| part as f64 / whole as f64)
}

/// The rates of a range. Shares lie between 0 and 1 and are null where there was no request.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Summary {
    /// The denominator of every rate: requests to generating and embedding endpoints, refused ones included.
    pub requests: u64,
    /// Requests to other endpoints.
    pub requests_apart: u64,
    pub attempts: u64,
    pub success_rate: Option<f64>,
    pub cancelled_rate: Option<f64>,
    pub timeout_rate: Option<f64>,
    pub http_error_rate: Option<f64>,
    pub interruption_rate: Option<f64>,
    pub other_rate: Option<f64>,
    /// By the standard's own words; these overlap.
    #[serde(rename = "literal.http_error_rate")]
    pub literal_http_error_rate: Option<f64>,
    #[serde(rename = "literal.timeout_rate")]
    pub literal_timeout_rate: Option<f64>,
    #[serde(rename = "literal.interruption_rate")]
    pub literal_interruption_rate: Option<f64>,
    /// Requests with at least one cached token, of all.
    pub cache_hit_rate: Option<f64>,
    /// Requests of which it is known, of all.
    pub cache_hit_coverage: Option<f64>,
    /// Σ cached / Σ input over requests that have both.
    pub cached_token_ratio: Option<f64>,
    pub input_tokens: u64,
    pub output_tokens: u64,
    pub reasoning_tokens: u64,
    pub usage_missing_requests: u64,
    /// Requests whose numbers broke a conservation law.
    pub violated_requests: u64,
    /// ⌈Σ tokens / Σ time⌉.
    pub reasoning_speed_tokens_per_second: Option<u64>,
    pub content_speed_tokens_per_second: Option<u64>,
    pub average_speed_tokens_per_second: Option<u64>,
    /// Not rounded.
    pub average_output_speed_tokens_per_second: Option<f64>,
    pub times: Vec<Distribution>,
}

/// What each key of a [`Summary`] is, for the page.
pub const DEFINITIONS: [(&str, &str); 25] = [
    ("requests", "requests to generating and embedding endpoints"),
    ("requests_apart", "requests to other endpoints, in no rate"),
    ("attempts", "attempts at the upstream"),
    ("success_rate", "outcome success / requests"),
    ("cancelled_rate", "outcome cancelled / requests"),
    ("timeout_rate", "outcome timeout / requests"),
    ("http_error_rate", "outcome http_error / requests"),
    ("interruption_rate", "outcome interrupted / requests"),
    ("other_rate", "outcome other / requests"),
    ("literal.http_error_rate", "final status over 400 / requests"),
    ("literal.timeout_rate", "no complete response within the specified time / requests"),
    ("literal.interruption_rate", "began and did not end well, whatever the cause / requests"),
    ("cache_hit_rate", "requests with cached_tokens ≥ 1 / requests"),
    ("cache_hit_coverage", "requests whose cached_tokens are known / requests"),
    ("cached_token_ratio", "Σ cached_tokens / Σ input_tokens, over requests that have both"),
    ("input_tokens", "Σ input_tokens where known"),
    ("output_tokens", "Σ output_tokens where known and no estimate"),
    ("reasoning_tokens", "Σ reasoning_tokens where known and no estimate"),
    ("usage_missing_requests", "requests with the flag usage_missing"),
    ("violated_requests", "requests that broke a conservation law"),
    (
        "reasoning_speed_tokens_per_second",
        "⌈Σ reasoning_tokens / Σ reasoning_time⌉, over requests that have both",
    ),
    ("content_speed_tokens_per_second", "⌈Σ content_tokens / Σ content_time⌉, likewise"),
    ("average_speed_tokens_per_second", "⌈Σ total_tokens / Σ full_response_time⌉, likewise"),
    (
        "average_output_speed_tokens_per_second",
        "Σ output_tokens / Σ full_response_time, likewise, not rounded",
    ),
    ("times", "requests, mean, min, p50, p90, p95, p99, max of each time, in nanoseconds"),
];

/// How one time is spread. In nanoseconds.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Distribution {
    pub name: &'static str,
    /// Requests that have this time.
    pub requests: u64,
    pub mean: Option<f64>,
    pub min: Option<f64>,
    pub p50: Option<f64>,
    pub p90: Option<f64>,
    pub p95: Option<f64>,
    pub p99: Option<f64>,
    pub max: Option<f64>,
}

fn distribution(name: &'static str, sketch: &Sketch, mapping: Mapping) -> Distribution {
    let [p50, p90, p95, p99] = sketch.quantiles(mapping, [0.5, 0.9, 0.95, 0.99]);
    Distribution {
        name,
        requests: sketch.count(),
        mean: sketch.mean(),
        min: sketch.range().map(|range| range.0),
        p50,
        p90,
        p95,
        p99,
        max: sketch.range().map(|range| range.1),
    }
}
