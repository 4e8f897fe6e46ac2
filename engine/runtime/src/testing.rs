//! A toy runner and a toy tokenizer, for tests of the engine and of what stands on it.
//!
//! Apart from the tests because the server's tests use them too. Must not know: real models, devices.
//!
//! The toy's logits are a hash of all tokens of the context *as read back from its cache through the block table*:
//! a wrong block, a lost token or two sequences in one block change what is generated.

use crate::batch::{Batch, LogitRows};
use crate::runner::{Logits, Reservation, RunError, Runner};
use crate::sampler::mix;
use crate::tokenizer::Tokenizer;

/// The toy's own end token; ids below are the 256 bytes.
pub const TOY_END: u32 = 256;
/// `<think>`.
pub const TOY_THINK: u32 = 257;
/// `</think>`.
pub const TOY_THINK_END: u32 = 258;
/// Ids of the toy vocabulary.
pub const TOY_VOCABULARY: usize = 259;

/// A runner whose likeliest next token is a hash of the context, printable ASCII, or now and then the end token.
pub struct ToyRunner {
    context_max: usize,
    /// One token end in this many, on average; 0 never.
    end_one_in: u64,
    /// Every step from this one on fails.
    fails_from: Option<u64>,
    steps: u64,
    reservation: Option<Reservation>,
    /// One token a slot, as a real cache holds one key.
    cache: Vec<Option<u32>>,
}

impl ToyRunner {
    /// A toy of that context length that ends sequences after 32 tokens on average.
    pub fn new(context_max: usize) -> ToyRunner {
        ToyRunner {
            context_max,
            end_one_in: 32,
            fails_from: None,
            steps: 0,
            reservation: None,
            cache: Vec::new(),
        }
    }

    /// Never draws the end token greedily.
    pub fn endless(mut self) -> ToyRunner {
        self.end_one_in = 0;
        self
    }

    /// Fails every step from the given one on, the first being 0.
    pub fn failing_from(mut self, step: u64) -> ToyRunner {
        self.fails_from = Some(step);
        self
    }

    /// The toy's logits after `context`.
    pub fn logits(&self, context: &[u32]) -> Vec<f32> {
        let state = context.iter().fold(7u64, |state, token| mix(state ^ (u64::from(*token) + 1)));
        let mut logits: Vec<f32> = (0..TOY_VOCABULARY as u64)
            .map(|token| (mix(state ^ (token << 32)) >> 40) as f32 / (1u64 << 22) as f32)
            .collect();
        let end = self.end_one_in > 0 && state % self.end_one_in == 0;
        let likeliest = if end { TOY_END as usize } else { 32 + (state >> 8) as usize % 95 };
        logits[likeliest] = 8.0;
        logits
    }
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
        let Reservation { block_tokens, rows_max, logit_rows_max, .. } =
            self.reservation.ok_or(RunError::NotReserved)?;
        let step = self.steps;
        self.steps += 1;
        if self.fails_from.is_some_and(|from| step >= from) {
            return Err(RunError::Device("the toy was told to fail".to_owned()));
        }
        if batch.rows() > rows_max {
            return Err(RunError::TooManyRows { rows: batch.rows(), max: rows_max });
        }
        assert!(batch.logit_rows().len() <= logit_rows_max, "more logits are wanted than reserved");
        let slot =
            |blocks: &[u32], at: usize| blocks[at / block_tokens] as usize * block_tokens + at % block_tokens;
        // All are stored before any is read, as a device does: a block in two sequences then shows.
        for sequence in &batch.sequences {
            let start = sequence.context - sequence.tokens.len();
            for (offset, token) in sequence.tokens.iter().enumerate() {
                self.cache[slot(&sequence.blocks, start + offset)] = Some(*token);
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
                values.extend(self.logits(&context[..end]));
            }
        }
        Ok(Logits { values, vocabulary: TOY_VOCABULARY })
    }
}

/// A byte-level tokenizer: ids 0 to 255 are the bytes, then `<|end|>` (special), `<think>` and `</think>`.
pub fn toy_tokenizer() -> Tokenizer {
    let vocabulary: serde_json::Map<String, serde_json::Value> =
        (0..=255u8).map(|byte| (byte_character(byte).to_string(), u64::from(byte).into())).collect();
    let added = |id: u32, content: &str, special: bool| {
        serde_json::json!({
            "id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false,
            "normalized": false, "special": special,
        })
    };
    let json = serde_json::json!({
        "version": "1.0", "truncation": null, "padding": null, "normalizer": null, "post_processor": null,
        "added_tokens": [
            added(TOY_END, "<|end|>", true),
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
    });
    Tokenizer::from_bytes(json.to_string().as_bytes()).expect("the toy tokenizer is well formed")
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
