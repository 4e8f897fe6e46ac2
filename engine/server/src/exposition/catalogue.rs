//! Every name of the compatibility endpoint, with its kind, help and buckets.
//!
//! Apart so that they can be read on one page. Names, labels and buckets are those of vLLM's and Aphrodite's
//! servers, without the prefix, so that dashboards and load balancers made for those work unchanged. Must not
//! know: how a value comes about.

/// What is told of this instant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Gauge {
    Running,
    Waiting,
    KvCacheUsage,
}

impl Gauge {
    pub const ALL: [Gauge; 3] = [Gauge::Running, Gauge::Waiting, Gauge::KvCacheUsage];

    pub fn about(self) -> (&'static str, &'static str) {
        match self {
            Gauge::Running => ("num_requests_running", "Sequences that hold cache blocks."),
            Gauge::Waiting => {
                ("num_requests_waiting", "Sequences that wait to be admitted, preempted ones too.")
            }
            Gauge::KvCacheUsage => {
                ("kv_cache_usage_perc", "Share of the cache blocks that sequences hold, 0 to 1.")
            }
        }
    }
}

/// What only grows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Counter {
    PrefixCacheQueries,
    PrefixCacheHits,
    Preemptions,
    PromptTokens,
    PromptTokensCached,
    GenerationTokens,
}

impl Counter {
    pub const ALL: [Counter; 6] = [
        Counter::PrefixCacheQueries,
        Counter::PrefixCacheHits,
        Counter::Preemptions,
        Counter::PromptTokens,
        Counter::PromptTokensCached,
        Counter::GenerationTokens,
    ];

    pub fn about(self) -> (&'static str, &'static str) {
        match self {
            Counter::PrefixCacheQueries => {
                ("prefix_cache_queries_total", "Prompt tokens that were looked for in the prefix cache.")
            }
            Counter::PrefixCacheHits => {
                ("prefix_cache_hits_total", "Prompt tokens that the prefix cache had.")
            }
            Counter::Preemptions => ("num_preemptions_total", "Times that a sequence gave its blocks up."),
            Counter::PromptTokens => {
                ("prompt_tokens_total", "Prompt tokens of sequences, counted when one is first admitted.")
            }
            Counter::PromptTokensCached => {
                ("prompt_tokens_cached_total", "Prompt tokens that did not have to be computed.")
            }
            Counter::GenerationTokens => ("generation_tokens_total", "Output tokens, stop tokens included."),
        }
    }
}

/// What is distributed. Those of a request are observed when it ends, unless it was aborted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Histogram {
    TimeToFirstToken,
    InterTokenLatency,
    TimePerOutputToken,
    EndToEnd,
    QueueTime,
    InferenceTime,
    PrefillTime,
    DecodeTime,
    PromptTokens,
    GenerationTokens,
    GenerationTokensMost,
    MaxTokens,
    PrefillComputed,
    Choices,
    IterationTokens,
}

impl Histogram {
    pub const ALL: [Histogram; 15] = [
        Histogram::TimeToFirstToken,
        Histogram::InterTokenLatency,
        Histogram::TimePerOutputToken,
        Histogram::EndToEnd,
        Histogram::QueueTime,
        Histogram::InferenceTime,
        Histogram::PrefillTime,
        Histogram::DecodeTime,
        Histogram::PromptTokens,
        Histogram::GenerationTokens,
        Histogram::GenerationTokensMost,
        Histogram::MaxTokens,
        Histogram::PrefillComputed,
        Histogram::Choices,
        Histogram::IterationTokens,
    ];

    pub fn about(self) -> (&'static str, &'static str) {
        match self {
            Histogram::TimeToFirstToken => (
                "time_to_first_token_seconds",
                "From the arrival of a request to the end of the step that made its first token.",
            ),
            Histogram::InterTokenLatency => {
                ("inter_token_latency_seconds", "From the step of one token to that of the next.")
            }
            Histogram::TimePerOutputToken => (
                "request_time_per_output_token_seconds",
                "From the first token to the last, over the tokens after the first; 0 where there is one.",
            ),
            Histogram::EndToEnd => {
                ("e2e_request_latency_seconds", "From the arrival of a request to its last token.")
            }
            Histogram::QueueTime => {
                ("request_queue_time_seconds", "From the queue to the first step that admitted the sequence.")
            }
            Histogram::InferenceTime => {
                ("request_inference_time_seconds", "From the first step that admitted it to the last token.")
            }
            Histogram::PrefillTime => {
                ("request_prefill_time_seconds", "From the first step that admitted it to the first token.")
            }
            Histogram::DecodeTime => ("request_decode_time_seconds", "From the first token to the last."),
            Histogram::PromptTokens => ("request_prompt_tokens", "Prompt tokens of a sequence."),
            Histogram::GenerationTokens => ("request_generation_tokens", "Output tokens of a sequence."),
            Histogram::GenerationTokensMost => {
                ("request_max_num_generation_tokens", "Output tokens of the longest sequence of a request.")
            }
            Histogram::MaxTokens => {
                ("request_params_max_tokens", "Most output tokens that a sequence was allowed.")
            }
            Histogram::PrefillComputed => (
                "request_prefill_kv_computed_tokens",
                "Prompt tokens of a sequence that the prefix cache did not have.",
            ),
            Histogram::Choices => ("request_params_n", "Choices that a request asked for."),
            Histogram::IterationTokens => {
                ("iteration_tokens_total", "Tokens of a step, of prompts and of outputs.")
            }
        }
    }

    /// Upper bounds; those of token counts go up to the context.
    pub fn buckets(self, context_max: usize) -> Vec<f64> {
        match self {
            Histogram::TimeToFirstToken => FIRST_TOKEN.to_vec(),
            Histogram::InterTokenLatency | Histogram::TimePerOutputToken => PER_TOKEN.to_vec(),
            Histogram::EndToEnd
            | Histogram::QueueTime
            | Histogram::InferenceTime
            | Histogram::PrefillTime
            | Histogram::DecodeTime => WHOLE.to_vec(),
            Histogram::PromptTokens
            | Histogram::GenerationTokens
            | Histogram::GenerationTokensMost
            | Histogram::MaxTokens
            | Histogram::PrefillComputed => one_two_five(context_max),
            Histogram::Choices => vec![1.0, 2.0, 5.0, 10.0, 20.0],
            Histogram::IterationTokens => ITERATION.to_vec(),
        }
    }
}

const FIRST_TOKEN: [f64; 22] = [
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0,
    80.0, 160.0, 640.0, 2560.0,
];
const PER_TOKEN: [f64; 19] = [
    0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
];
const WHOLE: [f64; 21] = [
    0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0,
    960.0, 1920.0, 7680.0,
];
const ITERATION: [f64; 13] =
    [1.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0, 4096.0, 8192.0, 16384.0];

/// 1, 2, 5, 10, 20, … up to the bound.
fn one_two_five(most: usize) -> Vec<f64> {
    let mut bounds = Vec::new();
    let mut decade = 1_usize;
    loop {
        for step in [1, 2, 5] {
            match decade.checked_mul(step).filter(|bound| *bound <= most) {
                Some(bound) => bounds.push(bound as f64),
                None => return bounds,
            }
        }
        decade = decade.saturating_mul(10);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_of_token_counts_end_with_the_context() {
        assert_eq!(one_two_five(100), [1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0]);
        assert_eq!(one_two_five(99), [1.0, 2.0, 5.0, 10.0, 20.0, 50.0]);
        assert_eq!(one_two_five(2), [1.0, 2.0]);
        assert_eq!(one_two_five(0), [0.0; 0]);
    }
}
