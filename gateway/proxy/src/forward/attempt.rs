//! One exchange with the upstream up to the head of its reply, and its repetition where that is safe.
//!
//! Apart because when a request may be sent again is one decision: only on a pooled connection that turned out
//! to be closed before any byte of a reply, since then the upstream never processed it. Must not know: what is
//! done with the reply.

use std::time::Duration;

use pingora::connectors::http::Connector;
use pingora::http::ResponseHeader;
use pingora::protocols::http::client::HttpSession;
use pingora::upstreams::peer::HttpPeer;
use pingora::{Error, ErrorType};
use pitot_measure::{Deadline, Event, UpstreamFailure};
use tokio::time::Instant;

use super::downstream::{Caller, Waited};
use super::{Forwarder, Prepared, Stop};
use crate::error::Failure;
use crate::tracked::Tracked;

/// Attempts at one request, the first included. More than one pooled connection may have died.
const ATTEMPTS_MAX: usize = 4;
/// A connection that was dead already says so at once; one that closes later may have lost a request in work,
/// which must not be done twice.
const REPLAY_WITHIN: Duration = Duration::from_millis(100);
/// Longest wait for the reply of an upstream that stopped reading the request.
const EARLY_REPLY_WAIT: Duration = Duration::from_secs(1);

/// An upstream that has sent the head of its reply.
pub struct Answered {
    pub session: HttpSession<()>,
    peer: HttpPeer,
    head: ResponseHeader,
}

impl Answered {
    pub fn head(&self) -> &ResponseHeader {
        &self.head
    }

    pub fn status(&self) -> http::StatusCode {
        self.head.status
    }

    pub fn content_type(&self) -> &str {
        let kind = self.head.headers.get(http::header::CONTENT_TYPE);
        kind.and_then(|kind| kind.to_str().ok()).unwrap_or("")
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
    /// The next one to pass, given whether a token has come. The idle time starts now.
    pub fn next(&self, first_token_seen: FirstToken) -> Option<(Instant, Deadline)> {
        let nearer = match first_token_seen {
            FirstToken::Awaited => self.first_token.map(|at| (at, Deadline::FirstToken)),
            FirstToken::Seen => self.idle.map(|idle| (Instant::now() + idle, Deadline::Idle)),
        };
        let total = self.total.map(|at| (at, Deadline::Total));
        match (nearer, total) {
            (Some(nearer), Some(total)) => Some(if total.0 < nearer.0 { total } else { nearer }),
            (nearer, total) => nearer.or(total),
        }
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

    /// Sends the request and waits for the head of its reply.
    pub(super) async fn exchange(
        &self,
        caller: &mut Caller<'_>,
        tracked: &mut Tracked,
        prepared: &Prepared,
    ) -> Result<Answered, Stop> {
        let deadlines = prepared.deadlines;
        for attempt in 1..=ATTEMPTS_MAX {
            let peer = self.app.upstream.peer().await.map_err(unreachable)?;
            let connecting = connect(&self.connector, &peer);
            let (mut session, reused) =
                match caller.wait(connecting, deadlines.next(FirstToken::Awaited)).await {
                    Waited::Done(connected) => connected.map_err(connect_failure)?,
                    Waited::ClientLeft => return Err(Stop::ClientLeft),
                    Waited::Deadline(deadline) => return Err(Stop::Failed(Failure::Deadline(deadline))),
                };
            tracked.observe(tracked.at(), Event::AttemptStarted);
            let began = Instant::now();
            match ask(caller, tracked, prepared, &mut session, deadlines).await {
                Ok(head) => return Ok(Answered { session, peer, head }),
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

async fn connect(connector: &Connector, peer: &HttpPeer) -> Result<(HttpSession<()>, bool), Box<Error>> {
    connector.get_http_session(peer).await
}

async fn ask(
    caller: &mut Caller<'_>,
    tracked: &mut Tracked,
    prepared: &Prepared,
    session: &mut HttpSession<()>,
    deadlines: Deadlines,
) -> Result<ResponseHeader, Unanswered> {
    let until = deadlines.next(FirstToken::Awaited);
    let sending = send(tracked, prepared, session);
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
        match caller.wait(session.read_response_header(), until).await {
            Waited::Done(Ok(())) => {}
            Waited::Done(Err(error)) => return Err(unanswered(sent.err().unwrap_or(error))),
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
    prepared: &Prepared,
    session: &mut HttpSession<()>,
) -> Result<(), Box<Error>> {
    let head = Box::new(prepared.head.clone());
    if prepared.body.is_empty() {
        tracked.observe(tracked.at(), Event::RequestSent);
        session.write_request_header(head).await?;
        return session.finish_request_body().await;
    }
    session.write_request_header(head).await?;
    tracked.observe(tracked.at(), Event::RequestSent);
    session.write_request_body(prepared.body.clone(), true).await
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
