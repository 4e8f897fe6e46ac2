//! SmolLM3: the plain decoder, some of whose layers do not turn.
//!
//! Apart as each family is. Source: `modeling_smollm3` of Hugging Face transformers.

use pitot_kernels::Rope;
use serde_json::Value as Json;

use super::super::LoadError;
use super::super::config::{Bias, Config, TiedWhenAbsent};
use super::super::json::{activation, invalid, must_be_off, optional_size};

pub(super) fn config(json: &Json) -> Result<Config, LoadError> {
    must_be_off(json, "mlp_bias")?;
    activation(json, "hidden_act", "silu")?;
    let mut config = Config::plain(json, TiedWhenAbsent::Yes, 2_000_000.0)?;
    if json["attention_bias"].as_bool() == Some(true) {
        config.bias = Bias::InputsAndOutput;
    }
    // No turn at any position.
    let still = Rope { inverse_frequencies: vec![0.0; config.heads.head_dim / 2], scale: 1.0 };
    config.ropes.push(still);
    let turning = turning(json, config.layers.len())?;
    for (layer, turns) in config.layers.iter_mut().zip(&turning) {
        layer.rope = if *turns { 0 } else { 1 };
    }
    let window = match json["use_sliding_window"].as_bool() {
        Some(true) => optional_size(json, "sliding_window")?,
        Some(false) | None => None,
    };
    config.set_windows(json, window, |index| !turning[index])?;
    Ok(config)
}

/// `no_rope_layers` has, for all its name, a 1 for each layer that turns.
fn turning(json: &Json, layers: usize) -> Result<Vec<bool>, LoadError> {
    if let Some(listed) = json["no_rope_layers"].as_array() {
        let turns = |turns: &Json| turns.as_u64().filter(|turns| *turns <= 1).map(|turns| turns == 1);
        let turns: Option<Vec<bool>> = listed.iter().take(layers).map(turns).collect();
        return turns
            .filter(|turns| turns.len() == layers)
            .ok_or_else(|| invalid(json, "no_rope_layers", "a 0 or a 1 is needed for each layer"));
    }
    let interval = optional_size(json, "no_rope_layer_interval")?.unwrap_or(4);
    Ok((0..layers).map(|index| !(index + 1).is_multiple_of(interval)).collect())
}
