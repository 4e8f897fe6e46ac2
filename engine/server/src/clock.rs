//! The engine's clock: raw CLOCK_MONOTONIC nanoseconds.
//!
//! Apart so that every stamp comes from the one clock that a gateway on the same host reads too; std's `Instant`
//! cannot cross processes. Must not know: what is stamped.

use std::time::{SystemTime, UNIX_EPOCH};

/// CLOCK_MONOTONIC in nanoseconds.
pub fn monotonic_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    let seconds = u64::try_from(now.tv_sec).unwrap_or(0);
    let nanoseconds = u64::try_from(now.tv_nsec).unwrap_or(0);
    seconds.saturating_mul(1_000_000_000).saturating_add(nanoseconds)
}

/// Wall time in seconds since 1970, for `created`; no duration is ever made of it.
pub fn unix_seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// Milliseconds from one stamp to another, negative if the second lies before the first. None if one is missing.
pub fn milliseconds(from: Option<u64>, to: Option<u64>) -> Option<f64> {
    let difference = i128::from(to?) - i128::from(from?);
    Some(difference as f64 / 1e6)
}
