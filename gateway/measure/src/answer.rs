//! What has been read of one attempt's reply: frames or a body, and what they said.
//!
//! Apart from the observer, which knows requests and endings; this knows one reply. Must not know: the caller's
//! status, outcomes.

use crate::dialect::{DONE, Delta, Dialect, Ends, Finish, Said, Usage};
use crate::engine_timing::UpstreamTiming;
use crate::event::At;
use crate::json::{Bytes, Text};
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
    fn generated<'t>(&mut self, text: Text<'t>) -> Bytes<'t> {
        let mut bytes = text.bytes();
        match self.echo {
            EchoLeft::Bytes(left) => {
                let echoed = (0..left).take_while(|_| bytes.next().is_some()).count();
                self.echo = EchoLeft::Bytes(left - echoed as u64);
            }
            EchoLeft::OneChunk if text.is_empty() => {}
            EchoLeft::OneChunk => {
                self.echo = EchoLeft::Bytes(0);
                bytes = Text::default().bytes();
            }
        }
        bytes
    }
}

/// What one reply said so far.
#[derive(Debug, Clone)]
pub struct Answer {
    pub stages: Stages,
    pub first_frame: Option<At>,
    /// The first chunk with a choice.
    pub first_choice: Option<At>,
    pub usage: Option<Usage>,
    /// Counts that came before the answer and are merged into those that end it.
    usage_ahead: Option<Usage>,
    /// Whether the latest usage came with the last payload or behind it.
    usage_is_last: bool,
    /// Whether it came in a frame that held nothing else.
    usage_stood_alone: bool,
    /// The upstream's own timing.
    pub timing: Option<UpstreamTiming>,
    pub finish: Option<Finish>,
    pub finish_mark: Option<Mark>,
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
            first_choice: None,
            usage: None,
            usage_ahead: None,
            usage_is_last: false,
            usage_stood_alone: false,
            timing: None,
            finish: None,
            finish_mark: None,
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
    pub fn frame(&mut self, dialect: Dialect, frame: &[u8], mark: Mark) -> Life {
        let fields = sse::fields(frame);
        let Some(data) = fields.data else { return Life::Silent };
        let data = data.trim_ascii();
        // Some servers send heartbeats with empty data, or with an empty JSON text.
        if data.is_empty() || data == b"\"\"" {
            return Life::Silent;
        }
        self.first_frame.get_or_insert(mark.at);
        if data == DONE {
            match dialect.ends() {
                Ends::WithLastChunk => _ = self.terminal.get_or_insert(mark),
                Ends::WithEvent => {}
            }
            return Life::Sign;
        }
        if fields.event.is_some_and(|event| event == b"error") {
            self.error.get_or_insert(mark);
        }
        let mut heard = self.listen();
        let shape = dialect.frame(fields.event, data, &mut |said| self.hear(&said, mark, &mut heard));
        self.heard(&heard);
        if heard.deltas && dialect.ends() == Ends::WithLastChunk {
            self.first_choice.get_or_insert(mark.at);
        }
        if shape.is_err() {
            self.flag(Flag::FrameMalformed);
        }
        let answered = || self.terminal_usage().is_some() || !self.expects_usage;
        if dialect.ends() == Ends::WithLastChunk && self.terminal.is_none() && self.finished() && answered() {
            self.terminal = Some(mark);
        }
        match fields.event {
            Some(b"ping") => Life::Silent,
            Some(_) | None => Life::Sign,
        }
    }

    /// Takes a whole body that did not stream. False if it could not be understood.
    pub fn body(&mut self, dialect: Dialect, body: &[u8], mark: Mark) -> Understood {
        let mut heard = self.listen();
        let shape = dialect.body(body, &mut |said| self.hear(&said, mark, &mut heard));
        self.heard(&heard);
        match shape {
            Ok(()) => Understood::Yes,
            Err(_) => {
                self.flag(Flag::BodyMalformed);
                Understood::No
            }
        }
    }

    fn listen(&self) -> Heard {
        Heard { payload_before: self.stages.tokens.events > 0, ..Heard::default() }
    }

    fn hear(&mut self, said: &Said<'_>, mark: Mark, heard: &mut Heard) {
        match said {
            Said::Delta(delta) => {
                heard.deltas = true;
                heard.payload |= self.delta(delta, mark);
            }
            Said::Restated(_) if heard.payload_before => {}
            Said::Restated(delta) => heard.payload |= self.delta(delta, mark),
            Said::Usage(usage) => heard.usage = Some(*usage),
            Said::UsageAhead(usage) => self.usage_ahead = Some(usage.after(self.usage_ahead)),
            Said::Timing(timing) => self.timing = Some(timing.or_earlier(self.timing)),
            Said::Error => _ = self.error.get_or_insert(mark),
            Said::End => _ = self.terminal.get_or_insert(mark),
        }
    }

    /// Books the usage of a frame, now that all of it has been heard.
    fn heard(&mut self, heard: &Heard) {
        if let Some(usage) = heard.usage {
            self.usage = Some(usage.after(self.usage.or(self.usage_ahead)));
            self.usage_is_last = true;
            self.usage_stood_alone = !heard.deltas;
        } else if heard.payload {
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
        let text = self.choices[choice].generated(delta.text);
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

    fn payload(&mut self, choice: usize, delta: &Delta<'_>, text: Bytes<'_>, mark: Mark) {
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
        // Not taken out, so that the room for them is kept.
        for mark in &self.undecided {
            self.stages.payload(kind, *mark);
        }
        self.undecided.clear();
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

/// What one frame said, beside the deltas that have been taken already.
#[derive(Debug, Default)]
struct Heard {
    /// Whether a token came before this frame.
    payload_before: bool,
    deltas: bool,
    payload: bool,
    usage: Option<Usage>,
}

/// Whether a frame shows that the reply goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Life {
    Sign,
    /// A comment or a heartbeat, which servers send while nothing happens.
    Silent,
}

/// Whether a body made sense.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Understood {
    Yes,
    No,
}
