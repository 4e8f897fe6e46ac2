//! The end of the gateway: told by a signal or by a command, after running requests have finished.
//!
//! Apart because pingora would cut every stream at a fixed time or wait for it idly; here the wait ends with the
//! last request. Must not know: what the requests are.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use pingora::server::{ShutdownSignal, ShutdownSignalWatch};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::app::App;

/// How often the number of running requests is looked at while draining.
const LOOK: Duration = Duration::from_millis(20);

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

    /// What pingora waits on.
    pub fn watch(&self, app: Arc<App>) -> Box<dyn ShutdownSignalWatch + Send + Sync> {
        Box::new(Watch { shutdown: self.clone(), app })
    }
}

struct Watch {
    shutdown: Shutdown,
    app: Arc<App>,
}

#[async_trait]
impl ShutdownSignalWatch for Watch {
    async fn recv(&self) -> ShutdownSignal {
        let (mut terminate, mut interrupt) = match (
            signal(SignalKind::terminate()),
            signal(SignalKind::interrupt()),
        ) {
            (Ok(terminate), Ok(interrupt)) => (terminate, interrupt),
            (Err(error), _) | (_, Err(error)) => {
                tracing::error!(%error, "signals cannot be received; only kill -9 will stop this process");
                self.shutdown.asked.notified().await;
                return ShutdownSignal::FastShutdown;
            }
        };
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
            () = self.shutdown.asked.notified() => {}
        }
        self.app.drain();
        let deadline = Instant::now() + self.app.settings.limits.drain_timeout;
        if self.app.in_flight() > 0 {
            tracing::info!(
                requests = self.app.in_flight(),
                "finishing running requests; a second signal stops at once"
            );
        }
        while self.app.in_flight() > 0 && Instant::now() < deadline {
            tokio::select! {
                () = tokio::time::sleep(LOOK) => {}
                _ = terminate.recv() => break,
                _ = interrupt.recv() => break,
            }
        }
        ShutdownSignal::FastShutdown
    }
}
