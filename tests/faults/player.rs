//! The upstream: a server of threads on raw sockets that plays the script of the model named in the request.
//!
//! Apart from the scripts, which are data. It notes what reaches it and how its connections end, and keeps every
//! byte that should not be there. Must not know: what a case expects.

use std::collections::HashMap;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use serde_json::value::RawValue;

use super::script::{Act, Play, Segment, Whose};
use super::wire::{self, Delimited};

/// Connections served at once; further ones are closed.
const CONNECTIONS_MAX: usize = 1024;
/// Longest that a script waits for the peer to close.
const CLOSE_WAIT_MAX: Duration = Duration::from_secs(8);
/// Longest that a connection may lie idle.
const IDLE_MAX: Duration = Duration::from_secs(120);
const HEAD_BYTES_MAX: usize = 64 * 1024;
/// In the target of requests that are answered before their body has been read.
pub const EARLY: &str = "early=1";
const BODY_BYTES_MAX: u64 = 256 * 1024 * 1024;

/// How a peer ended a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Closed {
    Fin,
    Reset,
}

/// One request that arrived.
#[derive(Debug, Clone)]
pub struct Arrival {
    pub head: String,
    pub body: Bytes,
    pub at: Instant,
    /// Whether the request asks for usage in the stream.
    pub asked: bool,
    /// When the peer closed the connection while the script was at work or waiting.
    pub closed: Option<(Instant, Closed)>,
    /// How much longer the script's pauses took than they say.
    pub late: Duration,
}

/// The scripts of one exchange and what came of them.
#[derive(Debug, Default)]
pub struct Run {
    plays: Vec<Play>,
    arrivals: Mutex<Vec<Arrival>>,
}

impl Run {
    pub fn arrivals(&self) -> Vec<Arrival> {
        lock(&self.arrivals).clone()
    }

    fn note(&self, index: usize, change: impl FnOnce(&mut Arrival)) {
        if let Some(arrival) = lock(&self.arrivals).get_mut(index) {
            change(arrival);
        }
    }
}

#[derive(Debug, Default)]
struct Shared {
    runs: Mutex<HashMap<String, Arc<Run>>>,
    strays: Mutex<Vec<String>>,
    connections: AtomicUsize,
}

/// A running upstream. Its threads end with their connections.
pub struct Player {
    pub address: SocketAddr,
    shared: Arc<Shared>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Player {
    /// Listens and serves from now on.
    pub fn listen(address: impl ToSocketAddrs) -> std::io::Result<Player> {
        let listener = TcpListener::bind(address)?;
        let address = listener.local_addr()?;
        let shared = Arc::new(Shared::default());
        let serving = Arc::clone(&shared);
        std::thread::Builder::new().name("upstream".into()).spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                accept(stream, &serving);
            }
        })?;
        Ok(Player { address, shared })
    }

    /// Plays these scripts for requests that name this model, in place of those before.
    pub fn expect(&self, model: &str, plays: Vec<Play>) -> Arc<Run> {
        let run = Arc::new(Run { plays, arrivals: Mutex::default() });
        lock(&self.shared.runs).insert(model.to_owned(), Arc::clone(&run));
        run
    }

    pub fn forget(&self, model: &str) {
        lock(&self.shared.runs).remove(model);
    }

    /// What arrived and was no proper request: stray bytes, bad framing, unknown models.
    pub fn strays(&self) -> Vec<String> {
        lock(&self.shared.strays).clone()
    }
}

fn accept(stream: TcpStream, shared: &Arc<Shared>) {
    if shared.connections.fetch_add(1, Ordering::Relaxed) >= CONNECTIONS_MAX {
        shared.connections.fetch_sub(1, Ordering::Relaxed);
        return;
    }
    let serving = Arc::clone(shared);
    let spawned = std::thread::Builder::new().stack_size(256 * 1024).spawn(move || {
        if let Err(stray) = Connection::new(stream).serve(&serving) {
            lock(&serving.strays).push(stray);
        }
        serving.connections.fetch_sub(1, Ordering::Relaxed);
    });
    if spawned.is_err() {
        shared.connections.fetch_sub(1, Ordering::Relaxed);
    }
}

/// What a look at the connection brought.
enum Look {
    Bytes,
    Nothing,
    Closed(Closed),
}

/// What follows a script.
enum Next {
    Keep,
    /// Closes when another request comes.
    Refuse,
    End,
}

struct Connection {
    stream: TcpStream,
    buffered: Vec<u8>,
}

impl Connection {
    fn new(stream: TcpStream) -> Connection {
        // A small write must not wait for the next one.
        let _ = stream.set_nodelay(true);
        Connection { stream, buffered: Vec::new() }
    }

    /// Serves requests until the connection ends. The error tells of bytes that should not have come.
    fn serve(mut self, shared: &Shared) -> Result<(), String> {
        loop {
            let Some((head, body)) = self.request()? else { return Ok(()) };
            let at = Instant::now();
            let Some((run, model)) = find(shared, &head, &body) else {
                let line = head.lines().next().unwrap_or_default();
                lock(&shared.strays).push(format!("a request that no case expects: {line}"));
                let _ = self.stream.write_all(NO_CASE.as_bytes());
                continue;
            };
            let asked = asks_usage(&body);
            let index = {
                let mut arrivals = lock(&run.arrivals);
                arrivals.push(Arrival { head, body, at, asked, closed: None, late: Duration::ZERO });
                arrivals.len() - 1
            };
            let Some(play) = run.plays.get(index).or(run.plays.last()) else {
                return Err(format!("{model} has nothing to play"));
            };
            let next = self.play(play, asked, &run, index);
            match next {
                Next::Keep => {}
                Next::Refuse => {
                    let _ = self.look(IDLE_MAX);
                    return Ok(());
                }
                Next::End => return Ok(()),
            }
        }
    }

    fn play(&mut self, play: &Play, asked: bool, run: &Run, index: usize) -> Next {
        let gone = |closed: Closed| {
            run.note(index, |arrival| arrival.closed = Some((Instant::now(), closed)));
            Next::End
        };
        for act in &play.acts {
            match act {
                Act::Send(segments) => {
                    if self.send(segments, asked).is_err() {
                        return gone(Closed::Reset);
                    }
                }
                Act::Pause(pause) => {
                    let began = Instant::now();
                    if let Some(closed) = self.watch(*pause) {
                        return gone(closed);
                    }
                    let late = began.elapsed().saturating_sub(*pause);
                    run.note(index, |arrival| arrival.late += late);
                }
                Act::AwaitClose => {
                    return match self.watch(CLOSE_WAIT_MAX) {
                        Some(closed) => gone(closed),
                        None => Next::End,
                    };
                }
                Act::Close => return Next::End,
                Act::Reset => {
                    // No lingering: the close sends a reset and drops what was not sent.
                    let _ = rustix::net::sockopt::set_socket_linger(&self.stream, Some(Duration::ZERO));
                    return Next::End;
                }
                Act::CloseAtNext => return Next::Refuse,
            }
        }
        Next::Keep
    }

    fn send(&mut self, segments: &[Segment], asked: bool) -> std::io::Result<()> {
        let sent = segments.iter().filter(|segment| asked || segment.whose == Whose::Callers);
        match sent.clone().count() {
            0 => Ok(()),
            1 => sent.take(1).try_for_each(|segment| self.stream.write_all(&segment.wire)),
            _ => {
                let together: Vec<u8> = sent.flat_map(|segment| segment.wire.iter().copied()).collect();
                self.stream.write_all(&together)
            }
        }
    }

    /// Waits; tells if the peer closed meanwhile.
    fn watch(&mut self, time: Duration) -> Option<Closed> {
        let until = Instant::now() + time;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return None;
            }
            if let Look::Closed(closed) = self.look(left) {
                return Some(closed);
            }
        }
    }

    fn look(&mut self, time: Duration) -> Look {
        let _ = self.stream.set_read_timeout(Some(time.max(Duration::from_millis(1))));
        let mut bytes = [0; 64 * 1024];
        match self.stream.read(&mut bytes) {
            Ok(0) => Look::Closed(Closed::Fin),
            Ok(count) => {
                self.buffered.extend_from_slice(&bytes[..count]);
                Look::Bytes
            }
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                Look::Nothing
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => Look::Nothing,
            Err(_) => Look::Closed(Closed::Reset),
        }
    }

    /// The next request; None once the peer has closed between requests.
    fn request(&mut self) -> Result<Option<(String, Bytes)>, String> {
        let (head, rest) = loop {
            if let Some(split) = wire::split_head(&self.buffered) {
                break split;
            }
            if self.buffered.len() > HEAD_BYTES_MAX {
                return Err("a head over 64 KiB".to_owned());
            }
            match self.look(IDLE_MAX) {
                Look::Bytes => {}
                Look::Nothing | Look::Closed(_) if self.buffered.is_empty() => return Ok(None),
                Look::Nothing | Look::Closed(_) => {
                    return Err(format!("stray bytes: {:?}", String::from_utf8_lossy(&self.buffered)));
                }
            }
        };
        let line = head.lines().next().unwrap_or_default().to_owned();
        if !line.ends_with(" HTTP/1.1") || !line.starts_with(|c: char| c.is_ascii_uppercase()) {
            return Err(format!("not a request line: {line:?}"));
        }
        let headers = wire::headers(&head);
        let delimited = wire::delimited(&headers).unwrap_or(Delimited::Nothing);
        if matches!(delimited, Delimited::Length(length) if length > BODY_BYTES_MAX) {
            return Err("a body over the limit of this upstream".to_owned());
        }
        // An upstream that answers a head and leaves the body alone.
        if line.contains(EARLY) {
            self.buffered.clear();
            return Ok(Some((head, Bytes::new())));
        }
        let mut body = wire::Body::new(delimited);
        self.buffered = body.push(&rest);
        while !body.is_done() {
            if let Some(why) = body.malformed() {
                return Err(format!("a badly framed request body: {why}"));
            }
            match self.look(IDLE_MAX) {
                Look::Bytes => {
                    let bytes = std::mem::take(&mut self.buffered);
                    self.buffered = body.push(&bytes);
                }
                // A body that breaks off is no request; its sender has gone.
                Look::Nothing | Look::Closed(_) => return Ok(None),
            }
        }
        Ok(Some((head, Bytes::from(body.bytes))))
    }
}

const NO_CASE: &str =
    "HTTP/1.1 404 Not Found\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}";

/// The run for a request: by the model in its body, else by `case=` in its target.
fn find(shared: &Shared, head: &str, body: &[u8]) -> Option<(Arc<Run>, String)> {
    let model = model_of(body).or_else(|| {
        let target = head.split(' ').nth(1)?;
        Some(target.split_once("case=")?.1.to_owned())
    })?;
    let run = lock(&shared.runs).get(&model).cloned()?;
    Some((run, model))
}

/// The model's name. Requests of the corpus have it near their beginning, with no white space.
fn model_of(body: &[u8]) -> Option<String> {
    let start = &body[..body.len().min(4096)];
    let key = br#""model":""#;
    let at = start.windows(key.len()).position(|window| window == key)? + key.len();
    let end = start[at..].iter().position(|byte| *byte == b'"')?;
    Some(String::from_utf8_lossy(&start[at..at + end]).into_owned())
}

/// Whether the body asks for usage in the stream. What else stands in it, however deep, is passed over.
pub fn asks_usage(body: &[u8]) -> bool {
    let members = serde_json::from_slice::<HashMap<String, &RawValue>>(body).unwrap_or_default();
    let options = members.get("stream_options").map(|options| options.get()).unwrap_or_default();
    let options = serde_json::from_str::<serde_json::Value>(options).unwrap_or_default();
    options["include_usage"] == true
}
