//! Turns a GGUF file of the llama architecture into a Hugging Face folder. Apart because this is where the two naming schemes and
//! the two layouts of the attention projections meet. Must not know where the file came from or where the folder will end up.
//! Tensors are written one after the other, a piece at a time, so the memory needed does not grow with the model.

use std::fs::File;
use std::io::{BufReader, BufWriter, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;

use sha2::{Digest, Sha256};

use super::architecture::{Llama, Planned, plan};
use super::error::PullError;
use super::gguf;
use super::hash::hex;
use super::progress::{Bar, Progress};
use super::quantization::append_as_bf16;
use super::vocabulary::Vocabulary;

/// Raised when the same GGUF would give different files; a folder made by another version is made again.
pub const CONVERTER_VERSION: u32 = 1;
/// Bytes of quantised rows handled at a time.
const PIECE_BYTES: u64 = 1 << 20;

/// Writes the six files of a model folder into `folder`, which exists and is empty. Returns the sha256 over the raw bf16 bytes of
/// all tensors, in byte order of their names.
///
/// # Errors
/// A file that is no GGUF of the llama architecture with a byte-level BPE vocabulary, a tensor that is missing, unknown or of another
/// shape than the metadata say, and failures of reading and writing.
pub fn convert(source: &Path, folder: &Path, progress: Progress) -> Result<String, PullError> {
    let file = File::open(source).map_err(PullError::io("opening", source))?;
    let file_bytes = file.metadata().map_err(PullError::io("reading", source))?.len();
    let gguf = gguf::read(&mut BufReader::with_capacity(1 << 20, &file), file_bytes)
        .map_err(|error| of_gguf(source, error))?;
    let unconvertible = |reason| PullError::Conversion { path: source.to_owned(), reason };

    let llama = Llama::of_header(&gguf).map_err(unconvertible)?;
    let vocabulary = Vocabulary::of_metadata(&gguf.metadata).map_err(unconvertible)?;
    let tokens = vocabulary.tokens.len() as u64;
    let tensors = plan(&llama, &gguf.tensors, tokens).map_err(unconvertible)?;

    for (name, text) in [
        ("config.json", llama.config_json(&vocabulary)),
        ("generation_config.json", vocabulary.generation_config_json()),
        ("tokenizer.json", vocabulary.tokenizer_json()),
        ("tokenizer_config.json", vocabulary.tokenizer_config_json(llama.context_tokens)),
        ("special_tokens_map.json", vocabulary.special_tokens_map_json()),
    ] {
        let path = folder.join(name);
        std::fs::write(&path, text).map_err(PullError::io("writing", &path))?;
    }
    write_tensors(&file, source, &tensors, folder, progress)
}

fn of_gguf(path: &Path, error: gguf::GgufError) -> PullError {
    match error {
        gguf::GgufError::Io(cause) => PullError::io("reading", path)(cause),
        cause => PullError::Gguf { path: path.to_owned(), cause },
    }
}

/// Writes `model.safetensors`: 8 bytes of header length, the header padded with spaces to a multiple of 8, the tensors.
/// Format: the safetensors page of the Hugging Face documentation.
fn write_tensors(
    file: &File,
    source: &Path,
    tensors: &[Planned],
    folder: &Path,
    progress: Progress,
) -> Result<String, PullError> {
    let path = folder.join("model.safetensors");
    let mut output = Output {
        writer: BufWriter::with_capacity(
            1 << 20,
            File::create(&path).map_err(PullError::io("creating", &path))?,
        ),
        hash: Sha256::new(),
        bar: progress.bar("converting tensors", tensors.iter().map(Planned::bf16_bytes).sum()),
        path: &path,
    };
    let header = safetensors_header(tensors);
    let header_bytes = header.len() as u64;
    output.raw(&header_bytes.to_le_bytes())?;
    output.raw(header.as_bytes())?;

    let (mut quantised, mut converted) = (Vec::new(), Vec::new());
    for tensor in tensors {
        let rows_piece = tensor.rows_together(PIECE_BYTES);
        let mut row = 0;
        while row < tensor.rows {
            let rows = rows_piece.min(tensor.rows - row);
            // Both factors were checked against the file's size when its header was read.
            quantised.resize((rows * tensor.row_bytes) as usize, 0);
            file.read_exact_at(&mut quantised, tensor.offset_bytes + row * tensor.row_bytes)
                .map_err(PullError::io("reading", source))?;
            converted.clear();
            for row_in_piece in 0..rows {
                let start = (tensor.source_row(row_in_piece) * tensor.row_bytes) as usize;
                let bytes = &quantised[start..start + tensor.row_bytes as usize];
                append_as_bf16(tensor.quantization, bytes, &mut converted);
            }
            output.tensor_bytes(&converted)?;
            row += rows;
        }
    }
    output.finish()
}

struct Output<'a> {
    writer: BufWriter<File>,
    hash: Sha256,
    bar: Bar,
    path: &'a Path,
}

impl Output<'_> {
    fn raw(&mut self, bytes: &[u8]) -> Result<(), PullError> {
        self.writer.write_all(bytes).map_err(PullError::io("writing", self.path))
    }

    fn tensor_bytes(&mut self, bytes: &[u8]) -> Result<(), PullError> {
        self.hash.update(bytes);
        self.bar.advance(bytes.len() as u64);
        self.raw(bytes)
    }

    fn finish(mut self) -> Result<String, PullError> {
        self.writer.flush().map_err(PullError::io("writing", self.path))?;
        Ok(hex(self.hash))
    }
}

fn safetensors_header(tensors: &[Planned]) -> String {
    let mut header = String::from("{\"__metadata__\":{\"format\":\"pt\"}");
    let mut start = 0;
    for tensor in tensors {
        let end = start + tensor.bf16_bytes();
        let shape = tensor.shape.iter().map(u64::to_string).collect::<Vec<_>>();
        // The names are our own and need no escapes.
        header.push_str(&format!(
            ",\"{}\":{{\"dtype\":\"BF16\",\"shape\":[{}],\"data_offsets\":[{start},{end}]}}",
            tensor.name,
            shape.join(",")
        ));
        start = end;
    }
    header.push('}');
    while !header.len().is_multiple_of(8) {
        header.push(' ');
    }
    header
}

#[cfg(test)]
mod tests {
    use half::bf16;
    use serde_json::Value;

    use super::super::folder::inventory;
    use super::super::testing::{Meta, Tensor, gguf, tiny_llama, tiny_metadata, tiny_tensors};
    use super::*;

    /// Converts these bytes; the folder they became, or the error's text.
    fn convert_bytes(bytes: &[u8]) -> Result<(tempfile::TempDir, String), String> {
        let folder = tempfile::tempdir().unwrap();
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), bytes).unwrap();
        let hash = convert(file.path(), folder.path(), Progress::Quiet).map_err(|error| error.to_string())?;
        Ok((folder, hash))
    }

    fn json(folder: &Path, name: &str) -> Value {
        serde_json::from_slice(&std::fs::read(folder.join(name)).unwrap()).unwrap()
    }

    /// The numbers of a tensor, row after row.
    fn numbers(folder: &Path, name: &str) -> Vec<f32> {
        let bytes = std::fs::read(folder.join("model.safetensors")).unwrap();
        let tensors = safetensors::SafeTensors::deserialize(&bytes).unwrap();
        let tensor = tensors.tensor(name).unwrap();
        tensor.data().chunks_exact(2).map(|pair| bf16::from_le_bytes([pair[0], pair[1]]).to_f32()).collect()
    }

    #[test]
    fn a_tiny_llama_becomes_a_folder() {
        let (folder, hash) = convert_bytes(&tiny_llama()).unwrap();
        let folder = folder.path();
        assert_eq!(inventory(folder).unwrap().len(), 6, "complete");
        // Two heads of two rows: with half a head of one row, both orders are the same.
        let counted: Vec<f32> = (0..16).map(|value| value as f32).collect();
        assert_eq!(numbers(folder, "model.layers.0.self_attn.q_proj.weight"), counted);
        assert_eq!(numbers(folder, "model.norm.weight"), [0.0, 1.0, 2.0, 3.0]);
        // Names in byte order lie one after the other, so the hash is that of the file after its header.
        let bytes = std::fs::read(folder.join("model.safetensors")).unwrap();
        let header_bytes = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
        assert_eq!(header_bytes % 8, 0);
        assert_eq!(hash, hex(Sha256::new_with_prefix(&bytes[8 + header_bytes..])));
    }

    #[test]
    fn heads_of_four_rows_are_put_back_into_halves() {
        // One head of 4 rows of 4 numbers; the rows in the file are Hugging Face's 0 2 1 3.
        let mut metadata = tiny_metadata();
        for (key, value) in &mut metadata {
            if *key == "llama.attention.head_count" {
                *value = Meta::U32(1);
            }
        }
        let mut tensors = tiny_tensors();
        for Tensor(name, dimensions, _, bytes) in &mut tensors {
            if ["blk.0.attn_k.weight", "blk.0.attn_v.weight"].contains(name) {
                *dimensions = &[4, 4];
                let rows = [0.0_f32, 2.0, 1.0, 3.0];
                *bytes = rows.iter().flat_map(|row| row.to_le_bytes().repeat(4)).collect();
            }
        }
        let (folder, _) = convert_bytes(&gguf(&metadata, &tensors)).unwrap();
        let rows = |name: &str| -> Vec<f32> {
            let name = format!("model.layers.0.self_attn.{name}.weight");
            numbers(folder.path(), &name).into_iter().step_by(4).collect()
        };
        assert_eq!(rows("k_proj"), [0.0, 1.0, 2.0, 3.0]);
        assert_eq!(rows("v_proj"), [0.0, 2.0, 1.0, 3.0], "values are not rotated");
    }

    #[test]
    fn the_config_says_what_the_metadata_said() {
        let (folder, _) = convert_bytes(&tiny_llama()).unwrap();
        let config = json(folder.path(), "config.json");
        for (key, expected) in [
            ("architectures", serde_json::json!(["LlamaForCausalLM"])),
            ("model_type", "llama".into()),
            ("hidden_size", 4.into()),
            ("intermediate_size", 2.into()),
            ("num_hidden_layers", 1.into()),
            ("num_attention_heads", 2.into()),
            ("num_key_value_heads", 1.into()),
            ("head_dim", 2.into()),
            ("vocab_size", 5.into()),
            ("max_position_embeddings", 16.into()),
            ("rms_norm_eps", 1e-5.into()),
            ("rope_theta", 1e5.into()),
            ("tie_word_embeddings", true.into()),
            ("bos_token_id", 0.into()),
            ("eos_token_id", 1.into()),
            ("pad_token_id", Value::Null),
            ("torch_dtype", "bfloat16".into()),
        ] {
            assert_eq!(config[key], expected, "{key}");
        }
        let generation = json(folder.path(), "generation_config.json");
        assert_eq!(generation["eos_token_id"], 1);
        assert_eq!(generation.get("pad_token_id"), None, "absent, not null");
    }

    #[test]
    fn the_tokenizer_holds_vocabulary_merges_and_control_tokens() {
        let (folder, _) = convert_bytes(&tiny_llama()).unwrap();
        let tokenizer = json(folder.path(), "tokenizer.json");
        assert_eq!(tokenizer["model"]["vocab"]["ab"], 4);
        assert_eq!(tokenizer["model"]["merges"], serde_json::json!(["a b"]));
        let added = tokenizer["added_tokens"].as_array().unwrap();
        let added: Vec<_> = added
            .iter()
            .map(|token| (token["id"].as_u64(), token["content"].as_str(), token["special"].as_bool()))
            .collect();
        let expected = [(Some(0), Some("<s>"), Some(true)), (Some(1), Some("</s>"), Some(true))];
        assert_eq!(added, expected);
        let stages = &tokenizer["pre_tokenizer"]["pretokenizers"];
        assert_eq!(stages[0]["type"], "Digits");
        assert_eq!(stages[1]["use_regex"], true);
        let config = json(folder.path(), "tokenizer_config.json");
        assert_eq!(config["chat_template"], "<s>{{ messages }}");
        assert_eq!(config["add_bos_token"], false);
        assert_eq!(config["eos_token"], "</s>");
        let map = json(folder.path(), "special_tokens_map.json");
        assert_eq!(map["additional_special_tokens"], serde_json::json!(["<s>"]));
    }

    /// Replaces, adds or (for none) removes one metadata entry.
    #[track_caller]
    fn check_refused(key: &'static str, value: Option<Meta>, expected: &str) {
        let mut metadata = tiny_metadata();
        metadata.retain(|(present, _)| *present != key);
        metadata.extend(value.map(|value| (key, value)));
        let error = convert_bytes(&gguf(&metadata, &tiny_tensors())).unwrap_err();
        assert!(error.contains(expected), "{error}");
    }

    #[test]
    fn what_would_be_converted_wrongly_is_refused_by_name() {
        check_refused("general.architecture", Some(Meta::Text("gemma3")), "gemma3");
        check_refused("llama.expert_count", Some(Meta::U32(8)), "mixture of experts");
        check_refused("llama.rope.scaling.type", Some(Meta::Text("yarn")), "yarn scaling");
        check_refused("llama.rope.dimension_count", Some(Meta::U32(1)), "rotated");
        check_refused("llama.embedding_length", Some(Meta::U32(0)), "not between 1");
        check_refused("llama.block_count", Some(Meta::U32(2)), "blk.1.attn_norm.weight is missing");
        check_refused(
            "llama.feed_forward_length",
            Some(Meta::U32(3)),
            "has the dimensions [4, 2], not [4, 3]",
        );
        check_refused("tokenizer.ggml.model", Some(Meta::Text("llama")), "only gpt2");
        check_refused("tokenizer.ggml.pre", Some(Meta::Text("tekken")), "tekken");
        check_refused("tokenizer.ggml.pre", None, "tokenizer.ggml.pre is missing");
        check_refused("tokenizer.ggml.eos_token_id", Some(Meta::U32(5)), "only 5 tokens");
        check_refused("tokenizer.ggml.merges", Some(Meta::Texts(&["b a"])), "\"b a\"");
        check_refused("tokenizer.ggml.merges", Some(Meta::Texts(&["ab"])), "\"ab\"");
        check_refused("tokenizer.ggml.token_type", Some(Meta::I32s(&[3, 3])), "2 token types for 5");
        check_refused(
            "tokenizer.ggml.tokens",
            Some(Meta::Texts(&["<s>", "</s>", "a", "b", "a"])),
            "tokens 2 and 4 are the same",
        );
    }

    #[test]
    fn a_tensor_that_has_no_place_is_refused_by_name() {
        let mut tensors = tiny_tensors();
        tensors.push(Tensor("blk.0.attn_q.bias", &[4], 0, vec![0; 16]));
        let error = convert_bytes(&gguf(&tiny_metadata(), &tensors)).unwrap_err();
        assert!(error.contains("blk.0.attn_q.bias has no place"), "{error}");
    }

    #[test]
    fn an_output_of_its_own_is_kept() {
        let mut tensors = tiny_tensors();
        tensors.push(Tensor("output.weight", &[4, 5], 0, vec![0; 80]));
        let (folder, _) = convert_bytes(&gguf(&tiny_metadata(), &tensors)).unwrap();
        assert_eq!(numbers(folder.path(), "lm_head.weight"), vec![0.0; 20]);
        assert_eq!(json(folder.path(), "config.json")["tie_word_embeddings"], false);
    }
}
