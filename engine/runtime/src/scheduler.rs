//! Which sequences run in a step, with how many tokens, in which blocks.
//!
//! Apart so that continuous batching can be read in one place. Must not know: logits, text, the runner, why a
//! sequence ends.
//!
//! Decodes come first, then prefills in order of arrival, cut into chunks by the token budget. When blocks run
//! out, the newest running sequence gives up its blocks and goes back to the head of the queue; its tokens are
//! computed again later.

use std::collections::VecDeque;

use crate::batch::{Batch, BatchSequence, LogitRows};
use crate::block_pool::BlockPool;
use crate::sequence::{Sequence, SequenceId};

/// Bounds of a step.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Bounds {
    pub block_tokens: usize,
    /// Most tokens of a step; at least `sequences_max`, so that decodes cannot starve a prefill.
    pub batch_tokens_max: usize,
    /// Most running sequences.
    pub sequences_max: usize,
}

/// The queue, the running sequences and the pool they share.
pub(crate) struct Scheduler {
    bounds: Bounds,
    pool: BlockPool,
    /// First come, first served; preempted ones are put in front.
    waiting: VecDeque<Sequence>,
    /// In order of admission, oldest first.
    running: Vec<Sequence>,
}

impl Scheduler {
    pub fn new(bounds: Bounds, blocks: u32) -> Scheduler {
        Scheduler { bounds, pool: BlockPool::new(blocks), waiting: VecDeque::new(), running: Vec::new() }
    }

    pub fn pool(&self) -> &BlockPool {
        &self.pool
    }

    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    pub fn running(&self) -> usize {
        self.running.len()
    }

    pub fn contains(&self, id: SequenceId) -> bool {
        self.running.iter().chain(&self.waiting).any(|sequence| sequence.id == id)
    }

    pub fn add(&mut self, sequence: Sequence) {
        self.waiting.push_back(sequence);
    }

    /// Takes a sequence out, wherever it is, and frees its blocks.
    pub fn remove(&mut self, id: SequenceId) -> Option<Sequence> {
        if let Some(index) = self.waiting.iter().position(|sequence| sequence.id == id) {
            return self.waiting.remove(index);
        }
        let index = self.running.iter().position(|sequence| sequence.id == id)?;
        let mut sequence = self.running.remove(index);
        free(&mut self.pool, &mut sequence);
        Some(sequence)
    }

    /// Plans a step at instant `now`: afterwards [`Scheduler::batch`] is its work.
    pub fn plan(&mut self, now: u64) {
        for sequence in &mut self.running {
            sequence.planned = 0;
        }
        let mut budget = self.bounds.batch_tokens_max;
        let mut preempted = Preempted::None;
        let decodes: Vec<SequenceId> = self.ids(|sequence| sequence.pending() == 1);
        let prefills: Vec<SequenceId> = self.ids(|sequence| sequence.pending() > 1);
        for id in decodes.into_iter().chain(prefills) {
            preempted = preempted.or(self.plan_running(id, &mut budget));
        }
        match preempted {
            // Admitting now would hand the blocks just freed to the sequence that gave them up.
            Preempted::Some => {}
            Preempted::None => self.admit(now, &mut budget),
        }
    }

    /// The planned work.
    pub fn batch(&self) -> Batch {
        let part = |sequence: &Sequence| {
            let context = sequence.computed + sequence.planned;
            BatchSequence {
                tokens: sequence.tokens[sequence.computed..context].to_vec(),
                context,
                blocks: sequence.blocks.iter().map(|block| block.0).collect(),
                logits: if context == sequence.tokens.len() { LogitRows::Last } else { LogitRows::None },
            }
        };
        Batch { sequences: self.planned().map(part).collect() }
    }

    /// Notes that the planned tokens are in the cache; gives the sequences that now want a token, in the order of
    /// the batch's logits.
    pub fn advance(&mut self) -> Vec<&mut Sequence> {
        let mut complete = Vec::new();
        for sequence in self.running.iter_mut().filter(|sequence| sequence.planned > 0) {
            sequence.computed += sequence.planned;
            sequence.planned = 0;
            if sequence.pending() == 0 {
                complete.push(sequence);
            }
        }
        complete
    }

    /// Ids of the planned sequences, in batch order.
    pub fn planned_ids(&self) -> Vec<SequenceId> {
        self.planned().map(|sequence| sequence.id).collect()
    }

    /// Checks that blocks and tokens add up.
    ///
    /// # Panics
    /// When they do not.
    pub fn check_integrity(&self) {
        self.pool.check_integrity(self.running.iter().flat_map(|sequence| sequence.blocks.iter().copied()));
        assert!(self.running.len() <= self.bounds.sequences_max, "more sequences run than may");
        for sequence in &self.running {
            assert!(sequence.computed < sequence.tokens.len(), "a running sequence has nothing to run");
            let room = sequence.blocks.len() * self.bounds.block_tokens;
            assert!(sequence.computed <= room, "a sequence has more cached tokens than room");
        }
        for sequence in &self.waiting {
            assert!(sequence.blocks.is_empty() && sequence.computed == 0, "a waiting sequence holds blocks");
        }
    }

    fn planned(&self) -> impl Iterator<Item = &Sequence> {
        self.running.iter().filter(|sequence| sequence.planned > 0)
    }

    fn ids(&self, wanted: impl Fn(&Sequence) -> bool) -> Vec<SequenceId> {
        self.running.iter().filter(|sequence| wanted(sequence)).map(|sequence| sequence.id).collect()
    }

    /// Plans one running sequence, preempting from the newest end until it has room; it may itself be the newest.
    fn plan_running(&mut self, id: SequenceId, budget: &mut usize) -> Preempted {
        let mut preempted = Preempted::None;
        loop {
            let Some(index) = self.running.iter().position(|sequence| sequence.id == id) else {
                return preempted;
            };
            let chunk = self.running[index].pending().min(*budget);
            if chunk == 0 {
                return preempted;
            }
            let sequence = &mut self.running[index];
            if grow(&mut self.pool, sequence, chunk, self.bounds.block_tokens) {
                sequence.planned = chunk;
                *budget -= chunk;
                return preempted;
            }
            // A victim that was planned already gives its share of the step back.
            *budget += self.preempt_newest();
            preempted = Preempted::Some;
        }
    }

    /// Sends the newest running sequence back to the queue; gives the tokens it was planned with.
    fn preempt_newest(&mut self) -> usize {
        let mut sequence = self.running.pop().expect("a sequence that lacks blocks is running");
        free(&mut self.pool, &mut sequence);
        sequence.computed = 0;
        sequence.preemptions += 1;
        let planned = std::mem::take(&mut sequence.planned);
        self.waiting.push_front(sequence);
        planned
    }

    /// Admits from the head of the queue while all of a sequence's known tokens have room.
    fn admit(&mut self, now: u64, budget: &mut usize) {
        while *budget > 0 && self.running.len() < self.bounds.sequences_max {
            let Some(head) = self.waiting.front() else { return };
            if head.tokens.len().div_ceil(self.bounds.block_tokens) > self.pool.free() {
                return;
            }
            let mut sequence = self.waiting.pop_front().expect("the queue has a head");
            let chunk = sequence.pending().min(*budget);
            let grown = grow(&mut self.pool, &mut sequence, chunk, self.bounds.block_tokens);
            assert!(grown, "room for all tokens is room for a chunk");
            sequence.planned = chunk;
            sequence.stamps.scheduled.get_or_insert(now);
            *budget -= chunk;
            self.running.push(sequence);
        }
    }
}

/// Whether planning preempted anyone.
#[derive(Debug, Clone, Copy)]
enum Preempted {
    None,
    Some,
}

impl Preempted {
    fn or(self, other: Preempted) -> Preempted {
        match (self, other) {
            (Preempted::None, Preempted::None) => Preempted::None,
            (Preempted::Some, Preempted::None | Preempted::Some) | (Preempted::None, Preempted::Some) => {
                Preempted::Some
            }
        }
    }
}

fn free(pool: &mut BlockPool, sequence: &mut Sequence) {
    for block in sequence.blocks.drain(..) {
        pool.release(block);
    }
}

/// Gives a sequence the blocks for `chunk` more tokens: all of them, or none and false.
fn grow(pool: &mut BlockPool, sequence: &mut Sequence, chunk: usize, block_tokens: usize) -> bool {
    let wanted = (sequence.computed + chunk).div_ceil(block_tokens);
    let missing = wanted.saturating_sub(sequence.blocks.len());
    if missing > pool.free() {
        return false;
    }
    sequence.blocks.extend(std::iter::from_fn(|| pool.take()).take(missing));
    true
}
