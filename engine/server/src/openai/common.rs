//! What chat and completions share: sampling fields, usage, metrics, and the frame of a body.
//!
//! Apart so that neither endpoint can differ from the other in them. Must not know: prompts, HTTP.

use std::sync::Arc;

use pitot_runtime::{
    ChatTemplate, Finish, GenerationDefaults, Sampling, Stamps, StopCause, TokenLogprobs, Tokenizer,
    Usage as Tokens,
};
use serde::Serialize;
use serde_json::{Value, json};

use super::error::ApiError;
use super::fields::Fields;
use super::refused::refuse_what_is_not_done;
use super::sampling;
use crate::clock::milliseconds;
use crate::engine_thread::{Job, Wanted};

/// Most choices of a request.
pub const CHOICES_MAX: u32 = 128;
/// Longest cache salt.
const CACHE_SALT_BYTES_MAX: usize = 1024;
/// Bytes of text that a token stands for at most, as a bound on what is tokenised; real tokens have some ten.
const TOKEN_BYTES_MAX: usize = 512;
/// Stands for the log-probability of what cannot be, since JSON has no infinity.
const LOGPROB_MIN: f32 = -9999.0;

/// What requests are answered with.
pub struct Served {
    pub tokenizer: Arc<Tokenizer>,
    pub chat: ChatTemplate,
    pub generation: GenerationDefaults,
    /// Whether plain prompts get what the tokenizer puts in front.
    pub add_bos: bool,
    /// The first stands in replies.
    pub names: Vec<String>,
    /// Most tokens of a sequence.
    pub context_max: usize,
    /// Most sequences of one request.
    pub sequences_max: usize,
    pub per_request_metrics: bool,
    pub force_include_usage: bool,
}

/// Which endpoint was called.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Endpoint {
    Chat,
    Completions,
}

impl Endpoint {
    /// The field that holds the prompt.
    pub fn prompt_field(self) -> &'static str {
        match self {
            Endpoint::Chat => "messages",
            Endpoint::Completions => "prompt",
        }
    }
}

impl Served {
    /// Refuses a text that cannot fit before it costs the time of tokenising.
    ///
    /// # Errors
    /// Naming the field that holds it.
    pub fn check_text(&self, text: &str, param: &str) -> Result<(), ApiError> {
        let limit = self.context_max.saturating_mul(TOKEN_BYTES_MAX);
        match text.len() <= limit {
            true => Ok(()),
            false => Err(ApiError::text_too_long(param, text.len(), limit)),
        }
    }
}

/// How the answer is delivered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Delivery {
    Whole,
    Stream,
    StreamWithUsage,
    /// With the counts so far on each chunk too.
    StreamWithContinuousUsage,
}

impl Delivery {
    pub fn streams(self) -> bool {
        self != Delivery::Whole
    }

    /// Whether a stream ends with a chunk of usage.
    pub fn ends_with_usage(self) -> bool {
        match self {
            Delivery::StreamWithUsage | Delivery::StreamWithContinuousUsage => true,
            Delivery::Whole | Delivery::Stream => false,
        }
    }
}

/// A request that is understood.
#[derive(Debug)]
pub struct Prepared {
    pub job: Job,
    pub reply: Reply,
}

/// What is needed to write the answer.
#[derive(Debug, Clone)]
pub struct Reply {
    pub endpoint: Endpoint,
    pub delivery: Delivery,
    pub id: String,
    /// Seconds since 1970.
    pub created: u64,
    pub model: String,
    pub sequences: usize,
    /// Sequences of each prompt, side by side.
    pub choices: usize,
    /// Prompt tokens; a prompt with several choices counts once.
    pub tokens_prompt: u32,
    pub per_request_metrics: bool,
    pub echo: Echo,
}

/// What an answer shows of its prompts.
#[derive(Debug, Clone, PartialEq)]
pub enum Echo {
    Nothing,
    /// The prompts, in order, before what was generated.
    Before(Vec<Prompt>),
    /// The prompts, and nothing of what was generated.
    Alone(Vec<Prompt>),
}

/// A prompt as it is shown.
#[derive(Debug, Clone, PartialEq)]
pub struct Prompt {
    pub text: String,
    pub tokens: Vec<u32>,
}

/// What stands in every request beside its prompt.
pub struct Asked {
    pub sampling: Sampling,
    /// None means the endpoint's default.
    pub max_tokens: Option<u32>,
    pub choices: u32,
    pub delivery: Delivery,
    /// The lower number goes first.
    pub priority: i32,
    pub cache_salt: Option<String>,
}

/// Checks the model's name and reads the common fields.
///
/// # Errors
/// Naming the field at fault.
pub fn asked(fields: &Fields, served: &Served) -> Result<Asked, ApiError> {
    // A request that names no model gets the one that is served.
    if let Some(model) = fields.text("model")?.filter(|model| !served.names.iter().any(|name| name == model))
    {
        return Err(ApiError::unknown_model(model));
    }
    refuse_what_is_not_done(fields)?;
    let choices = fields.count("n", 1..=CHOICES_MAX)?.unwrap_or(1);
    if let Some(best_of) = fields.count("best_of", 1..=CHOICES_MAX)?.filter(|best_of| *best_of != choices) {
        return Err(ApiError::field("best_of", format!("`best_of` = {best_of} must be the same as `n`")));
    }
    Ok(Asked {
        sampling: sampling::read(fields, &served.generation)?,
        max_tokens: max_tokens(fields)?,
        choices,
        delivery: delivery(fields, served)?,
        priority: priority(fields)?,
        cache_salt: cache_salt(fields)?,
    })
}

fn priority(fields: &Fields) -> Result<i32, ApiError> {
    let priority = fields.integer("priority", i64::from(i32::MIN)..=i64::from(i32::MAX))?.unwrap_or(0);
    Ok(i32::try_from(priority).expect("the range was checked"))
}

fn cache_salt(fields: &Fields) -> Result<Option<String>, ApiError> {
    let Some(salt) = fields.text("cache_salt")? else { return Ok(None) };
    if !(1..=CACHE_SALT_BYTES_MAX).contains(&salt.len()) {
        let message = format!("`cache_salt` must have 1 to {CACHE_SALT_BYTES_MAX} bytes");
        return Err(ApiError::field("cache_salt", message));
    }
    Ok(Some(salt.to_owned()))
}

fn max_tokens(fields: &Fields) -> Result<Option<u32>, ApiError> {
    match fields.count("max_completion_tokens", 1..=u32::MAX)? {
        Some(max) => Ok(Some(max)),
        None => fields.count("max_tokens", 1..=u32::MAX),
    }
}

fn delivery(fields: &Fields, served: &Served) -> Result<Delivery, ApiError> {
    let options = fields.object("stream_options")?;
    if !fields.is_on("stream")? {
        return match options {
            None => Ok(Delivery::Whole),
            Some(_) => Err(ApiError::field("stream_options", "`stream_options` needs `stream` to be true")),
        };
    }
    let (asked, continuous) = match options {
        Some(options) => (options.is_on("include_usage")?, options.is_on("continuous_usage_stats")?),
        None => (false, false),
    };
    // Forced usage is continuous, as vLLM has it; asked for alone, continuous usage is none.
    Ok(if served.force_include_usage || (asked && continuous) {
        Delivery::StreamWithContinuousUsage
    } else if asked {
        Delivery::StreamWithUsage
    } else {
        Delivery::Stream
    })
}

/// Makes the job: every prompt as many times as there are choices.
///
/// # Errors
/// When that is more than may wait.
pub fn prepare(
    endpoint: Endpoint,
    asked: Asked,
    prompts: Vec<Vec<u32>>,
    default_max_tokens: u32,
    served: &Served,
    request: &Named,
) -> Result<Prepared, ApiError> {
    let choices = asked.choices as usize;
    let sequences = prompts.len().saturating_mul(choices);
    if sequences > served.sequences_max {
        let message =
            format!("a request may have up to {} sequences; this has {sequences}", served.sequences_max);
        return Err(ApiError::field(if choices > 1 { "n" } else { endpoint.prompt_field() }, message));
    }
    let tokens: usize = prompts.iter().map(Vec::len).sum();
    let tokens_prompt = u32::try_from(tokens).unwrap_or(u32::MAX);
    let max_tokens = asked.max_tokens.unwrap_or(default_max_tokens);
    let wanted = |prompt: &Vec<u32>, choice: usize| {
        // One seed for all would make all the same.
        let seed = asked.sampling.seed.map(|seed| seed.wrapping_add(choice as u64));
        Wanted { prompt: prompt.clone(), sampling: Sampling { max_tokens, seed, ..asked.sampling.clone() } }
    };
    let all = prompts.iter().flat_map(|prompt| (0..choices).map(move |choice| (prompt, choice)));
    let job = Job {
        request_id: request.gateway_id.clone(),
        sequences: all.map(|(prompt, choice)| wanted(prompt, choice)).collect(),
        choices,
        tokens_prompt,
        arrived_ns: request.arrived_ns,
        priority: asked.priority,
        cache_salt: asked.cache_salt.clone(),
    };
    let reply = Reply {
        endpoint,
        delivery: asked.delivery,
        id: request.id.clone(),
        created: request.created,
        model: served.names.first().cloned().unwrap_or_default(),
        sequences,
        choices,
        tokens_prompt,
        per_request_metrics: served.per_request_metrics && sequences == 1,
        echo: Echo::Nothing,
    };
    Ok(Prepared { job, reply })
}

/// How a request is called.
#[derive(Debug, Clone)]
pub struct Named {
    /// In the answer.
    pub id: String,
    /// Seconds since 1970.
    pub created: u64,
    /// On the control channel.
    pub gateway_id: Option<String>,
    /// When its head was read, by CLOCK_MONOTONIC.
    pub arrived_ns: u64,
}

/// `usage`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Usage {
    pub prompt_tokens: u32,
    pub total_tokens: u32,
    pub completion_tokens: u32,
    pub prompt_tokens_details: PromptTokensDetails,
}

/// `usage.prompt_tokens_details`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct PromptTokensDetails {
    pub cached_tokens: u32,
}

/// `metrics`, in this order, null where it cannot be said.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Metrics {
    pub time_to_first_token_ms: Option<f64>,
    pub generation_time_ms: Option<f64>,
    pub queue_time_ms: Option<f64>,
    pub mean_itl_ms: Option<f64>,
    pub tokens_per_second: Option<f64>,
}

impl Metrics {
    /// From the engine's stamps and the tokens that it produced.
    pub fn of(stamps: &Stamps, tokens: u32) -> Metrics {
        let generation = milliseconds(stamps.first, stamps.last);
        let whole = milliseconds(stamps.scheduled, stamps.last).filter(|whole| *whole > 0.0);
        Metrics {
            time_to_first_token_ms: milliseconds(stamps.scheduled, stamps.first),
            generation_time_ms: generation,
            queue_time_ms: milliseconds(stamps.queued, stamps.scheduled),
            mean_itl_ms: generation.filter(|_| tokens > 1).map(|time| time / f64::from(tokens - 1)),
            tokens_per_second: whole.map(|time| f64::from(tokens) / (time / 1000.0)),
        }
    }
}

/// What the ends of a request's sequences add up to.
#[derive(Debug, Clone, Default)]
pub struct Totals {
    tokens_output: u32,
    tokens_cached: u32,
    stamps: Stamps,
    ended: usize,
    /// Tokens of all sequences, ended or not.
    tokens_so_far: u32,
}

impl Totals {
    /// Counts a token that was generated.
    pub fn count(&mut self) {
        self.tokens_so_far = self.tokens_so_far.saturating_add(1);
    }

    fn usage_so_far(&self, reply: &Reply) -> Usage {
        let completion_tokens = self.tokens_so_far.max(self.tokens_output);
        Usage {
            prompt_tokens: reply.tokens_prompt,
            total_tokens: reply.tokens_prompt.saturating_add(completion_tokens),
            completion_tokens,
            prompt_tokens_details: PromptTokensDetails { cached_tokens: self.tokens_cached },
        }
    }

    /// Adds the end of a sequence; `choice` is its place among the choices of its prompt, which counts once, with
    /// what the first choice found in the cache.
    pub fn add(&mut self, choice: usize, stamps: Stamps, tokens: Tokens) {
        self.tokens_output = self.tokens_output.saturating_add(tokens.tokens_output);
        if choice == 0 {
            self.tokens_cached = self.tokens_cached.saturating_add(tokens.tokens_cached);
        }
        self.stamps = stamps;
        self.ended += 1;
    }

    /// Sequences that have ended.
    pub fn ended(&self) -> usize {
        self.ended
    }

    pub fn usage(&self, reply: &Reply) -> Usage {
        Usage {
            prompt_tokens: reply.tokens_prompt,
            total_tokens: reply.tokens_prompt.saturating_add(self.tokens_output),
            completion_tokens: self.tokens_output,
            prompt_tokens_details: PromptTokensDetails { cached_tokens: self.tokens_cached },
        }
    }

    /// None where there is more than one sequence, or nobody wants it.
    pub fn metrics(&self, reply: &Reply) -> Option<Metrics> {
        reply.per_request_metrics.then(|| Metrics::of(&self.stamps, self.tokens_output))
    }
}

/// The usage on a body or a chunk.
#[derive(Debug, Clone, Copy)]
pub enum Counts<'t> {
    None,
    /// What has been generated up to this chunk.
    SoFar(&'t Totals),
    /// The end of every sequence is in them.
    Ended(&'t Totals),
}

/// A body or a chunk; `metrics` is its last key.
#[derive(Serialize)]
struct Frame<'a> {
    id: &'a str,
    object: &'static str,
    created: u64,
    model: &'a str,
    choices: &'a [Value],
    #[serde(skip_serializing_if = "Option::is_none")]
    usage: Option<Usage>,
    #[serde(skip_serializing_if = "Option::is_none")]
    metrics: Option<Metrics>,
}

/// Writes a body or a chunk.
pub fn frame(reply: &Reply, choices: &[Value], counts: Counts<'_>) -> String {
    let object = match reply.endpoint {
        Endpoint::Chat if reply.delivery.streams() => "chat.completion.chunk",
        Endpoint::Chat => "chat.completion",
        Endpoint::Completions => "text_completion",
    };
    let frame = Frame {
        id: &reply.id,
        object,
        created: reply.created,
        model: &reply.model,
        choices,
        usage: match counts {
            Counts::None => None,
            Counts::SoFar(totals) => Some(totals.usage_so_far(reply)),
            Counts::Ended(totals) => Some(totals.usage(reply)),
        },
        metrics: match counts {
            Counts::None | Counts::SoFar(_) => None,
            Counts::Ended(totals) => totals.metrics(reply),
        },
    };
    serde_json::to_string(&frame).expect("strings and numbers are always JSON")
}

/// `finish_reason`.
pub fn finish_reason(finish: &Finish) -> &'static str {
    match finish {
        Finish::Stop { .. } => "stop",
        Finish::Length => "length",
        Finish::Abort => "abort",
        Finish::Error(_) => "error",
    }
}

/// `stop_reason`: the stop string or token id that ended it.
pub fn stop_reason(finish: &Finish) -> Value {
    match finish {
        Finish::Stop { stop: Some(StopCause::Text(text)) } => json!(text),
        Finish::Stop { stop: Some(StopCause::TokenId(id)) } => json!(id),
        Finish::Stop { stop: None } | Finish::Length | Finish::Abort | Finish::Error(_) => Value::Null,
    }
}

/// A token with its log-probabilities, in words.
#[derive(Debug, Clone, PartialEq)]
pub struct Scored {
    pub token: String,
    /// None for the first token of an echoed prompt, which follows nothing.
    pub chance: Option<Chance>,
}

/// A token's log-probability and those of the likeliest.
#[derive(Debug, Clone, PartialEq)]
pub struct Chance {
    pub logprob: f32,
    pub top: Vec<(String, f32)>,
}

impl Scored {
    pub fn of(tokenizer: &Tokenizer, token: u32, logprobs: &TokenLogprobs) -> Scored {
        let top = logprobs.top.iter().map(|(id, logprob)| (tokenizer.token_text(*id), finite(*logprob)));
        let chance = Chance { logprob: finite(logprobs.logprob), top: top.collect() };
        Scored { token: tokenizer.token_text(token), chance: Some(chance) }
    }

    /// The first token of a prompt.
    pub fn first(tokenizer: &Tokenizer, token: u32) -> Scored {
        Scored { token: tokenizer.token_text(token), chance: None }
    }
}

fn finite(logprob: f32) -> f32 {
    logprob.max(LOGPROB_MIN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metrics_follow_their_formulas() {
        let stamps = |queued, scheduled, first, last| Stamps { queued, scheduled, first, last };
        // 2 ms queued, 10 ms to the first token, 40 ms for 4 more: 5 tokens in 50 ms.
        let whole = stamps(Some(1_000_000), Some(3_000_000), Some(13_000_000), Some(53_000_000));
        let metrics = Metrics::of(&whole, 5);
        let expected = Metrics {
            time_to_first_token_ms: Some(10.0),
            generation_time_ms: Some(40.0),
            queue_time_ms: Some(2.0),
            mean_itl_ms: Some(10.0),
            tokens_per_second: Some(100.0),
        };
        assert_eq!(metrics, expected);
        assert_eq!(Metrics::of(&whole, 1).mean_itl_ms, None);
        let none = Metrics::of(&stamps(Some(1), None, None, None), 0);
        assert_eq!(
            serde_json::to_string(&none).unwrap(),
            r#"{"time_to_first_token_ms":null,"generation_time_ms":null,"queue_time_ms":null,"mean_itl_ms":null,"tokens_per_second":null}"#
        );
        assert_eq!(Metrics::of(&stamps(Some(1), Some(5), Some(5), Some(5)), 1).tokens_per_second, None);
    }
}
