//! `timings` of llama.cpp, on the last chunk of a stream or, if asked for, on each.
//!
//! Apart as one file per server. Must not know: other servers.
//!
//! `prompt_n` counts the tokens that were evaluated and leaves out `cache_n`, those that were reused. `predicted_ms`
//! runs from the first token on, although its rates divide it by all of them. Time in the queue is not seen.
//! Source: llama.cpp, server README, `timings`.

use super::{MS, TimingSource, TtftOrigin, UpstreamTiming, count, time};
use crate::json::Reader;

pub(super) fn read(timings: &Reader<'_>) -> Option<UpstreamTiming> {
    let (evaluated, reused) = (count(timings, b"prompt_n"), count(timings, b"cache_n"));
    let predicted = count(timings, b"predicted_n");
    let prefill_ns = time(timings, b"prompt_ms", MS).filter(|_| evaluated != Some(0));
    UpstreamTiming {
        prefill_ns,
        ttft: prefill_ns.map(|ns| (ns, TtftOrigin::Scheduled)),
        decode_ns: time(timings, b"predicted_ms", MS).filter(|_| predicted != Some(0)),
        // Without the reused part the evaluated one is not the input.
        tokens_input: evaluated.zip(reused).map(|(evaluated, reused)| evaluated + reused),
        tokens_cached: reused,
        tokens_output: predicted,
        ..UpstreamTiming::of(TimingSource::LlamaCpp)
    }
    .some()
}
