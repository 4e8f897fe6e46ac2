//! Passing one reply on that was put together from a stream (`measure.stream_upstream`).
//!
//! Apart from `whole`, which has the upstream's own bytes: here the upstream streams so that its tokens have times,
//! and a caller that did not ask for a stream gets the reply it would have had. Must not know: dialects.

use bytes::Bytes;
use pingora::http::ResponseHeader;
use pitot_measure::{Event, UpstreamFailure};
use tokio::time::Instant;

use super::attempt::{Answered, broken};
use super::downstream::{Caller, Waited};
use super::stream::seen;
use super::whole::Whole;
use super::{Forwarder, Prepared, Stop};
use crate::assemble::{Assembler, Unassembled};
use crate::error::Failure;
use crate::stamped::watched;
use crate::tracked::Tracked;

impl Forwarder {
    /// Reads the stream to its end and writes one reply.
    pub(super) async fn pass_assembled(
        &self,
        caller: &mut Caller<'_>,
        tracked: &mut Tracked,
        prepared: &Prepared,
        answered: &mut Answered,
    ) -> Result<(), Stop> {
        let limit = self.app.settings.limits.response_buffer_bytes;
        let mut assembler = Assembler::new(prepared.request.endpoint)
            .ok_or_else(|| protocol("replies of this endpoint do not stream".to_owned()))?;
        let mut received = 0;
        let mut waiting_since = Instant::now();
        loop {
            let until = prepared.deadlines.next(seen(tracked), waiting_since);
            let read = watched(answered.session.read_response_body());
            let (at, chunk) = match caller.wait(read, until).await {
                Waited::Done((read_ns, Ok(Some(chunk)))) => (tracked.read_at(read_ns), chunk),
                Waited::Done((read_ns, Ok(None))) => {
                    tracked.read_at(read_ns);
                    break;
                }
                // Behind the event that ends the protocol nothing is missed.
                Waited::Done((_, Err(_))) if tracked.terminal_seen() => break,
                Waited::Done((_, Err(error))) => {
                    return Err(Stop::Failed(Failure::Upstream(
                        UpstreamFailure::Truncated,
                        error.to_string(),
                    )));
                }
                Waited::ClientLeft => return Err(Stop::ClientLeft),
                Waited::Deadline(deadline) => return Err(Stop::Failed(Failure::Deadline(deadline))),
            };
            received += chunk.len();
            if received > limit {
                return Err(protocol(format!(
                    "the stream is over the {limit} bytes from which one reply is put together \
                     (limits.response_buffer_bytes)"
                )));
            }
            tracked.observe(at, Event::UpstreamBytes(&chunk));
            if tracked.alive_at() == Some(at) {
                waiting_since = Instant::now();
            }
            assembler.push(&chunk);
            tracked.worked(at, 1);
        }
        let end = tracked.at();
        let read_at = tracked.read_at(None);
        tracked.observe(read_at, Event::UpstreamEof);
        let body = match assembler.finish() {
            Ok(body) => body,
            Err(Unassembled::ErrorEvent { status, body }) => {
                answered.set_head(json_head(status).map_err(broken)?);
                Bytes::from(body.to_string())
            }
            Err(Unassembled::Incomplete) => {
                let why = "the stream ended before the reply was complete".to_owned();
                return Err(Stop::Failed(Failure::Upstream(UpstreamFailure::Truncated, why)));
            }
            Err(Unassembled::Malformed(why)) => return Err(protocol(why)),
        };
        answered.becomes_json().map_err(broken)?;
        let whole = Whole { body, received: received as u64 };
        tracked.worked(end, 0);
        self.write_whole(caller, tracked, prepared, answered, whole).await
    }
}

fn protocol(why: String) -> Stop {
    Stop::Failed(Failure::Upstream(UpstreamFailure::Protocol, why))
}

fn json_head(status: u16) -> pingora::Result<ResponseHeader> {
    ResponseHeader::build(status, Some(4))
}
