//! What the engine holds at one instant.
//!
//! Apart because the server passes it on as it is. Must not know: how it comes about.

use crate::scheduler::PrefixCounts;

/// A look at the engine's load.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct EngineState {
    /// Sequences that hold cache blocks.
    pub running: usize,
    /// Sequences that hold none: not admitted yet, or preempted.
    pub waiting: usize,
    pub blocks_total: usize,
    /// Blocks that sequences hold.
    pub blocks_used: usize,
    /// Blocks that nobody holds and whose content the prefix cache can still hand out.
    pub blocks_kept: usize,
    /// Kept blocks that were given away, since the start.
    pub blocks_evicted: u64,
    pub prefix_counts: PrefixCounts,
    /// Times that a sequence gave its blocks up, since the start.
    pub preemptions: u64,
    /// Tokens that the latest step computed.
    pub step_tokens: usize,
    /// Tokens that one block holds.
    pub block_tokens: usize,
    /// Most tokens of a sequence, prompt and output: what model, options and cache allow.
    pub context_max: usize,
    /// New requests are refused; those taken in are finished.
    pub draining: bool,
}
