//! Durations of Ollama, in nanoseconds, beside the rest of its last chunk or whole reply.
//!
//! Apart as one file per server. Must not know: other servers.
//!
//! `prompt_eval_duration` is of the tokens that were not cached. Source: Ollama API, "Usage".

use super::{TimingSource, UpstreamTiming, count, time};
use crate::json::Reader;

const NS: f64 = 1.0;

pub(super) fn read(reply: &Reader<'_>) -> Option<UpstreamTiming> {
    let (input, output) = (count(reply, b"prompt_eval_count"), count(reply, b"eval_count"));
    UpstreamTiming {
        prefill_ns: time(reply, b"prompt_eval_duration", NS).filter(|_| input != Some(0)),
        decode_ns: time(reply, b"eval_duration", NS).filter(|_| output != Some(0)),
        total_ns: time(reply, b"total_duration", NS),
        tokens_input: input,
        tokens_cached: count(reply, b"prompt_eval_cached_count"),
        tokens_output: output,
        ..UpstreamTiming::of(TimingSource::Ollama)
    }
    .some()
}
