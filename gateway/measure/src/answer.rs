//! What has been read of one attempt's reply: frames or a body, and what they said.
//!
//! Apart from the observer, which knows requests and endings; this knows one reply. Must not know: the caller's
//! status, outcomes.

use crate::dialect::{DONE, Delta, Dialect, Finish, Frame, Usage};
use crate::event::At;
use crate::record::Flag;
use crate::request::{Echo, EchoLeft, InlineThink};
use crate::sse;
use crate::stages::{Kind, Mark, Stages};
use crate::think::{Seen, Think};

/// Choices that are kept apart; further ones share the last place.
const CHOICES_MAX: usize = 1024;
/// Payloads that may wait to be told reasoning from body. The opening mark has seven letters.
const UNDECIDED_MAX: usize = 16;

#[derive(Debug, Clone)]
struct Choice {
    index: u32,
    finished: bool,
    think: Think,
    echo: EchoLeft,
}

impl Choice {
    /// The part of a text that is not the echoed prompt.
    fn generated<'t>(&mut self, text: &'t [u8]) -> &'t [u8] {
        match self.echo {
            EchoLeft::Bytes(0) => text,
            EchoLeft::Bytes(left) => {
                let echoed = usize::try_from(left).unwrap_or(usize::MAX).min(text.len());
                self.echo = EchoLeft::Bytes(left - echoed as u64);
                &text[echoed..]
            }
            EchoLeft::OneChunk if text.is_empty() => text,
            EchoLeft::OneChunk => {
                self.echo = EchoLeft::Bytes(0);
                &[]
            }
        }
    }
}

/// What one reply said so far.
#[derive(Debug, Clone)]
pub struct Answer {
    pub stages: Stages,
    pub first_frame: Option<At>,
    pub usage: Option<Usage>,
    /// Whether the latest usage came with the last payload or behind it.
    usage_is_last: bool,
    /// Whether it came in a frame that held nothing else.
    usage_stood_alone: bool,
    pub finish: Option<Finish>,
    pub finish_mark: Option<Mark>,
    pub done: Option<Mark>,
    pub error: Option<Mark>,
    pub terminal: Option<Mark>,
    pub flags: Vec<Flag>,
    choices: Vec<Choice>,
    undecided: Vec<Mark>,
    inline_think: InlineThink,
    echo: Echo,
    choices_per_prompt: u32,
    expected_choices: u64,
    expects_usage: bool,
}

/// What is expected of a reply.
#[derive(Debug, Clone)]
pub struct Expectation {
    /// Of all prompts together.
    pub choices: u64,
    pub choices_per_prompt: u32,
    pub echo: Echo,
    pub usage: ExpectedUsage,
    pub inline_think: InlineThink,
}

/// Whether a complete reply has usage.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExpectedUsage {
    Expected,
    NotExpected,
}

impl Answer {
    pub fn new(expectation: Expectation) -> Self {
        Answer {
            stages: Stages::default(),
            first_frame: None,
            usage: None,
            usage_is_last: false,
            usage_stood_alone: false,
            finish: None,
            finish_mark: None,
            done: None,
            error: None,
            terminal: None,
            flags: Vec::new(),
            choices: Vec::new(),
            undecided: Vec::new(),
            inline_think: expectation.inline_think,
            echo: expectation.echo,
            choices_per_prompt: expectation.choices_per_prompt,
            expected_choices: expectation.choices,
            expects_usage: expectation.usage == ExpectedUsage::Expected,
        }
    }

    /// Takes one whole frame of a stream, read at `mark.at`.
    pub fn frame(&mut self, dialect: Dialect, frame: &[u8], mark: Mark) {
        let fields = sse::fields(frame);
        let Some(data) = fields.data else { return };
        let data = data.trim_ascii();
        // Some servers send heartbeats with empty data, or with an empty JSON text.
        if data.is_empty() || data == b"\"\"" {
            return;
        }
        self.first_frame.get_or_insert(mark.at);
        if data == DONE {
            self.done.get_or_insert(mark);
            self.terminal.get_or_insert(mark);
            return;
        }
        if fields.event.is_some_and(|event| event == b"error") {
            self.error.get_or_insert(mark);
        }
        match dialect.frame(data) {
            Ok(frame) => self.take(&frame, mark),
            Err(_) => self.flag(Flag::FrameMalformed),
        }
        if self.terminal.is_none()
            && self.finished()
            && (self.terminal_usage().is_some() || !self.expects_usage)
        {
            self.terminal = Some(mark);
        }
    }

    /// Takes a whole body that did not stream. False if it could not be understood.
    pub fn body(&mut self, dialect: Dialect, body: &[u8], mark: Mark) -> Understood {
        match dialect.body(body) {
            Ok(frame) => {
                self.take(&frame, mark);
                Understood::Yes
            }
            Err(_) => {
                self.flag(Flag::BodyMalformed);
                Understood::No
            }
        }
    }

    fn take(&mut self, frame: &Frame<'_>, mark: Mark) {
        if frame.error {
            self.error.get_or_insert(mark);
        }
        let mut payload = false;
        for delta in &frame.deltas {
            payload |= self.delta(delta, mark);
        }
        if let Some(usage) = frame.usage {
            self.usage = Some(usage);
            self.usage_is_last = true;
            self.usage_stood_alone = frame.deltas.is_empty();
        } else if payload {
            self.usage_is_last = false;
        }
    }

    /// Takes what a frame adds to one choice, and says whether anything of it is generated.
    fn delta(&mut self, delta: &Delta<'_>, mark: Mark) -> bool {
        let think = match self.inline_think {
            InlineThink::Reasoning => Think::Before(0),
            InlineThink::Content => Think::Off,
        };
        let choice = match self.choices.iter().position(|choice| choice.index == delta.choice) {
            Some(place) => place,
            None if self.choices.len() < CHOICES_MAX => {
                let echo = self.echo.of_choice(delta.choice, self.choices_per_prompt);
                if echo == EchoLeft::OneChunk {
                    self.flag(Flag::EchoLengthUnknown);
                }
                self.choices.push(Choice { index: delta.choice, finished: false, think, echo });
                self.choices.len() - 1
            }
            None => {
                self.flag(Flag::ChoicesOverCap);
                CHOICES_MAX - 1
            }
        };
        let text = self.choices[choice].generated(delta.text.as_bytes());
        let payload = delta.reasoning || delta.body || !text.is_empty();
        if payload {
            self.stages.token(mark);
            self.payload(choice, delta, text, mark);
        }
        if let Some(finish) = delta.finish {
            self.choices[choice].finished = true;
            if self.finish.is_none() || finish == Finish::Length {
                self.finish = Some(finish);
            }
            self.finish_mark = Some(mark);
        }
        payload
    }

    fn payload(&mut self, choice: usize, delta: &Delta<'_>, text: &[u8], mark: Mark) {
        let seen = match text.is_empty() {
            true => Seen::default(),
            false => self.choices[choice].think.push(text),
        };
        if delta.reasoning {
            self.decide(Kind::Body);
            self.stages.payload(Kind::Reasoning, mark);
        }
        if seen.undecided && !delta.body && self.undecided.len() < UNDECIDED_MAX {
            self.undecided.push(mark);
            return;
        }
        if seen.reasoning {
            self.decide(Kind::Reasoning);
            self.stages.payload(Kind::Reasoning, mark);
        }
        if seen.body || seen.undecided || delta.body {
            self.decide(Kind::Body);
            self.stages.payload(Kind::Body, mark);
        }
    }

    /// Books what had been undecided.
    fn decide(&mut self, kind: Kind) {
        for mark in std::mem::take(&mut self.undecided) {
            self.stages.payload(kind, mark);
        }
    }

    /// Books what stayed undecided as body: the opening mark never came.
    pub fn close(&mut self) {
        self.decide(Kind::Body);
    }

    pub fn forwarded(&mut self, bytes: u64, at: At) {
        self.stages.forwarded(bytes, at);
        let marks = [&mut self.terminal, &mut self.error, &mut self.finish_mark];
        for mark in marks.into_iter().flatten().chain(self.undecided.iter_mut()) {
            mark.forwarded(bytes, at);
        }
    }

    /// Whether a complete reply of this upstream has usage.
    pub fn expects_usage(&self) -> bool {
        self.expects_usage
    }

    /// Whether every choice that was expected, and every one that was seen, has given its finish.
    pub fn finished(&self) -> bool {
        self.choices.len() as u64 >= self.expected_choices.min(CHOICES_MAX as u64)
            && self.choices.iter().all(|choice| choice.finished)
    }

    /// The usage that ends the reply: the latest one, if no payload came behind it and either every choice seen has
    /// finished or it stood in a frame of its own. Usage that merely keeps count along the way is none.
    pub fn terminal_usage(&self) -> Option<Usage> {
        let all_seen_finished = !self.choices.is_empty() && self.choices.iter().all(|choice| choice.finished);
        self.usage.filter(|_| self.usage_is_last && (all_seen_finished || self.usage_stood_alone))
    }

    pub fn flag(&mut self, flag: Flag) {
        if !self.flags.contains(&flag) {
            self.flags.push(flag);
        }
    }
}

/// Whether a body made sense.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Understood {
    Yes,
    No,
}
