//! Text of a growing list of tokens, piece by piece, never half a character.
//!
//! Apart because decoders are not prefix-stable: a character may span tokens, a decoder may strip the first space.
//! Must not know: stop strings, sequences, channels.

use crate::tokenizer::Tokenizer;

/// Tokens kept as left context when the window is cut. A character has at most 4 bytes, so at most 4 tokens:
/// kept behind a finished character, they hold all of it.
const CONTEXT_TOKENS: usize = 4;
/// Window length from which it is cut behind the next finished character.
const WINDOW_TOKENS: usize = 16;
/// Window length at which it is given up, finished or not, so that each push decodes a bounded number of tokens.
/// Text gets there only by this many bytes in a row that are no UTF-8.
const WINDOW_TOKENS_MAX: usize = 64;
/// Replacement characters that a decoder may write for one unfinished character: one, or one per byte.
const UNFINISHED_MAX: usize = 3;

const REPLACEMENT: char = '\u{FFFD}';

/// Turns tokens into text as they arrive. The pieces, with [`Detokenizer::finish`]'s, are the whole text.
#[derive(Debug, Default)]
pub(crate) struct Detokenizer {
    window: Vec<u32>,
    /// Text of the window that was handed out already.
    emitted: String,
}

impl Detokenizer {
    /// Text that became certain with `token`; empty for special tokens and unfinished characters.
    pub fn push(&mut self, tokenizer: &Tokenizer, token: u32) -> String {
        if tokenizer.is_special(token) {
            return String::new();
        }
        self.window.push(token);
        let full = tokenizer.decode(&self.window).unwrap_or_default();
        let certain = certain(&full);
        // A decoder that joins byte tokens may for a moment show finished characters as unfinished: wait then.
        let piece = certain.strip_prefix(self.emitted.as_str()).map(str::to_owned);
        if piece.is_some() {
            self.emitted.clear();
            self.emitted.push_str(certain);
        }
        let mut piece = piece.unwrap_or_default();
        if self.window.len() >= WINDOW_TOKENS && self.emitted == full {
            self.window.drain(..self.window.len() - CONTEXT_TOKENS);
            self.emitted = tokenizer.decode(&self.window).unwrap_or_default();
        } else if self.window.len() >= WINDOW_TOKENS_MAX {
            piece.push_str(&self.finish(tokenizer));
        }
        piece
    }

    /// The rest: an unfinished character at the end of the tokens, as U+FFFD.
    pub fn finish(&mut self, tokenizer: &Tokenizer) -> String {
        let full = tokenizer.decode(&self.window).unwrap_or_default();
        let rest = full.strip_prefix(self.emitted.as_str()).unwrap_or_default().to_owned();
        self.window.clear();
        self.emitted.clear();
        rest
    }
}

/// The part of `text` that no later token can change.
fn certain(text: &str) -> &str {
    let mut rest = text;
    for _ in 0..UNFINISHED_MAX {
        match rest.strip_suffix(REPLACEMENT) {
            Some(shorter) => rest = shorter,
            None => break,
        }
    }
    rest
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{TOY_END, toy_tokenizer};
    use proptest::prelude::*;

    #[track_caller]
    fn check(tokens: &[u32], pieces: &[&str], rest: &str) {
        let tokenizer = toy_tokenizer();
        let mut detokenizer = Detokenizer::default();
        let found: Vec<String> = tokens.iter().map(|token| detokenizer.push(&tokenizer, *token)).collect();
        assert_eq!(found, pieces);
        assert_eq!(detokenizer.finish(&tokenizer), rest);
    }

    fn bytes(text: &str) -> Vec<u32> {
        toy_tokenizer().encode(text).expect("toy tokenizer encodes")
    }

    #[test]
    fn a_character_appears_with_its_last_byte() {
        check(&bytes("aé"), &["a", "", "é"], "");
        check(&bytes("🙂!"), &["", "", "", "🙂", "!"], "");
        check(&bytes("你好"), &["", "", "你", "", "", "好"], "");
    }

    #[test]
    fn an_unfinished_character_comes_out_at_the_end_only() {
        check(&bytes("a🙂")[..4], &["a", "", "", ""], "\u{FFFD}");
    }

    #[test]
    fn endless_bytes_that_are_no_text_stay_bounded() {
        let tokenizer = toy_tokenizer();
        let mut detokenizer = Detokenizer::default();
        let mut characters = 0;
        for _ in 0..1000 {
            characters += detokenizer.push(&tokenizer, 0x80).chars().count();
            assert!(detokenizer.window.len() < WINDOW_TOKENS_MAX);
        }
        assert_eq!(characters + detokenizer.finish(&tokenizer).chars().count(), 1000);
    }

    #[test]
    fn special_tokens_have_no_text() {
        let mut tokens = bytes("hi");
        tokens.insert(1, TOY_END);
        check(&tokens, &["h", "", "i"], "");
    }

    proptest! {
        #[test]
        fn pieces_add_up_to_the_text(text in "[a-cé你🙂 \n]{0,60}") {
            let tokenizer = toy_tokenizer();
            let mut detokenizer = Detokenizer::default();
            let mut joined = String::new();
            for token in bytes(&text) {
                let piece = detokenizer.push(&tokenizer, token);
                prop_assert!(!piece.contains(REPLACEMENT));
                joined.push_str(&piece);
            }
            joined.push_str(&detokenizer.finish(&tokenizer));
            prop_assert_eq!(joined, text);
        }

        /// Up to where the window is given up, the pieces are what the bytes are as lossy UTF-8.
        #[test]
        fn bytes_that_are_no_text_come_out_as_replacements(tokens in proptest::collection::vec(0u32..256, 0..60)) {
            let tokenizer = toy_tokenizer();
            let mut detokenizer = Detokenizer::default();
            let mut joined = String::new();
            for token in &tokens {
                joined.push_str(&detokenizer.push(&tokenizer, *token));
            }
            joined.push_str(&detokenizer.finish(&tokenizer));
            let bytes: Vec<u8> = tokens.iter().map(|token| *token as u8).collect();
            prop_assert_eq!(joined, String::from_utf8_lossy(&bytes).into_owned());
        }
    }
}
