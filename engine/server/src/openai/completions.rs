//! `/v1/completions`: prompts as texts or token ids, outputs into choices.
//!
//! Apart from chat, whose prompts and choices have other shapes. Must not know: HTTP, what comes when.

use pitot_runtime::{Finish, LOGPROBS_MAX, Specials};
use serde_json::{Map, Value, json};

use super::common::{
    Echo, Endpoint, Named, Prepared, Prompt, Scored, Served, asked, finish_reason, prepare, stop_reason,
};
use super::error::ApiError;
use super::fields::{Fields, token_ids};

const MAX_TOKENS: u32 = 16;

/// Reads a request and its prompts.
///
/// # Errors
/// Naming the field at fault.
pub fn read(body: &[u8], served: &Served, request: &Named) -> Result<Prepared, ApiError> {
    let fields = Fields::parse(body)?;
    let echoes = fields.is_on("echo")?;
    // A prompt alone can be asked for, to see its log-probabilities; the engine always draws a token.
    let alone = echoes && fields.integer("max_tokens", 0..=i64::from(u32::MAX))? == Some(0);
    let fields = if alone { fields.without("max_tokens") } else { fields };
    let mut asked = asked(&fields, served)?;
    fields.unsupported("suffix", |value| value == "")?;
    asked.sampling.logprobs = fields.count("logprobs", 0..=LOGPROBS_MAX)?;
    if alone {
        asked.max_tokens = Some(1);
    }
    if echoes {
        asked.sampling.prompt_logprobs = asked.sampling.logprobs;
    }
    let prompts = prompts(&fields, served)?;
    let tokens = prompts.iter().map(|prompt| prompt.tokens.clone()).collect();
    let mut prepared = prepare(Endpoint::Completions, asked, tokens, MAX_TOKENS, served, request)?;
    let prompts = if echoes { shown(prompts, served)? } else { prompts };
    prepared.reply.echo = match (echoes, alone) {
        (true, true) => Echo::Alone(prompts),
        (true, false) => Echo::Before(prompts),
        (false, _) => Echo::Nothing,
    };
    Ok(prepared)
}

fn prompts(fields: &Fields, served: &Served) -> Result<Vec<Prompt>, ApiError> {
    let wrong = || {
        let message = "`prompt` must be a string, a list of token ids, or a list of either";
        ApiError::field("prompt", message)
    };
    let one = |value: &Value| match value {
        Value::String(text) => Ok(Prompt { text: text.clone(), tokens: encode(text, served)? }),
        _ => {
            let tokens = token_ids(value).ok_or_else(wrong)?;
            Ok(Prompt { text: String::new(), tokens })
        }
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

/// Fills in the texts of prompts that came as token ids.
fn shown(mut prompts: Vec<Prompt>, served: &Served) -> Result<Vec<Prompt>, ApiError> {
    for prompt in prompts.iter_mut().filter(|prompt| prompt.text.is_empty()) {
        let text = served.tokenizer.decode(&prompt.tokens);
        prompt.text = text.map_err(|error| ApiError::of_tokenizer(&error, "prompt"))?;
    }
    Ok(prompts)
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
    let logprob = |scored: &Scored| scored.chance.as_ref().map(|chance| chance.logprob);
    let top = |scored: &Scored| -> Option<Map<String, Value>> {
        let chance = scored.chance.as_ref()?;
        Some(chance.top.iter().map(|(token, logprob)| (token.clone(), json!(logprob))).collect())
    };
    json!({
        "tokens": scored.iter().map(|scored| scored.token.as_str()).collect::<Vec<_>>(),
        "token_logprobs": scored.iter().map(logprob).collect::<Vec<_>>(),
        "top_logprobs": scored.iter().map(top).collect::<Vec<_>>(),
        "text_offset": offsets,
    })
}
