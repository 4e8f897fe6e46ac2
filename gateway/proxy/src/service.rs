//! Glue to pingora: each hook turns its arguments into one call.
//!
//! Apart because it is the only file that pingora's trait shapes. The stream path is our own
//! (`proxy_upstream_filter` answers false): ARCHITECTURE.md says why, with the numbers of the trial. Must not
//! know: how anything is done.

use std::sync::Arc;

use async_trait::async_trait;
use pingora::proxy::{ProxyHttp, Session};
use pingora::upstreams::peer::HttpPeer;
use pingora::{Error, ErrorType, Result};

use crate::clock::Stopwatch;
use crate::forward::Forwarder;

/// The proxy service.
pub struct Service {
    pub forwarder: Arc<Forwarder>,
}

#[async_trait]
impl ProxyHttp for Service {
    /// The clock that started when the head had been read.
    type CTX = Stopwatch;

    fn new_ctx(&self) -> Stopwatch {
        Stopwatch::start()
    }

    async fn proxy_upstream_filter(&self, session: &mut Session, watch: &mut Stopwatch) -> Result<bool> {
        self.forwarder.serve(&mut session.downstream_session, *watch).await?;
        Ok(false)
    }

    async fn upstream_peer(&self, _session: &mut Session, _watch: &mut Stopwatch) -> Result<Box<HttpPeer>> {
        // Never asked for: the filter above answers every request.
        Error::e_explain(ErrorType::InternalError, "the stream path is not pingora's own")
    }

    /// A caller that leaves is in its record, not an error of ours.
    fn suppress_error_log(&self, _session: &Session, _watch: &Stopwatch, _error: &Error) -> bool {
        true
    }
}
