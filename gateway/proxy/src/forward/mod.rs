//! The stream path: our own forwarder on pingora's connectors.
//!
//! Apart from `service.rs` so that nothing here is shaped by the proxy trait. A request is read whole, decided
//! about, sent, and its reply passed on: bytes go to the caller first and to the observer after. Must not know:
//! what a dialect looks like (the observer does), what the sinks do.

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
use pitot_measure::{BodyKind, Ending, Endpoint, Event, RefusalReason, RequestFacts, UsageAsked};

use crate::app::App;
use crate::clock::Stopwatch;
use crate::decide::{self, Decision, Head, Situation};
use crate::error::Failure;
use crate::request::{self, Request, UsageWish};
use crate::rewrite::{self, UsageChunk};
use crate::tracked::Tracked;
use attempt::{Answered, Deadlines};
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
    /// What becomes of the usage chunk of a stream; None to let everything pass.
    usage_chunk: Option<UsageChunk>,
    /// All attempts and the whole reply share them.
    deadlines: Deadlines,
}

impl Forwarder {
    pub fn new(app: Arc<App>) -> Self {
        Forwarder { app, connector: Connector::new(None) }
    }

    /// Serves one request to its end. An error means that the caller's connection must not be used again.
    pub async fn serve(&self, session: &mut ServerSession, watch: Stopwatch) -> Result<()> {
        let in_flight = self.app.enter();
        let mut caller = Caller::new(session);
        let decision = self.decide(&caller, in_flight.others);
        let endpoint = match &decision {
            Decision::Forward(endpoint) | Decision::Refuse(endpoint, _) => *endpoint,
        };
        let ids = Ids::of(&caller);
        let body = match decision {
            Decision::Refuse(_, failure) => Err(Stop::Failed(failure)),
            Decision::Forward(_) => caller.read_body(self.app.settings.limits.request_body_bytes).await,
        };
        let last_byte = watch.at();
        let parsed = body.and_then(|body| {
            let request = self.parse(endpoint, &body)?;
            Ok((request, body))
        });
        let (request, body) = match parsed {
            Ok((request, body)) => (request, Ok(body)),
            Err(stop) => (request::opaque(endpoint), Err(stop)),
        };
        let bytes = body.as_ref().map_or(0, Bytes::len);
        let (usage, usage_chunk) = self.usage(&request);
        let facts = RequestFacts {
            id: ids.own.clone(),
            endpoint,
            model: request.model.clone(),
            upstream: self.app.upstream.name.clone(),
            stream: request.stream,
            choices: request.choices,
            prompts: request.prompts,
            usage,
            request_bytes: bytes as u64,
            last_request_byte: last_byte,
        };
        let mut tracked = Tracked::new(&self.app, in_flight, watch, facts, ids.callers.clone());
        let served = match body {
            Err(stop) => Err(stop),
            Ok(body) => {
                let body = if usage_chunk_asked(usage) { asked(&request, &body) } else { body };
                let head = heads::to_upstream(caller.head(), &ids, &self.app.upstream.host(), body.len());
                match head {
                    Ok(head) => {
                        let reply_id = ids.reply().to_owned();
                        let (id, deadlines) = (ids.own.clone(), self.deadlines());
                        let prepared = Prepared { id, reply_id, request, head, body, usage_chunk, deadlines };
                        self.forward(&mut caller, &mut tracked, &prepared).await
                    }
                    Err(error) => {
                        let message = format!("the request's head cannot be passed on: {error}");
                        Err(Stop::Failed(Failure::Refused(RefusalReason::BadRequest, message)))
                    }
                }
            }
        };
        self.end(caller, tracked, ids.reply(), served).await
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
            Endpoint::ChatCompletions | Endpoint::Completions | Endpoint::Embeddings => {
                request::parse(endpoint, body).map_err(|error| {
                    Stop::Failed(Failure::Refused(RefusalReason::BadRequest, error.to_string()))
                })
            }
            Endpoint::Other => Ok(request::opaque(endpoint)),
        }
    }

    /// Who asked for usage, and what becomes of the chunk that carries it.
    fn usage(&self, request: &Request) -> (UsageAsked, Option<UsageChunk>) {
        let generating = matches!(request.endpoint, Endpoint::ChatCompletions | Endpoint::Completions);
        let per_request = self.app.settings.metrics.per_request;
        if !generating || !request.stream {
            return (UsageAsked::Not, None);
        }
        let splice = per_request.then_some(UsageChunk::Splice);
        let supported = self.app.settings.upstream.usage == UsageSupport::StreamOptions;
        match request.usage {
            UsageWish::Wanted => (UsageAsked::ByClient, splice),
            UsageWish::NotWanted(_) if !supported => (UsageAsked::Not, None),
            UsageWish::NotWanted(_) if self.app.settings.metrics.force_include_usage => {
                (UsageAsked::Forced, splice)
            }
            UsageWish::NotWanted(_) => (UsageAsked::ByGateway, Some(UsageChunk::Cut)),
        }
    }

    async fn forward(
        &self,
        caller: &mut Caller<'_>,
        tracked: &mut Tracked,
        prepared: &Prepared,
    ) -> std::result::Result<(), Stop> {
        let mut answered = self.exchange(caller, tracked, prepared).await?;
        let body = BodyKind::of(answered.content_type());
        let status = answered.status();
        let head_at = tracked.at();
        tracked.observe(head_at, Event::Head { status: status.as_u16(), body });
        let measured = matches!(prepared.request.endpoint, Endpoint::ChatCompletions | Endpoint::Completions);
        // What is compressed against our asking cannot be read or added to, and passes as it is.
        let plain = !answered.head().headers.contains_key(http::header::CONTENT_ENCODING);
        let passed = if body == BodyKind::Json && measured && plain && status.is_success() {
            self.pass_whole(caller, tracked, prepared, &mut answered).await
        } else {
            let action = prepared.usage_chunk.filter(|_| body == BodyKind::EventStream && plain);
            self.pass_stream(caller, tracked, prepared, &mut answered, action, Bytes::new()).await
        };
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
            Err(Stop::Failed(failure)) => {
                tracing::debug!(reason = %failure.private_message(), "a request failed");
                let told = caller.tell(&failure, reply_id).await;
                if let Some(status) = caller.status() {
                    tracked.answered(status);
                }
                tracked.finish(failure.ending());
                told
            }
        }
    }
}

fn usage_chunk_asked(usage: UsageAsked) -> bool {
    match usage {
        UsageAsked::ByGateway | UsageAsked::Forced => true,
        UsageAsked::ByClient | UsageAsked::Not => false,
    }
}

fn asked(request: &Request, body: &Bytes) -> Bytes {
    match &request.usage {
        UsageWish::Wanted => body.clone(),
        UsageWish::NotWanted(edit) => rewrite::ask_for_usage(body, edit),
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
