//! Bytes of small GGUF files for tests, put together value by value. Apart because the reader, the converter and the finder of models
//! are all tested with them. Must not use the code under test.

/// A metadata value as the file spells it.
pub enum Meta<'a> {
    U32(u32),
    F32(f32),
    Bool(bool),
    Text(&'a str),
    Texts(&'a [&'a str]),
    I32s(&'a [i32]),
}

/// A tensor: name, dimensions innermost first, ggml's type number, bytes.
pub struct Tensor<'a>(pub &'a str, pub &'a [u64], pub u32, pub Vec<u8>);

fn text(text: &str, into: &mut Vec<u8>) {
    into.extend((text.len() as u64).to_le_bytes());
    into.extend(text.as_bytes());
}

fn meta(value: &Meta, into: &mut Vec<u8>) {
    match value {
        Meta::U32(value) => {
            into.extend(4_u32.to_le_bytes());
            into.extend(value.to_le_bytes());
        }
        Meta::F32(value) => {
            into.extend(6_u32.to_le_bytes());
            into.extend(value.to_le_bytes());
        }
        Meta::Bool(value) => {
            into.extend(7_u32.to_le_bytes());
            into.push(u8::from(*value));
        }
        Meta::Text(value) => {
            into.extend(8_u32.to_le_bytes());
            text(value, into);
        }
        Meta::Texts(values) => {
            into.extend(9_u32.to_le_bytes());
            into.extend(8_u32.to_le_bytes());
            into.extend((values.len() as u64).to_le_bytes());
            values.iter().for_each(|value| text(value, into));
        }
        Meta::I32s(values) => {
            into.extend(9_u32.to_le_bytes());
            into.extend(5_u32.to_le_bytes());
            into.extend((values.len() as u64).to_le_bytes());
            values.iter().for_each(|value| into.extend(value.to_le_bytes()));
        }
    }
}

/// A whole file, version 3, aligned to 32 bytes.
pub fn gguf(metadata: &[(&str, Meta)], tensors: &[Tensor]) -> Vec<u8> {
    let mut file = b"GGUF".to_vec();
    file.extend(3_u32.to_le_bytes());
    file.extend((tensors.len() as u64).to_le_bytes());
    file.extend((metadata.len() as u64).to_le_bytes());
    for (key, value) in metadata {
        text(key, &mut file);
        meta(value, &mut file);
    }
    let mut data: Vec<u8> = Vec::new();
    for Tensor(name, dimensions, kind, bytes) in tensors {
        text(name, &mut file);
        file.extend((dimensions.len() as u32).to_le_bytes());
        for dimension in *dimensions {
            file.extend(dimension.to_le_bytes());
        }
        file.extend(kind.to_le_bytes());
        file.extend((data.len() as u64).to_le_bytes());
        data.extend(bytes);
        data.resize(data.len().next_multiple_of(32), 0);
    }
    file.resize(file.len().next_multiple_of(32), 0);
    file.extend(data);
    file
}

/// The bytes of f32 numbers.
pub fn f32s(values: impl IntoIterator<Item = f32>) -> Vec<u8> {
    values.into_iter().flat_map(f32::to_le_bytes).collect()
}

/// A llama of one layer: 2 heads of 2 over 1 key head, hidden 4, feed-forward 2, 5 tokens, output tied to the embedding.
/// Every F32 element of the query projection is its own index.
pub fn tiny_llama() -> Vec<u8> {
    gguf(&tiny_metadata(), &tiny_tensors())
}

pub fn tiny_metadata<'a>() -> Vec<(&'static str, Meta<'a>)> {
    vec![
        ("general.architecture", Meta::Text("llama")),
        ("llama.block_count", Meta::U32(1)),
        ("llama.context_length", Meta::U32(16)),
        ("llama.embedding_length", Meta::U32(4)),
        ("llama.feed_forward_length", Meta::U32(2)),
        ("llama.attention.head_count", Meta::U32(2)),
        ("llama.attention.head_count_kv", Meta::U32(1)),
        ("llama.attention.layer_norm_rms_epsilon", Meta::F32(1e-5)),
        ("llama.rope.freq_base", Meta::F32(1e5)),
        ("tokenizer.ggml.model", Meta::Text("gpt2")),
        ("tokenizer.ggml.pre", Meta::Text("smollm")),
        ("tokenizer.ggml.tokens", Meta::Texts(&["<s>", "</s>", "a", "b", "ab"])),
        ("tokenizer.ggml.token_type", Meta::I32s(&[3, 3, 1, 1, 1])),
        ("tokenizer.ggml.merges", Meta::Texts(&["a b"])),
        ("tokenizer.ggml.bos_token_id", Meta::U32(0)),
        ("tokenizer.ggml.eos_token_id", Meta::U32(1)),
        ("tokenizer.ggml.add_bos_token", Meta::Bool(false)),
        ("tokenizer.chat_template", Meta::Text("<s>{{ messages }}")),
    ]
}

pub fn tiny_tensors() -> Vec<Tensor<'static>> {
    let plain = |name, dimensions: &'static [u64]| {
        let count: u64 = dimensions.iter().product();
        Tensor(name, dimensions, 0, f32s((0..count).map(|value| value as f32)))
    };
    vec![
        plain("token_embd.weight", &[4, 5]),
        plain("output_norm.weight", &[4]),
        plain("blk.0.attn_norm.weight", &[4]),
        plain("blk.0.attn_q.weight", &[4, 4]),
        plain("blk.0.attn_k.weight", &[4, 2]),
        plain("blk.0.attn_v.weight", &[4, 2]),
        plain("blk.0.attn_output.weight", &[4, 4]),
        plain("blk.0.ffn_norm.weight", &[4]),
        plain("blk.0.ffn_gate.weight", &[4, 2]),
        plain("blk.0.ffn_up.weight", &[4, 2]),
        plain("blk.0.ffn_down.weight", &[2, 4]),
    ]
}
