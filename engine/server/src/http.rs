//! The engine's HTTP: routes, limits, and errors as OpenAI writes them.
//!
//! Apart from the wire format, which is functions of values. Must not know: how a token comes about, the control
//! channel.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::middleware::{Next, from_fn};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use futures_util::StreamExt;
use http::header::{ALLOW, CACHE_CONTROL, CONTENT_LENGTH, CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, Uri};
use pitot_control::{REQUEST_ID_BYTES_MAX, REQUEST_ID_HEADER};
use serde_json::json;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::clock::{monotonic_ns, unix_seconds};
use crate::engine_thread::EngineHandle;
use crate::exposition::Exposition;
use crate::openai::common::{Delivery, Endpoint, Named, Prepared, Served};
use crate::openai::error::{ApiError, RETRY_AFTER_SECONDS};
use crate::openai::{chat, completions};
use crate::stream::Answer;

const X_REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
/// Longest time a body may take to arrive.
const BODY_TIMEOUT: Duration = Duration::from_secs(60);
/// Longest time that a refused caller may go on sending.
const DISCARD_TIMEOUT: Duration = Duration::from_secs(5);

/// What the routes need.
pub struct App {
    pub served: Served,
    pub engine: EngineHandle,
    /// None where `/metrics` is off.
    pub exposition: Option<Arc<Exposition>>,
    /// Largest body, in bytes.
    pub body_bytes_max: usize,
    /// Bounds the requests that are read, tokenised, waiting or running.
    pub requests: Arc<Semaphore>,
    /// When the model was loaded, in seconds since 1970.
    pub created: u64,
}

/// The routes.
pub fn router(app: Arc<App>) -> Router {
    Router::new()
        .route("/v1/chat/completions", post(|State(app), request| answer(app, Endpoint::Chat, request)))
        .route("/v1/completions", post(|State(app), request| answer(app, Endpoint::Completions, request)))
        .route("/v1/models", get(models))
        .route("/health", get(health))
        .route("/metrics", get(metrics))
        .fallback(unknown_path)
        .method_not_allowed_fallback(wrong_method)
        .layer(from_fn(echo_request_id))
        .with_state(app)
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let mut response = json_response(self.status, self.body());
        if self.status == StatusCode::SERVICE_UNAVAILABLE {
            response.headers_mut().insert(RETRY_AFTER, HeaderValue::from(RETRY_AFTER_SECONDS));
        }
        response
    }
}

async fn answer(app: Arc<App>, endpoint: Endpoint, request: Request) -> Result<Response, ApiError> {
    let permit = match admit(&app) {
        Ok(permit) => permit,
        Err(error) => {
            discard_body(request, app.body_bytes_max).await;
            return Err(error);
        }
    };
    let name = named(endpoint, request.headers());
    let body = read_body(request, app.body_bytes_max).await?;
    let reader = Arc::clone(&app);
    let read = move || match endpoint {
        Endpoint::Chat => chat::read(&body, &reader.served, &name),
        Endpoint::Completions => completions::read(&body, &reader.served, &name),
    };
    let failed = |_| ApiError::internal("the request could not be read");
    let Prepared { job, reply } = tokio::task::spawn_blocking(read).await.map_err(failed)??;
    let submitted = app.engine.submit(job).await;
    let events = submitted.map_err(|error| ApiError::of_job(error, endpoint.prompt_field()))?;
    let delivery = reply.delivery;
    let answer = Answer::new(events, reply, Arc::clone(&app.served.tokenizer), permit);
    match delivery {
        Delivery::Whole => Ok(json_response(StatusCode::OK, answer.whole().await?)),
        Delivery::Stream | Delivery::StreamWithUsage | Delivery::StreamWithContinuousUsage => {
            let mut response = Response::new(Body::from_stream(answer.stream()));
            let headers = response.headers_mut();
            headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream; charset=utf-8"));
            headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
            Ok(response)
        }
    }
}

fn admit(app: &App) -> Result<OwnedSemaphorePermit, ApiError> {
    match app.engine.is_draining() {
        true => Err(ApiError::draining()),
        false => Arc::clone(&app.requests).try_acquire_owned().map_err(|_| ApiError::busy()),
    }
}

fn named(endpoint: Endpoint, headers: &HeaderMap) -> Named {
    let prefix = match endpoint {
        Endpoint::Chat => "chatcmpl",
        Endpoint::Completions => "cmpl",
    };
    let gateway_id = headers.get(REQUEST_ID_HEADER).and_then(|value| value.to_str().ok());
    let gateway_id = gateway_id.filter(|id| (1..=REQUEST_ID_BYTES_MAX).contains(&id.len()));
    Named {
        id: format!("{prefix}-{}", uuid::Uuid::now_v7().simple()),
        created: unix_seconds(),
        gateway_id: gateway_id.map(str::to_owned),
        arrived_ns: monotonic_ns(),
    }
}

async fn read_body(request: Request, limit: usize) -> Result<Vec<u8>, ApiError> {
    let declared =
        request.headers().get(CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse::<u64>().ok());
    if declared.is_some_and(|bytes| bytes > limit as u64) {
        discard_body(request, limit).await;
        return Err(ApiError::too_large(limit));
    }
    let read = async {
        let mut body = Vec::new();
        let mut stream = request.into_body().into_data_stream();
        while let Some(piece) = stream.next().await {
            let piece = piece.map_err(|error| ApiError::malformed(format!("the body broke off: {error}")))?;
            if piece.len() > limit - body.len() {
                return Err(ApiError::too_large(limit));
            }
            body.extend_from_slice(&piece);
        }
        Ok(body)
    };
    tokio::time::timeout(BODY_TIMEOUT, read).await.unwrap_or_else(|_| Err(ApiError::body_timeout()))
}

/// Reads what a refused caller sends and keeps none of it: a caller that is cut off as it writes never sees why.
async fn discard_body(request: Request, limit: usize) {
    let read = async {
        let mut room = limit;
        let mut stream = request.into_body().into_data_stream();
        while let Some(Ok(piece)) = stream.next().await {
            match room.checked_sub(piece.len()) {
                Some(left) => room = left,
                None => break,
            }
        }
    };
    // The refusal is sent in any case.
    let _ = tokio::time::timeout(DISCARD_TIMEOUT, read).await;
}

async fn models(State(app): State<Arc<App>>) -> Response {
    let model = |name: &String| {
        json!({
            "id": name, "object": "model", "created": app.created, "owned_by": "pitot",
            "max_model_len": app.served.context_max,
        })
    };
    let models: Vec<serde_json::Value> = app.served.names.iter().map(model).collect();
    json_response(StatusCode::OK, json!({ "object": "list", "data": models }).to_string())
}

async fn health(State(app): State<Arc<App>>) -> Result<StatusCode, ApiError> {
    if app.engine.has_ended() {
        return Err(ApiError::stopped());
    }
    match app.engine.is_draining() {
        true => Err(ApiError::draining()),
        false => Ok(StatusCode::OK),
    }
}

async fn metrics(State(app): State<Arc<App>>, uri: Uri) -> Result<Response, ApiError> {
    let Some(exposition) = &app.exposition else { return Err(ApiError::unknown_path(uri.path())) };
    let text = exposition.text().map_err(|error| ApiError::internal(error.to_string()))?;
    let mut response = Response::new(Body::from(text));
    let text = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
    response.headers_mut().insert(CONTENT_TYPE, text);
    Ok(response)
}

async fn unknown_path(uri: Uri) -> ApiError {
    ApiError::unknown_path(uri.path())
}

async fn wrong_method(method: Method, uri: Uri) -> Response {
    let mut response = ApiError::wrong_method(method.as_str(), uri.path()).into_response();
    let allowed = if uri.path().ends_with("completions") { "POST" } else { "GET,HEAD" };
    response.headers_mut().insert(ALLOW, HeaderValue::from_static(allowed));
    response
}

async fn echo_request_id(request: Request, next: Next) -> Response {
    let id = request.headers().get(X_REQUEST_ID).cloned();
    let mut response = next.run(request).await;
    if let Some(id) = id {
        response.headers_mut().insert(X_REQUEST_ID, id);
    }
    response
}

fn json_response(status: StatusCode, body: String) -> Response {
    let mut response = Response::new(Body::from(body));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}
