//! A server on temporary sockets, and plain clients for both of them.
//!
//! Apart so that the tests read as what is asked and answered. Must not know: any one test.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::num::NonZeroUsize;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;

use pitot_config::{Environment, Flag, Platform, Sources};
use pitot_control::{Decoder, FromEngine, FromGateway, VERSIONS, encode};
use pitot_runtime::testing::{TOY_END, ToyRunner, toy_tokenizer};
use pitot_runtime::{ChatTemplate, Engine, GenerationDefaults};
use pitot_server::engine_thread::EngineHandle;
use pitot_server::model::{Parts, options};
use pitot_server::serve::{Server, Stop};
use serde_json::{Value, json};
use tokio::sync::mpsc;

const TEMPLATE: &str = "{% for m in messages %}{{ raise_exception('no system') if m.role == 'system' }}{{ m.content }}{% endfor %}>";

/// A running server.
pub struct Started {
    pub folder: tempfile::TempDir,
    pub engine: EngineHandle,
    pub stops: mpsc::Sender<Stop>,
    pub runtime: tokio::runtime::Runtime,
    pub done: tokio::task::JoinHandle<anyhow::Result<()>>,
}

/// Starts a toy of that context length; `sets` are `section.key=value`.
pub fn start(runner: ToyRunner, sets: &[&str]) -> Started {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name).display().to_string();
    let sockets =
        [format!("listen.socket={}", at("e.sock")), format!("control.socket={}", at("control/c.sock"))];
    let all = sockets.iter().map(String::as_str).chain(sets.iter().copied());
    let sources = Sources { environment: environment(), file: None, flags: all.map(Flag::set).collect() };
    let settings = pitot_config::engine::resolve(&sources).unwrap().settings;
    let tokenizer = Arc::new(toy_tokenizer());
    let generation = GenerationDefaults { eos_token_ids: vec![TOY_END], ..GenerationDefaults::default() };
    let options = options(&settings, &generation);
    let parts = Parts {
        engine: Engine::new(Box::new(runner), Arc::clone(&tokenizer), options).unwrap(),
        tokenizer,
        chat: ChatTemplate::new(&json!({}), &Value::Null, Some(TEMPLATE)).unwrap(),
        generation,
        add_bos: false,
        names: vec!["toy".to_owned(), "other".to_owned()],
    };
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().worker_threads(2).build().unwrap();
    let (stops, received) = mpsc::channel(4);
    let (engine, done) = {
        let _inside = runtime.enter();
        let server = Server::start(parts, &settings).unwrap();
        (server.engine(), runtime.spawn(server.run(received)))
    };
    Started { folder, engine, stops, runtime, done }
}

fn environment() -> Environment {
    Environment {
        variables: BTreeMap::new(),
        working_folder: PathBuf::from("/nonexistent"),
        system_folder: PathBuf::from("/nonexistent"),
        platform: Platform::Xdg,
        user_id: 1,
        run_folder_writable: false,
        executable: None,
        processors: NonZeroUsize::MIN,
    }
}

/// An answer.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub head: String,
    pub body: String,
}

impl Answer {
    #[track_caller]
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// The data of each event; `[DONE]` as a string.
    #[track_caller]
    pub fn events(&self) -> Vec<Value> {
        let data = |event: &str| {
            let data = event.strip_prefix("data: ").unwrap_or_else(|| panic!("no data: {event}"));
            if data == "[DONE]" { json!(data) } else { serde_json::from_str(data).unwrap() }
        };
        self.body.split_terminator("\n\n").map(data).collect()
    }
}

impl Started {
    pub fn http_path(&self) -> PathBuf {
        self.folder.path().join("e.sock")
    }

    pub fn control_path(&self) -> PathBuf {
        self.folder.path().join("control/c.sock")
    }

    /// Sends a request and leaves the answer on the stream.
    pub fn send(&self, method: &str, path: &str, headers: &str, body: &str) -> UnixStream {
        let mut stream = UnixStream::connect(self.http_path()).unwrap();
        let length = body.len();
        let head = format!(
            "{method} {path} HTTP/1.1\r\nhost: e\r\nconnection: close\r\ncontent-length: {length}\r\n{headers}\r\n"
        );
        stream.write_all(head.as_bytes()).unwrap();
        stream.write_all(body.as_bytes()).unwrap();
        stream
    }

    pub fn ask(&self, method: &str, path: &str, headers: &str, body: &str) -> Answer {
        read_answer(self.send(method, path, headers, body))
    }

    pub fn chat(&self, more: Value) -> Answer {
        self.ask("POST", "/v1/chat/completions", "", &chat_body(more))
    }

    pub fn complete(&self, more: Value) -> Answer {
        let mut body = json!({ "model": "toy", "prompt": "abc" });
        merge(&mut body, more);
        self.ask("POST", "/v1/completions", "", &body.to_string())
    }

    /// Waits until the engine's load is as wanted.
    pub fn wait_for(&self, wanted: fn(&pitot_runtime::EngineState) -> bool) {
        while !wanted(&self.engine.state()) {
            std::thread::yield_now();
        }
    }
}

pub fn chat_body(more: Value) -> String {
    let mut body = json!({ "model": "toy", "messages": [{ "role": "user", "content": "hello" }] });
    merge(&mut body, more);
    body.to_string()
}

fn merge(body: &mut Value, more: Value) {
    for (key, value) in more.as_object().unwrap() {
        body[key] = value.clone();
    }
}

pub fn read_answer(mut stream: UnixStream) -> Answer {
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).unwrap();
    let text = String::from_utf8(bytes).unwrap();
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no head: {text}"));
    let head = head.to_ascii_lowercase();
    let body = if head.contains("transfer-encoding: chunked") { dechunk(body) } else { body.to_owned() };
    Answer { status: head[9..12].parse().unwrap(), head, body }
}

fn dechunk(mut rest: &str) -> String {
    let mut body = String::new();
    while let Some((size, after)) = rest.split_once("\r\n") {
        let size = usize::from_str_radix(size, 16).unwrap();
        body.push_str(&after[..size]);
        rest = &after[(size + 2).min(after.len())..];
    }
    body
}

/// A gateway on the control channel.
pub struct Gateway {
    stream: UnixStream,
    decoder: Decoder,
}

impl Gateway {
    /// Connects; nothing is said yet.
    pub fn connect(started: &Started) -> Gateway {
        Gateway { stream: UnixStream::connect(started.control_path()).unwrap(), decoder: Decoder::default() }
    }

    /// Connects and shakes hands; gives the engine's Hello too.
    pub fn greet(started: &Started) -> (Gateway, FromEngine) {
        let mut gateway = Gateway::connect(started);
        let hello = gateway.hear().unwrap();
        gateway.say(&FromGateway::Hello { versions: VERSIONS, gateway_version: "test".to_owned() });
        (gateway, hello)
    }

    pub fn say(&mut self, message: &FromGateway) {
        self.stream.write_all(&encode(message).unwrap()).unwrap();
    }

    /// The next message, None at the end.
    pub fn hear(&mut self) -> Option<FromEngine> {
        let mut buffer = [0; 1024];
        loop {
            if let Some(message) = self.decoder.next_message().unwrap() {
                return Some(message);
            }
            match self.stream.read(&mut buffer).unwrap() {
                0 => return None,
                bytes => self.decoder.push(&buffer[..bytes]),
            }
        }
    }

    /// The next message that `wanted` takes.
    pub fn await_message<T>(&mut self, wanted: fn(FromEngine) -> Option<T>) -> T {
        loop {
            if let Some(found) = wanted(self.hear().expect("the channel stays open")) {
                return found;
            }
        }
    }

    /// What has arrived already, without waiting.
    pub fn arrived(&mut self) -> Vec<FromEngine> {
        self.stream.set_nonblocking(true).unwrap();
        let mut buffer = [0; 1 << 16];
        while let Ok(bytes @ 1..) = self.stream.read(&mut buffer) {
            self.decoder.push(&buffer[..bytes]);
        }
        self.stream.set_nonblocking(false).unwrap();
        std::iter::from_fn(|| self.decoder.next_message().unwrap()).collect()
    }
}
