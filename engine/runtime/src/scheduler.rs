//! Which sequences run in a step, with how many tokens, in which blocks.
//!
//! Apart so that continuous batching can be read in one place. Must not know: logits, text, the runner, why a
//! sequence ends.
//!
//! There is one order: the lower priority number first, then the earlier arrival. What it promises:
//!
//! * Decodes come first, one token each, so that no prompt, however long, delays a token by more than the budget
//!   of one step. Prefills fill what is left of the budget in order, cut into chunks.
//! * The head of the queue is admitted or nobody is: of equal priority none is overtaken by one that came later,
//!   however small that one is.
//! * When blocks run out, the running sequence that is last in order gives its blocks up and waits again, in its
//!   old place; its tokens are computed again later, except those that the prefix cache still has. So the first
//!   in order always gets on, and with it all of its priority, one after the other. A lower priority can starve
//!   while higher ones keep coming: that is what the field asks for.

use std::collections::BTreeMap;

use crate::batch::{Batch, BatchSequence, LogitRows};
use crate::block_pool::{BlockId, BlockPool};
use crate::sequence::{Order, Sequence, SequenceId};

/// Whether full blocks are shared between sequences that begin alike.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PrefixCache {
    On,
    Off,
}

/// Most rows of a step that belong to prompts whose every token wants its log-probability.
pub(crate) const SCORED_ROWS_MAX: usize = 64;

/// Bounds of a step.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Bounds {
    pub block_tokens: usize,
    /// Most tokens of a step; at least `sequences_max`, so that decodes cannot starve a prefill.
    pub batch_tokens_max: usize,
    /// Most running sequences.
    pub sequences_max: usize,
    pub prefix_cache: PrefixCache,
}

/// What the prefix cache was asked and what it had, in tokens since the start. A preempted sequence is not
/// counted when it is admitted again.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PrefixCounts {
    pub queried: u64,
    pub found: u64,
}

/// A sequence that a step brought on, and how many rows of logits it has.
pub(crate) struct Advanced<'a> {
    pub sequence: &'a mut Sequence,
    /// The last one belongs to the last token that is computed now.
    pub rows: usize,
}

/// What a step has left to give.
struct Budget {
    tokens: usize,
    /// Rows of prompts whose every token wants its log-probability. Logits of a row are as long as the vocabulary.
    scored: usize,
}

impl Budget {
    /// Tokens of a sequence that the step can take.
    fn chunk(&self, sequence: &Sequence) -> usize {
        let chunk = sequence.pending().min(self.tokens);
        if sequence.wants_scores() { chunk.min(self.scored) } else { chunk }
    }

    fn spend(&mut self, chunk: usize, sequence: &Sequence) {
        self.tokens -= chunk;
        if sequence.wants_scores() {
            self.scored -= chunk;
        }
    }

    fn give_back(&mut self, chunk: usize, sequence: &Sequence) {
        self.tokens += chunk;
        if sequence.wants_scores() {
            self.scored += chunk;
        }
    }
}

/// The queue, the running sequences and the pool they share.
pub(crate) struct Scheduler {
    bounds: Bounds,
    pool: BlockPool,
    prefix_counts: PrefixCounts,
    preemptions: u64,
    waiting: BTreeMap<Order, Sequence>,
    /// In order.
    running: Vec<Sequence>,
}

impl Scheduler {
    pub fn new(bounds: Bounds, blocks: u32) -> Scheduler {
        Scheduler {
            bounds,
            pool: BlockPool::new(blocks),
            prefix_counts: PrefixCounts::default(),
            preemptions: 0,
            waiting: BTreeMap::new(),
            running: Vec::new(),
        }
    }

    pub fn pool(&self) -> &BlockPool {
        &self.pool
    }

    pub fn prefix_counts(&self) -> PrefixCounts {
        self.prefix_counts
    }

    /// Preemptions since the start.
    pub fn preemptions(&self) -> u64 {
        self.preemptions
    }

    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    pub fn running(&self) -> usize {
        self.running.len()
    }

    pub fn contains(&self, id: SequenceId) -> bool {
        self.running.iter().chain(self.waiting.values()).any(|sequence| sequence.id == id)
    }

    pub fn add(&mut self, sequence: Sequence) {
        self.waiting.insert(sequence.order, sequence);
    }

    /// Takes a sequence out, wherever it is, and frees its blocks.
    pub fn remove(&mut self, id: SequenceId) -> Option<Sequence> {
        let order = self.waiting.iter().find(|(_, sequence)| sequence.id == id).map(|(order, _)| *order);
        if let Some(order) = order {
            return self.waiting.remove(&order);
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
        let mut budget = Budget { tokens: self.bounds.batch_tokens_max, scored: SCORED_ROWS_MAX };
        let mut preempted = Preempted::None;
        let decodes: Vec<SequenceId> = self.ids(|sequence| sequence.pending() == 1);
        let prefills: Vec<SequenceId> = self.ids(|sequence| sequence.pending() > 1);
        for id in decodes.into_iter().chain(prefills) {
            preempted = preempted.or(self.plan_running(id, &mut budget));
        }
        match preempted {
            // Admitting now would hand the blocks just freed to the sequence that gave them up.
            Preempted::Some => {}
            Preempted::None => {
                self.name_planned();
                self.admit(now, &mut budget);
            }
        }
    }

    /// Lets others find what this step is about to compute: a device stores the keys of a whole batch before it
    /// reads any, so that those admitted now may share it already. Choices of one prompt come together.
    fn name_planned(&mut self) {
        match self.bounds.prefix_cache {
            PrefixCache::Off => {}
            PrefixCache::On => {
                for sequence in self.running.iter_mut().filter(|sequence| sequence.planned > 0) {
                    name_full_blocks(&mut self.pool, sequence, self.bounds.block_tokens);
                }
            }
        }
    }

    /// Takes that back after a step that failed.
    pub fn forget_planned(&mut self) {
        for sequence in self.running.iter_mut().filter(|sequence| sequence.planned > 0) {
            let computed = sequence.computed / self.bounds.block_tokens;
            for block in sequence.blocks.iter().take(sequence.named).skip(computed) {
                self.pool.unname(*block);
            }
            sequence.named = sequence.named.min(computed);
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
                logits: sequence.logit_rows(),
            }
        };
        Batch { sequences: self.planned().map(part).collect() }
    }

    /// Notes that the planned tokens are in the cache, where others may find them from now on; gives the sequences that have logits, in the order of the
    /// batch.
    pub fn advance(&mut self) -> Vec<Advanced<'_>> {
        let mut advanced = Vec::new();
        for sequence in self.running.iter_mut().filter(|sequence| sequence.planned > 0) {
            let rows = match sequence.logit_rows() {
                LogitRows::None => 0,
                LogitRows::Last => 1,
                LogitRows::All => sequence.planned,
            };
            sequence.computed += sequence.planned;
            sequence.planned = 0;
            match self.bounds.prefix_cache {
                PrefixCache::On => name_full_blocks(&mut self.pool, sequence, self.bounds.block_tokens),
                PrefixCache::Off => {}
            }
            if rows > 0 {
                advanced.push(Advanced { sequence, rows });
            }
        }
        advanced
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
        assert!(
            self.running.is_sorted_by_key(|sequence| sequence.order),
            "running sequences lost their order"
        );
        for (order, sequence) in &self.waiting {
            assert!(sequence.blocks.is_empty() && sequence.computed == 0, "a waiting sequence holds blocks");
            assert_eq!(*order, sequence.order, "a waiting sequence stands in a wrong place");
        }
    }

    fn planned(&self) -> impl Iterator<Item = &Sequence> {
        self.running.iter().filter(|sequence| sequence.planned > 0)
    }

    fn ids(&self, wanted: impl Fn(&Sequence) -> bool) -> Vec<SequenceId> {
        self.running.iter().filter(|sequence| wanted(sequence)).map(|sequence| sequence.id).collect()
    }

    /// Plans one running sequence, preempting from the last in order until it has room; it may itself be the last.
    fn plan_running(&mut self, id: SequenceId, budget: &mut Budget) -> Preempted {
        let mut preempted = Preempted::None;
        loop {
            let Some(index) = self.running.iter().position(|sequence| sequence.id == id) else {
                return preempted;
            };
            let chunk = budget.chunk(&self.running[index]);
            if chunk == 0 {
                return preempted;
            }
            let sequence = &mut self.running[index];
            if grow(&mut self.pool, sequence, chunk, self.bounds.block_tokens) {
                sequence.planned = chunk;
                budget.spend(chunk, sequence);
                return preempted;
            }
            self.preempt_last(budget);
            preempted = Preempted::Some;
        }
    }

    /// Sends the running sequence that is last in order back to the queue. One that was planned already gives its
    /// share of the step back.
    fn preempt_last(&mut self, budget: &mut Budget) {
        let mut sequence = self.running.pop().expect("a sequence that lacks blocks is running");
        free(&mut self.pool, &mut sequence);
        sequence.computed = 0;
        sequence.preemptions += 1;
        self.preemptions += 1;
        let planned = std::mem::take(&mut sequence.planned);
        budget.give_back(planned, &sequence);
        self.waiting.insert(sequence.order, sequence);
    }

    /// Admits from the head of the queue while all of a sequence's known tokens have room.
    fn admit(&mut self, now: u64, budget: &mut Budget) {
        let block_tokens = self.bounds.block_tokens;
        while budget.tokens > 0 && self.running.len() < self.bounds.sequences_max {
            let Some(mut head) = self.waiting.first_entry() else { return };
            if budget.chunk(head.get()) == 0 {
                return;
            }
            let found = match self.bounds.prefix_cache {
                PrefixCache::On => known_prefix(&self.pool, head.get_mut(), block_tokens),
                PrefixCache::Off => Vec::new(),
            };
            let missing = head.get().tokens.len().div_ceil(block_tokens) - found.len();
            // Those found that nobody holds are no room any more once they are shared.
            let kept = found.iter().filter(|block| self.pool.is_kept(**block)).count();
            if missing > self.pool.available() - kept {
                return;
            }
            let mut sequence = head.remove();
            let cached = found.len() * block_tokens;
            found.iter().for_each(|block| self.pool.share(*block));
            (sequence.computed, sequence.named, sequence.blocks) = (cached, found.len(), found);
            if sequence.stamps.scheduled.is_none() {
                sequence.stamps.scheduled = Some(now);
                sequence.tokens_cached = cached;
                self.prefix_counts.queried += sequence.tokens.len() as u64;
                self.prefix_counts.found += cached as u64;
            }
            let chunk = budget.chunk(&sequence);
            let grown = grow(&mut self.pool, &mut sequence, chunk, block_tokens);
            assert!(grown, "room for all tokens is room for a chunk");
            sequence.planned = chunk;
            budget.spend(chunk, &sequence);
            match self.bounds.prefix_cache {
                PrefixCache::On => name_full_blocks(&mut self.pool, &mut sequence, block_tokens),
                PrefixCache::Off => {}
            }
            let place = self.running.partition_point(|running| running.order < sequence.order);
            self.running.insert(place, sequence);
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

/// Blocks that hold the longest known prefix of a sequence. The last token is never among them, since without
/// running it there would be no logits.
fn known_prefix(pool: &BlockPool, sequence: &mut Sequence, block_tokens: usize) -> Vec<BlockId> {
    let most = match sequence.wants_scores() {
        // What is cached has no logits any more.
        true => 0,
        false => (sequence.tokens.len() - 1) / block_tokens,
    };
    let keys = sequence.keys.up_to(most, &sequence.tokens, block_tokens);
    keys.iter().map_while(|key| pool.find(key)).collect()
}

/// Lets others find the blocks that are full, or will be after this step.
fn name_full_blocks(pool: &mut BlockPool, sequence: &mut Sequence, block_tokens: usize) {
    let full = (sequence.computed + sequence.planned) / block_tokens;
    let keys = sequence.keys.up_to(full, &sequence.tokens, block_tokens);
    for (block, key) in sequence.blocks.iter().zip(keys).skip(sequence.named) {
        pool.name(*block, *key);
    }
    sequence.named = full;
}

/// Gives a sequence's blocks back, the last first: a prefix is worth more than what builds on it, so it is to be
/// given away later.
fn free(pool: &mut BlockPool, sequence: &mut Sequence) {
    for block in sequence.blocks.drain(..).rev() {
        pool.release(block);
    }
    sequence.named = 0;
}

/// Gives a sequence the blocks for `chunk` more tokens: all of them, or none and false.
fn grow(pool: &mut BlockPool, sequence: &mut Sequence, chunk: usize, block_tokens: usize) -> bool {
    let wanted = (sequence.computed + chunk).div_ceil(block_tokens);
    let missing = wanted.saturating_sub(sequence.blocks.len());
    if missing > pool.available() {
        return false;
    }
    sequence.blocks.extend(std::iter::from_fn(|| pool.take()).take(missing));
    true
}
