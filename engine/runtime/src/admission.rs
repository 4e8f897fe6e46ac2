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
    Ok(request.sampling.check()?)
}

impl Sampling {
    /// Checks every parameter's range; the engine does so for every request.
    ///
    /// # Errors
    /// Names the first parameter that is out of its range, with the range.
    pub fn check(&self) -> Result<(), SamplingError> {
        let Sampling { temperature, top_k, top_p, min_p, seed: _, stop, stop_token_ids, .. } = self;
        let Sampling { max_tokens, min_tokens, ignore_eos: _, logprobs, .. } = self;
        let longest_stop = stop.iter().map(String::len).max().unwrap_or(0);
        let rules = [
            (
                "temperature",
                "a number of at least 0",
                temperature.is_finite() && *temperature >= 0.0,
                temperature.to_string(),
            ),
            ("top_k", "at least 1", *top_k != Some(0), "0".to_owned()),
            ("top_p", "above 0 and at most 1", *top_p > 0.0 && *top_p <= 1.0, top_p.to_string()),
            ("min_p", "between 0 and 1", (0.0..=1.0).contains(min_p), min_p.to_string()),
            ("stop", "at most 64 strings", stop.len() <= STOPS_MAX, stop.len().to_string()),
            (
                "stop",
                "strings of at most 1024 bytes",
                longest_stop <= STOP_BYTES_MAX,
                longest_stop.to_string(),
            ),
            (
                "stop",
                "strings that are not empty",
                stop.iter().all(|stop| !stop.is_empty()),
                "\"\"".to_owned(),
            ),
            (
                "stop_token_ids",
                "at most 256 tokens",
                stop_token_ids.len() <= STOP_TOKENS_MAX,
                stop_token_ids.len().to_string(),
            ),
            ("max_tokens", "at least 1", *max_tokens >= 1, max_tokens.to_string()),
            ("min_tokens", "at most max_tokens", min_tokens <= max_tokens, min_tokens.to_string()),
            (
                "logprobs",
                "at most 20",
                logprobs.is_none_or(|count| count <= LOGPROBS_MAX),
                logprobs.unwrap_or_default().to_string(),
            ),
        ];
        match rules.into_iter().find(|(_, _, holds, _)| !holds) {
            Some((parameter, range, _, value)) => Err(SamplingError { parameter, range, value }),
            None => Ok(()),
        }
    }
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
        check(|s| s.stop = vec!["a".to_owned(); 65], "stop must be at most 64 strings, got 65");
        check(|s| s.stop = vec!["a".repeat(1025)], "stop must be strings of at most 1024 bytes, got 1025");
        check(|s| s.stop = vec![String::new()], "stop must be strings that are not empty, got \"\"");
        check(|s| s.stop_token_ids = vec![1; 257], "stop_token_ids must be at most 256 tokens, got 257");
        check(|s| s.max_tokens = 0, "max_tokens must be at least 1, got 0");
        check(|s| s.min_tokens = 17, "min_tokens must be at most max_tokens, got 17");
        check(|s| s.logprobs = Some(21), "logprobs must be at most 20, got 21");
    }
}
