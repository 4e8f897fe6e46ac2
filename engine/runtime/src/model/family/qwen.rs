//! Qwen: biases on queries, keys and values in the second, norms of their heads in the third, experts in one branch
//! of it.
//!
//! Apart as each family is. Source: `modeling_qwen2`, `modeling_qwen3` and `modeling_qwen3_moe` of Hugging Face
//! transformers.

use serde_json::Value as Json;

use super::super::LoadError;
use super::super::config::{Bias, Config, ExpertWeights, Experts, HeadNorms, Mlp, TiedWhenAbsent};
use super::super::json::{activation, invalid, optional_size, size};

/// Qwen2 and Qwen2.5.
pub(super) fn second(json: &Json) -> Result<Config, LoadError> {
    let mut config = common(json)?;
    config.bias = Bias::Inputs;
    later_layers_slide(&mut config, json)?;
    Ok(config)
}

pub(super) fn third(json: &Json) -> Result<Config, LoadError> {
    let mut config = normed(json)?;
    later_layers_slide(&mut config, json)?;
    Ok(config)
}

pub(super) fn third_of_experts(json: &Json) -> Result<Config, LoadError> {
    let mut config = normed(json)?;
    let window = window(json)?;
    let experts = experts(json)?;
    let step = optional_size(json, "decoder_sparse_step")?.unwrap_or(1);
    let dense = json["mlp_only_layers"].as_array().map_or(&[][..], Vec::as_slice);
    for (index, layer) in config.layers.iter_mut().enumerate() {
        layer.attention.window = window;
        let listed = dense.iter().any(|dense| dense.as_u64() == Some(index as u64));
        if !listed && (index + 1).is_multiple_of(step) {
            layer.mlp = Mlp::Experts(experts);
        }
    }
    Ok(config)
}

fn common(json: &Json) -> Result<Config, LoadError> {
    activation(json, "hidden_act", "silu")?;
    Config::plain(json, TiedWhenAbsent::No, 10_000.0)
}

fn normed(json: &Json) -> Result<Config, LoadError> {
    let mut config = common(json)?;
    config.head_norms = HeadNorms::Each;
    if json["attention_bias"].as_bool() == Some(true) {
        config.bias = Bias::InputsAndOutput;
    }
    Ok(config)
}

/// The file has a window even where it is not used.
fn window(json: &Json) -> Result<Option<usize>, LoadError> {
    match json["use_sliding_window"].as_bool() {
        Some(true) => optional_size(json, "sliding_window"),
        Some(false) | None => Ok(None),
    }
}

fn later_layers_slide(config: &mut Config, json: &Json) -> Result<(), LoadError> {
    let full = json["max_window_layers"].as_u64().unwrap_or(28);
    config.set_windows(json, window(json)?, |index| index as u64 >= full)
}

fn experts(json: &Json) -> Result<Experts, LoadError> {
    let count = size(json, "num_experts")?;
    let used = size(json, "num_experts_per_tok")?;
    if used > count {
        return Err(invalid(json, "num_experts_per_tok", "there are not so many experts"));
    }
    let weights = match json["norm_topk_prob"].as_bool() {
        Some(true) => ExpertWeights::Shares,
        Some(false) | None => ExpertWeights::Probabilities,
    };
    Ok(Experts { count, used, intermediate: size(json, "moe_intermediate_size")?, weights })
}
