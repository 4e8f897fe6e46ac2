//! Text of a growing list of tokens, piece by piece, never half a character.
//!
//! Apart because decoders are not prefix-stable: a character may span tokens, a decoder may strip the first space.
//! Must not know: stop strings, sequences, channels.

use crate::tokenizer::Tokenizer;

/// Tokens kept as left context when the window is cut at the end of a character. A character has at most 4 bytes
/// and a token at least one, so the last character lies whole in the window; the context before it keeps a
/// decoder from stripping a space as if the text began there.
const CONTEXT_TOKENS: usize = 4;
/// Window length from which it is cut, so that each push decodes a bounded number of tokens.
const WINDOW_TOKENS: usize = 16;
/// Window length from which its text is handed out as it is: so many tokens without the end of a character in
/// between are no text.
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
        if self.window.len() >= WINDOW_TOKENS_MAX {
            return self.finish(tokenizer);
        }
        let full = decode(tokenizer, &self.window);
        let certain = certain(&full);
        let Some(piece) = certain.strip_prefix(self.emitted.as_str()) else {
            // A decoder that joins byte tokens may for a moment show finished characters as unfinished: wait.
            return String::new();
        };
        let piece = piece.to_owned();
        if certain.len() == full.len() && self.window.len() >= WINDOW_TOKENS {
            self.window.drain(..self.window.len() - CONTEXT_TOKENS);
            self.emitted = decode(tokenizer, &self.window);
        } else {
            self.emitted.push_str(&piece);
        }
        piece
    }

    /// The rest: an unfinished character at the end of the tokens, as U+FFFD.
    pub fn finish(&mut self, tokenizer: &Tokenizer) -> String {
        let full = decode(tokenizer, &self.window);
        let rest = behind_common_prefix(&full, &self.emitted).to_owned();
        self.window.clear();
        self.emitted.clear();
        rest
    }
}

/// Tokens that a decoder cannot take have no text; the library's decoders for byte-level and sentence-piece
/// vocabularies take all.
fn decode(tokenizer: &Tokenizer, tokens: &[u32]) -> String {
    tokenizer.decode(tokens).unwrap_or_default()
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

fn behind_common_prefix<'a>(text: &'a str, prefix: &str) -> &'a str {
    let mut letters = text.chars();
    let mut expected = prefix.chars();
    loop {
        let rest = letters.as_str();
        match (letters.next(), expected.next()) {
            (Some(letter), Some(other)) if letter == other => {}
            (Some(_) | None, Some(_) | None) => return rest,
        }
    }
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
    fn special_tokens_have_no_text() {
        let mut tokens = bytes("hi");
        tokens.insert(1, TOY_END);
        check(&tokens, &["h", "", "i"], "");
    }

    #[test]
    fn a_window_is_not_cut_inside_a_character() {
        // 16 tokens end three bytes into the last character.
        check(
            &bytes("🙂🙂a🙂🙂"),
            &["", "", "", "🙂", "", "", "", "🙂", "a", "", "", "", "🙂", "", "", "", "🙂"],
            "",
        );
    }

    #[test]
    fn bytes_that_are_no_text_come_out_after_a_while() {
        let tokenizer = toy_tokenizer();
        let mut detokenizer = Detokenizer::default();
        // 0x80 continues a character that never began.
        let pieces: String = (0..200).map(|_| detokenizer.push(&tokenizer, 0x80)).collect();
        assert_eq!(pieces.chars().count(), 197, "the last three may be one unfinished character");
        assert_eq!(detokenizer.finish(&tokenizer).chars().count(), 3);
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
                prop_assert!(text.starts_with(&joined));
            }
            joined.push_str(&detokenizer.finish(&tokenizer));
            prop_assert_eq!(joined, text);
        }

        /// Fewer tokens than the window holds are decoded as all at once, whatever their bytes.
        #[test]
        fn pieces_of_any_bytes_add_up(tokens in proptest::collection::vec(0u32..256, 0..60)) {
            let tokenizer = toy_tokenizer();
            let mut detokenizer = Detokenizer::default();
            let mut joined: String = tokens.iter().map(|token| detokenizer.push(&tokenizer, *token)).collect();
            joined.push_str(&detokenizer.finish(&tokenizer));
            prop_assert_eq!(joined, tokenizer.decode(&tokens).unwrap());
        }
    }
}
