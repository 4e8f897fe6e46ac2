//! Gemma 2 and 3: a scaled embedding, norms before and after each half of a layer, GELU, windows in most layers;
//! soft caps in the second, norms of heads and two rotations in the third.
//!
//! Apart as each family is. Source: `modeling_gemma2` and `modeling_gemma3` of Hugging Face transformers.

use pitot_kernels::Activation;
use serde_json::Value as Json;

use super::super::LoadError;
use super::super::config::{Config, HeadNorms, NormWeights, Norms, TiedWhenAbsent};
use super::super::json::{activation, must_be_off, optional_size, positive};
use super::super::rope::{self, Pairs};

pub(super) fn second(json: &Json) -> Result<Config, LoadError> {
    let mut config = common(json, Config::plain(json, TiedWhenAbsent::Yes, 10_000.0)?)?;
    // A file that sets a cap to null has none; one that is silent has the family's.
    if json.get("final_logit_softcapping").is_none() {
        config.logit_soft_cap = Some(30.0);
    }
    if json.get("attn_logit_softcapping").is_none() {
        config.layers.iter_mut().for_each(|layer| layer.attention.soft_cap = Some(50.0));
    }
    let window = optional_size(json, "sliding_window")?.or(Some(4096));
    config.set_windows(json, window, |index| index.is_multiple_of(2))?;
    Ok(config)
}

pub(super) fn third(json: &Json) -> Result<Config, LoadError> {
    must_be_off(json, "use_bidirectional_attention")?;
    // Newer files have one object for each kind of layer.
    let nested = &json["rope_parameters"]["full_attention"];
    let mut flat = json.clone();
    if nested.is_object() {
        flat["rope_parameters"] = nested.clone();
    }
    let mut config = common(json, Config::plain(&flat, TiedWhenAbsent::Yes, 1_000_000.0)?)?;
    config.head_norms = HeadNorms::Each;
    let pattern = optional_size(json, "sliding_window_pattern")?.unwrap_or(6);
    let window = optional_size(json, "sliding_window")?.or(Some(4096));
    config.set_windows(json, window, |index| !(index + 1).is_multiple_of(pattern))?;
    let local = &json["rope_parameters"]["sliding_attention"];
    let theta = match positive(local, "rope_theta")? {
        Some(theta) => theta,
        None => positive(json, "rope_local_base_freq")?.unwrap_or(10_000.0),
    };
    let pairs = Pairs::of(&flat, config.heads.head_dim)?;
    config.ropes.push(rope::scaled(local, theta, pairs, config.context_max, None)?.rope);
    for layer in config.layers.iter_mut().filter(|layer| layer.attention.window.is_some()) {
        layer.rope = 1;
    }
    Ok(config)
}

fn common(json: &Json, mut config: Config) -> Result<Config, LoadError> {
    must_be_off(json, "attention_bias")?;
    activation(json, "hidden_activation", "gelu_pytorch_tanh")?;
    config.activation = Activation::GeluTanh;
    config.norms = Norms::BeforeAndAfter;
    config.norm_weights = NormWeights::PlusOne;
    config.embedding_scale = Some((config.hidden as f32).sqrt());
    config.logit_soft_cap = positive(json, "final_logit_softcapping")?.map(|cap| cap as f32);
    let scalar = positive(json, "query_pre_attn_scalar")?.unwrap_or(256.0);
    let soft_cap = positive(json, "attn_logit_softcapping")?.map(|cap| cap as f32);
    for layer in &mut config.layers {
        layer.attention.scale = (1.0 / scalar.sqrt()) as f32;
        layer.attention.soft_cap = soft_cap;
    }
    Ok(config)
}
