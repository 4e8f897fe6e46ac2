//! The only clock of the gateway: raw CLOCK_MONOTONIC nanoseconds and one anchor to wall time.
//!
//! Apart so that every stamp is comparable with the engine's, which reads the same kernel clock; std's `Instant`
//! cannot cross processes. Must not know: requests.

use std::time::{SystemTime, UNIX_EPOCH};

use pitot_measure::At;

/// Wall time read once beside a monotonic stamp. Wall times of requests are derived from it, so that a step of
/// the wall clock never makes a duration negative.
#[derive(Debug, Clone, Copy)]
pub struct Anchor {
    monotonic_ns: u64,
    unix_ms: u64,
}

impl Anchor {
    /// Reads both clocks.
    pub fn now() -> Self {
        let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Anchor {
            monotonic_ns: monotonic_ns(),
            unix_ms: u64::try_from(since_epoch.as_millis()).unwrap_or(u64::MAX),
        }
    }

    /// Wall time of a monotonic stamp, in milliseconds since 1970.
    pub fn unix_ms(self, monotonic_ns: u64) -> u64 {
        let back = self.monotonic_ns.saturating_sub(monotonic_ns) / 1_000_000;
        let ahead = monotonic_ns.saturating_sub(self.monotonic_ns) / 1_000_000;
        self.unix_ms.saturating_add(ahead).saturating_sub(back)
    }

    /// The monotonic stamp of a wall time in seconds since 1970; times before the boot read as its instant.
    pub fn monotonic_ns_of(self, unix_seconds: f64) -> u64 {
        let ahead_ns = (unix_seconds * 1e3 - self.unix_ms as f64) * 1e6;
        (self.monotonic_ns as f64 + ahead_ns).max(0.0) as u64
    }
}

/// CLOCK_MONOTONIC in nanoseconds.
pub fn monotonic_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    let seconds = u64::try_from(now.tv_sec).unwrap_or(0);
    let nanoseconds = u64::try_from(now.tv_nsec).unwrap_or(0);
    seconds.saturating_mul(1_000_000_000).saturating_add(nanoseconds)
}

/// The offsets of one request.
#[derive(Debug, Clone, Copy)]
pub struct Stopwatch {
    accepted_ns: u64,
}

impl Stopwatch {
    /// Starts at the present instant.
    pub fn start() -> Self {
        Stopwatch { accepted_ns: monotonic_ns() }
    }

    /// Time since the start.
    pub fn at(self) -> At {
        self.at_of(monotonic_ns())
    }

    /// A stamp of this host as an offset. One before the start reads as the start.
    pub fn at_of(self, monotonic_ns: u64) -> At {
        At(monotonic_ns.saturating_sub(self.accepted_ns))
    }

    /// The monotonic stamp of the start.
    pub fn accepted_ns(self) -> u64 {
        self.accepted_ns
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wall_time_follows_the_monotonic_clock() {
        let anchor = Anchor { monotonic_ns: 5_000_000_000, unix_ms: 1_000_000 };
        assert_eq!(anchor.unix_ms(5_250_000_000), 1_000_250);
        assert_eq!(anchor.unix_ms(4_000_000_000), 999_000);
        assert_eq!(anchor.monotonic_ns_of(1_000.25), 5_250_000_000);
        assert_eq!(anchor.monotonic_ns_of(0.0), 0);
    }
}
