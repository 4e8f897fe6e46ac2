//! Times inside the `usage` of mistral.rs, in seconds.
//!
//! Apart as one file per server. Must not know: other servers.
//!
//! They sum the steps of the computation: waiting between steps is not in them, so that they are no time on a clock,
//! and 0.0 is what the server writes where it does not know. Source: mistral.rs, `Usage` of its responses.

use super::{SECONDS, TimingSource, UpstreamTiming, count, time};
use crate::json::Reader;

pub(super) fn read(usage: &Reader<'_>) -> Option<UpstreamTiming> {
    usage.find(b"total_completion_time_sec").or_else(|| usage.find(b"total_prompt_time_sec"))?;
    UpstreamTiming {
        prefill_ns: time(usage, b"total_prompt_time_sec", SECONDS),
        decode_ns: time(usage, b"total_completion_time_sec", SECONDS),
        total_ns: time(usage, b"total_time_sec", SECONDS),
        tokens_input: count(usage, b"prompt_tokens"),
        tokens_output: count(usage, b"completion_tokens"),
        ..UpstreamTiming::of(TimingSource::MistralRs)
    }
    .some()
}
