//! The upstream as pingora's connector needs it: a peer with its options.
//!
//! Apart so that what kinds of address there are is decided in one place. Must not know: requests.

use std::time::Duration;

use pingora::upstreams::peer::HttpPeer;
use pitot_config::gateway::{Settings, UpstreamAddress};

/// Where requests go, and how connections to it are made.
#[derive(Debug, Clone)]
pub struct Upstream {
    pub name: String,
    address: UpstreamAddress,
    connect_timeout: Duration,
    idle_connection: Duration,
}

/// Longest time that one write to the upstream may make no progress.
const WRITE_TIMEOUT: Duration = Duration::from_secs(30);

impl Upstream {
    pub fn new(settings: &Settings) -> Self {
        Upstream {
            name: settings.upstream.name.clone(),
            address: settings.upstream.address.clone(),
            connect_timeout: settings.limits.connect_timeout,
            idle_connection: settings.upstream.idle_connection,
        }
    }

    /// How long an idle connection may be used again.
    pub fn idle_connection(&self) -> Duration {
        self.idle_connection
    }

    /// Value of the Host header.
    pub fn host(&self) -> String {
        match &self.address {
            UpstreamAddress::Unix(_) => "localhost".to_owned(),
            UpstreamAddress::Http { host, port } if host.contains(':') => format!("[{host}]:{port}"),
            UpstreamAddress::Http { host, port } => format!("{host}:{port}"),
        }
    }

    /// The peer to connect to. The error says why the address leads nowhere.
    pub async fn peer(&self) -> Result<HttpPeer, String> {
        let mut peer = match &self.address {
            UpstreamAddress::Unix(path) => {
                let path = path.to_str().ok_or("the path of the upstream's socket is not valid UTF-8")?;
                HttpPeer::new_uds(path, false, String::new()).map_err(|error| error.to_string())?
            }
            UpstreamAddress::Http { host, port } => {
                let address = tokio::net::lookup_host((host.as_str(), *port))
                    .await
                    .map_err(|error| format!("could not resolve {host}: {error}"))?
                    .next()
                    .ok_or_else(|| format!("{host} has no address"))?;
                HttpPeer::new(address, false, String::new())
            }
        };
        peer.options.connection_timeout = Some(self.connect_timeout);
        peer.options.total_connection_timeout = Some(self.connect_timeout);
        peer.options.idle_timeout = Some(self.idle_connection);
        peer.options.write_timeout = Some(WRITE_TIMEOUT);
        Ok(peer)
    }
}
