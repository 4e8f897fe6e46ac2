//! `/v1/responses`: a stream of events that ends with the response in whole, or that response alone.
//!
//! Apart as one file per wire format; the same four parts in each. Must not know: time, outcomes, other dialects.
//!
//! Payload is what a `*.delta` event brings in `delta`: reasoning text and its summary are reasoning, output text is
//! content, everything else (refusals, arguments and input of calls, code, audio) is body. So is the name of a call,
//! which comes as an item that is added. Usage counts in the events that end the response: `response.completed`,
//! `response.incomplete`, `response.failed`. There is no `[DONE]`.
//!
//! Source: OpenAI API reference, "Responses" and "Streaming events".

use super::{Delta, Finish, Listener, Said, WORD_BYTES_MAX, usage};
use crate::engine_timing;
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
        b"response.completed" | b"response.incomplete" | b"response.failed" => {
            let response = reader.find(b"response");
            let response = response.filter(|response| response.peek() == Some(b'{')).ok_or(Malformed)?;
            outcome(&response, listener);
            output(&response, &mut |delta| listener(Said::Restated(delta)));
            if kind == b"response.failed" {
                listener(Said::Error);
            }
            listener(Said::End);
        }
        b"error" => listener(Said::Error),
        b"response.output_item.added" => {
            if let Some(item) = reader.find(b"item").filter(|item| calls(item)) {
                let body = item.find(b"name").is_some_and(|mut name| name.filled());
                listener(Said::Delta(Delta { body, ..Delta::default() }));
            }
        }
        delta if delta.ends_with(b".delta") => {
            if let Some(text) = reader.find(b"delta").and_then(|mut text| text.text()) {
                listener(Said::Delta(piece(delta, text)));
            }
        }
        _ => {}
    }
    Ok(())
}

/// Reads a whole response.
pub(super) fn body<'a>(reader: Reader<'a>, listener: &mut Listener<'_, 'a>) -> Result<(), Malformed> {
    outcome(&reader, listener);
    output(&reader, &mut |delta| listener(Said::Delta(delta)));
    Ok(())
}

fn piece<'a>(kind: &[u8], text: crate::json::Text<'a>) -> Delta<'a> {
    match kind {
        b"response.output_text.delta" => Delta { text, ..Delta::default() },
        reasoning if reasoning.starts_with(b"response.reasoning") => {
            Delta { reasoning: !text.is_empty(), ..Delta::default() }
        }
        _ => Delta { body: !text.is_empty(), ..Delta::default() },
    }
}

/// Whether an item is the call of a function or of a tool.
fn calls(item: &Reader<'_>) -> bool {
    let kind = item.find(b"type").and_then(|mut kind| kind.text()).unwrap_or_default();
    kind.within(&mut [0; WORD_BYTES_MAX]).ends_with(b"_call")
}

/// Usage, timing, error and the reason of the end.
fn outcome<'a>(response: &Reader<'a>, listener: &mut Listener<'_, 'a>) {
    let mut members = *response;
    members.members(|key, value| {
        if let Some(timing) = engine_timing::of_member(key, value, response) {
            listener(Said::Timing(timing));
        }
    });
    if let Some(usage) = response.find(b"usage").and_then(|mut usage| usage::openai(&mut usage)) {
        listener(Said::Usage(usage));
    }
    let mut word = [0; WORD_BYTES_MAX];
    let status = response.find(b"status").and_then(|mut status| status.text()).unwrap_or_default();
    let status = status.within(&mut word);
    let reason = response.find(b"incomplete_details").and_then(|details| details.find(b"reason"));
    let reason = reason.and_then(|mut reason| reason.text()).and_then(Finish::of);
    let finish = match (status, reason) {
        (_, Some(reason)) => Some(reason),
        (b"completed", None) => Some(Finish::Stop),
        (b"cancelled", None) => Some(Finish::Abort),
        (b"incomplete", None) => Some(Finish::Other),
        (_, None) => None,
    };
    if finish.is_some() {
        listener(Said::Delta(Delta { finish, ..Delta::default() }));
    }
    if status == b"failed" || response.find(b"error").is_some_and(|mut error| error.present()) {
        listener(Said::Error);
    }
}

/// The items of a whole response.
fn output<'a>(response: &Reader<'a>, each: &mut dyn FnMut(Delta<'a>)) {
    let Some(mut items) = response.find(b"output") else { return };
    items.items(|item| {
        let mut word = [0; WORD_BYTES_MAX];
        let kind = item.find(b"type").and_then(|mut kind| kind.text()).unwrap_or_default();
        let kind = kind.within(&mut word);
        let reasoning = kind == b"reasoning";
        item.members(|key, value| match key {
            b"content" | b"summary" => value.items(|part| {
                part.members(|key, value| match key {
                    b"text" if reasoning => {
                        each(Delta { reasoning: value.filled(), ..Delta::default() });
                    }
                    b"text" => {
                        each(Delta { text: value.text().unwrap_or_default(), ..Delta::default() });
                    }
                    b"refusal" => each(Delta { body: value.filled(), ..Delta::default() }),
                    _ => {}
                });
            }),
            b"name" | b"arguments" | b"input" | b"code" if kind.ends_with(b"_call") => {
                each(Delta { body: value.filled(), ..Delta::default() });
            }
            _ => {}
        });
    });
}
