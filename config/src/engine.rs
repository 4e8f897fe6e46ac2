//! Settings of the engine, `engine.toml`.
//!
//! Apart from the gateway's, since each program resolves only its own. Must not know: where a value came from.

use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::time::Duration;

use crate::layers::{Product, Sources};
use crate::problem::Problems;
use crate::said::{Given, Said};
use crate::shared::{self, Log};
use crate::{Resolved, gateway};

/// The default file, as compiled in.
pub const DEFAULTS: &str = include_str!("../engine.toml");
pub const FILE_NAME: &str = "engine.toml";

/// Everything the engine can be told; each field's meaning stands in `engine.toml`.
#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    pub model: Model,
    pub listen: Listen,
    pub control: Control,
    pub memory: Memory,
    pub scheduler: Scheduler,
    pub compute: Compute,
    pub metrics: Metrics,
    pub shutdown: Shutdown,
    pub log: Log,
}

/// `[model]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Model {
    pub source: ModelSource,
    /// Folder in which models lie.
    pub directory: PathBuf,
    /// Empty means the model's own name.
    pub served_model_name: Vec<String>,
}

/// Which model is served.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ModelSource {
    /// `name` or `org/name`: plain characters, safe as a relative path below [`Model::directory`].
    Name(String),
    Folder(PathBuf),
}

impl ModelSource {
    /// Reads a name, or a path, which begins with `/`, `./`, `../` or `~/` (or is `.` or `..`).
    ///
    /// For the argument of `pitot-engine pull` too. None when it is neither.
    pub fn parse(text: &str, environment: &crate::Environment) -> Option<Self> {
        if matches!(text, "." | "..") || ["/", "./", "../", "~/"].iter().any(|start| text.starts_with(start))
        {
            return environment.expand(text).map(ModelSource::Folder);
        }
        let fits = |part: &str| {
            let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
            !part.starts_with('.') && (1..=96).contains(&part.len()) && part.chars().all(plain)
        };
        let (organisation, name) = text.split_once('/').unwrap_or(("none", text));
        (fits(organisation) && fits(name)).then(|| ModelSource::Name(text.to_owned()))
    }
}

/// `[listen]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listen {
    pub socket: PathBuf,
    pub tcp_address: Option<SocketAddr>,
    pub request_body_bytes: usize,
}

/// `[control]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Control {
    /// Differs from the socket for HTTP.
    pub socket: PathBuf,
    /// Users besides our own.
    pub allowed_uids: Vec<u32>,
}

/// `[memory]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Memory {
    pub kv_cache_bytes: usize,
    pub block_tokens: usize,
    pub prefix_cache: bool,
}

/// `[scheduler]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Scheduler {
    pub batch_tokens_max: usize,
    pub sequences_max: usize,
    pub waiting_max: usize,
}

/// `[compute]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Compute {
    pub threads: NonZeroUsize,
}

/// `[metrics]`. `per_request` implies `log_stats`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Metrics {
    pub per_request: bool,
    pub log_stats: bool,
    pub force_include_usage: bool,
    pub vllm_names: bool,
    pub aphrodite_names: bool,
}

/// `[shutdown]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shutdown {
    pub drain_timeout: Duration,
}

const PRODUCT: Product = Product {
    defaults: DEFAULTS,
    file_name: FILE_NAME,
    other_defaults: gateway::DEFAULTS,
    other_file_name: gateway::FILE_NAME,
};

/// Resolves the engine's settings.
///
/// # Errors
/// Everything that is wrong, at once.
pub fn resolve(sources: &Sources) -> Result<Resolved<Settings>, Problems> {
    let mut said = Said::new(&PRODUCT, sources);
    let settings = Settings {
        model: model(&mut said),
        listen: listen(&mut said),
        control: control(&mut said),
        memory: Memory {
            kv_cache_bytes: said.number("memory.kv_cache_bytes", "bytes", 1 << 20..=1 << 44),
            block_tokens: said.number("memory.block_tokens", "tokens", 1..=1024),
            prefix_cache: said.switch("memory.prefix_cache"),
        },
        scheduler: Scheduler {
            batch_tokens_max: said.number("scheduler.batch_tokens_max", "tokens", 1..=1 << 20),
            sequences_max: said.number("scheduler.sequences_max", "sequences", 1..=65_536),
            waiting_max: said.number("scheduler.waiting_max", "sequences", 1..=1_000_000),
        },
        compute: Compute { threads: said.threads("compute.threads") },
        metrics: metrics(&mut said),
        shutdown: Shutdown { drain_timeout: said.milliseconds("shutdown.drain_timeout_ms", 1..=3_600_000) },
        log: shared::log(&mut said),
    };
    if settings.listen.socket == settings.control.socket {
        said.contradict("listen.socket", "control.socket", "one socket cannot serve both");
    }
    said.finish(settings)
}

fn model(said: &mut Said) -> Model {
    let environment = said.environment;
    let takes = "a model's name, org/name, or a path that begins with /, ./, ../ or ~/";
    let source = said.read("model.path", takes, |given| ModelSource::parse(given.text()?, environment));
    if let ModelSource::Folder(path) = &source {
        said.came_to(path.display().to_string());
    }
    let directory = said.path_or_auto("model.directory", environment.models_folder());
    let takes = "a list of names of 1 to 256 bytes without commas";
    let name = |given: &Given| {
        let name = given.text()?.trim();
        let fits = (1..=256).contains(&name.len()) && !name.contains(|c: char| c == ',' || c.is_control());
        fits.then(|| name.to_owned())
    };
    let served_model_name =
        said.read("model.served_model_name", takes, |given| given.list()?.iter().map(name).collect());
    Model { source, directory, served_model_name }
}

fn listen(said: &mut Said) -> Listen {
    Listen {
        socket: said.socket("listen.socket", "engine.sock"),
        tcp_address: said.address_or_none("listen.tcp_address"),
        request_body_bytes: said.number("listen.request_body_bytes", "bytes", 1024..=1 << 30),
    }
}

fn control(said: &mut Said) -> Control {
    let takes = "a list of user ids, 0 to 4294967295";
    Control {
        socket: said.socket("control.socket", "control.sock"),
        allowed_uids: said.read("control.allowed_uids", takes, |given| {
            given.list()?.iter().map(|id| u32::try_from(id.integer()?).ok()).collect()
        }),
    }
}

fn metrics(said: &mut Said) -> Metrics {
    let shared::SharedMetrics { per_request, log_stats, force_include_usage } = shared::metrics(said);
    Metrics {
        per_request,
        log_stats,
        force_include_usage,
        vllm_names: said.switch("metrics.vllm_names"),
        aphrodite_names: said.switch("metrics.aphrodite_names"),
    }
}
