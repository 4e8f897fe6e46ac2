//! Events of one request → its record, exactly once.
//!
//! Apart as a pure machine: it is handed every stamp and every byte and owns no clock and no socket, so that any
//! request can be played in a test. It never fails: what cannot be understood marks the record. Must not know:
//! HTTP libraries, sinks.
//!
//! # Contract
//! * Bytes go to the caller first and come here after; nothing here delays or changes them.
//! * Memory is bounded: one frame, or one body, of at most [`Options::frame_bytes_max`], and a few hundred stamps.
//! * [`Observer::finish`] takes the observer, so that a request has one record.

use crate::answer::{Answer, Expectation, ExpectedUsage, Life, Understood};
use crate::blocked::Blocked;
use crate::dialect::{self, Dialect, Ends};
use crate::engine_timing::HeadTiming;
use crate::event::{At, BodyKind, Ending, EngineTimes, Event};
use crate::metrics_object::SoFar;
use crate::outcome::Payload;
use crate::own_cost::OwnCost;
use crate::record::{Flag, Record};
use crate::request::{Options, RequestFacts, UsageAsked, UsageCapability, Work};
use crate::sse::{PieceKind, Splitter};
use crate::stages::Mark;
use crate::summary;
use crate::timing::Transfer;

/// Measures one request.
#[derive(Debug, Clone)]
pub struct Observer {
    pub(crate) facts: RequestFacts,
    pub(crate) options: Options,
    pub(crate) attempts: u32,
    pub(crate) attempt: Attempt,
    pub(crate) blocked: Blocked,
    pub(crate) engine: Option<EngineTimes>,
    /// The end of the last write and how much of the body the caller has.
    pub(crate) forwarded: Option<(At, u64)>,
    /// Absent if the shell does not tell.
    pub(crate) own: Option<OwnCost>,
}

/// What one attempt at the upstream brought.
#[derive(Debug, Clone)]
pub(crate) struct Attempt {
    pub sent: Option<At>,
    pub head: Option<(At, u16)>,
    pub head_timing: HeadTiming,
    pub transfer: Transfer,
    pub first_byte: Option<At>,
    pub last_read: Option<At>,
    /// The last read that brought more than comments.
    pub alive: Option<At>,
    pub bytes: u64,
    pub eof: Option<At>,
    pub answer: Answer,
    pub body: BodyState,
    reading: Reading,
}

/// What became of a body that does not stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BodyState {
    /// Not there yet, or not to be read.
    Unread,
    Read,
    Malformed,
    OverCap,
    /// Compressed; it passes unread.
    Encoded,
}

#[derive(Debug, Clone)]
enum Reading {
    /// Nothing in the body concerns us.
    Nothing,
    Frames(Dialect, Splitter),
    Body(Vec<u8>),
}

impl Observer {
    pub fn new(facts: RequestFacts, options: Options) -> Self {
        let attempt = Attempt::new(&facts, &options);
        Observer {
            facts,
            options,
            attempts: 0,
            attempt,
            blocked: Blocked::default(),
            engine: None,
            forwarded: None,
            own: None,
        }
    }

    /// Takes one event. Never fails; see the module for the contract.
    pub fn observe(&mut self, at: At, event: Event<'_>) {
        match event {
            Event::AttemptStarted => {
                self.attempts = self.attempts.saturating_add(1);
                self.attempt = Attempt::new(&self.facts, &self.options);
                self.engine = None;
            }
            Event::UsageAsked(usage) => self.facts.usage = usage,
            Event::RequestSent => self.attempt.sent = Some(at),
            Event::Head { status, body } => self.head(at, status, body),
            Event::UpstreamBytes(bytes) => self.attempt.read(at, bytes, self.options.frame_bytes_max),
            Event::UpstreamEof => {
                self.attempt.end(at, &self.facts);
                // A body is understood only now, and the caller may have it already.
                if let Some((at, bytes)) = self.forwarded {
                    self.attempt.answer.forwarded(bytes, at);
                }
            }
            Event::Forwarded { upstream_bytes, since } => {
                self.blocked.push(since, at);
                let (before, passed) = self.forwarded.unwrap_or_default();
                let at = at.max(before);
                self.forwarded = Some((at, passed.max(upstream_bytes)));
                self.attempt.answer.forwarded(upstream_bytes, at);
            }
            Event::EngineTimes(times) => self.engine = Some(times),
            Event::HeadField { name, value } => self.attempt.head_timing.field(name, value),
            Event::Worked { ns, chunks } => self.own.get_or_insert_default().add(ns, chunks),
            Event::ReadsHeldBack => self.attempt.answer.flag(Flag::ReadsHeldBack),
        }
    }

    /// Whether the event that ends the protocol has been read from the upstream.
    pub fn terminal_seen(&self) -> bool {
        self.attempt.answer.terminal.is_some()
    }

    /// The last read that brought a part of the reply. Comments, which servers send to keep a connection open, are no
    /// sign that the answer goes on.
    pub fn alive_at(&self) -> Option<At> {
        self.attempt.alive
    }

    /// Whether the upstream has told of an error inside its reply.
    pub fn error_seen(&self) -> bool {
        self.attempt.answer.error.is_some()
    }

    /// Whether a valid token has been read; for a reply that does not stream, its end.
    pub fn first_token_seen(&self) -> bool {
        self.attempt.answer.stages.tokens.first.is_some()
    }

    /// The engine's own times, if they have come.
    pub fn engine_times(&self) -> Option<&EngineTimes> {
        self.engine.as_ref()
    }

    /// What is known so far of the upstream leg, for the `client` object of a response. Usage counts once it has
    /// been observed; until then what is made of it is absent.
    pub fn so_far(&self) -> SoFar {
        summary::so_far(self)
    }

    /// What would be known if this read had just completed at `at`: for the `client` object of a response, which goes
    /// into the very frame that brings the usage. Once per request, since it copies the state of the observer; nothing
    /// is observed by it.
    pub fn so_far_with(&self, at: At, bytes: &[u8]) -> SoFar {
        let mut preview = self.clone();
        preview.observe(at, Event::UpstreamBytes(bytes));
        summary::so_far(&preview)
    }

    /// Ends the request. `client_status` is the status that went to the caller, if any did.
    pub fn finish(mut self, at: At, ending: Ending, client_status: Option<u16>) -> Record {
        self.attempt.close();
        summary::record(self, at, ending, client_status)
    }

    fn head(&mut self, at: At, status: u16, body: BodyKind) {
        let attempt = &mut self.attempt;
        attempt.head = Some((at, status));
        let readable = (200..300).contains(&status);
        let streams = readable
            && match body {
                BodyKind::EventStream => true,
                BodyKind::Json => false,
                // A stream that was asked for, under a content type that does not say so.
                BodyKind::Other | BodyKind::Encoded => self.facts.upstream_stream,
            };
        attempt.transfer = if streams { Transfer::Streamed } else { Transfer::Whole };
        let expectation = expectation(&self.facts, &self.options, attempt.transfer);
        attempt.answer = Answer::new(expectation);
        let readable = readable && body != BodyKind::Encoded;
        if body == BodyKind::Encoded {
            attempt.body = BodyState::Encoded;
            attempt.answer.flag(Flag::BodyEncoded);
        }
        let dialect = Dialect::of(self.facts.endpoint).filter(|_| readable);
        attempt.reading = match (dialect, self.facts.endpoint.work()) {
            (Some(dialect), _) if streams => {
                Reading::Frames(dialect, Splitter::new(self.options.frame_bytes_max))
            }
            (Some(_), _) => Reading::Body(Vec::new()),
            (None, Work::Embedding) if readable => Reading::Body(Vec::new()),
            (None, Work::Generating | Work::Embedding | Work::Apart) => Reading::Nothing,
        };
    }
}

/// What a reply must hold to be whole.
fn expectation(facts: &RequestFacts, options: &Options, transfer: Transfer) -> Expectation {
    let asked = match facts.usage {
        UsageAsked::ByClient | UsageAsked::ByGateway | UsageAsked::Forced => true,
        UsageAsked::Not => false,
    };
    // Where the protocol has events for it, usage comes without being asked for.
    let brings_usage = Dialect::of(facts.endpoint).is_some_and(|dialect| dialect.ends() == Ends::WithEvent);
    let expected = match (options.usage_capability, transfer) {
        (UsageCapability::Always, _) => true,
        (UsageCapability::Never, _) => false,
        // A reply that does not stream is not asked for usage; one without is counted, not judged.
        (UsageCapability::StreamOptions, Transfer::Whole) => false,
        (UsageCapability::StreamOptions, Transfer::Streamed) => asked || brings_usage,
    };
    Expectation {
        choices: facts.sequences(),
        choices_per_prompt: facts.choices,
        echo: facts.echo.clone(),
        usage: if expected { ExpectedUsage::Expected } else { ExpectedUsage::NotExpected },
        inline_think: options.inline_think,
    }
}

impl Attempt {
    fn new(facts: &RequestFacts, options: &Options) -> Self {
        let transfer = if facts.upstream_stream { Transfer::Streamed } else { Transfer::Whole };
        Attempt {
            sent: None,
            head: None,
            head_timing: HeadTiming::default(),
            transfer,
            first_byte: None,
            last_read: None,
            alive: None,
            bytes: 0,
            eof: None,
            answer: Answer::new(expectation(facts, options, transfer)),
            body: BodyState::Unread,
            reading: Reading::Nothing,
        }
    }

    fn read(&mut self, at: At, bytes: &[u8], frame_bytes_max: usize) {
        let at = self.not_before_last(at);
        if !bytes.is_empty() {
            self.first_byte.get_or_insert(at);
            self.last_read = Some(at);
        }
        let mut position = self.bytes;
        self.bytes = self.bytes.saturating_add(bytes.len() as u64);
        match &mut self.reading {
            Reading::Nothing => self.alive = Some(at),
            Reading::Body(body) => {
                self.alive = Some(at);
                if body.len().saturating_add(bytes.len()) <= frame_bytes_max {
                    body.extend_from_slice(bytes);
                } else {
                    self.reading = Reading::Nothing;
                    self.body = BodyState::OverCap;
                    self.answer.flag(Flag::BodyOverCap);
                }
            }
            Reading::Frames(dialect, splitter) => {
                position -= splitter.held_bytes();
                splitter.visit(bytes, |kind, piece| {
                    position += piece.len() as u64;
                    match kind {
                        PieceKind::Frame => {
                            if self.answer.frame(*dialect, piece, Mark::new(at, position)) == Life::Sign {
                                self.alive = Some(at);
                            }
                        }
                        PieceKind::Unparsed => {
                            self.alive = Some(at);
                            self.answer.flag(Flag::FrameOverCap);
                        }
                    }
                });
                if splitter.holds_a_field() {
                    self.alive = Some(at);
                }
            }
        }
    }

    /// Reads of one body do not go backwards; a stamp that does is held, and that is flagged.
    fn not_before_last(&mut self, at: At) -> At {
        match self.last_read {
            Some(last) if at < last => {
                self.answer.flag(Flag::StampClamped);
                last
            }
            Some(_) | None => at,
        }
    }

    fn end(&mut self, at: At, facts: &RequestFacts) {
        self.eof = Some(at);
        let mark = Mark::new(self.last_read.unwrap_or(at), self.bytes);
        match std::mem::replace(&mut self.reading, Reading::Nothing) {
            Reading::Nothing => {}
            Reading::Frames(dialect, mut splitter) => {
                // A last frame without its blank line; SDKs take it too.
                if let Some(piece) = splitter.finish() {
                    match piece.kind {
                        PieceKind::Frame => _ = self.answer.frame(dialect, &piece, mark),
                        PieceKind::Unparsed => self.answer.flag(Flag::FrameOverCap),
                    }
                }
            }
            Reading::Body(body) => {
                self.body = match Dialect::of(facts.endpoint) {
                    Some(dialect) => match self.answer.body(dialect, &body, mark) {
                        Understood::Yes => BodyState::Read,
                        Understood::No => BodyState::Malformed,
                    },
                    None => {
                        self.answer.usage = dialect::usage_of(&body);
                        BodyState::Read
                    }
                };
            }
        }
        let ends_with_bytes = self.transfer == Transfer::Whole
            || self.body == BodyState::Encoded
            || Dialect::of(facts.endpoint).is_none();
        if ends_with_bytes && self.head.is_some() {
            self.answer.terminal.get_or_insert(mark);
        }
    }

    fn close(&mut self) {
        self.answer.close();
    }

    /// What the reply held.
    pub fn payload(&self) -> Payload {
        let stages = &self.answer.stages;
        match self.body {
            BodyState::Malformed => Payload::Malformed,
            BodyState::OverCap | BodyState::Encoded => Payload::NotRead,
            BodyState::Unread | BodyState::Read if stages.body.events > 0 => Payload::Body,
            BodyState::Unread | BodyState::Read if stages.reasoning.events > 0 => Payload::ReasoningOnly,
            BodyState::Unread | BodyState::Read => {
                // An unread frame may have held the payload, and so may the chunk that was taken for an echo.
                let unsure = [Flag::FrameOverCap, Flag::EchoLengthUnknown];
                let unsure = unsure.iter().any(|flag| self.answer.flags.contains(flag));
                if unsure { Payload::NotRead } else { Payload::None }
            }
        }
    }
}
