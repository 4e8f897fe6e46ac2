//! The caller: sends a case's request on a raw socket, reads as the case says, and notes every byte and its time.
//!
//! Apart from judging, which reads what is noted here. HTTP/2 callers are in `caller_h2`; both give the same
//! [`Reply`]. Must not know: what a case expects.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use bytes::Bytes;

use super::caller_h2::H2Caller;
use super::case::{Leaves, Leaving, Pace, Protocol, Request, Sending, Version};
use super::wire::{self, Delimited};

/// Longest that a caller waits for a whole reply.
pub const REPLY_MAX: Duration = Duration::from_secs(20);
/// Receive buffer of a caller that stalls, so that what it does not read piles up at the gateway.
const STALLING_BUFFER_BYTES: usize = 32 * 1024;

/// How a reply ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ended {
    Complete,
    /// Before its framing said so.
    Broken(String),
    /// The caller left.
    Left,
}

/// What a caller saw.
#[derive(Debug, Clone)]
pub struct Reply {
    /// None if no head came.
    pub status: Option<u16>,
    pub headers: Vec<(String, String)>,
    pub delimited: Option<Delimited>,
    pub body: Vec<u8>,
    pub ended: Ended,
    /// Bytes behind the end of the reply.
    pub stray: Vec<u8>,
    pub sent_at: Instant,
    pub head_at: Option<Instant>,
    /// For each read, its time and the length of the body by then.
    pub reads: Vec<(Instant, usize)>,
    pub left_at: Option<Instant>,
    /// What came before the request had been sent whole.
    pub early: Vec<u8>,
}

impl Reply {
    pub(super) fn nothing() -> Reply {
        Reply {
            status: None,
            headers: Vec::new(),
            delimited: None,
            body: Vec::new(),
            ended: Ended::Broken("no reply".to_owned()),
            stray: Vec::new(),
            sent_at: Instant::now(),
            head_at: None,
            reads: Vec::new(),
            left_at: None,
            early: Vec::new(),
        }
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        wire::header(&self.headers, name)
    }

    /// When this text had come, counted from the sending of the request. The head for an empty text.
    pub fn arrival(&self, text: &str) -> Option<Duration> {
        if text.is_empty() {
            return Some(self.head_at?.duration_since(self.sent_at));
        }
        let end = find(&self.body, text.as_bytes())? + text.len();
        let read = self.reads.iter().find(|(_, length)| *length >= end)?;
        Some(read.0.duration_since(self.sent_at))
    }
}

pub fn find(bytes: &[u8], text: &[u8]) -> Option<usize> {
    bytes.windows(text.len().max(1)).position(|window| window == text)
}

/// One exchange as the caller has it to do.
pub struct Errand<'e> {
    pub request: &'e Request,
    pub body: Bytes,
    pub id: &'e str,
    pub model: &'e str,
    pub pace: &'e Pace,
    pub leaves: &'e Leaves,
}

impl Errand<'_> {
    pub(super) fn path(&self) -> String {
        self.request.path.replace("@MODEL@", self.model)
    }
}

/// A caller with a connection that it uses again as long as the gateway keeps it.
pub enum Caller {
    Http11 { gateway: SocketAddr, kept: Option<TcpStream> },
    H2c(H2Caller),
}

impl Caller {
    pub fn new(gateway: SocketAddr, protocol: Protocol) -> std::io::Result<Caller> {
        Ok(match protocol {
            Protocol::Http11 => Caller::Http11 { gateway, kept: None },
            Protocol::H2c => Caller::H2c(H2Caller::new(gateway)?),
        })
    }

    /// Runs one exchange. An error is a fault of the test's own side, such as no connection to the gateway.
    pub fn call(&mut self, errand: &Errand<'_>) -> std::io::Result<Reply> {
        match self {
            Caller::Http11 { gateway, kept } => {
                let (reply, stream) = http11(*gateway, kept.take(), errand)?;
                *kept = stream;
                Ok(reply)
            }
            Caller::H2c(caller) => caller.call(errand),
        }
    }
}

/// Runs an exchange on the kept connection, or on a new one if there is none or the gateway closed it unused.
fn http11(
    gateway: SocketAddr,
    kept: Option<TcpStream>,
    errand: &Errand<'_>,
) -> std::io::Result<(Reply, Option<TcpStream>)> {
    if let Some(stream) = kept
        && let Some((reply, stream)) = on_connection(stream, errand)?
    {
        return Ok((reply, stream));
    }
    let stream = connect(gateway, errand.pace)?;
    match on_connection(stream, errand)? {
        Some(done) => Ok(done),
        None => Ok((Reply::nothing(), None)),
    }
}

fn connect(gateway: SocketAddr, pace: &Pace) -> std::io::Result<TcpStream> {
    use rustix::net::{AddressFamily, SocketType, connect, socket, sockopt};
    let family = if gateway.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let socket = socket(family, SocketType::STREAM, None)?;
    if let Pace::Stalls { .. } = pace {
        sockopt::set_socket_recv_buffer_size(&socket, STALLING_BUFFER_BYTES)?;
    }
    connect(&socket, &gateway)?;
    let stream = TcpStream::from(socket);
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// None if the connection ended without a byte although the caller had not left: it may have been a stale one.
fn on_connection(
    mut stream: TcpStream,
    errand: &Errand<'_>,
) -> std::io::Result<Option<(Reply, Option<TcpStream>)>> {
    let mut reply = Reply::nothing();
    let sent = send(&mut stream, errand, &mut reply);
    reply.sent_at = Instant::now();
    if reply.left_at.is_some() {
        reply.ended = Ended::Left;
        return Ok(Some((reply, None)));
    }
    let mut reading = Reading::new(&mut reply, errand);
    let closed = reading.run(&mut stream)?;
    if reply.status.is_none() && closed && reply.left_at.is_none() && sent.is_err() {
        return Ok(None);
    }
    let keeps = reply.ended == Ended::Complete
        && reply.delimited != Some(Delimited::UntilClose)
        && !reply.header("connection").is_some_and(|value| value.eq_ignore_ascii_case("close"));
    Ok(Some((reply, keeps.then_some(stream))))
}

fn head(errand: &Errand<'_>) -> String {
    let Request { method, lines, sending, version, .. } = errand.request;
    let version = match version {
        Version::Http11 => "HTTP/1.1",
        Version::Http10 => "HTTP/1.0",
    };
    let length = match sending {
        Sending::InChunks(_) => "transfer-encoding: chunked\r\n".to_owned(),
        Sending::Expecting => format!("expect: 100-continue\r\ncontent-length: {}\r\n", errand.body.len()),
        Sending::AtOnce | Sending::ByteByByte | Sending::InHalves(_) if errand.body.is_empty() => {
            String::new()
        }
        Sending::AtOnce | Sending::ByteByByte | Sending::InHalves(_) => {
            format!("content-length: {}\r\n", errand.body.len())
        }
    };
    let kind = if errand.body.is_empty() { "" } else { "content-type: application/json\r\n" };
    let id = errand.id;
    let path = errand.path();
    format!("{method} {path} {version}\r\nhost: gateway\r\nx-request-id: {id}\r\n{kind}{lines}{length}\r\n")
}

fn send(stream: &mut TcpStream, errand: &Errand<'_>, reply: &mut Reply) -> std::io::Result<()> {
    let head = head(errand);
    let body = &errand.body;
    if let Leaves::WithinRequest(leaving) = errand.leaves {
        stream.write_all(head.as_bytes())?;
        stream.write_all(&body[..body.len() / 2])?;
        std::thread::sleep(Duration::from_millis(20));
        leave(stream, *leaving);
        reply.left_at = Some(Instant::now());
        return Ok(());
    }
    match errand.request.sending {
        Sending::AtOnce => {
            stream.write_all(&[head.as_bytes(), body].concat())?;
        }
        Sending::InChunks(size) => {
            stream.write_all(head.as_bytes())?;
            for chunk in body.chunks(size.max(1)) {
                stream.write_all(&[format!("{:x}\r\n", chunk.len()).as_bytes(), chunk, b"\r\n"].concat())?;
            }
            stream.write_all(b"0\r\n\r\n")?;
        }
        Sending::ByteByByte => {
            for (index, byte) in [head.as_bytes(), body].concat().into_iter().enumerate() {
                stream.write_all(&[byte])?;
                if index % 16 == 0 {
                    std::thread::sleep(Duration::from_millis(1));
                }
            }
        }
        Sending::InHalves(pause) => {
            let (first, rest) = body.split_at(body.len() / 2);
            stream.write_all(&[head.as_bytes(), first].concat())?;
            std::thread::sleep(pause);
            stream.write_all(rest)?;
        }
        Sending::Expecting => {
            stream.write_all(head.as_bytes())?;
            stream.set_read_timeout(Some(Duration::from_secs(5)))?;
            let mut bytes = [0; 4096];
            let read = stream.read(&mut bytes)?;
            // A refusal may come in place of the 100, and the body is kept then.
            match bytes[..read].starts_with(b"HTTP/1.1 100") {
                true => stream.write_all(body)?,
                false => reply.early = bytes[..read].to_vec(),
            }
        }
    }
    Ok(())
}

fn leave(stream: &TcpStream, leaving: Leaving) {
    match leaving {
        Leaving::Close => {
            let _ = stream.shutdown(Shutdown::Both);
        }
        Leaving::Reset => {
            let _ = rustix::net::sockopt::set_socket_linger(stream, Some(Duration::ZERO));
        }
        Leaving::HalfClose => {
            let _ = stream.shutdown(Shutdown::Write);
        }
    }
}

/// The reading of one reply.
struct Reading<'r> {
    reply: &'r mut Reply,
    pace: &'r Pace,
    leaves: &'r Leaves,
    pending: Vec<u8>,
    body: Option<wire::Body>,
    stalled: bool,
    half_closed: bool,
}

impl<'r> Reading<'r> {
    fn new(reply: &'r mut Reply, errand: &'r Errand<'_>) -> Self {
        Reading {
            reply,
            pace: errand.pace,
            leaves: errand.leaves,
            pending: Vec::new(),
            body: None,
            stalled: false,
            half_closed: false,
        }
    }

    /// Reads to the end of the reply or to the caller's leaving. True if the gateway closed the connection.
    fn run(&mut self, stream: &mut TcpStream) -> std::io::Result<bool> {
        let until = self.reply.sent_at + REPLY_MAX;
        let mut buffer = vec![0; 64 * 1024];
        let early = std::mem::take(&mut self.reply.early);
        if !early.is_empty() && self.take(&early) {
            return Ok(false);
        }
        loop {
            self.stall();
            if let Some(leaving) = self.leaving_now() {
                self.reply.left_at = Some(Instant::now());
                self.reply.ended = Ended::Left;
                leave(stream, leaving);
                if leaving != Leaving::HalfClose {
                    self.keep_body();
                    return Ok(false);
                }
                self.half_closed = true;
            }
            let wake = match self.leaves {
                Leaves::After(time, _) if !self.half_closed => (self.reply.sent_at + *time).min(until),
                Leaves::After(..) | Leaves::Never | Leaves::Seeing(..) | Leaves::WithinRequest(_) => until,
            };
            let left = wake.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
            stream.set_read_timeout(Some(left))?;
            let read = match stream.read(&mut buffer) {
                Ok(read) => read,
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                    if Instant::now() >= until {
                        self.broken("it did not end in time");
                        self.keep_body();
                        return Ok(false);
                    }
                    continue;
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) => {
                    self.broken(&format!("the connection broke: {error}"));
                    self.keep_body();
                    return Ok(true);
                }
            };
            if read == 0 {
                self.closed();
                return Ok(true);
            }
            if self.take(&buffer[..read]) && self.leaving_now().is_none() {
                return Ok(false);
            }
        }
    }

    fn broken(&mut self, why: &str) {
        if !self.half_closed {
            self.reply.ended = Ended::Broken(why.to_owned());
        }
    }

    fn closed(&mut self) {
        let complete = self.body.as_mut().is_some_and(wire::Body::closed);
        match complete {
            true if !self.half_closed => self.reply.ended = Ended::Complete,
            true => {}
            false => self.broken("the connection closed before the end"),
        }
        self.keep_body();
    }

    fn keep_body(&mut self) {
        if let Some(body) = &self.body {
            self.reply.body.clone_from(&body.bytes);
        }
    }

    /// Stops reading for a while, once, when the time for it has come.
    fn stall(&mut self) {
        let Pace::Stalls { text, time } = self.pace else { return };
        if !self.stalled && (text.is_empty() || self.has_seen(text)) {
            self.stalled = true;
            std::thread::sleep(*time);
        }
    }

    fn has_seen(&self, text: &str) -> bool {
        self.body.as_ref().is_some_and(|body| find(&body.bytes, text.as_bytes()).is_some())
    }

    fn leaving_now(&self) -> Option<Leaving> {
        if self.half_closed {
            return None;
        }
        match self.leaves {
            Leaves::Seeing(text, leaving) => self.has_seen(text).then_some(*leaving),
            Leaves::After(time, leaving) => (self.reply.sent_at.elapsed() >= *time).then_some(*leaving),
            Leaves::Never | Leaves::WithinRequest(_) => None,
        }
    }

    /// Takes what a read brought. True once the reply is complete or cannot become so.
    fn take(&mut self, bytes: &[u8]) -> bool {
        let now = Instant::now();
        let mut bytes = bytes.to_vec();
        while self.body.is_none() {
            self.pending.append(&mut bytes);
            let Some((head, rest)) = wire::split_head(&self.pending) else { return false };
            self.pending = Vec::new();
            bytes = rest;
            self.head(&head, now);
        }
        let Some(body) = &mut self.body else { return false };
        let stray = body.push(&bytes);
        self.reply.reads.push((now, body.bytes.len()));
        if let Some(why) = body.malformed() {
            let why = format!("badly framed: {why}");
            self.broken(&why);
            self.keep_body();
            return true;
        }
        if !body.is_done() {
            return false;
        }
        self.reply.stray = stray;
        if !self.half_closed {
            self.reply.ended = Ended::Complete;
        }
        self.keep_body();
        !self.half_closed
    }

    fn head(&mut self, head: &str, now: Instant) {
        let status: u16 = head.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or(0);
        if (100..200).contains(&status) {
            self.pending = Vec::new();
            return;
        }
        let headers = wire::headers(head);
        let bodiless = matches!(status, 204 | 304);
        let said = wire::delimited(&headers);
        let delimited = if bodiless { Delimited::Nothing } else { said.unwrap_or(Delimited::UntilClose) };
        self.reply.status = Some(status);
        self.reply.headers = headers;
        self.reply.delimited = Some(delimited);
        self.reply.head_at = Some(now);
        self.body = Some(wire::Body::new(delimited));
    }
}
