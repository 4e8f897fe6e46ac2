//! `metrics` of vLLM, Aphrodite and Pitot's own engine, and `metrics.output_token_metrics` of vLLM.
//!
//! Apart as one file per server. Must not know: other servers.
//!
//! `time_to_first_token_ms` begins at *scheduling*, so that it is the prefill, unlike the server's histogram of
//! nearly that name. Source: vLLM, "Per-Request Metrics".

use super::{MS, TimingSource, TtftOrigin, UpstreamTiming, count, time};
use crate::json::Reader;

pub(super) fn read(metrics: &Reader<'_>) -> Option<UpstreamTiming> {
    let ttft_ns = time(metrics, b"time_to_first_token_ms", MS);
    let parts = metrics.find(b"output_token_metrics");
    let part = |name: &[u8]| count(&parts?.find(name)?, b"token_count");
    UpstreamTiming {
        queue_ns: time(metrics, b"queue_time_ms", MS),
        prefill_ns: ttft_ns,
        ttft: ttft_ns.map(|ns| (ns, TtftOrigin::Scheduled)),
        decode_ns: time(metrics, b"generation_time_ms", MS),
        tokens_reasoning: part(b"reasoning"),
        tokens_content: part(b"content"),
        tokens_unclassified: parts.and_then(|parts| count(&parts, b"unclassified_token_count")),
        ..UpstreamTiming::of(TimingSource::Vllm)
    }
    .some()
}
