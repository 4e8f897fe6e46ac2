//! One question asked of our own endpoint, as an application would ask it.
//!
//! Apart from `up`, which starts what is asked here. Goes through the front door, over TCP, so that what is shown
//! is what a caller gets. Must not know: how the gateway works inside.

use std::io::Write;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow, bail};
use bytes::Bytes;
use pingora::connectors::http::Connector;
use pingora::http::RequestHeader;
use pingora::upstreams::peer::HttpPeer;
use pitot_measure::{OutcomeKind, sse};
use serde_json::{Value, json};

use crate::app::App;
use crate::commands::{report, serve};

/// Longest answer to a question of the command line.
const ANSWER_TOKENS_MAX: u32 = 512;
/// How long the record may take to appear once the answer has ended.
const RECORD_WAIT: Duration = Duration::from_secs(2);

/// Asks, streams the answer to the standard output, then prints the measured request.
pub fn ask(app: &App, addresses: serve::Addresses, question: &str) -> anyhow::Result<ExitCode> {
    let model = app.link.state().and_then(|engine| engine.models.first().cloned());
    let model = model.ok_or_else(|| anyhow!("the engine does not say which model it serves"))?;
    let body = json!({
        "model": model,
        "messages": [{ "role": "user", "content": question }],
        "stream": true,
        "stream_options": { "include_usage": true },
        "temperature": 0,
        "max_tokens": ANSWER_TOKENS_MAX,
    });
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let id = runtime.block_on(stream_answer(addresses, body.to_string()))?;
    let deadline = Instant::now() + RECORD_WAIT;
    let finished = loop {
        match app.emitter.live.find(&id) {
            Some(finished) => break finished,
            None if Instant::now() > deadline => bail!("the record of request {id} did not appear"),
            None => std::thread::sleep(Duration::from_millis(5)),
        }
    };
    // A reader that has seen enough and left changes nothing of the outcome.
    let _ = std::io::stdout().write_all(report::text(&finished).as_bytes());
    Ok(match finished.record.outcome {
        OutcomeKind::Success => ExitCode::SUCCESS,
        OutcomeKind::Cancelled
        | OutcomeKind::Timeout
        | OutcomeKind::HttpError
        | OutcomeKind::Interrupted
        | OutcomeKind::Other => ExitCode::FAILURE,
    })
}

/// Sends the request and prints the answer as it comes. Gives the request's id.
async fn stream_answer(addresses: serve::Addresses, body: String) -> anyhow::Result<String> {
    let connector: Connector = Connector::new(None);
    let peer = HttpPeer::new(addresses.applications, false, String::new());
    let (mut session, _) =
        connector.get_http_session(&peer).await.context("the gateway cannot be reached")?;
    let mut head = RequestHeader::build("POST", b"/v1/chat/completions", None)?;
    head.insert_header("host", addresses.applications.to_string())?;
    head.insert_header("content-type", "application/json")?;
    head.insert_header("content-length", body.len())?;
    session.write_request_header(Box::new(head)).await?;
    session.write_request_body(Bytes::from(body), true).await?;
    session.read_response_header().await?;
    let head = session.response_header().context("the gateway did not answer")?;
    let status = head.status;
    let id = head.headers.get("x-request-id").and_then(|id| id.to_str().ok());
    let id = id.context("the reply has no x-request-id")?.to_owned();
    if !status.is_success() {
        let mut text = Vec::new();
        while let Some(chunk) = session.read_response_body().await? {
            text.extend_from_slice(&chunk);
        }
        bail!("the gateway answered {status}: {}", String::from_utf8_lossy(&text));
    }
    let mut splitter = sse::Splitter::default();
    let mut out = std::io::stdout();
    while let Some(chunk) = session.read_response_body().await? {
        for piece in splitter.push(&chunk) {
            let Some(data) = sse::data(&piece) else { continue };
            let Ok(event) = serde_json::from_slice::<Value>(&data) else { continue };
            if let Some(message) = event["error"]["message"].as_str() {
                bail!("the stream broke off: {message}");
            }
            if let Some(text) = event["choices"][0]["delta"]["content"].as_str() {
                out.write_all(text.as_bytes())?;
                out.flush()?;
            }
        }
    }
    writeln!(out)?;
    Ok(id)
}
