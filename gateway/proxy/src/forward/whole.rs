//! Passing on a reply that does not stream: read whole, completed with the metrics object, written with its length.
//!
//! Apart from the stream path because here the body may be held: nobody can use half a JSON object. A body over
//! the limit passes through unchanged instead. Must not know: dialects.

use bytes::{Bytes, BytesMut};
use pitot_measure::metrics_object::{self, SoFar, Suppression};
use pitot_measure::{Endpoint, Event, UpstreamFailure};
use tokio::time::Instant;

use super::attempt::{Answered, FirstToken, broken};
use super::downstream::{Caller, Waited};
use super::heads::{self, Length};
use super::{Forwarder, Prepared, Stop, collect};
use crate::error::Failure;
use crate::rewrite::{self, Member};
use crate::stamped::watched;
use crate::tracked::Tracked;

/// One reply as it goes out but for what is added to it.
pub(super) struct Whole {
    pub body: Bytes,
    /// Bytes of the upstream's body that it was made from.
    pub received: u64,
}

impl Forwarder {
    /// Passes a JSON reply on.
    pub(super) async fn pass_whole(
        &self,
        caller: &mut Caller<'_>,
        tracked: &mut Tracked,
        prepared: &Prepared,
        answered: &mut Answered,
    ) -> Result<(), Stop> {
        let limit = self.app.settings.limits.response_buffer_bytes;
        let deadlines = prepared.deadlines;
        let mut body = BytesMut::new();
        loop {
            let seen = if body.is_empty() { FirstToken::Awaited } else { FirstToken::Seen };
            let until = deadlines.next(seen, Instant::now());
            let read = watched(answered.session.read_response_body());
            let (at, chunk) = match caller.wait(read, until).await {
                Waited::Done((read_ns, Ok(Some(chunk)))) => (tracked.read_at(read_ns), chunk),
                Waited::Done((read_ns, Ok(None))) => {
                    tracked.read_at(read_ns);
                    break;
                }
                Waited::Done((_, Err(error))) => {
                    return Err(Stop::Failed(Failure::Upstream(
                        UpstreamFailure::Truncated,
                        error.to_string(),
                    )));
                }
                Waited::ClientLeft => return Err(Stop::ClientLeft),
                Waited::Deadline(deadline) => return Err(Stop::Failed(Failure::Deadline(deadline))),
            };
            tracked.observe(at, Event::UpstreamBytes(&chunk));
            if collect(&mut body, &chunk, limit).is_none() {
                body.extend_from_slice(&chunk);
                return self.pass_stream(caller, tracked, prepared, answered, None, body.freeze()).await;
            }
        }
        let read_at = tracked.read_at(None);
        tracked.observe(read_at, Event::UpstreamEof);
        let received = body.len() as u64;
        let whole = Whole { body: body.freeze(), received };
        self.write_whole(caller, tracked, prepared, answered, whole).await
    }

    /// Writes one JSON reply with what is added to it.
    pub(super) async fn write_whole(
        &self,
        caller: &mut Caller<'_>,
        tracked: &mut Tracked,
        prepared: &Prepared,
        answered: &Answered,
        whole: Whole,
    ) -> Result<(), Stop> {
        let Whole { body, received } = whole;
        if let Some(stamps) = self.app.link.take(&prepared.id) {
            tracked.join(&stamps);
        }
        let members = match self.app.settings.metrics.per_request {
            true => self.metrics_members(tracked, prepared, || tracked.so_far()),
            false => Vec::new(),
        };
        let body = rewrite::splice_object(&body, &members).map_or(body, Bytes::from);
        let length = Length::Known(body.len());
        let mut head = heads::to_caller(answered.head(), &prepared.reply_id, length, caller.version())
            .map_err(broken)?;
        if let Some(times) = tracked.engine_times()
            && self.app.settings.measure.server_timing
            && let Some(value) = metrics_object::server_timing(times, tracked.since_request_read())
        {
            head.insert_header("server-timing", value).map_err(broken)?;
        }
        tracked.answered(head.status.as_u16());
        let since = tracked.at();
        caller.write_head(head).await?;
        let written = caller.write_last(body, prepared.deadlines.total()).await;
        let upstream_bytes = if written.is_ok() { received } else { 0 };
        tracked.observe(tracked.at(), Event::Forwarded { upstream_bytes, since });
        written
    }

    /// The members that a reply gets: `metrics` and what was asked for beside it; none for a request of a kind that
    /// carries none. `seen` is what the gateway knows of the request with this reply counted in.
    pub(super) fn metrics_members(
        &self,
        tracked: &Tracked,
        prepared: &Prepared,
        seen: impl FnOnce() -> Option<SoFar>,
    ) -> Vec<Member> {
        let request = &prepared.request;
        let carries = match request.endpoint {
            Endpoint::ChatCompletions | Endpoint::Completions | Endpoint::Responses => true,
            Endpoint::Messages | Endpoint::Embeddings | Endpoint::Other => false,
        };
        if !carries || Suppression::of(request.choices, request.prompts) == Suppression::Suppressed {
            return Vec::new();
        }
        let mut members = vec![Member::new("metrics", metrics_object::json(tracked.engine_times()))];
        let wanted = &self.app.settings.metrics;
        if let Some(times) = tracked.engine_times().filter(|_| wanted.output) {
            members.push(Member::new("output", metrics_object::output_json(times)));
        }
        if wanted.client
            && let Some(seen) = seen()
        {
            members.push(Member::new("client", metrics_object::client_json(&seen)));
        }
        members
    }
}
