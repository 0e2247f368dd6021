"""Writes a `ModelConfig` down: as config.json of a folder, and as the `deepseek4.*` keys of a GGUF file.

Owns the direction opposite to `weights/hf_config.py` and `weights/gguf_config.py`; what it writes, they read back as
an equal configuration (for ratios a published configuration can express). Refuses nothing: a `ModelConfig` has
checked itself.
"""

from __future__ import annotations

from collections.abc import Sequence

from finback.config import GenerationDefaults, ModelConfig, RopeConfig
from finback.formats.writer import GgufWriter
from finback.weights.gguf_config import ARCHITECTURE, GENERATION_KEYS, INTEGER_KEYS, REAL_KEYS, SQRT_SOFTPLUS

_SAME_NAME = (
    "vocab_size", "hidden_size", "num_attention_heads", "head_dim", "qk_rope_head_dim", "q_lora_rank", "o_lora_rank",
    "o_groups", "sliding_window", "index_n_heads", "index_head_dim", "index_topk", "n_routed_experts",
    "num_experts_per_tok", "n_shared_experts", "moe_intermediate_size", "norm_topk_prob", "routed_scaling_factor",
    "swiglu_limit", "hc_mult", "hc_sinkhorn_iters", "hc_eps", "rms_norm_eps", "max_position_embeddings",
    "num_hidden_layers", "bos_token_id", "pad_token_id",
)  # fmt: skip


def hf_config(config: ModelConfig) -> dict[str, object]:
    """config.json in the published spelling (spec section 1.1), without quantization_config."""
    layers = (*config.layers, *config.mtp_layers)
    values: dict[str, object] = {
        "architectures": ["DeepseekV4ForCausalLM"],
        "model_type": "deepseek_v4",
        **{name: getattr(config, name) for name in _SAME_NAME},
        "eos_token_id": config.eos_token_ids[0]
        if len(config.eos_token_ids) == 1
        else list(config.eos_token_ids),
        "num_key_value_heads": 1,
        "num_nextn_predict_layers": len(config.mtp_layers),
        "num_hash_layers": sum(layer.hashed for layer in config.layers),
        "compress_ratios": [layer.ratio for layer in layers],
        "scoring_func": "sqrtsoftplus",
        "topk_method": "noaux_tc",
        "hidden_act": "silu",
        "attention_bias": False,
        "tie_word_embeddings": False,
        "rope_theta": config.rope.theta,
        "compress_rope_theta": config.compress_rope.theta,
        "rope_scaling": _scaling(config.compress_rope),
    }
    return values


def _scaling(rope: RopeConfig) -> dict[str, object] | None:
    if rope.factor is None:
        return None
    return {
        "type": "yarn",
        "factor": rope.factor,
        "original_max_position_embeddings": rope.original_context,
        "beta_fast": rope.beta_fast,
        "beta_slow": rope.beta_slow,
    }


def add_gguf_config(writer: GgufWriter, config: ModelConfig) -> None:
    """Adds every `deepseek4.*` key of spec section 7. Draft blocks are ds4's `mtp.N`, outside `block_count`."""

    def add(name: str, kind: str, value: bool | int | float | str | Sequence[int] | Sequence[float]) -> None:
        writer.add(f"{ARCHITECTURE}.{name}", kind, value)

    layers = (*config.layers, *config.mtp_layers)
    for field, key in INTEGER_KEYS.items():
        add(key, "u32", 1 if field == "num_key_value_heads" else getattr(config, field))
    for field, key in REAL_KEYS.items():
        add(key, "f32", getattr(config, field))
    add("block_count", "u32", len(config.layers))
    add("nextn_predict_layers", "u32", len(config.mtp_layers))
    add("vocab_size", "u32", config.vocab_size)
    add("attention.value_length", "u32", config.head_dim)
    add("attention.compress_ratios", "[u32]", [layer.ratio for layer in layers])
    add("hash_layer_count", "u32", sum(layer.hashed for layer in config.layers))
    add("expert_weights_norm", "bool", config.norm_topk_prob)
    add("expert_gating_func", "u32", SQRT_SOFTPLUS)
    add("swiglu_clamp_exp", "[f32]", [config.swiglu_limit] * len(layers))
    add("swiglu_clamp_shexp", "[f32]", [config.swiglu_limit] * len(layers))
    add("rope.freq_base", "f32", config.rope.theta)
    rope = config.compress_rope
    add("attention.compress_rope_freq_base", "f32", rope.theta)
    add("rope.scaling.type", "str", "none" if rope.factor is None else "yarn")
    if rope.factor is not None:
        add("rope.scaling.factor", "f32", rope.factor)
        add("rope.scaling.original_context_length", "u32", rope.original_context)
        add("rope.scaling.yarn_beta_fast", "f32", rope.beta_fast)
        add("rope.scaling.yarn_beta_slow", "f32", rope.beta_slow)


def add_gguf_vocabulary(
    writer: GgufWriter,
    config: ModelConfig,
    pre: str,
    tokens: Sequence[str],
    types: Sequence[int],
    merges: Sequence[str],
) -> None:
    """Adds the `tokenizer.ggml.*` keys of a byte-level vocabulary; the renderer writes BOS, so none is asked for."""
    writer.add("tokenizer.ggml.model", "str", "gpt2")
    writer.add("tokenizer.ggml.pre", "str", pre)
    writer.add("tokenizer.ggml.tokens", "[str]", tokens)
    writer.add("tokenizer.ggml.token_type", "[i32]", types)
    writer.add("tokenizer.ggml.merges", "[str]", merges)
    writer.add("tokenizer.ggml.add_bos_token", "bool", False)
    named = {"bos": config.bos_token_id, "padding": config.pad_token_id}
    named["eos"] = config.eos_token_ids[0] if config.eos_token_ids else None
    for name, token in named.items():
        if token is not None:
            writer.add(f"tokenizer.ggml.{name}_token_id", "u32", token)


def add_gguf_sampling(writer: GgufWriter, generation: GenerationDefaults) -> None:
    """Adds sampling defaults under finback's own keys: GGUF has none."""
    for name, key in GENERATION_KEYS.items():
        value = getattr(generation, name)
        if value is not None:
            writer.add(key, "u32" if name == "top_k" else "f64", value)
