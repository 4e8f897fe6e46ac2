//! Settings of the gateway, `pitot.toml`.
//!
//! Apart from the engine's, since each program resolves only its own. Must not know: where a value came from.

use std::fmt;
use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::layers::{Product, Sources};
use crate::problem::Problems;
use crate::said::{Said, fits_socket};
use crate::shared::{self, Log};
use crate::{Resolved, engine};

/// The default file, as compiled in.
pub const DEFAULTS: &str = include_str!("../pitot.toml");
pub const FILE_NAME: &str = "pitot.toml";

const DAY_MS: u64 = 86_400_000;
const HOUR_MS: u64 = 3_600_000;

/// Everything the gateway can be told; each field's meaning stands in `pitot.toml`.
#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    pub listen: Listen,
    pub upstream: Upstream,
    pub limits: Limits,
    pub metrics: Metrics,
    pub measure: Measure,
    pub requests: Requests,
    /// None when no journal is written.
    pub journal: Option<Journal>,
    pub log: Log,
    pub engine: Engine,
}

/// `[listen]`. The two addresses differ unless the port is 0.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listen {
    pub address: SocketAddr,
    pub admin_address: SocketAddr,
    pub threads: NonZeroUsize,
}

/// `[upstream]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Upstream {
    /// 1 to 64 of letters, digits, dot, dash, underscore: fit for a label.
    pub name: String,
    pub address: UpstreamAddress,
    /// None when the upstream is not our engine.
    pub control_socket: Option<PathBuf>,
    pub usage: UsageSupport,
    pub idle_connection: Duration,
}

/// Where an upstream listens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum UpstreamAddress {
    /// Path of a Unix socket, at most 103 bytes.
    Unix(PathBuf),
    /// Plain HTTP over TCP. The host is a name or an address, an IPv6 one without brackets.
    Http { host: String, port: u16 },
}

impl fmt::Display for UpstreamAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            UpstreamAddress::Unix(path) => write!(f, "unix:{}", path.display()),
            UpstreamAddress::Http { host, port } if host.contains(':') => write!(f, "http://[{host}]:{port}"),
            UpstreamAddress::Http { host, port } => write!(f, "http://{host}:{port}"),
        }
    }
}

/// How an upstream reports usage in a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UsageSupport {
    /// Found out from what comes: asked for, and expected once it has come.
    Auto,
    /// When asked by `stream_options.include_usage`.
    StreamOptions,
    Always,
    Never,
}

/// `[limits]`. None is no limit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limits {
    pub request_body_bytes: usize,
    pub response_buffer_bytes: usize,
    pub read_ahead_bytes: usize,
    pub connect_timeout: Duration,
    pub first_token_timeout: Option<Duration>,
    pub idle_timeout: Option<Duration>,
    pub total_timeout: Option<Duration>,
    pub requests_in_flight_max: usize,
    pub drain_timeout: Duration,
}

/// `[metrics]`. `per_request` implies `log_stats`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Metrics {
    pub per_request: bool,
    pub output: bool,
    pub client: bool,
    pub log_stats: bool,
    pub force_include_usage: bool,
    pub models_max: usize,
}

/// `[measure]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Measure {
    /// 400 or 401.
    pub http_error_from: u16,
    pub case2: Case2,
    pub inline_think: bool,
    pub observe_deadline: Option<Duration>,
    pub server_timing: bool,
    /// The upstream is asked to stream also for callers that do not.
    pub stream_upstream: bool,
    /// No alias and no digest stands twice.
    pub key_aliases: Vec<KeyAlias>,
}

/// A name for whoever calls with one API key; the key itself is not in the configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyAlias {
    /// 1 to 64 of letters, digits, dot, dash, underscore: fit for a label.
    pub alias: String,
    /// SHA-256 of the key's bytes.
    pub key_sha256: [u8; 32],
}

/// What a reply with reasoning and without body counts as.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Case2 {
    Default,
    Strict,
}

/// `[requests]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Requests {
    pub kept: usize,
}

/// `[journal]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Journal {
    pub directory: PathBuf,
    pub file_bytes_max: u64,
    pub files_max: usize,
    pub queue_max: usize,
}

/// `[engine]`, for `pitot up`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Engine {
    /// A name without a slash is looked for on the PATH.
    pub command: PathBuf,
    pub config: Option<PathBuf>,
    pub restart_backoff_min: Duration,
    /// At least `restart_backoff_min`.
    pub restart_backoff_max: Duration,
    pub ready_timeout: Duration,
}

const PRODUCT: Product = Product {
    defaults: DEFAULTS,
    file_name: FILE_NAME,
    other_defaults: engine::DEFAULTS,
    other_file_name: engine::FILE_NAME,
};

/// Resolves the gateway's settings.
///
/// # Errors
/// Everything that is wrong, at once.
pub fn resolve(sources: &Sources) -> Result<Resolved<Settings>, Problems> {
    let mut said = Said::new(&PRODUCT, sources);
    let settings = Settings {
        listen: listen(&mut said),
        upstream: upstream(&mut said),
        limits: limits(&mut said),
        metrics: metrics(&mut said),
        measure: measure(&mut said),
        requests: Requests { kept: said.number("requests.kept", "requests", 1..=1_000_000) },
        journal: journal(&mut said),
        log: shared::log(&mut said),
        engine: engine_process(&mut said),
    };
    said.finish(settings)
}

fn listen(said: &mut Said) -> Listen {
    let listen = Listen {
        address: said.address("listen.address"),
        admin_address: said.address("listen.admin_address"),
        threads: said.threads("listen.threads"),
    };
    if listen.address == listen.admin_address && listen.address.port() != 0 {
        said.contradict("listen.address", "listen.admin_address", "one address cannot serve both");
    }
    listen
}

fn upstream(said: &mut Said) -> Upstream {
    let name = said.read("upstream.name", "1 to 64 letters, digits, dots, dashes or underscores", |given| {
        given.text().filter(|name| fits_label(name)).map(str::to_owned)
    });
    let address = upstream_address(said);
    let control_socket = control_socket(said, &address);
    let usage = said.choice(
        "upstream.usage",
        &[
            ("auto", UsageSupport::Auto),
            ("stream_options", UsageSupport::StreamOptions),
            ("always", UsageSupport::Always),
            ("never", UsageSupport::Never),
        ],
    );
    let idle_connection = said.milliseconds("upstream.idle_connection_ms", 1..=HOUR_MS);
    Upstream { name, address, control_socket, usage, idle_connection }
}

fn upstream_address(said: &mut Said) -> UpstreamAddress {
    let environment = said.environment;
    let takes = "\"unix:\" and a path of at most 103 bytes, \"http://host:port\", or \"auto\"";
    let address = said.read("upstream.address", takes, |given| match given.text()? {
        "auto" => Some(UpstreamAddress::Unix(environment.socket_folder().join("engine.sock"))),
        text => match text.strip_prefix("unix:") {
            Some(path) => Some(UpstreamAddress::Unix(fits_socket(environment.expand(path)?)?)),
            None => http_address(text),
        },
    });
    said.came_to(address.to_string());
    if let UpstreamAddress::Unix(path) = &address {
        said.refuse_long_socket(path);
    }
    address
}

/// Reads `http://host:port`, with nothing behind it but a slash.
fn http_address(text: &str) -> Option<UpstreamAddress> {
    let authority = text.strip_prefix("http://")?;
    let (host, port) = authority.strip_suffix('/').unwrap_or(authority).rsplit_once(':')?;
    let port: u16 = port.parse().ok().filter(|port| *port != 0)?;
    let host = match host.strip_prefix('[').and_then(|host| host.strip_suffix(']')) {
        Some(address) => address.parse::<std::net::Ipv6Addr>().ok()?.to_string(),
        None => {
            let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
            ((1..=253).contains(&host.len()) && host.chars().all(fits)).then(|| host.to_owned())?
        }
    };
    Some(UpstreamAddress::Http { host, port })
}

fn control_socket(said: &mut Said, address: &UpstreamAddress) -> Option<PathBuf> {
    let environment = said.environment;
    let beside = match address {
        UpstreamAddress::Unix(path) => Some(path.parent().unwrap_or(Path::new("")).join("control.sock")),
        UpstreamAddress::Http { .. } => None,
    };
    let takes = "a path of at most 103 bytes, \"auto\", or \"none\"";
    let socket = said.read("upstream.control_socket", takes, |given| match given.text()? {
        "auto" => Some(beside.clone()),
        "none" => Some(None),
        text => Some(Some(fits_socket(environment.expand(text)?)?)),
    });
    said.came_to(socket.as_ref().map_or("none".to_owned(), |path| path.display().to_string()));
    if let Some(path) = &socket {
        said.refuse_long_socket(path);
    }
    socket
}

fn limits(said: &mut Said) -> Limits {
    Limits {
        request_body_bytes: said.number("limits.request_body_bytes", "bytes", 1024..=1 << 30),
        response_buffer_bytes: said.number("limits.response_buffer_bytes", "bytes", 1024..=1 << 30),
        read_ahead_bytes: said.number("limits.read_ahead_bytes", "bytes", 1024..=1 << 30),
        connect_timeout: said.milliseconds("limits.connect_timeout_ms", 1..=600_000),
        first_token_timeout: said.milliseconds_or_none("limits.first_token_timeout_ms", 1..=DAY_MS),
        idle_timeout: said.milliseconds_or_none("limits.idle_timeout_ms", 1..=DAY_MS),
        total_timeout: said.milliseconds_or_none("limits.total_timeout_ms", 1..=DAY_MS),
        requests_in_flight_max: said.number("limits.requests_in_flight_max", "requests", 1..=1_000_000),
        drain_timeout: said.milliseconds("limits.drain_timeout_ms", 1..=HOUR_MS),
    }
}

fn metrics(said: &mut Said) -> Metrics {
    let shared::SharedMetrics { per_request, log_stats, force_include_usage } = shared::metrics(said);
    Metrics {
        per_request,
        output: said.switch("metrics.output"),
        client: said.switch("metrics.client"),
        log_stats,
        force_include_usage,
        models_max: said.number("metrics.models_max", "names", 1..=10_000),
    }
}

fn measure(said: &mut Said) -> Measure {
    Measure {
        http_error_from: said.number("measure.http_error_from", "an HTTP status", 400..=401),
        case2: said.choice("measure.case2", &[("default", Case2::Default), ("strict", Case2::Strict)]),
        inline_think: said.switch("measure.inline_think"),
        observe_deadline: said.milliseconds_or_none("measure.observe_deadline_ms", 1..=DAY_MS),
        server_timing: said.switch("measure.server_timing"),
        stream_upstream: said.switch("measure.stream_upstream"),
        key_aliases: key_aliases(said),
    }
}

fn key_aliases(said: &mut Said) -> Vec<KeyAlias> {
    let takes =
        "a list of alias=digest, each alias once, a digest being the SHA-256 of a key in 64 hex digits";
    said.read("measure.key_aliases", takes, |given| {
        let list = given.list()?;
        let aliases = list.iter().map(|item| key_alias(item.text()?)).collect::<Option<Vec<KeyAlias>>>()?;
        let is_repeated = |place: usize, alias: &KeyAlias| {
            aliases[..place]
                .iter()
                .any(|other| other.alias == alias.alias || other.key_sha256 == alias.key_sha256)
        };
        let repeated = aliases.iter().enumerate().any(|(place, alias)| is_repeated(place, alias));
        (!repeated).then_some(aliases)
    })
}

fn key_alias(text: &str) -> Option<KeyAlias> {
    let (alias, digest) = text.split_once('=')?;
    let mut key_sha256 = [0; 32];
    if !fits_label(alias) || digest.len() != 64 || !digest.is_ascii() {
        return None;
    }
    for (place, byte) in key_sha256.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&digest[2 * place..2 * place + 2], 16).ok()?;
    }
    Some(KeyAlias { alias: alias.to_owned(), key_sha256 })
}

fn fits_label(name: &str) -> bool {
    let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
    (1..=64).contains(&name.len()) && name.chars().all(fits)
}

fn journal(said: &mut Said) -> Option<Journal> {
    let enabled = said.switch("journal.enabled");
    let folder = said.environment.journal_folder();
    let journal = Journal {
        directory: said.path_or_auto("journal.directory", folder),
        file_bytes_max: said.number("journal.file_bytes_max", "bytes", 65_536..=1 << 40),
        files_max: said.number("journal.files_max", "files", 1..=10_000),
        queue_max: said.number("journal.queue_max", "records", 1..=1_000_000),
    };
    enabled.then_some(journal)
}

fn engine_process(said: &mut Said) -> Engine {
    let program = Path::new("pitot-engine");
    let beside = said.environment.executable.as_ref().map(|own| own.with_file_name(program));
    let command = beside.filter(|path| path.is_file()).unwrap_or(program.to_path_buf());
    let engine = Engine {
        command: said.path_or_auto("engine.command", command),
        config: said.path_or_none("engine.config"),
        restart_backoff_min: said.milliseconds("engine.restart_backoff_min_ms", 1..=HOUR_MS),
        restart_backoff_max: said.milliseconds("engine.restart_backoff_max_ms", 1..=HOUR_MS),
        ready_timeout: said.milliseconds("engine.ready_timeout_ms", 1..=DAY_MS),
    };
    if engine.restart_backoff_min > engine.restart_backoff_max {
        let why = "the shortest wait is longer than the longest";
        said.contradict("engine.restart_backoff_min_ms", "engine.restart_backoff_max_ms", why);
    }
    engine
}
