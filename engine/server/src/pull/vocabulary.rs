//! A byte-level BPE vocabulary out of GGUF metadata, and the files that Hugging Face's tokenizers read. Apart because the splitting
//! rule is only named in a GGUF and has to be known here. Must not know tensors. A rule that is not known for certain is refused: a
//! guessed one would tokenise most texts right and some wrong.

use std::collections::{BTreeMap, HashMap};

use serde::ser::{Serialize, SerializeMap, Serializer};
use serde_json::{Value, json};

use super::metadata::Metadata;

/// The regular expressions of Llama 3 and Qwen 2 as their own tokenizer.json files have them; they differ in how many digits stay together.
const LLAMA3_SPLIT: &str = "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";
const QWEN2_SPLIT: &str = "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";

/// GGUF's token types that matter here: those that a text cannot contain by accident.
const TYPE_CONTROL: i64 = 3;
const TYPE_USER_DEFINED: i64 = 4;

/// Everything about text. Ids are indices into `tokens`.
#[derive(Debug)]
pub struct Vocabulary {
    /// By id, in the byte-to-character alphabet of GPT-2.
    pub tokens: Vec<String>,
    pub bos: Option<u32>,
    pub eos: u32,
    pub pad: Option<u32>,
    unknown: Option<u32>,
    added: Vec<Added>,
    /// In order of rank, "left right".
    merges: Vec<String>,
    split: Split,
    add_bos: bool,
    chat_template: Option<String>,
}

#[derive(Debug)]
struct Added {
    id: u32,
    special: bool,
}

/// How a text is cut before merging.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Split {
    Gpt2,
    /// GPT-2's after single digits were set apart.
    Smollm,
    Llama3,
    Qwen2,
}

impl Split {
    fn of_name(name: &str) -> Option<Split> {
        match name {
            "gpt-2" => Some(Split::Gpt2),
            "smollm" => Some(Split::Smollm),
            "llama-bpe" => Some(Split::Llama3),
            "qwen2" => Some(Split::Qwen2),
            _ => None,
        }
    }

    fn pre_tokenizer(self) -> Step {
        match self {
            Split::Gpt2 => Step::BYTES_BY_REGEX,
            Split::Smollm => Step::Sequence {
                pretokenizers: vec![Step::Digits { individual_digits: true }, Step::BYTES_BY_REGEX],
            },
            Split::Llama3 => Step::regex(LLAMA3_SPLIT),
            Split::Qwen2 => Step::regex(QWEN2_SPLIT),
        }
    }

    fn normalizer(self) -> Option<Step> {
        match self {
            Split::Gpt2 | Split::Smollm | Split::Llama3 => None,
            Split::Qwen2 => Some(Step::Nfc),
        }
    }

    /// Whether a piece that is a token as a whole is taken without merging.
    fn ignores_merges(self) -> bool {
        match self {
            Split::Gpt2 | Split::Smollm | Split::Qwen2 => false,
            Split::Llama3 => true,
        }
    }

    fn tokenizer_class(self) -> &'static str {
        match self {
            Split::Gpt2 | Split::Smollm => "GPT2Tokenizer",
            Split::Llama3 => "PreTrainedTokenizerFast",
            Split::Qwen2 => "Qwen2Tokenizer",
        }
    }
}

impl Vocabulary {
    /// Reads the `tokenizer.*` metadata.
    ///
    /// # Errors
    /// In words: another kind of tokenizer, an unknown splitting rule, ids outside the vocabulary, merges that do not fit it.
    pub fn of_metadata(metadata: &Metadata) -> Result<Vocabulary, String> {
        let text = |error: super::metadata::MetadataError| error.to_string();
        let model = metadata.text("tokenizer.ggml.model").map_err(text)?;
        if model != "gpt2" {
            return Err(format!(
                "its tokenizer is of the kind {model}, and only gpt2 (byte-level BPE) is read"
            ));
        }
        let rule = metadata.text("tokenizer.ggml.pre").map_err(text)?;
        let split = Split::of_name(rule).ok_or_else(|| {
            format!("its tokenizer splits text by the rule {rule}, and only gpt-2, smollm, llama-bpe and qwen2 are known")
        })?;
        let tokens = metadata.texts("tokenizer.ggml.tokens").map_err(text)?;
        if tokens.is_empty() {
            return Err("its vocabulary is empty".to_owned());
        }
        let id = |key: &str| match metadata.find_unsigned(key).map_err(text)? {
            None => Ok(None),
            // The number of tokens was bounded by the reader far below u32.
            Some(id) if id < tokens.len() as u64 => Ok(Some(id as u32)),
            Some(id) => Err(format!("{key} is {id}, and there are only {} tokens", tokens.len())),
        };
        let merges = metadata.texts("tokenizer.ggml.merges").map_err(text)?;
        check_merges(tokens, merges)?;
        Ok(Vocabulary {
            bos: id("tokenizer.ggml.bos_token_id")?,
            eos: id("tokenizer.ggml.eos_token_id")?.ok_or("its vocabulary names no end of text")?,
            pad: id("tokenizer.ggml.padding_token_id")?,
            unknown: id("tokenizer.ggml.unknown_token_id")?,
            added: added(metadata, tokens.len())?,
            tokens: tokens.to_vec(),
            merges: merges.to_vec(),
            split,
            add_bos: metadata
                .find_bool("tokenizer.ggml.add_bos_token")
                .map_err(text)?
                .unwrap_or(split == Split::Llama3),
            chat_template: metadata.find_text("tokenizer.chat_template").map_err(text)?.map(str::to_owned),
        })
    }

    fn token(&self, id: u32) -> &str {
        &self.tokens[id as usize]
    }

    /// The added tokens in the form that tokenizer.json and tokenizer_config.json share; only the first has ids in it.
    fn added_token(&self, added: &Added, id: Option<u32>) -> AddedToken<'_> {
        AddedToken {
            id,
            content: self.token(added.id),
            single_word: false,
            lstrip: false,
            rstrip: false,
            normalized: false,
            special: added.special,
        }
    }

    pub fn tokenizer_json(&self) -> String {
        let added = self.added.iter();
        let file = TokenizerFile {
            version: "1.0",
            truncation: None,
            padding: None,
            added_tokens: added.map(|added| self.added_token(added, Some(added.id))).collect(),
            normalizer: self.split.normalizer(),
            pre_tokenizer: self.split.pre_tokenizer(),
            post_processor: self.post_processor(),
            decoder: Step::ByteLevel { add_prefix_space: true, trim_offsets: true, use_regex: true },
            model: BpeModel {
                kind: "BPE",
                dropout: None,
                unk_token: None,
                continuing_subword_prefix: None,
                end_of_word_suffix: None,
                fuse_unk: false,
                byte_fallback: false,
                ignore_merges: self.split.ignores_merges(),
                vocab: ById(&self.tokens),
                merges: &self.merges,
            },
        };
        json_text(&file, b" ")
    }

    /// Puts the first token before a text where the model wants it.
    fn post_processor(&self) -> Value {
        let (true, Some(bos)) = (self.add_bos, self.bos) else {
            return Value::Null;
        };
        let token = self.token(bos);
        let special = json!({"SpecialToken": {"id": token, "type_id": 0}});
        let sequence = |id: &str, type_id: u32| json!({"Sequence": {"id": id, "type_id": type_id}});
        json!({
            "type": "TemplateProcessing",
            "single": [special, sequence("A", 0)],
            "pair": [special, sequence("A", 0), {"SpecialToken": {"id": token, "type_id": 1}}, sequence("B", 1)],
            "special_tokens": {token: {"id": token, "ids": [bos], "tokens": [token]}},
        })
    }

    /// The longest prompt is told in tokens.
    pub fn tokenizer_config_json(&self, context_tokens: u64) -> String {
        let decoder = self.added.iter().map(|added| (added.id, self.added_token(added, None))).collect();
        json_text(
            &TokenizerConfig {
                add_bos_token: self.add_bos,
                add_prefix_space: false,
                added_tokens_decoder: decoder,
                additional_special_tokens: self.template_tokens(),
                bos_token: self.bos.map(|id| self.token(id)),
                chat_template: self.chat_template.as_deref(),
                clean_up_tokenization_spaces: false,
                eos_token: self.token(self.eos),
                model_max_length: context_tokens,
                pad_token: self.pad.map(|id| self.token(id)),
                tokenizer_class: self.split.tokenizer_class(),
                unk_token: self.unknown.map(|id| self.token(id)),
            },
            b"  ",
        )
    }

    pub fn special_tokens_map_json(&self) -> String {
        json_text(
            &SpecialTokensMap {
                bos_token: self.bos.map(|id| self.token(id)),
                eos_token: self.token(self.eos),
                unk_token: self.unknown.map(|id| self.token(id)),
                pad_token: self.pad.map(|id| self.token(id)),
                additional_special_tokens: self.template_tokens(),
            },
            b"  ",
        )
    }

    /// The control tokens that the chat template writes: what Hugging Face lists as additional special tokens.
    fn template_tokens(&self) -> Vec<&str> {
        let template = self.chat_template.as_deref().unwrap_or("");
        self.added
            .iter()
            .filter(|added| added.special)
            .map(|added| self.token(added.id))
            .filter(|token| template.contains(token))
            .collect()
    }

    pub fn generation_config_json(&self) -> String {
        json_text(
            &GenerationConfig {
                from_model_config: true,
                bos_token_id: self.bos,
                eos_token_id: self.eos,
                pad_token_id: self.pad,
            },
            b"  ",
        )
    }
}

fn added(metadata: &Metadata, tokens: usize) -> Result<Vec<Added>, String> {
    let Some(types) =
        metadata.find_signeds("tokenizer.ggml.token_type").map_err(|error| error.to_string())?
    else {
        return Err("metadata tokenizer.ggml.token_type is missing".to_owned());
    };
    if types.len() != tokens {
        return Err(format!("it lists {} token types for {tokens} tokens", types.len()));
    }
    Ok((0..)
        .zip(types)
        .filter(|(_, kind)| [TYPE_CONTROL, TYPE_USER_DEFINED].contains(kind))
        .map(|(id, kind)| Added { id, special: *kind == TYPE_CONTROL })
        .collect())
}

/// A tokenizer that loads only to fail later is worse than none: tokens are unique, and each merge joins two tokens into a third.
fn check_merges(tokens: &[String], merges: &[String]) -> Result<(), String> {
    let mut ids = HashMap::with_capacity(tokens.len());
    for (id, token) in tokens.iter().enumerate() {
        if let Some(first) = ids.insert(token.as_str(), id) {
            return Err(format!("its tokens {first} and {id} are the same: {token:?}"));
        }
    }
    for merge in merges {
        let joined = merge.split_once(' ').filter(|(left, right)| {
            let whole = format!("{left}{right}");
            [left, right, &whole.as_str()].iter().all(|piece| ids.contains_key(*piece))
        });
        if joined.is_none() {
            return Err(format!("its merge {merge:?} does not join two tokens into a third"));
        }
    }
    Ok(())
}

/// JSON indented by `indent`, as the libraries that write such files do, so that files can be compared with theirs.
pub fn json_text<T: Serialize>(value: &T, indent: &[u8]) -> String {
    let mut text = Vec::new();
    let formatter = serde_json::ser::PrettyFormatter::with_indent(indent);
    value
        .serialize(&mut serde_json::Serializer::with_formatter(&mut text, formatter))
        .expect("numbers and texts under text keys always serialise into memory");
    String::from_utf8(text).expect("serde_json writes UTF-8")
}

/// One stage of a tokenizer, as tokenizer.json spells it.
#[derive(serde::Serialize)]
#[serde(tag = "type")]
enum Step {
    ByteLevel {
        add_prefix_space: bool,
        trim_offsets: bool,
        use_regex: bool,
    },
    Digits {
        individual_digits: bool,
    },
    Split {
        pattern: Pattern,
        behavior: &'static str,
        invert: bool,
    },
    Sequence {
        pretokenizers: Vec<Step>,
    },
    #[serde(rename = "NFC")]
    Nfc,
}

#[derive(serde::Serialize)]
enum Pattern {
    Regex(&'static str),
}

impl Step {
    /// Bytes to characters after GPT-2's own cut.
    const BYTES_BY_REGEX: Step =
        Step::ByteLevel { add_prefix_space: false, trim_offsets: true, use_regex: true };

    /// Another cut, then bytes to characters.
    fn regex(regex: &'static str) -> Step {
        let split = Step::Split { pattern: Pattern::Regex(regex), behavior: "Isolated", invert: false };
        let bytes = Step::ByteLevel { add_prefix_space: false, trim_offsets: true, use_regex: false };
        Step::Sequence { pretokenizers: vec![split, bytes] }
    }
}

#[derive(serde::Serialize)]
struct AddedToken<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<u32>,
    content: &'a str,
    single_word: bool,
    lstrip: bool,
    rstrip: bool,
    normalized: bool,
    special: bool,
}

#[derive(serde::Serialize)]
struct TokenizerConfig<'a> {
    add_bos_token: bool,
    add_prefix_space: bool,
    added_tokens_decoder: BTreeMap<u32, AddedToken<'a>>,
    additional_special_tokens: Vec<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    bos_token: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    chat_template: Option<&'a str>,
    clean_up_tokenization_spaces: bool,
    eos_token: &'a str,
    /// In tokens.
    model_max_length: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pad_token: Option<&'a str>,
    tokenizer_class: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    unk_token: Option<&'a str>,
}

#[derive(serde::Serialize)]
struct SpecialTokensMap<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    bos_token: Option<&'a str>,
    eos_token: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    unk_token: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pad_token: Option<&'a str>,
    additional_special_tokens: Vec<&'a str>,
}

#[derive(serde::Serialize)]
struct GenerationConfig {
    #[serde(rename = "_from_model_config")]
    from_model_config: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    bos_token_id: Option<u32>,
    eos_token_id: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    pad_token_id: Option<u32>,
}

#[derive(serde::Serialize)]
struct TokenizerFile<'a> {
    version: &'static str,
    truncation: Option<()>,
    padding: Option<()>,
    added_tokens: Vec<AddedToken<'a>>,
    normalizer: Option<Step>,
    pre_tokenizer: Step,
    post_processor: Value,
    decoder: Step,
    model: BpeModel<'a>,
}

#[derive(serde::Serialize)]
struct BpeModel<'a> {
    #[serde(rename = "type")]
    kind: &'static str,
    dropout: Option<f64>,
    unk_token: Option<&'a str>,
    continuing_subword_prefix: Option<&'a str>,
    end_of_word_suffix: Option<&'a str>,
    fuse_unk: bool,
    byte_fallback: bool,
    ignore_merges: bool,
    vocab: ById<'a>,
    merges: &'a [String],
}

/// The vocabulary as an object from token to id, in order of ids, as people read it.
struct ById<'a>(&'a [String]);

impl Serialize for ById<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.0.len()))?;
        for (id, token) in self.0.iter().enumerate() {
            map.serialize_entry(token, &id)?;
        }
        map.end()
    }
}
