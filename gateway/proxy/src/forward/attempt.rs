//! One exchange with the upstream up to the head of its reply, and its repetition where that is safe.
//!
//! Apart because when a request may be sent again is one decision: only on a pooled connection that turned out
//! to be closed before any byte of a reply, since then the upstream never processed it. Must not know: what is
//! done with the reply.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use memchr::memmem;
use pingora::connectors::http::Connector;
use pingora::http::{RequestHeader, ResponseHeader};
use pingora::protocols::http::client::HttpSession;
use pingora::upstreams::peer::HttpPeer;
use pingora::{Error, ErrorType};
use pitot_measure::{BodyKind, Deadline, Event, HEAD_FIELDS, UpstreamFailure, UsageAsked};
use tokio::time::Instant;

use super::downstream::{Caller, Waited};
use super::{Forwarder, Prepared, Stop};
use crate::error::Failure;
use crate::stamped::watched;
use crate::tracked::Tracked;

/// Attempts at one request, the first included. More than one pooled connection may have died.
const ATTEMPTS_MAX: usize = 4;
/// A connection that was dead already says so at once; one that closes later may have lost a request in work,
/// which must not be done twice.
const REPLAY_WITHIN: Duration = Duration::from_millis(100);
/// Most that is read of a 400 to learn whether it refuses to be asked for usage.
const REFUSAL_BYTES_MAX: usize = 64 * 1024;
/// Longest wait for the reply of an upstream that stopped reading the request.
const EARLY_REPLY_WAIT: Duration = Duration::from_secs(1);

/// An upstream that has sent the head of its reply.
pub struct Answered {
    pub session: HttpSession<()>,
    peer: HttpPeer,
    head: ResponseHeader,
    /// Whether this is the answer to the question for usage as it was prepared.
    pub usage: UsageQuestion,
}

/// What became of the gateway's question for usage.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UsageQuestion {
    AsPrepared,
    /// The upstream refused it and was asked again without.
    Withdrawn,
}

impl Answered {
    pub fn head(&self) -> &ResponseHeader {
        &self.head
    }

    pub fn status(&self) -> http::StatusCode {
        self.head.status
    }

    fn content_type(&self) -> &str {
        let kind = self.head.headers.get(http::header::CONTENT_TYPE);
        kind.and_then(|kind| kind.to_str().ok()).unwrap_or("")
    }

    /// What the head says about the body.
    pub fn body_kind(&self) -> BodyKind {
        let encoding = self.head.headers.get(http::header::CONTENT_ENCODING);
        match encoding.map(|encoding| encoding.as_bytes()) {
            None => BodyKind::of(self.content_type()),
            Some(encoding) if encoding.eq_ignore_ascii_case(b"identity") => BodyKind::of(self.content_type()),
            Some(_) => BodyKind::Encoded,
        }
    }

    /// Puts another head in place of the one that came.
    pub fn set_head(&mut self, head: ResponseHeader) {
        self.head = head;
    }

    /// Says that the body is one JSON object and not the stream that was announced.
    pub fn becomes_json(&mut self) -> Result<(), Box<Error>> {
        self.head.remove_header(&http::header::CACHE_CONTROL);
        self.head.insert_header(http::header::CONTENT_TYPE, "application/json")
    }

    pub fn into_parts(self) -> (HttpSession<()>, HttpPeer) {
        (self.session, self.peer)
    }

    /// Closes the connection, which tells the upstream that nobody waits any more.
    pub async fn close(mut self) {
        self.session.shutdown().await;
    }
}

/// Why an attempt brought no head.
enum Unanswered {
    Stop(Stop),
    /// The connection ended before any byte of a reply.
    Closed(Box<Error>),
    Failed(Box<Error>),
}

/// When the gateway gives up.
#[derive(Debug, Clone, Copy)]
pub struct Deadlines {
    pub total: Option<Instant>,
    pub first_token: Option<Instant>,
    pub idle: Option<Duration>,
}

impl Deadlines {
    /// The next one to pass, given whether a token has come and since when the upstream has been waited for.
    pub fn next(&self, first_token: FirstToken, waiting_since: Instant) -> Option<(Instant, Deadline)> {
        let nearer = match first_token {
            FirstToken::Awaited => self.first_token.map(|at| (at, Deadline::FirstToken)),
            FirstToken::Seen => self.idle.map(|idle| (waiting_since + idle, Deadline::Idle)),
        };
        match (nearer, self.total()) {
            (Some(nearer), Some(total)) => Some(if total.0 < nearer.0 { total } else { nearer }),
            (nearer, total) => nearer.or(total),
        }
    }

    /// The one that runs whatever is waited for.
    pub fn total(&self) -> Option<(Instant, Deadline)> {
        self.total.map(|at| (at, Deadline::Total))
    }
}

/// Whether the first token has been read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FirstToken {
    Awaited,
    Seen,
}

impl Forwarder {
    /// The deadlines of a request that starts to be sent now.
    pub(super) fn deadlines(&self) -> Deadlines {
        let limits = &self.app.settings.limits;
        let from_now = |limit: Option<Duration>| limit.map(|limit| Instant::now() + limit);
        Deadlines {
            total: from_now(limits.total_timeout),
            first_token: from_now(limits.first_token_timeout),
            idle: limits.idle_timeout,
        }
    }

    /// Sends the request and waits for the head of its reply. Gives also what has been read of its body.
    pub(super) async fn exchange(
        &self,
        caller: &mut Caller<'_>,
        tracked: &mut Tracked,
        prepared: &Prepared,
    ) -> Result<(Answered, Bytes), Stop> {
        let asking = Outgoing { body: prepared.body.clone(), usage: UsageQuestion::AsPrepared };
        let mut answered = self.attempt(caller, tracked, prepared, &asking).await?;
        let Some(plain) = prepared.body_without_usage.as_ref().filter(|_| answered.status() == 400) else {
            return Ok((answered, Bytes::new()));
        };
        let refusal = read_refusal(caller, tracked, prepared, &mut answered).await?;
        if memmem::find(&refusal, b"stream_options").is_none() {
            return Ok((answered, refusal));
        }
        self.release(answered).await;
        tracked.observe(tracked.at(), Event::UsageAsked(UsageAsked::Not));
        let plainly = Outgoing { body: plain.clone(), usage: UsageQuestion::Withdrawn };
        let answered = self.attempt(caller, tracked, prepared, &plainly).await?;
        if answered.status() != 400 {
            self.app.upstream.refuses_usage();
        }
        Ok((answered, Bytes::new()))
    }

    /// Sends the request once, or again where the upstream cannot have seen it.
    async fn attempt(
        &self,
        caller: &mut Caller<'_>,
        tracked: &mut Tracked,
        prepared: &Prepared,
        outgoing: &Outgoing,
    ) -> Result<Answered, Stop> {
        let deadlines = prepared.deadlines;
        for attempt in 1..=ATTEMPTS_MAX {
            let peer = self.app.upstream.peer().await.map_err(unreachable)?;
            let connecting = connect(&self.connector, &peer);
            let until = deadlines.next(FirstToken::Awaited, Instant::now());
            let (mut session, reused) = match caller.wait(connecting, until).await {
                Waited::Done(connected) => connected.map_err(connect_failure)?,
                Waited::ClientLeft => return Err(Stop::ClientLeft),
                Waited::Deadline(deadline) => return Err(Stop::Failed(Failure::Deadline(deadline))),
            };
            tracked.observe(tracked.at(), Event::AttemptStarted);
            let began = Instant::now();
            let head = prepared.head_for(outgoing).map_err(broken)?;
            match ask(caller, tracked, (head, outgoing.body.clone()), &mut session, deadlines).await {
                Ok(head) => {
                    let answered = Answered { session, peer, head, usage: outgoing.usage };
                    observe_head(tracked, &answered);
                    return Ok(answered);
                }
                Err(Unanswered::Closed(error))
                    if reused && attempt < ATTEMPTS_MAX && began.elapsed() < REPLAY_WITHIN =>
                {
                    tracing::debug!(%error, attempt, "a pooled connection was closed; the request is sent again");
                }
                Err(unanswered) => {
                    session.shutdown().await;
                    self.app.link.abort(&prepared.id);
                    return Err(stop_of(unanswered));
                }
            }
        }
        Err(unreachable("every pooled connection to the upstream was closed".into()))
    }
}

/// What one attempt sends.
struct Outgoing {
    body: Bytes,
    usage: UsageQuestion,
}

impl Prepared {
    fn head_for(&self, outgoing: &Outgoing) -> Result<RequestHeader, Box<Error>> {
        let mut head = self.head.clone();
        if head.headers.contains_key(http::header::CONTENT_LENGTH) {
            head.insert_header(http::header::CONTENT_LENGTH, outgoing.body.len())?;
        }
        Ok(head)
    }
}

fn observe_head(tracked: &mut Tracked, answered: &Answered) {
    let (at, head) = (tracked.read_at(None), answered.head());
    let body = answered.body_kind();
    tracked.observe(at, Event::Head { status: head.status.as_u16(), body });
    for name in HEAD_FIELDS {
        if let Some(value) = head.headers.get(name).and_then(|value| value.to_str().ok()) {
            tracked.observe(at, Event::HeadField { name, value });
        }
    }
}

/// Reads the body of a 400 to learn what was refused, up to a bound; the rest of a longer one stays unread.
async fn read_refusal(
    caller: &mut Caller<'_>,
    tracked: &mut Tracked,
    prepared: &Prepared,
    answered: &mut Answered,
) -> Result<Bytes, Stop> {
    let until = prepared.deadlines.next(FirstToken::Awaited, Instant::now());
    let mut refusal = BytesMut::new();
    while refusal.len() < REFUSAL_BYTES_MAX {
        match caller.wait(watched(answered.session.read_response_body()), until).await {
            Waited::Done((read_ns, Ok(Some(chunk)))) => {
                let at = tracked.read_at(read_ns);
                tracked.observe(at, Event::UpstreamBytes(&chunk));
                refusal.extend_from_slice(&chunk);
            }
            Waited::Done((_, Ok(None))) => break,
            Waited::Done((_, Err(error))) => {
                return Err(Stop::Failed(Failure::Upstream(UpstreamFailure::Truncated, error.to_string())));
            }
            Waited::ClientLeft => return Err(Stop::ClientLeft),
            Waited::Deadline(deadline) => return Err(Stop::Failed(Failure::Deadline(deadline))),
        }
    }
    Ok(refusal.freeze())
}

async fn connect(connector: &Connector, peer: &HttpPeer) -> Result<(HttpSession<()>, bool), Box<Error>> {
    connector.get_http_session(peer).await
}

async fn ask(
    caller: &mut Caller<'_>,
    tracked: &mut Tracked,
    (head, body): (RequestHeader, Bytes),
    session: &mut HttpSession<()>,
    deadlines: Deadlines,
) -> Result<ResponseHeader, Unanswered> {
    let until = deadlines.next(FirstToken::Awaited, Instant::now());
    let sending = send(tracked, head, body, session);
    let sent = match caller.wait(sending, until).await {
        Waited::Done(sent) => sent,
        Waited::ClientLeft => return Err(Unanswered::Stop(Stop::ClientLeft)),
        Waited::Deadline(deadline) => {
            return Err(Unanswered::Stop(Stop::Failed(Failure::Deadline(deadline))));
        }
    };
    // An upstream may refuse early and stop reading: its reply says why, the failed write does not.
    let until = match &sent {
        Ok(()) => until,
        Err(_) => Some((Instant::now() + EARLY_REPLY_WAIT, Deadline::FirstToken)),
    };
    loop {
        match caller.wait(watched(session.read_response_header()), until).await {
            Waited::Done((read_ns, Ok(()))) => {
                tracked.read_at(read_ns);
            }
            Waited::Done((_, Err(error))) => return Err(unanswered(sent.err().unwrap_or(error))),
            Waited::ClientLeft => return Err(Unanswered::Stop(Stop::ClientLeft)),
            Waited::Deadline(deadline) => {
                return Err(match sent {
                    Err(error) => Unanswered::Failed(error),
                    Ok(()) => Unanswered::Stop(Stop::Failed(Failure::Deadline(deadline))),
                });
            }
        }
        match session.response_header() {
            Some(head) if head.status.is_informational() => {}
            Some(head) => return Ok(head.clone()),
            None => {
                return Err(Unanswered::Failed(Error::explain(
                    ErrorType::InternalError,
                    "a head was read, but is not there",
                )));
            }
        }
    }
}

/// Writes the request. The stamp is taken before the write that hands over the last byte, so that nothing the
/// upstream does can precede it.
async fn send(
    tracked: &mut Tracked,
    head: RequestHeader,
    body: Bytes,
    session: &mut HttpSession<()>,
) -> Result<(), Box<Error>> {
    let head = Box::new(head);
    if body.is_empty() {
        tracked.observe(tracked.at(), Event::RequestSent);
        session.write_request_header(head).await?;
        return session.finish_request_body().await;
    }
    session.write_request_header(head).await?;
    tracked.observe(tracked.at(), Event::RequestSent);
    session.write_request_body(body, true).await
}

fn unanswered(error: Box<Error>) -> Unanswered {
    match error.etype() {
        ErrorType::ConnectionClosed | ErrorType::ReadError | ErrorType::WriteError => {
            Unanswered::Closed(error)
        }
        _ => Unanswered::Failed(error),
    }
}

fn stop_of(unanswered: Unanswered) -> Stop {
    match unanswered {
        Unanswered::Stop(stop) => stop,
        Unanswered::Closed(error) => {
            Stop::Failed(Failure::Upstream(UpstreamFailure::Reset, error.to_string()))
        }
        Unanswered::Failed(error) => {
            Stop::Failed(Failure::Upstream(UpstreamFailure::Protocol, error.to_string()))
        }
    }
}

fn connect_failure(error: Box<Error>) -> Stop {
    match error.etype() {
        ErrorType::ConnectTimedout => Stop::Failed(Failure::Deadline(Deadline::Connect)),
        _ => unreachable(error.to_string()),
    }
}

fn unreachable(why: String) -> Stop {
    Stop::Failed(Failure::Upstream(UpstreamFailure::Unreachable, why))
}

/// A head or a body that cannot be passed on.
pub fn broken(error: Box<Error>) -> Stop {
    Stop::Failed(Failure::Upstream(UpstreamFailure::Protocol, error.to_string()))
}
