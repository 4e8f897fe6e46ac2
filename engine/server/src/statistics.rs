//! The engine's line of statistics: what it did in the last ten seconds, when it did anything.
//!
//! Apart so that the engine's thread only counts. Must not know: requests, the control channel.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::clock::monotonic_ns;
use crate::engine_thread::EngineHandle;

/// Time between two lines.
const PERIOD: Duration = Duration::from_secs(10);

/// Sums since the start, written by the engine's thread.
#[derive(Debug, Default)]
pub struct Counters {
    tokens_prompt: AtomicU64,
    tokens_output: AtomicU64,
    sequences_ended: AtomicU64,
    preemptions: AtomicU64,
}

/// The counters at one instant.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    pub tokens_prompt: u64,
    pub tokens_output: u64,
    pub sequences_ended: u64,
    pub preemptions: u64,
}

impl Counters {
    /// Counts an output token.
    pub fn token(&self) {
        self.tokens_output.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts the end of a sequence, with its prompt.
    pub fn ended(&self, tokens_prompt: u32, preemptions: u32) {
        self.tokens_prompt.fetch_add(u64::from(tokens_prompt), Ordering::Relaxed);
        self.preemptions.fetch_add(u64::from(preemptions), Ordering::Relaxed);
        self.sequences_ended.fetch_add(1, Ordering::Relaxed);
    }

    pub fn counts(&self) -> Counts {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Counts {
            tokens_prompt: read(&self.tokens_prompt),
            tokens_output: read(&self.tokens_output),
            sequences_ended: read(&self.sequences_ended),
            preemptions: read(&self.preemptions),
        }
    }
}

/// What happened in between, and output tokens a second.
fn between(before: Counts, after: Counts, nanoseconds: u64) -> (Counts, f64) {
    let during = Counts {
        tokens_prompt: after.tokens_prompt - before.tokens_prompt,
        tokens_output: after.tokens_output - before.tokens_output,
        sequences_ended: after.sequences_ended - before.sequences_ended,
        preemptions: after.preemptions - before.preemptions,
    };
    let seconds = nanoseconds as f64 / 1e9;
    (during, if seconds > 0.0 { during.tokens_output as f64 / seconds } else { 0.0 })
}

/// Writes a line a period for as long as it is polled; none for a period without work.
pub async fn log_lines(engine: EngineHandle) {
    let mut ticks = tokio::time::interval(PERIOD);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    // The first tick comes at once.
    ticks.tick().await;
    let (mut before, mut before_ns) = (engine.counts(), monotonic_ns());
    loop {
        ticks.tick().await;
        let (counts, now) = (engine.counts(), monotonic_ns());
        let (during, rate) = between(before, counts, now - before_ns);
        (before, before_ns) = (counts, now);
        let state = engine.state();
        if during == Counts::default() && state.running + state.waiting == 0 {
            continue;
        }
        tracing::info!(
            running = state.running,
            waiting = state.waiting,
            kv_blocks_used = state.blocks_used,
            kv_blocks_total = state.blocks_total,
            sequences_ended = during.sequences_ended,
            tokens_prompt = during.tokens_prompt,
            tokens_output = during.tokens_output,
            preemptions = during.preemptions,
            "{rate:.1} output tokens a second"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_period_is_the_difference_of_its_ends() {
        let counters = Counters::default();
        counters.token();
        let before = counters.counts();
        (0..5).for_each(|_| counters.token());
        counters.ended(7, 2);
        let during = Counts { tokens_prompt: 7, tokens_output: 5, sequences_ended: 1, preemptions: 2 };
        // 5 tokens in 2 s.
        assert_eq!(between(before, counters.counts(), 2_000_000_000), (during, 2.5));
        assert_eq!(between(before, before, 0), (Counts::default(), 0.0));
    }
}
