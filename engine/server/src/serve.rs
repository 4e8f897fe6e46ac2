//! `pitot-engine serve`: everything started in order, and ended in order.
//!
//! Apart because only here the parts know of each other. Must not know: how any part works.

use std::io::Read;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use axum::serve::ListenerExt;
use pitot_config::engine::{self, Metrics, Settings};
use pitot_config::{Level, Log, LogFormat, Sources};
use tokio::net::{TcpListener, UnixListener};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{Semaphore, mpsc, watch};
use tracing_subscriber::EnvFilter;

use crate::arguments::StandardInput;
use crate::clock::unix_seconds;
use crate::connections::{self, Limits};
use crate::control_socket::{ControlOptions, ControlSocket, access};
use crate::engine_thread::{self, EngineHandle};
use crate::exposition::{About, Exposition, Prefix};
use crate::http::{App, router};
use crate::hub::Hub;
use crate::model::{self, Parts};
use crate::openai::common::Served;
use crate::sockets::{self, SocketFile};
use crate::statistics::log_lines;

/// Threads that render and tokenise at most.
const READERS_MAX: usize = 16;
/// Time for the last bytes to leave.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(1);

/// What asks the engine to stop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stop {
    /// The second one stops at once.
    Signal,
    StandardInputEnded,
}

/// Serves until told to stop.
///
/// # Errors
/// When the configuration is wrong, the model cannot be loaded, a socket cannot be had, or the engine breaks down.
pub fn run(sources: &Sources, end: StandardInput) -> anyhow::Result<()> {
    let resolved = engine::resolve(sources)?;
    let settings = resolved.settings;
    start_log(settings.log);
    let parts = model::open(&settings)?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .worker_threads(2)
        .max_blocking_threads(READERS_MAX)
        .build()
        .context("starting the threads for HTTP")?;
    let done = runtime.block_on(async {
        let stops = watch_for_stops(end)?;
        let server = Server::start(parts, &settings)?;
        server.announce();
        server.run(stops).await
    });
    // Connections that did not end in time are cut.
    runtime.shutdown_background();
    done
}

fn start_log(log: Log) {
    let others = if log.level == Level::Error { "error" } else { "warn" };
    let own = log.level.name();
    let filter =
        EnvFilter::new(format!("{others},pitot_engine={own},pitot_server={own},pitot_runtime={own}"));
    let subscriber = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    // A logger that is there already, as in a test, stays.
    let _ = match log.format {
        LogFormat::Human => {
            let colours = std::io::IsTerminal::is_terminal(&std::io::stderr());
            subscriber.with_ansi(colours).with_target(false).try_init()
        }
        LogFormat::Json => subscriber.json().try_init(),
    };
}

fn watch_for_stops(end: StandardInput) -> anyhow::Result<mpsc::Receiver<Stop>> {
    let (stops, received) = mpsc::channel(4);
    for kind in [SignalKind::terminate(), SignalKind::interrupt()] {
        let mut signals = signal(kind).context("watching for signals")?;
        let stops = stops.clone();
        tokio::spawn(async move {
            while signals.recv().await.is_some() && stops.send(Stop::Signal).await.is_ok() {}
        });
    }
    match end {
        StandardInput::Ignored => {}
        StandardInput::StopsAtEnd => {
            let wait = move || {
                let mut buffer = [0; 1024];
                // An error is an end too: nothing more will come.
                while std::io::stdin().read(&mut buffer).is_ok_and(|bytes| bytes > 0) {}
                let _ = stops.blocking_send(Stop::StandardInputEnded);
            };
            std::thread::Builder::new()
                .name("stdin".to_owned())
                .spawn(wait)
                .context("watching standard input")?;
        }
    }
    Ok(received)
}

/// An engine that listens.
pub struct Server {
    app: Arc<App>,
    control: ControlSocket,
    unix: UnixListener,
    unix_file: SocketFile,
    tcp: Option<TcpListener>,
    drain_timeout: Duration,
}

impl Server {
    /// Opens all sockets and starts the engine's thread. Must be called within a tokio runtime.
    ///
    /// # Errors
    /// When a socket cannot be had.
    pub fn start(parts: Parts, settings: &Settings) -> anyhow::Result<Server> {
        let (unix, unix_file) =
            sockets::bind(&settings.listen.socket, access(&settings.control.allowed_uids))?;
        unix.set_nonblocking(true)?;
        let tcp = settings.listen.tcp_address.map(listen_tcp).transpose()?;
        let hub = Arc::new(Hub::default());
        let context_max = parts.engine.state().context_max;
        // The thread ends with the last door to it.
        let exposition = exposition(&parts, settings)?;
        let (engine, _thread) = engine_thread::start(parts.engine, Arc::clone(&hub), exposition.clone())?;
        let control = ControlOptions {
            socket: settings.control.socket.clone(),
            allowed_uids: settings.control.allowed_uids.clone(),
            models: parts.names.clone(),
        };
        let control = ControlSocket::start(control, hub, engine.clone())?;
        if settings.metrics.log_stats {
            tokio::spawn(log_lines(engine.clone()));
        }
        let served = Served {
            tokenizer: parts.tokenizer,
            chat: parts.chat,
            generation: parts.generation,
            add_bos: parts.add_bos,
            names: parts.names,
            context_max,
            sequences_max: settings.scheduler.waiting_max,
            per_request_metrics: settings.metrics.per_request,
            force_include_usage: settings.metrics.force_include_usage,
        };
        let requests = settings.scheduler.waiting_max + settings.scheduler.sequences_max;
        let app = App {
            served,
            engine,
            exposition,
            body_bytes_max: settings.listen.request_body_bytes,
            requests: Arc::new(Semaphore::new(requests)),
            created: unix_seconds(),
        };
        Ok(Server {
            app: Arc::new(app),
            control,
            unix: UnixListener::from_std(unix)?,
            unix_file,
            tcp,
            drain_timeout: settings.shutdown.drain_timeout,
        })
    }

    /// Where it answers by TCP.
    pub fn tcp_address(&self) -> Option<SocketAddr> {
        self.tcp.as_ref()?.local_addr().ok()
    }

    /// The door to its engine.
    pub fn engine(&self) -> EngineHandle {
        self.app.engine.clone()
    }

    fn announce(&self) {
        let http = self.unix.local_addr().ok();
        let http = http.as_ref().and_then(|address| address.as_pathname()).map(Path::display);
        let (state, tcp) = (self.app.engine.state(), self.tcp_address());
        tracing::info!(
            models = self.app.served.names.join(","),
            context_tokens = state.context_max,
            kv_blocks = state.blocks_total,
            "ready on {}{}, control on {}",
            http.map(|path| path.to_string()).unwrap_or_default(),
            tcp.map(|address| format!(" and http://{address}")).unwrap_or_default(),
            self.control.path().display(),
        );
    }

    /// Answers until the first stop, then finishes what runs.
    ///
    /// # Errors
    /// When the engine breaks down.
    pub async fn run(self, mut stops: mpsc::Receiver<Stop>) -> anyhow::Result<()> {
        let Server { app, control, unix, unix_file, tcp, drain_timeout } = self;
        let engine = app.engine.clone();
        let (quit, quitting) = watch::channel(());
        let routes = router(app);
        let mut serving =
            vec![tokio::spawn(connections::serve(unix, routes.clone(), Limits::default(), quitting.clone()))];
        if let Some(tcp) = tcp {
            let tcp = tcp.tap_io(|stream| {
                // A token must not wait for the next; without it answers are late, not wrong.
                let _ = stream.set_nodelay(true);
            });
            serving.push(tokio::spawn(connections::serve(tcp, routes, Limits::default(), quitting.clone())));
        }
        let first = tokio::select! {
            first = stops.recv() => first.unwrap_or(Stop::StandardInputEnded),
            () = engine.ended() => bail!("the engine broke down"),
        };
        tracing::info!(running = engine.state().running, "stopping: finishing what runs");
        tokio::select! {
            () = drain(&engine, drain_timeout) => {}
            () = insisted(first, &mut stops) => {
                tracing::warn!("stopping at once");
                return Ok(());
            }
        }
        drop((quitting, quit));
        let flushed = async {
            for task in serving {
                // A task that failed has nothing left to write.
                let _ = task.await;
            }
        };
        if tokio::time::timeout(FLUSH_TIMEOUT, flushed).await.is_err() {
            tracing::debug!("some connections were cut");
        }
        drop((control, unix_file));
        Ok(())
    }
}

/// The families of `/metrics`; None where statistics or all names are off.
fn exposition(parts: &Parts, settings: &Settings) -> anyhow::Result<Option<Arc<Exposition>>> {
    let Metrics { log_stats, vllm_names, aphrodite_names, .. } = settings.metrics;
    let names = [(Prefix::Vllm, vllm_names), (Prefix::Aphrodite, aphrodite_names)];
    let prefixes: Vec<Prefix> = names.into_iter().filter(|(_, on)| *on).map(|(prefix, _)| prefix).collect();
    if !log_stats || prefixes.is_empty() {
        return Ok(None);
    }
    let about = About {
        model: parts.names.first().cloned().unwrap_or_default(),
        prefixes,
        prefix_cache: settings.memory.prefix_cache,
        state: parts.engine.state(),
    };
    Ok(Some(Arc::new(Exposition::new(&about).context("registering the metrics")?)))
}

fn listen_tcp(address: SocketAddr) -> anyhow::Result<TcpListener> {
    let listener = std::net::TcpListener::bind(address).with_context(|| {
        format!("cannot listen on {address} (listen.tcp_address); is an engine running already?")
    })?;
    listener.set_nonblocking(true)?;
    Ok(TcpListener::from_std(listener)?)
}

/// Finishes what runs; what takes too long is aborted, so that its caller learns of it.
async fn drain(engine: &EngineHandle, timeout: Duration) {
    let blocking = |work: fn(&EngineHandle)| {
        let engine = engine.clone();
        tokio::task::spawn_blocking(move || work(&engine))
    };
    // Both fail only with the engine's thread, after which there is nothing to finish.
    let _ = blocking(EngineHandle::drain).await;
    if tokio::time::timeout(timeout, engine.idle()).await.is_err() {
        tracing::warn!(running = engine.state().running, "what runs took too long and is aborted");
        let _ = blocking(EngineHandle::abort_all).await;
        let _ = tokio::time::timeout(FLUSH_TIMEOUT, engine.idle()).await;
    }
}

/// Waits for the second signal. The end of the standard input is none: a supervisor closes it as it signals.
async fn insisted(first: Stop, stops: &mut mpsc::Receiver<Stop>) {
    let mut signals = usize::from(first == Stop::Signal);
    while signals < 2 {
        match stops.recv().await {
            Some(Stop::Signal) => signals += 1,
            Some(Stop::StandardInputEnded) => {}
            None => std::future::pending().await,
        }
    }
}
