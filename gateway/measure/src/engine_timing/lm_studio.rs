//! `stats` of LM Studio, in seconds and without a `type`.
//!
//! Apart as one file per server. Must not know: other servers.
//!
//! Source: LM Studio, REST API, `stats`.

use super::{SECONDS, TimingSource, TtftOrigin, UpstreamTiming, time};
use crate::json::Reader;

pub(super) fn read(stats: &Reader<'_>) -> Option<UpstreamTiming> {
    UpstreamTiming {
        ttft: time(stats, b"time_to_first_token", SECONDS).map(|ns| (ns, TtftOrigin::Arrival)),
        decode_ns: time(stats, b"generation_time", SECONDS),
        ..UpstreamTiming::of(TimingSource::LmStudio)
    }
    .some()
}
