//! What an upstream does with one request: exact bytes, exact gaps, and how its connection ends.
//!
//! Apart from the player, which carries it out, so that a case is data. Beside the bytes on the wire a script keeps
//! the body that they carry, since that is what a caller must get. Must not know: sockets.

use std::time::Duration;

use bytes::Bytes;

/// Who a piece of a reply is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Whose {
    /// Always sent, and the caller's.
    Callers,
    /// The usage chunk of a server that sends it when asked: sent if the request asks, the caller's if the caller asked.
    IfAsked,
}

/// A run of bytes on the wire.
#[derive(Debug, Clone)]
pub struct Segment {
    pub wire: Bytes,
    pub whose: Whose,
}

/// One thing that an upstream does.
#[derive(Debug, Clone)]
pub enum Act {
    /// One write.
    Send(Vec<Segment>),
    /// Silence. A peer that closes in the meantime is noticed.
    Pause(Duration),
    /// Waits until the peer has closed, and notes it.
    AwaitClose,
    /// Closes in order.
    Close,
    /// Resets the connection.
    Reset,
    /// Keeps the connection open until the next request comes on it, and closes it then without a word.
    CloseAtNext,
}

/// How the body is framed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Framing {
    Chunked,
    /// As the head says, or until the connection closes.
    Plain,
}

/// A reply as it is played.
#[derive(Debug, Clone)]
pub struct Play {
    pub acts: Vec<Act>,
    body: Vec<(Bytes, Whose)>,
    framing: Framing,
}

impl Play {
    fn new(head: &str, framing: Framing) -> Play {
        let mut play = Play { acts: Vec::new(), body: Vec::new(), framing };
        if !head.is_empty() {
            play.acts.push(whole(Bytes::copy_from_slice(head.as_bytes())));
        }
        play
    }

    /// No head: the script says what comes, if anything.
    pub fn mute() -> Play {
        Play::new("", Framing::Plain)
    }

    /// A stream of events in chunks.
    pub fn sse() -> Play {
        Play::sse_with("transfer-encoding: chunked\r\n")
    }

    /// The same with these further header lines.
    pub fn sse_with(lines: &str) -> Play {
        let head = format!("HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n{lines}\r\n");
        Play::new(&head, if lines.contains("chunked") { Framing::Chunked } else { Framing::Plain })
    }

    /// A stream of events that ends with its connection.
    pub fn sse_until_close() -> Play {
        Play::sse_with("connection: close\r\n")
    }

    /// A whole JSON reply with its length.
    pub fn json(status: u16, body: impl AsRef<[u8]>) -> Play {
        Play::reply(status, "content-type: application/json\r\n", body)
    }

    /// A whole reply with its length and these header lines.
    pub fn reply(status: u16, lines: &str, body: impl AsRef<[u8]>) -> Play {
        let body = Bytes::copy_from_slice(body.as_ref());
        let head = format!("HTTP/1.1 {status} Said\r\n{lines}content-length: {}\r\n\r\n", body.len());
        let mut wire = head.into_bytes();
        wire.extend_from_slice(&body);
        let mut play = Play::new("", Framing::Plain);
        play.acts.push(whole(Bytes::from(wire)));
        play.body.push((body, Whose::Callers));
        play
    }

    /// Only a head, given in full.
    pub fn head(head: &str) -> Play {
        Play::new(head, if head.contains("chunked") { Framing::Chunked } else { Framing::Plain })
    }

    /// A piece of the body in one write.
    pub fn send(self, bytes: impl AsRef<[u8]>) -> Play {
        let bytes = Bytes::copy_from_slice(bytes.as_ref());
        self.write(vec![(bytes, Whose::Callers)])
    }

    /// The same without a copy, for large pieces.
    pub fn send_large(self, bytes: Bytes) -> Play {
        self.write(vec![(bytes, Whose::Callers)])
    }

    /// A usage chunk of a server that sends it when asked.
    pub fn if_asked(self, bytes: impl AsRef<[u8]>) -> Play {
        let bytes = Bytes::copy_from_slice(bytes.as_ref());
        self.write(vec![(bytes, Whose::IfAsked)])
    }

    /// Several pieces of the body in one write.
    pub fn write(mut self, pieces: Vec<(Bytes, Whose)>) -> Play {
        let pieces_sent = pieces.iter().filter(|(bytes, _)| !bytes.is_empty());
        let segments = pieces_sent.flat_map(|(bytes, whose)| self.framed(bytes, *whose)).collect();
        self.acts.push(Act::Send(segments));
        self.body.extend(pieces);
        self
    }

    fn framed(&self, bytes: &Bytes, whose: Whose) -> Vec<Segment> {
        let segment = |wire: Bytes| Segment { wire, whose };
        match self.framing {
            Framing::Plain => vec![segment(bytes.clone())],
            // Large pieces are shared and not copied.
            Framing::Chunked => {
                let size = Bytes::from(format!("{:x}\r\n", bytes.len()));
                vec![segment(size), segment(bytes.clone()), segment(Bytes::from_static(b"\r\n"))]
            }
        }
    }

    /// Bytes on the wire that are no part of the body.
    pub fn raw(mut self, wire: impl AsRef<[u8]>) -> Play {
        self.acts.push(whole(Bytes::copy_from_slice(wire.as_ref())));
        self
    }

    /// Bytes on the wire that carry this piece of the body in a framing of the case's own.
    pub fn framed_as(self, wire: impl AsRef<[u8]>, body: impl AsRef<[u8]>) -> Play {
        let mut play = self.raw(wire);
        play.body.push((Bytes::copy_from_slice(body.as_ref()), Whose::Callers));
        play
    }

    pub fn pause(self, milliseconds: u64) -> Play {
        self.act(Act::Pause(Duration::from_millis(milliseconds)))
    }

    pub fn act(mut self, act: Act) -> Play {
        self.acts.push(act);
        self
    }

    /// The proper end of a body in chunks.
    pub fn end(self) -> Play {
        match self.framing {
            Framing::Chunked => self.raw("0\r\n\r\n"),
            Framing::Plain => self,
        }
    }

    pub fn close(self) -> Play {
        self.act(Act::Close)
    }

    pub fn reset(self) -> Play {
        self.act(Act::Reset)
    }

    pub fn await_close(self) -> Play {
        self.act(Act::AwaitClose)
    }

    /// The same behind what another script does.
    pub fn delayed(mut self, before: Play) -> Play {
        self.acts.splice(0..0, before.acts);
        self
    }

    /// The body as a caller must get it.
    pub fn body(&self, usage_asked: bool) -> Vec<u8> {
        let pieces = self.body.iter().filter(|(_, whose)| usage_asked || *whose == Whose::Callers);
        pieces.flat_map(|(bytes, _)| bytes.iter().copied()).collect()
    }

    /// Whether the body's end is told by a length or by chunks, and nothing follows it.
    pub fn says_its_length(&self) -> bool {
        let heads = self.acts.iter().filter_map(|act| match act {
            Act::Send(segments) => segments.first(),
            Act::Pause(_) | Act::AwaitClose | Act::Close | Act::Reset | Act::CloseAtNext => None,
        });
        let head =
            heads.map(|segment| segment.wire.to_ascii_lowercase()).find(|head| head.starts_with(b"http/"));
        let text = head.map(|head| String::from_utf8_lossy(&head).into_owned()).unwrap_or_default();
        let says = |mark: &str| text.contains(mark);
        let length = says("chunked") || says("content-length") || says(" 204 ") || says(" 304 ");
        let closes = self.acts.iter().any(|act| matches!(act, Act::Close));
        length && !closes && !says("http/1.0")
    }
}

fn whole(wire: Bytes) -> Act {
    Act::Send(vec![Segment { wire, whose: Whose::Callers }])
}
