//! The engine: commands in, steps, outputs out.
//!
//! Apart because it is the one door of this crate that holds state over time. Must not know: clocks (the caller
//! hands one to each step), HTTP, how a batch is computed.

use std::sync::Arc;

use thiserror::Error;

use crate::detokenizer::Detokenizer;
use crate::reasoning::{Channel, Classifier, Markers, OutputSplit};
use crate::runner::{Logits, Reservation, RunError, Runner};
use crate::sampler::{Choice, TokenLogprobs, mix, sample};
use crate::scheduler::{Bounds, Scheduler};
use crate::sequence::{Finish, Request, Sequence, SequenceId, Stamps, StopCause, Usage};
use crate::stop::{StopMatcher, Stopped};
use crate::tokenizer::Tokenizer;

/// Sizes of an engine. All are bounds; none may be 0 except `waiting_max`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EngineOptions {
    /// Tokens a cache block.
    pub block_tokens: usize,
    /// Bytes the cache may take; it takes no more than `sequences_max` full contexts need.
    pub kv_bytes: usize,
    /// Most tokens of a step.
    pub batch_tokens_max: usize,
    /// Most sequences running at once.
    pub sequences_max: usize,
    /// Most requests waiting; a preempted sequence waits beside them.
    pub waiting_max: usize,
    /// Shortens the model's context, in tokens.
    pub context_max: Option<usize>,
    /// The model's own end tokens.
    pub eos_token_ids: Vec<u32>,
    /// Base of the seeds of requests that bring none; the caller draws it.
    pub seed: u64,
}

impl Default for EngineOptions {
    fn default() -> EngineOptions {
        EngineOptions {
            block_tokens: 16,
            kv_bytes: 1 << 30,
            batch_tokens_max: 512,
            sequences_max: 64,
            waiting_max: 256,
            context_max: None,
            eos_token_ids: Vec::new(),
            seed: 0,
        }
    }
}

/// Why an engine cannot be made.
#[derive(Debug, Error)]
pub enum EngineError {
    #[error("{option} must be at least 1")]
    Zero { option: &'static str },
    #[error("{kv_bytes} bytes of cache hold no block of {block_bytes} bytes")]
    NoBlock { kv_bytes: usize, block_bytes: usize },
    #[error(transparent)]
    Reserve(#[from] RunError),
}

/// What the engine is asked to do.
#[derive(Debug, Clone)]
pub enum Command {
    Add(Request),
    /// Ends a sequence; one that is gone already is no error.
    Abort(SequenceId),
    /// Refuses new requests from now on; those taken in are finished.
    Drain,
}

/// Why a request was not taken in.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum Refusal {
    #[error("{waiting} requests are waiting already")]
    QueueFull { waiting: usize },
    #[error("the prompt has {tokens} tokens, but at most {max} leave room for an output token")]
    PromptTooLong { tokens: usize, max: usize },
    #[error("the prompt has no tokens")]
    EmptyPrompt,
    #[error("max_tokens must be at least 1")]
    NoOutput,
    #[error("token {token} is outside the vocabulary of {vocabulary}")]
    UnknownToken { token: u32, vocabulary: usize },
    #[error("sequence {} is alive already", .id.0)]
    DuplicateId { id: SequenceId },
    #[error("the engine is draining")]
    Draining,
}

/// What a step produced.
#[derive(Debug, Clone, PartialEq)]
pub enum Output {
    /// One token, the stop token included.
    Token {
        id: SequenceId,
        token: u32,
        /// Empty while a character or a possible stop string is incomplete.
        text: String,
        channel: Channel,
        logprobs: Option<TokenLogprobs>,
    },
    /// The end of a sequence; nothing follows.
    Finished {
        id: SequenceId,
        /// Text held back until now.
        text: String,
        finish: Finish,
        stamps: Stamps,
        usage: Usage,
        split: OutputSplit,
        preemptions: u32,
    },
}

/// A look at the engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EngineState {
    pub running: usize,
    pub waiting: usize,
    pub blocks_total: usize,
    pub blocks_used: usize,
    pub block_tokens: usize,
    /// Most tokens of a sequence, prompt and output: what model, options and cache allow.
    pub context_max: usize,
    pub draining: bool,
}

/// Sequences on a runner.
pub struct Engine {
    runner: Box<dyn Runner>,
    tokenizer: Arc<Tokenizer>,
    options: EngineOptions,
    scheduler: Scheduler,
    markers: Option<Markers>,
    context_max: usize,
    draining: bool,
    /// Ends that the next step hands out; at most one a sequence that was alive.
    ended: Vec<Output>,
}

impl Engine {
    /// Makes an engine and reserves its cache.
    ///
    /// # Errors
    /// When a size is 0, the budget holds no block, or the runner has no room.
    pub fn new(
        mut runner: Box<dyn Runner>,
        tokenizer: Arc<Tokenizer>,
        options: EngineOptions,
    ) -> Result<Engine, EngineError> {
        let EngineOptions { block_tokens, kv_bytes, batch_tokens_max, sequences_max, .. } = options;
        let sizes = [
            ("block_tokens", block_tokens),
            ("batch_tokens_max", batch_tokens_max),
            ("sequences_max", sequences_max),
            ("context_max", options.context_max.unwrap_or(1)),
        ];
        if let Some((option, _)) = sizes.into_iter().find(|(_, size)| *size == 0) {
            return Err(EngineError::Zero { option });
        }
        let sequences_max = sequences_max.min(batch_tokens_max);
        let context_model = runner.context_max().min(options.context_max.unwrap_or(usize::MAX));
        let block_bytes = runner.block_bytes(block_tokens);
        let useful = context_model.div_ceil(block_tokens).saturating_mul(sequences_max);
        let blocks = (kv_bytes / block_bytes.max(1)).min(useful);
        if blocks == 0 {
            return Err(EngineError::NoBlock { kv_bytes, block_bytes });
        }
        runner.reserve(Reservation {
            blocks,
            block_tokens,
            rows_max: batch_tokens_max,
            logit_rows_max: sequences_max,
        })?;
        let bounds = Bounds { block_tokens, batch_tokens_max, sequences_max };
        Ok(Engine {
            markers: Markers::of(&tokenizer),
            context_max: context_model.min(blocks * block_tokens),
            scheduler: Scheduler::new(bounds, blocks),
            runner,
            tokenizer,
            options,
            draining: false,
            ended: Vec::new(),
        })
    }

    /// Takes a command in at instant `now`. The end of an aborted sequence comes from the next step.
    ///
    /// # Errors
    /// When a request is refused; nothing was changed then.
    pub fn apply(&mut self, command: Command, now: u64) -> Result<(), Refusal> {
        match command {
            Command::Add(request) => {
                self.admissible(&request)?;
                self.scheduler.add(self.sequence(request, now));
            }
            Command::Abort(id) => self.end(id, Finish::Abort),
            Command::Drain => self.draining = true,
        }
        Ok(())
    }

    /// Whether a step would do anything.
    pub fn has_work(&self) -> bool {
        self.scheduler.running() + self.scheduler.waiting() > 0 || !self.ended.is_empty()
    }

    /// Runs one step. `clock` is read at its top, and again when its tokens exist.
    pub fn step(&mut self, clock: &mut dyn FnMut() -> u64) -> Vec<Output> {
        let mut outputs = std::mem::take(&mut self.ended);
        self.scheduler.plan(clock());
        let batch = self.scheduler.batch();
        if batch.sequences.is_empty() {
            return outputs;
        }
        let planned = self.scheduler.planned_ids();
        match self.runner.run(&batch) {
            Ok(logits) => self.take_tokens(&logits, clock, &mut outputs),
            Err(error) => {
                for id in planned {
                    self.end(id, Finish::Error(error.to_string()));
                }
            }
        }
        outputs.append(&mut self.ended);
        outputs
    }

    /// A look at the engine's load.
    pub fn state(&self) -> EngineState {
        EngineState {
            running: self.scheduler.running(),
            waiting: self.scheduler.waiting(),
            blocks_total: self.scheduler.pool().total(),
            blocks_used: self.scheduler.pool().used(),
            block_tokens: self.options.block_tokens,
            context_max: self.context_max,
            draining: self.draining,
        }
    }

    /// The runner's device and path.
    pub fn runner_name(&self) -> String {
        self.runner.name()
    }

    /// Checks that blocks and tokens add up.
    ///
    /// # Panics
    /// When they do not.
    pub fn check_integrity(&self) {
        self.scheduler.check_integrity();
    }

    fn admissible(&self, request: &Request) -> Result<(), Refusal> {
        if self.draining {
            return Err(Refusal::Draining);
        }
        if request.prompt.is_empty() {
            return Err(Refusal::EmptyPrompt);
        }
        if request.sampling.max_tokens == 0 {
            return Err(Refusal::NoOutput);
        }
        let tokens = request.prompt.len();
        if tokens >= self.context_max {
            return Err(Refusal::PromptTooLong { tokens, max: self.context_max - 1 });
        }
        let vocabulary = self.runner.vocabulary();
        if let Some(token) = request.prompt.iter().copied().find(|token| *token as usize >= vocabulary) {
            return Err(Refusal::UnknownToken { token, vocabulary });
        }
        if self.scheduler.contains(request.id) {
            return Err(Refusal::DuplicateId { id: request.id });
        }
        let waiting = self.scheduler.waiting();
        // A queue of 0 still hands over what fits into the next step.
        let room = self.options.waiting_max.max(1);
        if waiting >= room {
            return Err(Refusal::QueueFull { waiting });
        }
        Ok(())
    }

    fn sequence(&self, request: Request, now: u64) -> Sequence {
        let Request { id, prompt, mut sampling } = request;
        sampling.seed.get_or_insert(mix(self.options.seed ^ mix(id.0)));
        Sequence {
            id,
            tokens_prompt: prompt.len(),
            computed: 0,
            planned: 0,
            blocks: Vec::new(),
            stamps: Stamps { queued: Some(now), ..Stamps::default() },
            preemptions: 0,
            detokenizer: Detokenizer::default(),
            stop: StopMatcher::new(&sampling.stop),
            classifier: Classifier::new(self.markers, &prompt),
            tokens: prompt,
            sampling,
        }
    }

    /// Draws a token for every sequence that is complete after this step.
    fn take_tokens(&mut self, logits: &Logits, clock: &mut dyn FnMut() -> u64, outputs: &mut Vec<Output>) {
        let eos = &self.options.eos_token_ids;
        let mut complete = self.scheduler.advance();
        let mut rows = logits.rows();
        let choices: Vec<Choice> = complete
            .iter()
            .map(|sequence| choose(sequence, rows.next().expect("one row a complete sequence"), eos))
            .collect();
        let end = clock();
        let mut finished = Vec::new();
        for (sequence, choice) in complete.iter_mut().zip(choices) {
            let (output, finish) = take_token(sequence, choice, end, eos, &self.tokenizer, self.context_max);
            outputs.push(output);
            finished.extend(finish.map(|finish| (sequence.id, finish)));
        }
        for (id, finish) in finished {
            self.end(id, finish);
        }
    }

    /// Takes a sequence out and queues its end.
    fn end(&mut self, id: SequenceId, finish: Finish) {
        let Some(mut sequence) = self.scheduler.remove(id) else { return };
        let text = match &finish {
            // What follows a stop string is cut.
            Finish::Stop { stop: Some(StopCause::Text(_)) } => String::new(),
            Finish::Stop { stop: None | Some(StopCause::TokenId(_)) }
            | Finish::Length
            | Finish::Abort
            | Finish::Error(_) => sequence.stop.finish(),
        };
        self.ended.push(Output::Finished {
            id,
            text,
            finish,
            stamps: sequence.stamps,
            usage: sequence.usage(),
            split: sequence.classifier.split(),
            preemptions: sequence.preemptions,
        });
    }
}

fn choose(sequence: &Sequence, row: &[f32], eos: &[u32]) -> Choice {
    let index = sequence.tokens_output();
    let mut banned = Vec::new();
    if index < sequence.sampling.min_tokens as usize {
        banned.extend_from_slice(&sequence.sampling.stop_token_ids);
        if !sequence.sampling.ignore_eos {
            banned.extend_from_slice(eos);
        }
    }
    let seed = sequence.sampling.seed.expect("a sequence is made with a seed");
    sample(row, &sequence.sampling, seed, index as u64, &banned)
}

/// Appends a token to its sequence; gives the output and, when it was the last, why.
fn take_token(
    sequence: &mut Sequence,
    choice: Choice,
    at: u64,
    eos: &[u32],
    tokenizer: &Tokenizer,
    context_max: usize,
) -> (Output, Option<Finish>) {
    let Choice { token, logprobs } = choice;
    sequence.tokens.push(token);
    sequence.stamps.first.get_or_insert(at);
    sequence.stamps.last = Some(at);
    let id = sequence.id;
    let stop_token = if sequence.sampling.stop_token_ids.contains(&token) {
        Some(Some(StopCause::TokenId(token)))
    } else if !sequence.sampling.ignore_eos && eos.contains(&token) {
        Some(None)
    } else {
        None
    };
    let full = sequence.tokens_output() >= sequence.sampling.max_tokens as usize
        || sequence.tokens.len() >= context_max;
    let (channel, mut piece) = match stop_token {
        Some(_) => (sequence.classifier.stop_token(), String::new()),
        None => (sequence.classifier.token(token, at), sequence.detokenizer.push(tokenizer, token)),
    };
    if stop_token.is_some() || full {
        piece.push_str(&sequence.detokenizer.finish(tokenizer));
    }
    let (text, found) = match sequence.stop.push(&piece) {
        Stopped::Not { text } => (text, None),
        Stopped::At { text, stop } => (text, Some(StopCause::Text(stop))),
    };
    let finish = match (found, stop_token) {
        (None, Some(stop)) => Some(Finish::Stop { stop }),
        (Some(stop), Some(_) | None) => Some(Finish::Stop { stop: Some(stop) }),
        (None, None) if full => Some(Finish::Length),
        (None, None) => None,
    };
    (Output::Token { id, token, text, channel, logprobs }, finish)
}
