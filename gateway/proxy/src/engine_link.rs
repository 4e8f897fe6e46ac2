//! Client of the control channel: connects and reconnects, publishes the engine's state, keeps the stamps of
//! requests until their streams ask for them.
//!
//! Apart because it has a thread of its own and must never be waited for. The engine sends a request's stamps
//! before the request's terminal bytes, so that when those are read here the stamps are already in this
//! socket's receive queue: [`EngineLink::take`] drains the queue without waiting and finds them. The receive
//! and the insertion happen under one lock, or a stamp could be in a reader's hand when it is asked for.
//! Losing the channel never fails a request. Must not know: HTTP, sessions.

use std::collections::{HashMap, VecDeque};
use std::io::Write;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use pitot_control::{Decoder, FromEngine, FromGateway, RequestStamps, State, VERSIONS, encode};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{RecvFlags, SendFlags, recv, send};

use crate::clock::monotonic_ns;

/// Stamps kept for requests that have not asked yet; beyond it the oldest are dropped and counted.
const STAMPS_MAX: usize = 8192;
/// State older than this reads as unknown: the engine speaks every second.
const STATE_AGE_MAX: Duration = Duration::from_secs(3);
const RECONNECT_MIN: Duration = Duration::from_millis(50);
const RECONNECT_MAX: Duration = Duration::from_secs(2);
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(2);
/// How long the reader sleeps at most before it looks whether it shall stop.
const POLL_TIMEOUT: Timespec = Timespec { tv_sec: 0, tv_nsec: 200_000_000 };

/// What the engine last said of itself.
#[derive(Debug, Clone, PartialEq)]
pub struct EngineState {
    pub state: State,
    pub models: Vec<String>,
    pub engine_version: String,
    pub process_id: u32,
}

/// What went by unnoticed otherwise.
#[derive(Debug, Default)]
pub struct Counters {
    pub connections: AtomicU64,
    pub stamps_received: AtomicU64,
    pub stamps_evicted: AtomicU64,
    pub protocol_errors: AtomicU64,
}

/// The link. Cheap to share; one thread serves it until it is dropped.
#[derive(Debug)]
pub struct EngineLink {
    inner: Mutex<Inner>,
    stop: AtomicBool,
    pub counters: Counters,
}

#[derive(Debug, Default)]
struct Inner {
    connection: Option<Connection>,
    stamps: HashMap<String, RequestStamps>,
    order: VecDeque<String>,
}

#[derive(Debug)]
struct Connection {
    stream: UnixStream,
    decoder: Decoder,
    peer: Peer,
    state: Option<(State, u64)>,
}

#[derive(Debug, Clone)]
struct Peer {
    engine_version: String,
    process_id: u32,
    models: Vec<String>,
    /// Whether its stamps are of the kernel that this process runs on.
    stamps_comparable: bool,
}

impl EngineLink {
    /// Starts the link's thread. With no socket there is no link, and nothing is ever known.
    pub fn start(socket: Option<PathBuf>) -> std::io::Result<Arc<Self>> {
        let link = Arc::new(EngineLink {
            inner: Mutex::default(),
            stop: AtomicBool::new(false),
            counters: Counters::default(),
        });
        if let Some(socket) = socket {
            let serving = Arc::downgrade(&link);
            std::thread::Builder::new().name("engine-link".into()).spawn(move || {
                let mut wait = RECONNECT_MIN;
                while let Some(link) = serving.upgrade().filter(|link| !link.stop.load(Ordering::Relaxed)) {
                    match link.connect(&socket) {
                        Ok(()) => {
                            wait = RECONNECT_MIN;
                            link.read_until_lost();
                        }
                        Err(reason) => tracing::debug!(%reason, "no control channel to the engine"),
                    }
                    drop(link);
                    std::thread::sleep(wait);
                    wait = (wait * 2).min(RECONNECT_MAX);
                }
            })?;
        }
        Ok(link)
    }

    /// Gives the stamps of a request if the engine has sent them. Never waits.
    pub fn take(&self, request_id: &str) -> Option<RequestStamps> {
        let mut inner = self.lock();
        self.drain(&mut inner);
        inner.stamps.remove(request_id)
    }

    /// What the engine last said, if that is recent.
    pub fn state(&self) -> Option<EngineState> {
        let inner = self.lock();
        let connection = inner.connection.as_ref()?;
        let (state, received_ns) = connection.state.as_ref()?;
        let age = Duration::from_nanos(monotonic_ns().saturating_sub(*received_ns));
        (age <= STATE_AGE_MAX).then(|| EngineState {
            state: state.clone(),
            models: connection.peer.models.clone(),
            engine_version: connection.peer.engine_version.clone(),
            process_id: connection.peer.process_id,
        })
    }

    /// Tells the engine to end a request's work. Without a link the closed connection has to say it.
    pub fn abort(&self, request_id: &str) {
        self.say(&FromGateway::Abort { request_id: request_id.to_owned() });
    }

    fn say(&self, message: &FromGateway) {
        let Ok(frame) = encode(message) else { return };
        let mut inner = self.lock();
        let Some(connection) = &inner.connection else { return };
        // A frame that does not fit whole would leave the stream in pieces: give the connection up instead.
        match send(&connection.stream, &frame, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
            Ok(sent) if sent == frame.len() => {}
            Ok(_) | Err(_) => inner.connection = None,
        }
    }

    fn connect(&self, socket: &Path) -> Result<(), String> {
        let stream = UnixStream::connect(socket).map_err(|error| format!("{}: {error}", socket.display()))?;
        check_peer(&stream)?;
        let connection = handshake(stream)?;
        let peer = &connection.peer;
        tracing::info!(engine = %peer.engine_version, process = peer.process_id, "control channel to the engine is up");
        if !peer.stamps_comparable {
            tracing::warn!(
                "the engine runs on another kernel boot: its stamps cannot be compared and are not used"
            );
        }
        self.counters.connections.fetch_add(1, Ordering::Relaxed);
        self.lock().connection = Some(connection);
        Ok(())
    }

    fn read_until_lost(&self) {
        let Some(waiting_on) = self.lock().connection.as_ref().and_then(|c| c.stream.try_clone().ok()) else {
            return;
        };
        while !self.stop.load(Ordering::Relaxed) {
            if self.lock().connection.is_none() {
                tracing::info!("control channel to the engine is lost");
                return;
            }
            let mut watched = [PollFd::new(&waiting_on, PollFlags::IN)];
            // An interrupted or timed out wait only means another look.
            let _ = poll(&mut watched, Some(&POLL_TIMEOUT));
            let mut inner = self.lock();
            self.drain(&mut inner);
        }
    }

    /// Receives all that is there, without waiting. An end or an error loses the connection.
    fn drain(&self, inner: &mut Inner) {
        let mut buffer = [0; 16 * 1024];
        while let Some(connection) = &mut inner.connection {
            match recv(&connection.stream, &mut buffer, RecvFlags::DONTWAIT) {
                Ok((received, _)) if received > 0 => {
                    connection.decoder.push(&buffer[..received]);
                    if let Err(error) = self.read_messages(inner) {
                        tracing::warn!(%error, "the engine sent what cannot be understood");
                        self.counters.protocol_errors.fetch_add(1, Ordering::Relaxed);
                        inner.connection = None;
                    }
                }
                Ok(_) => inner.connection = None,
                Err(rustix::io::Errno::AGAIN) => return,
                Err(rustix::io::Errno::INTR) => {}
                Err(_) => inner.connection = None,
            }
        }
    }

    fn read_messages(&self, inner: &mut Inner) -> Result<(), pitot_control::CodecError> {
        loop {
            let Some(connection) = &mut inner.connection else { return Ok(()) };
            match connection.decoder.next_message::<FromEngine>()? {
                None => return Ok(()),
                Some(FromEngine::State(state)) => connection.state = Some((state, monotonic_ns())),
                Some(FromEngine::Stamps(stamps)) if connection.peer.stamps_comparable => {
                    self.counters.stamps_received.fetch_add(1, Ordering::Relaxed);
                    self.keep(inner, stamps);
                }
                Some(FromEngine::Refused { reason }) => {
                    tracing::warn!(%reason, "the engine closed the control channel");
                    inner.connection = None;
                }
                Some(FromEngine::Stamps(_) | FromEngine::Hello { .. } | FromEngine::Pong { .. }) => {}
            }
        }
    }

    fn keep(&self, inner: &mut Inner, stamps: RequestStamps) {
        while inner.order.len() >= STAMPS_MAX {
            let Some(oldest) = inner.order.pop_front() else { break };
            if inner.stamps.remove(&oldest).is_some() {
                self.counters.stamps_evicted.fetch_add(1, Ordering::Relaxed);
            }
        }
        inner.order.push_back(stamps.request_id.clone());
        inner.stamps.insert(stamps.request_id.clone(), stamps);
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        // The data stay whole whatever panicked: each update is one assignment or one insertion.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends the thread at its next look.
    pub fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

/// Refuses a peer of another user: whoever can bind the path could otherwise feed us stamps.
fn check_peer(stream: &UnixStream) -> Result<(), String> {
    #[cfg(target_os = "linux")]
    {
        let peer = rustix::net::sockopt::socket_peercred(stream.as_fd())
            .map_err(|error| format!("who owns the engine's socket cannot be told: {error}"))?;
        let own = rustix::process::geteuid();
        if peer.uid != own && !peer.uid.is_root() {
            return Err(format!(
                "the engine runs as user {}, this gateway as {}",
                peer.uid.as_raw(),
                own.as_raw()
            ));
        }
    }
    let _ = stream.as_fd();
    Ok(())
}

fn handshake(mut stream: UnixStream) -> Result<Connection, String> {
    let text = |error: std::io::Error| format!("the handshake with the engine failed: {error}");
    stream.set_read_timeout(Some(HANDSHAKE_TIMEOUT)).map_err(text)?;
    stream.set_write_timeout(Some(HANDSHAKE_TIMEOUT)).map_err(text)?;
    let hello =
        FromGateway::Hello { versions: VERSIONS, gateway_version: env!("CARGO_PKG_VERSION").to_owned() };
    let mut decoder = Decoder::default();
    let first = read_message(&mut stream, &mut decoder)?;
    stream.write_all(&encode(&hello).map_err(|error| error.to_string())?).map_err(text)?;
    match first {
        FromEngine::Hello { versions, engine_version, process_id, boot_id, models } => {
            if VERSIONS.common(versions).is_none() {
                return Err(format!(
                    "the engine speaks control versions {} to {}, this gateway {} to {}",
                    versions.lowest, versions.highest, VERSIONS.lowest, VERSIONS.highest
                ));
            }
            let stamps_comparable = boot_id == own_boot_id();
            let peer = Peer { engine_version, process_id, models, stamps_comparable };
            Ok(Connection { stream, decoder, peer, state: None })
        }
        FromEngine::Refused { reason } => Err(format!("the engine refused: {reason}")),
        FromEngine::State(_) | FromEngine::Stamps(_) | FromEngine::Pong { .. } => {
            Err("the engine did not begin with a greeting".into())
        }
    }
}

fn read_message(stream: &mut UnixStream, decoder: &mut Decoder) -> Result<FromEngine, String> {
    use std::io::Read;
    let mut buffer = [0; 4096];
    loop {
        if let Some(message) = decoder.next_message().map_err(|error| error.to_string())? {
            return Ok(message);
        }
        match stream.read(&mut buffer) {
            Ok(0) => return Err("the engine closed the control channel".into()),
            Ok(received) => decoder.push(&buffer[..received]),
            Err(error) => return Err(format!("the engine did not greet in time: {error}")),
        }
    }
}

/// Identity of the running kernel; where there is none to be had (macOS), both sides say None and agree.
fn own_boot_id() -> Option<String> {
    let id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    Some(id.trim().to_owned())
}
