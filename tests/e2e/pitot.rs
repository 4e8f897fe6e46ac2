//! Starting and stopping the programs under test.
//!
//! Apart from the tests so that each says only what it adds to a common start. Ports are free ones, sockets and
//! journals lie in a folder of the test's own.

use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;

use crate::client;

/// Longest start of engine and gateway, the loading of the model included.
const START_MAX: Duration = Duration::from_secs(90);
/// Longest wait for something that follows from what has been done.
pub const SOON: Duration = Duration::from_secs(20);
/// The name under which the model is served.
pub const MODEL: &str = "demo";

/// A program built by this workspace.
pub fn binary(name: &str) -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let path = test.parent().unwrap().parent().unwrap().join(name);
    assert!(path.is_file(), "{} is missing: build it first (tests/run does)", path.display());
    path
}

/// The demo model's folder.
pub fn model() -> PathBuf {
    let folder = std::env::var_os("PITOT_TEST_MODEL");
    PathBuf::from(folder.expect("PITOT_TEST_MODEL must name the demo model's folder; tests/run sets it"))
}

/// Waits until `look` gives something.
#[track_caller]
pub fn eventually<T>(what: &str, within: Duration, mut look: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + within;
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < deadline, "{what}: not within {within:?}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// A running gateway, with or without an engine of its own.
pub struct Pitot {
    child: Child,
    folder: TempDir,
    /// `127.0.0.1:port` for applications.
    pub address: String,
    pub admin: String,
}

impl Pitot {
    /// `pitot up` with the demo model.
    pub fn up(arguments: &[&str]) -> Pitot {
        let model = model();
        let mut command = Command::new(binary("pitot"));
        command.arg("up").arg("--model").arg(&model).args(["--served-model-name", MODEL, "alias"]);
        let folder = tempfile::tempdir().unwrap();
        command.arg("--upstream").arg(format!("unix:{}", folder.path().join("engine.sock").display()));
        Pitot::start(command, folder, "/readyz", arguments)
    }

    /// `pitot serve` in front of this address.
    pub fn serve(upstream: &str, arguments: &[&str]) -> Pitot {
        let mut command = Command::new(binary("pitot"));
        command.args(["serve", "--upstream", upstream]);
        Pitot::start(command, tempfile::tempdir().unwrap(), "/livez", arguments)
    }

    /// Starts it and waits until this page of the admin listener answers well.
    fn start(mut command: Command, folder: TempDir, page: &str, arguments: &[&str]) -> Pitot {
        let (address, admin) = (free_address(), free_address());
        command
            .args(["--listen", &address, "--admin-listen", &admin])
            .arg("--set")
            .arg(format!("journal.directory={}", folder.path().join("journal").display()))
            .args(arguments)
            .env_clear()
            .envs(std::env::vars_os().filter(|(name, _)| !name.to_string_lossy().starts_with("PITOT_")))
            .stdout(Stdio::null())
            .stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let said = collect(child.stderr.take().unwrap());
        let deadline = Instant::now() + START_MAX;
        loop {
            let listens = std::net::TcpStream::connect(&address).is_ok();
            if listens && client::get(&admin, page).is_ok_and(|reply| reply.status == 200) {
                break;
            }
            if let Some(status) = child.try_wait().unwrap() {
                panic!("pitot ended with {status}: {}", said.lock().unwrap());
            }
            assert!(Instant::now() < deadline, "pitot was not ready in time: {}", said.lock().unwrap());
            std::thread::sleep(Duration::from_millis(20));
        }
        Pitot { child, folder, address, admin }
    }

    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// The finished record of a request.
    #[track_caller]
    pub fn record(&self, id: &str) -> Value {
        eventually("the record of a request", SOON, || {
            let reply = client::get(&self.admin, &format!("/requests/{id}")).unwrap();
            (reply.status == 200).then(|| reply.json())
        })
    }

    /// The engine's state as the gateway knows it.
    pub fn engine(&self) -> Option<Value> {
        let reply = client::get(&self.admin, "/engine").ok()?;
        (reply.status == 200).then(|| reply.json())
    }

    /// Records in the journal, in the order of their ends.
    pub fn journal(&self) -> Vec<Value> {
        let path = self.folder().join("journal/requests.jsonl");
        let text = std::fs::read_to_string(path).unwrap_or_default();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    /// Tells it to stop and expects it to end by itself.
    #[track_caller]
    pub fn stop(mut self) {
        assert!(self.terminate(), "pitot was told to stop and did not end");
    }

    /// Tells it to stop; false if it had to be killed.
    fn terminate(&mut self) -> bool {
        let _ = Command::new("kill").arg(self.child.id().to_string()).status();
        let deadline = Instant::now() + Duration::from_secs(60);
        while self.child.try_wait().unwrap().is_none() {
            if Instant::now() > deadline {
                let _ = self.child.kill();
                let _ = self.child.wait();
                return false;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        true
    }
}

impl Drop for Pitot {
    fn drop(&mut self) {
        self.terminate();
    }
}

/// Runs a program to its end.
pub fn run(name: &str, arguments: &[&str], variables: &[(&str, &str)]) -> Output {
    Command::new(binary(name)).args(arguments).envs(variables.iter().copied()).output().unwrap()
}

/// The gateway and engine that tests share which disturb nobody, with per-request metrics on. It lives as long as
/// any test holds it: a static would never be dropped, and its processes would outlive the tests.
pub fn shared() -> Arc<Pitot> {
    static SHARED: Mutex<Weak<Pitot>> = Mutex::new(Weak::new());
    let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
    shared.upgrade().unwrap_or_else(|| {
        let pitot = Arc::new(Pitot::up(&["--enable-per-request-metrics"]));
        *shared = Arc::downgrade(&pitot);
        pitot
    })
}

fn free_address() -> String {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().to_string()
}

fn collect(from: impl Read + Send + 'static) -> Arc<Mutex<String>> {
    let said = Arc::new(Mutex::new(String::new()));
    let into = Arc::clone(&said);
    std::thread::spawn(move || {
        for line in BufReader::new(from).lines().map_while(Result::ok) {
            let mut said = into.lock().unwrap();
            said.push_str(&line);
            said.push('\n');
        }
    });
    said
}
