//! A row of logits as a request's own parameters change it: bias and penalties.
//!
//! Apart from drawing because it is arithmetic on tokens that are named, not on the distribution. Must not know:
//! sequences, random numbers.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};

use crate::sampler::Sampling;

/// The known tokens of a sequence.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct History<'a> {
    pub prompt: &'a [u32],
    pub output: &'a [u32],
}

/// The logits with bias, then the repetition penalty, then the presence and frequency penalties; those given where
/// none is asked for.
///
/// Repetition: of each token in prompt or output a positive logit is divided by the penalty, another multiplied
/// (Keskar et al. 2019, CTRL). Presence and frequency: of each token in the output the logit loses presence +
/// frequency * count (OpenAI's API reference). The order is vLLM's.
pub(crate) fn adjusted<'a>(logits: &'a [f32], sampling: &Sampling, history: History<'_>) -> Cow<'a, [f32]> {
    let Sampling { logit_bias, repetition_penalty, presence_penalty, frequency_penalty, .. } = sampling;
    let repeats = *repetition_penalty != 1.0;
    let counts = *presence_penalty != 0.0 || *frequency_penalty != 0.0;
    if logit_bias.is_empty() && !repeats && !counts {
        return Cow::Borrowed(logits);
    }
    let mut row = logits.to_vec();
    for (token, bias) in logit_bias {
        if let Some(logit) = row.get_mut(*token as usize) {
            *logit += bias;
        }
    }
    if repeats {
        let seen: HashSet<u32> = history.prompt.iter().chain(history.output).copied().collect();
        for token in seen {
            if let Some(logit) = row.get_mut(token as usize) {
                *logit = if *logit > 0.0 { *logit / repetition_penalty } else { *logit * repetition_penalty };
            }
        }
    }
    if counts {
        let mut output: HashMap<u32, f32> = HashMap::new();
        history.output.iter().for_each(|token| *output.entry(*token).or_default() += 1.0);
        for (token, count) in output {
            if let Some(logit) = row.get_mut(token as usize) {
                *logit -= presence_penalty + frequency_penalty * count;
            }
        }
    }
    Cow::Owned(row)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROW: [f32; 4] = [2.0, -1.0, 0.5, 0.0];

    #[track_caller]
    fn check(change: impl Fn(&mut Sampling), expected: [f32; 4]) {
        let mut sampling = Sampling::default();
        change(&mut sampling);
        // Token 9 is in no row of four.
        let history = History { prompt: &[1, 9], output: &[0, 0, 2] };
        assert_eq!(*adjusted(&ROW, &sampling, history), expected);
    }

    #[test]
    fn each_parameter_does_its_arithmetic() {
        check(|_| {}, ROW);
        check(|s| s.logit_bias = vec![(1, 3.0), (3, -100.0), (9, 1.0)], [2.0, 2.0, 0.5, -100.0]);
        // Tokens 0, 1 and 2 have been seen: 2 / 2, -1 * 2, 0.5 / 2.
        check(|s| s.repetition_penalty = 2.0, [1.0, -2.0, 0.25, 0.0]);
        check(|s| s.repetition_penalty = 0.5, [4.0, -0.5, 1.0, 0.0]);
        // Of the output alone: token 0 twice, token 2 once.
        check(|s| s.presence_penalty = 0.25, [1.75, -1.0, 0.25, 0.0]);
        check(|s| s.frequency_penalty = 0.25, [1.5, -1.0, 0.25, 0.0]);
        check(|s| s.frequency_penalty = -0.5, [3.0, -1.0, 1.0, 0.0]);
        // Bias first: (-1 + 3) / 2; then 2 / 2 - 0.5 - 2 * 0.25 for token 0, 0.5 / 2 - 0.75 for token 2.
        let all = |s: &mut Sampling| {
            s.logit_bias = vec![(1, 3.0)];
            (s.repetition_penalty, s.presence_penalty, s.frequency_penalty) = (2.0, 0.5, 0.25);
        };
        check(all, [0.0, 1.0, -0.5, 0.0]);
    }

    #[test]
    fn what_cannot_be_drawn_stays_so() {
        let sampling =
            Sampling { repetition_penalty: 1.5, logit_bias: vec![(0, 100.0)], ..Sampling::default() };
        let history = History { prompt: &[0], output: &[] };
        assert_eq!(*adjusted(&[f32::NEG_INFINITY], &sampling, history), [f32::NEG_INFINITY]);
    }
}
