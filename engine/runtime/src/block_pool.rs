//! The blocks of the key/value cache: which are free.
//!
//! Apart so that no other code decides about a block. Must not know: sequences, tokens, what a block holds.

/// A stack of free block ids. Free and handed out together are always `total`.
#[derive(Debug)]
pub(crate) struct BlockPool {
    free: Vec<u32>,
    /// One entry a block, against handing one out or taking one back twice.
    used: Vec<bool>,
}

impl BlockPool {
    pub fn new(total: usize) -> BlockPool {
        BlockPool { free: (0..total as u32).rev().collect(), used: vec![false; total] }
    }

    pub fn total(&self) -> usize {
        self.used.len()
    }

    pub fn free(&self) -> usize {
        self.free.len()
    }

    pub fn used(&self) -> usize {
        self.total() - self.free()
    }

    /// A block, or none when all are out.
    pub fn take(&mut self) -> Option<u32> {
        let block = self.free.pop()?;
        assert!(!self.used[block as usize], "block {block} was free and used at once");
        self.used[block as usize] = true;
        Some(block)
    }

    /// Takes blocks back; the list is left empty.
    pub fn give_back(&mut self, blocks: &mut Vec<u32>) {
        for block in blocks.drain(..) {
            assert!(self.used[block as usize], "block {block} was given back twice");
            self.used[block as usize] = false;
            self.free.push(block);
        }
    }

    /// Checks that the blocks held, with the free ones, are each block once.
    ///
    /// # Panics
    /// When they are not.
    pub fn check_integrity<'a>(&self, held: impl Iterator<Item = &'a u32>) {
        let mut seen = vec![false; self.total()];
        for block in held.copied().chain(self.free.iter().copied()) {
            let seen = &mut seen[block as usize];
            assert!(!*seen, "block {block} is in two places");
            *seen = true;
        }
        assert!(seen.iter().all(|seen| *seen), "a block is neither free nor held");
        assert_eq!(
            self.used.iter().filter(|used| **used).count(),
            self.used(),
            "free and used do not add up"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Each action: take that many blocks as one holder, or (0) let the oldest holder give back.
        #[test]
        fn free_and_used_are_the_total(total in 0usize..20, actions in proptest::collection::vec(0usize..6, 0..80)) {
            let mut pool = BlockPool::new(total);
            let mut holders: std::collections::VecDeque<Vec<u32>> = Default::default();
            for action in actions {
                if action == 0 {
                    if let Some(mut blocks) = holders.pop_front() {
                        pool.give_back(&mut blocks);
                        prop_assert!(blocks.is_empty());
                    }
                } else {
                    let free = pool.free();
                    let blocks: Vec<u32> = std::iter::from_fn(|| pool.take()).take(action).collect();
                    prop_assert_eq!(blocks.len(), action.min(free));
                    holders.push_back(blocks);
                }
                let held: usize = holders.iter().map(Vec::len).sum();
                prop_assert_eq!(pool.used(), held);
                prop_assert_eq!(pool.free() + held, total);
                pool.check_integrity(holders.iter().flatten());
            }
        }
    }

    #[test]
    #[should_panic(expected = "given back twice")]
    fn giving_back_twice_is_a_bug() {
        let mut pool = BlockPool::new(2);
        let block = pool.take().expect("two are free");
        pool.give_back(&mut vec![block, block]);
    }
}
