//! Passing on a reply that does not stream: read whole, completed with the metrics object, written with its length.
//!
//! Apart from the stream path because here the body may be held: nobody can use half a JSON object. A body over
//! the limit passes through unchanged instead. Must not know: dialects.

use bytes::{Bytes, BytesMut};
use pitot_measure::metrics_object::{self, Suppression};
use pitot_measure::{Event, UpstreamFailure};

use super::attempt::{Answered, FirstToken, broken};
use super::downstream::{Caller, Waited};
use super::heads::{self, Length};
use super::{Forwarder, Prepared, Stop, collect};
use crate::error::Failure;
use crate::rewrite;
use crate::tracked::Tracked;

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
            let chunk = match caller.wait(answered.session.read_response_body(), deadlines.next(seen)).await {
                Waited::Done(Ok(Some(chunk))) => chunk,
                Waited::Done(Ok(None)) => break,
                Waited::Done(Err(error)) => {
                    return Err(Stop::Failed(Failure::Upstream(
                        UpstreamFailure::Truncated,
                        error.to_string(),
                    )));
                }
                Waited::ClientLeft => return Err(Stop::ClientLeft),
                Waited::Deadline(deadline) => return Err(Stop::Failed(Failure::Deadline(deadline))),
            };
            tracked.observe(tracked.at(), Event::UpstreamBytes(&chunk));
            if collect(&mut body, &chunk, limit).is_none() {
                body.extend_from_slice(&chunk);
                return self.pass_stream(caller, tracked, prepared, answered, None, body.freeze()).await;
            }
        }
        tracked.observe(tracked.at(), Event::UpstreamEof);
        self.write_whole(caller, tracked, prepared, answered, body.freeze()).await
    }

    async fn write_whole(
        &self,
        caller: &mut Caller<'_>,
        tracked: &mut Tracked,
        prepared: &Prepared,
        answered: &Answered,
        body: Bytes,
    ) -> Result<(), Stop> {
        let received = body.len() as u64;
        if let Some(stamps) = self.app.link.take(&prepared.id) {
            tracked.join(&stamps);
        }
        let spliced = self
            .app
            .settings
            .metrics
            .per_request
            .then(|| self.metrics_members(tracked, prepared, &body))
            .flatten()
            .and_then(|members| rewrite::splice_object(&body, &members));
        let body = spliced.map_or(body, Bytes::from);
        let length = Length::Known(body.len());
        let mut head = heads::to_caller(answered.head(), &prepared.reply_id, length).map_err(broken)?;
        if let Some(times) = tracked.engine_times()
            && self.app.settings.measure.server_timing
            && let Some(value) = metrics_object::server_timing(times, tracked.at())
        {
            head.insert_header("server-timing", value).map_err(broken)?;
        }
        tracked.answered(head.status.as_u16());
        let since = tracked.at();
        caller.write_head(head).await?;
        caller.write_last(body).await?;
        tracked.observe(tracked.at(), Event::Forwarded { upstream_bytes: received, since });
        Ok(())
    }

    /// Text of the members that a reply gets: `"metrics":{…}`, unless the upstream has its own or the request is
    /// of a kind that carries none.
    pub(super) fn metrics_members(
        &self,
        tracked: &Tracked,
        prepared: &Prepared,
        reply: &[u8],
    ) -> Option<String> {
        let suppressed = Suppression::of(prepared.request.choices, prepared.request.prompts);
        if suppressed == Suppression::Suppressed || !rewrite::may_take_member(reply, "metrics") {
            return None;
        }
        let mut members = format!("\"metrics\":{}", metrics_object::json(tracked.engine_times()));
        let wanted = &self.app.settings.metrics;
        if let Some(times) = tracked.engine_times().filter(|_| wanted.output) {
            members.push_str(&format!(",\"output\":{}", metrics_object::output_json(times)));
        }
        if let Some(seen) = tracked.so_far().filter(|_| wanted.client) {
            members.push_str(&format!(",\"client\":{}", metrics_object::client_json(&seen)));
        }
        Some(members)
    }
}
