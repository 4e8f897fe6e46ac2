//! `/v1/chat/completions`: a stream of `chat.completion.chunk`, or one `chat.completion`.
//!
//! Apart as one file per wire format; the same four parts in each. Must not know: time, outcomes, other dialects.
//!
//! Payload is content, `reasoning` or `reasoning_content` (servers use either name), a tool's name or argument
//! fragment, the older `function_call`, refusal, audio. A role, an empty string, an id or an index is none.

use serde::Deserialize;

use super::json::{Content, Count, Filled, Present, Text};
use super::usage::UsageObject;
use super::{Delta, Finish, Frame, Malformed};

#[derive(Deserialize)]
struct Reply<'a> {
    #[serde(borrow, default)]
    choices: Option<Vec<Choice<'a>>>,
    #[serde(default)]
    usage: Option<UsageObject>,
    #[serde(default)]
    error: Present,
    #[serde(borrow, default)]
    object: Text<'a>,
}

#[derive(Deserialize)]
struct Choice<'a> {
    #[serde(default)]
    index: Count,
    #[serde(borrow, default)]
    delta: Option<Message<'a>>,
    #[serde(borrow, default)]
    message: Option<Message<'a>>,
    #[serde(borrow, default)]
    finish_reason: Text<'a>,
}

#[derive(Deserialize)]
struct Message<'a> {
    #[serde(borrow, default)]
    content: Content<'a>,
    #[serde(default)]
    reasoning: Filled,
    #[serde(default)]
    reasoning_content: Filled,
    #[serde(default)]
    refusal: Filled,
    #[serde(default)]
    tool_calls: Option<Vec<ToolCall>>,
    #[serde(default)]
    function_call: Option<Call>,
    #[serde(default)]
    audio: Option<Audio>,
}

#[derive(Deserialize)]
struct ToolCall {
    #[serde(default)]
    function: Option<Call>,
    #[serde(default)]
    custom: Option<Call>,
}

#[derive(Deserialize)]
struct Call {
    #[serde(default)]
    name: Filled,
    #[serde(default)]
    arguments: Filled,
    #[serde(default)]
    input: Filled,
}

#[derive(Deserialize)]
struct Audio {
    #[serde(default)]
    data: Filled,
    #[serde(default)]
    transcript: Filled,
}

/// Reads one chunk.
pub(super) fn frame(data: &[u8]) -> Result<Frame<'_>, Malformed> {
    let reply: Reply<'_> = serde_json::from_slice(data).map_err(|_| Malformed)?;
    Ok(reply.into_frame(|choice| choice.delta.or(choice.message)))
}

/// Reads a whole reply.
pub(super) fn body(body: &[u8]) -> Result<Frame<'_>, Malformed> {
    let reply: Reply<'_> = serde_json::from_slice(body).map_err(|_| Malformed)?;
    Ok(reply.into_frame(|choice| choice.message.or(choice.delta)))
}

impl<'a> Reply<'a> {
    fn into_frame(self, message: impl Fn(ChoiceParts<'a>) -> Option<Message<'a>>) -> Frame<'a> {
        let deltas: Vec<Delta<'a>> = self
            .choices
            .unwrap_or_default()
            .into_iter()
            .map(|choice| {
                let finish = &choice.finish_reason.0;
                let finish = (!finish.is_empty()).then(|| Finish::of(finish));
                let index = u32::try_from(choice.index.0.unwrap_or(0)).unwrap_or(u32::MAX);
                let parts = ChoiceParts { delta: choice.delta, message: choice.message };
                delta(index, finish, message(parts))
            })
            .collect();
        Frame {
            error: self.error.0
                || self.object.0 == "error"
                || deltas.iter().any(|delta| delta.finish == Some(Finish::Error)),
            deltas,
            usage: self.usage.and_then(|usage| usage.read()),
        }
    }
}

struct ChoiceParts<'a> {
    delta: Option<Message<'a>>,
    message: Option<Message<'a>>,
}

fn delta<'a>(choice: u32, finish: Option<Finish>, message: Option<Message<'a>>) -> Delta<'a> {
    let Some(message) = message else { return Delta { choice, finish, ..Delta::default() } };
    let filled = |call: &Call| call.name.0 || call.arguments.0 || call.input.0;
    let tools = message.tool_calls.as_deref().unwrap_or(&[]);
    let called = tools.iter().flat_map(|tool| [&tool.function, &tool.custom]).flatten().any(filled)
        || message.function_call.as_ref().is_some_and(filled);
    let heard = message.audio.is_some_and(|audio| audio.data.0 || audio.transcript.0);
    Delta {
        choice,
        reasoning: message.reasoning.0 || message.reasoning_content.0 || message.content.reasoning,
        text: message.content.text,
        body: called || heard || message.refusal.0 || message.content.other,
        finish,
    }
}
