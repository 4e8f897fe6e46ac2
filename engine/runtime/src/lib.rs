//! Sequences on a model: scheduling, batching, sampling, tokens to text, and the model's forward pass.
//!
//! Apart from the server so that a whole engine runs inside a test: bytes and times are handed in, outputs handed
//! back. Must not know: clocks, files, environment, threads of the host, HTTP.
//!
//! [`load`] turns the bytes of a model folder into a [`ModelRunner`], a [`Tokenizer`] and a [`ChatTemplate`];
//! [`Engine`] drives the runner: `apply` commands, then `step` while it `has_work`.

mod adjust;
mod admission;
mod batch;
mod block_key;
mod block_pool;
mod chat;
mod continuation;
mod detokenizer;
mod engine;
mod model;
mod reasoning;
mod runner;
mod sampler;
mod scheduler;
mod sequence;
mod stats;
mod stop;
pub mod testing;
mod tokenizer;

pub use pitot_kernels as kernels;

pub use admission::{
    LOGIT_BIAS_MAX, LOGPROBS_MAX, Refusal, STOP_BYTES_MAX, STOP_TOKENS_MAX, STOPS_MAX, SamplingError,
};
pub use batch::{Batch, BatchSequence, LogitRows};
pub use chat::{ChatError, ChatTemplate};
pub use engine::{Command, Engine, EngineError, EngineOptions, Output};
pub use model::{GenerationDefaults, LoadError, Loaded, ModelFiles, ModelRunner, load};
pub use reasoning::{Channel, OutputSplit, Part};
pub use runner::{Logits, Reservation, RunError, Runner};
pub use sampler::{Sampling, StopText, TokenLogprobs, log_softmax};
pub use scheduler::{PrefixCache, PrefixCounts};
pub use sequence::{Finish, Request, SequenceId, Stamps, StopCause, Usage};
pub use stats::EngineState;
pub use tokenizer::{Specials, Tokenizer, TokenizerError};
