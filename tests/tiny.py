"""TINY: the random model of the V4 shape that every layer of the tests uses, built from a seed in a fraction
of a second.

Hidden 64, six layers (two window-only, then CSA with ratio 4 and HCA with ratio 8 in turn; the first two
routed by token id), eight experts of which two are taken, window 16, one draft block, a byte-level vocabulary
with the control tokens. Owns the configuration, its weights (the hash rule of `golden`), stored formats of
them, and a model folder on disk written without the product's own writer. """

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from finback.config import ModelConfig, RopeConfig
from finback.reference.matrix import Matrix
from tests.golden import Tensors, layers, prompt, weights

__all__ = [
    "CONTROL",
    "TINY",
    "VOCAB",
    "official_config",
    "prompt",
    "stored",
    "tokenizer",
    "weights",
    "write_folder",
]

CONTROL = (
    ["<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜▁pad▁｜>"]
    + [
        "<｜User｜>",
        "<｜Assistant｜>",
        "<think>",
        "</think>",
        "｜DSML｜",
        "<｜latest_reminder｜>",
        "<｜action｜>",
    ]
    + ["<｜begin▁sys｜>", "<｜end▁sys｜>", "<｜image2｜>"]
    + [f"<｜place▁holder▁no▁{i}｜>" for i in range(31)]
)
"""Control tokens: the first three have ids 0, 1, 2; the others follow the 256 bytes."""

VOCAB = 256 + len(CONTROL)

TINY = ModelConfig(
    vocab_size=VOCAB,
    hidden_size=64,
    num_attention_heads=4,
    head_dim=32,
    qk_rope_head_dim=8,
    q_lora_rank=32,
    o_lora_rank=16,
    o_groups=2,
    sliding_window=16,
    index_n_heads=4,
    index_head_dim=32,
    index_topk=8,
    n_routed_experts=8,
    num_experts_per_tok=2,
    n_shared_experts=1,
    moe_intermediate_size=64,
    norm_topk_prob=True,
    routed_scaling_factor=1.5,
    swiglu_limit=0.7,
    hc_mult=4,
    hc_sinkhorn_iters=20,
    hc_eps=1e-6,
    rms_norm_eps=1e-6,
    rope=RopeConfig(10000.0),
    compress_rope=RopeConfig(160000.0, factor=16, original_context=256),
    max_position_embeddings=65536,
    layers=layers((0, 0, 4, 8, 4, 8), 0, 2),
    mtp_layers=layers((0,), 6, 2),
    cache_rounding=True,
    bos_token_id=0,
    eos_token_ids=(1,),
    pad_token_id=2,
)


def with_ratios(c: ModelConfig, ratios: tuple[int, ...], hashed: int = 0, **changes: Any) -> ModelConfig:
    """c with other layers and no draft block."""
    return replace(c, layers=layers(ratios, 0, hashed), mtp_layers=(), **changes)


# ---- stored formats ----------------------------------------------------------------------------------------

Encode = Callable[[npt.NDArray[np.float32]], Matrix]


def stored(tensors: Tensors, encode: Encode, chosen: Callable[[str], bool]) -> dict[str, Any]:
    """The tensors with every matrix whose name is chosen encoded; vectors, tables and the others stay as they
    are."""
    return {
        name: encode(t.astype(np.float32)) if t.ndim == 2 and t.dtype != np.int64 and chosen(name) else t
        for name, t in tensors.items()
    }


def is_big_matrix(name: str) -> bool:
    """The matrices that checkpoints quantise: projections, experts, embedding and head."""
    return name.endswith(".weight") and ".gate." not in name


def is_expert(name: str) -> bool:
    return ".ffn.experts." in name


# ---- a model folder ----------------------------------------------------------------------------------------


def official_config(c: ModelConfig) -> dict[str, Any]:
    """config.json in the official spelling (spec section 1.1)."""
    y = c.compress_rope
    same = (
        "vocab_size hidden_size num_attention_heads head_dim qk_rope_head_dim q_lora_rank o_lora_rank o_groups "
        "sliding_window index_n_heads index_head_dim index_topk n_routed_experts num_experts_per_tok "
        "n_shared_experts moe_intermediate_size norm_topk_prob routed_scaling_factor swiglu_limit hc_mult "
        "hc_sinkhorn_iters hc_eps rms_norm_eps max_position_embeddings bos_token_id pad_token_id"
    )
    return {
        "architectures": ["DeepseekV4ForCausalLM"],
        "model_type": "deepseek_v4",
        **{name: getattr(c, name) for name in same.split()},
        "num_hidden_layers": len(c.layers),
        "num_key_value_heads": 1,
        "num_nextn_predict_layers": len(c.mtp_layers),
        "num_hash_layers": sum(layer.hashed for layer in c.layers),
        "compress_ratios": [layer.ratio for layer in (*c.layers, *c.mtp_layers)],
        "eos_token_id": c.eos_token_ids[0] if c.eos_token_ids else None,
        "rope_theta": c.rope.theta,
        "compress_rope_theta": y.theta,
        "rope_scaling": {
            "type": "yarn",
            "factor": y.factor,
            "original_max_position_embeddings": y.original_context,
            "beta_fast": y.beta_fast,
            "beta_slow": y.beta_slow,
        },
        "scoring_func": "sqrtsoftplus",
        "topk_method": "noaux_tc",
        "hidden_act": "silu",
        "tie_word_embeddings": False,
        "attention_bias": False,
        "torch_dtype": "float32",
    }


def tokenizer() -> dict[str, Any]:
    """tokenizer.json: byte-level BPE without merges, the control tokens added as special ones."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [b for b in range(256) if b not in printable]
    letter = {b: chr(b) for b in printable} | {b: chr(256 + i) for i, b in enumerate(others)}
    vocab = {letter[b]: 3 + b for b in range(256)}
    ids = [*range(3), *range(259, VOCAB)]
    added = [
        {"id": i, "content": text, "special": True}
        | dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
        for i, text in zip(ids, CONTROL, strict=True)
    ]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    return {
        "version": "1.0",
        "added_tokens": added,
        "normalizer": None,
        "pre_tokenizer": byte_level,
        "post_processor": None,
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "vocab": {t: i for i, t in zip(ids, CONTROL, strict=True)} | vocab,
            "merges": [],
        },
    }


def write_safetensors(path: Path, tensors: Mapping[str, npt.NDArray[Any]]) -> None:
    """A safetensors file of float32 and int64 arrays, written from the format's definition."""
    dtypes, header, blobs, offset = {"f": "F32", "i": "I64"}, {}, [], 0
    for name, tensor in tensors.items():
        blob = np.ascontiguousarray(tensor).tobytes()
        span = [offset, offset + len(blob)]
        header[name] = {"dtype": dtypes[tensor.dtype.kind], "shape": list(tensor.shape), "data_offsets": span}
        offset += len(blob)
        blobs.append(blob)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(blobs))


def write_folder(folder: Path, c: ModelConfig = TINY, seed: int = 0) -> Path:
    """A model folder as DeepSeek publishes them: config.json, model.safetensors, tokenizer.json."""
    folder.mkdir(parents=True, exist_ok=True)
    write_safetensors(folder / "model.safetensors", weights(c, seed))
    (folder / "config.json").write_text(json.dumps(official_config(c), indent=1))
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer(), ensure_ascii=False))
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"bos_token": CONTROL[0], "eos_token": CONTROL[1], "add_bos_token": False})
    )
    return folder
