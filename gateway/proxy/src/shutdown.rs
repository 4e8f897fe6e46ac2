//! The end of the gateway: told by a signal or by a command, after running requests have finished.
//!
//! Apart because pingora would cut every stream at a fixed time or wait for it idly; here the wait ends with the
//! last request. pingora is not told at all: with a runtime that shuts down beneath them its accept loops can spin
//! on an error and never end, so that the process ends with it instead. Must not know: what the requests are.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use pingora::server::{ShutdownSignal, ShutdownSignalWatch};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::app::App;
use crate::supervise::Pace;

/// How often the number of running requests is looked at while draining.
const LOOK: Duration = Duration::from_millis(20);
/// Longest wait for requests that were cut to tell their callers so.
const LAST_WORDS: Duration = Duration::from_millis(500);

/// Lets any part of the program ask for the end.
#[derive(Debug, Clone, Default)]
pub struct Shutdown {
    asked: Arc<Notify>,
}

impl Shutdown {
    /// Asks for the end; running requests are finished first.
    pub fn ask(&self) {
        self.asked.notify_one();
    }

    /// Waits for the end to be asked for, refuses new requests from then on, and returns when running ones have
    /// finished, their time is up, or a second signal came.
    pub async fn drained(&self, app: &App) -> std::io::Result<Pace> {
        let mut terminate = signal(SignalKind::terminate())?;
        let mut interrupt = signal(SignalKind::interrupt())?;
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
            () = self.asked.notified() => {}
        }
        app.drain();
        let deadline = Instant::now() + app.settings.limits.drain_timeout;
        if app.in_flight() > 0 {
            tracing::info!(
                requests = app.in_flight(),
                "finishing running requests; a second signal stops at once"
            );
        }
        let mut pace = Pace::Patient;
        while app.in_flight() > 0 && Instant::now() < deadline && pace == Pace::Patient {
            tokio::select! {
                () = tokio::time::sleep(LOOK) => {}
                _ = terminate.recv() => pace = Pace::Hurried,
                _ = interrupt.recv() => pace = Pace::Hurried,
            }
        }
        // What still runs is told, and gets its record.
        app.end_drain();
        let last_look = Instant::now() + LAST_WORDS;
        while app.in_flight() > 0 && Instant::now() < last_look {
            tokio::time::sleep(LOOK).await;
        }
        Ok(pace)
    }
}

/// What pingora waits on: nothing.
pub struct Never;

#[async_trait]
impl ShutdownSignalWatch for Never {
    async fn recv(&self) -> ShutdownSignal {
        std::future::pending().await
    }
}
