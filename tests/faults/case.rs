//! A case as data: what is asked, what the upstream plays, what the caller must see, what the record must say.
//!
//! Apart from running and judging, so that a reader of `cases/` sees only situations. Must not know: sockets, time.

use std::ops::RangeInclusive;
use std::time::Duration;

use bytes::Bytes;

use super::check::Check;
use super::dialect::{Dialect, Mode};
use super::gateway::Profile;
use super::script::Play;

/// Parts of the corpus, in the order in which they are shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Section {
    FirstToken,
    Arithmetic,
    Framing,
    Usage,
    Outcome,
    Timeouts,
    Transport,
    MetricsObject,
    OtherTimings,
    Assembled,
}

impl Section {
    pub const ALL: [Section; 10] = [
        Section::FirstToken,
        Section::Arithmetic,
        Section::Framing,
        Section::Usage,
        Section::Outcome,
        Section::Timeouts,
        Section::Transport,
        Section::MetricsObject,
        Section::OtherTimings,
        Section::Assembled,
    ];

    pub fn title(self) -> &'static str {
        match self {
            Section::FirstToken => "first token and stages",
            Section::Arithmetic => "arithmetic",
            Section::Framing => "event framing",
            Section::Usage => "usage",
            Section::Outcome => "outcomes",
            Section::Timeouts => "timeouts and connections",
            Section::Transport => "transport",
            Section::MetricsObject => "metrics object",
            Section::Assembled => "assembled replies",
            Section::OtherTimings => "timings of other servers",
        }
    }
}

/// How a caller speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protocol {
    Http11,
    /// HTTP/2 without TLS, by prior knowledge.
    H2c,
}

impl Protocol {
    pub fn name(self) -> &'static str {
        match self {
            Protocol::Http11 => "http/1.1",
            Protocol::H2c => "h2c",
        }
    }
}

/// Which callers a case is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Callers {
    Both,
    /// The situation does not exist in HTTP/2.
    Http11Only,
}

/// How much of the machine a case takes while it runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Weight {
    Light,
    /// Megabytes: few at once, apart from those that look at times.
    Heavy,
}

#[derive(Debug, Clone)]
pub struct Case {
    /// Unique; also the model's name in the request.
    pub name: String,
    pub section: Section,
    pub profile: Profile,
    pub callers: Callers,
    pub weight: Weight,
    /// One after another, on one connection as far as the gateway keeps it open.
    pub exchanges: Vec<Exchange>,
}

/// One request and all that follows from it.
#[derive(Debug, Clone)]
pub struct Exchange {
    pub dialect: Dialect,
    pub mode: Mode,
    pub request: Request,
    /// One for each time the request reaches the upstream; the last one again for any further time.
    pub plays: Vec<Play>,
    pub pace: Pace,
    pub leaves: Leaves,
    pub sees: Sees,
    pub upstream: UpstreamSees,
    /// Wait before the request is sent.
    pub pause_before: Duration,
    /// What the record must say. None where there is no record to look at.
    pub record: Option<Vec<Check>>,
    /// Flags that the record must have.
    pub flags: Vec<&'static str>,
    /// Flags that it may have; any further one is wrong.
    pub flags_allowed: Vec<&'static str>,
}

/// The request as the caller sends it. `@MODEL@` stands for the name of the case.
#[derive(Debug, Clone)]
pub struct Request {
    pub method: &'static str,
    pub path: String,
    /// Header lines beside those that every request has.
    pub lines: String,
    pub body: Bytes,
    pub sending: Sending,
    pub version: Version,
    /// Whether the caller asks for usage in the stream.
    pub asks: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Version {
    Http11,
    Http10,
}

/// How the request's body goes out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sending {
    AtOnce,
    /// In chunks of this many bytes. In HTTP/2 frames of data, the last one empty.
    InChunks(usize),
    /// A byte at a time, with a pause now and then.
    ByteByByte,
    /// One half, and this long after it the other.
    InHalves(Duration),
    /// `Expect: 100-continue`, and the body once that has come.
    Expecting,
}

/// How the caller reads.
#[derive(Debug, Clone)]
pub enum Pace {
    AsItComes,
    /// Reads nothing for this long once this text has been seen (at once if it is empty).
    Stalls {
        text: &'static str,
        time: Duration,
    },
}

/// When the caller leaves.
#[derive(Debug, Clone)]
pub enum Leaves {
    Never,
    /// Once this text has been seen.
    Seeing(&'static str, Leaving),
    /// This long after the request has been sent.
    After(Duration, Leaving),
    /// Within the body of its own request.
    WithinRequest(Leaving),
}

/// How the caller leaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Leaving {
    Close,
    /// RST; in HTTP/2 RST_STREAM.
    Reset,
    /// Shuts its sending side down and goes on reading. Counts as leaving.
    HalfClose,
}

/// What the caller must see.
#[derive(Debug, Clone)]
pub struct Sees {
    /// None where no reply is due.
    pub status: Option<u16>,
    pub body: Body,
    pub end: End,
    /// Headers that must hold: name, and the value (any if empty).
    pub headers: Vec<(&'static str, &'static str)>,
    /// When a text must have come: not before and not after so many milliseconds from the request.
    pub arrives: Vec<(&'static str, RangeInclusive<u64>)>,
}

#[derive(Debug, Clone)]
pub enum Body {
    /// Byte for byte what the upstream sent, a usage chunk that only the gateway asked for left out.
    AsSent,
    Exactly(Bytes),
    /// What the upstream sent with one run of bytes in place of another.
    Replacing(Bytes, Bytes),
    /// What the upstream sent with one run of bytes in place of the null behind the key `metrics`, or behind it.
    MetricsOnce,
    /// An error of the gateway's own, whole, in the caller's dialect.
    OwnError,
    /// What the upstream sent up to its end, then an error event in the caller's dialect, and no terminal event.
    BrokenOff,
    /// The same, but what the upstream sent may have been cut at any of its frames.
    CutShort,
    /// As broken off, or broken framing in place of the event, where a length has been promised.
    BrokenSomehow,
    /// What the upstream sent, with or without an error event behind it.
    AsSentOrBrokenOff,
    /// A beginning of what the upstream sent.
    Beginning,
    /// A JSON object that holds all of this; it may hold more.
    Holding(serde_json::Value),
    /// Anything.
    Any,
}

/// How the reply must end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// As its framing says.
    Complete,
    /// Visibly before its end.
    Broken,
    Any,
}

/// What must arrive at the upstream.
#[derive(Debug, Clone)]
pub struct UpstreamSees {
    pub arrivals: RangeInclusive<usize>,
    pub bodies: Sent,
    /// The upstream's connection must be closed this soon after the caller left (or the gateway gave up).
    pub closed_within: Option<Duration>,
    /// Headers that must not stand in the request.
    pub without: Vec<&'static str>,
    /// Headers that must stand in it, with their values.
    pub with: Vec<(&'static str, &'static str)>,
}

/// What the body of a forwarded request must be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Sent {
    /// As the contract says for this request: unchanged, or with usage asked for in one place.
    Due,
    Unchanged,
    /// The first time with usage asked for, later unchanged.
    FirstAsking,
    /// A stream asked for although the caller wants none.
    Streaming,
    Any,
}

pub fn case(section: Section, name: &str, dialect: Dialect, mode: Mode) -> Case {
    let exchange = Exchange::new(dialect, mode);
    Case {
        name: format!("{name}.{}.{}", dialect.name(), mode.name()),
        section,
        profile: Profile::Default,
        callers: Callers::Both,
        weight: Weight::Light,
        exchanges: vec![exchange],
    }
}

impl Exchange {
    pub fn new(dialect: Dialect, mode: Mode) -> Exchange {
        Exchange {
            dialect,
            mode,
            request: Request {
                method: "POST",
                path: dialect.path().to_owned(),
                lines: String::new(),
                body: Bytes::from(dialect.request(mode, "")),
                sending: Sending::AtOnce,
                version: Version::Http11,
                asks: false,
            },
            plays: Vec::new(),
            pace: Pace::AsItComes,
            leaves: Leaves::Never,
            sees: Sees {
                status: Some(200),
                body: Body::AsSent,
                end: End::Complete,
                headers: Vec::new(),
                arrives: Vec::new(),
            },
            upstream: UpstreamSees {
                arrivals: 1..=1,
                bodies: Sent::Due,
                closed_within: None,
                without: Vec::new(),
                with: Vec::new(),
            },
            pause_before: Duration::ZERO,
            record: Some(Vec::new()),
            flags: Vec::new(),
            flags_allowed: Vec::new(),
        }
    }
}

impl Exchange {
    /// Whether everything expected of the bytes holds without a gateway, since it changes and adds nothing.
    pub fn needs_no_gateway(&self) -> bool {
        let plain = matches!(self.sees.body, Body::AsSent | Body::Exactly(_) | Body::Beginning);
        let sends = !matches!(self.request.sending, Sending::Expecting);
        let lengths = self.plays.iter().all(Play::says_its_length);
        plain
            && self.sees.headers.is_empty()
            && sends
            && lengths
            && self.sees.end != End::Broken
            && self.upstream.arrivals == (1..=1)
            && self.request.version == Version::Http11
            && self.plays.len() == 1
            && self.sees.status.is_some()
    }
}

/// Terse builders: each changes the last exchange.
impl Case {
    pub fn now(&mut self) -> &mut Exchange {
        self.exchanges.last_mut().expect("a case has at least one exchange")
    }

    fn with(mut self, change: impl FnOnce(&mut Exchange)) -> Case {
        change(self.now());
        self
    }

    pub fn under(mut self, profile: Profile) -> Case {
        self.profile = profile;
        self
    }

    pub fn http11_only(mut self) -> Case {
        self.callers = Callers::Http11Only;
        self
    }

    /// Megabytes. A caller may not read them as fast as they come, which the record is free to say.
    pub fn heavy(mut self) -> Case {
        self.weight = Weight::Heavy;
        self.flags_allowed(&["reads_held_back"])
    }

    /// A further exchange on the same connection.
    pub fn then(mut self, dialect: Dialect, mode: Mode) -> Case {
        self.exchanges.push(Exchange::new(dialect, mode));
        self
    }

    pub fn plays(self, play: Play) -> Case {
        self.with(|exchange| exchange.plays.push(play))
    }

    /// Members for the request's JSON object, each with a leading comma.
    pub fn asking(self, members: &str) -> Case {
        self.with(|exchange| {
            exchange.request.body = Bytes::from(exchange.dialect.request(exchange.mode, members));
        })
    }

    /// The caller asks for usage.
    pub fn asking_usage(self) -> Case {
        self.asking(r#","stream_options":{"include_usage":true}"#)
            .with(|exchange| exchange.request.asks = true)
    }

    pub fn request(self, change: impl FnOnce(&mut Request)) -> Case {
        self.with(|exchange| change(&mut exchange.request))
    }

    pub fn body(self, body: impl Into<Bytes>) -> Case {
        self.with(|exchange| exchange.request.body = body.into())
    }

    pub fn sends(self, sending: Sending) -> Case {
        self.with(|exchange| exchange.request.sending = sending)
    }

    pub fn leaves(self, leaves: Leaves) -> Case {
        self.with(|exchange| {
            exchange.leaves = leaves;
            exchange.sees.body = Body::Beginning;
            exchange.sees.end = End::Any;
        })
    }

    pub fn paces(self, pace: Pace) -> Case {
        self.with(|exchange| exchange.pace = pace)
    }

    pub fn status(self, status: u16) -> Case {
        self.with(|exchange| exchange.sees.status = Some(status))
    }

    pub fn no_reply(self) -> Case {
        self.with(|exchange| exchange.sees.status = None)
    }

    pub fn sees(self, body: Body) -> Case {
        self.with(|exchange| exchange.sees.body = body)
    }

    pub fn ends(self, end: End) -> Case {
        self.with(|exchange| exchange.sees.end = end)
    }

    pub fn header(self, name: &'static str, value: &'static str) -> Case {
        self.with(|exchange| exchange.sees.headers.push((name, value)))
    }

    pub fn arrives(self, text: &'static str, milliseconds: RangeInclusive<u64>) -> Case {
        self.with(|exchange| exchange.sees.arrives.push((text, milliseconds)))
    }

    /// A reply that breaks off is told by an error event, and by nothing that looks like an end.
    pub fn broken_off(self) -> Case {
        self.with(|exchange| {
            exchange.sees.body = Body::BrokenOff;
            exchange.sees.end = End::Any;
        })
    }

    /// The gateway's own error in place of a reply.
    pub fn own_error(self, status: u16) -> Case {
        self.with(|exchange| {
            exchange.sees.status = Some(status);
            exchange.sees.body = Body::OwnError;
        })
    }

    /// The same for a stream that the gateway cuts while the upstream still sends.
    pub fn cut_short(self) -> Case {
        self.broken_off().sees(Body::CutShort)
    }

    pub fn arrivals(self, arrivals: RangeInclusive<usize>) -> Case {
        self.with(|exchange| exchange.upstream.arrivals = arrivals)
    }

    pub fn sent(self, bodies: Sent) -> Case {
        self.with(|exchange| exchange.upstream.bodies = bodies)
    }

    pub fn without(self, header: &'static str) -> Case {
        self.with(|exchange| exchange.upstream.without.push(header))
    }

    pub fn with_header(self, header: &'static str, value: &'static str) -> Case {
        self.with(|exchange| exchange.upstream.with.push((header, value)))
    }

    /// The upstream's connection is closed soon.
    pub fn closes_upstream(self) -> Case {
        self.with(|exchange| exchange.upstream.closed_within = Some(Duration::from_millis(500)))
    }

    pub fn pause_before(self, milliseconds: u64) -> Case {
        self.with(|exchange| exchange.pause_before = Duration::from_millis(milliseconds))
    }

    pub fn record(self, checks: impl IntoIterator<Item = Check>) -> Case {
        self.with(|exchange| exchange.record.get_or_insert_default().extend(checks))
    }

    pub fn no_record(self) -> Case {
        self.with(|exchange| exchange.record = None)
    }

    pub fn flags(self, flags: &[&'static str]) -> Case {
        self.with(|exchange| exchange.flags.extend(flags))
    }

    pub fn flags_allowed(self, flags: &[&'static str]) -> Case {
        self.with(|exchange| exchange.flags_allowed.extend(flags))
    }
}
