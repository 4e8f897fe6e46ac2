//! `/v1/completions`: a stream of `text_completion` chunks, or one of them whole.
//!
//! Apart as one file per wire format; the same four parts in each. Must not know: time, outcomes, other dialects.
//!
//! Payload is `text`. Some servers send reasoning beside it under the names of the chat format.

use super::{Listener, openai_chunk};
use crate::json::{Malformed, Reader};

/// Reads one chunk, or a whole reply, which looks like a chunk.
pub(super) fn frame<'a>(reader: Reader<'a>, listener: &mut Listener<'_, 'a>) -> Result<(), Malformed> {
    openai_chunk::read(
        reader,
        |key, value, delta, _| match key {
            b"text" => delta.text = value.text().unwrap_or_default(),
            b"reasoning" | b"reasoning_content" => delta.reasoning |= value.filled(),
            _ => {}
        },
        listener,
    )
}
