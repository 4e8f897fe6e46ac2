//! Whether requests can be served now, and if not, why.
//!
//! Apart because the probe, the supervisor's start and the commands ask the same question and must get the same
//! answer. Must not know: who asks.

use std::time::Duration;

use pitot_config::gateway::UpstreamAddress;

use crate::app::App;

/// Longest wait for a connection that only asks whether anybody listens.
const CONNECT_WAIT: Duration = Duration::from_secs(1);

/// The answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Readiness {
    Ready,
    NotReady(String),
}

/// Looks whether the gateway takes requests and the upstream answers.
pub async fn look(app: &App) -> Readiness {
    if app.is_draining() {
        return Readiness::NotReady("the gateway is shutting down".into());
    }
    let listening = async {
        match app.listening.get() {
            Some(address) => tokio::net::TcpStream::connect(address).await.is_ok(),
            None => false,
        }
    };
    if tokio::time::timeout(CONNECT_WAIT, listening).await != Ok(true) {
        return Readiness::NotReady("the gateway does not listen yet".into());
    }
    if app.settings.upstream.control_socket.is_some() {
        match app.link.state() {
            None => return Readiness::NotReady("the engine does not report its state".into()),
            Some(engine) if engine.state.draining => {
                return Readiness::NotReady("the engine is draining".into());
            }
            Some(_) => {}
        }
    }
    let connecting = async {
        match &app.settings.upstream.address {
            UpstreamAddress::Unix(path) => tokio::net::UnixStream::connect(path).await.map(drop),
            UpstreamAddress::Http { host, port } => {
                tokio::net::TcpStream::connect((host.as_str(), *port)).await.map(drop)
            }
        }
    };
    match tokio::time::timeout(CONNECT_WAIT, connecting).await {
        Ok(Ok(())) => Readiness::Ready,
        Ok(Err(error)) => Readiness::NotReady(format!("{}: {error}", app.settings.upstream.address)),
        Err(_) => Readiness::NotReady(format!("{} does not answer", app.settings.upstream.address)),
    }
}
