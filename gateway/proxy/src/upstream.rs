//! The upstream as pingora's connector needs it: a peer with its options.
//!
//! Apart so that what kinds of address there are is decided in one place. Must not know: requests.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use pingora::upstreams::peer::HttpPeer;
use pitot_config::gateway::{Settings, UpstreamAddress, UsageSupport};
use pitot_measure::{Quantity, Record, Source, Transfer, UsageAsked};

use crate::stamped::StampedConnect;

/// Where requests go, and how connections to it are made.
#[derive(Debug)]
pub struct Upstream {
    pub name: String,
    /// A [`UsageSupport`] as a number, since it may be learnt.
    usage: AtomicU8,
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
            usage: AtomicU8::new(match (settings.upstream.usage, &settings.upstream.control_socket) {
                // An engine with a control channel is ours, and ours answers the question.
                (UsageSupport::Auto, Some(_)) => UsageSupport::StreamOptions,
                (said, _) => said,
            } as u8),
            address: settings.upstream.address.clone(),
            connect_timeout: settings.limits.connect_timeout,
            idle_connection: settings.upstream.idle_connection,
        }
    }

    /// How it reports usage in a stream, as far as that is said or known by now.
    pub fn usage(&self) -> UsageSupport {
        let known = self.usage.load(Ordering::Relaxed);
        let all = [UsageSupport::StreamOptions, UsageSupport::Always, UsageSupport::Never];
        all.into_iter().find(|usage| *usage as u8 == known).unwrap_or(UsageSupport::Auto)
    }

    /// Learns from a finished request: an upstream that has sent usage when asked does so.
    pub fn learn(&self, record: &Record) {
        let asked = record.usage_asked != UsageAsked::Not;
        let came = matches!(record.tokens.output, Quantity::Known { source: Source::Reported, .. });
        if asked && came && record.transfer == Transfer::Streamed {
            self.turn(UsageSupport::Auto, UsageSupport::StreamOptions);
        }
    }

    /// Learns that a request was refused for asking and taken without.
    pub fn refuses_usage(&self) {
        tracing::info!(upstream = %self.name, "the upstream refuses stream_options and is not asked for usage any more");
        self.turn(UsageSupport::Auto, UsageSupport::Never);
        self.turn(UsageSupport::StreamOptions, UsageSupport::Never);
    }

    fn turn(&self, from: UsageSupport, to: UsageSupport) {
        // Another thread may have learnt the same, or better; either is as good.
        let _ = self.usage.compare_exchange(from as u8, to as u8, Ordering::Relaxed, Ordering::Relaxed);
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
        peer.options.custom_l4 = Some(Arc::new(StampedConnect));
        peer.options.connection_timeout = Some(self.connect_timeout);
        peer.options.total_connection_timeout = Some(self.connect_timeout);
        peer.options.idle_timeout = Some(self.idle_connection);
        peer.options.write_timeout = Some(WRITE_TIMEOUT);
        Ok(peer)
    }
}
