//! Fields in the head of a reply of TGI (text-generation-inference), which only those that do not stream have.
//!
//! Apart as one file per server. Must not know: other servers.
//!
//! `x-*-time` are whole milliseconds, cut off, but `x-compute-time`, which is a float of seconds. The inference time
//! covers prefill and decode and is not divided; `x-time-per-token` is that time over all tokens, so that nothing
//! can be made of it here. Source: text-generation-inference, router/src/server.rs.

use super::{MS, SECONDS, TimingSource, UpstreamTiming, nanoseconds};
use crate::json::COUNT_MAX;

/// What is read, and what is worth keeping beside it.
pub(super) const FIELDS: [&str; 8] = [
    "x-compute-time",
    "x-generated-tokens",
    "x-inference-time",
    "x-prompt-tokens",
    "x-queue-time",
    "x-time-per-token",
    "x-total-time",
    "x-validation-time",
];

/// What the head has said so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct HeadTiming {
    queue_ns: Option<u64>,
    total_ns: Option<u64>,
    compute_ns: Option<u64>,
    tokens_input: Option<u64>,
    tokens_output: Option<u64>,
}

impl HeadTiming {
    /// Takes a field. Others than its own are passed over, and so is what is no number.
    pub(crate) fn field(&mut self, name: &str, value: &str) {
        let Ok(number) = value.trim().parse::<f64>() else { return };
        let is = |field: &str| name.eq_ignore_ascii_case(field);
        let count = (0.0..=COUNT_MAX as f64).contains(&number).then_some(number as u64);
        if is("x-queue-time") {
            self.queue_ns = nanoseconds(number, MS);
        } else if is("x-total-time") {
            self.total_ns = nanoseconds(number, MS);
        } else if is("x-compute-time") {
            self.compute_ns = nanoseconds(number, SECONDS);
        } else if is("x-prompt-tokens") {
            self.tokens_input = count;
        } else if is("x-generated-tokens") {
            self.tokens_output = count;
        }
    }

    /// The normal form. None if no time was said.
    pub(crate) fn timing(&self) -> Option<UpstreamTiming> {
        // The float is finer than the whole milliseconds of the same time.
        let total_ns = self.compute_ns.or(self.total_ns);
        self.queue_ns.or(total_ns)?;
        Some(UpstreamTiming {
            queue_ns: self.queue_ns,
            total_ns,
            tokens_input: self.tokens_input,
            tokens_output: self.tokens_output,
            ..UpstreamTiming::of(TimingSource::Tgi)
        })
    }
}
