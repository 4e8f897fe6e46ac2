//! config.json of a Llama model, parsed into sizes that fit together.
//!
//! Apart so that everything behind it can trust the numbers. Must not know: tensors, devices beyond the head shape.

use pitot_kernels::{HeadShape, Rope};
use serde_json::Value as Json;

use super::LoadError;

/// Largest size that is believed of any one dimension; the products of two then fit a usize.
const SIZE_MAX: u64 = 1 << 24;

/// A Llama model's shape.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Config {
    pub hidden: usize,
    pub intermediate: usize,
    pub layers: usize,
    pub heads: HeadShape,
    pub vocabulary: usize,
    pub context_max: usize,
    pub epsilon: f32,
    pub rope: Rope,
    /// Where the output projection comes from.
    pub output: OutputWeights,
}

/// Where the output projection comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum OutputWeights {
    /// The embedding table.
    Tied,
    /// Its own tensor.
    Own,
}

impl Config {
    /// # Errors
    /// Names the key that is missing, invalid or not supported.
    pub fn from_json(json: &Json) -> Result<Config, LoadError> {
        architecture(json)?;
        for key in ["attention_bias", "mlp_bias"] {
            if json[key].as_bool() == Some(true) {
                return Err(LoadError::Unsupported { key, value: "true".to_owned() });
            }
        }
        if let Some(act) = json["hidden_act"].as_str().filter(|act| *act != "silu") {
            return Err(LoadError::Unsupported { key: "hidden_act", value: act.to_owned() });
        }
        if !json["quantization_config"].is_null() {
            let value = json["quantization_config"].to_string();
            return Err(LoadError::Unsupported { key: "quantization_config", value });
        }
        let hidden = size(json, "hidden_size")?;
        let heads = size(json, "num_attention_heads")?;
        let kv_heads = optional_size(json, "num_key_value_heads")?.unwrap_or(heads);
        if !heads.is_multiple_of(kv_heads) {
            return Err(invalid(json, "num_key_value_heads", "it does not divide num_attention_heads"));
        }
        let head_dim = optional_size(json, "head_dim")?.unwrap_or(hidden / heads);
        if head_dim == 0 || !head_dim.is_multiple_of(2) {
            return Err(invalid(json, "head_dim", "a head needs an even number of dimensions"));
        }
        let tied = json["tie_word_embeddings"].as_bool().unwrap_or(false);
        Ok(Config {
            hidden,
            intermediate: size(json, "intermediate_size")?,
            layers: size(json, "num_hidden_layers")?,
            heads: HeadShape { heads, kv_heads, head_dim },
            vocabulary: size(json, "vocab_size")?,
            context_max: optional_size(json, "max_position_embeddings")?.unwrap_or(2048),
            epsilon: positive(json, "rms_norm_eps")?.unwrap_or(1e-6) as f32,
            rope: rope(json, head_dim)?,
            output: if tied { OutputWeights::Tied } else { OutputWeights::Own },
        })
    }
}

fn architecture(json: &Json) -> Result<(), LoadError> {
    let found = json["architectures"][0].as_str().unwrap_or_default();
    if found == "LlamaForCausalLM" {
        return Ok(());
    }
    Err(LoadError::Architecture { found: found.to_owned() })
}

/// Inverse frequencies theta^(-2i/head_dim), scaled as the model asks.
///
/// Source: RoFormer (Su et al. 2021); for `llama3` the `_compute_llama3_parameters` of Hugging Face transformers.
fn rope(json: &Json, head_dim: usize) -> Result<Rope, LoadError> {
    // Newer files keep theta beside the scaling, under another key.
    let nested = &json["rope_parameters"];
    let theta = match positive(json, "rope_theta")? {
        Some(theta) => theta,
        None => positive(nested, "rope_theta")?.unwrap_or(10_000.0),
    };
    let plain = (0..head_dim / 2).map(|pair| theta.powf(-2.0 * pair as f64 / head_dim as f64));
    let scaling = if json["rope_scaling"].is_null() { nested } else { &json["rope_scaling"] };
    let kind = scaling["rope_type"].as_str().or_else(|| scaling["type"].as_str()).unwrap_or("default");
    let inverse_frequencies = match kind {
        "default" => plain.map(|frequency| frequency as f32).collect(),
        "linear" => {
            let factor = required(scaling, "factor")?;
            plain.map(|frequency| (frequency / factor) as f32).collect()
        }
        "llama3" => {
            let scaling = Llama3::from_json(scaling)?;
            plain.map(|frequency| scaling.apply(frequency) as f32).collect()
        }
        other => return Err(LoadError::Unsupported { key: "rope_type", value: other.to_owned() }),
    };
    Ok(Rope { inverse_frequencies })
}

struct Llama3 {
    factor: f64,
    low: f64,
    high: f64,
    context: f64,
}

impl Llama3 {
    fn from_json(json: &Json) -> Result<Llama3, LoadError> {
        let scaling = Llama3 {
            factor: required(json, "factor")?,
            low: required(json, "low_freq_factor")?,
            high: required(json, "high_freq_factor")?,
            context: required(json, "original_max_position_embeddings")?,
        };
        if scaling.high <= scaling.low {
            return Err(invalid(json, "high_freq_factor", "it is not above low_freq_factor"));
        }
        Ok(scaling)
    }

    /// Long waves are divided by the factor, short ones kept, those between interpolated.
    fn apply(&self, frequency: f64) -> f64 {
        let wavelength = 2.0 * std::f64::consts::PI / frequency;
        if wavelength > self.context / self.low {
            frequency / self.factor
        } else if wavelength < self.context / self.high {
            frequency
        } else {
            let smooth = (self.context / wavelength - self.low) / (self.high - self.low);
            (1.0 - smooth) * frequency / self.factor + smooth * frequency
        }
    }
}

fn size(json: &Json, key: &'static str) -> Result<usize, LoadError> {
    optional_size(json, key)?.ok_or(LoadError::Missing { key })
}

fn optional_size(json: &Json, key: &'static str) -> Result<Option<usize>, LoadError> {
    if json[key].is_null() {
        return Ok(None);
    }
    let size = json[key].as_u64().filter(|size| (1..=SIZE_MAX).contains(size));
    size.map(|size| Some(size as usize))
        .ok_or_else(|| invalid(json, key, "a whole number from 1 to 16777216 is needed"))
}

fn positive(json: &Json, key: &'static str) -> Result<Option<f64>, LoadError> {
    if json[key].is_null() {
        return Ok(None);
    }
    let number = json[key].as_f64().filter(|number| *number > 0.0);
    number.map(Some).ok_or_else(|| invalid(json, key, "a number above 0 is needed"))
}

fn required(json: &Json, key: &'static str) -> Result<f64, LoadError> {
    positive(json, key)?.ok_or(LoadError::Missing { key })
}

fn invalid(json: &Json, key: &'static str, why: &'static str) -> LoadError {
    LoadError::Invalid { key, value: json[key].to_string(), why }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn small() -> Json {
        json!({
            "architectures": ["LlamaForCausalLM"], "hidden_size": 8, "intermediate_size": 16,
            "num_hidden_layers": 2, "num_attention_heads": 2, "vocab_size": 10, "rms_norm_eps": 1e-5,
        })
    }

    fn with(key: &str, value: Json) -> Json {
        let mut json = small();
        json[key] = value;
        json
    }

    #[test]
    fn absent_keys_have_the_defaults_of_the_family() {
        let config = Config::from_json(&small()).expect("small is well formed");
        assert_eq!(config.heads, HeadShape { heads: 2, kv_heads: 2, head_dim: 4 });
        assert_eq!(config.output, OutputWeights::Own);
        // 10000^0 and 10000^(-1/2).
        assert_eq!(config.rope.inverse_frequencies, [1.0, 0.01]);
    }

    #[track_caller]
    fn refused(key: &str, value: Json, message: &str) {
        let error = Config::from_json(&with(key, value)).expect_err("it must be refused");
        assert!(error.to_string().contains(message), "{error}");
    }

    #[test]
    fn what_is_not_supported_is_refused_by_name() {
        refused("architectures", json!(["GPT2LMHeadModel"]), "\"GPT2LMHeadModel\" is not supported");
        refused("architectures", Json::Null, "supported: LlamaForCausalLM");
        refused("rope_scaling", json!({ "rope_type": "yarn" }), "rope_type = yarn");
        refused("attention_bias", json!(true), "attention_bias");
        refused("hidden_act", json!("gelu"), "hidden_act = gelu");
        refused("quantization_config", json!({ "quant_method": "awq" }), "quantization_config");
        refused("hidden_size", Json::Null, "lacks hidden_size");
        refused("hidden_size", json!(-1), "hidden_size = -1");
        refused("num_key_value_heads", json!(3), "num_key_value_heads = 3");
        refused("head_dim", json!(3), "head_dim = 3");
        refused("rope_theta", json!(0), "rope_theta = 0");
    }

    #[test]
    fn llama3_scaling_divides_long_waves_only() {
        let scaling = Llama3 { factor: 8.0, low: 1.0, high: 4.0, context: 8192.0 };
        let turn = 2.0 * std::f64::consts::PI;
        assert_eq!(scaling.apply(1.0), 1.0);
        assert_eq!(scaling.apply(turn / 10_000.0), turn / 10_000.0 / 8.0);
        // Wavelength 4096: smooth = (2 - 1) / 3, so 2/3 · f/8 + 1/3 · f = 5/12 · f.
        let between = turn / 4096.0;
        assert!((scaling.apply(between) / between - 5.0 / 12.0).abs() < 1e-12);
    }

    #[test]
    fn linear_scaling_and_nested_theta_are_read() {
        let config = Config::from_json(&with("rope_scaling", json!({ "type": "linear", "factor": 2.0 })));
        assert_eq!(config.expect("well formed").rope.inverse_frequencies, [0.5, 0.005]);
        let nested = json!({ "rope_theta": 100.0, "rope_type": "default" });
        let config = Config::from_json(&with("rope_parameters", nested)).expect("well formed");
        assert_eq!(config.rope.inverse_frequencies, [1.0, 0.1]);
    }
}
