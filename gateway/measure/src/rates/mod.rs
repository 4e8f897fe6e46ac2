//! Rates and quantiles over rolling windows and over any stretch of the last day, by model, upstream and key.
//!
//! Apart from the record, which is one request; this is many. Takes the time of each request's *end* as an
//! argument. Must not know: clocks, which of these numbers is shown where.
//!
//! # Bounds
//! Each window is divided into slots, which is also how exactly its edge is kept: a window reaches back to the start
//! of the slot in which it begins. Slots without requests take no memory. Callers can name any model, so that series
//! are bounded: beyond the bound models share `other` at their upstream and key. A series that had no request for a
//! day makes room, and one that never had a success makes room for one that has, so that invented names cannot keep
//! a real model out.

mod sketch;
mod tally;

use std::collections::{BTreeMap, VecDeque};

use serde::Serialize;

use crate::outcome::OutcomeKind;
use crate::record::Record;
use sketch::Mapping;
pub use sketch::RELATIVE_ERROR;
use tally::Tally;
pub use tally::{DEFINITIONS, Distribution, Summary};

const SECOND_NS: u64 = 1_000_000_000;

/// A rolling window: its name, its length and the length of its slots, in seconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Window {
    name: &'static str,
    seconds: u64,
    slot_seconds: u64,
}

const WINDOWS: [Window; 5] = [
    Window { name: "1m", seconds: 60, slot_seconds: 1 },
    Window { name: "5m", seconds: 300, slot_seconds: 5 },
    Window { name: "15m", seconds: 900, slot_seconds: 15 },
    Window { name: "1h", seconds: 3600, slot_seconds: 60 },
    Window { name: "24h", seconds: 86_400, slot_seconds: 900 },
];

const DAY: Window = WINDOWS[4];

/// Series of `other`, one for each upstream and key; both come from configuration, and are bounded here all the same.
const OTHERS_MAX: usize = 64;
/// Longest name of a model, upstream or key that gets a series of its own, in bytes.
const NAME_BYTES_MAX: usize = 256;
const OTHER: &str = "other";

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Key {
    model: String,
    upstream: String,
    key_alias: Option<String>,
}

/// Slots in order of time: the number of the slot since 0 and what ended in it.
#[derive(Debug, Clone, Default)]
struct Slots(VecDeque<(u64, Tally)>);

impl Slots {
    fn add(&mut self, window: Window, now_ns: u64, record: &Record, mapping: Mapping) {
        let slot = now_ns / (window.slot_seconds * SECOND_NS);
        self.forget(window, now_ns);
        // Ends arrive in order but for the moment between stamp and lock; a late one goes where it belongs.
        match self.0.binary_search_by_key(&slot, |(slot, _)| *slot) {
            Ok(place) => self.0[place].1.add(record, mapping),
            Err(place) => {
                let mut tally = Tally::default();
                tally.add(record, mapping);
                self.0.insert(place, (slot, tally));
            }
        }
    }

    /// Lets slots go that no window reaches any more.
    fn forget(&mut self, window: Window, now_ns: u64) {
        let oldest = now_ns.saturating_sub(window.seconds * SECOND_NS) / (window.slot_seconds * SECOND_NS);
        while self.0.front().is_some_and(|(slot, _)| *slot < oldest) {
            self.0.pop_front();
        }
    }

    /// Takes over what other slots hold.
    fn absorb(&mut self, other: Slots) {
        for (slot, tally) in other.0 {
            match self.0.binary_search_by_key(&slot, |(slot, _)| *slot) {
                Ok(place) => self.0[place].1.merge(&tally),
                Err(place) => self.0.insert(place, (slot, tally)),
            }
        }
    }

    fn merge_into(&self, window: Window, from_ns: u64, to_ns: u64, sum: &mut Tally) {
        let slot_ns = window.slot_seconds * SECOND_NS;
        for (slot, tally) in &self.0 {
            if *slot >= from_ns / slot_ns && slot.saturating_mul(slot_ns) <= to_ns {
                sum.merge(tally);
            }
        }
    }
}

/// All that ended under one key.
#[derive(Debug, Clone, Default)]
struct Series {
    windows: [Slots; WINDOWS.len()],
    succeeded: bool,
}

impl Series {
    fn absorb(&mut self, other: Series) {
        for (slots, others) in self.windows.iter_mut().zip(other.windows) {
            slots.absorb(others);
        }
    }
}

/// Everything that ended within the last day.
#[derive(Debug)]
pub struct Windows {
    series_max: usize,
    series: BTreeMap<Key, Series>,
    mapping: Mapping,
}

/// Rates over every rolling window.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Rates {
    /// Largest error of a quantile, as a share of its value.
    pub quantile_relative_error: f64,
    pub windows: Vec<Range>,
}

/// Rates over one stretch of time.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Range {
    /// Such as `5m`; null for a stretch that was asked for by its ends.
    pub window: Option<&'static str>,
    pub from_ns: u64,
    pub to_ns: u64,
    /// How exactly the ends are kept: requests of a whole slot are in or out together.
    pub resolution_seconds: u64,
    pub all: Summary,
    pub series: Vec<SeriesRates>,
}

/// Rates of one model at one upstream under one key. The model is `other` where it has no series of its own.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct SeriesRates {
    pub model: String,
    pub upstream: String,
    /// Null for requests without a named key.
    pub key_alias: Option<String>,
    #[serde(flatten)]
    pub summary: Summary,
}

/// What series are summed by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum By {
    Model,
    Upstream,
    KeyAlias,
}

/// Rates of all series that share a model, an upstream or a key.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Group {
    /// Null for requests without a named key.
    pub name: Option<String>,
    #[serde(flatten)]
    pub summary: Summary,
}

impl Windows {
    /// Keeps at most this many series apart, beside `other`.
    pub fn new(series_max: usize) -> Self {
        Windows { series_max, series: BTreeMap::new(), mapping: Mapping::default() }
    }

    /// Adds a request that ended at `now_ns`, on any monotonic scale that all calls share.
    pub fn record(&mut self, now_ns: u64, record: &Record) {
        let key = self.key(now_ns, record);
        let series = self.series.entry(key).or_default();
        series.succeeded |= record.outcome == OutcomeKind::Success;
        for (slots, window) in series.windows.iter_mut().zip(WINDOWS) {
            slots.add(window, now_ns, record, self.mapping);
        }
    }

    fn key(&mut self, now_ns: u64, record: &Record) -> Key {
        let key = Key {
            model: record.model.clone(),
            upstream: record.upstream.clone(),
            key_alias: record.key_alias.clone(),
        };
        let long = |name: &String| name.len() > NAME_BYTES_MAX;
        if long(&key.model) {
            return self.other(key);
        }
        if self.series.contains_key(&key) {
            return key;
        }
        if self.named() >= self.series_max {
            self.make_room(now_ns, record.outcome);
        }
        let fits = !long(&key.upstream) && !key.key_alias.as_ref().is_some_and(long);
        if fits && self.named() < self.series_max { key } else { self.other(key) }
    }

    /// Lets series go that had no request for a day; and for a success, one that has had none.
    fn make_room(&mut self, now_ns: u64, outcome: OutcomeKind) {
        self.series.retain(|_, series| {
            for (slots, window) in series.windows.iter_mut().zip(WINDOWS) {
                slots.forget(window, now_ns);
            }
            series.windows.iter().any(|slots| !slots.0.is_empty())
        });
        if self.named() < self.series_max || outcome != OutcomeKind::Success {
            return;
        }
        let idle = self.series.iter().find(|(key, series)| key.model != OTHER && !series.succeeded);
        let Some(key) = idle.map(|(key, _)| key.clone()) else { return };
        if let Some(series) = self.series.remove(&key) {
            let other = self.other(key);
            self.series.entry(other).or_default().absorb(series);
        }
    }

    /// The series that a key shares which has none of its own.
    fn other(&self, key: Key) -> Key {
        let other = Key { model: OTHER.to_owned(), ..key };
        let long = |name: &String| name.len() > NAME_BYTES_MAX;
        let fits = !long(&other.upstream) && !other.key_alias.as_ref().is_some_and(long);
        let others = self.series.len() - self.named();
        if fits && (others < OTHERS_MAX || self.series.contains_key(&other)) {
            return other;
        }
        Key { model: OTHER.to_owned(), upstream: OTHER.to_owned(), key_alias: Some(OTHER.to_owned()) }
    }

    /// Series with a model of their own.
    fn named(&self) -> usize {
        self.series.keys().filter(|key| key.model != OTHER).count()
    }

    /// The rates over every rolling window up to now.
    pub fn rates(&self, now_ns: u64) -> Rates {
        let range = |(place, window): (usize, &Window)| {
            let from_ns = now_ns.saturating_sub(window.seconds * SECOND_NS);
            Range { window: Some(window.name), ..self.range(place, from_ns, now_ns) }
        };
        Rates {
            quantile_relative_error: RELATIVE_ERROR,
            windows: WINDOWS.iter().enumerate().map(range).collect(),
        }
    }

    /// The rates from one instant to another, from the finest slots that reach back far enough. What ended more
    /// than a day before `now_ns` is gone.
    pub fn between(&self, from_ns: u64, to_ns: u64, now_ns: u64) -> Range {
        let (place, from_ns, to_ns) = Windows::place(from_ns, to_ns, now_ns);
        self.range(place, from_ns, to_ns)
    }

    /// The rates from one instant to another as [`Windows::between`] has them, summed by what series share.
    pub fn grouped(&self, from_ns: u64, to_ns: u64, now_ns: u64, by: By) -> Vec<Group> {
        let (place, from_ns, to_ns) = Windows::place(from_ns, to_ns, now_ns);
        let mut groups: BTreeMap<Option<&str>, Tally> = BTreeMap::new();
        for (key, series) in &self.series {
            let mut sum = Tally::default();
            series.windows[place].merge_into(WINDOWS[place], from_ns, to_ns, &mut sum);
            if sum.is_empty() {
                continue;
            }
            let name = match by {
                By::Model => Some(key.model.as_str()),
                By::Upstream => Some(key.upstream.as_str()),
                By::KeyAlias => key.key_alias.as_deref(),
            };
            groups.entry(name).or_default().merge(&sum);
        }
        let group = |(name, sum): (Option<&str>, Tally)| Group {
            name: name.map(str::to_owned),
            summary: sum.summary(self.mapping),
        };
        groups.into_iter().map(group).collect()
    }

    /// The finest window that reaches back far enough, and the stretch as far as it is still there.
    fn place(from_ns: u64, to_ns: u64, now_ns: u64) -> (usize, u64, u64) {
        let reaches = |window: &Window| now_ns.saturating_sub(window.seconds * SECOND_NS) <= from_ns;
        let place = WINDOWS.iter().position(reaches).unwrap_or(WINDOWS.len() - 1);
        let from_ns = from_ns.max(now_ns.saturating_sub(DAY.seconds * SECOND_NS));
        (place, from_ns, to_ns.max(from_ns))
    }

    fn range(&self, place: usize, from_ns: u64, to_ns: u64) -> Range {
        let window = WINDOWS[place];
        let mut all = Tally::default();
        let mut series = Vec::new();
        for (key, of_key) in &self.series {
            let mut sum = Tally::default();
            of_key.windows[place].merge_into(window, from_ns, to_ns, &mut sum);
            if sum.is_empty() {
                continue;
            }
            all.merge(&sum);
            series.push(SeriesRates {
                model: key.model.clone(),
                upstream: key.upstream.clone(),
                key_alias: key.key_alias.clone(),
                summary: sum.summary(self.mapping),
            });
        }
        Range {
            window: None,
            from_ns,
            to_ns,
            resolution_seconds: window.slot_seconds,
            all: all.summary(self.mapping),
            series,
        }
    }
}
