//! Text to token ids and back, over a Hugging Face tokenizer.json.
//!
//! Apart so that one type owns what the tokenizer library can and cannot do. Must not know: sequences, chat templates.

use thiserror::Error;

/// Why a tokenizer could not be made or used.
#[derive(Debug, Error)]
pub enum TokenizerError {
    #[error("tokenizer.json is not a tokenizer: {0}")]
    Parse(String),
    #[error("could not encode the text: {0}")]
    Encode(String),
    #[error("could not decode the tokens: {0}")]
    Decode(String),
}

/// Whether encoding adds the tokens that the tokenizer's own post-processor adds, such as a begin token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Specials {
    Add,
    Omit,
}

/// A tokenizer.
pub struct Tokenizer {
    inner: tokenizers::Tokenizer,
    vocabulary: usize,
    /// Which ids are special, sorted.
    special: Vec<u32>,
}

impl Tokenizer {
    /// Reads a tokenizer.json.
    ///
    /// # Errors
    /// When the bytes are not one.
    pub fn from_bytes(json: &[u8]) -> Result<Tokenizer, TokenizerError> {
        let parse = |error: tokenizers::Error| TokenizerError::Parse(error.to_string());
        let mut inner = tokenizers::Tokenizer::from_bytes(json).map_err(parse)?;
        // A prompt is never cut or filled silently, whatever the file asks for.
        inner.with_padding(None);
        inner.with_truncation(None).map_err(parse)?;
        let mut special: Vec<u32> = inner
            .get_added_tokens_decoder()
            .iter()
            .filter(|(_, token)| token.special)
            .map(|(id, _)| *id)
            .collect();
        special.sort_unstable();
        let vocabulary = inner.get_vocab(true).into_values().max().map_or(0, |id| id as usize + 1);
        Ok(Tokenizer { inner, vocabulary, special })
    }

    /// Token ids of `text`, such as a rendered chat template; special tokens written in the text are recognised,
    /// none is added.
    ///
    /// # Errors
    /// When the tokenizer's model cannot express the text.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>, TokenizerError> {
        self.encode_with(text, Specials::Omit)
    }

    /// As [`Tokenizer::encode`], with what the post-processor adds when asked for.
    ///
    /// # Errors
    /// When the tokenizer's model cannot express the text.
    pub fn encode_with(&self, text: &str, specials: Specials) -> Result<Vec<u32>, TokenizerError> {
        let add = match specials {
            Specials::Add => true,
            Specials::Omit => false,
        };
        let encoding =
            self.inner.encode_fast(text, add).map_err(|error| TokenizerError::Encode(error.to_string()))?;
        Ok(encoding.get_ids().to_vec())
    }

    /// Text of `ids`, special tokens skipped. Bytes that are no UTF-8 become U+FFFD.
    ///
    /// # Errors
    /// When the decoder fails.
    pub fn decode(&self, ids: &[u32]) -> Result<String, TokenizerError> {
        self.inner.decode(ids, true).map_err(|error| TokenizerError::Decode(error.to_string()))
    }

    /// Text of one token, special tokens shown as written; for log-probability listings.
    pub fn token_text(&self, id: u32) -> String {
        self.inner.decode(&[id], false).unwrap_or_default()
    }

    /// Largest id plus one.
    pub fn vocabulary(&self) -> usize {
        self.vocabulary
    }

    /// Id of a token as written in the vocabulary.
    pub fn token_id(&self, token: &str) -> Option<u32> {
        self.inner.token_to_id(token)
    }

    /// Whether `id` is a special token, which has no text.
    pub fn is_special(&self, id: u32) -> bool {
        self.special.binary_search(&id).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use crate::testing::{TOY_END, toy_tokenizer};

    #[test]
    fn encode_then_decode_is_the_text() {
        let tokenizer = toy_tokenizer();
        for text in ["", "plain", "Übersetze 你好 🙂", "tab\tand\nnewline", "  two  spaces "] {
            let ids = tokenizer.encode(text).expect("toy tokenizer encodes");
            assert_eq!(ids.len(), text.len(), "one token per byte");
            assert_eq!(tokenizer.decode(&ids).expect("toy tokenizer decodes"), text);
        }
    }

    #[test]
    fn a_special_token_is_one_id_and_has_no_text() {
        let tokenizer = toy_tokenizer();
        assert_eq!(tokenizer.encode("<|end|>").expect("toy tokenizer encodes"), [TOY_END]);
        assert!(tokenizer.is_special(TOY_END));
        assert_eq!(tokenizer.decode(&[TOY_END]).expect("toy tokenizer decodes"), "");
        assert_eq!(tokenizer.token_text(TOY_END), "<|end|>");
    }
}
