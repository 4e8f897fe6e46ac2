//! The hub's client against a small server on loopback that answers as the hub does: a listing with sizes and sha256, and files by
//! range, at one commit. Apart because the server is longer than the client's own tests. Must not know what the client keeps on disk.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use sha2::{Digest, Sha256};

use super::super::hash::hex;
use super::*;

const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

/// What goes wrong with the transfer of a file.
#[derive(Clone, Copy)]
enum Fault {
    /// The connection ends after this many bytes.
    Cut(usize),
    /// The first byte arrives changed.
    Changed,
    /// The whole file comes though only its rest was asked for, as from a proxy that does not know ranges.
    Whole,
    /// The server answers with this status.
    Refused(u16),
}

#[derive(Default)]
struct Shelf {
    files: BTreeMap<String, Vec<u8>>,
    /// Each fault happens once, in order.
    faults: Vec<(String, Fault)>,
    /// File and range of every transfer that was asked for.
    asked: Vec<(String, String)>,
    listing_status: u16,
}

struct Server {
    shelf: Arc<Mutex<Shelf>>,
    endpoint: String,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    fn with(files: &[(&str, Vec<u8>)], faults: &[(&str, Fault)]) -> Server {
        let shelf = Arc::new(Mutex::new(Shelf {
            files: files.iter().map(|(name, bytes)| (String::from(*name), bytes.clone())).collect(),
            faults: faults.iter().map(|(name, fault)| (String::from(*name), *fault)).collect(),
            asked: Vec::new(),
            listing_status: 200,
        }));
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap());
        let shared = Arc::clone(&shelf);
        let thread = std::thread::spawn(move || {
            for stream in listener.incoming() {
                if !answer(stream.unwrap(), &shared) {
                    break;
                }
            }
        });
        Server { shelf, endpoint, thread: Some(thread) }
    }

    fn asked(&self) -> Vec<(String, String)> {
        self.shelf.lock().unwrap().asked.clone()
    }

    fn pull(&self, folder: &Path, downloads: &Path) -> Result<(), String> {
        pull_from(&self.endpoint, folder, downloads)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let address = self.endpoint.trim_start_matches("http://");
        let mut stream = TcpStream::connect(address).unwrap();
        stream.write_all(b"QUIT / HTTP/1.1\r\n\r\n").unwrap();
        self.thread.take().unwrap().join().unwrap();
    }
}

fn pull_from(endpoint: &str, folder: &Path, downloads: &Path) -> Result<(), String> {
    let builder = ApiBuilder::new().with_endpoint(endpoint.to_owned()).with_token(None);
    let hub = Hub {
        builder,
        endpoint: endpoint.to_owned(),
        repository: "some/model".to_owned(),
        revision: "main".to_owned(),
        pause: Duration::ZERO,
    };
    hub.pull(folder, downloads, Progress::Quiet).map_err(|error| error.to_string())
}

/// Answers one request and closes; false when the server is to end.
fn answer(stream: TcpStream, shelf: &Mutex<Shelf>) -> bool {
    let mut reader = BufReader::new(&stream);
    let mut lines = Vec::new();
    loop {
        let mut line = String::new();
        // A client that connects and goes away is no request.
        if reader.read_line(&mut line).unwrap_or(0) == 0 {
            return true;
        }
        if line == "\r\n" {
            break;
        }
        lines.push(line.trim().to_owned());
    }
    let path = lines[0].split(' ').nth(1).unwrap().to_owned();
    let range = lines.iter().find_map(|line| {
        let (name, value) = line.split_once(": ")?;
        name.eq_ignore_ascii_case("range").then(|| value.to_owned())
    });
    if lines[0].starts_with("QUIT") {
        return false;
    }
    let reply = reply(&path, range, &mut shelf.lock().unwrap());
    // A client that has seen enough may close before it has read everything.
    let _ = (&stream).write_all(&reply);
    true
}

fn reply(path: &str, range: Option<String>, shelf: &mut Shelf) -> Vec<u8> {
    if path.starts_with("/api/models/some/model/revision/main") {
        return listing_reply(shelf);
    }
    let name = path.strip_prefix(&format!("/some/model/resolve/{COMMIT}/")).unwrap_or_default().to_owned();
    let range = range.unwrap_or_default();
    let Some(bytes) = shelf.files.get(&name).cloned() else {
        return status_reply(404);
    };
    let probe = range == "bytes=0-0";
    let start: usize = range
        .trim_start_matches("bytes=")
        .split('-')
        .next()
        .and_then(|start| start.parse().ok())
        .unwrap_or(0);
    let mut body = bytes[start.min(bytes.len())..].to_vec();
    body.truncate(if probe { 1 } else { body.len() });
    let mut cut = body.len();
    if !probe {
        shelf.asked.push((name.clone(), range));
        if start >= bytes.len() {
            return status_reply(416);
        }
        if let Some(at) = shelf.faults.iter().position(|(faulty, _)| *faulty == name) {
            match shelf.faults.remove(at).1 {
                Fault::Cut(after) => cut = after,
                Fault::Changed => body[0] ^= 1,
                Fault::Whole => {
                    cut = bytes.len();
                    body = bytes.clone();
                }
                Fault::Refused(status) => return status_reply(status),
            }
        }
    }
    let head = format!(
        "HTTP/1.1 206 Partial Content\r\netag: \"{}\"\r\nx-repo-commit: {COMMIT}\r\ncontent-range: bytes {start}-{}/{}\r\ncontent-length: {}\r\nconnection: close\r\n\r\n",
        sha256(&bytes),
        start + body.len() - 1,
        bytes.len(),
        body.len(),
    );
    [head.as_bytes(), &body[..cut]].concat()
}

fn status_reply(status: u16) -> Vec<u8> {
    format!("HTTP/1.1 {status} No\r\ncontent-length: 0\r\nconnection: close\r\n\r\n").into_bytes()
}

fn listing_reply(shelf: &Shelf) -> Vec<u8> {
    if shelf.listing_status != 200 {
        return status_reply(shelf.listing_status);
    }
    let siblings: Vec<_> = shelf
        .files
        .iter()
        .map(|(name, bytes)| {
            let lfs = name
                .ends_with(".safetensors")
                .then(|| serde_json::json!({"sha256": sha256(bytes), "size": bytes.len()}));
            serde_json::json!({"rfilename": name, "size": bytes.len(), "lfs": lfs})
        })
        .collect();
    let body = serde_json::json!({"sha": COMMIT, "siblings": siblings}).to_string();
    format!(
        "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}",
        body.len()
    )
    .into_bytes()
}

fn sha256(bytes: &[u8]) -> String {
    hex(Sha256::new_with_prefix(bytes))
}

/// A safetensors file of one tensor of 40 bytes.
fn weights(name: &str) -> Vec<u8> {
    let header = format!("{{\"{name}\":{{\"dtype\":\"U8\",\"shape\":[40],\"data_offsets\":[0,40]}}}}");
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header.as_bytes());
    bytes.extend(0..40);
    bytes
}

fn whole() -> Vec<(&'static str, Vec<u8>)> {
    vec![
        ("README.md", b"not wanted".to_vec()),
        ("config.json", b"{\"a\":1}".to_vec()),
        ("model.safetensors", weights("w")),
        ("pytorch_model.bin", b"not wanted".to_vec()),
        ("tokenizer.json", b"{\"b\":2}".to_vec()),
    ]
}

/// Two empty folders on one file system.
fn folders() -> (tempfile::TempDir, PathBuf, PathBuf) {
    let root = tempfile::tempdir().unwrap();
    let (model, downloads) = (root.path().join("model"), root.path().join("download"));
    std::fs::create_dir(&model).unwrap();
    (root, model, downloads)
}

fn names(folder: &Path) -> Vec<String> {
    let mut names: Vec<String> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

#[test]
fn only_what_a_model_needs_is_fetched() {
    let server = Server::with(&whole(), &[]);
    let (_root, model, downloads) = folders();
    server.pull(&model, &downloads).unwrap();
    assert_eq!(names(&model), ["config.json", "model.safetensors", "tokenizer.json"]);
    assert_eq!(std::fs::read(model.join("model.safetensors")).unwrap(), weights("w"));
    assert_eq!(server.asked().len(), 3);
}

#[test]
fn shards_are_found_through_the_index() {
    let index = b"{\"weight_map\":{\"w\":\"model-1.safetensors\",\"v\":\"model-2.safetensors\"}}";
    let mut files = whole();
    files.retain(|(name, _)| *name != "model.safetensors");
    files.push(("model.safetensors.index.json", index.to_vec()));
    files.push(("model-1.safetensors", weights("w")));
    files.push(("model-2.safetensors", weights("v")));
    files.push(("model-3.safetensors", weights("u")));
    let server = Server::with(&files, &[]);
    let (_root, model, downloads) = folders();
    server.pull(&model, &downloads).unwrap();
    let expected = [
        "config.json",
        "model-1.safetensors",
        "model-2.safetensors",
        "model.safetensors.index.json",
        "tokenizer.json",
    ];
    assert_eq!(names(&model), expected);
}

#[test]
fn a_broken_transfer_goes_on_where_it_stopped() {
    let server = Server::with(&whole(), &[("model.safetensors", Fault::Cut(30))]);
    let (_root, model, downloads) = folders();
    server.pull(&model, &downloads).unwrap();
    assert_eq!(std::fs::read(model.join("model.safetensors")).unwrap(), weights("w"));
    let mut ranges = server.asked();
    ranges.retain(|(name, _)| name == "model.safetensors");
    let ranges: Vec<&str> = ranges.iter().map(|(_, range)| range.as_str()).collect();
    assert_eq!(ranges, ["bytes=0-", "bytes=30-"]);
}

#[test]
fn a_later_pull_goes_on_where_an_earlier_one_gave_up() {
    let cuts: Vec<_> = (0..TRIES).map(|_| ("model.safetensors", Fault::Cut(10))).collect();
    let server = Server::with(&whole(), &cuts);
    let (_root, model, downloads) = folders();
    let error = server.pull(&model, &downloads).unwrap_err();
    assert!(error.contains("model.safetensors could not be fetched"), "{error}");
    assert!(names(&model).is_empty(), "nothing that looks like a model");
    server.pull(&model, &downloads).unwrap();
    let asked = server.asked();
    let last = asked.last().unwrap();
    assert_eq!(last.1, format!("bytes={}-", 10 * TRIES));
    let configs = asked.iter().filter(|(name, _)| name == "config.json");
    assert_eq!(configs.count(), 1, "what was whole is not fetched again");
}

#[test]
fn a_changed_file_is_noticed_and_fetched_anew() {
    let server = Server::with(&whole(), &[("model.safetensors", Fault::Changed)]);
    let (_root, model, downloads) = folders();
    server.pull(&model, &downloads).unwrap();
    assert_eq!(std::fs::read(model.join("model.safetensors")).unwrap(), weights("w"));
}

#[test]
fn a_rest_that_comes_with_its_beginning_is_noticed() {
    // Longer than the ten bytes after which it is cut.
    let mut files = whole();
    files[1].1 = b"{\"a\":1234567890}".to_vec();
    let faults = [("config.json", Fault::Cut(10)), ("config.json", Fault::Whole)];
    let server = Server::with(&files, &faults);
    let (_root, model, downloads) = folders();
    server.pull(&model, &downloads).unwrap();
    assert_eq!(std::fs::read(model.join("config.json")).unwrap(), files[1].1);
}

#[test]
fn a_server_that_stumbles_is_asked_again() {
    let server = Server::with(&whole(), &[("config.json", Fault::Refused(503))]);
    let (_root, model, downloads) = folders();
    server.pull(&model, &downloads).unwrap();
}

#[test]
fn a_part_as_long_as_the_file_or_longer_does_not_block_it_for_ever() {
    let bytes = weights("w");
    // As after a crash between the last byte and the renaming, and as after a proxy that does not know ranges.
    for part in [bytes.clone(), bytes.repeat(2)] {
        let server = Server::with(&whole(), &[]);
        let (_root, model, downloads) = folders();
        let blobs = downloads.join("models--some--model/blobs");
        std::fs::create_dir_all(&blobs).unwrap();
        std::fs::write(blobs.join(format!("{}.part", sha256(&bytes))), &part).unwrap();
        server.pull(&model, &downloads).unwrap();
    }
}

#[track_caller]
fn check_refused(files: &[(&str, Vec<u8>)], listing_status: u16, expected: &str) {
    let server = Server::with(files, &[]);
    server.shelf.lock().unwrap().listing_status = listing_status;
    let (_root, model, downloads) = folders();
    let error = server.pull(&model, &downloads).unwrap_err();
    assert!(error.contains(expected), "{error}");
    assert!(names(&model).is_empty());
}

#[test]
fn what_cannot_be_had_is_said_plainly() {
    check_refused(&whole(), 404, "no such repository or revision");
    check_refused(&whole(), 401, "HF_TOKEN");
    check_refused(&[("config.json", b"{}".to_vec())], 200, "no weights in the safetensors format");
    let outside = b"{\"weight_map\":{\"w\":\"../../outside\"}}".to_vec();
    let files = [("model.safetensors.index.json", outside)];
    check_refused(&files, 200, "names the file \"../../outside\"");
}

#[test]
fn a_hub_out_of_reach_is_called_so() {
    // A port that was free a moment ago refuses connections.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    drop(listener);
    let (_root, model, downloads) = folders();
    let error = pull_from(&endpoint, &model, &downloads).unwrap_err();
    assert!(error.contains("could not be reached"), "{error}");
    assert!(error.contains(&endpoint), "{error}");
}
