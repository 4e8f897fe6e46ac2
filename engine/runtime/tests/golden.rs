//! A real model against a reference made with another implementation.
//!
//! Apart because it needs a model folder, named by PITOT_TEST_MODEL, and fails without one. Must not know: the
//! engine; it drives the runner as the engine does.

use std::path::{Path, PathBuf};

use pitot_kernels::Device;
use pitot_kernels::cpu::Cpu;
use pitot_kernels::cpu::naive::Naive;
use pitot_runtime::{
    Batch, BatchSequence, Loaded, LogitRows, ModelFiles, Reservation, Runner, load, log_softmax,
};
use serde_json::{Value, json};

/// Largest difference of a log-probability from the reference, in nats.
const TOLERANCE: f32 = 0.02;
/// Two likeliest tokens nearer than this may swap.
const NEAR_TIE: f64 = 0.1;
const BLOCK_TOKENS: usize = 16;
const ROWS_MAX: usize = 128;

struct Folder {
    path: PathBuf,
}

impl Folder {
    #[expect(clippy::disallowed_methods, reason = "the shell of this test names the model folder")]
    fn new() -> Folder {
        let path = std::env::var_os("PITOT_TEST_MODEL");
        let path = path.expect("set PITOT_TEST_MODEL to the folder of SmolLM2-135M-Instruct");
        Folder { path: path.into() }
    }

    fn read(&self, name: &str) -> Option<Vec<u8>> {
        std::fs::read(self.path.join(name)).ok()
    }

    fn load<D: Device>(&self, device: D) -> Loaded<D> {
        let required =
            |name: &str| self.read(name).unwrap_or_else(|| panic!("{name} is not in {:?}", self.path));
        let (config, tokenizer, tensors) =
            (required("config.json"), required("tokenizer.json"), required("model.safetensors"));
        let [generation, tokenizer_config, specials] =
            ["generation_config.json", "tokenizer_config.json", "special_tokens_map.json"]
                .map(|name| self.read(name));
        let files = ModelFiles {
            config: &config,
            generation_config: generation.as_deref(),
            tokenizer: &tokenizer,
            tokenizer_config: tokenizer_config.as_deref(),
            special_tokens_map: specials.as_deref(),
            chat_template: None,
            tensors: vec![&tensors],
        };
        let mut loaded = load(&files, device).expect("the model loads");
        let reservation = Reservation {
            blocks: ROWS_MAX / BLOCK_TOKENS,
            block_tokens: BLOCK_TOKENS,
            rows_max: ROWS_MAX,
            logit_rows_max: 8,
        };
        loaded.runner.reserve(reservation).expect("there is room");
        loaded
    }
}

fn cases() -> Vec<Value> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data/smollm2-reference.json");
    let text = std::fs::read_to_string(path).expect("the reference is in the repository");
    let reference: Value = serde_json::from_str(&text).expect("the reference is JSON");
    let cases = reference["cases"].as_array().expect("the reference has cases").clone();
    assert!(!cases.is_empty());
    cases
}

fn ids(value: &Value) -> Vec<u32> {
    value.as_array().expect("a list").iter().map(|id| id.as_u64().expect("an id") as u32).collect()
}

/// Token ids after template and tokenizer.
fn encode<D: Device>(loaded: &Loaded<D>, case: &Value) -> Vec<u32> {
    let text = match case["kind"].as_str() {
        Some("chat") => {
            let context = json!({ "messages": case["input"], "add_generation_prompt": true });
            loaded.chat.render(&context).expect("the template renders")
        }
        _ => case["input"].as_str().expect("a completion's input is text").to_owned(),
    };
    loaded.tokenizer.encode(&text).expect("the text encodes")
}

/// Log-probabilities after each token of `tokens`, run in chunks of at most `chunk` tokens.
fn score<D: Device>(loaded: &mut Loaded<D>, tokens: &[u32], chunk: usize) -> Vec<Vec<f32>> {
    let mut rows = Vec::new();
    let mut context = 0;
    for part in tokens.chunks(chunk) {
        context += part.len();
        // Blocks in falling order: the order in the table is what counts.
        let blocks = (0..(ROWS_MAX / BLOCK_TOKENS) as u32).rev().collect();
        let sequence = BatchSequence { tokens: part.to_vec(), context, blocks, logits: LogitRows::All };
        let logits = loaded.runner.run(&Batch { sequences: vec![sequence] }).expect("the step runs");
        rows.extend(logits.rows().map(log_softmax));
    }
    assert_eq!(rows.len(), tokens.len());
    rows
}

/// Compares one case, teacher-forced along the reference's own continuation; gives the largest difference.
#[track_caller]
fn check<D: Device>(loaded: &mut Loaded<D>, case: &Value, chunk: usize) -> f32 {
    let input = &case["input"];
    let prompt = ids(&case["prompt_ids"]);
    assert_eq!(encode(loaded, case), prompt, "tokens of {input}");
    let greedy = ids(&case["greedy_ids"]);
    let tokens: Vec<u32> = prompt.iter().chain(&greedy).copied().collect();
    let rows = score(loaded, &tokens[..tokens.len() - 1], chunk);
    let mut largest = 0f32;
    let mut compare = |row: usize, id: u64, expected: f64| {
        let found = rows[row][id as usize];
        let difference = (found - expected as f32).abs();
        assert!(difference <= TOLERANCE, "{input}: token {id} after {row}: {found}, expected {expected}");
        largest = largest.max(difference);
    };
    for (row, expected) in case["prompt_logprobs"].as_array().expect("a list").iter().enumerate() {
        compare(row, u64::from(prompt[row + 1]), expected.as_f64().expect("a number"));
    }
    for (step, likeliest) in case["steps"].as_array().expect("a list").iter().enumerate() {
        let row = prompt.len() - 1 + step;
        let pairs: Vec<(u64, f64)> =
            serde_json::from_value(likeliest.clone()).expect("pairs of id and number");
        for (id, expected) in &pairs {
            compare(row, *id, *expected);
        }
        if pairs[0].1 - pairs[1].1 > NEAR_TIE {
            let found = (0..rows[row].len()).max_by(|a, b| rows[row][*a].total_cmp(&rows[row][*b]));
            assert_eq!(found, Some(pairs[0].0 as usize), "{input}: greedy token of step {step}");
        }
    }
    let stop = loaded.generation.eos_token_ids.clone();
    let spoken: Vec<u32> = greedy.iter().copied().filter(|id| !stop.contains(id)).collect();
    let text = case["text"].as_str().expect("a text");
    let text_expected = text.strip_suffix("<|im_end|>").unwrap_or(text);
    assert_eq!(loaded.tokenizer.decode(&spoken).expect("tokens decode"), text_expected, "text of {input}");
    largest
}

#[test]
fn the_fast_path_agrees_with_the_reference() {
    let mut loaded = Folder::new().load(Cpu::new(None).expect("threads start"));
    for case in cases() {
        for chunk in [ROWS_MAX, 5] {
            let largest = check(&mut loaded, &case, chunk);
            println!("largest difference {largest:.5} nat in chunks of {chunk}: {}", case["input"]);
        }
    }
}

#[test]
fn the_naive_path_agrees_with_the_reference() {
    let mut loaded = Folder::new().load(Naive);
    let mut cases = cases();
    cases.sort_by_key(|case| case["prompt_ids"].as_array().map_or(0, Vec::len));
    for case in &cases[..2] {
        check(&mut loaded, case, ROWS_MAX);
    }
}

#[test]
fn sequences_in_one_batch_do_not_touch_each_other() {
    let mut loaded = Folder::new().load(Cpu::new(None).expect("threads start"));
    let prompts: Vec<Vec<u32>> = cases()[4..].iter().map(|case| ids(&case["prompt_ids"])).collect();
    let alone: Vec<Vec<f32>> =
        prompts.iter().map(|prompt| score(&mut loaded, prompt, ROWS_MAX).pop().expect("a row")).collect();
    let part = |(index, prompt): (usize, &Vec<u32>)| BatchSequence {
        tokens: prompt.clone(),
        context: prompt.len(),
        blocks: vec![index as u32],
        logits: LogitRows::Last,
    };
    let batch = Batch { sequences: prompts.iter().enumerate().map(part).collect() };
    let logits = loaded.runner.run(&batch).expect("the step runs");
    let together: Vec<Vec<f32>> = logits.rows().map(log_softmax).collect();
    assert_eq!(together.len(), alone.len());
    for (found, expected) in together.iter().flatten().zip(alone.iter().flatten()) {
        assert!((found - expected).abs() < 1e-3, "{found} beside {expected}");
    }
}
