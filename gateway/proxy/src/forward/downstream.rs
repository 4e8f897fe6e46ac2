//! The caller's side of a request: its head, its body, and what is written to it.
//!
//! Apart so that what pingora's session needs (keep-alive, chunking, draining) is said once. Must not know:
//! upstreams, records.

use std::pin::Pin;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::Version;
use pingora::http::{RequestHeader, ResponseHeader};
use pingora::protocols::http::ServerSession;
use pingora::{Error, ErrorType, Result};
use pitot_measure::{Deadline, Endpoint, RefusalReason};
use tokio::time::Instant;

use super::{Stop, collect};
use crate::decide;
use crate::error::Failure;

/// Longest time that one write to the caller may make no progress before it counts as gone.
const WRITE_TIMEOUT: Duration = Duration::from_secs(300);
/// Longest silence within a request's body.
const READ_TIMEOUT: Duration = Duration::from_secs(60);
/// What is read and thrown away of a body that was refused, so that the caller gets to read why.
const REFUSED_BODY_BYTES_MAX: usize = 256 * 1024 * 1024;
const REFUSED_BODY_TIME_MAX: Duration = Duration::from_secs(10);

/// What a wait ended with.
#[derive(Debug)]
pub enum Waited<T> {
    Done(T),
    ClientLeft,
    Deadline(Deadline),
}

/// What a failed read of a body means: a caller that is gone, or one that does not speak HTTP as it should.
fn unreadable(error: &Error) -> Stop {
    match error.etype() {
        ErrorType::ConnectionClosed | ErrorType::ReadError | ErrorType::ReadTimedout => Stop::ClientLeft,
        _ => {
            let message = format!("the request body could not be read: {}", error.etype().as_str());
            Stop::Failed(Failure::Refused(RefusalReason::BadRequest, message))
        }
    }
}

/// Whether more of a body follows a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    More,
    Last,
}

/// The caller's side.
pub struct Caller<'s> {
    session: &'s mut ServerSession,
    /// A write has begun and not returned. Left in the middle, nothing that follows it would be understood.
    writing: bool,
    /// The last bytes of the body that went out, as far as they tell whether an event is open.
    tail: Tail,
}

/// The end of what has been written: at most four bytes.
#[derive(Debug, Default)]
struct Tail(Vec<u8>);

impl Tail {
    fn push(&mut self, bytes: &[u8]) {
        let kept = bytes.len().saturating_sub(4);
        self.0.extend_from_slice(&bytes[kept..]);
        let over = self.0.len().saturating_sub(4);
        self.0.drain(..over);
    }

    /// Whether an event is open that the next bytes would run into.
    fn is_within_event(&self) -> bool {
        let ends = |end: &[u8]| self.0.ends_with(end);
        !(self.0.is_empty() || ends(b"\n\n") || ends(b"\r\r") || ends(b"\r\n\r\n"))
    }
}

impl<'s> Caller<'s> {
    pub fn new(session: &'s mut ServerSession) -> Self {
        session.set_read_timeout(Some(READ_TIMEOUT));
        session.set_write_timeout(Some(WRITE_TIMEOUT));
        // Before HTTP/1.1 there are no chunks: the end of the connection is the end of the body.
        if session.req_header().version < Version::HTTP_11 {
            session.set_keepalive(None);
        }
        // A request sent ahead on the same connection is not a caller that left.
        session.set_pipelining_enabled(true);
        Caller { session, writing: false, tail: Tail::default() }
    }

    pub fn head(&self) -> &RequestHeader {
        self.session.req_header()
    }

    pub fn version(&self) -> Version {
        self.session.req_header().version
    }

    /// The status that went out, if a head has been written.
    pub fn status(&self) -> Option<u16> {
        self.session.response_written().map(|head| head.status.as_u16())
    }

    /// Reads the whole body.
    pub async fn read_body(&mut self, limit: usize) -> std::result::Result<Bytes, Stop> {
        let expects = self.head().headers.get(http::header::EXPECT);
        if expects.is_some_and(|expects| expects.as_bytes().eq_ignore_ascii_case(b"100-continue")) {
            self.session.write_continue_response().await.map_err(|_| Stop::ClientLeft)?;
        }
        let mut body = BytesMut::new();
        loop {
            match self.session.read_request_body().await {
                Ok(Some(chunk)) => {
                    collect(&mut body, &chunk, limit).ok_or_else(|| Stop::Failed(decide::too_large(limit)))?
                }
                Ok(None) => return Ok(body.freeze()),
                Err(error) => return Err(unreadable(&error)),
            }
        }
    }

    /// Waits for `what` unless the caller leaves or the deadline passes first.
    pub async fn wait<T>(
        &mut self,
        what: impl Future<Output = T>,
        until: Option<(Instant, Deadline)>,
    ) -> Waited<T> {
        tokio::select! {
            biased;
            done = what => Waited::Done(done),
            _ = self.session.read_body_or_idle(true) => Waited::ClientLeft,
            deadline = Self::deadline(until) => Waited::Deadline(deadline),
        }
    }

    pub async fn write_head(&mut self, head: ResponseHeader) -> std::result::Result<(), Stop> {
        self.writing = true;
        let written = self.session.write_response_header(Box::new(head)).await;
        self.writing = false;
        written.map_err(|_| Stop::ClientLeft)
    }

    /// Writes a part of the body. Dropped in the middle, the connection has to be given up.
    pub async fn write(&mut self, bytes: Bytes, part: Part) -> std::result::Result<(), Stop> {
        self.writing = true;
        self.tail.push(&bytes);
        let written = self.session.write_response_body(bytes, part == Part::Last).await;
        self.writing = false;
        written.map_err(|_| Stop::ClientLeft)
    }

    /// Writes the rest of the body unless the deadline passes first, which gives the connection up.
    pub async fn write_last(
        &mut self,
        bytes: Bytes,
        until: Option<(Instant, Deadline)>,
    ) -> std::result::Result<(), Stop> {
        tokio::select! {
            biased;
            written = self.write(bytes, Part::Last) => written,
            deadline = Self::deadline(until) => Err(Stop::Failed(Failure::Deadline(deadline))),
        }
    }

    /// Waits for a deadline; for ever if there is none.
    pub async fn deadline(until: Option<(Instant, Deadline)>) -> Deadline {
        match until {
            Some((instant, deadline)) => {
                tokio::time::sleep_until(instant).await;
                deadline
            }
            None => std::future::pending().await,
        }
    }

    /// Ends a body whose upstream broke off behind the event that ends the protocol: the caller has all of it.
    pub async fn close_body(&mut self) -> Result<()> {
        match self.writing {
            true => self.abandon("the reply broke off"),
            false => self.session.write_response_body(Bytes::new(), true).await,
        }
    }

    /// Tells of a failure: by a whole reply if nothing has gone out yet, by an event in a stream of events, and
    /// in any other body by breaking it off.
    pub async fn tell(&mut self, failure: &Failure, endpoint: Endpoint, reply_id: &str) -> Result<()> {
        if self.writing {
            return self.abandon("the caller took too long to read");
        }
        let streaming = self.session.response_written().map(|head| {
            let kind = head.headers.get(http::header::CONTENT_TYPE);
            let plain = !head.headers.contains_key(http::header::CONTENT_ENCODING);
            plain && kind.is_some_and(|kind| kind.as_bytes().starts_with(b"text/event-stream"))
        });
        match streaming {
            None => {
                let reply = failure.reply(endpoint);
                let head = super::heads::error_head(&reply, reply_id)?;
                if !self.session.is_body_done() {
                    self.session.set_keepalive(None);
                }
                self.session.write_response_header(Box::new(head)).await?;
                self.session.write_response_body(Bytes::from(reply.body), true).await?;
                self.discard_body().await
            }
            Some(true) => {
                // An event that broke off in the middle is closed first, or the caller would read both as one.
                let close = if self.tail.is_within_event() { "\n\n" } else { "" };
                let event = format!("{close}{}", failure.event(endpoint));
                self.session.write_response_body(Bytes::from(event), true).await
            }
            Some(false) => self.abandon("the reply broke off"),
        }
    }

    /// Gives the connection up.
    pub fn abandon(&mut self, why: &'static str) -> Result<()> {
        self.session.set_keepalive(None);
        let mut error = Error::explain(ErrorType::ConnectionClosed, why);
        // Of an end on the caller's side pingora tells nobody; of any other it would write a reply of its own.
        error.as_down();
        Err(error)
    }

    /// Reads on for a while after a refusal: a connection closed with unread bytes is reset, and the refusal
    /// would be lost with it.
    async fn discard_body(&mut self) -> Result<()> {
        if self.session.is_body_done() {
            return Ok(());
        }
        let discard = async {
            let mut discarded = 0;
            while let Ok(Some(chunk)) = self.session.read_request_body().await {
                discarded += chunk.len();
                if discarded > REFUSED_BODY_BYTES_MAX {
                    break;
                }
            }
        };
        // A caller that keeps sending has had its time to read the refusal.
        let _ = tokio::time::timeout(REFUSED_BODY_TIME_MAX, discard).await;
        Ok(())
    }
}

/// Polls once.
pub async fn ready<F: Future>(mut what: Pin<&mut F>) -> Option<F::Output> {
    std::future::poll_fn(|context| {
        std::task::Poll::Ready(match what.as_mut().poll(context) {
            std::task::Poll::Ready(value) => Some(value),
            std::task::Poll::Pending => None,
        })
    })
    .await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_open_event_is_known_by_its_end() {
        let within = |pieces: &[&str]| {
            let mut tail = Tail::default();
            pieces.iter().for_each(|piece| tail.push(piece.as_bytes()));
            tail.is_within_event()
        };
        for whole in [&[][..], &["data: 1\n\n"], &["data: 1\n", "\n"], &["a\r", "\n\r", "\n"], &["a\r\r"]] {
            assert!(!within(whole), "{whole:?}");
        }
        for open in [&["d"][..], &["data: 1\n"], &["x\n\n", "data: {"], &["a\r\n"]] {
            assert!(within(open), "{open:?}");
        }
    }
}
