//! All that can be observed of one request, as closed enums, and the offsets at which it happened.
//!
//! Apart because this is the vocabulary between the shell, which owns clock and sockets, and the observer, which
//! owns the meaning. Must not know: how events come about, what they mean.

use serde::Serialize;

use crate::request::UsageAsked;

/// Nanoseconds since the request was accepted, on a monotonic clock.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(transparent)]
pub struct At(pub u64);

impl At {
    /// Nanoseconds from an earlier stamp to this one. None if the other is later.
    pub fn since(self, earlier: At) -> Option<u64> {
        self.0.checked_sub(earlier.0)
    }
}

/// What the head of the upstream's reply says about its body.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum BodyKind {
    /// `text/event-stream`.
    EventStream,
    /// `application/json` and its kin (`+json`).
    Json,
    /// Compressed, whatever is inside: it passes and cannot be read.
    Encoded,
    Other,
}

impl BodyKind {
    /// Reads a `content-type` header; parameters and case do not matter.
    pub fn of(content_type: &str) -> Self {
        let kind = content_type.split(';').next().unwrap_or("").trim();
        if kind.eq_ignore_ascii_case("text/event-stream") {
            return BodyKind::EventStream;
        }
        let kind = kind.to_ascii_lowercase();
        if kind == "application/json" || kind.ends_with("+json") { BodyKind::Json } else { BodyKind::Other }
    }
}

/// One thing that happened. Stamps of one kind of event do not go backwards; between kinds any order is fine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event<'a> {
    /// An attempt at the upstream begins; whatever an earlier attempt brought is forgotten, but counted.
    AttemptStarted,
    /// Who asks for usage from this attempt on: an upstream that refuses the question is asked again without it.
    UsageAsked(UsageAsked),
    /// Stamped immediately before the write that hands the last byte of the request to the upstream.
    RequestSent,
    /// The head of the reply. Informational heads (1xx) are not events.
    Head { status: u16, body: BodyKind },
    /// A field of the reply's head that carries timing; those of [`crate::HEAD_FIELDS`] are worth handing over.
    HeadField { name: &'a str, value: &'a str },
    /// One read from the upstream's body, as received, in order, with no transfer framing.
    UpstreamBytes(&'a [u8]),
    /// The upstream's body ended as its framing promised.
    UpstreamEof,
    /// A write to the caller began at `since` and returned at the event's stamp; the caller now has the upstream's
    /// body up to this many bytes (those that were cut out count as passed, and those that a whole reply was
    /// assembled from do with its last write).
    Forwarded { upstream_bytes: u64, since: At },
    /// The engine's own stamps and counts, on this request's time scale.
    EngineTimes(EngineTimes),
    /// The gateway itself was at work for so many nanoseconds, on this many chunks (0: on none in particular).
    Worked { ns: u64, chunks: u32 },
    /// The buffer for a slow caller was full, so that reads from here on may have been stamped late.
    ReadsHeldBack,
}

/// What the engine reported over the control channel. A stamp that never happened is absent, never 0.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct EngineTimes {
    /// The scheduler took the request in.
    pub queued: Option<At>,
    /// Top of the first step that admitted it.
    pub scheduled: Option<At>,
    /// End of the step that produced the first token.
    pub first: Option<At>,
    /// End of the step that produced the last token.
    pub last: Option<At>,
    pub tokens_prompt: u64,
    /// Absent where the engine keeps no prefix cache.
    pub tokens_cached: Option<u64>,
    /// Generated tokens, a stop token included.
    pub tokens_output: u64,
    pub reasoning: OutputPart,
    pub content: OutputPart,
    /// Markers, framing and stop tokens.
    pub tokens_unclassified: u64,
    pub preemptions: u32,
}

/// One kind of output as the engine counted it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct OutputPart {
    pub tokens: u64,
    pub first: Option<At>,
    pub last: Option<At>,
}

/// The gateway's own deadlines.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Deadline {
    Connect,
    FirstToken,
    Idle,
    Total,
}

/// What went wrong with the upstream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UpstreamFailure {
    /// No connection.
    Unreachable,
    /// The connection ended before any byte of a reply.
    Reset,
    /// The reply began and its framing was not kept to the end.
    Truncated,
    /// What came is not the protocol, or could not be passed on.
    Protocol,
}

/// Why the gateway itself refused a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RefusalReason {
    BadRequest,
    Unauthorized,
    UnknownPath,
    MethodNotAllowed,
    TooLarge,
    TooManyRequests,
    Draining,
    UpstreamUnreachable,
}

/// How the serving of a request came to its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    /// The upstream's reply ended and all of it went to the caller.
    UpstreamEnded,
    ClientLeft,
    /// One of our deadlines passed and the request was cut.
    Deadline(Deadline),
    UpstreamFailed(UpstreamFailure),
    /// Never forwarded.
    Refused(RefusalReason),
    /// The gateway ended before the request did.
    DrainOver,
    /// The code that served it was dropped before its end.
    Dropped,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn content_types() {
        for (text, kind) in [
            ("text/event-stream", BodyKind::EventStream),
            ("Text/Event-Stream; charset=utf-8", BodyKind::EventStream),
            ("application/json", BodyKind::Json),
            (" Application/JSON ;charset=utf-8", BodyKind::Json),
            ("application/problem+json", BodyKind::Json),
            ("text/html", BodyKind::Other),
            ("", BodyKind::Other),
        ] {
            assert_eq!(BodyKind::of(text), kind, "{text}");
        }
    }

    #[test]
    fn a_later_origin_gives_no_duration() {
        assert_eq!(At(5).since(At(3)), Some(2));
        assert_eq!(At(3).since(At(5)), None);
    }
}
