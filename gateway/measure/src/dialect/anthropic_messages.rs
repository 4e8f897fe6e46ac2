//! `/v1/messages`: a stream of events from `message_start` to `message_stop`, or one message.
//!
//! Apart as one file per wire format; the same four parts in each. Must not know: time, outcomes, other dialects.
//!
//! Payload is `text_delta`, `thinking_delta` and `input_json_delta`, and what a block holds when it starts, such as
//! the name of a tool; a signature or a citation is none. Redacted thinking is reasoning. The usage of
//! `message_start` comes before the answer; that of `message_delta` ends it. Both are running totals.
//!
//! Source: Anthropic API reference, "Messages" and "Streaming Messages".

use super::{Delta, Finish, Listener, Said, WORD_BYTES_MAX, usage};
use crate::json::{Malformed, Reader};

/// Reads one event. Its type stands in the data, or else in the `event` field.
pub(super) fn frame<'a>(
    reader: Reader<'a>,
    event: Option<&[u8]>,
    listener: &mut Listener<'_, 'a>,
) -> Result<(), Malformed> {
    let mut word = [0; WORD_BYTES_MAX];
    let kind = reader.find(b"type").and_then(|mut kind| kind.text());
    let kind = kind.map_or(event.unwrap_or_default(), |kind| kind.within(&mut word));
    match kind {
        b"message_start" => {
            let usage = reader.find(b"message").and_then(|message| message.find(b"usage"));
            if let Some(usage) = usage.and_then(|mut usage| usage::messages(&mut usage)) {
                listener(Said::UsageAhead(usage));
            }
        }
        b"content_block_start" => {
            if let Some(mut block) = reader.find(b"content_block") {
                listener(Said::Delta(held(&mut block)));
            }
        }
        b"content_block_delta" => {
            if let Some(mut delta) = reader.find(b"delta") {
                listener(Said::Delta(held(&mut delta)));
            }
        }
        b"message_delta" => {
            let reason = reader.find(b"delta").and_then(|delta| delta.find(b"stop_reason"));
            let finish = reason.and_then(|mut reason| reason.text()).and_then(Finish::of);
            if finish.is_some() {
                listener(Said::Delta(Delta { finish, ..Delta::default() }));
            }
            if let Some(usage) = reader.find(b"usage").and_then(|mut usage| usage::messages(&mut usage)) {
                listener(Said::Usage(usage));
            }
        }
        b"message_stop" => listener(Said::End),
        b"error" => listener(Said::Error),
        _ => {}
    }
    Ok(())
}

/// Reads a whole message.
pub(super) fn body<'a>(mut reader: Reader<'a>, listener: &mut Listener<'_, 'a>) -> Result<(), Malformed> {
    reader.members(|key, value| match key {
        b"content" => value.items(|block| listener(Said::Delta(held(block)))),
        b"stop_reason" => {
            let finish = value.text().and_then(Finish::of);
            listener(Said::Delta(Delta { finish, ..Delta::default() }));
        }
        b"usage" => {
            if let Some(usage) = usage::messages(value) {
                listener(Said::Usage(usage));
            }
        }
        b"error" if value.present() => listener(Said::Error),
        _ => {}
    });
    Ok(())
}

/// What a block, or an addition to one, holds.
fn held<'a>(block: &mut Reader<'a>) -> Delta<'a> {
    let mut word = [0; WORD_BYTES_MAX];
    let kind = block.find(b"type").and_then(|mut kind| kind.text()).unwrap_or_default();
    let redacted = kind.within(&mut word) == b"redacted_thinking";
    let mut delta = Delta::default();
    block.members(|key, value| match key {
        b"text" => delta.text = value.text().unwrap_or_default(),
        b"thinking" => delta.reasoning |= value.filled(),
        b"data" if redacted => delta.reasoning |= value.filled(),
        b"partial_json" | b"name" => delta.body |= value.filled(),
        _ => {}
    });
    delta
}
