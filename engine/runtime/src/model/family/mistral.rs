//! Mistral: the plain decoder with a window in every layer.
//!
//! Apart as each family is. Source: `modeling_mistral` of Hugging Face transformers.

use serde_json::Value as Json;

use super::super::LoadError;
use super::super::config::{Config, TiedWhenAbsent};
use super::super::json::{activation, optional_size};

pub(super) fn config(json: &Json) -> Result<Config, LoadError> {
    activation(json, "hidden_act", "silu")?;
    let mut config = Config::plain(json, TiedWhenAbsent::No, 10_000.0)?;
    let window = optional_size(json, "sliding_window")?;
    config.layers.iter_mut().for_each(|layer| layer.attention.window = window);
    Ok(config)
}
