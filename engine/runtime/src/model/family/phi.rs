//! Phi-3: fused projections, sometimes a window, part of a head that turns, and a rotation for long contexts.
//!
//! Apart as each family is. Source: `modeling_phi3` of Hugging Face transformers.

use serde_json::Value as Json;

use super::super::LoadError;
use super::super::config::{Config, Projections, TiedWhenAbsent};
use super::super::json::{activation, must_be_off, optional_size};

pub(super) fn config(json: &Json) -> Result<Config, LoadError> {
    must_be_off(json, "attention_bias")?;
    activation(json, "hidden_act", "silu")?;
    let mut config = Config::plain(json, TiedWhenAbsent::No, 10_000.0)?;
    config.projections = Projections::Fused;
    let window = optional_size(json, "sliding_window")?;
    config.layers.iter_mut().for_each(|layer| layer.attention.window = window);
    Ok(config)
}
