//! The stream path: our own forwarder on pingora's connectors.
//!
//! Apart from `service.rs` so that nothing here is shaped by the proxy trait. A request is read whole, decided
//! about, sent, and its reply passed on: bytes go to the caller first and to the observer after. Must not know:
//! what a dialect looks like (the observer does), what the sinks do.

mod assembled;
mod attempt;
mod downstream;
mod heads;
mod stream;
mod whole;

use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use http::Method;
use pingora::Result;
use pingora::connectors::http::Connector;
use pingora::protocols::http::ServerSession;
use pitot_config::gateway::UsageSupport;
use pitot_measure::{At, BodyKind, Ending, Endpoint, Event, RefusalReason, RequestFacts, UsageAsked, Work};

use crate::app::App;
use crate::clock::Stopwatch;
use crate::decide::{self, Decision, Head, Situation};
use crate::error::Failure;
use crate::request::{self, Edit, Request, StreamWish, UsageWish};
use crate::rewrite::{self, StreamEdit};
use crate::tracked::Tracked;
use attempt::{Answered, Deadlines, UsageQuestion};
use downstream::Caller;

/// Why the serving of a request stopped before its reply had passed.
#[derive(Debug)]
enum Stop {
    /// The caller is gone; there is nobody to tell.
    ClientLeft,
    Failed(Failure),
}

/// The forwarder. One for all requests; it holds the pool of connections to the upstream.
pub struct Forwarder {
    app: Arc<App>,
    connector: Connector,
}

/// A request ready to be sent, as often as it takes.
struct Prepared {
    id: String,
    /// The `x-request-id` of the reply.
    reply_id: String,
    request: Request,
    head: pingora::http::RequestHeader,
    body: Bytes,
    /// The body for an upstream that refuses to be asked for usage; None if the gateway did not ask.
    body_without_usage: Option<Bytes>,
    /// Whether the upstream is asked to stream.
    upstream_stream: bool,
    /// What is changed in a stream; None to let everything pass.
    edit: Option<StreamEdit>,
    /// All attempts and the whole reply share them.
    deadlines: Deadlines,
}

impl Prepared {
    /// Whether the caller gets one reply put together from a stream.
    fn assembles(&self) -> bool {
        self.upstream_stream && !self.request.streams()
    }
}

impl Forwarder {
    pub fn new(app: Arc<App>) -> Self {
        Forwarder { app, connector: Connector::new(None) }
    }

    /// Serves one request to its end. An error means that the caller's connection must not be used again.
    pub async fn serve(&self, session: &mut ServerSession, watch: Stopwatch) -> Result<()> {
        let in_flight = self.app.enter();
        let others = in_flight.others;
        let mut caller = Caller::new(session);
        let ids = Ids::of(&caller);
        let endpoint = request::endpoint_of(&caller.head().method, caller.head().uri.path());
        let facts = self.facts(&caller, &ids, &request::opaque(endpoint));
        let mut tracked = Tracked::new(&self.app, in_flight, watch, facts, ids.callers.clone());
        let served = tokio::select! {
            biased;
            served = self.attend(&mut caller, &mut tracked, &ids, others) => served,
            () = self.app.drain_over() => Err(Stop::Failed(Failure::DrainOver)),
        };
        self.end(caller, tracked, ids.reply(), endpoint, served).await
    }

    /// Reads the request, decides about it, and has it answered.
    async fn attend(
        &self,
        caller: &mut Caller<'_>,
        tracked: &mut Tracked,
        ids: &Ids,
        others: usize,
    ) -> std::result::Result<(), Stop> {
        let endpoint = match self.decide(caller, others) {
            Decision::Refuse(_, failure) => return Err(Stop::Failed(failure)),
            Decision::Forward(endpoint) => endpoint,
        };
        let body = caller.read_body(self.app.settings.limits.request_body_bytes).await?;
        let last_byte = tracked.at();
        let request = self.parse(endpoint, &body);
        let known = request.as_ref().map_or_else(|_| request::opaque(endpoint), Clone::clone);
        let mut facts = self.facts(caller, ids, &known);
        (facts.request_bytes, facts.last_request_byte) = (body.len() as u64, last_byte);
        tracked.know(facts);
        let prepared = self.prepare(caller, ids, request?, body)?;
        let asked = self.usage(&prepared.request).0;
        tracked.observe(tracked.at(), Event::UsageAsked(asked));
        tracked.worked(last_byte, 0);
        self.forward(caller, tracked, &prepared).await
    }

    fn facts(&self, caller: &Caller<'_>, ids: &Ids, request: &Request) -> RequestFacts {
        RequestFacts {
            id: ids.own.clone(),
            endpoint: request.endpoint,
            model: request.model.clone(),
            upstream: self.app.upstream.name.clone(),
            key_alias: self.app.keys.alias_of(&caller.head().headers),
            stream: request.streams(),
            upstream_stream: self.upstream_stream(request),
            echo: request.echo.clone(),
            choices: request.choices,
            prompts: request.prompts,
            usage: self.usage(request).0,
            request_bytes: 0,
            last_request_byte: At::default(),
        }
    }

    /// Whether the upstream is asked to stream.
    fn upstream_stream(&self, request: &Request) -> bool {
        match &request.stream {
            StreamWish::Wanted => true,
            StreamWish::NotWanted(_) => {
                self.app.settings.measure.stream_upstream && request.endpoint.work() == Work::Generating
            }
            StreamWish::Untouchable => false,
        }
    }

    /// Makes what goes to the upstream.
    fn prepare(
        &self,
        caller: &Caller<'_>,
        ids: &Ids,
        request: Request,
        body: Bytes,
    ) -> std::result::Result<Prepared, Stop> {
        let upstream_stream = self.upstream_stream(&request);
        let (usage, edit) = self.usage(&request);
        let stream = match &request.stream {
            StreamWish::NotWanted(edit) if upstream_stream => Some(edit),
            StreamWish::NotWanted(_) | StreamWish::Wanted | StreamWish::Untouchable => None,
        };
        let asking = match (&request.usage, usage) {
            (UsageWish::NotWanted(edit), UsageAsked::ByGateway | UsageAsked::Forced) => Some(edit),
            (UsageWish::NotWanted(_), UsageAsked::ByClient | UsageAsked::Not) => None,
            (UsageWish::Wanted | UsageWish::Unasked, _) => None,
        };
        let without: Vec<&Edit> = stream.into_iter().collect();
        let with: Vec<&Edit> = stream.into_iter().chain(asking).collect();
        let edited = |edits: &[&Edit]| match edits {
            [] => body.clone(),
            edits => rewrite::edited(&body, edits),
        };
        let body_without_usage = asking.is_some().then(|| edited(&without));
        let body = edited(&with);
        let head = heads::to_upstream(caller.head(), ids, &self.app.upstream.host(), body.len()).map_err(
            |error| {
                let message = format!("the request's head cannot be passed on: {error}");
                Stop::Failed(Failure::Refused(RefusalReason::BadRequest, message))
            },
        )?;
        let (id, reply_id) = (ids.own.clone(), ids.reply().to_owned());
        let deadlines = self.deadlines();
        Ok(Prepared {
            id,
            reply_id,
            request,
            head,
            body,
            body_without_usage,
            upstream_stream,
            edit,
            deadlines,
        })
    }

    fn decide(&self, caller: &Caller<'_>, others: usize) -> Decision {
        let head = caller.head();
        let length = head.headers.get(http::header::CONTENT_LENGTH);
        let limits = &self.app.settings.limits;
        decide::decide(
            Head {
                method: &head.method,
                path: head.uri.path(),
                content_length: length.and_then(|length| length.to_str().ok()?.parse().ok()),
            },
            Situation {
                draining: self.app.is_draining(),
                in_flight: others,
                in_flight_max: limits.requests_in_flight_max,
                body_bytes_max: limits.request_body_bytes,
            },
        )
    }

    fn parse(&self, endpoint: Endpoint, body: &[u8]) -> std::result::Result<Request, Stop> {
        match endpoint {
            Endpoint::ChatCompletions
            | Endpoint::Completions
            | Endpoint::Responses
            | Endpoint::Messages
            | Endpoint::Embeddings => request::parse(endpoint, body).map_err(|error| {
                Stop::Failed(Failure::Refused(RefusalReason::BadRequest, error.to_string()))
            }),
            Endpoint::Other => Ok(request::opaque(endpoint)),
        }
    }

    /// Who asks for usage, and what is changed in the stream.
    fn usage(&self, request: &Request) -> (UsageAsked, Option<StreamEdit>) {
        let metrics = &self.app.settings.metrics;
        let streams = request.streams();
        if request.endpoint == Endpoint::Responses && streams {
            return (UsageAsked::Not, metrics.per_request.then_some(StreamEdit::SpliceResponse));
        }
        if !self.upstream_stream(request) {
            return (UsageAsked::Not, None);
        }
        let splice = metrics.per_request.then_some(StreamEdit::SpliceUsage);
        let can_ask = match self.app.upstream.usage() {
            UsageSupport::Auto | UsageSupport::StreamOptions => true,
            UsageSupport::Always | UsageSupport::Never => false,
        };
        match request.usage {
            UsageWish::Unasked => (UsageAsked::Not, None),
            UsageWish::Wanted => (UsageAsked::ByClient, splice),
            UsageWish::NotWanted(_) if !can_ask => (UsageAsked::Not, None),
            UsageWish::NotWanted(_) if metrics.force_include_usage => (UsageAsked::Forced, splice),
            UsageWish::NotWanted(_) => (UsageAsked::ByGateway, Some(StreamEdit::CutUsage)),
        }
    }

    async fn forward(
        &self,
        caller: &mut Caller<'_>,
        tracked: &mut Tracked,
        prepared: &Prepared,
    ) -> std::result::Result<(), Stop> {
        let (mut answered, first) = self.exchange(caller, tracked, prepared).await?;
        let passed = self.pass_reply(caller, tracked, prepared, &mut answered, first).await;
        match &passed {
            Ok(()) => self.release(answered).await,
            Err(Stop::ClientLeft | Stop::Failed(_)) => {
                // The closed connection tells any upstream; ours hears it sooner over the control channel.
                answered.close().await;
                self.app.link.abort(&prepared.id);
            }
        }
        passed
    }

    async fn pass_reply(
        &self,
        caller: &mut Caller<'_>,
        tracked: &mut Tracked,
        prepared: &Prepared,
        answered: &mut Answered,
        first: Bytes,
    ) -> std::result::Result<(), Stop> {
        let measured = prepared.request.endpoint.work() == Work::Generating;
        if !answered.status().is_success() || !measured {
            return self.pass_stream(caller, tracked, prepared, answered, None, first).await;
        }
        let kind = match answered.body_kind() {
            // A stream that was asked for, under a content type that does not say so.
            BodyKind::Other if prepared.upstream_stream => BodyKind::EventStream,
            kind => kind,
        };
        match kind {
            BodyKind::Json => self.pass_whole(caller, tracked, prepared, answered).await,
            BodyKind::EventStream if prepared.assembles() => {
                self.pass_assembled(caller, tracked, prepared, answered).await
            }
            BodyKind::EventStream => {
                // A question that was withdrawn has brought no chunk of ours.
                let edit = prepared.edit.filter(|_| answered.usage == UsageQuestion::AsPrepared);
                self.pass_stream(caller, tracked, prepared, answered, edit, first).await
            }
            // What is compressed against our asking cannot be read or added to, and passes as it is.
            BodyKind::Encoded | BodyKind::Other => {
                self.pass_stream(caller, tracked, prepared, answered, None, first).await
            }
        }
    }

    async fn release(&self, answered: Answered) {
        let (session, peer) = answered.into_parts();
        let idle = self.app.upstream.idle_connection();
        self.connector.release_http_session(session, &peer, Some(idle)).await;
    }

    /// Tells the caller of a failure if it can still be told, and ends the record.
    async fn end(
        &self,
        mut caller: Caller<'_>,
        mut tracked: Tracked,
        reply_id: &str,
        endpoint: Endpoint,
        served: std::result::Result<(), Stop>,
    ) -> Result<()> {
        match served {
            Ok(()) => {
                tracked.finish(Ending::UpstreamEnded);
                Ok(())
            }
            Err(Stop::ClientLeft) => {
                tracked.finish(Ending::ClientLeft);
                caller.abandon("the caller left")
            }
            // The caller has the event that ends the protocol, or the upstream's own word of what went wrong.
            Err(Stop::Failed(failure)) if tracked.end_seen() && caller.status().is_some() => {
                tracing::debug!(reason = %failure.private_message(), "a reply broke off behind its end");
                let closed = caller.close_body().await;
                tracked.finish(failure.ending());
                closed
            }
            Err(Stop::Failed(failure)) => {
                tracing::debug!(reason = %failure.private_message(), "a request failed");
                let told = caller.tell(&failure, endpoint, reply_id).await;
                if let Some(status) = caller.status() {
                    tracked.answered(status);
                }
                tracked.finish(failure.ending());
                told
            }
        }
    }
}

/// The names of one request.
#[derive(Debug, Clone)]
struct Ids {
    /// Of our own making, unique.
    own: String,
    /// The caller's, if it sent one that fits.
    callers: Option<String>,
}

impl Ids {
    fn of(caller: &Caller<'_>) -> Self {
        let fits = |id: &&str| {
            (1..=request::REQUEST_ID_BYTES_MAX).contains(&id.len())
                && id.bytes().all(|b| b.is_ascii_graphic())
        };
        let sent = caller.head().headers.get("x-request-id").and_then(|id| id.to_str().ok());
        Ids { own: uuid::Uuid::now_v7().simple().to_string(), callers: sent.filter(fits).map(str::to_owned) }
    }

    /// The name that the caller reads: its own, or else ours.
    fn reply(&self) -> &str {
        self.callers.as_deref().unwrap_or(&self.own)
    }
}

/// Collects a body up to a limit; None once it is passed.
fn collect(body: &mut BytesMut, chunk: &[u8], limit: usize) -> Option<()> {
    (body.len() + chunk.len() <= limit).then(|| body.extend_from_slice(chunk))
}

/// Methods whose requests have no body of their own unless they say so.
fn is_bodiless(method: &Method) -> bool {
    matches!(*method, Method::GET | Method::HEAD | Method::OPTIONS | Method::DELETE)
}
