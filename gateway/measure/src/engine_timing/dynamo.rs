//! `nvext.timing` of NVIDIA Dynamo, if the request asked for it.
//!
//! Apart as one file per server. Must not know: other servers.
//!
//! `ttft_ms` begins when the request was received and includes the queue, which is `prefill_wait_time_ms`.
//! Source: Dynamo, "NVIDIA Request Extensions (nvext)".

use super::{MS, TimingSource, TtftOrigin, UpstreamTiming, time};
use crate::json::Reader;

pub(super) fn read(timing: &Reader<'_>) -> Option<UpstreamTiming> {
    UpstreamTiming {
        queue_ns: time(timing, b"prefill_wait_time_ms", MS),
        prefill_ns: time(timing, b"prefill_time_ms", MS),
        ttft: time(timing, b"ttft_ms", MS).map(|ns| (ns, TtftOrigin::Arrival)),
        total_ns: time(timing, b"total_time_ms", MS),
        ..UpstreamTiming::of(TimingSource::Dynamo)
    }
    .some()
}
