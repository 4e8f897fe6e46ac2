//! Everything the gateway holds, put together once: the only place where everything meets.
//!
//! Apart so that no module reaches for another behind the reader's back: what a part needs, it is handed here.
//! Must not know: how a request is forwarded.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use anyhow::Context;
use pitot_config::gateway::{Case2, Settings, UsageSupport};
use pitot_measure::rates::Windows;
use pitot_measure::{Options, UsageCapability};
use tokio::sync::watch;

use crate::emit::{Emitter, Statistics};
use crate::engine_link::EngineLink;
use crate::keys::Keys;
use crate::sinks::journal::Journal;
use crate::sinks::live::Live;
use crate::sinks::prometheus::Metrics;
use crate::upstream::Upstream;

/// The gateway's state, shared by all its threads.
#[derive(Debug)]
pub struct App {
    pub settings: Settings,
    pub upstream: Upstream,
    pub keys: Keys,
    pub link: Arc<EngineLink>,
    pub emitter: Emitter,
    /// Where applications are listened to, once that is settled.
    pub listening: OnceLock<SocketAddr>,
    draining: AtomicBool,
    in_flight: AtomicUsize,
    drain_over: watch::Sender<bool>,
}

impl App {
    /// Opens what has to be opened. Listens to nothing yet.
    pub fn new(settings: Settings) -> anyhow::Result<Arc<Self>> {
        let journal = match &settings.journal {
            Some(journal) => Some(Journal::open(journal).map_err(anyhow::Error::msg)?),
            None => None,
        };
        let metrics = Metrics::new(settings.metrics.models_max).context("cannot register the metrics")?;
        let live = Live::new(settings.requests.kept, Windows::new(settings.metrics.models_max));
        let link = EngineLink::start(settings.upstream.control_socket.clone())
            .context("cannot start the thread of the control channel")?;
        let statistics = if settings.metrics.log_stats { Statistics::Kept } else { Statistics::Off };
        Ok(Arc::new(App {
            upstream: Upstream::new(&settings),
            keys: Keys::new(&settings.measure.key_aliases),
            link,
            emitter: Emitter::new(statistics, metrics, live, journal),
            listening: OnceLock::new(),
            draining: AtomicBool::new(false),
            in_flight: AtomicUsize::new(0),
            drain_over: watch::Sender::new(false),
            settings,
        }))
    }

    /// The part of the configuration that the measuring core takes.
    pub fn measure_options(&self) -> Options {
        let measure = &self.settings.measure;
        Options {
            http_error_from: measure.http_error_from,
            case2: match measure.case2 {
                Case2::Default => pitot_measure::Case2::Default,
                Case2::Strict => pitot_measure::Case2::Strict,
            },
            inline_think: if measure.inline_think {
                pitot_measure::InlineThink::Reasoning
            } else {
                pitot_measure::InlineThink::Content
            },
            observe_deadline: measure.observe_deadline,
            usage_capability: match self.upstream.usage() {
                // Asked, and judged without until it has answered once.
                UsageSupport::Auto => UsageCapability::Never,
                UsageSupport::StreamOptions => UsageCapability::StreamOptions,
                UsageSupport::Always => UsageCapability::Always,
                UsageSupport::Never => UsageCapability::Never,
            },
            ..Options::default()
        }
    }

    /// Whether new requests are refused because the gateway is about to end.
    pub fn is_draining(&self) -> bool {
        self.draining.load(Ordering::Relaxed)
    }

    /// Refuses new requests from now on; those that run go on.
    pub fn drain(&self) {
        self.draining.store(true, Ordering::Relaxed);
    }

    /// Ends every request that still runs.
    pub fn end_drain(&self) {
        self.drain_over.send_replace(true);
    }

    /// Returns when requests that still run have to end.
    pub async fn drain_over(&self) {
        // The sender lives as long as the app, so that this ends by the value alone.
        let _ = self.drain_over.subscribe().wait_for(|over| *over).await;
    }

    /// Requests that have been accepted and not yet ended.
    pub fn in_flight(&self) -> usize {
        self.in_flight.load(Ordering::Relaxed)
    }

    /// Counts a request in until the guard is dropped.
    pub fn enter(self: &Arc<Self>) -> InFlight {
        let others = self.in_flight.fetch_add(1, Ordering::Relaxed);
        self.emitter.metrics.in_flight(others + 1);
        InFlight { app: Arc::clone(self), others }
    }
}

/// One request in flight.
#[derive(Debug)]
pub struct InFlight {
    app: Arc<App>,
    /// Requests that were in flight when this one came.
    pub others: usize,
}

impl Drop for InFlight {
    fn drop(&mut self) {
        let before = self.app.in_flight.fetch_sub(1, Ordering::Relaxed);
        self.app.emitter.metrics.in_flight(before.saturating_sub(1));
    }
}
