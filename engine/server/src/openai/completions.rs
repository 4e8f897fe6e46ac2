//! `/v1/completions`: prompts as texts or token ids, outputs into choices.
//!
//! Apart from chat, whose prompts and choices have other shapes. Must not know: HTTP, what comes when.

use pitot_runtime::{Finish, LOGPROBS_MAX, Specials};
use serde_json::{Map, Value, json};

use super::common::{Endpoint, Named, Prepared, Scored, Served, asked, finish_reason, prepare, stop_reason};
use super::error::ApiError;
use super::fields::{Fields, token_ids};

const MAX_TOKENS: u32 = 16;

/// Reads a request and its prompts.
///
/// # Errors
/// Naming the field at fault.
pub fn read(body: &[u8], served: &Served, request: &Named) -> Result<Prepared, ApiError> {
    let fields = Fields::parse(body)?;
    let mut asked = asked(&fields, served)?;
    fields.unsupported("echo", |value| value == &Value::Bool(false))?;
    fields.unsupported("suffix", |value| value == "")?;
    asked.sampling.logprobs = fields.count("logprobs", 0..=LOGPROBS_MAX)?;
    let prompts = prompts(&fields, served)?;
    prepare(Endpoint::Completions, asked, prompts, MAX_TOKENS, served, request)
}

fn prompts(fields: &Fields, served: &Served) -> Result<Vec<Vec<u32>>, ApiError> {
    let wrong = || {
        let message = "`prompt` must be a string, a list of token ids, or a list of either";
        ApiError::field("prompt", message)
    };
    let one = |value: &Value| match value {
        Value::String(text) => encode(text, served),
        _ => token_ids(value).ok_or_else(wrong),
    };
    match fields.get("prompt") {
        None => Err(ApiError::field("prompt", "`prompt` is missing")),
        Some(Value::Array(values)) if values.is_empty() => Err(wrong()),
        Some(Value::Array(values)) if !values[0].is_number() => {
            if values.len() > served.sequences_max {
                let message = format!("`prompt` may hold up to {} prompts", served.sequences_max);
                return Err(ApiError::field("prompt", message));
            }
            values.iter().map(one).collect()
        }
        Some(value) => Ok(vec![one(value)?]),
    }
}

fn encode(text: &str, served: &Served) -> Result<Vec<u32>, ApiError> {
    served.check_text(text, "prompt")?;
    let specials = if served.add_bos { Specials::Add } else { Specials::Omit };
    served.tokenizer.encode_with(text, specials).map_err(|error| ApiError::of_tokenizer(&error, "prompt"))
}

/// A chunk with text that begins at this character of the choice.
pub fn text_chunk(index: usize, text: &str, scored: &[Scored], offset: usize) -> Value {
    json!({ "index": index, "text": text, "logprobs": logprobs_json(scored, offset), "finish_reason": null })
}

/// The last chunk of a choice.
pub fn finish_chunk(index: usize, finish: &Finish) -> Value {
    json!({
        "index": index, "text": "", "logprobs": null,
        "finish_reason": finish_reason(finish), "stop_reason": stop_reason(finish),
    })
}

/// A whole choice.
pub fn choice(index: usize, text: &str, scored: &[Scored], finish: &Finish) -> Value {
    json!({
        "index": index, "text": text, "logprobs": logprobs_json(scored, 0),
        "finish_reason": finish_reason(finish), "stop_reason": stop_reason(finish),
    })
}

fn logprobs_json(scored: &[Scored], offset: usize) -> Value {
    if scored.is_empty() {
        return Value::Null;
    }
    let mut end = offset;
    let offsets = scored.iter().map(|scored| {
        let start = end;
        end += scored.token.chars().count();
        start
    });
    let offsets: Vec<usize> = offsets.collect();
    let top = |scored: &Scored| -> Map<String, Value> {
        scored.top.iter().map(|(token, logprob)| (token.clone(), json!(logprob))).collect()
    };
    json!({
        "tokens": scored.iter().map(|scored| scored.token.as_str()).collect::<Vec<_>>(),
        "token_logprobs": scored.iter().map(|scored| scored.logprob).collect::<Vec<_>>(),
        "top_logprobs": scored.iter().map(top).collect::<Vec<_>>(),
        "text_offset": offsets,
    })
}
