//! What is kept in memory for the admin listener: the last records and the rolling windows.
//!
//! Apart because it answers questions while requests run, under a lock that is held for a few microseconds only.
//! Bounded by configuration. Must not know: HTTP, files.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use pitot_measure::Record;
use pitot_measure::rates::{By, Group, Range, Rates, Windows};

use crate::emit::Finished;

/// The last records and the rates made of all of them.
#[derive(Debug)]
pub struct Live {
    kept_max: usize,
    inner: Mutex<Inner>,
}

#[derive(Debug)]
struct Inner {
    recent: VecDeque<Arc<Finished>>,
    windows: Windows,
}

impl Live {
    pub fn new(kept_max: usize, windows: Windows) -> Self {
        Live { kept_max, inner: Mutex::new(Inner { recent: VecDeque::new(), windows }) }
    }

    /// Keeps a record; the oldest goes when there are too many.
    pub fn keep(&self, finished: Arc<Finished>) {
        let mut inner = self.lock();
        if inner.recent.len() >= self.kept_max {
            inner.recent.pop_front();
        }
        inner.recent.push_back(finished);
    }

    /// Adds a record to the rates.
    pub fn count(&self, now_ns: u64, record: &Record) {
        self.lock().windows.record(now_ns, record);
    }

    /// Finds a request by its own id or by the id that the caller gave it (the youngest of that name).
    pub fn find(&self, id: &str) -> Option<Arc<Finished>> {
        let inner = self.lock();
        let named = |finished: &&Arc<Finished>| {
            finished.record.id == id || finished.client_request_id.as_deref() == Some(id)
        };
        inner.recent.iter().rev().find(named).cloned()
    }

    /// The youngest records, youngest first.
    pub fn recent(&self, limit: usize) -> Vec<Arc<Finished>> {
        self.lock().recent.iter().rev().take(limit).cloned().collect()
    }

    /// The rates over every rolling window.
    pub fn rates(&self, now_ns: u64) -> Rates {
        self.lock().windows.rates(now_ns)
    }

    /// The rates over one stretch.
    pub fn between(&self, from_ns: u64, to_ns: u64, now_ns: u64) -> Range {
        self.lock().windows.between(from_ns, to_ns, now_ns)
    }

    /// The same, summed by what series share.
    pub fn grouped(&self, from_ns: u64, to_ns: u64, now_ns: u64, by: By) -> Vec<Group> {
        self.lock().windows.grouped(from_ns, to_ns, now_ns, by)
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        // Each update leaves the data whole, so a panic elsewhere does not spoil them.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
