//! Sequences on a model: scheduling, batching, sampling, tokens to text, and the model's forward pass.
//!
//! Apart from the server so that a whole engine runs inside a test: bytes and times are handed in, outputs handed
//! back. Must not know: clocks, files, environment, threads of the host, HTTP.
//!
//! [`model::load`] turns the bytes of a model folder into a [`Runner`], a [`Tokenizer`] and a [`ChatTemplate`];
//! [`Engine`] drives the runner: `apply` commands, then `step` while it `has_work`.

mod batch;
mod block_pool;
mod chat;
mod detokenizer;
mod engine;
pub mod model;
mod reasoning;
mod runner;
mod sampler;
mod scheduler;
mod sequence;
mod stop;
pub mod testing;
mod tokenizer;

pub use pitot_kernels as kernels;

pub use batch::{Batch, BatchSequence, LogitRows};
pub use chat::{ChatError, ChatTemplate};
pub use engine::{Command, Engine, EngineError, EngineOptions, EngineState, Output, Refusal};
pub use model::{GenerationDefaults, LoadError, Loaded, ModelFiles, load};
pub use reasoning::{Channel, OutputSplit, Part};
pub use runner::{Logits, ModelRunner, Reservation, RunError, Runner};
pub use sampler::{Sampling, TokenLogprobs, log_softmax};
pub use sequence::{Finish, Request, SequenceId, Stamps, StopCause, Usage};
pub use tokenizer::{Specials, Tokenizer, TokenizerError};
