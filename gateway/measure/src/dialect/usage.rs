//! The usage object of the OpenAI formats and its variants.
//!
//! Apart because both OpenAI dialects and embeddings share it. Reads counts as they were said; what they mean
//! together is decided in `tokens`. Must not know: when the usage came.
//!
//! Variants: reasoning in `completion_tokens_details` (OpenAI, vLLM) or flat (SGLang); the cached part in
//! `prompt_tokens_details`, as `prompt_cache_hit_tokens` (DeepSeek) or as flat `cached_tokens`.

use serde::Deserialize;

use super::json::Count;

/// Counts as reported. Absent and 0 are kept apart.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    pub tokens_input: Option<u64>,
    pub tokens_output: Option<u64>,
    pub tokens_total: Option<u64>,
    pub tokens_reasoning: Option<u64>,
    pub tokens_cached: Option<u64>,
}

#[derive(Deserialize)]
pub(super) struct UsageObject {
    #[serde(default)]
    prompt_tokens: Count,
    #[serde(default)]
    completion_tokens: Count,
    #[serde(default)]
    total_tokens: Count,
    #[serde(default)]
    reasoning_tokens: Count,
    #[serde(default)]
    cached_tokens: Count,
    #[serde(default)]
    prompt_cache_hit_tokens: Count,
    #[serde(default)]
    prompt_tokens_details: Option<PromptDetails>,
    #[serde(default)]
    completion_tokens_details: Option<CompletionDetails>,
}

#[derive(Deserialize)]
struct PromptDetails {
    #[serde(default)]
    cached_tokens: Count,
}

#[derive(Deserialize)]
struct CompletionDetails {
    #[serde(default)]
    reasoning_tokens: Count,
}

impl UsageObject {
    /// The counts. None if the object holds neither input nor output.
    pub(super) fn read(&self) -> Option<Usage> {
        let in_prompt = self.prompt_tokens_details.as_ref().and_then(|details| details.cached_tokens.0);
        let in_output =
            self.completion_tokens_details.as_ref().and_then(|details| details.reasoning_tokens.0);
        let usage = Usage {
            tokens_input: self.prompt_tokens.0,
            tokens_output: self.completion_tokens.0,
            tokens_total: self.total_tokens.0,
            tokens_reasoning: in_output.or(self.reasoning_tokens.0),
            tokens_cached: in_prompt.or(self.prompt_cache_hit_tokens.0).or(self.cached_tokens.0),
        };
        (usage.tokens_input.is_some() || usage.tokens_output.is_some()).then_some(usage)
    }
}

#[derive(Deserialize)]
struct Body {
    #[serde(default)]
    usage: Option<UsageObject>,
}

pub(super) fn of_body(body: &[u8]) -> Option<Usage> {
    serde_json::from_slice::<Body>(body).ok()?.usage?.read()
}
