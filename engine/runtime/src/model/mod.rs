//! A model from the bytes of its folder: configuration, weights, forward pass, tokenizer, chat template.
//!
//! Apart so that only this module knows file formats and architectures. Must not know: where the bytes come from,
//! scheduling, sampling.

mod config;
mod decoder;
mod family;
mod json;
mod layer;
mod mlp;
mod rope;
mod weights;

use pitot_kernels::{Device, DeviceError};
use serde_json::Value as Json;
use thiserror::Error;

use crate::chat::{ChatError, ChatTemplate};
use crate::tokenizer::{Tokenizer, TokenizerError};

pub use decoder::ModelRunner;

/// The files of a model folder, read or mapped by the caller.
#[derive(Debug, Clone, Default)]
pub struct ModelFiles<'a> {
    /// config.json.
    pub config: &'a [u8],
    /// generation_config.json.
    pub generation_config: Option<&'a [u8]>,
    /// tokenizer.json.
    pub tokenizer: &'a [u8],
    /// tokenizer_config.json.
    pub tokenizer_config: Option<&'a [u8]>,
    /// special_tokens_map.json.
    pub special_tokens_map: Option<&'a [u8]>,
    /// chat_template.jinja.
    pub chat_template: Option<&'a str>,
    /// Every safetensors file.
    pub tensors: Vec<&'a [u8]>,
}

/// What the model's authors recommend; absent keys are not set.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct GenerationDefaults {
    /// End tokens.
    pub eos_token_ids: Vec<u32>,
    pub temperature: Option<f32>,
    pub top_p: Option<f32>,
    pub top_k: Option<u32>,
    pub min_p: Option<f32>,
    pub repetition_penalty: Option<f32>,
}

/// A model ready to run.
pub struct Loaded<D: Device> {
    pub runner: ModelRunner<D>,
    pub tokenizer: Tokenizer,
    pub chat: ChatTemplate,
    pub generation: GenerationDefaults,
    /// Whether prompts of plain text start with the tokenizer's begin token.
    pub add_bos: bool,
}

/// Why a model cannot be loaded.
#[derive(Debug, Error)]
pub enum LoadError {
    #[error("{file} is not well formed: {error}")]
    Json { file: &'static str, error: serde_json::Error },
    #[error("architecture {found:?} is not supported; supported: {supported}")]
    Architecture { found: String, supported: String },
    #[error("config.json has {key} = {value}, which is not supported")]
    Unsupported { key: &'static str, value: String },
    #[error("config.json lacks {key}")]
    Missing { key: &'static str },
    #[error("config.json has {key} = {value}: {why}")]
    Invalid { key: &'static str, value: String, why: &'static str },
    #[error("a weights file is not safetensors: {0}")]
    Safetensors(String),
    #[error("the weights lack the tensor {name}")]
    MissingTensor { name: String },
    #[error("the tensor {name} has the shape {found:?}, but {expected:?} is needed")]
    TensorShape { name: String, found: Vec<usize>, expected: Vec<usize> },
    #[error("the tensor {name} is of type {found}; supported: BF16, F16, F32")]
    TensorType { name: String, found: String },
    #[error(transparent)]
    Device(#[from] DeviceError),
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
    #[error(transparent)]
    Chat(#[from] ChatError),
}

/// Loads a model onto a device.
///
/// # Errors
/// When a file is not well formed, the model is of a kind that is not supported, or the device has no room.
pub fn load<D: Device>(files: &ModelFiles<'_>, device: D) -> Result<Loaded<D>, LoadError> {
    let config_json = parse("config.json", files.config)?;
    let config = family::config(&config_json)?;
    let generation_json = optional_json("generation_config.json", files.generation_config)?;
    let tokenizer_json = optional_json("tokenizer_config.json", files.tokenizer_config)?;
    let specials_json = optional_json("special_tokens_map.json", files.special_tokens_map)?;
    let tokenizer = Tokenizer::from_bytes(files.tokenizer)?;
    let chat = ChatTemplate::new(&tokenizer_json, &specials_json, files.chat_template)?;
    let generation = generation_defaults(&generation_json, &config_json);
    let add_bos = tokenizer_json["add_bos_token"].as_bool().unwrap_or(false);
    let weights = weights::Weights::new(&files.tensors)?;
    let runner = ModelRunner::new(config, &weights, device)?;
    Ok(Loaded { runner, tokenizer, chat, generation, add_bos })
}

fn parse(file: &'static str, bytes: &[u8]) -> Result<Json, LoadError> {
    serde_json::from_slice(bytes).map_err(|error| LoadError::Json { file, error })
}

fn optional_json(file: &'static str, bytes: Option<&[u8]>) -> Result<Json, LoadError> {
    bytes.map_or(Ok(Json::Null), |bytes| parse(file, bytes))
}

fn generation_defaults(generation: &Json, config: &Json) -> GenerationDefaults {
    let mut eos_token_ids = ids(&generation["eos_token_id"]);
    if eos_token_ids.is_empty() {
        eos_token_ids = ids(&config["eos_token_id"]);
    }
    let number = |key: &str| generation[key].as_f64().map(|number| number as f32);
    GenerationDefaults {
        eos_token_ids,
        temperature: number("temperature"),
        top_p: number("top_p"),
        min_p: number("min_p"),
        repetition_penalty: number("repetition_penalty"),
        // Model folders write "no limit" as 0.
        top_k: generation["top_k"].as_u64().and_then(|k| u32::try_from(k).ok()).filter(|k| *k > 0),
    }
}

/// One id or a list.
fn ids(value: &Json) -> Vec<u32> {
    let id = |value: &Json| value.as_u64().and_then(|id| u32::try_from(id).ok());
    value
        .as_array()
        .map_or_else(|| id(value).into_iter().collect(), |list| list.iter().filter_map(id).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn end_tokens_come_from_either_file() {
        let eos = |generation, config| generation_defaults(&generation, &config).eos_token_ids;
        assert_eq!(eos(json!({ "eos_token_id": [3, 4] }), json!({ "eos_token_id": 1 })), [3, 4]);
        assert_eq!(eos(Json::Null, json!({ "eos_token_id": 1 })), [1]);
        assert_eq!(eos(json!({}), json!({ "eos_token_id": null })), [0u32; 0]);
    }

    #[test]
    fn recommended_sampling_is_read() {
        let file = json!({
            "temperature": 0.5, "top_p": 0.75, "top_k": 0, "min_p": 0.25, "repetition_penalty": 1.5,
        });
        let expected = GenerationDefaults {
            temperature: Some(0.5),
            top_p: Some(0.75),
            min_p: Some(0.25),
            repetition_penalty: Some(1.5),
            ..GenerationDefaults::default()
        };
        assert_eq!(generation_defaults(&file, &Json::Null), expected);
    }
}
