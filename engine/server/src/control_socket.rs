//! The control channel's socket: who may connect, the handshake, and what gateways ask for.
//!
//! Apart from HTTP and on threads of its own, so that neither waits for the other. Must not know: tokens, HTTP, how
//! the engine carries out what is asked.

use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::Context;
use pitot_control::{Decoder, FromEngine, FromGateway, VERSIONS, encode};

use crate::engine_thread::EngineHandle;
use crate::hub::{Hub, PEERS_MAX, PeerId};
use crate::sockets::{Access, SocketFile, bind};

/// Longest time a gateway may take to say Hello.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);

/// What the socket needs to know.
#[derive(Debug, Clone)]
pub struct ControlOptions {
    pub socket: PathBuf,
    /// Users besides our own.
    pub allowed_uids: Vec<u32>,
    /// Names under which the model is served.
    pub models: Vec<String>,
}

/// The listening socket. Dropped, it ends all connections and removes its file.
#[derive(Debug)]
pub struct ControlSocket {
    shared: Arc<Shared>,
    listening: Option<JoinHandle<()>>,
    beating: Option<JoinHandle<()>>,
    _file: SocketFile,
}

#[derive(Debug)]
struct Shared {
    options: ControlOptions,
    hub: Arc<Hub>,
    engine: EngineHandle,
    /// Where peers' credentials are read.
    runtime: tokio::runtime::Handle,
    stopping: AtomicBool,
    connections: AtomicUsize,
}

impl ControlSocket {
    /// Listens, on threads of its own. Must be called within a tokio runtime.
    ///
    /// # Errors
    /// When the socket cannot be had or a thread not be started.
    pub fn start(
        options: ControlOptions,
        hub: Arc<Hub>,
        engine: EngineHandle,
    ) -> anyhow::Result<ControlSocket> {
        let (listener, file) = bind(&options.socket, access(&options.allowed_uids))?;
        let shared = Arc::new(Shared {
            options,
            hub,
            engine,
            runtime: tokio::runtime::Handle::try_current().context("the control channel needs a runtime")?,
            stopping: AtomicBool::new(false),
            connections: AtomicUsize::new(0),
        });
        let beat = Arc::clone(&shared.hub);
        let beating = spawn("control-beat", move || beat.beat())?;
        let listen = Arc::clone(&shared);
        let listening = spawn("control-listen", move || accept_all(&listener, &listen))?;
        Ok(ControlSocket { shared, listening: Some(listening), beating: Some(beating), _file: file })
    }

    /// Where it listens.
    pub fn path(&self) -> &Path {
        &self.shared.options.socket
    }
}

impl Drop for ControlSocket {
    fn drop(&mut self) {
        self.shared.stopping.store(true, Ordering::SeqCst);
        // Accepting ends at the next connection, which is this one; without it the thread must be left alone.
        if UnixStream::connect(&self.shared.options.socket).is_ok() {
            let _ = self.listening.take().map(JoinHandle::join);
        }
        self.shared.hub.close();
        let _ = self.beating.take().map(JoinHandle::join);
    }
}

/// The mode that lets the allowed users in.
pub fn access(allowed_uids: &[u32]) -> Access {
    match allowed_uids.is_empty() {
        true => Access::Owner,
        false => Access::Group,
    }
}

fn spawn(name: &str, run: impl FnOnce() + Send + 'static) -> anyhow::Result<JoinHandle<()>> {
    std::thread::Builder::new().name(name.to_owned()).spawn(run).context("starting a thread")
}

fn accept_all(listener: &UnixListener, shared: &Arc<Shared>) {
    for stream in listener.incoming() {
        if shared.stopping.load(Ordering::SeqCst) {
            return;
        }
        let stream = match stream {
            Ok(stream) => stream,
            Err(error) => {
                tracing::warn!(%error, "a control connection was not accepted");
                // Out of descriptors, most likely; trying again at once would burn a processor.
                std::thread::sleep(Duration::from_millis(100));
                continue;
            }
        };
        // Those in their handshake count too.
        if shared.connections.fetch_add(1, Ordering::SeqCst) >= 2 * PEERS_MAX {
            shared.connections.fetch_sub(1, Ordering::SeqCst);
            continue;
        }
        let peer = Arc::clone(shared);
        let started = spawn("control-peer", move || {
            if let Err(error) = serve(stream, &peer) {
                tracing::debug!("a control connection ended: {error:#}");
            }
            peer.connections.fetch_sub(1, Ordering::SeqCst);
        });
        if let Err(error) = started {
            shared.connections.fetch_sub(1, Ordering::SeqCst);
            tracing::warn!("a control connection was not served: {error:#}");
        }
    }
}

fn serve(mut stream: UnixStream, shared: &Shared) -> anyhow::Result<()> {
    check_user(&stream, shared)?;
    stream.set_read_timeout(Some(HANDSHAKE_TIMEOUT))?;
    stream.set_write_timeout(Some(HANDSHAKE_TIMEOUT))?;
    let mut decoder = Decoder::default();
    say(&mut stream, &hello(&shared.options.models))?;
    let Some(first) = receive(&mut stream, &mut decoder)? else { return Ok(()) };
    let FromGateway::Hello { versions, gateway_version } = first else {
        return refuse(&mut stream, "the first message must be hello");
    };
    if VERSIONS.common(versions).is_none() {
        let reason = format!(
            "the gateway {gateway_version} speaks versions {} to {} of the control protocol, this engine {} to {}",
            versions.lowest, versions.highest, VERSIONS.lowest, VERSIONS.highest
        );
        return refuse(&mut stream, &reason);
    }
    stream.set_read_timeout(None)?;
    let Some(id) = shared.hub.join(stream.try_clone()?) else {
        return refuse(&mut stream, "too many gateways are connected");
    };
    let listened = listen(&mut stream, &mut decoder, id, shared);
    shared.hub.leave(id);
    listened
}

fn listen(stream: &mut UnixStream, decoder: &mut Decoder, id: PeerId, shared: &Shared) -> anyhow::Result<()> {
    while let Some(message) = receive(stream, decoder)? {
        match message {
            // A second Hello says nothing new.
            FromGateway::Hello { .. } => {}
            FromGateway::Abort { request_id } => shared.engine.abort(request_id),
            FromGateway::Drain => shared.engine.drain(),
            FromGateway::Ping { nonce } => shared.hub.answer(id, &FromEngine::Pong { nonce }),
        }
    }
    Ok(())
}

/// The next message, or None at the end of the stream.
fn receive(stream: &mut UnixStream, decoder: &mut Decoder) -> anyhow::Result<Option<FromGateway>> {
    let mut buffer = [0; 4096];
    loop {
        if let Some(message) = decoder.next_message()? {
            return Ok(Some(message));
        }
        match stream.read(&mut buffer)? {
            0 => return Ok(None),
            bytes => decoder.push(&buffer[..bytes]),
        }
    }
}

fn say(stream: &mut UnixStream, message: &FromEngine) -> anyhow::Result<()> {
    Ok(stream.write_all(&encode(message)?)?)
}

fn refuse(stream: &mut UnixStream, reason: &str) -> anyhow::Result<()> {
    tracing::warn!(reason, "a control connection was refused");
    say(stream, &FromEngine::Refused { reason: reason.to_owned() })
}

fn hello(models: &[String]) -> FromEngine {
    FromEngine::Hello {
        versions: VERSIONS,
        engine_version: env!("CARGO_PKG_VERSION").to_owned(),
        process_id: std::process::id(),
        boot_id: boot_id(),
        models: models.to_vec(),
    }
}

/// Only Linux tells it.
fn boot_id() -> Option<String> {
    let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    Some(text.trim().to_owned())
}

/// Tokio knows each system's way to tell who is at the other end; it wants a socket that does not block.
fn check_user(stream: &UnixStream, shared: &Shared) -> anyhow::Result<()> {
    let _inside = shared.runtime.enter();
    stream.set_nonblocking(true)?;
    let user = tokio::net::UnixStream::from_std(stream.try_clone()?)?.peer_cred()?.uid();
    stream.set_nonblocking(false)?;
    let own = rustix::process::geteuid().as_raw();
    if user != own && !shared.options.allowed_uids.contains(&user) {
        tracing::warn!(user, "a control connection of a user who is not allowed was closed");
        anyhow::bail!("user {user} is not in control.allowed_uids");
    }
    Ok(())
}
