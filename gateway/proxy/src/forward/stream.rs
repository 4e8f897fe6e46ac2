//! Passing a reply on as it arrives.
//!
//! Apart because this is the hot path: each read is stamped, edited only if the caller's usage chunk is
//! concerned, written, and only then observed. What has already been received when a read completes goes out in
//! the same write, which halves the cost of a burst and delays nothing. Must not know: dialects.

use bytes::{Bytes, BytesMut};
use pingora::Error;
use pingora::protocols::http::client::HttpSession;
use pitot_measure::{Event, UpstreamFailure};

use super::attempt::{Answered, FirstToken};
use super::downstream::{Caller, Waited};
use super::heads::{self, Length};
use super::{Forwarder, Prepared, Stop};
use crate::error::Failure;
use crate::rewrite::{StreamRewriter, UsageChunk};
use crate::tracked::Tracked;

/// Reads that may share a write. A bound, not a target: at a token's pace each read has its own.
const READS_PER_WRITE_MAX: usize = 16;

/// What one look at the upstream brought.
struct Received {
    bytes: Bytes,
    then: Then,
}

/// What comes behind the bytes of a look.
enum Then {
    More,
    End,
    /// The connection or its framing broke; what came before still goes out first.
    Broken(Box<Error>),
}

impl Forwarder {
    /// Passes the reply on to its end. `first` is what has been read of the body already.
    pub(super) async fn pass_stream(
        &self,
        caller: &mut Caller<'_>,
        tracked: &mut Tracked,
        prepared: &Prepared,
        answered: &mut Answered,
        action: Option<UsageChunk>,
        first: Bytes,
    ) -> Result<(), Stop> {
        let length = if action.is_some() { Length::Chunked } else { Length::AsReceived };
        let head =
            heads::to_caller(answered.head(), &prepared.reply_id, length).map_err(super::attempt::broken)?;
        tracked.answered(head.status.as_u16());
        caller.write_head(head).await?;
        let mut pass = Pass {
            rewriter: action.map(StreamRewriter::new),
            upstream_bytes: first.len() as u64,
            engine_joined: false,
        };
        if !first.is_empty() {
            caller.write(first).await?;
        }
        let deadlines = prepared.deadlines;
        loop {
            let seen = if tracked.first_token_seen() { FirstToken::Seen } else { FirstToken::Awaited };
            let received = match caller.wait(receive(&mut answered.session), deadlines.next(seen)).await {
                Waited::Done(Ok(received)) => received,
                Waited::Done(Err(error)) => return Err(self.broken_off(tracked, prepared, &mut pass, &error)),
                Waited::ClientLeft => return Err(Stop::ClientLeft),
                Waited::Deadline(deadline) => return Err(Stop::Failed(Failure::Deadline(deadline))),
            };
            self.pass_on(caller, tracked, prepared, &mut pass, &received).await?;
            match received.then {
                Then::More => {}
                Then::End => break,
                Then::Broken(error) => return Err(self.broken_off(tracked, prepared, &mut pass, &error)),
            }
        }
        let tail = pass.rewriter.take().map(StreamRewriter::finish).unwrap_or_default();
        self.join_engine(tracked, prepared, &mut pass);
        let since = tracked.at();
        caller.write_last(tail).await?;
        tracked.observe(tracked.at(), Event::Forwarded { upstream_bytes: pass.upstream_bytes, since });
        Ok(())
    }

    async fn pass_on(
        &self,
        caller: &mut Caller<'_>,
        tracked: &mut Tracked,
        prepared: &Prepared,
        pass: &mut Pass,
        received: &Received,
    ) -> Result<(), Stop> {
        let read_at = tracked.at();
        pass.upstream_bytes += received.bytes.len() as u64;
        let out = match pass.rewriter.take() {
            None => received.bytes.clone(),
            Some(mut rewriter) => {
                let mut members = |chunk: &[u8]| self.members(tracked, prepared, pass, chunk);
                let out = rewriter.push(&received.bytes, &mut members);
                pass.rewriter = Some(rewriter);
                out
            }
        };
        let since = tracked.at();
        let written = caller.write(out).await;
        let written_at = tracked.at();
        if !received.bytes.is_empty() {
            tracked.observe(read_at, Event::UpstreamBytes(&received.bytes));
        }
        if matches!(received.then, Then::End) {
            tracked.observe(read_at, Event::UpstreamEof);
        }
        written?;
        tracked.observe(written_at, Event::Forwarded { upstream_bytes: pass.upstream_bytes, since });
        Ok(())
    }

    /// Text of the members that a usage chunk gets.
    fn members(
        &self,
        tracked: &mut Tracked,
        prepared: &Prepared,
        pass: &mut Pass,
        chunk: &[u8],
    ) -> Option<String> {
        self.join_engine(tracked, prepared, pass);
        self.metrics_members(tracked, prepared, chunk)
    }

    /// Asks once for the stamps of the engine, which has sent them before its terminal bytes.
    fn join_engine(&self, tracked: &mut Tracked, prepared: &Prepared, pass: &mut Pass) {
        if !pass.engine_joined
            && let Some(stamps) = self.app.link.take(&prepared.id)
        {
            tracked.join(&stamps);
            pass.engine_joined = true;
        }
    }

    fn broken_off(&self, tracked: &mut Tracked, prepared: &Prepared, pass: &mut Pass, error: &Error) -> Stop {
        self.join_engine(tracked, prepared, pass);
        Stop::Failed(Failure::Upstream(UpstreamFailure::Truncated, error.to_string()))
    }
}

/// The state of one passing.
struct Pass {
    rewriter: Option<StreamRewriter>,
    /// Bytes of the upstream's body read so far.
    upstream_bytes: u64,
    engine_joined: bool,
}

/// Waits for a read, then takes along what is there already.
async fn receive(session: &mut HttpSession<()>) -> Result<Received, Box<Error>> {
    let Some(first) = session.read_response_body().await? else {
        return Ok(Received { bytes: Bytes::new(), then: Then::End });
    };
    let mut joined: Option<BytesMut> = None;
    let mut then = Then::More;
    for _ in 1..READS_PER_WRITE_MAX {
        match ready(session.read_response_body()).await {
            Some(Ok(Some(more))) => {
                joined.get_or_insert_with(|| BytesMut::from(&first[..])).extend_from_slice(&more);
                continue;
            }
            Some(Ok(None)) => then = Then::End,
            Some(Err(error)) => then = Then::Broken(error),
            None => {}
        }
        break;
    }
    Ok(Received { bytes: joined.map_or(first, BytesMut::freeze), then })
}

/// Polls once. Reads of pingora's sessions may be dropped while they wait.
async fn ready<T>(what: impl Future<Output = T>) -> Option<T> {
    let mut what = std::pin::pin!(what);
    std::future::poll_fn(|context| {
        std::task::Poll::Ready(match what.as_mut().poll(context) {
            std::task::Poll::Ready(value) => Some(value),
            std::task::Poll::Pending => None,
        })
    })
    .await
}
