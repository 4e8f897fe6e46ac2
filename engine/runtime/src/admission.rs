//! Which requests the engine takes in.
//!
//! Apart because every request that a caller can write must end here or be safe to run. Must not know: the
//! scheduler's queues, time.

use thiserror::Error;

use crate::sampler::Sampling;
use crate::sequence::{Request, SequenceId};

/// Most log-probability alternatives of a token.
pub const LOGPROBS_MAX: u32 = 20;
/// Most stop strings of a request, each looked for after every token.
pub const STOPS_MAX: usize = 64;
/// Longest stop string in bytes; as much text may be held back.
pub const STOP_BYTES_MAX: usize = 1024;
/// Most tokens of a request whose logits are changed.
pub const LOGIT_BIAS_MAX: usize = 1024;
/// Most stop tokens of a request.
pub const STOP_TOKENS_MAX: usize = 256;

/// Why a request was not taken in.
#[derive(Debug, Clone, PartialEq, Error)]
pub enum Refusal {
    #[error("{waiting} requests are waiting already")]
    QueueFull { waiting: usize },
    #[error("the prompt has {tokens} tokens, but at most {max} leave room for an output token")]
    PromptTooLong { tokens: usize, max: usize },
    #[error("the prompt has no tokens")]
    EmptyPrompt,
    #[error("token {token} is outside the vocabulary of {vocabulary}")]
    UnknownToken { token: u32, vocabulary: usize },
    #[error("sequence {} is alive already", .id.0)]
    DuplicateId { id: SequenceId },
    #[error("the engine is draining")]
    Draining,
    #[error(transparent)]
    Sampling(#[from] SamplingError),
}

/// Which sampling parameter is out of its range.
#[derive(Debug, Clone, PartialEq, Error)]
#[error("{parameter} must be {range}, got {value}")]
pub struct SamplingError {
    /// Name of the field of [`Sampling`].
    pub parameter: &'static str,
    pub range: &'static str,
    pub value: String,
}

/// Checks that a request can run, whatever the load.
pub(crate) fn check_request(request: &Request, vocabulary: usize, context_max: usize) -> Result<(), Refusal> {
    if request.prompt.is_empty() {
        return Err(Refusal::EmptyPrompt);
    }
    let tokens = request.prompt.len();
    if tokens >= context_max {
        return Err(Refusal::PromptTooLong { tokens, max: context_max - 1 });
    }
    if let Some(token) = request.prompt.iter().copied().find(|token| *token as usize >= vocabulary) {
        return Err(Refusal::UnknownToken { token, vocabulary });
    }
    let biased = request.sampling.logit_bias.iter().map(|(token, _)| *token);
    if let Some(token) = biased.into_iter().find(|token| *token as usize >= vocabulary) {
        let (parameter, range) = ("logit_bias", "of tokens in the vocabulary");
        return Err(SamplingError { parameter, range, value: token.to_string() }.into());
    }
    Ok(request.sampling.check()?)
}

impl Sampling {
    /// Checks every parameter's range; the engine does so for every request.
    ///
    /// # Errors
    /// Names the first parameter that is out of its range, with the range.
    pub fn check(&self) -> Result<(), SamplingError> {
        let mut rules = self.distribution_rules().into_iter().chain(self.end_rules());
        match rules.find(|rule| !rule.holds) {
            Some(Rule { parameter, range, value, .. }) => Err(SamplingError { parameter, range, value }),
            None => Ok(()),
        }
    }

    /// What is drawn.
    fn distribution_rules(&self) -> [Rule; 12] {
        let Sampling {
            temperature, top_k, top_p, min_p, typical_p, seed: _, logprobs, prompt_logprobs, ..
        } = self;
        let Sampling { repetition_penalty, presence_penalty, frequency_penalty, logit_bias, .. } = self;
        let share = |share: f32| share > 0.0 && share <= 1.0;
        let penalty = |penalty: &f32| (-2.0..=2.0).contains(penalty);
        let bias = logit_bias.iter().map(|(_, bias)| *bias).find(|bias| !(-100.0..=100.0).contains(bias));
        let count = |count: &Option<u32>| count.is_none_or(|count| count <= LOGPROBS_MAX);
        let rule = |parameter, range, holds, value: &dyn ToString| Rule {
            parameter,
            range,
            holds,
            value: value.to_string(),
        };
        let warm = temperature.is_finite() && *temperature >= 0.0;
        let repeats = repetition_penalty.is_finite() && *repetition_penalty > 0.0;
        [
            rule("temperature", "a number of at least 0", warm, temperature),
            rule("top_k", "at least 1", *top_k != Some(0), &0),
            rule("top_p", "above 0 and at most 1", share(*top_p), top_p),
            rule("min_p", "between 0 and 1", (0.0..=1.0).contains(min_p), min_p),
            rule("typical_p", "above 0 and at most 1", share(*typical_p), typical_p),
            rule("repetition_penalty", "a number above 0", repeats, repetition_penalty),
            rule("presence_penalty", "between -2 and 2", penalty(presence_penalty), presence_penalty),
            rule("frequency_penalty", "between -2 and 2", penalty(frequency_penalty), frequency_penalty),
            rule("logit_bias", "between -100 and 100", bias.is_none(), &bias.unwrap_or_default()),
            rule(
                "logit_bias",
                "of at most 1024 tokens",
                logit_bias.len() <= LOGIT_BIAS_MAX,
                &logit_bias.len(),
            ),
            rule("logprobs", "at most 20", count(logprobs), &logprobs.unwrap_or_default()),
            rule(
                "prompt_logprobs",
                "at most 20",
                count(prompt_logprobs),
                &prompt_logprobs.unwrap_or_default(),
            ),
        ]
    }

    /// What ends the sequence.
    fn end_rules(&self) -> [Rule; 6] {
        let Sampling { stop, stop_text: _, stop_token_ids, max_tokens, min_tokens, ignore_eos: _, .. } = self;
        let longest = stop.iter().map(String::len).max().unwrap_or(0);
        let full = stop.iter().all(|stop| !stop.is_empty());
        let ids = stop_token_ids.len();
        let rule = |parameter, range, holds, value: &dyn ToString| Rule {
            parameter,
            range,
            holds,
            value: value.to_string(),
        };
        [
            rule("stop", "at most 64 strings", stop.len() <= STOPS_MAX, &stop.len()),
            rule("stop", "strings of at most 1024 bytes", longest <= STOP_BYTES_MAX, &longest),
            rule("stop", "strings that are not empty", full, &"\"\""),
            rule("stop_token_ids", "at most 256 tokens", ids <= STOP_TOKENS_MAX, &ids),
            rule("max_tokens", "at least 1", *max_tokens >= 1, max_tokens),
            rule("min_tokens", "at most max_tokens", min_tokens <= max_tokens, min_tokens),
        ]
    }
}

/// One parameter's range, and whether it is kept.
struct Rule {
    parameter: &'static str,
    range: &'static str,
    holds: bool,
    value: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(change: impl Fn(&mut Sampling), message: &str) {
        let mut sampling = Sampling::default();
        assert_eq!(sampling.check(), Ok(()));
        change(&mut sampling);
        assert_eq!(sampling.check().expect_err("it is out of range").to_string(), message);
    }

    #[test]
    fn each_range_is_held() {
        check(|s| s.temperature = -0.5, "temperature must be a number of at least 0, got -0.5");
        check(|s| s.temperature = f32::NAN, "temperature must be a number of at least 0, got NaN");
        check(|s| s.temperature = f32::INFINITY, "temperature must be a number of at least 0, got inf");
        check(|s| s.top_k = Some(0), "top_k must be at least 1, got 0");
        check(|s| s.top_p = 0.0, "top_p must be above 0 and at most 1, got 0");
        check(|s| s.top_p = f32::NAN, "top_p must be above 0 and at most 1, got NaN");
        check(|s| s.min_p = 1.5, "min_p must be between 0 and 1, got 1.5");
        check(|s| s.typical_p = 0.0, "typical_p must be above 0 and at most 1, got 0");
        check(|s| s.repetition_penalty = 0.0, "repetition_penalty must be a number above 0, got 0");
        check(|s| s.repetition_penalty = f32::NAN, "repetition_penalty must be a number above 0, got NaN");
        check(|s| s.presence_penalty = 2.5, "presence_penalty must be between -2 and 2, got 2.5");
        check(|s| s.frequency_penalty = -3.0, "frequency_penalty must be between -2 and 2, got -3");
        check(|s| s.logit_bias = vec![(1, 101.0)], "logit_bias must be between -100 and 100, got 101");
        check(|s| s.logit_bias = vec![(1, f32::NAN)], "logit_bias must be between -100 and 100, got NaN");
        check(|s| s.logit_bias = vec![(1, 0.0); 1025], "logit_bias must be of at most 1024 tokens, got 1025");
        check(|s| s.prompt_logprobs = Some(21), "prompt_logprobs must be at most 20, got 21");
        check(|s| s.stop = vec!["a".to_owned(); 65], "stop must be at most 64 strings, got 65");
        check(|s| s.stop = vec!["a".repeat(1025)], "stop must be strings of at most 1024 bytes, got 1025");
        check(|s| s.stop = vec![String::new()], "stop must be strings that are not empty, got \"\"");
        check(|s| s.stop_token_ids = vec![1; 257], "stop_token_ids must be at most 256 tokens, got 257");
        check(|s| s.max_tokens = 0, "max_tokens must be at least 1, got 0");
        check(|s| s.min_tokens = 17, "min_tokens must be at most max_tokens, got 17");
        check(|s| s.logprobs = Some(21), "logprobs must be at most 20, got 21");
    }
}
