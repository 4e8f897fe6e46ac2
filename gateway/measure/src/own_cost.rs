//! Time that the gateway itself spent on a request, as a whole and per chunk.
//!
//! Apart because the number of chunks has no bound while the account of them must: a few buckets hold it. Must not
//! know: what the time was spent on, how it is exported.

/// Upper bounds of the buckets of chunks, in nanoseconds, inclusive; what is above the last has a bucket too.
pub const BOUNDS_NS: [u64; 13] = [
    500,
    1_000,
    2_500,
    5_000,
    10_000,
    25_000,
    50_000,
    100_000,
    250_000,
    500_000,
    1_000_000,
    10_000_000,
    100_000_000,
];

/// What the gateway spent on one request.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct OwnCost {
    /// All of it, in nanoseconds.
    pub request_ns: u64,
    /// Chunks that were worked on.
    pub chunks: u64,
    /// The part spent on chunks, in nanoseconds.
    pub chunks_ns: u64,
    /// The chunks by their cost, least first; the last bucket has no bound.
    pub buckets: [Bucket; BOUNDS_NS.len() + 1],
}

/// Chunks of similar cost.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Bucket {
    pub chunks: u64,
    /// Their cost together.
    pub ns: u64,
}

impl OwnCost {
    /// Adds a stretch of work on so many chunks. Work on several is shared out evenly, since nothing more is known.
    pub fn add(&mut self, ns: u64, chunks: u32) {
        self.request_ns = self.request_ns.saturating_add(ns);
        if chunks == 0 {
            return;
        }
        let chunks = u64::from(chunks);
        self.chunks = self.chunks.saturating_add(chunks);
        self.chunks_ns = self.chunks_ns.saturating_add(ns);
        // Without a division, so that the mean of a bucket lies within it.
        let within = |bound: &u64| ns <= bound.saturating_mul(chunks);
        let place = BOUNDS_NS.iter().position(within).unwrap_or(BOUNDS_NS.len());
        let bucket = &mut self.buckets[place];
        bucket.chunks = bucket.chunks.saturating_add(chunks);
        bucket.ns = bucket.ns.saturating_add(ns);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_is_summed_and_chunks_fall_into_their_buckets() {
        let mut own = OwnCost::default();
        own.add(40_000, 0); // the head
        own.add(500, 1); // a bound belongs to its bucket
        own.add(501, 1);
        own.add(9_000, 3); // 3000 each
        own.add(200_000_000, 1); // above every bound
        assert_eq!((own.request_ns, own.chunks, own.chunks_ns), (200_050_001, 6, 200_010_001));
        let filled: Vec<_> = own
            .buckets
            .iter()
            .enumerate()
            .filter(|(_, bucket)| bucket.chunks > 0)
            .map(|(place, bucket)| (place, bucket.chunks, bucket.ns))
            .collect();
        assert_eq!(filled, [(0, 1, 500), (1, 1, 501), (3, 3, 9_000), (13, 1, 200_000_000)]);
    }
}
