//! A plain HTTP client on a socket: it sees the bytes as they are, and can leave when it likes.
//!
//! Apart from any library client so that framing, headers and the moment of leaving are the test's own.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use serde_json::Value;

const READ_MAX: Duration = Duration::from_secs(60);

/// A whole reply.
#[derive(Debug, Clone)]
pub struct Reply {
    pub status: u16,
    pub head: String,
    pub body: Vec<u8>,
    /// Whether the body ended as its framing said.
    pub complete: bool,
}

impl Reply {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.head.lines().find_map(|line| {
            let (found, value) = line.split_once(':')?;
            found.eq_ignore_ascii_case(name).then(|| value.trim())
        })
    }

    #[track_caller]
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body)
            .unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(&self.body)))
    }

    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// The JSON of each event in a stream, `[DONE]` left out.
    pub fn events(&self) -> Vec<Value> {
        let text = self.text();
        let data = text.lines().filter_map(|line| line.strip_prefix("data: "));
        data.filter(|data| *data != "[DONE]").map(|data| serde_json::from_str(data).unwrap()).collect()
    }

    pub fn id(&self) -> &str {
        self.header("x-request-id").expect("every reply has an x-request-id")
    }
}

/// A connection whose reply has begun or not.
pub struct Open {
    reader: BufReader<TcpStream>,
}

impl Open {
    /// Sends a request.
    pub fn send(address: &str, request: &[u8]) -> std::io::Result<Open> {
        let mut stream = TcpStream::connect(address)?;
        stream.set_read_timeout(Some(READ_MAX))?;
        stream.write_all(request)?;
        Ok(Open { reader: BufReader::new(stream) })
    }

    /// Reads until this text has come by.
    pub fn read_until(&mut self, text: &str) -> String {
        let mut seen = String::new();
        while !seen.contains(text) {
            let mut line = String::new();
            assert!(self.reader.read_line(&mut line).unwrap() > 0, "the reply ended before {text:?}: {seen}");
            seen.push_str(&line);
        }
        seen
    }

    /// Reads the whole reply.
    pub fn reply(mut self) -> std::io::Result<Reply> {
        let mut head = String::new();
        loop {
            let mut line = String::new();
            if self.reader.read_line(&mut line)? == 0 {
                return Err(std::io::Error::other("the connection closed before a reply"));
            }
            if line == "\r\n" {
                break;
            }
            head.push_str(&line);
        }
        let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status line");
        let mut reply = Reply { status, head, body: Vec::new(), complete: false };
        if reply.header("transfer-encoding").is_some_and(|value| value.eq_ignore_ascii_case("chunked")) {
            reply.complete = read_chunks(&mut self.reader, &mut reply.body);
        } else if let Some(length) = reply.header("content-length").map(|length| length.parse().unwrap()) {
            reply.body = vec![0; length];
            reply.complete = self.reader.read_exact(&mut reply.body).is_ok();
        }
        Ok(reply)
    }

    /// Leaves without a word.
    pub fn leave(self) {
        drop(self);
    }
}

fn read_chunks(reader: &mut impl BufRead, body: &mut Vec<u8>) -> bool {
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line).unwrap_or(0) == 0 {
            return false;
        }
        let Ok(length) = usize::from_str_radix(line.trim(), 16) else { return false };
        let mut chunk = vec![0; length + 2];
        if reader.read_exact(&mut chunk).is_err() {
            return false;
        }
        if length == 0 {
            return true;
        }
        body.extend_from_slice(&chunk[..length]);
    }
}

/// The bytes of a POST with a JSON body.
pub fn post_bytes(path: &str, headers: &str, body: &[u8]) -> Vec<u8> {
    let mut request = format!(
        "POST {path} HTTP/1.1\r\nhost: test\r\ncontent-type: application/json\r\n{headers}content-length: {}\r\n\r\n",
        body.len()
    )
    .into_bytes();
    request.extend_from_slice(body);
    request
}

/// Posts a JSON value and reads the whole reply.
#[track_caller]
pub fn post(address: &str, path: &str, body: &Value) -> Reply {
    Open::send(address, &post_bytes(path, "", body.to_string().as_bytes())).unwrap().reply().unwrap()
}

/// Posts to the chat endpoint.
#[track_caller]
pub fn chat(address: &str, body: &Value) -> Reply {
    post(address, "/v1/chat/completions", body)
}

pub fn get(address: &str, path: &str) -> std::io::Result<Reply> {
    let request = format!("GET {path} HTTP/1.1\r\nhost: test\r\nconnection: close\r\n\r\n");
    Open::send(address, request.as_bytes())?.reply()
}
