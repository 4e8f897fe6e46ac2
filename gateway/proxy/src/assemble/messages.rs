//! Events of a Messages stream → the message.
//!
//! Apart as one file for a wire format of its own: blocks are opened, grow by deltas of their kind, and are closed.
//! Must not know: frames, bytes.

use serde_json::{Map, Value};

use super::{Object, append};

/// Blocks of one message; more are let go.
const BLOCKS_MAX: usize = 4096;

/// A message that is being built.
#[derive(Debug, Default)]
pub struct Message {
    message: Option<Object>,
    blocks: Vec<Object>,
    /// For each block, the JSON text of a tool's input as far as it has come.
    inputs: Vec<String>,
    stopped: bool,
}

impl Message {
    pub fn event(&mut self, mut event: Object) {
        let kind = event.get("type").and_then(Value::as_str).unwrap_or_default().to_owned();
        let place = event.get("index").and_then(Value::as_u64).and_then(|index| usize::try_from(index).ok());
        match kind.as_str() {
            "message_start" => self.message = object(event.remove("message")),
            "content_block_start" => {
                if let Some(block) =
                    object(event.remove("content_block")).filter(|_| self.blocks.len() < BLOCKS_MAX)
                {
                    self.blocks.push(block);
                    self.inputs.push(String::new());
                }
            }
            "content_block_delta" => {
                if let (Some(place), Some(delta)) = (place, object(event.remove("delta"))) {
                    self.delta(place, &delta);
                }
            }
            "message_delta" => {
                let Some(message) = &mut self.message else { return };
                message.extend(object(event.remove("delta")).unwrap_or_default());
                let usage = object(event.remove("usage")).unwrap_or_default();
                let so_far = message.entry("usage").or_insert_with(|| Value::Object(Map::new()));
                if let Value::Object(so_far) = so_far {
                    so_far.extend(usage.into_iter().filter(|(_, count)| !count.is_null()));
                }
            }
            "message_stop" => self.stopped = true,
            // Pings, the ends of blocks, and what is not known yet.
            _ => {}
        }
    }

    fn delta(&mut self, place: usize, delta: &Object) {
        let (Some(block), Some(input)) = (self.blocks.get_mut(place), self.inputs.get_mut(place)) else {
            return;
        };
        for (name, value) in delta {
            match (name.as_str(), value) {
                ("text" | "thinking" | "signature", Value::String(text)) => append(block, name, text),
                ("partial_json", Value::String(text)) => input.push_str(text),
                ("citation", citation) => {
                    let citations = block.entry("citations").or_insert_with(|| Value::Array(Vec::new()));
                    match citations {
                        Value::Array(citations) => citations.push(citation.clone()),
                        other => *other = Value::Array(vec![citation.clone()]),
                    }
                }
                (_, _) => {}
            }
        }
    }

    /// The message, if its end has come.
    pub fn finish(self) -> Option<Value> {
        let mut message = self.message.filter(|_| self.stopped)?;
        let blocks = self.blocks.into_iter().zip(self.inputs).map(|(mut block, input)| {
            if let Ok(input) = serde_json::from_str::<Value>(&input) {
                block.insert("input".to_owned(), input);
            }
            Value::Object(block)
        });
        message.insert("content".to_owned(), blocks.collect());
        Some(Value::Object(message))
    }
}

fn object(value: Option<Value>) -> Option<Object> {
    match value {
        Some(Value::Object(object)) => Some(object),
        Some(_) | None => None,
    }
}
