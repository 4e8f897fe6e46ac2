//! The usage objects of the wire formats and their variants.
//!
//! Apart because the OpenAI formats and embeddings share one. Reads counts as they were said; what they mean
//! together is decided in `tokens`. Must not know: when the usage came.
//!
//! Variants: `prompt_tokens` and `completion_tokens`, or `input_tokens` and `output_tokens` (Responses); reasoning in
//! the details of the output (OpenAI, vLLM) or flat (SGLang); the cached part in the details of the input, as
//! `prompt_cache_hit_tokens` (DeepSeek) or as flat `cached_tokens`.

use crate::json::{Count, Reader};

/// Counts as reported. Absent and 0 are kept apart.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    /// As said; see [`Usage::input`].
    tokens_input: Option<u64>,
    pub tokens_output: Option<u64>,
    pub tokens_total: Option<u64>,
    pub tokens_reasoning: Option<u64>,
    pub tokens_cached: Option<u64>,
    /// Input that was written into the cache.
    tokens_cache_written: Option<u64>,
    cached_is: CachedIs,
    /// A count was too large to be one, and reads as not reported.
    pub absurd: bool,
}

/// What the count of the input says of its cached part.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum CachedIs {
    #[default]
    Inside,
    /// It is left out, and so is what was written into the cache; counts are running totals.
    Beside,
}

impl Usage {
    /// All input, its cached part included.
    pub fn input(&self) -> Option<u64> {
        match self.cached_is {
            CachedIs::Inside => self.tokens_input,
            // Each is at most 2^53, so that the sum fits.
            CachedIs::Beside => Some(
                self.tokens_input? + self.tokens_cached.unwrap_or(0) + self.tokens_cache_written.unwrap_or(0),
            ),
        }
    }

    /// These counts with what an earlier report of the same reply said. Running totals that come in parts are merged
    /// field by field, the larger one each; elsewhere the later report stands alone.
    pub fn after(self, earlier: Option<Usage>) -> Usage {
        let Some(earlier) = earlier.filter(|_| self.cached_is == CachedIs::Beside) else { return self };
        Usage {
            tokens_input: self.tokens_input.max(earlier.tokens_input),
            tokens_output: self.tokens_output.max(earlier.tokens_output),
            tokens_total: self.tokens_total.max(earlier.tokens_total),
            tokens_reasoning: self.tokens_reasoning.max(earlier.tokens_reasoning),
            tokens_cached: self.tokens_cached.max(earlier.tokens_cached),
            tokens_cache_written: self.tokens_cache_written.max(earlier.tokens_cache_written),
            cached_is: self.cached_is,
            absurd: self.absurd || earlier.absurd,
        }
    }

    /// Takes a count; None if it says nothing.
    fn count(&mut self, value: &mut Reader<'_>) -> Option<u64> {
        match value.count() {
            Count::Known(count) => Some(count),
            Count::Absent => None,
            Count::Absurd => {
                self.absurd = true;
                None
            }
        }
    }

    fn some(self) -> Option<Usage> {
        (self.tokens_input.is_some() || self.tokens_output.is_some() || self.absurd).then_some(self)
    }
}

/// Reads the object of the OpenAI formats. None if it holds neither input nor output.
pub(super) fn openai(object: &mut Reader<'_>) -> Option<Usage> {
    let mut usage = Usage::default();
    let (mut reasoning, mut cached, mut cache_hit) = (None, None, None);
    object.members(|key, value| match key {
        b"prompt_tokens" | b"input_tokens" => usage.tokens_input = usage.count(value),
        b"completion_tokens" | b"output_tokens" => usage.tokens_output = usage.count(value),
        b"total_tokens" => usage.tokens_total = usage.count(value),
        b"reasoning_tokens" => reasoning = usage.count(value),
        b"cached_tokens" => cached = usage.count(value),
        b"prompt_cache_hit_tokens" => cache_hit = usage.count(value),
        b"prompt_tokens_details" | b"input_tokens_details" => value.members(|key, value| {
            if key == b"cached_tokens" {
                usage.tokens_cached = usage.count(value);
            }
        }),
        b"completion_tokens_details" | b"output_tokens_details" => value.members(|key, value| {
            if key == b"reasoning_tokens" {
                usage.tokens_reasoning = usage.count(value);
            }
        }),
        _ => {}
    });
    usage.tokens_reasoning = usage.tokens_reasoning.or(reasoning);
    usage.tokens_cached = usage.tokens_cached.or(cache_hit).or(cached);
    usage.some()
}

/// Reads the object of Anthropic Messages, whose input leaves out what was read from the cache or written into it.
pub(super) fn messages(object: &mut Reader<'_>) -> Option<Usage> {
    let mut usage = Usage { cached_is: CachedIs::Beside, ..Usage::default() };
    object.members(|key, value| match key {
        b"input_tokens" => usage.tokens_input = usage.count(value),
        b"output_tokens" => usage.tokens_output = usage.count(value),
        b"cache_read_input_tokens" => usage.tokens_cached = usage.count(value),
        b"cache_creation_input_tokens" => usage.tokens_cache_written = usage.count(value),
        _ => {}
    });
    usage.some()
}
