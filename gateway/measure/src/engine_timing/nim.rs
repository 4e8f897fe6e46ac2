//! `stats` of NVIDIA NIM, told from those of others by its `type`.
//!
//! Apart as one file per server. Must not know: other servers.
//!
//! Whether its time to the first token includes the queue is not said; other readers of it take it so.
//! Source: NVIDIA NIM for LLMs, "Per-Request Metrics".

use super::{MS, TimingSource, TtftOrigin, UpstreamTiming, count, time};
use crate::json::Reader;

pub(super) fn read(stats: &Reader<'_>) -> Option<UpstreamTiming> {
    stats.find(b"type")?;
    let response = stats.find(b"response_tokens");
    let output = count(stats, b"llm_output_token_length");
    UpstreamTiming {
        queue_ns: time(stats, b"time_in_queue_in_ms", MS),
        ttft: response
            .and_then(|response| time(&response, b"time_to_first_token_in_ms", MS))
            .map(|ns| (ns, TtftOrigin::Arrival)),
        decode_ns: time(stats, b"generation_time_in_ms", MS).filter(|_| output != Some(0)),
        tokens_input: count(stats, b"llm_input_token_length"),
        tokens_output: output,
        ..UpstreamTiming::of(TimingSource::Nim)
    }
    .some()
}
