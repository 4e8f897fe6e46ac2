//! Attention of some query heads that share keys and values, over the blocks of one sequence.
//!
//! Apart because it is two products with a softmax between: all scores of a tile of queries, then the weighted sum
//! of values. Scores are kept (a tile of them fits the second-level cache up to some ten thousand positions), which
//! needs no rescaling of sums as an online softmax would. Must not know: threads, batches.

#![expect(
    clippy::needless_range_loop,
    reason = "loops over lanes and panels are written alike, to be unrolled"
)]

use super::cache::Layout;
use super::panel::LANES;
use super::path::{Set, for_each_path};
use super::tile::{Lanes, Rows, add_f32};
use super::vector::exp;

/// Queries of consecutive rows, all of the heads that read key/value head `head`.
pub struct Queries<'a> {
    /// (queries, head_dim), a row's `group` queries together, already scaled.
    pub values: &'a [f32],
    /// Query heads for each key/value head.
    pub group: usize,
    /// Positions that the first row sees, its own included; each later row sees one more.
    pub seen: usize,
    /// Positions that a row sees at most, its own included.
    pub window: usize,
    pub soft_cap: Option<f32>,
    pub head: usize,
    pub blocks: &'a [u32],
    pub layout: Layout,
    /// Of the layer.
    pub key_lines: &'a [Lanes],
    pub value_lines: &'a [Lanes],
}

impl Queries<'_> {
    fn seen_by(&self, query: usize) -> usize {
        self.seen + query / self.group
    }
}

#[inline(always)]
fn score_panels<S: Set, const MR: usize, const P: usize>(
    x: Rows<'_>,
    panels: [&[Lanes]; P],
    scores: &mut [f32],
    width: usize,
) {
    let mut sums = [[[0.0; LANES]; P]; MR];
    add_f32::<S, Lanes, MR, P>(&mut sums, x, panels);
    for row in 0..MR {
        for panel in 0..P {
            scores[row * width + panel * LANES..][..LANES].copy_from_slice(&sums[row][panel]);
        }
    }
}

/// Scores of MR queries with every group of 16 tokens, (MR, width).
#[inline(always)]
fn score<S: Set, const MR: usize>(
    job: &Queries<'_>,
    blocks: &[u32],
    x: Rows<'_>,
    scores: &mut [f32],
    width: usize,
) {
    let (groups, dim) = (job.layout.groups(), job.layout.head_dim);
    let total = width / LANES;
    let mut at = 0;
    while at < total {
        let pair = S::PANELS == 2 && at + 1 < total;
        let mut panels: [&[Lanes]; 2] = [&[]; 2];
        for panel in 0..if pair { 2 } else { 1 } {
            let group = at + panel;
            let first = job.layout.keys(blocks[group / groups], job.head, group % groups);
            panels[panel] = &job.key_lines[first..first + dim];
        }
        if pair {
            score_panels::<S, MR, 2>(x, panels, &mut scores[at * LANES..], width);
        } else {
            score_panels::<S, MR, 1>(x, [panels[0]], &mut scores[at * LANES..], width);
        }
        at += if pair { 2 } else { 1 };
    }
}

/// cap * tanh(score / cap) of every score, with tanh x = 1 - 2 / (e^2x + 1).
#[inline(always)]
fn flatten<S: Set>(cap: f32, scores: &mut [f32]) {
    for chunk in scores.as_chunks_mut::<LANES>().0 {
        let e = exp::<S>(&chunk.map(|score| 2.0 * score / cap));
        for lane in 0..LANES {
            chunk[lane] = cap * (1.0 - 2.0 / (e[lane] + 1.0));
        }
    }
}

/// Turns scores into exp(score - highest), 0 where the query does not see: outside of the positions `from..seen`,
/// counted from the first block of the scores. Gives their sum.
#[inline(always)]
fn soften<S: Set>(job: &Queries<'_>, from: usize, seen: usize, scores: &mut [f32]) -> f32 {
    let (tokens, padded) = (job.layout.block_tokens, job.layout.groups() * LANES);
    if let Some(cap) = job.soft_cap {
        flatten::<S>(cap, scores);
    }
    let mut highest = [f32::NEG_INFINITY; LANES];
    for (block, scores) in scores.chunks_exact_mut(padded).enumerate() {
        let valid = seen.saturating_sub(block * tokens).min(tokens);
        let hidden = from.saturating_sub(block * tokens).min(valid);
        scores[..hidden].fill(f32::NEG_INFINITY);
        scores[valid..].fill(f32::NEG_INFINITY);
        for chunk in scores.chunks_exact(LANES) {
            for lane in 0..LANES {
                highest[lane] = highest[lane].max(chunk[lane]);
            }
        }
    }
    let highest = highest.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let mut sums = [0.0; LANES];
    for (block, scores) in scores.chunks_exact_mut(padded).enumerate() {
        let valid = seen.saturating_sub(block * tokens).min(tokens);
        for chunk in scores.as_chunks_mut::<LANES>().0 {
            for lane in 0..LANES {
                chunk[lane] -= highest;
            }
            *chunk = exp::<S>(chunk);
        }
        let hidden = from.saturating_sub(block * tokens).min(valid);
        scores[..hidden].fill(0.0);
        scores[valid..].fill(0.0);
        for chunk in scores.as_chunks::<LANES>().0 {
            for lane in 0..LANES {
                sums[lane] += chunk[lane];
            }
        }
    }
    sums.iter().sum()
}

/// Sums of values weighted by MR rows of scores, for P chunks of dimensions from `chunk`. Reads no value past
/// `seen`: what lies there may be another sequence's, and not even finite.
#[inline(always)]
fn weigh<S: Set, const MR: usize, const P: usize>(
    job: &Queries<'_>,
    blocks: &[u32],
    seen: usize,
    scores: &[f32],
    width: usize,
    chunk: usize,
) -> [[Lanes; P]; MR] {
    let (tokens, padded) = (job.layout.block_tokens, job.layout.groups() * LANES);
    let mut sums = [[[0.0; LANES]; P]; MR];
    for block in 0..width / padded {
        let columns = tokens.min(seen - block * tokens);
        let mut panels: [&[Lanes]; P] = [&[]; P];
        for panel in 0..P {
            let first = job.layout.values(blocks[block], job.head, chunk + panel);
            panels[panel] = &job.value_lines[first..first + columns];
        }
        let x = Rows { values: &scores[block * padded..], stride: width, columns, rows: MR };
        add_f32::<S, Lanes, MR, P>(&mut sums, x, panels);
    }
    sums
}

/// MR queries from `first` on.
#[inline(always)]
fn attend_tile<S: Set, const MR: usize>(
    job: &Queries<'_>,
    first: usize,
    scores: &mut Vec<f32>,
    out: &mut [f32],
) {
    let dim = job.layout.head_dim;
    // Blocks that no query of the tile sees any more are left out; all positions are counted from the next one on.
    let skipped = job.seen_by(first).saturating_sub(job.window) / job.layout.block_tokens;
    let blocks = &job.blocks[skipped..];
    let before = skipped * job.layout.block_tokens;
    let seen = job.seen_by(first + MR - 1) - before;
    let width = seen.div_ceil(job.layout.block_tokens) * job.layout.groups() * LANES;
    scores.resize(MR * width, 0.0);
    let x = Rows { values: &job.values[first * dim..], stride: dim, columns: dim, rows: MR };
    score::<S, MR>(job, blocks, x, scores, width);
    let mut inverse = [0.0; MR];
    for row in 0..MR {
        let seen = job.seen_by(first + row);
        let from = seen.saturating_sub(job.window).saturating_sub(before);
        let total = soften::<S>(job, from, seen - before, &mut scores[row * width..(row + 1) * width]);
        inverse[row] = 1.0 / total;
    }
    let mut chunk = 0;
    while chunk < job.layout.chunks() {
        let pair = S::PANELS == 2 && chunk + 1 < job.layout.chunks();
        let mut sums = [[[0.0; LANES]; 2]; MR];
        if pair {
            sums = weigh::<S, MR, 2>(job, blocks, seen, scores, width, chunk);
        } else {
            let one = weigh::<S, MR, 1>(job, blocks, seen, scores, width, chunk);
            for row in 0..MR {
                sums[row][0] = one[row][0];
            }
        }
        let count = if pair { 2 } else { 1 };
        for row in 0..MR {
            let out = &mut out[(first + row) * dim + chunk * LANES..(first + row + 1) * dim];
            for (out, sum) in out.iter_mut().zip(sums[row][..count].as_flattened()) {
                *out = sum * inverse[row];
            }
        }
        chunk += count;
    }
}

#[inline(always)]
fn attend_queries<S: Set>(job: &Queries<'_>, scores: &mut Vec<f32>, out: &mut [f32]) {
    let count = job.values.len() / job.layout.head_dim;
    let mut first = 0;
    while first < count {
        macro_rules! sizes {
            ($rows:expr, $($mr:literal)*) => {
                match $rows {
                    $($mr => attend_tile::<S, $mr>(job, first, scores, out),)*
                    rows => unreachable!("a tile of {rows} queries"),
                }
            };
        }
        let rows = S::ROWS.min(count - first);
        sizes!(rows, 1 2 3 4 5 6 7 8);
        first += rows;
    }
}

for_each_path! {
    /// out (queries, head_dim) = softmax(queries · keysᵀ) · values. `scores` is scratch.
    attend(job: &Queries<'_>, scores: &mut Vec<f32>, out: &mut [f32]) = attend_queries::<S>(job, scores, out)
}
