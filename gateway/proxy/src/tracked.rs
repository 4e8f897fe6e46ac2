//! One request's observer and its one end.
//!
//! Apart so that a request ends exactly once, whatever happens to the code that serves it: a context that is
//! dropped unfinished still ends, with an outcome. Must not know: sockets.

use std::sync::Arc;

use pitot_control::RequestStamps;
use pitot_measure::metrics_object::SoFar;
use pitot_measure::{At, Ending, EngineTimes, Event, Observer, OutputPart, RequestFacts};

use crate::app::{App, InFlight};
use crate::clock::Stopwatch;

/// A request that is being measured.
pub struct Tracked {
    app: Arc<App>,
    watch: Stopwatch,
    observer: Option<Observer>,
    client_request_id: Option<String>,
    client_status: Option<u16>,
    request_read: At,
    last_read: At,
    _in_flight: InFlight,
}

impl Tracked {
    pub fn new(
        app: &Arc<App>,
        in_flight: InFlight,
        watch: Stopwatch,
        facts: RequestFacts,
        client_request_id: Option<String>,
    ) -> Self {
        Tracked {
            observer: Some(Observer::new(facts, app.measure_options())),
            app: Arc::clone(app),
            watch,
            client_request_id,
            client_status: None,
            request_read: At::default(),
            last_read: At::default(),
            _in_flight: in_flight,
        }
    }

    /// Offset of the present instant.
    pub fn at(&self) -> At {
        self.watch.at()
    }

    /// What has become known of the request once its body was read. Nothing has been observed before.
    pub fn know(&mut self, facts: RequestFacts) {
        self.request_read = facts.last_request_byte;
        self.observer = Some(Observer::new(facts, self.app.measure_options()));
    }

    /// Books the gateway's own work since then, on so many chunks.
    pub fn worked(&mut self, since: At, chunks: u32) {
        let at = self.at();
        self.observe(at, Event::Worked { ns: at.0.saturating_sub(since.0), chunks });
    }

    pub fn observe(&mut self, at: At, event: Event<'_>) {
        if let Some(observer) = &mut self.observer {
            observer.observe(at, event);
        }
    }

    /// The status that went out to the caller.
    pub fn answered(&mut self, status: u16) {
        self.client_status = Some(status);
    }

    /// Whether the event that ends the protocol has been read.
    pub fn terminal_seen(&self) -> bool {
        self.observer.as_ref().is_some_and(Observer::terminal_seen)
    }

    /// Whether the upstream has said all it had to: by the event that ends the protocol or by an error event.
    pub fn end_seen(&self) -> bool {
        self.observer.as_ref().is_some_and(|observer| observer.terminal_seen() || observer.error_seen())
    }

    /// The last read that brought a part of the reply.
    pub fn alive_at(&self) -> Option<At> {
        self.observer.as_ref().and_then(Observer::alive_at)
    }

    pub fn first_token_seen(&self) -> bool {
        self.observer.as_ref().is_some_and(Observer::first_token_seen)
    }

    /// Takes in what the engine reported, on this request's own time scale.
    pub fn join(&mut self, stamps: &RequestStamps) {
        let times = self.times_of(stamps);
        self.observe(self.at(), Event::EngineTimes(times));
    }

    /// What the engine reported, if it has.
    pub fn engine_times(&self) -> Option<&EngineTimes> {
        self.observer.as_ref().and_then(Observer::engine_times)
    }

    fn times_of(&self, stamps: &RequestStamps) -> EngineTimes {
        let at = |stamp: Option<u64>| stamp.map(|ns| self.watch.at_of(ns));
        let part = |part: &pitot_control::OutputPart| OutputPart {
            tokens: u64::from(part.tokens),
            first: at(part.first_ns),
            last: at(part.last_ns),
        };
        EngineTimes {
            queued: at(stamps.queued_ns),
            scheduled: at(stamps.scheduled_ns),
            first: at(stamps.first_ns),
            last: at(stamps.last_ns),
            tokens_prompt: u64::from(stamps.tokens_prompt),
            tokens_cached: stamps.tokens_cached.map(u64::from),
            tokens_output: u64::from(stamps.tokens_output),
            reasoning: part(&stamps.output.reasoning),
            content: part(&stamps.output.content),
            tokens_unclassified: u64::from(stamps.output.tokens_unclassified),
            preemptions: stamps.preemptions,
        }
    }

    /// When a read of the upstream completed: at the socket's stamp, or with the read before if all of it had been
    /// read by then.
    pub fn read_at(&mut self, read_ns: Option<u64>) -> At {
        if let Some(ns) = read_ns {
            self.last_read = self.watch.at_of(ns);
        }
        self.last_read
    }

    /// The time since the last byte of the request was read from the caller.
    pub fn since_request_read(&self) -> At {
        let read = self.request_read.0;
        At(self.at().0.saturating_sub(read))
    }

    /// What is known of the request while its reply is being passed on.
    pub fn so_far(&self) -> Option<SoFar> {
        self.observer.as_ref().map(Observer::so_far)
    }

    /// What will be known of the request once this read has been observed.
    pub fn so_far_with(&self, at: At, bytes: &[u8]) -> Option<SoFar> {
        self.observer.as_ref().map(|observer| observer.so_far_with(at, bytes))
    }

    /// Ends the request and hands its record to the sinks.
    pub fn finish(mut self, ending: Ending) {
        self.end(ending);
    }

    fn end(&mut self, ending: Ending) {
        if let Some(observer) = self.observer.take() {
            let record = observer.finish(self.watch.at(), ending, self.client_status);
            self.app.upstream.learn(&record);
            self.app.emitter.emit(self.watch.accepted_ns(), self.client_request_id.take(), record);
        }
    }
}

impl Drop for Tracked {
    fn drop(&mut self) {
        self.end(Ending::Dropped);
    }
}
