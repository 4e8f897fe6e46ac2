//! Time inside writes to the caller, as a function of the instant up to which it is asked for.
//!
//! Apart because how much of it lies behind the engine's last token is known only at the end, while the number of
//! writes has no bound: stretches are merged pairwise when there are too many. Must not know: why a write waited.

use crate::event::At;

/// Stretches that are kept apart. Merging halves them, so that memory is bounded and the last ones stay exact.
const STRETCHES_MAX: usize = 256;

#[derive(Debug, Clone, Copy)]
struct Stretch {
    from: u64,
    to: u64,
    blocked: u64,
}

impl Stretch {
    /// The part before an instant; within a merged stretch, in proportion.
    fn before(&self, at: u64) -> u64 {
        if at >= self.to {
            return self.blocked;
        }
        let length = u128::from(self.to.saturating_sub(self.from)).max(1);
        let part = u128::from(at.saturating_sub(self.from));
        u64::try_from(u128::from(self.blocked) * part / length).unwrap_or(self.blocked)
    }
}

/// The writes of one request, in order.
#[derive(Debug, Clone, Default)]
pub struct Blocked {
    stretches: Vec<Stretch>,
}

impl Blocked {
    /// Notes a write. One that begins before the last one ended counts from there.
    pub fn push(&mut self, since: At, until: At) {
        let from = since.0.max(self.stretches.last().map_or(0, |last| last.to));
        if until.0 <= from {
            return;
        }
        if self.stretches.is_empty() {
            // All room at once, so that no later write costs an allocation.
            self.stretches.reserve_exact(STRETCHES_MAX);
        }
        if self.stretches.len() == STRETCHES_MAX {
            self.merge();
        }
        self.stretches.push(Stretch { from, to: until.0, blocked: until.0 - from });
    }

    fn merge(&mut self) {
        // The younger half stays as it is.
        let old = self.stretches.len() / 2;
        for pair in 0..old / 2 {
            let (first, second) = (self.stretches[2 * pair], self.stretches[2 * pair + 1]);
            let blocked = first.blocked + second.blocked;
            self.stretches[pair] = Stretch { from: first.from, to: second.to, blocked };
        }
        self.stretches.drain(old / 2..old);
    }

    /// Nanoseconds inside writes up to an instant.
    pub fn up_to(&self, at: At) -> u64 {
        self.stretches
            .iter()
            .take_while(|stretch| stretch.from < at.0)
            .map(|stretch| stretch.before(at.0))
            .sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_writes_are_exact() {
        let mut blocked = Blocked::default();
        blocked.push(At(10), At(20));
        blocked.push(At(30), At(40));
        blocked.push(At(35), At(50)); // begins within the one before
        for (at, expected) in [(0, 0), (10, 0), (15, 5), (20, 10), (25, 10), (35, 15), (50, 30), (99, 30)] {
            assert_eq!(blocked.up_to(At(at)), expected, "up to {at}");
        }
    }

    #[test]
    fn many_writes_keep_their_sum_and_their_bound() {
        let mut blocked = Blocked::default();
        for write in 0..100_000 {
            blocked.push(At(write * 10), At(write * 10 + 3));
        }
        assert!(blocked.stretches.len() <= STRETCHES_MAX);
        assert_eq!(blocked.up_to(At(u64::MAX)), 300_000);
        // The youngest quarter of the bound is exact: half stays each time that half is merged.
        let from = At((100_000 - 64) * 10);
        assert_eq!(blocked.up_to(At(u64::MAX)) - blocked.up_to(from), 64 * 3);
    }
}
