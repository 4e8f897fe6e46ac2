//! `/v1/completions`: a stream of `text_completion` chunks, or one of them whole.
//!
//! Apart as one file per wire format; the same four parts in each. Must not know: time, outcomes, other dialects.
//!
//! Payload is `text`. Some servers send reasoning beside it under the names of the chat format.

use serde::Deserialize;

use super::json::{Count, Filled, Present, Text};
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
    text: Text<'a>,
    #[serde(default)]
    reasoning: Filled,
    #[serde(default)]
    reasoning_content: Filled,
    #[serde(borrow, default)]
    finish_reason: Text<'a>,
}

/// Reads one chunk.
pub(super) fn frame(data: &[u8]) -> Result<Frame<'_>, Malformed> {
    let reply: Reply<'_> = serde_json::from_slice(data).map_err(|_| Malformed)?;
    let deltas: Vec<Delta<'_>> = reply.choices.unwrap_or_default().into_iter().map(delta).collect();
    Ok(Frame {
        error: reply.error.0
            || reply.object.0 == "error"
            || deltas.iter().any(|delta| delta.finish == Some(Finish::Error)),
        deltas,
        usage: reply.usage.and_then(|usage| usage.read()),
    })
}

/// Reads a whole reply, which looks like a chunk.
pub(super) fn body(body: &[u8]) -> Result<Frame<'_>, Malformed> {
    frame(body)
}

fn delta(choice: Choice<'_>) -> Delta<'_> {
    let finish = &choice.finish_reason.0;
    Delta {
        choice: u32::try_from(choice.index.0.unwrap_or(0)).unwrap_or(u32::MAX),
        reasoning: choice.reasoning.0 || choice.reasoning_content.0,
        finish: (!finish.is_empty()).then(|| Finish::of(finish)),
        text: choice.text.0,
        body: false,
    }
}
