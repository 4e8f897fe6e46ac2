"""Makes the small models beside this file and what Hugging Face transformers computes with them.

    python -m venv venv && venv/bin/pip install torch transformers safetensors
    venv/bin/python tests/data/families/make.py [NAME ...]

Each folder has a config.json as models of the family are published, seeded random weights, and reference.safetensors:
`input_ids` (24), `logits` (24, vocabulary) in float32 on the CPU with eager attention, and `greedy`, the 64 tokens
that follow when the likeliest is taken each time. Weights are rounded to the stored type before anything is computed.
A seed whose greedy path has a near tie is passed over, so that the order of sums cannot change the path.

Made with transformers 5.24.0 and torch 2.15.0.
"""

import json
import pathlib
import sys

import torch
import transformers
from safetensors.torch import save_file

HERE = pathlib.Path(__file__).parent
PROMPT, GREEDY, TIE = 24, 64, 2e-3
SMALL = {
    "vocab_size": 128,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}

# Name: (architecture, stored type, number of files, what differs from SMALL).
MODELS = {
    "llama-2": ("LlamaForCausalLM", torch.float16, 2, {"num_key_value_heads": 4, "rope_theta": 10000.0}),
    "llama-3": (
        "LlamaForCausalLM",
        torch.bfloat16,
        1,
        {
            "tie_word_embeddings": True,
            "rope_parameters": {
                "rope_type": "llama3",
                "rope_theta": 500.0,
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 64,
            },
        },
    ),
    "llama-linear": (
        "LlamaForCausalLM",
        torch.float32,
        1,
        {
            "num_hidden_layers": 2,
            "attention_bias": True,
            "rope_theta": 1000.0,
            "rope_scaling": {"type": "linear", "factor": 4.0},
        },
    ),
    "llama-yarn": (
        "LlamaForCausalLM",
        torch.bfloat16,
        1,
        {
            "rope_theta": 1000.0,
            "head_dim": 16,
            "rope_scaling": {
                "rope_type": "yarn",
                "factor": 4.0,
                "original_max_position_embeddings": 64,
                "beta_fast": 8.0,
                "beta_slow": 1.0,
            },
        },
    ),
    "mistral": (
        "MistralForCausalLM",
        torch.bfloat16,
        1,
        {"head_dim": 16, "sliding_window": 7, "rope_theta": 10000.0},
    ),
    "qwen2": (
        "Qwen2ForCausalLM",
        torch.bfloat16,
        1,
        {
            "tie_word_embeddings": True,
            "use_sliding_window": True,
            "sliding_window": 9,
            "max_window_layers": 1,
            "rope_theta": 1000000.0,
        },
    ),
    "qwen3": (
        "Qwen3ForCausalLM",
        torch.bfloat16,
        1,
        {"head_dim": 16, "rope_theta": 1000000.0, "tie_word_embeddings": False},
    ),
    "qwen3-moe": (
        "Qwen3MoeForCausalLM",
        torch.bfloat16,
        1,
        {
            "head_dim": 16,
            "rope_theta": 10000.0,
            "tie_word_embeddings": False,
            "num_experts": 6,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 24,
            "norm_topk_prob": True,
            "decoder_sparse_step": 1,
            "mlp_only_layers": [1],
        },
    ),
    "gemma-2": (
        "Gemma2ForCausalLM",
        torch.bfloat16,
        1,
        {
            "head_dim": 16,
            "query_pre_attn_scalar": 24,
            "sliding_window": 8,
            "attn_logit_softcapping": 2.0,
            "final_logit_softcapping": 1.5,
            "hidden_activation": "gelu_pytorch_tanh",
            "rope_theta": 10000.0,
            "tie_word_embeddings": True,
        },
    ),
    "gemma-3": (
        "Gemma3ForCausalLM",
        torch.bfloat16,
        1,
        {
            "head_dim": 16,
            "num_hidden_layers": 4,
            "query_pre_attn_scalar": 16,
            "sliding_window": 6,
            "sliding_window_pattern": 3,
            "hidden_activation": "gelu_pytorch_tanh",
            "rope_theta": 10000.0,
            "rope_local_base_freq": 100.0,
            "rope_scaling": {"rope_type": "linear", "factor": 8.0},
            "tie_word_embeddings": True,
        },
    ),
    "phi-3": (
        "Phi3ForCausalLM",
        torch.bfloat16,
        1,
        {"sliding_window": 17, "rope_theta": 10000.0, "tie_word_embeddings": False},
    ),
    "phi-3-long": (
        "Phi3ForCausalLM",
        torch.bfloat16,
        1,
        {
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "num_key_value_heads": 1,
            "partial_rotary_factor": 0.75,
            "original_max_position_embeddings": 128,
            "max_position_embeddings": 1024,
            "rope_theta": 10000.0,
            "rope_scaling": {
                "type": "longrope",
                "short_factor": [1.0, 1.05, 1.1, 1.2, 1.3, 1.5],
                "long_factor": [1.0, 1.5, 2.0, 4.0, 8.0, 16.0],
            },
            "tie_word_embeddings": True,
        },
    ),
    "smollm-3": (
        "SmolLM3ForCausalLM",
        torch.bfloat16,
        1,
        {
            "num_hidden_layers": 4,
            "no_rope_layers": [1, 1, 0, 1],
            "rope_theta": 5000000.0,
            "tie_word_embeddings": True,
        },
    ),
}


def fill(model, dtype, seed):
    """Random weights of a size at which every part of the model matters, rounded to the stored type.

    Where the embedding is the output too it is small, or the likeliest token would be the last one again.
    """
    embedding = 0.1 if model.config.tie_word_embeddings else 0.5
    generator = torch.Generator().manual_seed(seed)
    for name, weight in model.named_parameters():
        noise = torch.randn(weight.shape, generator=generator)
        if name.endswith("norm.weight"):
            around = 0.0 if "Gemma" in type(model).__name__ else 1.0
            values = around + 0.2 * noise
        elif name.endswith("bias"):
            values = 0.3 * noise
        elif "embed" in name or "lm_head" in name:
            values = embedding * noise
        else:
            values = 2.0 * noise / weight.shape[-1] ** 0.5
        with torch.no_grad():
            weight.copy_(values.to(dtype).to(torch.float32))


@torch.no_grad()
def reference(model, seed):
    """Input, its logits, and the greedy path; None when two tokens of the path nearly tie."""
    generator = torch.Generator().manual_seed(seed + 1000)
    ids = torch.randint(3, 128, (PROMPT,), generator=generator)
    prompt = model(ids[None], use_cache=False).logits[0].float()
    path = ids
    for _ in range(GREEDY):
        last = model(path[None], use_cache=False).logits[0, -1].float()
        best = last.topk(2)
        if best.values[0] - best.values[1] < TIE:
            return None
        path = torch.cat([path, best.indices[:1]])
    return {"input_ids": ids, "logits": prompt.contiguous(), "greedy": path[PROMPT:].contiguous()}


def make(name):
    architecture, dtype, files, more = MODELS[name]
    config = {"architectures": [architecture], **SMALL, **more, "torch_dtype": str(dtype).removeprefix("torch.")}
    kind = getattr(transformers, architecture)
    settings = {key: value for key, value in json.loads(json.dumps(config)).items() if key != "torch_dtype"}
    model = kind(kind.config_class(**settings, attn_implementation="eager")).float().eval()
    config["model_type"] = model.config.model_type
    for seed in range(100):
        fill(model, dtype, seed)
        found = reference(model, seed)
        if found is not None:
            break
    else:
        raise SystemExit(f"{name}: every seed has a near tie")
    folder = HERE / name
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    save_weights(model, folder, dtype, files, config)
    save_file(found, folder / "reference.safetensors")
    print(f"{name}: seed {seed}, {len(set(found['greedy'].tolist()))} different tokens")


def save_weights(model, folder, dtype, files, config):
    """As save_pretrained writes them, in `files` files, without metadata that names a version."""
    from transformers.core_model_loading import revert_weight_conversion

    tensors = revert_weight_conversion(model, model.state_dict())
    if config.get("tie_word_embeddings"):
        tensors.pop("lm_head.weight", None)
    tensors = {name: tensor.to(dtype).contiguous().clone() for name, tensor in tensors.items()}
    for old in folder.glob("model*.safetensors"):
        old.unlink()
    names = sorted(tensors)
    for part in range(files):
        file = "model.safetensors" if files == 1 else f"model-{part + 1:05}-of-{files:05}.safetensors"
        save_file({name: tensors[name] for name in names[part::files]}, folder / file)


if __name__ == "__main__":
    torch.set_num_threads(1)
    for name in sys.argv[1:] or MODELS:
        make(name)
