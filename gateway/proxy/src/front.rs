//! Tells HTTP/2 from HTTP/1 on one port, by the first bytes of a connection.
//!
//! Apart because pingora's own look reads as many bytes as the HTTP/2 preface has before it decides, so that a
//! shorter HTTP/1.0 request would wait for ever. Here a connection is HTTP/1 as soon as a byte differs. Must not
//! know: requests.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use pingora::apps::{HttpServerOptions, ServerApp};
use pingora::protocols::Stream;
use pingora::protocols::l4::stream::Stream as Connection;
use pingora::proxy::HttpProxy;
use pingora::server::ShutdownWatch;
use pingora::server::configuration::ServerConf;
use tokio::io::AsyncReadExt;

use crate::forward::Forwarder;
use crate::service::Service;

/// What an HTTP/2 caller without TLS begins with (RFC 9113, section 3.4).
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// Longest wait for the first bytes of a connection.
const FIRST_BYTES_TIMEOUT: Duration = Duration::from_secs(60);

/// The application behind the listener.
pub struct Front {
    http1: Arc<HttpProxy<Service>>,
    http2: Arc<HttpProxy<Service>>,
}

impl Front {
    pub fn new(forwarder: Arc<Forwarder>, conf: &Arc<ServerConf>) -> Self {
        let proxy = |h2c: bool| {
            let mut proxy = HttpProxy::new(Service { forwarder: Arc::clone(&forwarder) }, Arc::clone(conf));
            proxy.handle_init_modules();
            let mut options = HttpServerOptions::default();
            options.h2c = h2c;
            proxy.server_options = Some(options);
            Arc::new(proxy)
        };
        Front { http1: proxy(false), http2: proxy(true) }
    }
}

#[async_trait]
impl ServerApp for Front {
    async fn process_new(self: &Arc<Self>, stream: Stream, shutdown: &ShutdownWatch) -> Option<Stream> {
        let connection = stream.into_any().downcast::<Connection>().ok()?;
        let looked = tokio::time::timeout(FIRST_BYTES_TIMEOUT, look(connection)).await.ok()?;
        let (connection, protocol) = looked?;
        match protocol {
            Protocol::Http1 => self.http1.process_new(connection, shutdown).await,
            Protocol::Http2 => self.http2.process_new(connection, shutdown).await,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Protocol {
    Http1,
    Http2,
}

/// Reads until the protocol is clear and puts the bytes back. None if the caller left before.
async fn look(mut connection: Box<Connection>) -> Option<(Stream, Protocol)> {
    let mut first = [0; PREFACE.len()];
    let mut read = 0;
    while read < PREFACE.len() && PREFACE.starts_with(&first[..read]) {
        match connection.read(&mut first[read..]).await {
            Ok(0) | Err(_) => return None,
            Ok(bytes) => read += bytes,
        }
    }
    connection.rewind(&first[..read]);
    let protocol = if first == PREFACE { Protocol::Http2 } else { Protocol::Http1 };
    Some((connection, protocol))
}
