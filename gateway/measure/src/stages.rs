//! When payload arrived, by kind, on both legs: first and last stamps, and the stretches between them.
//!
//! Apart because it is the state that every delta touches; each call is a few comparisons. Must not know: bytes of
//! frames, tokens, formulas.

use crate::event::At;

/// A point of the upstream's body: when it had been read and when the caller had been handed it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mark {
    pub at: At,
    /// Length of the upstream's body up to and including what is marked.
    pub byte: u64,
    pub delivered: Option<At>,
}

impl Mark {
    pub fn new(at: At, byte: u64) -> Self {
        Mark { at, byte, delivered: None }
    }

    /// Notes that the caller has the body up to this many bytes.
    pub fn forwarded(&mut self, bytes: u64, at: At) {
        if self.delivered.is_none() && self.byte <= bytes {
            self.delivered = Some(at);
        }
    }
}

/// First and last of one kind of event.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Span {
    pub first: Option<Mark>,
    pub last: Option<Mark>,
    /// When the last one that reached the caller reached it.
    delivered_last: Option<At>,
    pub events: u64,
}

impl Span {
    pub fn push(&mut self, mark: Mark) {
        self.first.get_or_insert(mark);
        self.last = Some(mark);
        self.delivered_last = mark.delivered.or(self.delivered_last);
        self.events += 1;
    }

    pub fn forwarded(&mut self, bytes: u64, at: At) {
        if let Some(first) = &mut self.first {
            first.forwarded(bytes, at);
        }
        if let Some(last) = &mut self.last
            && last.delivered.is_none()
        {
            last.forwarded(bytes, at);
            self.delivered_last = last.delivered.or(self.delivered_last);
        }
    }

    /// The stamps of the upstream leg.
    pub fn read(&self) -> (Option<At>, Option<At>) {
        (self.first.map(|mark| mark.at), self.last.map(|mark| mark.at))
    }

    /// The stamps of the leg to the caller, of what reached it.
    pub fn delivered(&self) -> (Option<At>, Option<At>) {
        (self.first.and_then(|mark| mark.delivered), self.delivered_last)
    }
}

/// What a payload is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Reasoning,
    /// Text, tool call, refusal, audio.
    Body,
}

/// All payload of one reply.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Stages {
    /// Every valid token.
    pub tokens: Span,
    pub reasoning: Span,
    pub body: Span,
    before: Option<(Kind, At)>,
    /// Nanoseconds between one reasoning payload and the next with no body between.
    pub reasoning_active_ns: u64,
    /// Nanoseconds between one body payload and the next with no reasoning between.
    pub content_active_ns: u64,
    /// Nanoseconds between payloads of different kinds. The three sum to the time from first to last token.
    pub gaps_ns: u64,
}

impl Stages {
    /// Notes a valid token. Its kind follows by [`Stages::payload`], at once or when it is known.
    pub fn token(&mut self, mark: Mark) {
        self.tokens.push(mark);
    }

    /// Notes what kind of payload a token was. Calls follow the order of arrival.
    pub fn payload(&mut self, kind: Kind, mark: Mark) {
        match kind {
            Kind::Reasoning => self.reasoning.push(mark),
            Kind::Body => self.body.push(mark),
        }
        if let Some((before, since)) = self.before {
            let stretch = mark.at.since(since).unwrap_or(0);
            match (before, kind) {
                (Kind::Reasoning, Kind::Reasoning) => self.reasoning_active_ns += stretch,
                (Kind::Body, Kind::Body) => self.content_active_ns += stretch,
                (Kind::Reasoning, Kind::Body) | (Kind::Body, Kind::Reasoning) => self.gaps_ns += stretch,
            }
        }
        self.before = Some((kind, mark.at));
    }

    pub fn forwarded(&mut self, bytes: u64, at: At) {
        self.tokens.forwarded(bytes, at);
        self.reasoning.forwarded(bytes, at);
        self.body.forwarded(bytes, at);
    }
}
