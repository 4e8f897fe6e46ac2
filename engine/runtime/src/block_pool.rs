//! The blocks of the key/value cache: which are free, which are held and how often, which hold a known prefix.
//!
//! Apart so that no other code decides about a block. Must not know: sequences, tokens, what a key stands for.
//!
//! A block is in one of three states: *held* by one or more sequences; *kept*, when nobody holds it but its
//! content is known under a key and may be shared again; *free*. Held, kept and free together are always the
//! total. When no block is free, the one kept longest is given away.

use std::collections::{BTreeMap, HashMap};

use crate::block_key::BlockKey;

/// Names one block of the cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct BlockId(pub u32);

/// A fixed number of blocks.
#[derive(Debug)]
pub(crate) struct BlockPool {
    /// A stack, so that a block just freed, and still in the processor's cache, is the next one taken.
    free: Vec<BlockId>,
    blocks: Vec<Block>,
    /// Blocks whose content is known. A key names one block at most.
    by_key: HashMap<BlockKey, BlockId>,
    /// Blocks that are kept, by the turn at which their last holder let go: the first is given away first.
    kept: BTreeMap<u64, BlockId>,
    turn: u64,
    evictions: u64,
}

#[derive(Debug, Clone, Default)]
struct Block {
    /// Holders.
    references: u32,
    /// What it holds, once it is full.
    key: Option<BlockKey>,
    /// Its place among those kept.
    kept_since: Option<u64>,
}

impl BlockPool {
    /// Makes a pool whose blocks are all free.
    pub fn new(total: u32) -> BlockPool {
        BlockPool {
            free: (0..total).rev().map(BlockId).collect(),
            blocks: vec![Block::default(); total as usize],
            by_key: HashMap::new(),
            kept: BTreeMap::new(),
            turn: 0,
            evictions: 0,
        }
    }

    pub fn total(&self) -> usize {
        self.blocks.len()
    }

    /// Blocks that can be taken: free or kept.
    pub fn available(&self) -> usize {
        self.free.len() + self.kept.len()
    }

    /// Blocks that somebody holds.
    pub fn used(&self) -> usize {
        self.total() - self.available()
    }

    /// Blocks that nobody holds and whose content may be shared again.
    pub fn kept(&self) -> usize {
        self.kept.len()
    }

    /// How often a kept block was given away, its content lost.
    pub fn evictions(&self) -> u64 {
        self.evictions
    }

    /// Takes a block with one holder, or none when all are held.
    pub fn take(&mut self) -> Option<BlockId> {
        let block = match self.free.pop() {
            Some(block) => block,
            None => {
                let (_, block) = self.kept.pop_first()?;
                self.forget(block);
                self.evictions += 1;
                block
            }
        };
        self.block(block).references = 1;
        Some(block)
    }

    /// The block that holds what the key stands for.
    pub fn find(&self, key: &BlockKey) -> Option<BlockId> {
        self.by_key.get(key).copied()
    }

    /// Whether nobody holds a block.
    pub fn is_kept(&self, block: BlockId) -> bool {
        self.blocks[block.0 as usize].kept_since.is_some()
    }

    /// Adds a holder to a block that was found.
    pub fn share(&mut self, block: BlockId) {
        let found = self.block(block);
        found.references += 1;
        if let Some(turn) = found.kept_since.take() {
            self.kept.remove(&turn);
        }
    }

    /// Notes what a held block holds. Where another block holds the same, that one stays known and this is not.
    pub fn name(&mut self, block: BlockId, key: BlockKey) {
        assert!(self.block(block).references > 0, "block {} is named, but nobody holds it", block.0);
        if self.block(block).key.is_none() && !self.by_key.contains_key(&key) {
            self.block(block).key = Some(key);
            self.by_key.insert(key, block);
        }
    }

    /// Gives up one hold of a block; the last one frees it, or keeps it when its content is known.
    ///
    /// # Panics
    /// When nobody holds it: a block freed twice would be written by two sequences.
    pub fn release(&mut self, block: BlockId) {
        let turn = self.turn + 1;
        let found = self.block(block);
        assert!(found.references > 0, "block {} was released, but nobody holds it", block.0);
        found.references -= 1;
        if found.references > 0 {
            return;
        }
        if found.key.is_some() {
            found.kept_since = Some(turn);
            self.kept.insert(turn, block);
            self.turn = turn;
        } else {
            self.free.push(block);
        }
    }

    /// Forgets what a held block holds; it is not found any more.
    pub fn unname(&mut self, block: BlockId) {
        assert!(self.block(block).references > 0, "block {} is unnamed, but nobody holds it", block.0);
        self.forget(block);
    }

    fn block(&mut self, block: BlockId) -> &mut Block {
        &mut self.blocks[block.0 as usize]
    }

    fn forget(&mut self, block: BlockId) {
        let found = self.block(block);
        found.kept_since = None;
        if let Some(key) = found.key.take() {
            self.by_key.remove(&key);
        }
    }

    /// Checks the pool against all holds that are known.
    ///
    /// # Panics
    /// When a block is lost, in two states at once, held more or less often than counted, or known under a wrong
    /// key.
    pub fn check_integrity(&self, held: impl Iterator<Item = BlockId>) {
        let mut counted = vec![0_u32; self.total()];
        held.for_each(|block| counted[block.0 as usize] += 1);
        let references: Vec<u32> = self.blocks.iter().map(|block| block.references).collect();
        assert_eq!(counted, references, "the holders of the blocks are not those that are counted");
        let mut idle = vec![false; self.total()];
        for block in self.free.iter().chain(self.kept.values()) {
            assert!(!std::mem::replace(&mut idle[block.0 as usize], true), "block {} is idle twice", block.0);
            assert_eq!(references[block.0 as usize], 0, "block {} is idle and held", block.0);
        }
        let unheld = references.iter().filter(|count| **count == 0).count();
        assert_eq!(self.available(), unheld, "a block is neither free nor kept nor held");
        for block in &self.free {
            assert!(self.blocks[block.0 as usize].key.is_none(), "block {} is free and known", block.0);
        }
        for (turn, block) in &self.kept {
            assert_eq!(self.blocks[block.0 as usize].kept_since, Some(*turn), "block {}", block.0);
        }
        for (key, block) in &self.by_key {
            assert_eq!(self.blocks[block.0 as usize].key.as_ref(), Some(key), "block {}", block.0);
        }
        let known = self.blocks.iter().filter(|block| block.key.is_some()).count();
        assert_eq!(known, self.by_key.len(), "a block is known that no key names");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn key(name: u8) -> BlockKey {
        BlockKey::first(None).next(&[u32::from(name)])
    }

    proptest! {
        /// Actions: 0 takes a block, 1 holds a held one once more, 2 gives one hold up, 3 names a held one, 4 shares
        /// one that is found by its key, 5 forgets one's name. A model beside it knows which block was kept longest.
        #[test]
        fn held_kept_and_free_are_the_total(
            total in 0_u32..20,
            actions in proptest::collection::vec((0_u8..6, any::<u8>()), 0..300),
        ) {
            let mut pool = BlockPool::new(total);
            let mut held: Vec<BlockId> = Vec::new();
            for (action, choice) in actions {
                let chosen = usize::from(choice) % held.len().max(1);
                match action {
                    0 => match pool.take() {
                        Some(block) => {
                            prop_assert!(!held.contains(&block), "a held block was given away");
                            held.push(block);
                        }
                        None => prop_assert_eq!(pool.used(), total as usize),
                    },
                    1 if !held.is_empty() => {
                        pool.share(held[chosen]);
                        held.push(held[chosen]);
                    }
                    2 if !held.is_empty() => pool.release(held.swap_remove(chosen)),
                    3 if !held.is_empty() => pool.name(held[chosen], key(choice % 16)),
                    5 if !held.is_empty() => pool.unname(held[chosen]),
                    4 => if let Some(block) = pool.find(&key(choice % 16)) {
                        pool.share(block);
                        held.push(block);
                    },
                    _ => {}
                }
                pool.check_integrity(held.iter().copied());
                let distinct: std::collections::HashSet<BlockId> = held.iter().copied().collect();
                prop_assert_eq!(pool.used(), distinct.len());
                prop_assert_eq!(pool.available() + pool.used(), pool.total());
            }
        }
    }

    #[test]
    fn of_those_kept_the_one_used_longest_ago_is_given_away() {
        let mut pool = BlockPool::new(3);
        let blocks: Vec<BlockId> = (0..3).map(|_| pool.take().unwrap()).collect();
        for (block, name) in blocks.iter().zip(0..) {
            pool.name(*block, key(name));
        }
        for index in [1, 0, 2] {
            pool.release(blocks[index]);
        }
        assert_eq!((pool.used(), pool.kept(), pool.available()), (0, 3, 3));
        // Used again, block 1 becomes the youngest.
        pool.share(blocks[1]);
        pool.release(blocks[1]);
        let taken: Vec<BlockId> = (0..3).map(|_| pool.take().unwrap()).collect();
        assert_eq!(taken, [blocks[0], blocks[2], blocks[1]]);
        assert_eq!((pool.evictions(), pool.find(&key(0)), pool.take()), (3, None, None));
    }

    #[test]
    fn of_two_with_one_content_the_first_stays_known() {
        let mut pool = BlockPool::new(2);
        let (first, second) = (pool.take().unwrap(), pool.take().unwrap());
        pool.name(first, key(7));
        pool.name(second, key(7));
        assert_eq!(pool.find(&key(7)), Some(first));
        pool.release(second);
        assert_eq!((pool.kept(), pool.available()), (0, 1), "the second is free, since nobody can find it");
    }

    #[test]
    #[should_panic(expected = "nobody holds it")]
    fn a_double_release_is_a_bug() {
        let mut pool = BlockPool::new(1);
        let block = pool.take().unwrap();
        pool.release(block);
        pool.release(block);
    }
}
