//! `chat.completion.chunk` and `text_completion` chunks → one reply.
//!
//! Apart because both formats grow in the same way: texts are joined, lists are lengthened, what is neither is
//! taken from the latest chunk that has it. Must not know: frames, bytes.

use std::collections::BTreeMap;

use serde_json::Value;

use super::{Object, append};

/// Which of the two formats.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Chat,
    Completion,
}

/// Members whose pieces are joined. Of any other text the latest counts.
const JOINED: [&str; 8] =
    ["content", "reasoning", "reasoning_content", "refusal", "arguments", "input", "transcript", "text"];

/// A reply that is being built.
#[derive(Debug)]
pub struct Chunks {
    kind: Kind,
    /// The reply without its choices.
    head: Object,
    usage: Option<Value>,
    choices: BTreeMap<u64, Object>,
    done: bool,
}

impl Chunks {
    pub fn new(kind: Kind) -> Self {
        Chunks { kind, head: Object::new(), usage: None, choices: BTreeMap::new(), done: false }
    }

    /// The event that ends the protocol has come.
    pub fn done(&mut self) {
        self.done = true;
    }

    pub fn chunk(&mut self, chunk: Object) {
        for (name, value) in chunk {
            match (name.as_str(), value) {
                ("choices", Value::Array(choices)) => {
                    for choice in choices {
                        if let Value::Object(choice) = choice {
                            self.choice(choice);
                        }
                    }
                }
                ("object", Value::String(object)) => {
                    self.head.insert(name, object.trim_end_matches(".chunk").into());
                }
                ("usage", Value::Null) => {}
                ("usage", usage) => self.usage = Some(usage),
                (_, Value::Null) if self.head.contains_key(&name) => {}
                (_, value) => {
                    self.head.insert(name, value);
                }
            }
        }
    }

    fn choice(&mut self, piece: Object) {
        let index = piece.get("index").and_then(Value::as_u64).unwrap_or(0);
        let choice = self.choices.entry(index).or_default();
        choice.entry("index").or_insert(index.into());
        if self.kind == Kind::Chat {
            choice.entry("message").or_insert_with(|| {
                Value::Object(Object::from_iter([
                    ("role".to_owned(), "assistant".into()),
                    ("content".to_owned(), Value::Null),
                ]))
            });
        }
        for (name, value) in piece {
            match (name.as_str(), value) {
                ("index", _) => {}
                ("delta", Value::Object(delta)) => {
                    if let Some(Value::Object(message)) = choice.get_mut("message") {
                        merge(message, delta);
                    }
                }
                (_, value) => merge(choice, Object::from_iter([(name, value)])),
            }
        }
    }

    /// The reply, if it is complete: the end of the protocol was told, or every choice has its finish.
    pub fn finish(self) -> Option<Value> {
        let finished = |choice: &Object| choice.get("finish_reason").is_some_and(|reason| !reason.is_null());
        let complete = self.done || (!self.choices.is_empty() && self.choices.values().all(finished));
        if !complete || self.head.is_empty() {
            return None;
        }
        let mut reply = self.head;
        reply.insert("choices".to_owned(), self.choices.into_values().map(Value::Object).collect());
        if let Some(usage) = self.usage {
            reply.insert("usage".to_owned(), usage);
        }
        Some(Value::Object(reply))
    }
}

fn merge(into: &mut Object, from: Object) {
    for (name, value) in from {
        match (into.get_mut(&name), value) {
            (Some(Value::Array(calls)), Value::Array(more)) if name == "tool_calls" => {
                merge_calls(calls, more)
            }
            (_, Value::Array(more)) if name == "tool_calls" => {
                let mut calls = Vec::new();
                merge_calls(&mut calls, more);
                into.insert(name, Value::Array(calls));
            }
            (Some(_), Value::String(text)) if JOINED.contains(&name.as_str()) => append(into, &name, &text),
            (Some(Value::Array(so_far)), Value::Array(more)) => so_far.extend(more),
            (Some(Value::Object(so_far)), Value::Object(more)) => merge(so_far, more),
            // A piece that says nothing takes nothing back.
            (Some(_), Value::Null) => {}
            (Some(Value::String(so_far)), Value::String(text)) if text.is_empty() && !so_far.is_empty() => {}
            (Some(_) | None, value) => {
                into.insert(name, value);
            }
        }
    }
}

/// Calls go by their `index`, which a whole reply does not show.
fn merge_calls(calls: &mut Vec<Value>, more: Vec<Value>) {
    for call in more {
        let Value::Object(mut call) = call else { continue };
        let index = call.remove("index").and_then(|index| index.as_u64());
        let place = index.and_then(|index| usize::try_from(index).ok()).unwrap_or(calls.len());
        match calls.get_mut(place) {
            Some(Value::Object(so_far)) => merge(so_far, call),
            Some(_) | None => calls.push(Value::Object(call)),
        }
    }
}
