//! One sequence: its request, its known tokens, and what the engine has done for it so far.
//!
//! Apart so that the scheduler moves sequences without knowing sampling or text. Must not know: other sequences,
//! the block pool, the runner.

use crate::adjust::History;
use crate::batch::LogitRows;
use crate::block_key::BlockKeys;
use crate::block_pool::BlockId;
use crate::detokenizer::Detokenizer;
use crate::reasoning::Classifier;
use crate::sampler::Sampling;
use crate::stop::StopMatcher;

/// Names one sequence; chosen by the caller, unique among those alive.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SequenceId(pub u64);

/// One sequence to generate. Several choices or prompts are several requests, joined by the caller.
#[derive(Debug, Clone, PartialEq)]
pub struct Request {
    pub id: SequenceId,
    /// Token ids; not empty.
    pub prompt: Vec<u32>,
    pub sampling: Sampling,
    /// The lower number goes first: into the running sequences, and to the blocks when they run out.
    pub priority: i32,
    /// Keeps the prefix cache of those who send it apart from all others.
    pub cache_salt: Option<String>,
}

impl Request {
    /// A request of ordinary priority, 0, without a salt.
    pub fn new(id: SequenceId, prompt: Vec<u32>, sampling: Sampling) -> Request {
        Request { id, prompt, sampling, priority: 0, cache_salt: None }
    }
}

/// A sequence's place: the lower priority number first, of equal ones the earlier arrival.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Order {
    pub priority: i32,
    /// Counts what the engine took in.
    pub arrival: u64,
}

/// Instants of a sequence, in the caller's monotonic nanoseconds. Filled by the engine.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Stamps {
    /// When the engine took the request in.
    pub queued: Option<u64>,
    /// Top of the first step that admitted it; kept over preemption and chunks.
    pub scheduled: Option<u64>,
    /// End of the step that produced the first output token.
    pub first: Option<u64>,
    /// End of the step that produced the latest output token.
    pub last: Option<u64>,
}

/// What stopped a sequence, other than the model's own end token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StopCause {
    /// A stop string, cut from the text.
    Text(String),
    /// One of the request's stop token ids.
    TokenId(u32),
}

/// Why a sequence ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Finish {
    /// A stop string or token; `None` when it was the model's own end token.
    Stop { stop: Option<StopCause> },
    /// The token limit of the request or of the context was reached.
    Length,
    /// The caller aborted it.
    Abort,
    /// The runner failed on a step of this sequence.
    Error(String),
}

/// Token counts of a sequence.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    pub tokens_prompt: u32,
    /// Prompt tokens whose keys and values came from the prefix cache when the sequence was first admitted; 0 for
    /// one that never was.
    pub tokens_cached: u32,
    /// Tokens produced, the stop token included.
    pub tokens_output: u32,
}

/// A sequence inside the engine.
pub(crate) struct Sequence {
    pub id: SequenceId,
    pub order: Order,
    pub sampling: Sampling,
    /// The request's seed, or one that the engine derived.
    pub seed: u64,
    pub tokens_prompt: usize,
    /// Prompt, then output.
    pub tokens: Vec<u32>,
    /// Leading tokens whose keys are in the cache.
    pub computed: usize,
    /// Tokens of this step; 0 when it is not in the step.
    pub planned: usize,
    /// Blocks held, in order.
    pub blocks: Vec<BlockId>,
    pub keys: BlockKeys,
    /// Leading blocks that others can find by their keys.
    pub named: usize,
    /// First token of the prompt whose log-probability was not reported yet.
    pub scored: usize,
    /// Leading tokens that the prefix cache had when the sequence was first admitted.
    pub tokens_cached: usize,
    pub stamps: Stamps,
    pub preemptions: u32,
    pub detokenizer: Detokenizer,
    pub stop: StopMatcher,
    pub classifier: Classifier,
}

impl Sequence {
    /// Known tokens that still have to run; 0 only between a step's end and its new token.
    pub fn pending(&self) -> usize {
        self.tokens.len() - self.computed
    }

    /// Output tokens so far.
    pub fn tokens_output(&self) -> usize {
        self.tokens.len() - self.tokens_prompt
    }

    /// Whether tokens of the prompt still want their log-probabilities.
    pub fn wants_scores(&self) -> bool {
        self.sampling.prompt_logprobs.is_some() && self.scored < self.tokens_prompt
    }

    /// The logits that the planned tokens are to give.
    pub fn logit_rows(&self) -> LogitRows {
        if self.wants_scores() {
            LogitRows::All
        } else if self.planned == self.pending() {
            LogitRows::Last
        } else {
            LogitRows::None
        }
    }

    pub fn history(&self) -> History<'_> {
        let (prompt, output) = self.tokens.split_at(self.tokens_prompt);
        History { prompt, output }
    }

    pub fn usage(&self) -> Usage {
        Usage {
            tokens_prompt: self.tokens_prompt as u32,
            tokens_cached: self.tokens_cached as u32,
            tokens_output: self.tokens_output() as u32,
        }
    }
}
