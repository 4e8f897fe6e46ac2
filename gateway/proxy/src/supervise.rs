//! Starts, watches and restarts the engine process.
//!
//! Apart because a child process has a life of its own: it must not outlive us (its standard input is a pipe that
//! closes with us), it must not get the terminal's Ctrl-C before we have drained (it has a process group of its
//! own), and its death is reported and answered by a restart with growing waits. Must not know: requests.

use std::process::{ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use pitot_config::gateway::Engine;
use rustix::process::{Pid, Signal, kill_process};
use tokio::process::{Child, Command};
use tokio::sync::Notify;

/// An engine that lived this long was well: its next restart waits the shortest time again.
const WELL_AFTER: Duration = Duration::from_secs(30);

/// A supervised engine.
#[derive(Debug)]
pub struct Supervisor {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

/// How patiently a stop waits for what runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pace {
    Patient,
    /// A second signal came.
    Hurried,
}

/// Tells whether the engine lives.
#[derive(Debug, Clone)]
pub struct Watch {
    shared: Arc<Shared>,
}

impl Watch {
    /// Whether the engine has ended and has not been started again yet.
    pub fn is_down(&self) -> bool {
        self.shared.down.load(Ordering::Relaxed)
    }

    /// Whether this is the process that is supervised here, and not another engine at the same socket.
    pub fn is_ours(&self, process_id: u32) -> bool {
        self.shared.process_id.load(Ordering::Relaxed) == process_id
    }
}

#[derive(Debug)]
struct Shared {
    stopping: AtomicBool,
    wake: Notify,
    /// The engine ended, and is not running now.
    down: AtomicBool,
    /// Process id of the running engine; 0 before the first.
    process_id: AtomicU32,
    /// The engine is killed without being asked first.
    hurried: AtomicBool,
}

impl Supervisor {
    /// Starts the engine with these arguments.
    pub fn start(settings: &Engine, arguments: Vec<String>, stop_timeout: Duration) -> anyhow::Result<Self> {
        let shared = Arc::new(Shared {
            stopping: AtomicBool::new(false),
            wake: Notify::new(),
            down: AtomicBool::new(false),
            process_id: AtomicU32::new(0),
            hurried: AtomicBool::new(false),
        });
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let serving = Arc::clone(&shared);
        let settings = settings.clone();
        let thread = std::thread::Builder::new().name("supervisor".into()).spawn(move || {
            runtime.block_on(keep_running(&serving, &settings, &arguments, stop_timeout));
        })?;
        Ok(Supervisor { shared, thread: Some(thread) })
    }

    /// A view for those who wait for the engine.
    pub fn watch(&self) -> Watch {
        Watch { shared: Arc::clone(&self.shared) }
    }

    /// Stops the engine and waits until it has ended.
    pub fn stop(mut self, pace: Pace) {
        self.shared.hurried.store(pace == Pace::Hurried, Ordering::Relaxed);
        self.shared.stopping.store(true, Ordering::Relaxed);
        self.shared.wake.notify_one();
        if let Some(thread) = self.thread.take() {
            // A panic of that thread has been printed; the engine ends with its pipe.
            let _ = thread.join();
        }
    }
}

async fn keep_running(shared: &Shared, settings: &Engine, arguments: &[String], stop_timeout: Duration) {
    let mut wait = settings.restart_backoff_min;
    while !shared.stopping.load(Ordering::Relaxed) {
        let started = Instant::now();
        match spawn(settings, arguments) {
            Ok(mut child) => {
                shared.process_id.store(child.id().unwrap_or(0), Ordering::Relaxed);
                shared.down.store(false, Ordering::Relaxed);
                // Its other end tells the engine that we live; waiting for the child would close it.
                let _held = child.stdin.take();
                let ended = tokio::select! {
                    ended = child.wait() => Some(ended),
                    () = shared.wake.notified() => None,
                };
                let Some(ended) = ended else {
                    let hurried = shared.hurried.load(Ordering::Relaxed);
                    stop(&mut child, if hurried { Duration::ZERO } else { stop_timeout }).await;
                    return;
                };
                tracing::error!(reason = %reason(ended), "the engine ended");
            }
            Err(error) => tracing::error!(
                %error, command = %settings.command.display(),
                "the engine cannot be started; is pitot-engine installed beside pitot, or set engine.command"
            ),
        }
        shared.down.store(true, Ordering::Relaxed);
        if started.elapsed() >= WELL_AFTER {
            wait = settings.restart_backoff_min;
        }
        tracing::info!(
            wait_ms = u64::try_from(wait.as_millis()).unwrap_or(u64::MAX),
            "the engine is started again"
        );
        tokio::select! {
            () = tokio::time::sleep(wait) => {}
            () = shared.wake.notified() => return,
        }
        wait = (wait * 2).min(settings.restart_backoff_max);
    }
}

fn spawn(settings: &Engine, arguments: &[String]) -> std::io::Result<Child> {
    let mut command = Command::new(&settings.command);
    command.args(arguments).stdin(Stdio::piped()).process_group(0).kill_on_drop(true);
    command.spawn()
}

/// Asks first, then insists.
async fn stop(child: &mut Child, timeout: Duration) {
    if let Some(pid) = child.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw) {
        // It may have ended meanwhile, which is what was wanted.
        let _ = kill_process(pid, Signal::TERM);
    }
    if tokio::time::timeout(timeout, child.wait()).await.is_err() {
        if !timeout.is_zero() {
            tracing::warn!("the engine did not stop in time and is killed");
        }
        let _ = child.kill().await;
    }
}

fn reason(ended: std::io::Result<ExitStatus>) -> String {
    match ended {
        Ok(status) => status.to_string(),
        Err(error) => format!("its end could not be awaited: {error}"),
    }
}
