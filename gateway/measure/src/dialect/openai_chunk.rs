//! The envelope that chat completions and completions share: choices, usage, error.
//!
//! Apart so that the two wire formats hold only what differs, the payload of a choice. Must not know: time,
//! outcomes.

use super::{Delta, Finish, Listener, Said, usage};
use crate::engine_timing;
use crate::json::{Count, Malformed, Reader};

/// Reads a chunk or a whole reply. `member` is handed each member of a choice but `index` and `finish_reason`, adds
/// it to the delta, and may say parts of it ahead.
pub(super) fn read<'a>(
    mut reader: Reader<'a>,
    member: impl Fn(&[u8], &mut Reader<'a>, &mut Delta<'a>, &mut Listener<'_, 'a>),
    listener: &mut Listener<'_, 'a>,
) -> Result<(), Malformed> {
    let reply = reader;
    let mut shape = Ok(());
    let mut failed = false;
    reader.members(|key, value| {
        if let Some(timing) = engine_timing::of_member(key, value, &reply) {
            listener(Said::Timing(timing));
        }
        match key {
            b"choices" => match value.peek() {
                Some(b'[') => value.items(|item| {
                    if item.peek() == Some(b'{') {
                        failed |= choice(item, &member, listener) == Some(Finish::Error);
                    } else {
                        shape = Err(Malformed);
                    }
                }),
                Some(b'n') => {}
                Some(_) | None => shape = Err(Malformed),
            },
            b"usage" => {
                if let Some(usage) = usage::openai(value) {
                    listener(Said::Usage(usage));
                }
            }
            // Older streams of Groq have their counts here only, on the chunk that finishes.
            b"x_groq" if reply.find(b"usage").is_none() => {
                if let Some(usage) = value.find(b"usage").and_then(|mut counts| usage::openai(&mut counts)) {
                    listener(Said::Usage(usage));
                }
            }
            b"error" => failed |= value.present(),
            b"object" => {
                let object = value.text().unwrap_or_default();
                failed |= object.within(&mut [0; super::WORD_BYTES_MAX]) == b"error";
            }
            _ => {}
        }
    });
    if failed {
        listener(Said::Error);
    }
    shape
}

fn choice<'a>(
    item: &mut Reader<'a>,
    member: &impl Fn(&[u8], &mut Reader<'a>, &mut Delta<'a>, &mut Listener<'_, 'a>),
    listener: &mut Listener<'_, 'a>,
) -> Option<Finish> {
    // Parts that are said ahead need it, wherever it stands.
    let choice = match item.find(b"index").map(|mut index| index.count()) {
        Some(Count::Known(index)) => u32::try_from(index).unwrap_or(u32::MAX),
        Some(Count::Absurd) => u32::MAX,
        Some(Count::Absent) | None => 0,
    };
    let mut delta = Delta { choice, ..Delta::default() };
    item.members(|key, value| match key {
        b"finish_reason" => delta.finish = value.text().and_then(Finish::of).or(delta.finish),
        b"index" => {}
        _ => member(key, value, &mut delta, listener),
    });
    listener(Said::Delta(delta));
    delta.finish
}
