//! The table of every number that a record publishes: name, unit, formula, when it is absent.
//!
//! Apart so that the journal's keys, the page for people and the tests share one list. `gateway/METRICS.md` is
//! printed from it by [`print`]. Must not know: how the numbers are made.

use serde::Serialize;

pub use crate::page::print;
use crate::quantity::Quantity;
use crate::record::Record;

/// A number of either kind, for JSON.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[serde(untagged)]
pub enum Number {
    Count(u64),
    Float(f64),
}

/// The quantities of one request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Metric {
    InputTokens,
    OutputTokens,
    TotalTokens,
    ReasoningTokens,
    ContentTokens,
    CachedTokens,
    FirstTokenTime,
    ReasoningTime,
    ContentTime,
    FullResponseTime,
    TimePerToken,
    ClientFirstTokenTime,
    ClientReasoningTime,
    ClientContentTime,
    ClientFullResponseTime,
    ClientTimePerToken,
    ReasoningSpeed,
    ReasoningSpeedExact,
    ContentSpeed,
    ContentSpeedExact,
    AverageSpeed,
    AverageSpeedExact,
    AverageOutputSpeed,
}

/// What one quantity is.
#[derive(Debug, Clone, Copy)]
pub struct Definition {
    pub metric: Metric,
    pub name: &'static str,
    /// What the name gets in the journal, such as `_ns`; empty where it ends in its unit already.
    pub suffix: &'static str,
    pub unit: &'static str,
    pub formula: &'static str,
    pub absent_when: &'static str,
}

impl Definition {
    /// The key of the value in the journal.
    pub fn key(&self) -> String {
        format!("{}{}", self.name, self.suffix)
    }

    /// The key of the mark: the source of a value that is there, or the reason why it is not.
    pub fn mark_key(&self) -> String {
        format!("{}_mark", self.name)
    }
}

const fn tokens(
    metric: Metric,
    name: &'static str,
    formula: &'static str,
    absent_when: &'static str,
) -> Definition {
    Definition { metric, name, suffix: "", unit: "tokens", formula, absent_when }
}

const fn time(
    metric: Metric,
    name: &'static str,
    formula: &'static str,
    absent_when: &'static str,
) -> Definition {
    Definition { metric, name, suffix: "_ns", unit: "nanoseconds", formula, absent_when }
}

const fn speed(
    metric: Metric,
    name: &'static str,
    formula: &'static str,
    absent_when: &'static str,
) -> Definition {
    Definition { metric, name, suffix: "_tokens_per_second", unit: "tokens per second", formula, absent_when }
}

const NO_SPEED: &str = "the time is 0, or time or count is absent";
const NOT_DELIVERED: &str = "as above, or the caller did not get the bytes";

/// Every quantity of one request.
pub const DEFINITIONS: [Definition; 23] = [
    tokens(Metric::InputTokens, "input_tokens", "terminal usage", "not reported"),
    tokens(
        Metric::OutputTokens,
        "output_tokens",
        "terminal usage; with reasoning added where the total shows that the vendor leaves it out; the number of \
         events with a payload, estimated, where a complete stream has no count",
        "not reported, and the stream is not complete or there was none",
    ),
    tokens(Metric::TotalTokens, "total_tokens", "input_tokens + output_tokens", "either is absent"),
    tokens(
        Metric::ReasoningTokens,
        "reasoning_tokens",
        "reported, at most output_tokens; 0 and inferred if usage is silent and no reasoning was seen; estimated \
         where output_tokens are",
        "0 or nothing reported although reasoning was seen, or no usage",
    ),
    tokens(Metric::ContentTokens, "content_tokens", "output_tokens − reasoning_tokens", "either is absent"),
    tokens(
        Metric::CachedTokens,
        "cached_tokens",
        "the cached part of input_tokens, from usage or else from the engine",
        "not reported (which is not a miss)",
    ),
    time(
        Metric::FirstTokenTime,
        "first_token_time",
        "first_token − request_sent",
        "no valid token, or the upstream did not stream",
    ),
    time(
        Metric::ReasoningTime,
        "reasoning_time",
        "reasoning_last − first_token; 0 for one reasoning token (count unknown: 0 and inferred for one payload)",
        "no reasoning payload, or the upstream did not stream",
    ),
    time(
        Metric::ContentTime,
        "content_time",
        "content_last − content_first; 0 for one content token (count unknown: 0 and inferred for one payload)",
        "no body payload, or the upstream did not stream",
    ),
    time(
        Metric::FullResponseTime,
        "full_response_time",
        "last_token − request_sent; for a reply that does not stream, its last byte − request_sent",
        "no valid token",
    ),
    time(
        Metric::TimePerToken,
        "time_per_token",
        "(full_response_time − first_token_time) / (output_tokens − 1)",
        "output_tokens ≤ 1, several choices or prompts, or the upstream did not stream",
    ),
    time(
        Metric::ClientFirstTokenTime,
        "client_first_token_time",
        "first_token written to the caller − request_read",
        NOT_DELIVERED,
    ),
    time(
        Metric::ClientReasoningTime,
        "client_reasoning_time",
        "reasoning_time by the writes to the caller",
        NOT_DELIVERED,
    ),
    time(
        Metric::ClientContentTime,
        "client_content_time",
        "content_time by the writes to the caller",
        NOT_DELIVERED,
    ),
    time(
        Metric::ClientFullResponseTime,
        "client_full_response_time",
        "last_token (or last byte) written to the caller − request_read",
        NOT_DELIVERED,
    ),
    time(
        Metric::ClientTimePerToken,
        "client_time_per_token",
        "time_per_token of the two client times",
        NOT_DELIVERED,
    ),
    speed(Metric::ReasoningSpeed, "reasoning_speed", "⌈reasoning_tokens / reasoning_time⌉", NO_SPEED),
    speed(
        Metric::ReasoningSpeedExact,
        "reasoning_speed_exact",
        "reasoning_tokens / reasoning_time",
        NO_SPEED,
    ),
    speed(Metric::ContentSpeed, "content_speed", "⌈content_tokens / content_time⌉", NO_SPEED),
    speed(Metric::ContentSpeedExact, "content_speed_exact", "content_tokens / content_time", NO_SPEED),
    speed(
        Metric::AverageSpeed,
        "average_speed",
        "⌈total_tokens / full_response_time⌉ (input tokens included, by the standard's words)",
        NO_SPEED,
    ),
    speed(Metric::AverageSpeedExact, "average_speed_exact", "total_tokens / full_response_time", NO_SPEED),
    speed(
        Metric::AverageOutputSpeed,
        "average_output_speed",
        "output_tokens / full_response_time, not rounded",
        NO_SPEED,
    ),
];

/// Gives one quantity of a record.
pub fn quantity(record: &Record, metric: Metric) -> Quantity<Number> {
    let (tokens, speeds) = (&record.tokens, &record.speeds);
    let (upstream, client) = (&record.upstream_times, &record.client_times);
    match metric {
        Metric::InputTokens => tokens.input.map(Number::Count),
        Metric::OutputTokens => tokens.output.map(Number::Count),
        Metric::TotalTokens => tokens.total.map(Number::Count),
        Metric::ReasoningTokens => tokens.reasoning.map(Number::Count),
        Metric::ContentTokens => tokens.content.map(Number::Count),
        Metric::CachedTokens => tokens.cached.map(Number::Count),
        Metric::FirstTokenTime => upstream.first_token_ns.map(Number::Count),
        Metric::ReasoningTime => upstream.reasoning_ns.map(Number::Count),
        Metric::ContentTime => upstream.content_ns.map(Number::Count),
        Metric::FullResponseTime => upstream.full_response_ns.map(Number::Count),
        Metric::TimePerToken => upstream.time_per_token_ns.map(Number::Float),
        Metric::ClientFirstTokenTime => client.first_token_ns.map(Number::Count),
        Metric::ClientReasoningTime => client.reasoning_ns.map(Number::Count),
        Metric::ClientContentTime => client.content_ns.map(Number::Count),
        Metric::ClientFullResponseTime => client.full_response_ns.map(Number::Count),
        Metric::ClientTimePerToken => client.time_per_token_ns.map(Number::Float),
        Metric::ReasoningSpeed => speeds.reasoning.map(|speed| Number::Count(speed.rounded_up)),
        Metric::ReasoningSpeedExact => speeds.reasoning.map(|speed| Number::Float(speed.exact)),
        Metric::ContentSpeed => speeds.content.map(|speed| Number::Count(speed.rounded_up)),
        Metric::ContentSpeedExact => speeds.content.map(|speed| Number::Float(speed.exact)),
        Metric::AverageSpeed => speeds.average.map(|speed| Number::Count(speed.rounded_up)),
        Metric::AverageSpeedExact => speeds.average.map(|speed| Number::Float(speed.exact)),
        Metric::AverageOutputSpeed => speeds.average_output.map(Number::Float),
    }
}
