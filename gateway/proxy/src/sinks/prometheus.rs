//! The Prometheus sink: families and samples come from the measuring core, here they only get a registry.
//!
//! Apart as the only importer of the prometheus library. Label values are bounded: a model gets a label of its own
//! once a request with that name has succeeded, up to a number; every other name is `other`, since callers can
//! write there what they like. Must not know: how a value was measured.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::Ordering;
use std::sync::{Mutex, PoisonError};

use pitot_measure::families::{self, Family, FamilyKind, Label};
use pitot_measure::{OutcomeKind, Record};
use prometheus::core::Collector;
use prometheus::{CounterVec, Encoder, GaugeVec, HistogramOpts, HistogramVec, Opts, Registry, TextEncoder};

use crate::engine_link::Counters;

/// The label value of names beyond the bound.
const OTHER: &str = "other";
/// Longest model name that becomes a label, in bytes.
const MODEL_BYTES_MAX: usize = 128;

/// All families, registered.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    families: HashMap<Family, Vector>,
    models_max: usize,
    models: Mutex<HashSet<String>>,
}

#[derive(Debug)]
enum Vector {
    Counter(CounterVec),
    Gauge(GaugeVec),
    Histogram(HistogramVec),
}

impl Metrics {
    /// Registers every family of the core.
    pub fn new(models_max: usize) -> prometheus::Result<Self> {
        let registry = Registry::new();
        let mut vectors = HashMap::new();
        for family in Family::ALL.iter().copied() {
            let about = family.about();
            let labels: Vec<&str> = about.labels.iter().map(|label| label.name()).collect();
            let vector = match about.kind {
                FamilyKind::Counter => Vector::Counter(register(
                    &registry,
                    CounterVec::new(Opts::new(about.name, about.help), &labels)?,
                )?),
                FamilyKind::Gauge => Vector::Gauge(register(
                    &registry,
                    GaugeVec::new(Opts::new(about.name, about.help), &labels)?,
                )?),
                FamilyKind::Histogram => {
                    let options = HistogramOpts::new(about.name, about.help).buckets(about.buckets.to_vec());
                    Vector::Histogram(register(&registry, HistogramVec::new(options, &labels)?)?)
                }
            };
            vectors.insert(family, vector);
        }
        Ok(Metrics { registry, families: vectors, models_max, models: Mutex::default() })
    }

    /// Adds what one request adds.
    pub fn observe(&self, record: &Record) {
        let model = self.model_label(record);
        for sample in families::samples(record) {
            let about = sample.family.about();
            let value = |label: &Label| match label {
                Label::Model => Some(model),
                Label::Upstream
                | Label::Endpoint
                | Label::Outcome
                | Label::Streaming
                | Label::Source
                | Label::Sink => families::label_value(record, *label),
            };
            let labels: Vec<&str> = about.labels.iter().map(|label| value(label).unwrap_or("")).collect();
            self.add(sample.family, &labels, sample.value, sample.times);
        }
    }

    /// Counts a record that a sink could not take.
    pub fn sink_dropped(&self, sink: &str) {
        self.add(Family::SinkDropped, &[sink], 1.0, 1);
    }

    /// Requests that have been accepted and not yet ended.
    pub fn in_flight(&self, requests: usize) {
        self.add(Family::InFlight, &[], requests as f64, 1);
    }

    /// The page in the text format. What the control channel counts is read now.
    pub fn text(&self, control: &Counters) -> Result<String, String> {
        let counts = [
            (Family::ControlConnections, &control.connections),
            (Family::ControlStamps, &control.stamps_received),
            (Family::ControlStampsEvicted, &control.stamps_evicted),
            (Family::ControlErrors, &control.protocol_errors),
        ];
        for (family, count) in counts {
            self.raise(family, count.load(Ordering::Relaxed) as f64);
        }
        let mut page = Vec::new();
        TextEncoder::new().encode(&self.registry.gather(), &mut page).map_err(|error| error.to_string())?;
        String::from_utf8(page).map_err(|error| error.to_string())
    }

    /// Brings a counter without labels up to a count that is kept elsewhere.
    fn raise(&self, family: Family, count: f64) {
        if let Some(Vector::Counter(counter)) = self.families.get(&family) {
            let counter = counter.with_label_values::<&str>(&[]);
            counter.inc_by((count - counter.get()).max(0.0));
        }
    }

    fn add(&self, family: Family, labels: &[&str], value: f64, times: u64) {
        match self.families.get(&family) {
            Some(Vector::Counter(counter)) => counter.with_label_values(labels).inc_by(value),
            Some(Vector::Gauge(gauge)) => gauge.with_label_values(labels).set(value),
            Some(Vector::Histogram(histogram)) => {
                let histogram = histogram.with_label_values(labels);
                (0..times).for_each(|_| histogram.observe(value));
            }
            None => {}
        }
    }

    fn model_label<'r>(&self, record: &'r Record) -> &'r str {
        let mut models = self.models.lock().unwrap_or_else(PoisonError::into_inner);
        let fits = !record.model.is_empty() && record.model.len() <= MODEL_BYTES_MAX;
        let known = models.contains(&record.model);
        if !known && fits && record.outcome == OutcomeKind::Success && models.len() < self.models_max {
            models.insert(record.model.clone());
            return &record.model;
        }
        if known { &record.model } else { OTHER }
    }
}

fn register<C: Collector + Clone + 'static>(registry: &Registry, collector: C) -> prometheus::Result<C> {
    registry.register(Box::new(collector.clone()))?;
    Ok(collector)
}
