//! HTTP/1.1 as bytes: heads, chunks and lengths, read strictly and without any library.
//!
//! Apart because both the upstream and the caller need it, and because a library would repair what a test must see.
//! Must not know: sockets, cases.

/// How a body is delimited.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Delimited {
    Length(u64),
    Chunked,
    UntilClose,
    Nothing,
    /// More than one of the above, which is a fault of its sender.
    Contradicting,
}

/// Header lines of a head, names in small letters.
pub fn headers(head: &str) -> Vec<(String, String)> {
    let lines = head.lines().skip(1).filter_map(|line| line.split_once(':'));
    lines.map(|(name, value)| (name.trim().to_ascii_lowercase(), value.trim().to_owned())).collect()
}

pub fn header<'h>(headers: &'h [(String, String)], name: &str) -> Option<&'h str> {
    headers.iter().find(|(found, _)| found == name).map(|(_, value)| value.as_str())
}

/// How the body behind these headers is delimited, as far as they say.
pub fn delimited(headers: &[(String, String)]) -> Option<Delimited> {
    let of = |name: &str| headers.iter().filter(|(found, _)| found == name).count();
    let (lengths, codings) = (of("content-length"), of("transfer-encoding"));
    if lengths + codings > 1 {
        return Some(Delimited::Contradicting);
    }
    if codings == 1 {
        let chunked = header(headers, "transfer-encoding")?.eq_ignore_ascii_case("chunked");
        return Some(if chunked { Delimited::Chunked } else { Delimited::Contradicting });
    }
    let length = header(headers, "content-length")?;
    Some(length.parse().map_or(Delimited::Contradicting, Delimited::Length))
}

/// Takes a body apart from its framing, any bytes at a time.
#[derive(Debug)]
pub struct Body {
    delimited: Delimited,
    pub bytes: Vec<u8>,
    pending: Vec<u8>,
    /// Bytes of the current chunk that are still to come, its line end included.
    chunk_left: u64,
    state: State,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum State {
    ChunkHead,
    ChunkData,
    Trailer,
    Counted,
    Done,
    Malformed(String),
}

impl Body {
    pub fn new(delimited: Delimited) -> Body {
        let state = match delimited {
            Delimited::Length(0) | Delimited::Nothing => State::Done,
            Delimited::Length(_) | Delimited::UntilClose => State::Counted,
            Delimited::Chunked => State::ChunkHead,
            Delimited::Contradicting => State::Malformed("more than one length, or one that is none".into()),
        };
        Body { delimited, bytes: Vec::new(), pending: Vec::new(), chunk_left: 0, state }
    }

    pub fn is_done(&self) -> bool {
        self.state == State::Done
    }

    pub fn malformed(&self) -> Option<&str> {
        match &self.state {
            State::Malformed(why) => Some(why),
            State::ChunkHead | State::ChunkData | State::Trailer | State::Counted | State::Done => None,
        }
    }

    /// The connection ended. True if the body was complete then.
    pub fn closed(&mut self) -> bool {
        if self.delimited == Delimited::UntilClose {
            self.state = State::Done;
        }
        self.is_done()
    }

    /// Takes bytes; gives those behind the end of the body.
    pub fn push(&mut self, bytes: &[u8]) -> Vec<u8> {
        match self.delimited {
            Delimited::Nothing | Delimited::Contradicting => bytes.to_vec(),
            Delimited::UntilClose => {
                self.bytes.extend_from_slice(bytes);
                Vec::new()
            }
            Delimited::Length(length) => {
                let left = (length - self.bytes.len() as u64).min(bytes.len() as u64) as usize;
                self.bytes.extend_from_slice(&bytes[..left]);
                if self.bytes.len() as u64 == length {
                    self.state = State::Done;
                }
                bytes[left..].to_vec()
            }
            Delimited::Chunked => {
                self.pending.extend_from_slice(bytes);
                self.chunks()
            }
        }
    }

    fn chunks(&mut self) -> Vec<u8> {
        loop {
            match self.state {
                State::ChunkHead | State::Trailer => {
                    let Some(end) = self.pending.windows(2).position(|pair| pair == b"\r\n") else {
                        return Vec::new();
                    };
                    let line = String::from_utf8_lossy(&self.pending[..end]).into_owned();
                    self.pending.drain(..end + 2);
                    self.state = self.line(&line);
                }
                State::ChunkData => {
                    let take = self.chunk_left.min(self.pending.len() as u64) as usize;
                    self.chunk_left -= take as u64;
                    self.bytes.extend(self.pending.drain(..take));
                    if self.chunk_left > 0 || self.pending.len() < 2 {
                        return Vec::new();
                    }
                    let end: Vec<u8> = self.pending.drain(..2).collect();
                    self.state = match end == b"\r\n" {
                        true => State::ChunkHead,
                        false => State::Malformed(format!("a chunk ends with {end:?}")),
                    };
                }
                State::Done => return std::mem::take(&mut self.pending),
                State::Counted | State::Malformed(_) => return Vec::new(),
            }
        }
    }

    fn line(&mut self, line: &str) -> State {
        if self.state == State::Trailer {
            return if line.is_empty() { State::Done } else { State::Trailer };
        }
        let size = line.split(';').next().unwrap_or_default();
        match u64::from_str_radix(size, 16) {
            Ok(0) => State::Trailer,
            Ok(length) => {
                self.chunk_left = length;
                State::ChunkData
            }
            Err(_) => State::Malformed(format!("a chunk begins with {line:?}")),
        }
    }
}

/// Splits a head from what follows it. None while it is not complete.
pub fn split_head(bytes: &[u8]) -> Option<(String, Vec<u8>)> {
    let end = bytes.windows(4).position(|four| four == b"\r\n\r\n")? + 4;
    Some((String::from_utf8_lossy(&bytes[..end]).into_owned(), bytes[end..].to_vec()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(wire: &str, body: &str, rest: &str, done: bool) {
        for cut in 1..=wire.len() {
            let mut reading = Body::new(Delimited::Chunked);
            let mut behind = Vec::new();
            for piece in wire.as_bytes().chunks(cut) {
                match reading.is_done() {
                    true => behind.extend_from_slice(piece),
                    false => behind.extend(reading.push(piece)),
                }
            }
            assert_eq!(String::from_utf8_lossy(&reading.bytes), body, "cut every {cut} bytes");
            assert_eq!((String::from_utf8_lossy(&behind).as_ref(), reading.is_done()), (rest, done));
        }
    }

    #[test]
    fn chunks_are_taken_apart() {
        check("3\r\nabc\r\n0\r\n\r\n", "abc", "", true);
        check("3\r\nabc\r\n0\r\n\r\n0\r\n\r\n", "abc", "0\r\n\r\n", true);
        check("3;x=y\r\nabc\r\n0\r\nt: 1\r\n\r\nGET", "abc", "GET", true);
        check("3\r\nabc\r\n", "abc", "", false);
        check("3\r\nabcd", "abc", "", false);
    }

    #[test]
    fn one_length_and_no_more() {
        let check = |lines: &str, expected| {
            assert_eq!(delimited(&headers(&format!("HTTP/1.1 200 OK\r\n{lines}\r\n"))), expected, "{lines}");
        };
        check("Content-Length: 5\r\n", Some(Delimited::Length(5)));
        check("transfer-encoding: chunked\r\n", Some(Delimited::Chunked));
        check("", None);
        check("content-length: 5\r\ntransfer-encoding: chunked\r\n", Some(Delimited::Contradicting));
        check("content-length: 5\r\ncontent-length: 5\r\n", Some(Delimited::Contradicting));
    }
}
