//! The llama architecture as GGUF spells it and as Hugging Face spells it. Apart because these two tables of names and shapes are
//! all that a further architecture would add. Must not know files or bytes.

use std::collections::BTreeMap;

use serde::Serialize;

use super::gguf::{Gguf, TensorEntry};
use super::metadata::Metadata;
use super::quantization::Quantization;
use super::vocabulary::Vocabulary;

/// No dimension of a real model comes near; keeps products of two of them far inside u64.
const DIMENSION_MAX: u64 = 1 << 24;
/// Layers of the largest real models: some 130.
const LAYERS_MAX: u64 = 1024;

/// The sizes of a model, each between 1 and [`DIMENSION_MAX`].
#[derive(Debug, Clone, PartialEq)]
pub struct Llama {
    pub layers: u64,
    pub hidden: u64,
    pub feed_forward: u64,
    pub heads: u64,
    pub heads_kv: u64,
    pub head_dim: u64,
    pub context_tokens: u64,
    pub rope_theta: f64,
    pub rms_epsilon: f64,
    pub output: Output,
}

/// What the last projection multiplies by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Output {
    /// The embedding once more ("tied").
    Embedding,
    Own,
}

/// A tensor to be written.
#[derive(Debug, Clone, PartialEq)]
pub struct Planned {
    /// Hugging Face's name.
    pub name: String,
    /// (rows, columns) or (columns), as safetensors has it.
    pub shape: Vec<u64>,
    pub rows: u64,
    pub columns: u64,
    pub quantization: Quantization,
    /// Where the first row lies in the GGUF file, and what one row takes there.
    pub offset_bytes: u64,
    pub row_bytes: u64,
    order: RowOrder,
}

/// GGUF stores the rows of the query and key projections for rotations of neighbouring elements, Hugging Face for rotations of
/// the two halves of a head.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RowOrder {
    Same,
    /// Rows of one head, an even number.
    Interleaved {
        head_dim: u64,
    },
}

impl Planned {
    pub fn bf16_bytes(&self) -> u64 {
        self.rows * self.columns * 2
    }

    /// How many rows to read together: about `piece_bytes`, or just one head where rows change places.
    pub fn rows_together(&self, piece_bytes: u64) -> u64 {
        match self.order {
            RowOrder::Same => (piece_bytes / self.row_bytes).max(1),
            RowOrder::Interleaved { head_dim } => head_dim,
        }
    }

    /// Which row of a piece becomes the piece's row `row`. Row (half, i) of a head lies in GGUF at 2·i + half.
    pub fn source_row(&self, row: u64) -> u64 {
        match self.order {
            RowOrder::Same => row,
            RowOrder::Interleaved { head_dim } => {
                let half = head_dim / 2;
                2 * (row % half) + row / half
            }
        }
    }
}

impl Llama {
    /// Reads the sizes.
    ///
    /// # Errors
    /// In words: another architecture, a variant that config.json of a llama cannot express, a size that is missing or absurd.
    pub fn of_header(gguf: &Gguf) -> Result<Llama, String> {
        let metadata = &gguf.metadata;
        let text = |error: super::metadata::MetadataError| error.to_string();
        let architecture = metadata.text("general.architecture").map_err(text)?;
        if architecture != "llama" {
            return Err(format!("its architecture is {architecture}, and only llama is read"));
        }
        refuse_variants(metadata)?;
        let size = |key: &str, limit: u64| match metadata.unsigned(key).map_err(text)? {
            size if (1..=limit).contains(&size) => Ok(size),
            size => Err(format!("{key} is {size}, not between 1 and {limit}")),
        };
        let hidden = size("llama.embedding_length", DIMENSION_MAX)?;
        let heads = size("llama.attention.head_count", DIMENSION_MAX)?;
        let heads_kv = match metadata.0.contains_key("llama.attention.head_count_kv") {
            true => size("llama.attention.head_count_kv", DIMENSION_MAX)?,
            false => heads,
        };
        let head_dim = match metadata.0.contains_key("llama.attention.key_length") {
            true => size("llama.attention.key_length", DIMENSION_MAX)?,
            false if hidden.is_multiple_of(heads) => hidden / heads,
            false => return Err(format!("{hidden} is no multiple of its {heads} heads")),
        };
        let optional = |key: &str, default| {
            metadata.find_unsigned(key).map_err(text).map(|value| value.unwrap_or(default))
        };
        let rotated = optional("llama.rope.dimension_count", head_dim)?;
        let value_dim = optional("llama.attention.value_length", head_dim)?;
        if rotated != head_dim || value_dim != head_dim || !head_dim.is_multiple_of(2) {
            return Err(format!(
                "its heads have {head_dim} key, {value_dim} value and {rotated} rotated dimensions, which must be one even number"
            ));
        }
        if !heads.is_multiple_of(heads_kv) {
            return Err(format!("{heads} query heads cannot share {heads_kv} key heads"));
        }
        Ok(Llama {
            layers: size("llama.block_count", LAYERS_MAX)?,
            hidden,
            feed_forward: size("llama.feed_forward_length", DIMENSION_MAX)?,
            heads,
            heads_kv,
            head_dim,
            context_tokens: size("llama.context_length", DIMENSION_MAX)?,
            rope_theta: metadata.find_float("llama.rope.freq_base").map_err(text)?.unwrap_or(10_000.0),
            rms_epsilon: metadata.float("llama.attention.layer_norm_rms_epsilon").map_err(text)?,
            output: match gguf.tensors.iter().any(|tensor| tensor.name == "output.weight") {
                true => Output::Own,
                false => Output::Embedding,
            },
        })
    }

    /// The config.json that Hugging Face's LlamaForCausalLM reads.
    pub fn config_json(&self, vocabulary: &Vocabulary) -> String {
        let config = Config {
            architectures: ["LlamaForCausalLM"],
            attention_bias: false,
            attention_dropout: 0.0,
            bos_token_id: vocabulary.bos,
            eos_token_id: vocabulary.eos,
            head_dim: self.head_dim,
            hidden_act: "silu",
            hidden_size: self.hidden,
            intermediate_size: self.feed_forward,
            max_position_embeddings: self.context_tokens,
            mlp_bias: false,
            model_type: "llama",
            num_attention_heads: self.heads,
            num_hidden_layers: self.layers,
            num_key_value_heads: self.heads_kv,
            pad_token_id: vocabulary.pad,
            pretraining_tp: 1,
            rms_norm_eps: self.rms_epsilon,
            rope_scaling: None,
            rope_theta: self.rope_theta,
            tie_word_embeddings: self.output == Output::Embedding,
            torch_dtype: "bfloat16",
            use_cache: true,
            vocab_size: vocabulary.tokens.len(),
        };
        super::vocabulary::json_text(&config, b"  ")
    }
}

#[derive(Serialize)]
struct Config {
    architectures: [&'static str; 1],
    attention_bias: bool,
    attention_dropout: f64,
    bos_token_id: Option<u32>,
    eos_token_id: u32,
    head_dim: u64,
    hidden_act: &'static str,
    hidden_size: u64,
    intermediate_size: u64,
    max_position_embeddings: u64,
    mlp_bias: bool,
    model_type: &'static str,
    num_attention_heads: u64,
    num_hidden_layers: u64,
    num_key_value_heads: u64,
    pad_token_id: Option<u32>,
    pretraining_tp: u32,
    rms_norm_eps: f64,
    rope_scaling: Option<()>,
    rope_theta: f64,
    tie_word_embeddings: bool,
    torch_dtype: &'static str,
    use_cache: bool,
    vocab_size: usize,
}

/// What llama.cpp files under llama but LlamaForCausalLM computes otherwise is refused, not converted into something that answers wrongly.
fn refuse_variants(metadata: &Metadata) -> Result<(), String> {
    if metadata
        .find_unsigned("llama.expert_count")
        .map_err(|error| error.to_string())?
        .is_some_and(|experts| experts > 0)
    {
        return Err("it is a mixture of experts, which is not read".to_owned());
    }
    let scaling = metadata.find_text("llama.rope.scaling.type").map_err(|error| error.to_string())?;
    match scaling {
        None | Some("none") => Ok(()),
        Some(kind) => Err(format!("it stretches its positions ({kind} scaling), which is not read")),
    }
}

/// Every tensor of the model with where it comes from, in byte order of Hugging Face's names.
///
/// # Errors
/// In words: a tensor missing, of another shape than the sizes say, or left over.
pub fn plan(llama: &Llama, tensors: &[TensorEntry], tokens: u64) -> Result<Vec<Planned>, String> {
    let mut left: BTreeMap<&str, &TensorEntry> =
        tensors.iter().map(|tensor| (tensor.name.as_str(), tensor)).collect();
    let mut planned = Vec::new();
    for wanted in wanted(llama, tokens) {
        let Some(tensor) = left.remove(wanted.gguf.as_str()) else {
            return Err(format!("the tensor {} is missing", wanted.gguf));
        };
        let dimensions: Vec<u64> = wanted.shape.iter().rev().copied().collect();
        if tensor.dimensions != dimensions {
            return Err(format!(
                "the tensor {} has the dimensions {:?}, not {dimensions:?}",
                wanted.gguf, tensor.dimensions
            ));
        }
        let columns = dimensions[0];
        let rows = dimensions.get(1).copied().unwrap_or(1);
        planned.push(Planned {
            name: wanted.hugging_face,
            shape: wanted.shape,
            rows,
            columns,
            quantization: tensor.quantization,
            offset_bytes: tensor.offset_bytes,
            row_bytes: tensor.size_bytes / rows,
            order: wanted.order,
        });
    }
    if let Some(name) = left.keys().next() {
        return Err(format!("the tensor {name} has no place in a plain llama"));
    }
    planned.sort_by(|one, other| one.name.cmp(&other.name));
    Ok(planned)
}

struct Wanted {
    gguf: String,
    hugging_face: String,
    shape: Vec<u64>,
    order: RowOrder,
}

/// The table of names and shapes.
fn wanted(llama: &Llama, tokens: u64) -> Vec<Wanted> {
    let plain = |gguf: &str, hugging_face: &str, shape: &[u64]| Wanted {
        gguf: format!("{gguf}.weight"),
        hugging_face: format!("{hugging_face}.weight"),
        shape: shape.to_vec(),
        order: RowOrder::Same,
    };
    let hidden = llama.hidden;
    let mut list = vec![
        plain("token_embd", "model.embed_tokens", &[tokens, hidden]),
        plain("output_norm", "model.norm", &[hidden]),
    ];
    if llama.output == Output::Own {
        list.push(plain("output", "lm_head", &[tokens, hidden]));
    }
    let queries = llama.heads * llama.head_dim;
    let keys = llama.heads_kv * llama.head_dim;
    let feed_forward = llama.feed_forward;
    let interleaved = RowOrder::Interleaved { head_dim: llama.head_dim };
    for layer in 0..llama.layers {
        for (gguf, hugging_face, shape, order) in [
            ("attn_norm", "input_layernorm", &[hidden][..], RowOrder::Same),
            ("attn_q", "self_attn.q_proj", &[queries, hidden], interleaved),
            ("attn_k", "self_attn.k_proj", &[keys, hidden], interleaved),
            ("attn_v", "self_attn.v_proj", &[keys, hidden], RowOrder::Same),
            ("attn_output", "self_attn.o_proj", &[hidden, queries], RowOrder::Same),
            ("ffn_norm", "post_attention_layernorm", &[hidden], RowOrder::Same),
            ("ffn_gate", "mlp.gate_proj", &[feed_forward, hidden], RowOrder::Same),
            ("ffn_up", "mlp.up_proj", &[feed_forward, hidden], RowOrder::Same),
            ("ffn_down", "mlp.down_proj", &[hidden, feed_forward], RowOrder::Same),
        ] {
            let gguf = format!("blk.{layer}.{gguf}");
            let hugging_face = format!("model.layers.{layer}.{hugging_face}");
            list.push(Wanted { order, ..plain(&gguf, &hugging_face, shape) });
        }
    }
    list
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_of_a_head_are_put_back_into_halves() {
        // One head of 6 rows. Hugging Face rotates row i with row i + 3, GGUF row 2i with row 2i + 1:
        // GGUF holds [h0 h3 h1 h4 h2 h5], so h0 h1 h2 h3 h4 h5 lie at 0 2 4 1 3 5.
        let tensor = Planned {
            name: "q".to_owned(),
            shape: vec![12, 1],
            rows: 12,
            columns: 1,
            quantization: Quantization::F32,
            offset_bytes: 0,
            row_bytes: 4,
            order: RowOrder::Interleaved { head_dim: 6 },
        };
        assert_eq!(tensor.rows_together(1 << 20), 6, "heads do not mix");
        let order: Vec<u64> = (0..6).map(|row| tensor.source_row(row)).collect();
        assert_eq!(order, [0, 2, 4, 1, 3, 5]);
    }

    #[test]
    fn rows_are_read_in_pieces_of_at_least_one() {
        let mut tensor = Planned {
            name: "v".to_owned(),
            shape: vec![12, 8],
            rows: 12,
            columns: 8,
            quantization: Quantization::F16,
            offset_bytes: 0,
            row_bytes: 16,
            order: RowOrder::Same,
        };
        assert_eq!(tensor.rows_together(50), 3);
        tensor.row_bytes = 100;
        assert_eq!(tensor.rows_together(50), 1);
    }
}
