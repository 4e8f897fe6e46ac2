//! Families of models: what each says in config.json, and how its decoder differs from the plain one.
//!
//! Apart from the decoder so that a family is one short page. Must not know: devices, how a layer is computed.

mod gemma;
mod llama;
mod mistral;
mod phi;
mod qwen;
mod smollm;

use serde_json::Value as Json;

use super::LoadError;
use super::config::Config;

/// Reads a family's config.json.
type Read = fn(&Json) -> Result<Config, LoadError>;

/// Architectures as `architectures` of config.json names them.
const FAMILIES: [(&str, Read); 9] = [
    ("Gemma2ForCausalLM", gemma::second),
    ("Gemma3ForCausalLM", gemma::third),
    ("LlamaForCausalLM", llama::config),
    ("MistralForCausalLM", mistral::config),
    ("Phi3ForCausalLM", phi::config),
    ("Qwen2ForCausalLM", qwen::second),
    ("Qwen3ForCausalLM", qwen::third),
    ("Qwen3MoeForCausalLM", qwen::third_of_experts),
    ("SmolLM3ForCausalLM", smollm::config),
];

/// The decoder of a model.
///
/// # Errors
/// When the architecture is not among those that are supported, with their names; or names the key that is missing,
/// invalid or not supported.
pub(super) fn config(json: &Json) -> Result<Config, LoadError> {
    let found = json["architectures"][0].as_str().unwrap_or_default();
    match FAMILIES.iter().find(|(name, _)| *name == found) {
        Some((_, read)) => read(json),
        None => {
            let supported: Vec<&str> = FAMILIES.iter().map(|(name, _)| *name).collect();
            Err(LoadError::Architecture { found: found.to_owned(), supported: supported.join(", ") })
        }
    }
}

#[cfg(test)]
mod tests {
    use pitot_kernels::HeadShape;
    use serde_json::json;

    use super::super::config::{Bias, ExpertWeights, Experts, Mlp, OutputWeights};
    use super::*;

    fn of(architecture: &str, more: Json) -> Json {
        let mut json = json!({
            "architectures": [architecture], "hidden_size": 8, "intermediate_size": 16,
            "num_hidden_layers": 4, "num_attention_heads": 2, "vocab_size": 10, "rms_norm_eps": 1e-5,
            "sliding_window": 6, "head_dim": 4,
        });
        json.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
        json
    }

    fn read(architecture: &str, more: Json) -> Config {
        config(&of(architecture, more)).unwrap_or_else(|error| panic!("{architecture}: {error}"))
    }

    #[test]
    fn absent_keys_have_the_defaults_of_the_family() {
        let mut json = of("LlamaForCausalLM", json!({}));
        json["head_dim"] = Json::Null;
        let plain = config(&json).expect("it is well formed");
        assert_eq!(plain.heads, HeadShape { heads: 2, kv_heads: 2, head_dim: 4 });
        assert_eq!((plain.output, plain.bias, plain.ropes.len()), (OutputWeights::Own, Bias::None, 1));
        // 10000^0 and 10000^(-1/2).
        assert_eq!(plain.ropes[0].inverse_frequencies, [1.0, 0.01]);
        for (name, tied) in [
            ("Gemma2ForCausalLM", OutputWeights::Tied),
            ("Gemma3ForCausalLM", OutputWeights::Tied),
            ("MistralForCausalLM", OutputWeights::Own),
            ("Phi3ForCausalLM", OutputWeights::Own),
            ("Qwen2ForCausalLM", OutputWeights::Own),
            ("Qwen3ForCausalLM", OutputWeights::Own),
            ("SmolLM3ForCausalLM", OutputWeights::Tied),
        ] {
            assert_eq!(read(name, json!({})).output, tied, "{name}");
        }
    }

    #[track_caller]
    fn windows(architecture: &str, more: Json, expected: [Option<usize>; 4]) {
        let config = read(architecture, more);
        let found: Vec<Option<usize>> = config.layers.iter().map(|layer| layer.attention.window).collect();
        assert_eq!(found, expected, "{architecture}");
    }

    #[test]
    fn windows_slide_where_the_family_says() {
        let all = [Some(6); 4];
        windows("LlamaForCausalLM", json!({}), [None; 4]);
        windows("MistralForCausalLM", json!({}), all);
        windows("MistralForCausalLM", json!({ "sliding_window": null }), [None; 4]);
        windows("Phi3ForCausalLM", json!({}), all);
        windows("Qwen2ForCausalLM", json!({}), [None; 4]);
        let used = json!({ "use_sliding_window": true, "max_window_layers": 3 });
        windows("Qwen2ForCausalLM", used.clone(), [None, None, None, Some(6)]);
        windows("Qwen3ForCausalLM", used.clone(), [None, None, None, Some(6)]);
        windows("Gemma2ForCausalLM", json!({}), [Some(6), None, Some(6), None]);
        let third = json!({ "sliding_window_pattern": 3 });
        windows("Gemma3ForCausalLM", third, [Some(6), Some(6), None, Some(6)]);
        let kinds = ["full_attention", "sliding_attention", "full_attention", "full_attention"];
        let mut listed = used;
        listed["layer_types"] = json!(kinds);
        for name in ["Qwen2ForCausalLM", "Gemma2ForCausalLM", "Gemma3ForCausalLM"] {
            windows(name, listed.clone(), [None, Some(6), None, None]);
        }
    }

    #[test]
    fn rotations_differ_by_layer_where_the_family_says() {
        let smollm = read("SmolLM3ForCausalLM", json!({ "no_rope_layers": [1, 0, 1, 0] }));
        let turning: Vec<bool> = smollm
            .layers
            .iter()
            .map(|layer| smollm.ropes[layer.rope].inverse_frequencies.iter().all(|f| *f > 0.0))
            .collect();
        assert_eq!(turning, [true, false, true, false]);
        let interval = read("SmolLM3ForCausalLM", json!({ "no_rope_layer_interval": 2 }));
        assert_eq!(interval.layers, smollm.layers);
        // Both spellings of Gemma 3: the fourth layer sees all and turns by theta 10^8, the others by 10^4.
        let old = json!({
            "sliding_window_pattern": 4, "rope_theta": 1e8, "rope_local_base_freq": 1e4,
            "rope_scaling": { "rope_type": "linear", "factor": 8.0 },
        });
        let new = json!({
            "sliding_window_pattern": 4,
            "rope_parameters": {
                "full_attention": { "rope_theta": 1e8, "rope_type": "linear", "factor": 8.0 },
                "sliding_attention": { "rope_theta": 1e4, "rope_type": "default" },
            },
        });
        for spelling in [old, new] {
            let gemma = read("Gemma3ForCausalLM", spelling);
            let of = |layer: usize| gemma.ropes[gemma.layers[layer].rope].inverse_frequencies.clone();
            assert_eq!((of(0), of(3)), (vec![1.0, 0.01], vec![0.125, 0.000_012_5]));
        }
    }

    #[test]
    fn experts_are_in_the_layers_that_have_them() {
        let more = json!({
            "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 5, "decoder_sparse_step": 2,
            "mlp_only_layers": [3], "norm_topk_prob": true,
        });
        let config = read("Qwen3MoeForCausalLM", more);
        let weights = ExpertWeights::Shares;
        let experts = Mlp::Experts(Experts { count: 4, used: 2, intermediate: 5, weights });
        let dense = Mlp::Dense { intermediate: 16 };
        let found: Vec<Mlp> = config.layers.iter().map(|layer| layer.mlp).collect();
        assert_eq!(found, [dense, experts, dense, dense]);
    }

    #[track_caller]
    fn refused(architecture: &str, key: &str, value: Json, message: &str) {
        let error = config(&of(architecture, json!({ key: value }))).expect_err("it must be refused");
        assert!(error.to_string().contains(message), "{error}");
    }

    #[test]
    fn what_is_not_supported_is_refused_by_name() {
        let llama = "LlamaForCausalLM";
        refused(llama, "architectures", json!(["GPT2LMHeadModel"]), "\"GPT2LMHeadModel\" is not supported");
        refused(llama, "architectures", Json::Null, "supported: Gemma2ForCausalLM, Gemma3ForCausalLM, Llama");
        refused(llama, "rope_scaling", json!({ "rope_type": "dynamic" }), "rope_type = dynamic");
        refused(llama, "rope_scaling", json!({ "rope_type": "yarn" }), "original_max_position_embeddings");
        refused(llama, "mlp_bias", json!(true), "mlp_bias");
        refused(llama, "hidden_act", json!("gelu"), "hidden_act = gelu");
        refused(llama, "quantization_config", json!({ "quant_method": "awq" }), "quantization_config");
        refused(llama, "hidden_size", Json::Null, "lacks hidden_size");
        refused(llama, "hidden_size", json!(-1), "hidden_size = -1");
        refused(llama, "num_hidden_layers", json!(5000), "num_hidden_layers = 5000");
        refused(llama, "num_key_value_heads", json!(3), "num_key_value_heads = 3");
        refused(llama, "head_dim", json!(3), "head_dim = 3");
        refused(llama, "rope_theta", json!(0), "rope_theta = 0");
        refused("Gemma2ForCausalLM", "hidden_activation", json!("relu"), "hidden_activation = relu");
        refused(
            "Gemma3ForCausalLM",
            "use_bidirectional_attention",
            json!(true),
            "use_bidirectional_attention",
        );
        refused("Gemma3ForCausalLM", "layer_types", json!(["full_attention"]), "layer_types");
        let other = json!(["full_attention", "full_attention", "linear_attention", "full_attention"]);
        refused("Gemma3ForCausalLM", "layer_types", other, "layer_types = \"linear_attention\"");
        refused("SmolLM3ForCausalLM", "no_rope_layers", json!([1]), "no_rope_layers");
        refused("Qwen3MoeForCausalLM", "num_experts", Json::Null, "num_experts");
        let su = json!({ "type": "su", "short_factor": [1.0] });
        refused("Phi3ForCausalLM", "rope_scaling", su, "original_max_position_embeddings");
    }
}
