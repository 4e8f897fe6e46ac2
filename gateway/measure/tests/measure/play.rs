//! A request as data: what happens at which millisecond, and what must come out.
//!
//! Apart so that each test is a short list. Must not know: rules.

use pitot_measure::definitions::{self, Metric, Number};
use pitot_measure::{
    Absent, At, BodyKind, Echo, Ending, Endpoint, EngineTimes, Event, Flag, Observer, Options, OutcomeKind,
    OutputPart, Quantity, Reason, Record, RequestFacts, Source, UsageAsked,
};

pub const MS: u64 = 1_000_000;

/// A stamp in milliseconds.
pub fn at(ms: u64) -> At {
    At(ms * MS)
}

#[derive(Debug, Clone)]
enum Step {
    Attempt,
    Sent,
    Head(u16, BodyKind),
    Read(Vec<u8>),
    Eof,
    Engine(EngineTimes),
    /// A write that began so many milliseconds before and carried everything read so far.
    Write(u64),
}

/// What is to happen.
#[derive(Debug, Clone)]
pub struct Play {
    pub facts: RequestFacts,
    pub options: Options,
    steps: Vec<(u64, Step)>,
    end: (u64, Ending, Option<u16>),
}

impl Play {
    /// A request of which nothing has happened yet, read at 5 ms.
    pub fn new(endpoint: Endpoint, stream: bool) -> Self {
        let facts = RequestFacts {
            id: "r".into(),
            endpoint,
            model: "m".into(),
            upstream: "u".into(),
            key_alias: None,
            stream,
            upstream_stream: stream,
            echo: Echo::Nothing,
            choices: 1,
            prompts: 1,
            usage: if stream { UsageAsked::ByClient } else { UsageAsked::Not },
            request_bytes: 100,
            last_request_byte: at(5),
        };
        let end = (0, Ending::UpstreamEnded, Some(200));
        Play { facts, options: Options::default(), steps: Vec::new(), end }
    }

    /// A streamed chat request, sent at 10 ms, with a head at 15 ms.
    pub fn chat() -> Self {
        Play::new(Endpoint::ChatCompletions, true).sent(10).head(15, 200, BodyKind::EventStream)
    }

    /// A chat request that does not stream, sent at 10 ms, with a head at 15 ms.
    pub fn whole() -> Self {
        Play::new(Endpoint::ChatCompletions, false).sent(10).head(15, 200, BodyKind::Json)
    }

    pub fn sent(self, ms: u64) -> Self {
        self.step(ms, Step::Attempt).step(ms, Step::Sent)
    }

    pub fn head(self, ms: u64, status: u16, body: BodyKind) -> Self {
        let mut play = self.step(ms, Step::Head(status, body));
        play.end.2 = Some(status);
        play
    }

    /// A read, passed on to the caller by a write that returns 1 ms later.
    pub fn read(self, ms: u64, text: &str) -> Self {
        self.only_read(ms, text.as_bytes()).step(ms + 1, Step::Write(1))
    }

    /// A read that is not passed on.
    pub fn only_read(self, ms: u64, bytes: &[u8]) -> Self {
        self.step(ms, Step::Read(bytes.to_vec()))
    }

    /// A write that began so many milliseconds before and carries everything read so far.
    pub fn write(self, ms: u64, lasted: u64) -> Self {
        self.step(ms, Step::Write(lasted))
    }

    pub fn engine(self, ms: u64, times: EngineTimes) -> Self {
        self.step(ms, Step::Engine(times))
    }

    /// The upstream's body ends; what was read has been passed on, and the request is over.
    pub fn ended(self, ms: u64) -> Self {
        self.step(ms, Step::Eof).step(ms, Step::Write(0)).cut(ms, Ending::UpstreamEnded)
    }

    pub fn cut(mut self, ms: u64, ending: Ending) -> Self {
        self.end.0 = ms;
        self.end.1 = ending;
        self
    }

    pub fn status(mut self, status: Option<u16>) -> Self {
        self.end.2 = status;
        self
    }

    pub fn facts(mut self, change: impl FnOnce(&mut RequestFacts)) -> Self {
        change(&mut self.facts);
        self
    }

    pub fn options(mut self, change: impl FnOnce(&mut Options)) -> Self {
        change(&mut self.options);
        self
    }

    fn step(mut self, ms: u64, step: Step) -> Self {
        self.steps.push((ms, step));
        self
    }

    /// Plays it, each read cut by the function given.
    pub fn run_cut(&self, cut: &mut dyn FnMut(&[u8]) -> Vec<Vec<u8>>) -> Record {
        let mut observer = Observer::new(self.facts.clone(), self.options);
        let mut bytes = 0;
        for (ms, step) in &self.steps {
            let now = at(*ms);
            match step {
                Step::Attempt => {
                    bytes = 0;
                    observer.observe(now, Event::AttemptStarted);
                }
                Step::Sent => observer.observe(now, Event::RequestSent),
                Step::Head(status, body) => {
                    observer.observe(now, Event::Head { status: *status, body: *body });
                }
                Step::Read(read) => {
                    bytes += read.len() as u64;
                    for piece in cut(read) {
                        observer.observe(now, Event::UpstreamBytes(&piece));
                    }
                }
                Step::Eof => observer.observe(now, Event::UpstreamEof),
                Step::Engine(times) => observer.observe(now, Event::EngineTimes(*times)),
                Step::Write(lasted) => {
                    let since = At(now.0.saturating_sub(lasted * MS));
                    observer.observe(now, Event::Forwarded { upstream_bytes: bytes, since });
                }
            }
        }
        let (ms, ending, status) = self.end;
        observer.finish(at(ms), ending, status)
    }

    pub fn run(&self) -> Record {
        self.run_cut(&mut |read| vec![read.to_vec()])
    }
}

/// Something that must hold of a record.
#[derive(Debug, Clone, Copy)]
pub enum Expect {
    Outcome(OutcomeKind),
    Reason(Reason),
    Count(Metric, u64),
    /// A time in milliseconds.
    Ms(Metric, u64),
    Float(Metric, f64),
    Null(Metric, Absent),
    Source(Metric, Source),
    Flag(Flag),
    NoFlags,
}

/// Plays a request and compares.
#[track_caller]
pub fn check(name: &str, play: &Play, expected: &[Expect]) -> Record {
    let record = play.run();
    for expectation in expected {
        holds(name, &record, expectation);
    }
    record
}

#[track_caller]
fn holds(name: &str, record: &Record, expectation: &Expect) {
    let quantity = |metric| definitions::quantity(record, metric);
    match *expectation {
        Expect::Outcome(kind) => assert_eq!(record.outcome, kind, "{name}: outcome ({:?})", record.reason),
        Expect::Reason(reason) => assert_eq!(record.reason, Some(reason), "{name}: reason"),
        Expect::Count(metric, count) => {
            assert_eq!(quantity(metric).value(), Some(Number::Count(count)), "{name}: {metric:?}");
        }
        Expect::Ms(metric, ms) => {
            let found = quantity(metric);
            assert_eq!(found.value(), Some(Number::Count(ms * MS)), "{name}: {metric:?} {found:?}");
        }
        Expect::Float(metric, expected) => match quantity(metric).value() {
            Some(Number::Float(found)) => {
                assert!((found - expected).abs() <= expected.abs() * 1e-12, "{name}: {metric:?} is {found}");
            }
            other => panic!("{name}: {metric:?} is {other:?}"),
        },
        Expect::Null(metric, reason) => {
            assert_eq!(quantity(metric), Quantity::Absent(reason), "{name}: {metric:?}");
        }
        Expect::Source(metric, expected) => match quantity(metric) {
            Quantity::Known { source, .. } => assert_eq!(source, expected, "{name}: {metric:?}"),
            Quantity::Absent(reason) => panic!("{name}: {metric:?} is absent: {reason}"),
        },
        Expect::Flag(flag) => assert!(record.has(flag), "{name}: {flag} not in {:?}", record.flags),
        Expect::NoFlags => {
            // Most plays have no engine behind them.
            let flags: Vec<_> =
                record.flags.iter().filter(|flag| **flag != Flag::EngineTimesMissing).collect();
            assert!(flags.is_empty(), "{name}: {flags:?}");
        }
    }
}

/// One chunk of a chat stream that holds this delta.
pub fn delta(delta: &str) -> String {
    format!("data: {{\"choices\":[{{\"index\":0,\"delta\":{delta},\"finish_reason\":null}}]}}\n\n")
}

pub fn content(text: &str) -> String {
    delta(&format!("{{\"content\":\"{text}\"}}"))
}

pub fn reasoning(text: &str) -> String {
    delta(&format!("{{\"reasoning\":\"{text}\"}}"))
}

pub const ROLE: &str = "data: {\"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"\"},\"finish_reason\":null}]}\n\n";

pub fn finish(reason: &str) -> String {
    format!("data: {{\"choices\":[{{\"index\":0,\"delta\":{{}},\"finish_reason\":\"{reason}\"}}]}}\n\n")
}

/// The chunk that holds only usage.
pub fn usage(input: u64, output: u64) -> String {
    let total = input + output;
    usage_of(&format!(
        "{{\"prompt_tokens\":{input},\"completion_tokens\":{output},\"total_tokens\":{total}}}"
    ))
}

pub fn usage_of(object: &str) -> String {
    format!("data: {{\"choices\":[],\"usage\":{object}}}\n\n")
}

pub const DONE: &str = "data: [DONE]\n\n";

/// Finish, usage and `[DONE]` in one.
pub fn end_of(reason: &str, input: u64, output: u64) -> String {
    [finish(reason), usage(input, output), DONE.to_owned()].concat()
}

/// Engine stamps in milliseconds, all tokens content.
pub fn engine(queued: u64, scheduled: u64, first: u64, last: u64, input: u64, output: u64) -> EngineTimes {
    EngineTimes {
        queued: Some(at(queued)),
        scheduled: Some(at(scheduled)),
        first: Some(at(first)),
        last: Some(at(last)),
        tokens_prompt: input,
        tokens_cached: None,
        tokens_output: output,
        reasoning: OutputPart::default(),
        content: OutputPart { tokens: output, first: Some(at(first)), last: Some(at(last)) },
        tokens_unclassified: 0,
        preemptions: 0,
    }
}
