//! `/v1/chat/completions`: messages into a prompt, outputs into choices.
//!
//! Apart from completions, whose prompts and choices have other shapes. Must not know: HTTP, what comes when.

use pitot_runtime::{Channel, Finish, LOGPROBS_MAX};
use serde_json::{Map, Value, json};

use super::common::{
    Asked, Chance, Endpoint, Named, Prepared, Scored, Served, asked, finish_reason, prepare, stop_reason,
};
use super::error::ApiError;
use super::fields::Fields;

const MESSAGES_MAX: usize = 65_536;

/// Reads a request and writes its messages as a prompt.
///
/// # Errors
/// Naming the field at fault.
pub fn read(body: &[u8], served: &Served, request: &Named) -> Result<Prepared, ApiError> {
    let fields = Fields::parse(body)?;
    let mut asked = asked(&fields, served)?;
    logprobs(&fields, &mut asked)?;
    let text = served.chat.render(&context(&fields)?).map_err(|error| ApiError::of_chat(&error))?;
    served.check_text(&text, "messages")?;
    let prompt =
        served.tokenizer.encode(&text).map_err(|error| ApiError::of_tokenizer(&error, "messages"))?;
    // A prompt without room is refused by the engine, which says how many tokens it has.
    let room = served.context_max.saturating_sub(prompt.len()).max(1);
    let room = u32::try_from(room).unwrap_or(u32::MAX);
    prepare(Endpoint::Chat, asked, vec![prompt], room, served, request)
}

fn logprobs(fields: &Fields, asked: &mut Asked) -> Result<(), ApiError> {
    let top = fields.count("top_logprobs", 0..=LOGPROBS_MAX)?;
    match (fields.is_on("logprobs")?, top) {
        (true, top) => asked.sampling.logprobs = Some(top.unwrap_or(0)),
        (false, None | Some(0)) => {}
        (false, Some(_)) => {
            return Err(ApiError::field("top_logprobs", "`top_logprobs` needs `logprobs` to be true"));
        }
    }
    Ok(())
}

/// What the template sees.
fn context(fields: &Fields) -> Result<Value, ApiError> {
    no_tools(fields)?;
    let mut context = match fields.object("chat_template_kwargs")? {
        Some(more) => {
            no_tools(&more)?;
            more.into_map()
        }
        None => Map::new(),
    };
    context.insert("messages".to_owned(), messages(fields)?.into());
    let generate = fields.boolean("add_generation_prompt")?.unwrap_or(true);
    context.insert("add_generation_prompt".to_owned(), generate.into());
    fields.unsupported("continue_final_message", |value| value == &Value::Bool(false))?;
    fields.unsupported("tool_choice", |value| value == "none" || value == "auto")?;
    Ok(Value::Object(context))
}

/// A model that is told of tools answers with calls, which would come back as plain text.
fn no_tools(fields: &Fields) -> Result<(), ApiError> {
    match fields.get("tools") {
        None => Ok(()),
        Some(Value::Array(tools)) if tools.is_empty() => Ok(()),
        Some(Value::Array(_)) => {
            let message = "tool calls are not parsed yet, so that `tools` must be empty or absent";
            Err(ApiError::field("tools", message))
        }
        Some(_) => Err(ApiError::field("tools", "`tools` must be a list")),
    }
}

fn messages(fields: &Fields) -> Result<Vec<Value>, ApiError> {
    let wrong = |message: String| ApiError::field("messages", message);
    let Some(messages) = fields.get("messages") else {
        return Err(wrong("`messages` is missing".to_owned()));
    };
    let messages = messages.as_array().filter(|messages| (1..=MESSAGES_MAX).contains(&messages.len()));
    let messages =
        messages.ok_or_else(|| wrong("`messages` must be a list of at least one message".to_owned()))?;
    let each = messages.iter().enumerate().map(|(at, message)| {
        let mut message =
            message.as_object().cloned().ok_or_else(|| wrong(format!("messages[{at}] must be an object")))?;
        if !message.get("role").is_some_and(Value::is_string) {
            return Err(wrong(format!("messages[{at}].role must be a string")));
        }
        let content =
            content(message.get("content")).map_err(|why| wrong(format!("messages[{at}].content {why}")))?;
        message.insert("content".to_owned(), content);
        Ok(Value::Object(message))
    });
    each.collect()
}

/// Parts of text become one text, since that is what templates of text models expect.
fn content(content: Option<&Value>) -> Result<Value, &'static str> {
    match content {
        None | Some(Value::Null) => Ok(Value::String(String::new())),
        Some(Value::String(text)) => Ok(Value::String(text.clone())),
        Some(Value::Array(parts)) => {
            let text = |part: &Value| match part["type"] == "text" {
                true => {
                    part["text"].as_str().map(str::to_owned).ok_or("has a part of type text without a text")
                }
                false => Err("has a part that is not text, which this model cannot take"),
            };
            let texts: Vec<String> = parts.iter().map(text).collect::<Result<_, _>>()?;
            Ok(Value::String(texts.join("\n")))
        }
        Some(_) => Err("must be a string or a list of parts"),
    }
}

/// The first chunk of a choice.
pub fn role_chunk(index: usize) -> Value {
    json!({
        "index": index, "delta": { "role": "assistant", "content": "" }, "logprobs": null, "finish_reason": null,
    })
}

/// A chunk with text.
pub fn text_chunk(index: usize, channel: Channel, text: &str, scored: &[Scored]) -> Value {
    let delta = match channel {
        Channel::Reasoning => json!({ "reasoning_content": text }),
        Channel::Content => json!({ "content": text }),
    };
    json!({ "index": index, "delta": delta, "logprobs": logprobs_json(scored), "finish_reason": null })
}

/// The last chunk of a choice.
pub fn finish_chunk(index: usize, finish: &Finish) -> Value {
    json!({
        "index": index, "delta": {}, "logprobs": null,
        "finish_reason": finish_reason(finish), "stop_reason": stop_reason(finish),
    })
}

/// A whole choice.
pub fn choice(index: usize, reasoning: &str, text: &str, scored: &[Scored], finish: &Finish) -> Value {
    let mut message = json!({ "role": "assistant", "content": text });
    if !reasoning.is_empty() {
        message["reasoning_content"] = reasoning.into();
    }
    json!({
        "index": index, "message": message, "logprobs": logprobs_json(scored),
        "finish_reason": finish_reason(finish), "stop_reason": stop_reason(finish),
    })
}

fn logprobs_json(scored: &[Scored]) -> Value {
    if scored.is_empty() {
        return Value::Null;
    }
    let entry =
        |token: &str, logprob: f32| json!({ "token": token, "logprob": logprob, "bytes": token.as_bytes() });
    let content = scored.iter().map(|scored| {
        let (logprob, top) = match &scored.chance {
            Some(Chance { logprob, top }) => (*logprob, top.as_slice()),
            None => (0.0, [].as_slice()),
        };
        let mut value = entry(&scored.token, logprob);
        value["top_logprobs"] = top.iter().map(|(token, logprob)| entry(token, *logprob)).collect();
        value
    });
    json!({ "content": content.collect::<Vec<Value>>() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_text_become_one() {
        let parts = json!([{ "type": "text", "text": "a" }, { "type": "text", "text": "b" }]);
        assert_eq!(content(Some(&parts)), Ok(json!("a\nb")));
        assert_eq!(content(None), Ok(json!("")));
        assert!(content(Some(&json!([{ "type": "image_url" }]))).is_err());
        assert!(content(Some(&json!(1))).is_err());
    }
}
