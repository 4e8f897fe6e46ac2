//! The configurations that cases need, and gateways that are started with them.
//!
//! Apart from running cases, which needs only addresses: a gateway may run already, under another name. Must not
//! know: cases.

use std::io::{BufRead, BufReader, Read};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tempfile::TempDir;

use super::admin;

const START_MAX: Duration = Duration::from_secs(20);
const STOP_MAX: Duration = Duration::from_secs(30);

/// A configuration of the gateway under test.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Profile {
    Default,
    /// Short deadlines.
    Deadlines,
    /// The metrics object is on.
    Metrics,
    /// Usage is sent to every caller of a stream, with the metrics object.
    Forced,
    /// Reasoning alone is no answer.
    Strict,
    /// The upstream streams for callers that do not.
    Assembling,
    SmallBody,
    UsageNever,
    UsageAlways,
    /// A late answer counts as timed out and is not cut.
    Observing,
    InlineThink,
    /// A 400 is an HTTP error too.
    From400,
    /// As the default, with cases one after another, since they concern the pool of connections.
    Alone,
    /// The same for an upstream that refuses `stream_options`.
    Refusing,
    /// Nobody listens behind it.
    NoUpstream,
}

impl Profile {
    pub const ALL: [Profile; 15] = [
        Profile::Default,
        Profile::Deadlines,
        Profile::Metrics,
        Profile::Forced,
        Profile::Strict,
        Profile::Assembling,
        Profile::SmallBody,
        Profile::UsageNever,
        Profile::UsageAlways,
        Profile::Observing,
        Profile::InlineThink,
        Profile::From400,
        Profile::Alone,
        Profile::Refusing,
        Profile::NoUpstream,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Profile::Default => "default",
            Profile::Deadlines => "deadlines",
            Profile::Metrics => "metrics",
            Profile::Forced => "forced",
            Profile::Strict => "strict",
            Profile::Assembling => "assembling",
            Profile::SmallBody => "small-body",
            Profile::UsageNever => "usage-never",
            Profile::UsageAlways => "usage-always",
            Profile::Observing => "observing",
            Profile::InlineThink => "inline-think",
            Profile::From400 => "from-400",
            Profile::Alone => "alone",
            Profile::Refusing => "refusing",
            Profile::NoUpstream => "no-upstream",
        }
    }

    pub fn of(name: &str) -> Option<Profile> {
        Profile::ALL.into_iter().find(|profile| profile.name() == name)
    }

    /// Settings beside the defaults, as `pitot serve --set` takes them.
    pub fn settings(self) -> &'static [&'static str] {
        match self {
            Profile::Default | Profile::Alone | Profile::Refusing | Profile::NoUpstream => &[],
            Profile::Deadlines => &[
                "limits.first_token_timeout_ms=600",
                "limits.idle_timeout_ms=400",
                "limits.total_timeout_ms=2000",
            ],
            Profile::Metrics => &["metrics.per_request=true"],
            Profile::Forced => &["metrics.per_request=true", "metrics.force_include_usage=true"],
            Profile::Strict => &["measure.case2=strict"],
            Profile::Assembling => &["measure.stream_upstream=true"],
            Profile::SmallBody => &["limits.request_body_bytes=65536"],
            Profile::UsageNever => &["upstream.usage=never"],
            Profile::UsageAlways => &["upstream.usage=always"],
            Profile::Observing => &["measure.observe_deadline_ms=300"],
            Profile::InlineThink => &["measure.inline_think=true"],
            Profile::From400 => &["measure.http_error_from=400"],
        }
    }

    /// Whether the gateway asks the upstream for usage on behalf of callers that do not.
    pub fn asks_usage(self) -> bool {
        !matches!(self, Profile::UsageNever | Profile::UsageAlways)
    }

    pub fn shows_usage(self) -> bool {
        self == Profile::Forced
    }

    /// Cases at once.
    pub fn at_once(self) -> usize {
        if matches!(self, Profile::Alone | Profile::Refusing) { 1 } else { 12 }
    }
}

/// A running `pitot serve`.
pub struct Gateway {
    child: Child,
    folder: TempDir,
    pub address: SocketAddr,
    pub admin: SocketAddr,
}

/// The binary under test: `PITOT_TEST_GATEWAY`, else the one built beside this program.
pub fn binary() -> Result<PathBuf, String> {
    if let Some(path) = std::env::var_os("PITOT_TEST_GATEWAY") {
        return Ok(PathBuf::from(path));
    }
    let own = std::env::current_exe().map_err(|error| error.to_string())?;
    let folders = own.ancestors().skip(1).take(2);
    let found = folders.map(|folder| folder.join("pitot")).find(|path| path.is_file());
    found.ok_or_else(|| "no pitot beside this program: build it first, or set PITOT_TEST_GATEWAY".to_owned())
}

fn free_address() -> std::io::Result<SocketAddr> {
    TcpListener::bind("127.0.0.1:0")?.local_addr()
}

impl Gateway {
    /// Starts a gateway in front of this upstream and waits until it listens.
    pub fn start(upstream: &str, profile: Profile, more: &[&str]) -> Result<Gateway, String> {
        let in_words = |error: std::io::Error| error.to_string();
        let folder = tempfile::tempdir().map_err(in_words)?;
        let (address, admin) = (free_address().map_err(in_words)?, free_address().map_err(in_words)?);
        let mut command = Command::new(binary()?);
        command.args(["serve", "--upstream", upstream]);
        command.args(["--listen", &address.to_string(), "--admin-listen", &admin.to_string()]);
        let journal = format!("journal.directory={}", folder.path().join("journal").display());
        let common = [journal.as_str(), "journal.queue_max=100000", "requests.kept=20000", "log.level=warn"];
        for setting in common.iter().chain(profile.settings()).chain(more) {
            command.args(["--set", setting]);
        }
        command
            .env_clear()
            .envs(std::env::vars_os().filter(|(name, _)| !name.to_string_lossy().starts_with("PITOT_")))
            .stdout(Stdio::null())
            .stderr(Stdio::piped());
        let mut child = command.spawn().map_err(in_words)?;
        let said = child.stderr.take().map(collect).unwrap_or_default();
        let mut gateway = Gateway { child, folder, address, admin };
        gateway.wait(&said).map(|()| gateway)
    }

    fn wait(&mut self, said: &Mutex<String>) -> Result<(), String> {
        let said = || said.lock().unwrap_or_else(PoisonError::into_inner).trim().to_owned();
        let until = Instant::now() + START_MAX;
        loop {
            let listens = TcpStream::connect(self.address).is_ok();
            if listens && admin::page(self.admin, "/livez").is_ok_and(|reply| reply.status == Some(200)) {
                return Ok(());
            }
            if let Ok(Some(status)) = self.child.try_wait() {
                return Err(format!("the gateway ended with {status}: {}", said()));
            }
            if Instant::now() > until {
                return Err(format!("the gateway was not ready in time: {}", said()));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    pub fn process(&self) -> u32 {
        self.child.id()
    }

    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Tells it to stop, without waiting.
    pub fn terminate(&self) {
        let pid = rustix::process::Pid::from_child(&self.child);
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
    }

    /// Waits for its end; None if it had to be killed.
    pub fn ended(&mut self) -> Option<std::process::ExitStatus> {
        let until = Instant::now() + STOP_MAX;
        while Instant::now() < until {
            if let Ok(Some(status)) = self.child.try_wait() {
                return Some(status);
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
        None
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        self.terminate();
        self.ended();
    }
}

fn collect(from: impl Read + Send + 'static) -> Arc<Mutex<String>> {
    let said = Arc::new(Mutex::new(String::new()));
    let into = Arc::clone(&said);
    std::thread::spawn(move || {
        for line in BufReader::new(from).lines().map_while(Result::ok) {
            let mut said = into.lock().unwrap_or_else(PoisonError::into_inner);
            if said.len() < 64 * 1024 {
                said.push_str(&line);
                said.push('\n');
            }
        }
    });
    said
}
