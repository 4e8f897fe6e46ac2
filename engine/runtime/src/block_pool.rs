//! The blocks of the key/value cache: which are free, which are held and how often.
//!
//! Apart so that no other code decides about a block. Must not know: sequences, tokens, what a block holds.
//!
//! Blocks are counted, not owned: two sequences that share a prefix may one day hold the same block. There is no
//! prefix cache yet, so today every count is 0 or 1.

/// Names one block of the cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct BlockId(pub u32);

/// A fixed number of blocks. Free and held together are always `total`.
#[derive(Debug)]
pub(crate) struct BlockPool {
    /// A stack, so that a block just freed, and still in the processor's cache, is the next one taken.
    free: Vec<BlockId>,
    /// Holders of each block.
    references: Vec<u32>,
}

impl BlockPool {
    /// Makes a pool whose blocks are all free.
    pub fn new(total: u32) -> BlockPool {
        BlockPool { free: (0..total).rev().map(BlockId).collect(), references: vec![0; total as usize] }
    }

    pub fn total(&self) -> usize {
        self.references.len()
    }

    pub fn free(&self) -> usize {
        self.free.len()
    }

    pub fn used(&self) -> usize {
        self.total() - self.free()
    }

    /// Takes a block with one holder, or none when all are held.
    pub fn take(&mut self) -> Option<BlockId> {
        let block = self.free.pop()?;
        self.references[block.0 as usize] = 1;
        Some(block)
    }

    /// Gives up one hold of a block; the last one frees it.
    ///
    /// # Panics
    /// When nobody holds it: a block freed twice would be written by two sequences.
    pub fn release(&mut self, block: BlockId) {
        let references = &mut self.references[block.0 as usize];
        assert!(*references > 0, "block {} was released, but nobody holds it", block.0);
        *references -= 1;
        if *references == 0 {
            self.free.push(block);
        }
    }

    /// Checks the pool against all holds that are known.
    ///
    /// # Panics
    /// When a block is lost, free and held at once, or held more or less often than counted.
    pub fn check_integrity(&self, held: impl Iterator<Item = BlockId>) {
        let mut counted = vec![0_u32; self.total()];
        held.for_each(|block| counted[block.0 as usize] += 1);
        assert_eq!(counted, self.references, "the holders of the blocks are not those that are counted");
        let mut free = vec![false; self.total()];
        for block in &self.free {
            assert!(!std::mem::replace(&mut free[block.0 as usize], true), "block {} is free twice", block.0);
            assert_eq!(self.references[block.0 as usize], 0, "block {} is free and held", block.0);
        }
        let idle = self.references.iter().filter(|count| **count == 0).count();
        assert_eq!(self.free.len(), idle, "a block is neither free nor held");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    impl BlockPool {
        /// What a shared prefix will do; there is none yet.
        fn share(&mut self, block: BlockId) {
            self.references[block.0 as usize] += 1;
        }
    }

    proptest! {
        /// Actions: 0 takes a block, 1 holds a held one once more, 2 gives one hold up.
        #[test]
        fn free_and_used_are_the_total(
            total in 0_u32..20,
            actions in proptest::collection::vec((0_u8..3, any::<usize>()), 0..200),
        ) {
            let mut pool = BlockPool::new(total);
            let mut held: Vec<BlockId> = Vec::new();
            for (action, choice) in actions {
                match action {
                    0 => match pool.take() {
                        Some(block) => held.push(block),
                        None => prop_assert_eq!(pool.used(), total as usize),
                    },
                    1 if !held.is_empty() => {
                        let block = held[choice % held.len()];
                        pool.share(block);
                        held.push(block);
                    }
                    2 if !held.is_empty() => pool.release(held.swap_remove(choice % held.len())),
                    _ => {}
                }
                pool.check_integrity(held.iter().copied());
                let distinct: std::collections::HashSet<BlockId> = held.iter().copied().collect();
                prop_assert_eq!(pool.used(), distinct.len());
                prop_assert_eq!(pool.free() + pool.used(), pool.total());
            }
        }
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
