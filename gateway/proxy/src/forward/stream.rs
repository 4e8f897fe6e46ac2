//! Passing a reply on as it arrives.
//!
//! Apart because this is the hot path: each read is stamped when it completes, edited only if the caller's usage
//! chunk is concerned, written, and only then observed. What has already been received when a read completes goes
//! out in the same write, which halves the cost of a burst and delays nothing. While a write waits for a slow
//! caller the upstream is read on, up to a bound, so that stamps stay those of the reads and deadlines keep
//! running. Must not know: dialects.

use std::pin::{Pin, pin};

use bytes::{Bytes, BytesMut};
use pingora::Error;
use pingora::protocols::http::client::HttpSession;
use pitot_measure::{At, BodyKind, Event, UpstreamFailure};
use tokio::time::Instant;

use super::attempt::{Answered, FirstToken};
use super::downstream::{Caller, Part, Waited, ready};
use super::heads::{self, Length};
use super::{Forwarder, Prepared, Stop};
use crate::error::Failure;
use crate::rewrite::{StreamEdit, StreamRewriter};
use crate::stamped::watched;
use crate::tracked::Tracked;

/// Reads that may share a write. A bound, not a target: at a token's pace each read has its own.
const READS_PER_WRITE_MAX: usize = 16;

/// What comes behind the bytes that have been read.
enum Then {
    More,
    End,
    /// The connection or its framing broke; what came before still goes out first.
    Broken(Box<Error>),
}

/// The state of one passing.
struct Pass {
    rewriter: Option<StreamRewriter>,
    /// Read and ready to be written.
    outgoing: BytesMut,
    /// A read that needed no edit and no company; saves the copy.
    alone: Option<Bytes>,
    /// Read, stamped and not yet observed.
    unobserved: Vec<(At, Bytes)>,
    /// Bytes of the upstream's body read so far.
    upstream_bytes: u64,
    then: Then,
    /// When the end was read, until it has been observed.
    ended_at: Option<At>,
    /// The last read that brought a part of the reply, and since when the next has been waited for.
    alive_at: Option<At>,
    waiting_since: Instant,
    engine_joined: bool,
    held_back: bool,
}

impl Forwarder {
    /// Passes the reply on to its end. `first` is what has been read, and observed, of the body already.
    pub(super) async fn pass_stream(
        &self,
        caller: &mut Caller<'_>,
        tracked: &mut Tracked,
        prepared: &Prepared,
        answered: &mut Answered,
        edit: Option<StreamEdit>,
        first: Bytes,
    ) -> Result<(), Stop> {
        // A stream of events may end in one of ours, so that no length can be promised.
        let events = answered.body_kind() == BodyKind::EventStream;
        let length = if edit.is_some() || events { Length::Chunked } else { Length::AsReceived };
        let head = heads::to_caller(answered.head(), &prepared.reply_id, length, caller.version())
            .map_err(super::attempt::broken)?;
        tracked.answered(head.status.as_u16());
        caller.write_head(head).await?;
        let mut pass = Pass::new(edit, first);
        let passed = self.pass(caller, tracked, prepared, answered, &mut pass).await;
        self.join_engine(tracked, prepared, &mut pass);
        pass.observe(tracked);
        passed
    }

    async fn pass(
        &self,
        caller: &mut Caller<'_>,
        tracked: &mut Tracked,
        prepared: &Prepared,
        answered: &mut Answered,
        pass: &mut Pass,
    ) -> Result<(), Stop> {
        loop {
            if pass.has_nothing_to_do() {
                let until = prepared.deadlines.next(seen(tracked), pass.waiting_since);
                match caller.wait(watched(answered.session.read_response_body()), until).await {
                    Waited::Done(read) => {
                        self.take_in(tracked, prepared, pass, read);
                        self.take_what_is_there(tracked, prepared, pass, &mut answered.session).await;
                    }
                    Waited::ClientLeft => return Err(Stop::ClientLeft),
                    Waited::Deadline(deadline) => return Err(Stop::Failed(Failure::Deadline(deadline))),
                }
            }
            if let Then::End = pass.then
                && let Some(rewriter) = pass.rewriter.take()
            {
                let tail = rewriter.finish();
                pass.put(tail);
            }
            let part = if matches!(pass.then, Then::End) { Part::Last } else { Part::More };
            self.write_out(caller, tracked, prepared, answered, pass, part).await?;
            match (&pass.then, part) {
                (Then::End, Part::Last) => return Ok(()),
                (Then::Broken(error), _) if pass.is_written() => {
                    return Err(Stop::Failed(Failure::Upstream(
                        UpstreamFailure::Truncated,
                        error.to_string(),
                    )));
                }
                (Then::More | Then::End | Then::Broken(_), Part::More | Part::Last) => {}
            }
        }
    }

    /// Writes all that is ready. While the caller takes its time, the upstream is read on.
    async fn write_out(
        &self,
        caller: &mut Caller<'_>,
        tracked: &mut Tracked,
        prepared: &Prepared,
        answered: &mut Answered,
        pass: &mut Pass,
        part: Part,
    ) -> Result<(), Stop> {
        let upstream_bytes = pass.upstream_bytes;
        let bytes = pass.take_outgoing();
        let since = tracked.at();
        let mut writing = pin!(caller.write(bytes, part));
        let at_once = ready(writing.as_mut()).await;
        let mut written_at = tracked.at();
        pass.observe(tracked);
        let written = match at_once {
            Some(written) => written,
            None => {
                let written = self.read_ahead(writing, tracked, prepared, answered, pass).await;
                written_at = tracked.at();
                if pass.held_back {
                    pass.waiting_since = Instant::now();
                }
                written
            }
        };
        let reached = if written.is_ok() { upstream_bytes } else { 0 };
        tracked.observe(written_at, Event::Forwarded { upstream_bytes: reached, since });
        written
    }

    /// Reads the upstream on while a write waits for the caller.
    async fn read_ahead(
        &self,
        mut writing: Pin<&mut impl Future<Output = Result<(), Stop>>>,
        tracked: &mut Tracked,
        prepared: &Prepared,
        answered: &mut Answered,
        pass: &mut Pass,
    ) -> Result<(), Stop> {
        loop {
            let may_read = pass.may_read_ahead(self.app.settings.limits.read_ahead_bytes);
            if !may_read && matches!(pass.then, Then::More) && !pass.held_back {
                pass.held_back = true;
                tracked.observe(tracked.at(), Event::ReadsHeldBack);
            }
            let until = match may_read {
                true => prepared.deadlines.next(seen(tracked), pass.waiting_since),
                // The upstream is not waited for, so its silence says nothing.
                false => prepared.deadlines.total(),
            };
            tokio::select! {
                biased;
                written = writing.as_mut() => return written,
                read = watched(answered.session.read_response_body()), if may_read => {
                    self.take_in(tracked, prepared, pass, read);
                    pass.observe(tracked);
                }
                deadline = Caller::deadline(until) => return Err(Stop::Failed(Failure::Deadline(deadline))),
            }
        }
    }

    /// Takes in one read: its stamp, its bytes as they go out, and whether it was the last.
    fn take_in(
        &self,
        tracked: &mut Tracked,
        prepared: &Prepared,
        pass: &mut Pass,
        (read_ns, read): (Option<u64>, Result<Option<Bytes>, Box<Error>>),
    ) {
        let at = tracked.read_at(read_ns);
        match read {
            Ok(Some(bytes)) => {
                pass.upstream_bytes += bytes.len() as u64;
                let out = match pass.rewriter.take() {
                    None => bytes.clone(),
                    Some(mut rewriter) => {
                        let mut members = || {
                            self.join_engine(tracked, prepared, pass);
                            pass.observe(tracked);
                            let seen = || tracked.so_far_with(at, &bytes);
                            self.metrics_members(tracked, prepared, seen)
                        };
                        let out = rewriter.push(&bytes, &mut members);
                        pass.rewriter = Some(rewriter);
                        out
                    }
                };
                pass.put(out);
                pass.unobserved.push((at, bytes));
            }
            Ok(None) => (pass.then, pass.ended_at) = (Then::End, Some(at)),
            Err(error) => pass.then = Then::Broken(error),
        }
    }

    /// Takes along what can be read without waiting.
    async fn take_what_is_there(
        &self,
        tracked: &mut Tracked,
        prepared: &Prepared,
        pass: &mut Pass,
        session: &mut HttpSession<()>,
    ) {
        for _ in 1..READS_PER_WRITE_MAX {
            if !matches!(pass.then, Then::More) {
                return;
            }
            // Reads of pingora's sessions may be dropped while they wait.
            let Some(read) = ready(pin!(watched(session.read_response_body()))).await else { return };
            self.take_in(tracked, prepared, pass, read);
        }
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
}

impl Pass {
    fn new(edit: Option<StreamEdit>, first: Bytes) -> Self {
        let upstream_bytes = first.len() as u64;
        Pass {
            rewriter: edit.map(StreamRewriter::new),
            outgoing: BytesMut::new(),
            alone: (!first.is_empty()).then_some(first),
            unobserved: Vec::new(),
            upstream_bytes,
            then: Then::More,
            ended_at: None,
            alive_at: None,
            waiting_since: Instant::now(),
            engine_joined: false,
            held_back: false,
        }
    }

    fn put(&mut self, bytes: Bytes) {
        if bytes.is_empty() {
            return;
        }
        if self.alone.is_none() && self.outgoing.is_empty() {
            self.alone = Some(bytes);
            return;
        }
        if let Some(alone) = self.alone.take() {
            self.outgoing.extend_from_slice(&alone);
        }
        self.outgoing.extend_from_slice(&bytes);
    }

    fn take_outgoing(&mut self) -> Bytes {
        self.alone.take().unwrap_or_else(|| self.outgoing.split().freeze())
    }

    fn outgoing_bytes(&self) -> usize {
        self.alone.as_ref().map_or(0, Bytes::len) + self.outgoing.len()
    }

    fn is_written(&self) -> bool {
        self.outgoing_bytes() == 0
    }

    fn has_nothing_to_do(&self) -> bool {
        self.is_written() && matches!(self.then, Then::More)
    }

    fn may_read_ahead(&self, bytes_max: usize) -> bool {
        matches!(self.then, Then::More) && self.outgoing_bytes() < bytes_max
    }

    /// Shows the observer what has been read, and books the work on it up to now.
    fn observe(&mut self, tracked: &mut Tracked) {
        let first = self.unobserved.first().map(|(at, _)| *at);
        let chunks = u32::try_from(self.unobserved.len()).unwrap_or(u32::MAX);
        for (at, bytes) in self.unobserved.drain(..) {
            tracked.observe(at, Event::UpstreamBytes(&bytes));
        }
        if let Some(at) = self.ended_at.take() {
            tracked.observe(at, Event::UpstreamEof);
        }
        let alive_at = tracked.alive_at();
        if alive_at != self.alive_at {
            (self.alive_at, self.waiting_since) = (alive_at, Instant::now());
        }
        if let Some(first) = first {
            tracked.worked(first, chunks);
        }
    }
}

/// Whether the first token has been read.
pub fn seen(tracked: &Tracked) -> FirstToken {
    if tracked.first_token_seen() { FirstToken::Seen } else { FirstToken::Awaited }
}
