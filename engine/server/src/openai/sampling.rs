//! The fields of a request that say how its tokens are drawn and what ends it.
//!
//! Apart because they are the same for every endpoint and many. Must not know: prompts, HTTP.

use pitot_runtime::{
    GenerationDefaults, LOGIT_BIAS_MAX, STOP_BYTES_MAX, STOP_TOKENS_MAX, STOPS_MAX, Sampling, StopText,
};
use serde_json::Value;

use super::error::ApiError;
use super::fields::{Fields, token_ids};

/// Reads the sampling fields; how many tokens there may be, and log-probabilities, are the endpoints' own.
///
/// # Errors
/// Naming the field at fault.
pub fn read(fields: &Fields, generation: &GenerationDefaults) -> Result<Sampling, ApiError> {
    let plain = Sampling::default();
    let number = |name, range, default: f32| Ok(fields.number(name, range)?.map_or(default, |n| n as f32));
    let top_p = number("top_p", 0.0..=1.0, generation.top_p.unwrap_or(plain.top_p))?;
    if fields.get("top_p").is_some() && top_p == 0.0 {
        return Err(ApiError::field("top_p", "`top_p` must be over 0"));
    }
    let top_k = match fields.integer("top_k", -1..=i64::from(u32::MAX))? {
        // Both are written for "all".
        Some(-1 | 0) => None,
        Some(top_k) => u32::try_from(top_k).ok(),
        None => generation.top_k.filter(|top_k| *top_k > 0),
    };
    let stop_token_ids = match fields.get("stop_token_ids") {
        None => Vec::new(),
        Some(value) => token_ids(value).filter(|ids| ids.len() <= STOP_TOKENS_MAX).ok_or_else(|| {
            let message = format!("`stop_token_ids` must be a list of up to {STOP_TOKENS_MAX} token ids");
            ApiError::field("stop_token_ids", message)
        })?,
    };
    let repeats = generation.repetition_penalty.unwrap_or(plain.repetition_penalty);
    Ok(Sampling {
        temperature: number("temperature", 0.0..=2.0, generation.temperature.unwrap_or(plain.temperature))?,
        top_k,
        top_p,
        min_p: number("min_p", 0.0..=1.0, generation.min_p.unwrap_or(plain.min_p))?,
        typical_p: number("typical_p", 0.0..=1.0, plain.typical_p)?,
        repetition_penalty: number("repetition_penalty", 0.0..=100.0, repeats)?,
        presence_penalty: number("presence_penalty", -2.0..=2.0, plain.presence_penalty)?,
        frequency_penalty: number("frequency_penalty", -2.0..=2.0, plain.frequency_penalty)?,
        logit_bias: logit_bias(fields)?,
        seed: fields.integer("seed", i64::MIN..=i64::MAX)?.map(i64::cast_unsigned),
        stop: stops(fields)?,
        stop_text: match fields.is_on("include_stop_str_in_output")? {
            true => StopText::Kept,
            false => StopText::Cut,
        },
        stop_token_ids,
        max_tokens: plain.max_tokens,
        min_tokens: fields.count("min_tokens", 0..=u32::MAX)?.unwrap_or(plain.min_tokens),
        ignore_eos: fields.is_on("ignore_eos")?,
        logprobs: None,
        prompt_logprobs: None,
    })
}

fn stops(fields: &Fields) -> Result<Vec<String>, ApiError> {
    let text = |value: &Value| {
        let text = value.as_str().filter(|text| (1..=STOP_BYTES_MAX).contains(&text.len()))?;
        Some(text.to_owned())
    };
    let stops = match fields.get("stop") {
        None => return Ok(Vec::new()),
        Some(Value::Array(values)) if values.len() <= STOPS_MAX => values.iter().map(text).collect(),
        Some(value) => text(value).map(|stop| vec![stop]),
    };
    stops.ok_or_else(|| {
        let message = format!(
            "`stop` must be a string or up to {STOPS_MAX} strings, each of 1 to {STOP_BYTES_MAX} bytes"
        );
        ApiError::field("stop", message)
    })
}

/// An object of token ids and numbers, as OpenAI writes it.
fn logit_bias(fields: &Fields) -> Result<Vec<(u32, f32)>, ApiError> {
    let wrong = |message: String| ApiError::field("logit_bias", message);
    let Some(bias) = fields.object("logit_bias")? else { return Ok(Vec::new()) };
    let bias = bias.into_map();
    if bias.len() > LOGIT_BIAS_MAX {
        return Err(wrong(format!("`logit_bias` may hold up to {LOGIT_BIAS_MAX} tokens")));
    }
    let one = |(token, bias): (&String, &Value)| {
        let id = token.parse::<u32>().map_err(|_| wrong(format!("`{token}` is no token id")))?;
        let number = bias.as_f64().filter(|bias| (-100.0..=100.0).contains(bias));
        let number = number.ok_or_else(|| wrong(format!("the bias of token {id} must be -100 to 100")))?;
        Ok((id, number as f32))
    };
    bias.iter().map(one).collect()
}
