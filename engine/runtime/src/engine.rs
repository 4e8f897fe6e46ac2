//! The engine: commands in, steps, outputs out.
//!
//! Apart because it is the one door of this crate that holds state over time. Must not know: clocks (the caller
//! hands one to each step), HTTP, how a batch is computed.

use std::sync::Arc;

use thiserror::Error;

use crate::admission::{Refusal, check_request};
use crate::block_key::BlockKeys;
use crate::continuation::{self, Ends, Taken};
use crate::detokenizer::Detokenizer;
use crate::reasoning::{Channel, Classifier, Markers, OutputSplit};
use crate::runner::{Logits, Reservation, RunError, Runner};
use crate::sampler::{self, TokenLogprobs};
use crate::scheduler::{Advanced, Bounds, PrefixCache, SCORED_ROWS_MAX, Scheduler};
use crate::sequence::{Finish, Order, Request, Sequence, SequenceId, Stamps, Usage};
use crate::stats::EngineState;
use crate::stop::StopMatcher;
use crate::tokenizer::Tokenizer;

/// Sizes of an engine. All are bounds, and none may be 0.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EngineOptions {
    /// Tokens a cache block.
    pub block_tokens: usize,
    /// Bytes the cache may take; it takes no more than `sequences_max` full contexts need.
    pub kv_bytes: usize,
    /// Most tokens of a step.
    pub batch_tokens_max: usize,
    /// Most sequences running at once; at most `batch_tokens_max` are.
    pub sequences_max: usize,
    /// Most requests waiting; a preempted sequence waits beside them.
    pub waiting_max: usize,
    /// Whether sequences that begin alike share what was computed for the beginning.
    pub prefix_cache: PrefixCache,
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
            prefix_cache: PrefixCache::On,
            context_max: None,
            eos_token_ids: Vec::new(),
            seed: 0,
        }
    }
}

/// Why an engine cannot be made.
#[derive(Debug, Error)]
pub enum EngineError {
    #[error("{option} must be at least {min}")]
    TooSmall { option: &'static str, min: usize },
    #[error("{kv_bytes} bytes of cache hold no block of {block_bytes} bytes")]
    NoBlock { kv_bytes: usize, block_bytes: usize },
    #[error("{blocks} cache blocks of {block_tokens} tokens are more than 32-bit slots can name")]
    TooManySlots { blocks: usize, block_tokens: usize },
    #[error(transparent)]
    Reserve(#[from] RunError),
}

/// What the engine is asked to do.
#[expect(clippy::large_enum_variant, reason = "commands are handed over one by one and never kept")]
#[derive(Debug, Clone, PartialEq)]
pub enum Command {
    /// Takes a sequence in.
    Add(Request),
    /// Ends a sequence; one that is gone already is no error.
    Abort(SequenceId),
    /// Refuses new requests from now on; those taken in are finished.
    Drain,
}

/// What a step produced.
#[derive(Debug, Clone, PartialEq)]
pub enum Output {
    /// One token, the stop token included.
    Token {
        id: SequenceId,
        token: u32,
        /// End of the step that produced it, by the clock given to the step.
        at: u64,
        /// Empty while a character or a possible stop string is incomplete, and for tokens without text.
        text: String,
        /// Where `text` belongs.
        channel: Channel,
        logprobs: Option<TokenLogprobs>,
    },
    /// Log-probabilities of the next tokens of a prompt, beginning with its second token; only when asked for.
    Prompt { id: SequenceId, logprobs: Vec<TokenLogprobs> },
    /// The end of a sequence; nothing follows.
    Finished {
        id: SequenceId,
        /// Text held back until now.
        text: String,
        /// Where `text` belongs.
        channel: Channel,
        finish: Finish,
        stamps: Stamps,
        usage: Usage,
        split: OutputSplit,
        preemptions: u32,
    },
}

/// Sequences on a runner.
pub struct Engine {
    runner: Box<dyn Runner>,
    tokenizer: Arc<Tokenizer>,
    options: EngineOptions,
    ends: Ends,
    scheduler: Scheduler,
    markers: Option<Markers>,
    draining: bool,
    /// Tokens that the latest step computed.
    step_tokens: usize,
    /// Requests taken in so far.
    arrivals: u64,
    /// Ends that the next step hands out; at most one for each sequence that was alive.
    ended: Vec<Output>,
}

impl Engine {
    /// Makes an engine and reserves its cache.
    ///
    /// # Errors
    /// When a size is too small, the budget holds no block, or the runner has no room.
    pub fn new(
        mut runner: Box<dyn Runner>,
        tokenizer: Arc<Tokenizer>,
        options: EngineOptions,
    ) -> Result<Engine, EngineError> {
        let context_model = runner.context_max().min(options.context_max.unwrap_or(usize::MAX));
        check_options(&options, context_model)?;
        let EngineOptions { block_tokens, kv_bytes, batch_tokens_max, .. } = options;
        // A decode takes one token of a step, so more sequences than that could never run in one.
        let sequences_max = options.sequences_max.min(batch_tokens_max);
        let block_bytes = runner.block_bytes(block_tokens).max(1);
        let useful = context_model.div_ceil(block_tokens).saturating_mul(sequences_max);
        let blocks = (kv_bytes / block_bytes).min(useful);
        if blocks == 0 {
            return Err(EngineError::NoBlock { kv_bytes, block_bytes });
        }
        let slots = blocks.checked_mul(block_tokens).filter(|slots| *slots <= u32::MAX as usize);
        let slots = slots.ok_or(EngineError::TooManySlots { blocks, block_tokens })?;
        runner.reserve(Reservation {
            blocks,
            block_tokens,
            rows_max: batch_tokens_max,
            logit_rows_max: sequences_max + SCORED_ROWS_MAX,
        })?;
        let bounds =
            Bounds { block_tokens, batch_tokens_max, sequences_max, prefix_cache: options.prefix_cache };
        let ends = Ends {
            eos_token_ids: options.eos_token_ids.clone(),
            // What can never fit is refused when it comes, so that the oldest sequence always gets on.
            context_max: context_model.min(slots),
        };
        Ok(Engine {
            markers: Markers::of(&tokenizer),
            scheduler: Scheduler::new(bounds, blocks as u32),
            runner,
            tokenizer,
            options,
            ends,
            draining: false,
            step_tokens: 0,
            arrivals: 0,
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
                self.check(&request)?;
                let sequence = self.sequence(request, now);
                self.scheduler.add(sequence);
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
    ///
    /// A runner that fails ends the sequences of the step with [`Finish::Error`]; the others go on.
    pub fn step(&mut self, clock: &mut dyn FnMut() -> u64) -> Vec<Output> {
        let mut outputs = std::mem::take(&mut self.ended);
        self.scheduler.plan(clock());
        let batch = self.scheduler.batch();
        self.step_tokens = batch.rows();
        if batch.sequences.is_empty() {
            return outputs;
        }
        let planned = self.scheduler.planned_ids();
        match self.runner.run(&batch) {
            Ok(logits) => self.take_tokens(&logits, clock, &mut outputs),
            Err(error) => {
                self.scheduler.forget_planned();
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
            blocks_kept: self.scheduler.pool().kept(),
            blocks_evicted: self.scheduler.pool().evictions(),
            prefix_counts: self.scheduler.prefix_counts(),
            preemptions: self.scheduler.preemptions(),
            step_tokens: self.step_tokens,
            block_tokens: self.options.block_tokens,
            context_max: self.ends.context_max,
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

    fn check(&self, request: &Request) -> Result<(), Refusal> {
        if self.draining {
            return Err(Refusal::Draining);
        }
        check_request(request, self.runner.vocabulary(), self.ends.context_max)?;
        if self.scheduler.contains(request.id) {
            return Err(Refusal::DuplicateId { id: request.id });
        }
        let waiting = self.scheduler.waiting();
        if waiting >= self.options.waiting_max {
            return Err(Refusal::QueueFull { waiting });
        }
        Ok(())
    }

    fn sequence(&mut self, request: Request, now: u64) -> Sequence {
        let Request { id, prompt, sampling, priority, cache_salt } = request;
        self.arrivals += 1;
        Sequence {
            id,
            order: Order { priority, arrival: self.arrivals },
            seed: sampling.seed.unwrap_or_else(|| sampler::mix(self.options.seed ^ sampler::mix(id.0))),
            tokens_prompt: prompt.len(),
            computed: 0,
            planned: 0,
            blocks: Vec::new(),
            keys: BlockKeys::new(cache_salt.as_deref()),
            named: 0,
            scored: 1,
            tokens_cached: 0,
            stamps: Stamps { queued: Some(now), ..Stamps::default() },
            preemptions: 0,
            detokenizer: Detokenizer::default(),
            stop: StopMatcher::new(&sampling.stop),
            classifier: Classifier::new(self.markers, &prompt),
            tokens: prompt,
            sampling,
        }
    }

    /// Scores prompts and draws a token for every sequence whose known tokens are all computed after this step.
    fn take_tokens(&mut self, logits: &Logits, clock: &mut dyn FnMut() -> u64, outputs: &mut Vec<Output>) {
        let ends = &self.ends;
        let mut rows = logits.rows();
        let mut draws = Vec::new();
        for Advanced { sequence, rows: count } in self.scheduler.advance() {
            let own: Vec<&[f32]> = rows.by_ref().take(count).collect();
            assert_eq!(own.len(), count, "the runner gave fewer rows of logits than were asked for");
            outputs.extend(continuation::score(sequence, &own));
            let Some(last) = own.last().filter(|_| sequence.pending() == 0) else { continue };
            let banned = continuation::banned(sequence, ends);
            let index = sequence.tokens_output() as u64;
            let history = sequence.history();
            let drawn = sampler::sample(last, &sequence.sampling, history, sequence.seed, index, &banned);
            draws.push((sequence, drawn));
        }
        assert!(rows.next().is_none(), "the runner gave more rows of logits than were asked for");
        let at = clock();
        let mut finished = Vec::new();
        for (sequence, drawn) in draws {
            let Some(sampler::Drawn { token, logprobs }) = drawn else {
                let error = "the model gave no finite logit for a token that may come".to_owned();
                finished.push((sequence.id, Finish::Error(error)));
                continue;
            };
            let Taken { text, channel, finish } =
                continuation::take(sequence, token, at, ends, &self.tokenizer);
            outputs.push(Output::Token { id: sequence.id, token, at, text, channel, logprobs });
            finished.extend(finish.map(|finish| (sequence.id, finish)));
        }
        for (id, finish) in finished {
            self.end(id, finish);
        }
    }

    /// Takes a sequence out and queues its end; nothing when it is gone already.
    fn end(&mut self, id: SequenceId, finish: Finish) {
        let Some(mut sequence) = self.scheduler.remove(id) else { return };
        self.ended.push(Output::Finished {
            id,
            text: continuation::tail(&mut sequence, &finish, &self.tokenizer),
            channel: sequence.classifier.channel(),
            finish,
            stamps: sequence.stamps,
            usage: sequence.usage(),
            split: sequence.classifier.split(),
            preemptions: sequence.preemptions,
        });
    }
}

fn check_options(options: &EngineOptions, context_max: usize) -> Result<(), EngineError> {
    let sizes = [
        ("block_tokens", options.block_tokens, 1),
        ("batch_tokens_max", options.batch_tokens_max, 1),
        ("sequences_max", options.sequences_max, 1),
        ("waiting_max", options.waiting_max, 1),
        // One token of prompt and one of output.
        ("context_max", context_max, 2),
    ];
    match sizes.into_iter().find(|(_, size, min)| size < min) {
        Some((option, _, min)) => Err(EngineError::TooSmall { option, min }),
        None => Ok(()),
    }
}
