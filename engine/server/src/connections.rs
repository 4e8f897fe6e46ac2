//! HTTP connections: how many, and how long a caller may take over a request's head.
//!
//! Apart because axum's own loop bounds neither. Must not know: routes, the engine.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::serve::Listener;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;

/// Bounds of one listener.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Longest time a head may take to arrive; an idle connection is closed after it too.
    pub head_timeout: Duration,
    /// Most connections at once; further ones wait in the system's queue.
    pub connections: usize,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits { head_timeout: Duration::from_secs(30), connections: 1024 }
    }
}

/// Serves connections until `quitting` has lost its sender, and then until their answers are out.
pub async fn serve<L: Listener>(
    mut listener: L,
    routes: Router,
    limits: Limits,
    mut quitting: watch::Receiver<()>,
) {
    let room = Arc::new(Semaphore::new(limits.connections));
    let mut connections = JoinSet::new();
    loop {
        let accepted = async {
            let permit = Arc::clone(&room).acquire_owned().await;
            (permit, listener.accept().await.0)
        };
        tokio::select! {
            (permit, io) = accepted => {
                connections.spawn(connection(io, routes.clone(), limits, quitting.clone(), permit));
            }
            // Reaped as they end, so that the set stays as small as they are many.
            Some(_) = connections.join_next() => {}
            () = ended(&mut quitting) => break,
        }
    }
    drop(listener);
    while connections.join_next().await.is_some() {}
}

async fn connection<T>(
    io: impl tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin,
    routes: Router,
    limits: Limits,
    mut quitting: watch::Receiver<()>,
    _permit: T,
) {
    let service = TowerToHyperService::new(routes);
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(limits.head_timeout)
        .serve_connection(TokioIo::new(io), service);
    let mut connection = std::pin::pin!(connection);
    let served = tokio::select! {
        served = connection.as_mut() => served,
        () = ended(&mut quitting) => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = served {
        tracing::debug!(%error, "a connection broke off");
    }
}

/// The sender's end is the sign to quit.
async fn ended(quitting: &mut watch::Receiver<()>) {
    while quitting.changed().await.is_ok() {}
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::{TcpListener, TcpStream};

    use super::*;

    async fn start(limits: Limits) -> (TcpListener, std::net::SocketAddr, Limits) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        (listener, address, limits)
    }

    /// All that the server says until it closes the connection.
    async fn heard(mut stream: TcpStream) -> Vec<u8> {
        let mut heard = Vec::new();
        // A reset is an end too.
        let _ = stream.read_to_end(&mut heard).await;
        heard
    }

    #[tokio::test]
    async fn a_head_that_does_not_arrive_ends_the_connection() {
        let limits = Limits { head_timeout: Duration::from_millis(50), ..Limits::default() };
        let (listener, address, limits) = start(limits).await;
        let (quit, quitting) = watch::channel(());
        let serving = tokio::spawn(serve(listener, Router::new(), limits, quitting));
        let mut slow = TcpStream::connect(address).await.unwrap();
        slow.write_all(b"GET / HTTP/1.1\r\nhost:").await.unwrap();
        // Without the timeout this would wait for ever.
        let answer = heard(slow).await;
        assert!(!answer.starts_with(b"HTTP/1.1 2"), "{answer:?}");
        drop(quit);
        serving.await.unwrap();
    }

    #[tokio::test]
    async fn further_connections_wait_for_room() {
        let (listener, address, limits) = start(Limits { connections: 1, ..Limits::default() }).await;
        let (quit, quitting) = watch::channel(());
        let serving = tokio::spawn(serve(listener, Router::new(), limits, quitting));
        let first = TcpStream::connect(address).await.unwrap();
        let mut second = TcpStream::connect(address).await.unwrap();
        second.write_all(b"GET / HTTP/1.1\r\nhost: e\r\nconnection: close\r\n\r\n").await.unwrap();
        let mut second = Box::pin(heard(second));
        let early = tokio::time::timeout(Duration::from_millis(50), &mut second).await;
        assert!(early.is_err(), "the first has the only place");
        drop(first);
        assert!(second.await.starts_with(b"HTTP/1.1 404"));
        drop(quit);
        serving.await.unwrap();
    }
}
