//! The next token from a row of logits.
//!
//! Apart because it is arithmetic on one row: no sequence, no device. Must not know: batches, text, time.
//!
//! Random numbers are a function of (seed, index of the output token), so a sequence draws the same numbers
//! whether it was batched, chunked, preempted or run alone.

use crate::adjust::{History, adjusted};

/// How a sequence is sampled and when it ends.
#[derive(Debug, Clone, PartialEq)]
pub struct Sampling {
    /// 0 means the likeliest token; else logits are divided by it. At least 0.
    pub temperature: f32,
    /// Keep only this many likeliest tokens; at least 1, absent keeps all.
    pub top_k: Option<u32>,
    /// Keep the likeliest tokens whose probabilities add up to this; above 0, 1 keeps all.
    pub top_p: f32,
    /// Keep tokens at least this likely relative to the likeliest; 0 keeps all.
    pub min_p: f32,
    /// Keep the tokens whose surprise is nearest to the expected one until their probabilities add up to this;
    /// above 0, 1 keeps all.
    pub typical_p: f32,
    /// Divides positive and multiplies other logits of tokens in prompt or output; above 0, 1 changes nothing.
    pub repetition_penalty: f32,
    /// Taken from the logits of tokens in the output; -2 to 2.
    pub presence_penalty: f32,
    /// Taken from the logits of tokens in the output once for each time; -2 to 2.
    pub frequency_penalty: f32,
    /// Tokens and what is added to their logits, -100 to 100.
    pub logit_bias: Vec<(u32, f32)>,
    /// Fixes the draws; absent, the engine derives one.
    pub seed: Option<u64>,
    /// Strings that end the sequence; what is behind them is cut from its text.
    pub stop: Vec<String>,
    /// What becomes of the stop string itself.
    pub stop_text: StopText,
    /// Tokens that end the sequence.
    pub stop_token_ids: Vec<u32>,
    /// Most output tokens, the stop token included; at least 1.
    pub max_tokens: u32,
    /// Output tokens before which no end or stop token is drawn and stop strings are not looked for.
    pub min_tokens: u32,
    /// Goes on past the model's own end tokens.
    pub ignore_eos: bool,
    /// Report log-probabilities, with this many alternatives.
    pub logprobs: Option<u32>,
    /// Report the log-probabilities of the prompt's tokens from the second on, with this many alternatives. Such a
    /// prompt takes nothing from the prefix cache, since what is cached has no logits.
    pub prompt_logprobs: Option<u32>,
}

/// What becomes of a stop string that was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StopText {
    Cut,
    Kept,
}

impl Default for Sampling {
    fn default() -> Sampling {
        Sampling {
            temperature: 1.0,
            top_k: None,
            top_p: 1.0,
            min_p: 0.0,
            typical_p: 1.0,
            repetition_penalty: 1.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            logit_bias: Vec::new(),
            seed: None,
            stop: Vec::new(),
            stop_text: StopText::Cut,
            stop_token_ids: Vec::new(),
            max_tokens: 16,
            min_tokens: 0,
            ignore_eos: false,
            logprobs: None,
            prompt_logprobs: None,
        }
    }
}

/// Natural log-probabilities of one output token, of the model's distribution before temperature and cuts.
#[derive(Debug, Clone, PartialEq)]
pub struct TokenLogprobs {
    /// Of the token drawn.
    pub logprob: f32,
    /// The likeliest tokens, best first.
    pub top: Vec<(u32, f32)>,
}

/// A token and, when asked for, its log-probabilities.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Drawn {
    pub token: u32,
    pub logprobs: Option<TokenLogprobs>,
}

/// Draws the token of output index `index`; tokens in `banned` are never drawn. None when no other token has a
/// logit that is a number above minus infinity.
///
/// Order: bias and penalties, temperature, min_p, typical_p, top_k, top_p (each of the last three counts what the
/// others left). Temperature 0 takes the likeliest after bias and penalties, whatever the cuts.
pub(crate) fn sample(
    logits: &[f32],
    sampling: &Sampling,
    history: History<'_>,
    seed: u64,
    index: u64,
    banned: &[u32],
) -> Option<Drawn> {
    let row = adjusted(logits, sampling, history);
    let token = if sampling.temperature > 0.0 {
        draw(&row, sampling, uniform(seed, index), banned)
    } else {
        likeliest(&row, banned)
    }?;
    let logprobs = sampling.logprobs.map(|count| logprobs(logits, token, count as usize));
    Some(Drawn { token, logprobs })
}

/// Natural logarithm of softmax(logits).
pub fn log_softmax(logits: &[f32]) -> Vec<f32> {
    let highest = highest(logits);
    let sum: f64 = logits.iter().map(|logit| f64::from((logit - highest).exp())).sum();
    let shift = f64::from(highest) + sum.ln();
    logits.iter().map(|logit| (f64::from(*logit) - shift) as f32).collect()
}

/// The highest value that is a number, or minus infinity.
fn highest(logits: &[f32]) -> f32 {
    // Lanes of their own let the compiler use vectors, which matters for a vocabulary of 50 000 a token.
    const LANES: usize = 16;
    let mut lanes = [f32::NEG_INFINITY; LANES];
    let chunks = logits.chunks_exact(LANES);
    let rest = chunks.remainder().iter();
    for chunk in chunks {
        for (lane, logit) in lanes.iter_mut().zip(chunk) {
            // NaN compares false and is passed over.
            *lane = if *logit > *lane { *logit } else { *lane };
        }
    }
    rest.chain(&lanes)
        .copied()
        .fold(f32::NEG_INFINITY, |highest, logit| if logit > highest { logit } else { highest })
}

/// The likeliest token; of equals the first, so that it is always the same.
fn likeliest(logits: &[f32], banned: &[u32]) -> Option<u32> {
    if banned.is_empty() {
        let highest = highest(logits);
        let found = logits.iter().position(|logit| *logit == highest)?;
        return (highest > f32::NEG_INFINITY).then_some(found as u32);
    }
    let mut best: Option<(u32, f32)> = None;
    for (token, logit) in (0_u32..).zip(logits) {
        let so_far = best.map_or(f32::NEG_INFINITY, |(_, highest)| highest);
        if *logit > so_far && !banned.contains(&token) {
            best = Some((token, *logit));
        }
    }
    best.map(|(token, _)| token)
}

/// Where the prefix of likeliest tokens begins to be looked for; grown fourfold until it is enough, so that the
/// whole vocabulary need not be sorted.
const PREFIX_MIN: usize = 256;

/// (weight, token); the likeliest token has weight 1.
type Candidate = (f32, u32);

fn draw(logits: &[f32], sampling: &Sampling, uniform: f64, banned: &[u32]) -> Option<u32> {
    let highest = highest(logits);
    let scale = 1.0 / f64::from(sampling.temperature);
    let weight = |logit: f32| (f64::from(logit - highest) * scale) as f32;
    let mut candidates: Vec<Candidate> = (0_u32..)
        .zip(logits)
        .map(|(token, logit)| (weight(*logit).exp(), token))
        .filter(|(weight, token)| *weight >= sampling.min_p && *weight > 0.0 && !banned.contains(token))
        .collect();
    if sampling.typical_p < 1.0 {
        keep_typical(&mut candidates, sampling.typical_p);
    }
    if let Some(k) = sampling.top_k.map(|k| k.max(1) as usize)
        && k < candidates.len()
    {
        candidates.select_nth_unstable_by(k - 1, likelier);
        candidates.truncate(k);
    }
    if sampling.top_p < 1.0 {
        keep_top_p(&mut candidates, sampling.top_p);
    }
    // In the order of ids, so that a draw does not hang on how a selection left the candidates.
    candidates.sort_unstable_by_key(|(_, token)| *token);
    let mut left = uniform * sum(&candidates);
    for (weight, token) in &candidates {
        left -= f64::from(*weight);
        if left < 0.0 {
            return Some(*token);
        }
    }
    // Rounding may leave a rest behind the last one. No candidate is left where the banned tokens or an infinite
    // logit outweigh the others by more than a float32 holds.
    candidates.last().map_or_else(|| likeliest(logits, banned), |(_, token)| Some(*token))
}

/// Keeps the fewest likeliest candidates whose weights sum to the share of the whole.
fn keep_top_p(candidates: &mut Vec<Candidate>, share: f32) {
    let enough = sum(candidates) * f64::from(share);
    let mut prefix = PREFIX_MIN.min(candidates.len());
    while prefix > 0 {
        if prefix < candidates.len() {
            candidates.select_nth_unstable_by(prefix - 1, likelier);
        }
        candidates[..prefix].sort_unstable_by(likelier);
        let mut sum = 0.0;
        let reached = candidates[..prefix].iter().position(|(weight, _)| {
            sum += f64::from(*weight);
            sum >= enough
        });
        if let Some(last) = reached {
            candidates.truncate(last + 1);
            return;
        }
        if prefix == candidates.len() {
            return;
        }
        prefix = (prefix * 4).min(candidates.len());
    }
}

/// Keeps the fewest candidates, those nearest to the expected surprise first, whose weights sum to the share of the
/// whole (Meister et al. 2022, Locally typical sampling).
fn keep_typical(candidates: &mut Vec<Candidate>, share: f32) {
    let whole = sum(candidates);
    let surprise = |weight: f32| -(f64::from(weight) / whole).ln();
    let expected: f64 =
        candidates.iter().map(|(weight, _)| f64::from(*weight) / whole * surprise(*weight)).sum();
    let distance = |weight: f32| (surprise(weight) - expected).abs();
    candidates.sort_unstable_by(|a, b| distance(a.0).total_cmp(&distance(b.0)).then(a.1.cmp(&b.1)));
    let mut sum = 0.0;
    let reached = candidates.iter().position(|(weight, _)| {
        sum += f64::from(*weight);
        sum >= whole * f64::from(share)
    });
    if let Some(last) = reached {
        candidates.truncate(last + 1);
    }
}

fn sum(candidates: &[Candidate]) -> f64 {
    candidates.iter().map(|(weight, _)| f64::from(*weight)).sum()
}

fn likelier(a: &Candidate, b: &Candidate) -> std::cmp::Ordering {
    b.0.total_cmp(&a.0).then(a.1.cmp(&b.1))
}

/// Log-probabilities of one token and of the likeliest.
pub(crate) fn logprobs(logits: &[f32], token: u32, count: usize) -> TokenLogprobs {
    let all = log_softmax(logits);
    let count = count.min(all.len());
    let mut top: Vec<Candidate> = all.iter().copied().zip(0_u32..).collect();
    if count > 0 && count < top.len() {
        top.select_nth_unstable_by(count - 1, likelier);
    }
    top.truncate(count);
    top.sort_unstable_by(likelier);
    TokenLogprobs {
        logprob: all.get(token as usize).copied().unwrap_or(f32::NEG_INFINITY),
        top: top.into_iter().map(|(logprob, token)| (token, logprob)).collect(),
    }
}

/// A number in [0, 1) that depends on (seed, index) alone.
fn uniform(seed: u64, index: u64) -> f64 {
    let bits = mix(mix(seed).wrapping_add(index.wrapping_mul(GOLDEN)));
    (bits >> 11) as f64 / (1u64 << 53) as f64
}

const GOLDEN: u64 = 0x9E37_79B9_7F4A_7C15;

/// The output function of SplitMix64 (Steele, Lea, Flood: Fast splittable pseudorandom number generators, 2014).
pub(crate) fn mix(value: u64) -> u64 {
    let mut bits = value.wrapping_add(GOLDEN);
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    bits ^ (bits >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Probabilities 0.5, 0.25, 0.125, 0.125 at ids 2, 0, 1, 3.
    fn row() -> Vec<f32> {
        [0.25f32, 0.125, 0.5, 0.125].map(f32::ln).to_vec()
    }

    /// Token 3 in the prompt, then token 2 twice.
    fn history() -> History<'static> {
        History { prompt: &[3], output: &[2, 2] }
    }

    fn warm() -> Sampling {
        Sampling { temperature: 1.0, ..Sampling::default() }
    }

    /// Shares of 20 000 draws; each within 0.02 of what is expected (over 5 standard deviations).
    #[track_caller]
    fn check(sampling: &Sampling, banned: &[u32], expected: [f64; 4]) {
        let mut counts = [0usize; 4];
        for index in 0..20_000 {
            counts[sample(&row(), sampling, history(), 11, index, banned).expect("the row has numbers").token
                as usize] += 1;
        }
        for (token, share) in expected.iter().enumerate() {
            let found = counts[token] as f64 / 20_000.0;
            assert!((found - share).abs() < 0.02, "token {token}: {found}, expected {share}");
            assert!(*share > 0.0 || counts[token] == 0, "token {token} must never be drawn");
        }
    }

    #[test]
    fn draws_follow_the_cut_distribution() {
        check(&warm(), &[], [0.25, 0.125, 0.5, 0.125]);
        check(&Sampling { top_k: Some(2), ..warm() }, &[], [1.0 / 3.0, 0.0, 2.0 / 3.0, 0.0]);
        check(&Sampling { top_k: Some(9), ..warm() }, &[], [0.25, 0.125, 0.5, 0.125]);
        check(&Sampling { top_p: 0.6, ..warm() }, &[], [1.0 / 3.0, 0.0, 2.0 / 3.0, 0.0]);
        check(&Sampling { top_p: 0.001, ..warm() }, &[], [0.0, 0.0, 1.0, 0.0]);
        check(&Sampling { min_p: 0.4, ..warm() }, &[], [1.0 / 3.0, 0.0, 2.0 / 3.0, 0.0]);
        check(&warm(), &[2], [0.5, 0.25, 0.0, 0.25]);
        // Temperature 0.5 squares the probabilities: 16, 4, 1, 1 parts of 22.
        check(
            &Sampling { temperature: 0.5, ..warm() },
            &[],
            [4.0 / 22.0, 1.0 / 22.0, 16.0 / 22.0, 1.0 / 22.0],
        );
        check(&Sampling { temperature: 0.0, ..warm() }, &[], [0.0, 0.0, 1.0, 0.0]);
        check(&Sampling { temperature: 0.0, ..warm() }, &[2], [1.0, 0.0, 0.0, 0.0]);
    }

    #[test]
    fn the_typical_are_those_of_the_expected_surprise() {
        // In units of ln 2 the surprises are 2, 3, 1, 3, and 0.25 * 2 + 2 * 0.125 * 3 + 0.5 = 1.75 is expected:
        // token 0 is nearest, then token 2, then 1 and 3.
        check(&Sampling { typical_p: 0.2, ..warm() }, &[], [1.0, 0.0, 0.0, 0.0]);
        check(&Sampling { typical_p: 0.5, ..warm() }, &[], [1.0 / 3.0, 0.0, 2.0 / 3.0, 0.0]);
        check(&Sampling { typical_p: 0.8, ..warm() }, &[], [2.0 / 7.0, 1.0 / 7.0, 4.0 / 7.0, 0.0]);
        check(&Sampling { typical_p: 0.5, top_k: Some(1), ..warm() }, &[], [0.0, 0.0, 1.0, 0.0]);
        check(&Sampling { typical_p: 0.2, temperature: 0.0, ..warm() }, &[], [0.0, 0.0, 1.0, 0.0]);
    }

    #[test]
    fn bias_and_penalties_come_before_the_draw() {
        let two = 2.0_f32.ln();
        // Probability 1/8 doubles: 2, 2, 4, 1 parts.
        let bias = Sampling { logit_bias: vec![(1, two)], ..warm() };
        check(&bias, &[], [2.0 / 9.0, 2.0 / 9.0, 4.0 / 9.0, 1.0 / 9.0]);
        // Token 2 was drawn twice: halved once for its presence, twice for its frequency.
        let presence = Sampling { presence_penalty: two, ..warm() };
        check(&presence, &[], [1.0 / 3.0, 1.0 / 6.0, 1.0 / 3.0, 1.0 / 6.0]);
        let frequency = Sampling { frequency_penalty: two, ..warm() };
        check(&frequency, &[], [2.0 / 5.0, 1.0 / 5.0, 1.0 / 5.0, 1.0 / 5.0]);
        // Negative logits double: 1/2 becomes 1/4, and of the prompt 1/8 becomes 1/64.
        let repetition = Sampling { repetition_penalty: 2.0, ..warm() };
        check(&repetition, &[], [16.0 / 41.0, 8.0 / 41.0, 16.0 / 41.0, 1.0 / 41.0]);
        check(&Sampling { temperature: 0.0, ..repetition }, &[2], [1.0, 0.0, 0.0, 0.0]);
        check(&Sampling { temperature: 0.0, ..frequency }, &[], [1.0, 0.0, 0.0, 0.0]);
    }

    #[test]
    fn rows_without_a_number_are_survived() {
        for row in [vec![f32::NAN; 3], vec![f32::NEG_INFINITY; 3], Vec::new()] {
            for temperature in [0.0, 1.0] {
                let sampling = Sampling { temperature, logprobs: Some(2), ..Sampling::default() };
                assert_eq!(sample(&row, &sampling, history(), 1, 0, &[]), None, "{row:?} at {temperature}");
            }
        }
    }

    #[test]
    fn odd_rows_give_what_can_be_given() {
        let token = |row: &[f32], temperature, banned: &[u32]| {
            let sampling = Sampling { temperature, top_p: 0.5, min_p: 0.1, ..Sampling::default() };
            sample(row, &sampling, history(), 1, 0, banned).map(|drawn| drawn.token)
        };
        for temperature in [0.0, 1e-9, 1.0] {
            assert_eq!(token(&[f32::NAN, 3.0, f32::NAN], temperature, &[]), Some(1));
            assert_eq!(token(&[1.0, f32::INFINITY], temperature, &[]), Some(1));
            assert_eq!(token(&[1.0, 2.0], temperature, &[0, 1]), None);
            // The one that is left is less likely than a float32 weight can say.
            assert_eq!(token(&[1000.0, -1000.0], temperature, &[0]), Some(1));
        }
    }

    #[test]
    fn of_equal_logits_the_first_is_the_likeliest_wherever_it_stands() {
        for length in [1_usize, 15, 16, 17, 40] {
            for first in 0..length {
                let mut row = vec![0.0_f32; length];
                row[first..].fill(2.0);
                let greedy = Sampling { temperature: 0.0, ..Sampling::default() };
                let drawn = sample(&row, &greedy, history(), 0, 0, &[]).expect("the row has numbers");
                assert_eq!(drawn.token as usize, first, "of {length}");
            }
        }
    }

    #[test]
    fn a_share_wider_than_the_first_prefix_is_found() {
        // 2000 equal tokens: half the probability is the first 1000 of them.
        let sampling = Sampling { top_p: 0.5, ..warm() };
        let row = vec![0.0_f32; 2000];
        let drawn =
            |index| sample(&row, &sampling, history(), 3, index, &[]).expect("the row has numbers").token;
        let highest = (0..20_000).map(drawn).max();
        // Each of the 1000 comes 20 times on average.
        assert!(highest.is_some_and(|token| (900..1000).contains(&token)), "{highest:?}");
    }

    #[test]
    fn logprobs_are_of_the_model_before_the_cuts() {
        let sampling = Sampling { temperature: 0.0, logprobs: Some(2), ..Sampling::default() };
        let found = sample(&row(), &sampling, history(), 0, 0, &[2])
            .and_then(|drawn| drawn.logprobs)
            .expect("asked for");
        assert!((found.logprob - 0.25f32.ln()).abs() < 1e-6);
        let ids: Vec<u32> = found.top.iter().map(|(id, _)| *id).collect();
        assert_eq!(ids, [2, 0]);
        assert!((found.top[0].1 - 0.5f32.ln()).abs() < 1e-6);
    }

    #[test]
    fn the_generator_is_split_mix_64() {
        // First output of SplitMix64 from seed 0, as its reference implementation prints it.
        assert_eq!(mix(0), 0xE220_A839_7B1D_CDAF);
        assert_eq!(uniform(5, 7).to_bits(), uniform(5, 7).to_bits());
        assert_ne!(uniform(5, 7).to_bits(), uniform(5, 8).to_bits());
        assert_ne!(uniform(5, 7).to_bits(), uniform(6, 7).to_bits());
    }
}
