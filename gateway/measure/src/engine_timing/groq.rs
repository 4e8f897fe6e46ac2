//! `x_groq.usage` of a stream of Groq, or its `usage` of a whole reply, in seconds.
//!
//! Apart as one file per server. Must not know: other servers.
//!
//! Source: Groq API reference, "Chat completion object".

use super::{SECONDS, TimingSource, UpstreamTiming, count, time};
use crate::json::Reader;

pub(super) fn read(usage: &Reader<'_>) -> Option<UpstreamTiming> {
    // An ordinary usage object has counts and no times.
    usage.find(b"completion_time").or_else(|| usage.find(b"prompt_time"))?;
    let (input, output) = (count(usage, b"prompt_tokens"), count(usage, b"completion_tokens"));
    UpstreamTiming {
        queue_ns: time(usage, b"queue_time", SECONDS),
        prefill_ns: time(usage, b"prompt_time", SECONDS).filter(|_| input != Some(0)),
        decode_ns: time(usage, b"completion_time", SECONDS).filter(|_| output != Some(0)),
        total_ns: time(usage, b"total_time", SECONDS),
        tokens_input: input,
        tokens_output: output,
        ..UpstreamTiming::of(TimingSource::Groq)
    }
    .some()
}
