//! The admin listener: metrics, probes, rates and single requests, for operators and never for applications.
//!
//! Apart on a listener of its own so that it can be closed to the network that applications come from. Must not
//! know: how anything it shows was measured.

mod rates;

use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;

use anyhow::Context;
use axum::Router;
use axum::extract::{Path, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use serde::Serialize;
use serde_json::json;

use crate::app::App;
use crate::ready::{self, Readiness};

/// Records that `/requests` lists.
const LISTED_MAX: usize = 100;

/// Serves the admin pages from now on, on a thread of its own. Gives the address it listens on.
pub fn start(app: Arc<App>, address: SocketAddr) -> anyhow::Result<SocketAddr> {
    let listener = TcpListener::bind(address)
        .with_context(|| format!("cannot listen on the admin address {address} (listen.admin_address)"))?;
    listener.set_nonblocking(true)?;
    let bound = listener.local_addr()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    std::thread::Builder::new().name("admin".into()).spawn(move || {
        runtime.block_on(async move {
            let served = match tokio::net::TcpListener::from_std(listener) {
                Ok(listener) => axum::serve(listener, router(app)).await,
                Err(error) => Err(error),
            };
            if let Err(error) = served {
                tracing::error!(%error, "the admin listener ended");
            }
        });
    })?;
    Ok(bound)
}

fn router(app: Arc<App>) -> Router {
    Router::new()
        .route("/metrics", get(metrics))
        .route("/livez", get(|| async { "live\n" }))
        .route("/readyz", get(readyz))
        .route("/rates", get(rates::rates))
        .route("/requests", get(requests))
        .route("/requests/{id}", get(request))
        .route("/engine", get(engine))
        .fallback(|| async {
            let pages =
                "/metrics /livez /readyz /rates /rates?from=&to=&by= /requests /requests/{id} /engine";
            error(StatusCode::NOT_FOUND, &format!("no such page; there are {pages}"))
        })
        .with_state(app)
}

async fn metrics(State(app): State<Arc<App>>) -> Response {
    match app.emitter.metrics.text(&app.link.counters) {
        Ok(text) => {
            ([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], text).into_response()
        }
        Err(message) => error(StatusCode::INTERNAL_SERVER_ERROR, &message),
    }
}

async fn readyz(State(app): State<Arc<App>>) -> Response {
    match ready::look(&app).await {
        Readiness::Ready => "ready\n".into_response(),
        Readiness::NotReady(why) => {
            (StatusCode::SERVICE_UNAVAILABLE, format!("not ready: {why}\n")).into_response()
        }
    }
}

async fn requests(State(app): State<Arc<App>>) -> Response {
    json_of(&app.emitter.live.recent(LISTED_MAX).iter().map(|finished| finished.as_ref()).collect::<Vec<_>>())
}

async fn request(State(app): State<Arc<App>>, Path(id): Path<String>) -> Response {
    match app.emitter.live.find(&id) {
        Some(finished) => json_of(finished.as_ref()),
        None => {
            let kept = app.settings.requests.kept;
            error(StatusCode::NOT_FOUND, &format!("request {id} is not among the last {kept} that ended"))
        }
    }
}

async fn engine(State(app): State<Arc<App>>) -> Response {
    match app.link.state() {
        Some(engine) => json_of(&json!({
            "models": engine.models,
            "engine_version": engine.engine_version,
            "process_id": engine.process_id,
            "state": engine.state,
        })),
        None => error(StatusCode::SERVICE_UNAVAILABLE, "the engine has not reported its state lately"),
    }
}

fn json_of(value: &impl Serialize) -> Response {
    match serde_json::to_vec(value) {
        Ok(body) => ([(header::CONTENT_TYPE, "application/json")], body).into_response(),
        Err(failure) => error(StatusCode::INTERNAL_SERVER_ERROR, &failure.to_string()),
    }
}

fn error(status: StatusCode, message: &str) -> Response {
    let body = json!({ "error": { "message": message, "code": status.as_u16() } }).to_string();
    (status, [(header::CONTENT_TYPE, "application/json")], body).into_response()
}
