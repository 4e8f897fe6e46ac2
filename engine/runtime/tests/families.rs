//! Every family of models against what Hugging Face transformers computes with small random weights.
//!
//! Apart from the demo model's test since these models are in the repository: `tests/data/families/make.py` makes
//! them and the reference. Must not know: the engine; it drives the runner as the engine does.
//!
//! Tolerance: both compute in float32 from the same weights and differ in the order of sums. Over a few layers of
//! 32 columns that is some 1e-6 of logits of about 1 to 10; a window that is off by one, a norm in the wrong place
//! or a wrong frequency moves them by 1e-2 and more. They must agree to 2e-4 of the largest logit of their row.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on says where it stopped")]

use std::path::{Path, PathBuf};

use pitot_kernels::Device;
use pitot_kernels::cpu::Cpu;
use pitot_kernels::cpu::naive::Naive;
use pitot_runtime::testing::toy_tokenizer_json;
use pitot_runtime::{
    Batch, BatchSequence, LoadError, Loaded, LogitRows, ModelFiles, Reservation, Runner, load,
};
use safetensors::SafeTensors;
use serde_json::{Value, json};

const TOLERANCE: f32 = 2e-4;
const BLOCK_TOKENS: usize = 4;
const BLOCKS: usize = 64;
const ROWS_MAX: usize = 128;
const RESERVATION: Reservation =
    Reservation { blocks: BLOCKS, block_tokens: BLOCK_TOKENS, rows_max: ROWS_MAX, logit_rows_max: ROWS_MAX };

const NAMES: [&str; 13] = [
    "gemma-2",
    "gemma-3",
    "llama-2",
    "llama-3",
    "llama-linear",
    "llama-yarn",
    "mistral",
    "phi-3",
    "phi-3-long",
    "qwen2",
    "qwen3",
    "qwen3-moe",
    "smollm-3",
];

fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data/families").join(name)
}

fn try_load<D: Device>(name: &str, config: &[u8], device: D) -> Result<Loaded<D>, LoadError> {
    let mut tensors = Vec::new();
    for entry in std::fs::read_dir(folder(name)).unwrap() {
        let path = entry.unwrap().path();
        let file = path.file_name().unwrap().to_str().unwrap();
        if file.starts_with("model") && file.ends_with(".safetensors") {
            tensors.push(std::fs::read(path).unwrap());
        }
    }
    let tokenizer = toy_tokenizer_json().to_string();
    let files = ModelFiles {
        config,
        tokenizer: tokenizer.as_bytes(),
        tensors: tensors.iter().map(Vec::as_slice).collect(),
        ..ModelFiles::default()
    };
    load(&files, device)
}

fn loaded<D: Device>(name: &str, device: D) -> Loaded<D> {
    let config = std::fs::read(folder(name).join("config.json")).unwrap();
    let mut loaded = try_load(name, &config, device).unwrap_or_else(|error| panic!("{name}: {error}"));
    loaded.runner.reserve(RESERVATION).unwrap();
    loaded
}

fn cpu() -> Cpu {
    Cpu::new(Some(2)).unwrap()
}

/// What transformers computed.
struct Reference {
    prompt: Vec<u32>,
    /// One row for each token of the prompt.
    logits: Vec<Vec<f32>>,
    greedy: Vec<u32>,
}

impl Reference {
    fn of(name: &str) -> Reference {
        let bytes = std::fs::read(folder(name).join("reference.safetensors")).unwrap();
        let file = SafeTensors::deserialize(&bytes).unwrap();
        let ids = |name: &str| -> Vec<u32> {
            let values = file.tensor(name).unwrap().data().as_chunks::<8>().0.iter().copied();
            values.map(|bytes| u32::try_from(i64::from_le_bytes(bytes)).unwrap()).collect()
        };
        let logits = file.tensor("logits").unwrap();
        let columns = logits.shape()[1];
        let values: Vec<f32> =
            logits.data().as_chunks::<4>().0.iter().copied().map(f32::from_le_bytes).collect();
        let reference = Reference {
            prompt: ids("input_ids"),
            logits: values.chunks_exact(columns).map(<[f32]>::to_vec).collect(),
            greedy: ids("greedy"),
        };
        assert_eq!((reference.prompt.len(), reference.greedy.len()), (24, 64));
        assert_eq!(reference.logits.len(), 24);
        reference
    }
}

/// A part of a sequence whose blocks begin at `first` and fall, so that only the table says where they are.
fn part(tokens: &[u32], context: usize, first: u32, logits: LogitRows) -> BatchSequence {
    let count = context.div_ceil(BLOCK_TOKENS) as u32;
    BatchSequence {
        tokens: tokens.to_vec(),
        context,
        blocks: (0..count).map(|block| first - block).collect(),
        logits,
    }
}

fn run<D: Device>(loaded: &mut Loaded<D>, sequences: Vec<BatchSequence>) -> Vec<Vec<f32>> {
    let logits = loaded.runner.run(&Batch { sequences }).unwrap();
    logits.rows().map(<[f32]>::to_vec).collect()
}

/// Logits after each token, run in chunks.
fn in_chunks<D: Device>(loaded: &mut Loaded<D>, tokens: &[u32], chunk: usize) -> Vec<Vec<f32>> {
    let mut rows = Vec::new();
    let mut context = 0;
    for tokens in tokens.chunks(chunk) {
        context += tokens.len();
        rows.extend(run(loaded, vec![part(tokens, context, 40, LogitRows::All)]));
    }
    rows
}

#[track_caller]
fn check(found: &[Vec<f32>], expected: &[Vec<f32>], what: &str) {
    assert_eq!(found.len(), expected.len(), "{what}");
    for (row, (found, expected)) in found.iter().zip(expected).enumerate() {
        let largest = expected.iter().fold(0.0_f32, |most, logit| most.max(logit.abs()));
        for (token, (found, expected)) in found.iter().zip(expected).enumerate() {
            let off = (found - expected).abs();
            assert!(
                off <= TOLERANCE * largest,
                "{what}: token {token} after {row}: {found}, expected {expected}"
            );
        }
    }
}

fn likeliest(row: &[f32]) -> u32 {
    let best = (0..row.len()).max_by(|a, b| row[*a].total_cmp(&row[*b]));
    best.unwrap() as u32
}

#[test]
fn logits_are_those_of_transformers_whole_and_in_chunks() {
    for name in NAMES {
        let expected = Reference::of(name);
        let (mut fast, mut naive) = (loaded(name, cpu()), loaded(name, Naive));
        check(
            &in_chunks(&mut naive, &expected.prompt, ROWS_MAX),
            &expected.logits,
            &format!("{name}, naive"),
        );
        for chunk in [ROWS_MAX, 5, 1] {
            let found = in_chunks(&mut fast, &expected.prompt, chunk);
            check(&found, &expected.logits, &format!("{name} in chunks of {chunk}"));
        }
    }
}

#[test]
fn the_greedy_path_is_that_of_transformers() {
    for name in NAMES {
        let Reference { prompt, greedy, .. } = Reference::of(name);
        let mut model = loaded(name, cpu());
        let mut tokens = prompt.clone();
        let mut row = in_chunks(&mut model, &prompt, ROWS_MAX).pop().unwrap();
        for (step, expected) in greedy.iter().enumerate() {
            let next = likeliest(&row);
            assert_eq!(next, *expected, "{name}: step {step}");
            tokens.push(next);
            row = run(&mut model, vec![part(&[next], tokens.len(), 40, LogitRows::Last)]).remove(0);
        }
    }
}

#[test]
fn batched_is_as_alone_and_a_cached_prefix_as_cold() {
    for name in NAMES {
        let Reference { prompt, logits, greedy } = Reference::of(name);
        let mut model = loaded(name, cpu());
        let whole: Vec<u32> = prompt.iter().chain(&greedy).copied().collect();
        let alone = in_chunks(&mut model, &whole, ROWS_MAX);
        // A long sequence goes on, a short one begins and a third is new, in one step.
        in_chunks(&mut model, &whole[..60], ROWS_MAX);
        let together = run(
            &mut model,
            vec![
                part(&whole[60..61], 61, 40, LogitRows::Last),
                part(&whole[..3], 3, 60, LogitRows::All),
                part(&prompt, 24, 59, LogitRows::Last),
            ],
        );
        check(&together[..1], &alone[60..61], &format!("{name}, decoded beside others"));
        check(&together[1..4], &logits[..3], &format!("{name}, begun beside others"));
        check(&together[4..], &logits[23..], &format!("{name}, filled beside others"));
        // A sequence that takes over the blocks of the first 60 tokens and goes on in blocks of its own.
        let mut shared = part(&whole[60..], whole.len(), 40, LogitRows::All);
        for block in &mut shared.blocks[15..] {
            *block += 22;
        }
        check(&run(&mut model, vec![shared]), &alone[60..], &format!("{name}, on a cached prefix"));
        // One that takes over blocks which another fills in the same step.
        let mut second = part(&prompt[20..], 24, 40, LogitRows::All);
        second.blocks[5] = 50;
        let both = run(&mut model, vec![part(&prompt, 24, 40, LogitRows::Last), second]);
        check(&both[1..], &logits[20..], &format!("{name}, on a prefix of the same step"));
    }
}

/// A model whose config.json says something else is another model by far more than the tolerance, so the tests above
/// would see a key that is not heeded.
#[test]
fn each_key_of_a_family_matters() {
    let changes = [
        ("gemma-2", "/sliding_window", json!(9)),
        ("gemma-2", "/query_pre_attn_scalar", json!(25)),
        ("gemma-2", "/attn_logit_softcapping", Value::Null),
        ("gemma-2", "/final_logit_softcapping", Value::Null),
        ("gemma-3", "/sliding_window", json!(5)),
        ("gemma-3", "/sliding_window_pattern", json!(4)),
        ("gemma-3", "/rope_local_base_freq", json!(120.0)),
        ("gemma-3", "/rope_scaling/factor", json!(4.0)),
        ("gemma-3", "/rope_theta", json!(100.0)),
        ("llama-3", "/rope_parameters/factor", json!(4.0)),
        ("llama-3", "/rope_parameters/high_freq_factor", json!(8.0)),
        ("llama-3", "/rms_norm_eps", json!(1e-2)),
        ("llama-linear", "/rope_scaling/factor", json!(3.0)),
        ("llama-linear", "/attention_bias", json!(false)),
        ("llama-yarn", "/rope_scaling/factor", json!(3.0)),
        ("llama-yarn", "/rope_scaling/beta_fast", json!(2.0)),
        ("llama-yarn", "/rope_scaling/attention_factor", json!(1.0)),
        ("mistral", "/sliding_window", json!(8)),
        ("phi-3", "/sliding_window", json!(16)),
        ("phi-3-long", "/rope_scaling/short_factor/1", json!(2.0)),
        ("phi-3-long", "/max_position_embeddings", json!(512)),
        ("qwen2", "/sliding_window", json!(8)),
        ("qwen2", "/max_window_layers", json!(2)),
        ("qwen2", "/use_sliding_window", json!(false)),
        ("qwen3-moe", "/norm_topk_prob", json!(false)),
        ("qwen3-moe", "/num_experts_per_tok", json!(3)),
        ("smollm-3", "/no_rope_layers/2", json!(1)),
    ];
    for (name, key, value) in changes {
        let bytes = std::fs::read(folder(name).join("config.json")).unwrap();
        let mut config: Value = serde_json::from_slice(&bytes).unwrap();
        let (place, last) = key.rsplit_once('/').unwrap();
        let place = config.pointer_mut(place).unwrap();
        match last.parse::<usize>() {
            Ok(index) => place[index] = value,
            Err(_) => place[last] = value,
        }
        let mut changed = try_load(name, config.to_string().as_bytes(), Naive).unwrap();
        changed.runner.reserve(RESERVATION).unwrap();
        let Reference { prompt, logits, .. } = Reference::of(name);
        let found = in_chunks(&mut changed, &prompt, ROWS_MAX);
        let off = found.iter().flatten().zip(logits.iter().flatten()).map(|(a, b)| (a - b).abs());
        let largest = logits.iter().flatten().fold(0.0_f32, |most, logit| most.max(logit.abs()));
        let off = off.fold(0.0, f32::max);
        assert!(off > 10.0 * TOLERANCE * largest, "{name}: {key} moves the logits by {off} only");
    }
}

#[test]
fn what_cannot_be_loaded_is_named() {
    let refused = |name: &str, change: fn(&mut Value), message: &str| {
        let bytes = std::fs::read(folder(name).join("config.json")).unwrap();
        let mut config: Value = serde_json::from_slice(&bytes).unwrap();
        change(&mut config);
        let error = try_load(name, config.to_string().as_bytes(), Naive).err().unwrap().to_string();
        assert!(error.contains(message), "{error}");
    };
    refused(
        "llama-2",
        |config| config["architectures"][0] = "BloomForCausalLM".into(),
        "\"BloomForCausalLM\"",
    );
    refused("llama-3", |config| config["num_hidden_layers"] = 9.into(), "lack the tensor model.layers.3.");
    refused("llama-3", |config| config["tie_word_embeddings"] = false.into(), "lm_head.weight");
    refused("qwen3-moe", |config| config["num_experts"] = 7.into(), "model.layers.0.mlp.gate.weight");
    refused("qwen2", |config| config["intermediate_size"] = 40.into(), "model.layers.0.mlp.gate_proj.weight");
}
