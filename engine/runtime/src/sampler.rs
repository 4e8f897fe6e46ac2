//! The next token from a row of logits.
//!
//! Apart because it is arithmetic on one row: no sequence, no device. Must not know: batches, text, time.
//!
//! Random numbers are a function of (seed, index of the output token), so a sequence draws the same numbers
//! whether it was batched, chunked, preempted or run alone.

/// How a sequence is sampled and when it ends.
#[derive(Debug, Clone, PartialEq)]
pub struct Sampling {
    /// 0 means the likeliest token.
    pub temperature: f32,
    /// Keep only this many likeliest tokens.
    pub top_k: Option<u32>,
    /// Keep the likeliest tokens whose probabilities add up to this; 1 keeps all.
    pub top_p: f32,
    /// Keep tokens at least this likely relative to the likeliest; 0 keeps all.
    pub min_p: f32,
    /// Fixes the draws; absent, the engine derives one.
    pub seed: Option<u64>,
    /// Strings that end the sequence; cut from its text.
    pub stop: Vec<String>,
    /// Tokens that end the sequence.
    pub stop_token_ids: Vec<u32>,
    /// Most output tokens, the stop token included; at least 1.
    pub max_tokens: u32,
    /// Output tokens before which no end or stop token is drawn.
    pub min_tokens: u32,
    /// Goes on past the model's own end tokens.
    pub ignore_eos: bool,
    /// Report log-probabilities, with this many alternatives.
    pub logprobs: Option<u32>,
}

impl Default for Sampling {
    fn default() -> Sampling {
        Sampling {
            temperature: 1.0,
            top_k: None,
            top_p: 1.0,
            min_p: 0.0,
            seed: None,
            stop: Vec::new(),
            stop_token_ids: Vec::new(),
            max_tokens: 16,
            min_tokens: 0,
            ignore_eos: false,
            logprobs: None,
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
pub(crate) struct Choice {
    pub token: u32,
    pub logprobs: Option<TokenLogprobs>,
}

/// Draws the token of output index `index`; tokens in `banned` are never drawn.
///
/// Order of the cuts: temperature, top_k, top_p, min_p. A row without a finite logit gives token 0.
pub(crate) fn sample(logits: &[f32], sampling: &Sampling, seed: u64, index: u64, banned: &[u32]) -> Choice {
    let token = if sampling.temperature <= 0.0 {
        likeliest(logits, banned)
    } else {
        draw(logits, sampling, uniform(seed, index), banned)
    };
    let logprobs = sampling.logprobs.map(|count| logprobs(logits, token, count as usize));
    Choice { token, logprobs }
}

/// log(softmax(logits)).
pub fn log_softmax(logits: &[f32]) -> Vec<f32> {
    let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = logits.iter().map(|logit| f64::from(logit - largest).exp()).sum();
    let shift = f64::from(largest) + sum.ln();
    logits.iter().map(|logit| (f64::from(*logit) - shift) as f32).collect()
}

fn likeliest(logits: &[f32], banned: &[u32]) -> u32 {
    let mut best: Option<(u32, f32)> = None;
    for (token, logit) in (0u32..).zip(logits) {
        if best.is_none_or(|(_, largest)| *logit > largest) && !logit.is_nan() && !banned.contains(&token) {
            best = Some((token, *logit));
        }
    }
    best.map_or(0, |(token, _)| token)
}

fn draw(logits: &[f32], sampling: &Sampling, uniform: f64, banned: &[u32]) -> u32 {
    let mut candidates: Vec<(u32, f32)> = (0u32..)
        .zip(logits.iter().copied())
        .filter(|(token, logit)| *logit > f32::NEG_INFINITY && !banned.contains(token))
        .collect();
    // Equal logits are ordered by id, so that a draw does not depend on the sort.
    let by_likelihood = |a: &(u32, f32), b: &(u32, f32)| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0));
    if let Some(top_k) = sampling.top_k.map(|k| k as usize).filter(|k| (1..candidates.len()).contains(k)) {
        candidates.select_nth_unstable_by(top_k - 1, by_likelihood);
        candidates.truncate(top_k);
    }
    candidates.sort_unstable_by(by_likelihood);
    let Some((_, largest)) = candidates.first().copied() else { return 0 };
    let scale = 1.0 / f64::from(sampling.temperature);
    let mut weights: Vec<f64> =
        candidates.iter().map(|(_, logit)| (f64::from(logit - largest) * scale).exp()).collect();
    if sampling.top_p < 1.0 {
        let enough = weights.iter().sum::<f64>() * f64::from(sampling.top_p);
        let mut sum = 0.0;
        let kept = weights
            .iter()
            .take_while(|weight| {
                let before = sum;
                sum += **weight;
                before < enough
            })
            .count();
        weights.truncate(kept.max(1));
    }
    // The likeliest token has weight 1, so a weight is already relative to it.
    let least = f64::from(sampling.min_p);
    let kept = weights.iter().take_while(|weight| **weight >= least).count();
    weights.truncate(kept.max(1));
    let mut left = uniform * weights.iter().sum::<f64>();
    for ((token, _), weight) in candidates.iter().zip(&weights) {
        left -= weight;
        if left < 0.0 {
            return *token;
        }
    }
    candidates[weights.len() - 1].0
}

fn logprobs(logits: &[f32], token: u32, count: usize) -> TokenLogprobs {
    let all = log_softmax(logits);
    let count = count.min(all.len());
    let mut top: Vec<(u32, f32)> = (0u32..).zip(all.iter().copied()).collect();
    let by_likelihood = |a: &(u32, f32), b: &(u32, f32)| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0));
    if count > 0 && count < top.len() {
        top.select_nth_unstable_by(count - 1, by_likelihood);
    }
    top.truncate(count);
    top.sort_unstable_by(by_likelihood);
    TokenLogprobs { logprob: all.get(token as usize).copied().unwrap_or(f32::NEG_INFINITY), top }
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

    fn warm() -> Sampling {
        Sampling { temperature: 1.0, ..Sampling::default() }
    }

    /// Shares of 20 000 draws; each within 0.02 of what is expected (over 5 standard deviations).
    #[track_caller]
    fn check(sampling: &Sampling, banned: &[u32], expected: [f64; 4]) {
        let mut counts = [0usize; 4];
        for index in 0..20_000 {
            counts[sample(&row(), sampling, 11, index, banned).token as usize] += 1;
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
        check(&Sampling { top_p: 0.0, ..warm() }, &[], [0.0, 0.0, 1.0, 0.0]);
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
    fn rows_without_a_number_are_survived() {
        for row in [vec![f32::NAN; 3], vec![f32::NEG_INFINITY; 3], Vec::new()] {
            for temperature in [0.0, 1.0] {
                let sampling = Sampling { temperature, logprobs: Some(2), ..Sampling::default() };
                sample(&row, &sampling, 1, 0, &[]);
            }
        }
    }

    #[test]
    fn logprobs_are_of_the_model_before_the_cuts() {
        let sampling = Sampling { temperature: 0.0, logprobs: Some(2), ..Sampling::default() };
        let found = sample(&row(), &sampling, 0, 0, &[2]).logprobs.expect("asked for");
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
