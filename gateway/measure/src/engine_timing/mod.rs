//! The upstream's own timings, as its replies carry them, in one normal form.
//!
//! Apart because every server has its own words for them; one file each holds where they stand and what is to be
//! known about them. Must not know: the record, the gateway's own stamps.
//!
//! The first source in the order of [`TimingSource`] wins and later values of the same source replace earlier ones;
//! sources are never averaged. A phase whose time or whose count is 0 did not happen or was not measured, and is
//! dropped. SGLang has no file: its OpenAI routes carry no timing, and the flat `reasoning_tokens` of its usage are
//! read with the usage.

mod dynamo;
mod groq;
mod llama_cpp;
mod lm_studio;
mod mistral_rs;
mod nim;
mod ollama;
mod tgi;
mod vllm;

use serde::Serialize;

use crate::json::{Count, Reader};
use crate::named::named;
pub(crate) use tgi::HeadTiming;

/// Fields of a reply's head that carry timings, in lower case; a shell hands over those and no others.
pub const HEAD_FIELDS: [&str; 8] = tgi::FIELDS;

named! {
    /// Where a timing was found; earlier ones go before later ones.
    pub enum TimingSource {
        Vllm = "vllm": "`metrics` of vLLM, Aphrodite and Pitot's engine: ttft begins at scheduling",
        LlamaCpp = "llama_cpp": "`timings` of llama.cpp: no queue; prefill leaves out cached tokens",
        Nim = "nim": "`stats` with a `type` of NVIDIA NIM: ttft begins at arrival",
        Dynamo = "dynamo": "`nvext.timing` of NVIDIA Dynamo: ttft begins at arrival, queue included",
        Groq = "groq": "`x_groq.usage` or `usage` of Groq",
        MistralRs = "mistral_rs": "`usage` of mistral.rs: compute time, not time on a clock, and no queue",
        LmStudio = "lm_studio": "`stats` of LM Studio",
        Ollama = "ollama": "durations of Ollama",
        Tgi = "tgi": "head of a reply of TGI: truncated to milliseconds; prefill and decode are not told apart",
    }
}

/// From where a time to the first token counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum TtftOrigin {
    Arrival,
    Scheduled,
}

/// What the upstream said of its own work. Times in nanoseconds; absent is not said, never 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UpstreamTiming {
    pub source: TimingSource,
    pub queue_ns: Option<u64>,
    /// From scheduling to the first token.
    pub prefill_ns: Option<u64>,
    pub ttft: Option<(u64, TtftOrigin)>,
    /// From the first token to the last.
    pub decode_ns: Option<u64>,
    pub total_ns: Option<u64>,
    pub tokens_input: Option<u64>,
    pub tokens_cached: Option<u64>,
    pub tokens_output: Option<u64>,
    pub tokens_reasoning: Option<u64>,
    pub tokens_content: Option<u64>,
    /// Markers, framing and stop tokens.
    pub tokens_unclassified: Option<u64>,
}

impl UpstreamTiming {
    fn of(source: TimingSource) -> Self {
        UpstreamTiming {
            source,
            queue_ns: None,
            prefill_ns: None,
            ttft: None,
            decode_ns: None,
            total_ns: None,
            tokens_input: None,
            tokens_cached: None,
            tokens_output: None,
            tokens_reasoning: None,
            tokens_content: None,
            tokens_unclassified: None,
        }
    }

    /// None if nothing was said.
    fn some(self) -> Option<Self> {
        (self != UpstreamTiming::of(self.source)).then_some(self)
    }

    /// This one or an earlier one of the same reply, whichever goes before.
    pub(crate) fn or_earlier(self, earlier: Option<Self>) -> Self {
        earlier.filter(|earlier| earlier.source < self.source).unwrap_or(self)
    }
}

/// Reads the timing that a member of a reply (or of its last chunk) holds, if it is one that does.
pub(crate) fn of_member(key: &[u8], value: &Reader<'_>, reply: &Reader<'_>) -> Option<UpstreamTiming> {
    match key {
        b"metrics" => vllm::read(value),
        b"timings" => llama_cpp::read(value),
        b"stats" => nim::read(value).or_else(|| lm_studio::read(value)),
        b"nvext" => dynamo::read(&value.find(b"timing")?),
        b"x_groq" => groq::read(&value.find(b"usage")?),
        b"usage" => groq::read(value).or_else(|| mistral_rs::read(value)),
        b"eval_duration" => ollama::read(reply),
        _ => None,
    }
}

/// A time that was said in some unit of so many nanoseconds. None for 0 and for what is no time.
fn time(object: &Reader<'_>, key: &[u8], unit_ns: f64) -> Option<u64> {
    nanoseconds(object.find(key)?.number()?, unit_ns)
}

fn nanoseconds(number: f64, unit_ns: f64) -> Option<u64> {
    let ns = (number * unit_ns).round();
    // Up to 2^53 a float is exact; that is 104 days.
    (1.0..=9_007_199_254_740_992.0).contains(&ns).then_some(ns as u64)
}

fn count(object: &Reader<'_>, key: &[u8]) -> Option<u64> {
    match object.find(key)?.count() {
        Count::Known(count) => Some(count),
        Count::Absent | Count::Absurd => None,
    }
}

const MS: f64 = 1e6;
const SECONDS: f64 = 1e9;
