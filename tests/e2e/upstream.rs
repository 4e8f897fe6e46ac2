//! An upstream that plays a script: for faults and bytes that no real server will produce on demand.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

/// What to do with a request that has been read.
#[derive(Clone)]
pub enum Act {
    Send(Vec<u8>),
    Pause(Duration),
    /// Waits until the peer has closed, and reports it.
    AwaitClose,
    /// Closes without a word more.
    Close,
}

/// A server on a free port that plays the same acts for each request.
pub struct Upstream {
    pub address: String,
    requests: Receiver<Vec<u8>>,
    closes: Receiver<()>,
}

impl Upstream {
    pub fn play(acts: Vec<Act>) -> Upstream {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        let (requests, received) = channel();
        let (closes, closed) = channel();
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let (acts, requests, closes) = (acts.clone(), requests.clone(), closes.clone());
                std::thread::spawn(move || serve(stream, &acts, &requests, &closes));
            }
        });
        Upstream { address, requests: received, closes: closed }
    }

    /// The body of the next request that arrived.
    pub fn body(&self) -> Vec<u8> {
        self.requests.recv_timeout(Duration::from_secs(20)).expect("a request arrives")
    }

    /// Waits until a connection was closed by the gateway.
    pub fn closed(&self) {
        self.closes.recv_timeout(Duration::from_secs(20)).expect("the gateway closes its connection");
    }
}

fn serve(stream: TcpStream, acts: &[Act], requests: &Sender<Vec<u8>>, closes: &Sender<()>) {
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    let mut stream = stream;
    loop {
        let mut length = 0;
        loop {
            let mut line = String::new();
            if reader.read_line(&mut line).unwrap_or(0) == 0 {
                return;
            }
            if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
                length = value.trim().parse().unwrap();
            }
            if line == "\r\n" {
                break;
            }
        }
        let mut body = vec![0; length];
        reader.read_exact(&mut body).unwrap();
        let _ = requests.send(body);
        for act in acts {
            match act {
                Act::Send(bytes) => {
                    if stream.write_all(bytes).is_err() {
                        return;
                    }
                }
                Act::Pause(pause) => std::thread::sleep(*pause),
                Act::AwaitClose => {
                    let _ = reader.read(&mut [0; 64]);
                    let _ = closes.send(());
                    return;
                }
                Act::Close => return,
            }
        }
    }
}

/// A chunked event stream with these pieces, each a chunk, ended properly.
pub fn event_stream(pieces: &[&str]) -> Vec<Act> {
    let mut acts = begin_event_stream(pieces);
    acts.push(Act::Send(b"0\r\n\r\n".to_vec()));
    acts
}

/// The same without its end.
pub fn begin_event_stream(pieces: &[&str]) -> Vec<Act> {
    let head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n";
    let mut acts = vec![Act::Send(head.to_vec())];
    for piece in pieces {
        acts.push(Act::Send(format!("{:x}\r\n{piece}\r\n", piece.len()).into_bytes()));
        acts.push(Act::Pause(Duration::from_millis(5)));
    }
    acts
}

/// A whole JSON reply.
pub fn json_reply(status: &str, body: &str) -> Vec<Act> {
    let text = format!(
        "HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    vec![Act::Send(text.into_bytes())]
}
