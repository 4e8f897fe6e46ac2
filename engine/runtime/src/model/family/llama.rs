//! Llama 2 and 3, SmolLM2 and what else calls itself LlamaForCausalLM: the plain decoder.
//!
//! Apart as each family is. Source: `modeling_llama` of Hugging Face transformers.

use serde_json::Value as Json;

use super::super::LoadError;
use super::super::config::{Bias, Config, TiedWhenAbsent};
use super::super::json::{activation, must_be_off};

pub(super) fn config(json: &Json) -> Result<Config, LoadError> {
    must_be_off(json, "mlp_bias")?;
    activation(json, "hidden_act", "silu")?;
    let mut config = Config::plain(json, TiedWhenAbsent::No, 10_000.0)?;
    if json["attention_bias"].as_bool() == Some(true) {
        config.bias = Bias::InputsAndOutput;
    }
    Ok(config)
}
