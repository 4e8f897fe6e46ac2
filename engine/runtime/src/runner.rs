//! What computes a batch's logits.
//!
//! Apart so that the engine runs on a real model and on a toy alike. Must not know: requests, sampling, text.

use thiserror::Error;

use crate::batch::Batch;

/// Why a step or a reservation failed.
#[derive(Debug, Error)]
pub enum RunError {
    #[error("the device failed: {0}")]
    Device(String),
    #[error("no cache was reserved before the first step")]
    NotReserved,
    #[error("a step of {rows} tokens exceeds the {max} that were reserved")]
    TooManyRows { rows: usize, max: usize },
    #[error("token {token} is outside the vocabulary of {vocabulary}")]
    UnknownToken { token: u32, vocabulary: usize },
}

/// Room to reserve before the first step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reservation {
    /// Cache blocks.
    pub blocks: usize,
    /// Tokens a block.
    pub block_tokens: usize,
    /// Most rows of a batch.
    pub rows_max: usize,
    /// Most rows of logits.
    pub logit_rows_max: usize,
}

/// Logits of the wanted rows, (rows, vocabulary) row-major, in batch order.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Logits {
    pub values: Vec<f32>,
    /// Columns; not 0 when there are values.
    pub vocabulary: usize,
}

impl Logits {
    /// The rows, in batch order.
    pub fn rows(&self) -> impl Iterator<Item = &[f32]> {
        self.values.chunks_exact(self.vocabulary.max(1))
    }
}

/// Computes batches.
pub trait Runner: Send {
    /// Names the device and path, for a start-up line.
    fn name(&self) -> String;

    /// Columns of the logits.
    fn vocabulary(&self) -> usize;

    /// Most tokens of one sequence that the model was made for.
    fn context_max(&self) -> usize;

    /// Bytes a cache block of that many tokens takes; 0 when blocks cost nothing.
    fn block_bytes(&self, block_tokens: usize) -> usize;

    /// Reserves the cache and the activations.
    ///
    /// # Errors
    /// When the device has no room.
    fn reserve(&mut self, reservation: Reservation) -> Result<(), RunError>;

    /// Computes one step: stores keys and values of the batch's tokens and gives the wanted logits. A sequence may
    /// hold blocks that another one of the batch fills in this step.
    ///
    /// # Errors
    /// When the device fails; the slots of the batch's own tokens are then undefined, all others as before.
    fn run(&mut self, batch: &Batch) -> Result<Logits, RunError>;
}
