//! Bytes of an event stream → frames, byte-exact.
//!
//! Apart because both the observer and the rewriter stand on it: any cut of the same bytes gives the same frames,
//! and the pieces joined are the input. A frame over the cap passes in parts, marked as not parsed; there are no
//! errors. Must not know: what is inside a frame's data.
//!
//! Line ends are LF, CRLF and bare CR, as the event stream format has it (WHATWG HTML, "Server-sent events"). A
//! blank line of one CR ends its frame at once where the line before ended in a bare CR too; otherwise the next
//! byte decides, since it may be the LF of the same line end.

use std::borrow::Cow;
use std::ops::Deref;

use memchr::memchr2;

/// Frames longer than this are not parsed unless told otherwise.
pub const FRAME_BYTES_MAX: usize = 16 * 1024 * 1024;

/// What a piece of the stream is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PieceKind {
    /// A whole frame with its blank line.
    Frame,
    /// A part of a frame over the cap.
    Unparsed,
}

/// A run of bytes of the stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Piece<'a> {
    pub kind: PieceKind,
    pub bytes: Cow<'a, [u8]>,
}

impl Deref for Piece<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes
    }
}

/// How the line before ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LineEnd {
    /// There is no line before in this frame, or it ended in a line feed.
    LineFeed,
    CarriageReturn,
}

/// Where the search for the end of a frame stands; may be taken up again once more bytes have come.
#[derive(Debug, Clone, Copy)]
struct Scan {
    /// Start of the line that is being read.
    line: usize,
    /// Everything before has been looked at.
    next: usize,
    before: LineEnd,
}

impl Scan {
    const START: Scan = Scan { line: 0, next: 0, before: LineEnd::LineFeed };

    /// Goes on to the end of the frame: the offset behind its blank line. None until more bytes come.
    fn advance(&mut self, bytes: &[u8]) -> Option<usize> {
        while let Some(offset) = memchr2(b'\n', b'\r', &bytes[self.next..]) {
            let end = self.next + offset;
            let blank = end == self.line;
            let (after, this) = if bytes[end] == b'\n' {
                (end + 1, LineEnd::LineFeed)
            } else if blank && self.before == LineEnd::CarriageReturn {
                return Some(end + 1);
            } else {
                match bytes.get(end + 1) {
                    None => {
                        self.next = end;
                        return None;
                    }
                    Some(b'\n') => (end + 2, LineEnd::LineFeed),
                    Some(_) => (end + 1, LineEnd::CarriageReturn),
                }
            };
            if blank {
                return Some(after);
            }
            *self = Scan { line: after, next: after, before: this };
        }
        self.next = bytes.len();
        None
    }
}

/// Gives the offset behind the first frame, its blank line included. None if it is not whole yet.
pub fn frame_end(bytes: &[u8]) -> Option<usize> {
    let mut scan = Scan::START;
    scan.advance(bytes)
}

/// Cuts a stream into frames.
#[derive(Debug, Clone)]
pub struct Splitter {
    held: Vec<u8>,
    scan: Scan,
    frame_bytes_max: usize,
    /// Inside a frame over the cap; its bytes pass until it ends.
    passing: bool,
    frames_over_cap: u64,
}

impl Default for Splitter {
    fn default() -> Self {
        Splitter::new(FRAME_BYTES_MAX)
    }
}

impl Splitter {
    /// Frames longer than this many bytes pass unparsed; at most so many are held, and one read.
    pub fn new(frame_bytes_max: usize) -> Self {
        Splitter { held: Vec::new(), scan: Scan::START, frame_bytes_max, passing: false, frames_over_cap: 0 }
    }

    /// Frames that were longer than the cap.
    pub fn frames_over_cap(&self) -> u64 {
        self.frames_over_cap
    }

    /// Whether the unfinished frame, if there is one, has begun as more than a comment.
    pub fn holds_a_field(&self) -> bool {
        self.held.first().is_some_and(|first| !matches!(first, b':' | b'\r' | b'\n'))
    }

    /// Bytes of an unfinished frame that are held.
    pub fn held_bytes(&self) -> u64 {
        self.held.len() as u64
    }

    /// Takes what one read brought and gives what is whole. Frames that lie within the read are not copied.
    pub fn push<'a>(&mut self, bytes: &'a [u8]) -> Vec<Piece<'a>> {
        let mut pieces = Vec::with_capacity(2);
        self.each(bytes, |kind, run| {
            let bytes = match run {
                Run::Within(bytes) => Cow::Borrowed(bytes),
                Run::Held(held, length) => {
                    let rest = held.split_off(length);
                    Cow::Owned(std::mem::replace(held, rest))
                }
            };
            pieces.push(Piece { kind, bytes });
        });
        pieces
    }

    /// Takes what one read brought and shows what is whole, piece by piece, without an allocation for any.
    pub fn visit(&mut self, bytes: &[u8], mut see: impl FnMut(PieceKind, &[u8])) {
        self.each(bytes, |kind, run| match run {
            Run::Within(bytes) => see(kind, bytes),
            Run::Held(held, length) => {
                see(kind, &held[..length]);
                held.drain(..length);
            }
        });
    }

    /// Finds the pieces. `take` has to take what is held out.
    fn each<'a>(&mut self, bytes: &'a [u8], mut take: impl FnMut(PieceKind, Run<'a, '_>)) {
        let mut rest = bytes;
        if !self.held.is_empty() {
            let held_before = self.held.len();
            self.held.extend_from_slice(rest);
            let Some(end) = self.scan.advance(&self.held) else {
                self.let_pass(&mut take);
                return;
            };
            self.held.truncate(end);
            rest = &rest[end - held_before..];
            let kind = self.whole(end);
            take(kind, Run::Held(&mut self.held, end));
        }
        while let Some(end) = self.scan.advance(rest) {
            let (frame, after) = rest.split_at(end);
            take(self.whole(end), Run::Within(frame));
            rest = after;
        }
        self.held.extend_from_slice(rest);
        self.let_pass(&mut take);
    }

    /// Gives what is left once the stream has ended: a last frame without its blank line.
    pub fn finish(&mut self) -> Option<Piece<'static>> {
        let held = std::mem::take(&mut self.held);
        (!held.is_empty()).then(|| Piece { kind: self.whole(held.len()), bytes: Cow::Owned(held) })
    }

    /// What a frame of this length is that has come to its end; the next one begins.
    fn whole(&mut self, length: usize) -> PieceKind {
        self.scan = Scan::START;
        let over = length > self.frame_bytes_max;
        if over && !self.passing {
            self.frames_over_cap += 1;
        }
        let kind = if over || self.passing { PieceKind::Unparsed } else { PieceKind::Frame };
        self.passing = false;
        kind
    }

    /// Lets a frame go that has grown past the cap, all but the bytes that the search for its end stands on.
    fn let_pass<'a>(&mut self, take: &mut impl FnMut(PieceKind, Run<'a, '_>)) {
        if !self.passing && self.held.len() <= self.frame_bytes_max {
            return;
        }
        if !self.passing {
            self.passing = true;
            self.frames_over_cap += 1;
        }
        // One byte of a line that has begun stays, so that the line does not look blank. A carriage return that
        // waits for its line feed stays too, since the search has not passed it.
        let begun = self.scan.line < self.scan.next;
        let keep_from = if begun { self.scan.next - 1 } else { self.scan.next };
        if keep_from == 0 {
            return;
        }
        self.scan.next -= keep_from;
        self.scan.line = 0;
        take(PieceKind::Unparsed, Run::Held(&mut self.held, keep_from));
    }
}

/// Where the bytes of a piece lie.
enum Run<'a, 'h> {
    /// In the read.
    Within(&'a [u8]),
    /// The first so many that are held.
    Held(&'h mut Vec<u8>, usize),
}

/// The fields of a frame that matter here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fields<'a> {
    /// The last `event` field.
    pub event: Option<&'a [u8]>,
    /// The `data` fields, joined by line feeds; borrowed if there is one.
    pub data: Option<Cow<'a, [u8]>>,
}

/// Reads a frame's fields. Comments, unknown fields and a byte order mark are passed over.
pub fn fields(frame: &[u8]) -> Fields<'_> {
    let mut rest = frame.strip_prefix(b"\xef\xbb\xbf").unwrap_or(frame);
    let mut fields = Fields { event: None, data: None };
    while !rest.is_empty() {
        let end = memchr2(b'\n', b'\r', rest).unwrap_or(rest.len());
        let line = &rest[..end];
        rest = rest.get(end + 1..).unwrap_or(&[]);
        if let Some(value) = value_of(line, b"data") {
            fields.data = Some(match fields.data.take() {
                None => Cow::Borrowed(value),
                Some(before) => {
                    let mut joined = before.into_owned();
                    joined.push(b'\n');
                    joined.extend_from_slice(value);
                    Cow::Owned(joined)
                }
            });
        } else if let Some(value) = value_of(line, b"event") {
            fields.event = Some(value);
        }
    }
    fields
}

/// Gives the payload of a frame: its `data` fields, joined by line feeds. None if it has none, as a comment.
pub fn data(frame: &[u8]) -> Option<Cow<'_, [u8]>> {
    fields(frame).data
}

/// The value of a line that has this field; one space behind the colon is not part of it.
fn value_of<'a>(line: &'a [u8], field: &[u8]) -> Option<&'a [u8]> {
    let rest = line.strip_prefix(field)?;
    match rest.split_first() {
        None => Some(rest),
        Some((b':', value)) => Some(value.strip_prefix(b" ").unwrap_or(value)),
        Some(_) => None,
    }
}
