//! A toy runner, tokenizer and chat template, for tests of the engine and of what stands on it.
//!
//! Apart from the tests because the server's tests use them too. Must not know: real models, devices.
//!
//! A person can work the toy out. It is greedy-deterministic in the whole context, *as read back from its cache
//! through the block table*: a wrong block, a lost token or two sequences in one block change what is generated.
//!
//! * Ids 0 to 255 are the bytes of UTF-8; then come the special tokens `<|end|>` (the end of a text), `<|say|>`
//!   and `<|fail|>`, and the ordinary ones `<think>` and `</think>`.
//! * A context that holds `<|say|>…<|end|>` is answered with what stands between the two, and `<|end|>`.
//! * Any other context is answered with a letter: the sum of place times token over the context (places count
//!   from 1), modulo 26, as a = 0. After "ab" comes 1·97 + 2·98 = 293 = 11·26 + 7, an h. It never ends by itself.
//! * The letters after the likeliest, in the order of the alphabet and round again, lose a quarter of a logit
//!   each.
//! * A step with `<|fail|>` in it fails.

use serde_json::{Map, Value, json};

use crate::batch::{Batch, LogitRows};
use crate::chat::ChatTemplate;
use crate::runner::{Logits, Reservation, RunError, Runner};
use crate::tokenizer::Tokenizer;

/// `<|end|>`: the toy's own end token.
pub const TOY_END: u32 = 256;
/// `<|say|>`: opens what the toy is to say.
pub const TOY_SAY: u32 = 257;
/// `<|fail|>`: makes the step fail.
pub const TOY_FAIL: u32 = 258;
/// `<think>`.
pub const TOY_THINK: u32 = 259;
/// `</think>`.
pub const TOY_THINK_END: u32 = 260;
/// Ids of the toy's vocabulary.
pub const TOY_VOCABULARY: usize = 261;

/// Computes logits by the arithmetic above.
pub struct ToyRunner {
    context_max: usize,
    /// Every step from this one on fails.
    fails_from: Option<u64>,
    steps: u64,
    reservation: Option<Reservation>,
    /// One token for each slot, as a real cache holds one key.
    cache: Vec<Option<u32>>,
}

impl ToyRunner {
    /// A toy of that context length in tokens.
    pub fn new(context_max: usize) -> ToyRunner {
        ToyRunner { context_max, fails_from: None, steps: 0, reservation: None, cache: Vec::new() }
    }

    /// Fails every step from the given one on, the first being 0.
    pub fn failing_from(mut self, step: u64) -> ToyRunner {
        self.fails_from = Some(step);
        self
    }
}

/// The token that the toy finds likeliest after `context`.
pub fn toy_next(context: &[u32]) -> u32 {
    let say = context.iter().position(|token| *token == TOY_SAY);
    let end = say.and_then(|say| context[say..].iter().position(|token| *token == TOY_END));
    if let (Some(say), Some(length)) = (say, end) {
        // The answer repeats the `length` tokens behind `<|say|>`, the end token being the last of them. What of
        // it is there already stands behind the first end token.
        let answered = context.len() - (say + length + 1);
        return context[say + 1 + answered % length];
    }
    let sum =
        context.iter().zip(1_u64..).fold(0, |sum, (token, place)| (sum + place * u64::from(*token)) % 26);
    u32::from(b'a') + sum as u32
}

/// The toy's logits after `context`.
pub fn toy_logits(context: &[u32]) -> Vec<f32> {
    let next = toy_next(context);
    let mut logits = vec![f32::NEG_INFINITY; TOY_VOCABULARY];
    let letters = u32::from(b'a')..=u32::from(b'z');
    if letters.contains(&next) {
        for step in 0..26 {
            let letter = letters.start() + (next - letters.start() + step) % 26;
            logits[letter as usize] = -0.25 * step as f32;
        }
    }
    logits[next as usize] = 0.0;
    logits
}

impl Runner for ToyRunner {
    fn name(&self) -> String {
        "toy".to_owned()
    }

    fn vocabulary(&self) -> usize {
        TOY_VOCABULARY
    }

    fn context_max(&self) -> usize {
        self.context_max
    }

    /// One byte a token, so that a budget of n bytes is a cache of n tokens.
    fn block_bytes(&self, block_tokens: usize) -> usize {
        block_tokens
    }

    fn reserve(&mut self, reservation: Reservation) -> Result<(), RunError> {
        self.cache = vec![None; reservation.blocks * reservation.block_tokens];
        self.reservation = Some(reservation);
        Ok(())
    }

    fn run(&mut self, batch: &Batch) -> Result<Logits, RunError> {
        let reservation = self.reservation.ok_or(RunError::NotReserved)?;
        let Reservation { block_tokens, rows_max, logit_rows_max, .. } = reservation;
        if batch.rows() > rows_max {
            return Err(RunError::TooManyRows { rows: batch.rows(), max: rows_max });
        }
        assert!(batch.logit_rows().len() <= logit_rows_max, "more logits are wanted than were reserved");
        let step = self.steps;
        self.steps += 1;
        let told = batch.sequences.iter().any(|sequence| sequence.tokens.contains(&TOY_FAIL));
        if told || self.fails_from.is_some_and(|from| step >= from) {
            return Err(RunError::Device("the toy was told to fail".to_owned()));
        }
        let slot =
            |blocks: &[u32], at: usize| blocks[at / block_tokens] as usize * block_tokens + at % block_tokens;
        // All are stored before any is read, as a device does: one block in two sequences then shows.
        for sequence in &batch.sequences {
            let start = sequence.context - sequence.tokens.len();
            for (at, token) in (start..).zip(&sequence.tokens) {
                self.cache[slot(&sequence.blocks, at)] = Some(*token);
            }
        }
        let mut values = Vec::new();
        for sequence in &batch.sequences {
            let context: Vec<u32> = (0..sequence.context)
                .map(|at| self.cache[slot(&sequence.blocks, at)].expect("every slot of a context was stored"))
                .collect();
            let first = match sequence.logits {
                LogitRows::None => sequence.context + 1,
                LogitRows::Last => sequence.context,
                LogitRows::All => sequence.context - sequence.tokens.len() + 1,
            };
            for end in first..=sequence.context {
                values.extend(toy_logits(&context[..end]));
            }
        }
        Ok(Logits { values, vocabulary: TOY_VOCABULARY })
    }
}

/// The byte-level tokenizer that goes with the toy.
pub fn toy_tokenizer() -> Tokenizer {
    Tokenizer::from_bytes(toy_tokenizer_json().to_string().as_bytes())
        .expect("the toy tokenizer is well formed")
}

/// A template that writes the messages' contents one after the other.
pub fn toy_chat_template() -> ChatTemplate {
    let source = "{% for message in messages %}{{ message.content }}{% endfor %}";
    ChatTemplate::new(&Value::Null, &Value::Null, Some(source)).expect("the toy template is well formed")
}

/// tokenizer.json of the toy.
pub fn toy_tokenizer_json() -> Value {
    let vocabulary: Map<String, Value> =
        (0..=255_u8).map(|byte| (byte_character(byte).to_string(), u64::from(byte).into())).collect();
    let added = |id: u32, content: &str, special: bool| {
        json!({
            "id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false,
            "normalized": false, "special": special,
        })
    };
    json!({
        "version": "1.0", "truncation": null, "padding": null, "normalizer": null, "post_processor": null,
        "added_tokens": [
            added(TOY_END, "<|end|>", true),
            added(TOY_SAY, "<|say|>", true),
            added(TOY_FAIL, "<|fail|>", true),
            added(TOY_THINK, "<think>", false),
            added(TOY_THINK_END, "</think>", false),
        ],
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false},
        "decoder": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false},
        "model": {
            "type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false,
            "vocab": vocabulary, "merges": [],
        },
    })
}

/// The printable character that byte-level tokenizers write for a byte (GPT-2's byte encoder).
fn byte_character(byte: u8) -> char {
    let printable = |byte: u8| matches!(byte, b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF);
    if printable(byte) {
        return char::from(byte);
    }
    let before = (0..byte).filter(|byte| !printable(*byte)).count() as u32;
    char::from_u32(256 + before).expect("code points 256 to 323 are characters")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(context: &str, expected: &str) {
        let tokens = toy_tokenizer().encode(context).unwrap();
        assert_eq!([toy_next(&tokens)], *toy_tokenizer().encode(expected).unwrap());
    }

    #[test]
    fn the_next_token_is_what_the_rules_say() {
        check("ab", "h");
        // 1·97 = 3·26 + 19.
        check("a", "t");
        // 1·98 + 2·97 = 292 = 11·26 + 6: the order counts.
        check("ba", "g");
        check("x<|say|>hi<|end|>", "h");
        check("x<|say|>hi<|end|>h", "i");
        check("x<|say|>hi<|end|>hi", "<|end|>");
        check("<|say|><think>é</think>!<|end|><think>é", "</think>");
        check("<|say|><|end|>", "<|end|>");
    }

    #[test]
    fn letters_after_the_likeliest_lose_a_quarter_each() {
        let logits = toy_logits(&[97, 98]);
        let of = |letter: u8| logits[letter as usize];
        assert_eq!((of(b'h'), of(b'i'), of(b'z'), of(b'a'), of(b'g')), (0.0, -0.25, -4.5, -4.75, -6.25));
        assert_eq!(logits[TOY_END as usize], f32::NEG_INFINITY);
    }
}
