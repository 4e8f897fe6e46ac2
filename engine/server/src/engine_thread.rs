//! The one thread that owns the engine: jobs in, outputs out.
//!
//! Apart so that the runtime needs no lock and HTTP never waits for a step. Nothing here blocks on a caller: each
//! job brings a channel with room for all that it can produce. Must not know: HTTP, JSON, tokenising.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc as std_mpsc};
use std::thread::JoinHandle;

use anyhow::Context;
use pitot_control::{RequestStamps, State};
use pitot_runtime::{Command, Engine, EngineState, Finish, Output, Refusal, Request, Sampling, SequenceId};
use tokio::sync::{mpsc, oneshot, watch};

use crate::clock::monotonic_ns;
use crate::exposition::{Ended, Exposition};
use crate::hub::Hub;
use crate::stamps::{empty_stamps, gather};
use crate::statistics::{Counters, Counts};

/// Commands that may wait for the end of a step.
const COMMANDS_MAX: usize = 1024;

/// The sequences of one HTTP request.
#[derive(Debug)]
pub struct Job {
    /// The gateway's name for it, for the control channel.
    pub request_id: Option<String>,
    pub sequences: Vec<Wanted>,
    /// Sequences of each prompt, which stand side by side; at least 1.
    pub choices: usize,
    /// The lower number goes first.
    pub priority: i32,
    /// Keeps the prefix cache of those who send it apart.
    pub cache_salt: Option<String>,
    /// Prompt tokens of the request; a prompt with several choices counts once.
    pub tokens_prompt: u32,
    /// When the request arrived.
    pub arrived_ns: u64,
}

/// One sequence of a job; its place in the list is its index.
#[derive(Debug, Clone)]
pub struct Wanted {
    pub prompt: Vec<u32>,
    pub sampling: Sampling,
}

/// An output of a job and the index of its sequence.
#[derive(Debug)]
pub struct Event {
    pub index: usize,
    pub output: Output,
}

/// Outputs of a job that was taken in. Dropped, it ends the job.
pub type Events = mpsc::Receiver<Event>;

/// Why a job was not taken in.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum JobError {
    #[error(transparent)]
    Refused(#[from] Refusal),
    #[error("too many requests wait for the engine")]
    Busy,
    #[error("the engine has stopped")]
    Stopped,
}

enum Message {
    Add { job: Job, events: mpsc::Sender<Event>, taken: oneshot::Sender<Result<(), Refusal>> },
    Abort { request_id: String },
    AbortAll,
    Drain,
}

/// The door to the engine's thread. The thread ends when all doors are gone and nothing runs.
#[derive(Debug, Clone)]
pub struct EngineHandle {
    messages: std_mpsc::SyncSender<Message>,
    state: watch::Receiver<EngineState>,
    draining: Arc<AtomicBool>,
    counters: Arc<Counters>,
}

impl EngineHandle {
    /// Hands a job in and waits until it is queued.
    ///
    /// # Errors
    /// When it was refused; nothing of it is left then.
    pub async fn submit(&self, job: Job) -> Result<Events, JobError> {
        let context = self.state().context_max;
        let (events, receiver) = mpsc::channel(outputs_max(&job, context));
        let (taken, answer) = oneshot::channel();
        self.messages.try_send(Message::Add { job, events, taken }).map_err(|error| match error {
            std_mpsc::TrySendError::Full(_) => JobError::Busy,
            std_mpsc::TrySendError::Disconnected(_) => JobError::Stopped,
        })?;
        answer.await.map_err(|_| JobError::Stopped)??;
        Ok(receiver)
    }

    /// Ends the job of that name, if there is one. May wait for a step.
    pub fn abort(&self, request_id: String) {
        // An engine that has stopped runs nothing.
        let _ = self.messages.send(Message::Abort { request_id });
    }

    /// Ends all jobs. May wait for a step.
    pub fn abort_all(&self) {
        let _ = self.messages.send(Message::AbortAll);
    }

    /// Refuses jobs from now on. May wait for a step.
    pub fn drain(&self) {
        self.draining.store(true, Ordering::SeqCst);
        let _ = self.messages.send(Message::Drain);
    }

    /// Whether jobs are refused.
    pub fn is_draining(&self) -> bool {
        self.draining.load(Ordering::SeqCst)
    }

    /// The engine's load after its latest step.
    pub fn state(&self) -> EngineState {
        *self.state.borrow()
    }

    /// What the engine has done since its start.
    pub fn counts(&self) -> Counts {
        self.counters.counts()
    }

    /// Whether the engine's thread has ended, after which nothing is answered any more.
    pub fn has_ended(&self) -> bool {
        self.state.has_changed().is_err()
    }

    /// Waits until nothing runs or waits.
    ///
    /// # Errors
    /// When the engine's thread has ended.
    pub async fn idle(&self) -> Result<(), JobError> {
        let idle = |state: &EngineState| state.draining && state.running + state.waiting == 0;
        self.state.clone().wait_for(idle).await.map(|_| ()).map_err(|_| JobError::Stopped)
    }

    /// Waits for the end of the engine's thread.
    pub async fn ended(&self) {
        let mut state = self.state.clone();
        while state.changed().await.is_ok() {}
    }
}

/// Starts the engine's thread.
///
/// # Errors
/// When the thread cannot be started.
pub fn start(
    engine: Engine,
    hub: Arc<Hub>,
    exposition: Option<Arc<Exposition>>,
) -> anyhow::Result<(EngineHandle, JoinHandle<()>)> {
    let (messages, received) = std_mpsc::sync_channel(COMMANDS_MAX);
    let (publish, state) = watch::channel(engine.state());
    let counters = Arc::new(Counters::default());
    let worker = Worker {
        engine,
        hub,
        counters: Arc::clone(&counters),
        exposition,
        publish,
        jobs: HashMap::new(),
        sequences: HashMap::new(),
        names: HashMap::new(),
        next: 0,
    };
    worker.publish();
    let thread = std::thread::Builder::new()
        .name("engine".to_owned())
        .spawn(move || worker.run(&received))
        .context("starting the engine's thread")?;
    Ok((EngineHandle { messages, state, draining: Arc::default(), counters }, thread))
}

/// Room for every token and every end.
fn outputs_max(job: &Job, context_max: usize) -> usize {
    let most = |wanted: &Wanted| {
        let room = context_max.saturating_sub(wanted.prompt.len());
        // A step that scores a part of the prompt gives one output.
        let scores = wanted.sampling.prompt_logprobs.map_or(0, |_| wanted.prompt.len());
        room.min(wanted.sampling.max_tokens as usize) + scores + 2
    };
    job.sequences.iter().map(most).sum::<usize>().clamp(1, mpsc_max())
}

/// What tokio's channels allow.
fn mpsc_max() -> usize {
    tokio::sync::Semaphore::MAX_PERMITS
}

struct Worker {
    engine: Engine,
    hub: Arc<Hub>,
    counters: Arc<Counters>,
    /// None where `/metrics` is off.
    exposition: Option<Arc<Exposition>>,
    publish: watch::Sender<EngineState>,
    /// By the id of the job's first sequence.
    jobs: HashMap<u64, Running>,
    sequences: HashMap<SequenceId, Place>,
    /// Jobs by the gateway's name.
    names: HashMap<String, u64>,
    next: u64,
}

/// Where a sequence belongs.
#[derive(Debug, Clone, Copy)]
struct Place {
    job: u64,
    index: usize,
    max_tokens: u32,
    /// Stamp of its latest token.
    last_ns: Option<u64>,
}

/// A job that was taken in.
struct Running {
    events: mpsc::Sender<Event>,
    alive: Vec<SequenceId>,
    choices: usize,
    arrived_ns: u64,
    /// Output tokens of the longest sequence so far.
    tokens_output_most: u32,
    aborted: bool,
    /// None without a name.
    stamps: Option<RequestStamps>,
    name: Option<String>,
}

impl Worker {
    fn run(mut self, received: &std_mpsc::Receiver<Message>) {
        loop {
            if !self.engine.has_work() {
                match received.recv() {
                    Ok(message) => self.take(message),
                    Err(std_mpsc::RecvError) => return,
                }
            }
            while let Ok(message) = received.try_recv() {
                self.take(message);
            }
            self.abort_abandoned();
            if self.engine.has_work() {
                let outputs = self.engine.step(&mut monotonic_ns);
                self.tell_step();
                // The state is told first, so that whoever saw an end sees the room that it left.
                self.publish();
                for output in outputs {
                    self.hand_out(output);
                }
            } else {
                self.publish();
            }
        }
    }

    fn take(&mut self, message: Message) {
        match message {
            Message::Add { job, events, taken } => {
                let added = self.add(job, events);
                // A caller that has gone is noticed by its closed channel.
                let _ = taken.send(added);
            }
            Message::Abort { request_id } => {
                if let Some(job) = self.names.get(&request_id).copied() {
                    self.abort(job);
                }
            }
            Message::AbortAll => {
                let all: Vec<SequenceId> = self.sequences.keys().copied().collect();
                self.abort_all(&all);
            }
            Message::Drain => {
                self.engine.apply(Command::Drain, monotonic_ns()).expect("draining is never refused");
            }
        }
    }

    fn add(&mut self, job: Job, events: mpsc::Sender<Event>) -> Result<(), Refusal> {
        let key = self.next;
        let mut alive = Vec::new();
        for wanted in job.sequences {
            let id = SequenceId(self.next);
            self.next += 1;
            let Wanted { prompt, sampling } = wanted;
            let max_tokens = sampling.max_tokens;
            let request =
                Request { id, prompt, sampling, priority: job.priority, cache_salt: job.cache_salt.clone() };
            if let Err(refusal) = self.engine.apply(Command::Add(request), monotonic_ns()) {
                self.sequences.retain(|_, place| place.job != key);
                self.abort_all(&alive);
                return Err(refusal);
            }
            self.sequences.insert(id, Place { job: key, index: alive.len(), max_tokens, last_ns: None });
            alive.push(id);
        }
        if let Some(name) = &job.request_id {
            self.names.insert(name.clone(), key);
        }
        let stamps = job.request_id.clone().map(|name| empty_stamps(name, job.tokens_prompt));
        let choices = job.choices.max(1);
        let (arrived_ns, name) = (job.arrived_ns, job.request_id);
        let running = Running {
            events,
            alive,
            choices,
            arrived_ns,
            tokens_output_most: 0,
            aborted: false,
            stamps,
            name,
        };
        self.jobs.insert(key, running);
        Ok(())
    }

    fn abort(&mut self, job: u64) {
        if let Some(running) = self.jobs.get(&job) {
            let alive = running.alive.clone();
            self.abort_all(&alive);
        }
    }

    fn abort_all(&mut self, sequences: &[SequenceId]) {
        for id in sequences {
            self.engine.apply(Command::Abort(*id), monotonic_ns()).expect("an abort is never refused");
        }
    }

    /// Ends jobs whose callers have gone.
    fn abort_abandoned(&mut self) {
        let gone = self.jobs.iter().filter(|(_, running)| running.events.is_closed());
        let gone: Vec<u64> = gone.map(|(job, _)| *job).collect();
        for job in gone {
            self.abort(job);
        }
    }

    fn hand_out(&mut self, output: Output) {
        let (Output::Token { id, .. } | Output::Prompt { id, .. } | Output::Finished { id, .. }) = &output;
        let id = *id;
        match &output {
            Output::Token { .. } => self.counters.token(),
            Output::Prompt { .. } => {}
            Output::Finished { usage, preemptions, .. } => {
                self.counters.ended(usage.tokens_prompt, *preemptions);
            }
        }
        // What was refused halfway is not known here.
        let Some(place) = self.sequences.get_mut(&id) else { return };
        let (job, index) = (place.job, place.index);
        let Some(running) = self.jobs.get_mut(&job) else { return };
        tell(self.exposition.as_deref(), place, running, &output);
        let events = running.events.clone();
        if let Output::Finished { .. } = &output {
            self.sequences.remove(&id);
            running.alive.retain(|alive| *alive != id);
            if let Some(stamps) = &mut running.stamps {
                gather(stamps, &output, index % running.choices);
            }
            if running.alive.is_empty() {
                self.finish(job);
            }
        }
        // Full cannot be, since the channel has room for all; closed is noticed before the next step.
        let _ = events.try_send(Event { index, output });
    }

    /// Forgets a job and sends its stamps, before its caller learns of the end.
    fn finish(&mut self, job: u64) {
        let Some(running) = self.jobs.remove(&job) else { return };
        if let Some(exposition) = self.exposition.as_deref().filter(|_| !running.aborted) {
            exposition.request(running.choices, running.tokens_output_most);
        }
        if let Some(name) = &running.name {
            // Another job may have taken the name meanwhile.
            if self.names.get(name) == Some(&job) {
                self.names.remove(name);
            }
        }
        if let Some(stamps) = running.stamps {
            self.hub.stamps(stamps);
        }
    }

    /// Tells how many tokens the step computed, if it computed any.
    fn tell_step(&self) {
        let tokens = self.engine.state().step_tokens;
        if let Some(exposition) = self.exposition.as_deref().filter(|_| tokens > 0) {
            exposition.step(tokens);
        }
    }

    fn publish(&self) {
        let state = self.engine.state();
        self.publish.send_replace(state);
        if let Some(exposition) = &self.exposition {
            exposition.state(&state);
        }
        let count = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
        self.hub.state(State {
            at_ns: 0,
            requests_running: count(state.running),
            requests_waiting: count(state.waiting),
            kv_blocks_total: count(state.blocks_total),
            kv_blocks_used: count(state.blocks_used),
            block_tokens: count(state.block_tokens),
            context_tokens_max: count(state.context_max),
            draining: state.draining,
        });
    }
}

/// Tells `/metrics` of an output.
fn tell(exposition: Option<&Exposition>, place: &mut Place, running: &mut Running, output: &Output) {
    match output {
        Output::Prompt { .. } => {}
        Output::Token { at, .. } => {
            let last_ns = place.last_ns.replace(*at);
            if let Some(exposition) = exposition {
                exposition.token(running.arrived_ns, last_ns, *at);
            }
        }
        Output::Finished { finish, stamps, usage, .. } => {
            running.tokens_output_most = running.tokens_output_most.max(usage.tokens_output);
            running.aborted |= matches!(finish, Finish::Abort | Finish::Error(_));
            let (arrived_ns, max_tokens) = (running.arrived_ns, place.max_tokens);
            let ended = Ended { arrived_ns, max_tokens, stamps: *stamps, usage: *usage, finish };
            if let Some(exposition) = exposition {
                exposition.ended(&ended);
            }
        }
    }
}
