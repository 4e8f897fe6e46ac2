//! One [`Record`] → every sink, exactly once.
//!
//! Apart so that no path of a request can forget a sink, and no sink can hold up a request: the journal is handed
//! its line through a bounded queue, the others are a few counters and a ring in memory. No sink computes a
//! metric of its own. Must not know: HTTP.

use std::sync::Arc;

use pitot_measure::Record;

use crate::clock::{Anchor, monotonic_ns};
use crate::sinks::journal::Journal;
use crate::sinks::live::Live;
use crate::sinks::prometheus::Metrics;

/// A finished request with what only the gateway's shell knows of it.
#[derive(Debug, Clone, serde::Serialize)]
pub struct Finished {
    /// Wall time at which the head was parsed, in milliseconds since 1970.
    pub accepted_unix_ms: u64,
    /// The caller's own `x-request-id`, if it sent one.
    pub client_request_id: Option<String>,
    #[serde(flatten)]
    pub record: Record,
}

/// Whether numbers over many requests are kept (`metrics.log_stats`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Statistics {
    Kept,
    Off,
}

/// Where records go.
#[derive(Debug)]
pub struct Emitter {
    statistics: Statistics,
    pub metrics: Metrics,
    pub live: Live,
    journal: Option<Journal>,
    anchor: Anchor,
}

impl Emitter {
    pub fn new(statistics: Statistics, metrics: Metrics, live: Live, journal: Option<Journal>) -> Self {
        Emitter { statistics, metrics, live, journal, anchor: Anchor::now() }
    }

    /// The anchor by which records are dated.
    pub fn anchor(&self) -> Anchor {
        self.anchor
    }

    /// Hands a finished request to every sink.
    pub fn emit(&self, accepted_ns: u64, client_request_id: Option<String>, record: Record) {
        let finished = Arc::new(Finished {
            accepted_unix_ms: self.anchor.unix_ms(accepted_ns),
            client_request_id,
            record,
        });
        for violation in &finished.record.violations {
            tracing::warn!(id = %finished.record.id, %violation, "the times of a request do not add up");
        }
        if self.statistics == Statistics::Kept {
            self.metrics.observe(&finished.record);
            self.live.count(monotonic_ns(), &finished.record);
        }
        self.live.keep(Arc::clone(&finished));
        if let Some(journal) = &self.journal
            && !journal.offer(finished)
        {
            self.metrics.sink_dropped("journal");
        }
    }

    /// Writes out what is queued, before the process ends.
    pub fn flush(&self) {
        if let Some(journal) = &self.journal {
            journal.flush();
        }
    }
}
