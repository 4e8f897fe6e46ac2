//! `/v1/chat/completions`: a stream of `chat.completion.chunk`, or one `chat.completion`.
//!
//! Apart as one file per wire format; the same four parts in each. Must not know: time, outcomes, other dialects.
//!
//! Payload is content, `reasoning` or `reasoning_content` (servers use either name, and some both), a tool's name or
//! argument fragment, the older `function_call`, refusal, audio. A role, an empty string, an id or an index is none.

use super::{Delta, Listener, Said, openai_chunk};
use crate::json::{Malformed, Reader};

/// Reads one chunk, or a whole reply, which has `message` for `delta`.
pub(super) fn frame<'a>(reader: Reader<'a>, listener: &mut Listener<'_, 'a>) -> Result<(), Malformed> {
    openai_chunk::read(reader, member, listener)
}

fn member<'a>(key: &[u8], value: &mut Reader<'a>, delta: &mut Delta<'a>, listener: &mut Listener<'_, 'a>) {
    if !matches!(key, b"delta" | b"message") {
        return;
    }
    value.members(|key, value| match key {
        b"content" => content(value, delta, listener),
        b"reasoning" | b"reasoning_content" => delta.reasoning |= value.filled(),
        b"refusal" => delta.body |= value.filled(),
        b"tool_calls" => value.items(|tool| {
            tool.members(|key, value| {
                if matches!(key, b"function" | b"custom") {
                    delta.body |= called(value);
                }
            });
        }),
        b"function_call" => delta.body |= called(value),
        b"audio" => value.members(|key, value| {
            if matches!(key, b"data" | b"transcript") {
                delta.body |= value.filled();
            }
        }),
        _ => {}
    });
}

fn called(value: &mut Reader<'_>) -> bool {
    let mut called = false;
    value.members(|key, value| {
        if matches!(key, b"name" | b"arguments" | b"input") {
            called |= value.filled();
        }
    });
    called
}

/// Content is a text, or a list of parts of which some may be reasoning. A list is said part by part.
fn content<'a>(value: &mut Reader<'a>, delta: &mut Delta<'a>, listener: &mut Listener<'_, 'a>) {
    if value.peek() != Some(b'[') {
        let text = value.text().unwrap_or_default();
        if !text.is_empty() {
            delta.text = text;
        }
        return;
    }
    value.items(|part| {
        let kind = part.find(b"type").and_then(|mut kind| kind.text()).unwrap_or_default();
        let mut word = [0; super::WORD_BYTES_MAX];
        let kind = kind.within(&mut word);
        let thinking = part.find(b"thinking").is_some_and(|mut thinking| thinking.present());
        let text = part.find(b"text").and_then(|mut text| text.text()).unwrap_or_default();
        if thinking || kind == b"thinking" {
            listener(Said::Delta(Delta { choice: delta.choice, reasoning: true, ..Delta::default() }));
        } else if !text.is_empty() {
            listener(Said::Delta(Delta { choice: delta.choice, text, ..Delta::default() }));
        } else if part.peek() == Some(b'{') && kind != b"text" {
            delta.body = true;
        }
    });
}
