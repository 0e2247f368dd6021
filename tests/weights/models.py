"""One set of values in every container: TINY as published, as transformers saves it, as its modules hold it, and as
GGUF with ds4's and llama.cpp's draft block.

Owns the spellings written here by hand from spec sections 6 and 7, so that a mistake in the product's tables shows.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from finback.config import ModelConfig
from finback.formats.blocks import decode, encode
from finback.formats.entry import Bytes
from finback.formats.writer import GgufWriter
from finback.tools.metadata import add_gguf_config
from finback.weights.checkpoint import OpenedCheckpoint
from finback.weights.tensors import ExpertStack, Plane, Weight
from tests.tiny import official_config, write_safetensors
from tests.tiny import weights as tiny_weights

Array = npt.NDArray[Any]

MODULES = [  # official -> transformers' modules (spec section 6)
    (r"^embed\.", "model.embed_tokens."),
    (r"^head\.", "lm_head."),
    (r"^norm\.", "model.norm."),
    (r"^hc_head_", "model.hc_head.hc_"),
    (r"^layers\.", "model.layers."),
    (r"\.hc_(attn|ffn)_", r".\1_hc."),
    (r"\.attn_norm\.", ".input_layernorm."),
    (r"\.ffn_norm\.", ".post_attention_layernorm."),
    (r"\.attn\.indexer\.compressor\.", ".attn.compressor.indexer."),
    (r"\.attn\.indexer\.wq_b", ".attn.compressor.indexer.q_b_proj"),
    (r"\.attn\.indexer\.weights_proj", ".attn.compressor.indexer.scorer.weights_proj"),
    (r"\.attn\.attn_sink", ".attn.sinks"),
    (r"(compressor(?:\.indexer)?)\.norm", r"\1.kv_norm"),
    (r"\.ape$", ".position_bias"),
    (r"\.wq_a\.", ".q_a_proj."),
    (r"\.q_norm\.", ".q_a_norm."),
    (r"\.wq_b\.", ".q_b_proj."),
    (r"\.wkv\.", ".kv_proj."),
    (r"\.wgate\.", ".gate_proj."),
    (r"\.wo_([ab])\.", r".o_\1_proj."),
    (r"\.gate\.bias", ".gate.e_score_correction_bias"),
    (r"shared_experts\.w1", "shared_experts.gate_proj"),
    (r"shared_experts\.w2", "shared_experts.down_proj"),
    (r"shared_experts\.w3", "shared_experts.up_proj"),
    (r"\.attn\.", ".self_attn."),
    (r"\.ffn\.", ".mlp."),
]

GGUF = [  # official -> GGUF (spec section 7)
    (r"^embed\.", "token_embd."),
    (r"^norm\.", "output_norm."),
    (r"^head\.", "output."),
    (r"^hc_head_(\w+)", r"output_hc_\1.weight"),
    (r"^layers\.", "blk."),
    (r"(hc_(?:attn|ffn|head)_(?:fn|base|scale))$", r"\1.weight"),
    (r"\.attn\.indexer\.compressor\.ape", ".indexer_compressor_ape.weight"),
    (r"\.attn\.indexer\.compressor\.w(kv|gate)\.", r".indexer_compressor_\1."),
    (r"\.attn\.indexer\.compressor\.norm\.", ".indexer_compressor_norm."),
    (r"\.attn\.indexer\.wq_b\.", ".indexer.attn_q_b."),
    (r"\.attn\.indexer\.weights_proj\.", ".indexer.proj."),
    (r"\.attn\.compressor\.ape", ".attn_compressor_ape.weight"),
    (r"\.attn\.compressor\.w(kv|gate)\.", r".attn_compressor_\1."),
    (r"\.attn\.compressor\.norm\.", ".attn_compressor_norm."),
    (r"\.attn\.attn_sink", ".attn_sinks.weight"),
    (r"\.attn\.wq_a\.", ".attn_q_a."),
    (r"\.attn\.q_norm\.", ".attn_q_a_norm."),
    (r"\.attn\.wq_b\.", ".attn_q_b."),
    (r"\.attn\.wkv\.", ".attn_kv."),
    (r"\.attn\.kv_norm\.", ".attn_kv_a_norm."),
    (r"\.attn\.wo_([ab])\.", r".attn_output_\1."),
    (r"\.ffn\.gate\.weight", ".ffn_gate_inp.weight"),
    (r"\.ffn\.gate\.bias", ".exp_probs_b.bias"),
    (r"\.ffn\.gate\.tid2eid", ".ffn_gate_tid2eid.weight"),
    (r"\.ffn\.shared_experts\.w1\.", ".ffn_gate_shexp."),
    (r"\.ffn\.shared_experts\.w2\.", ".ffn_down_shexp."),
    (r"\.ffn\.shared_experts\.w3\.", ".ffn_up_shexp."),
    (r"\.ffn\.experts\.w1\.", ".ffn_gate_exps."),
    (r"\.ffn\.experts\.w2\.", ".ffn_down_exps."),
    (r"\.ffn\.experts\.w3\.", ".ffn_up_exps."),
]

NEXTN = [  # ds4's draft block -> llama.cpp's
    (r"^mtp\.0\.(enorm|hnorm|hc_head_\w+)\.", r"blk.{n}.nextn.\1."),
    (r"^mtp\.0\.norm\.", "blk.{n}.nextn.shared_head_norm."),
    (r"^mtp\.0\.", "blk.{n}."),
]


@lru_cache(maxsize=4)
def weights(c: ModelConfig) -> Mapping[str, Array]:
    """The values of a model; not to be written to."""
    return tiny_weights(c)


def renamed(name: str, table: list[tuple[str, str]]) -> str:
    for pattern, replacement in table:
        name = re.sub(pattern, replacement, name)
    return name


def stacked(tensors: Mapping[str, Array], experts: int) -> dict[str, Array]:
    """Experts as one tensor per matrix: "….ffn.experts.w1.weight" [E, out, in]."""
    out: dict[str, Array] = {}
    for name, tensor in tensors.items():
        match = re.fullmatch(r"(.+\.experts)\.(\d+)\.(w\d\.weight)", name)
        if match is None:
            out[name] = tensor
        elif match[2] == "0":
            members = [tensors[f"{match[1]}.{e}.{match[3]}"] for e in range(experts)]
            out[f"{match[1]}.{match[3]}"] = np.stack(members)
    return out


def write_config(folder: Path, config: dict[str, Any]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))


def transformers_config(c: ModelConfig) -> dict[str, Any]:
    """What DeepseekV4Config of transformers 5.24 writes for the same model."""
    raw = official_config(c)
    for key in ("compress_ratios", "num_hash_layers", "qk_rope_head_dim", "rope_scaling", "topk_method"):
        del raw[key]
    kinds = {
        "window": "sliding_attention",
        "csa": "compressed_sparse_attention",
        "hca": "heavily_compressed_attention",
    }
    rates = {kinds[layer.kind]: layer.ratio for layer in c.layers if layer.ratio}
    fraction, y = c.qk_rope_head_dim / c.head_dim, c.compress_rope
    return raw | {
        "layer_types": [kinds[layer.kind] for layer in c.layers],
        "mlp_layer_types": ["hash_moe" if layer.hashed else "moe" for layer in c.layers],
        "compress_rates": rates,
        "partial_rotary_factor": fraction,
        "rope_parameters": {
            "main": {"rope_type": "default", "rope_theta": c.rope.theta, "partial_rotary_factor": fraction},
            "compress": {
                "type": "yarn", "rope_type": "yarn", "factor": y.factor, "beta_fast": y.beta_fast,
                "beta_slow": y.beta_slow, "original_max_position_embeddings": y.original_context,
                "rope_theta": y.theta, "partial_rotary_factor": fraction, "attention_factor": 1.0,
            },
        },
        "mlp_bias": False, "transformers_version": "5.24.0", "output_router_logits": False,
    }  # fmt: skip


def write_saved(folder: Path, c: ModelConfig) -> Path:
    """As `save_pretrained` of transformers writes it: official names but for ten kinds, no draft block."""
    write_config(folder, transformers_config(c))
    table = [
        (r"^embed\.", "embed_tokens."),
        (r"^hc_head_", "hc_head.hc_"),
        (r"\.attn\.kv_norm\.", ".attn.norm."),
    ]
    main = {renamed(n, table): t for n, t in weights(c).items() if not n.startswith("mtp.")}
    write_safetensors(folder / "model.safetensors", main)
    return folder


def write_modules(folder: Path, c: ModelConfig) -> Path:
    """As a state_dict of transformers' modules: experts stacked, gate and up fused, no draft block."""
    write_config(folder, transformers_config(c))
    main = {n: t for n, t in weights(c).items() if not n.startswith("mtp.")}
    out: dict[str, Array] = {}
    for name, tensor in stacked(main, c.n_routed_experts).items():
        if name.endswith("experts.w1.weight") and ".shared" not in name:
            up = stacked(main, c.n_routed_experts)[name.replace("w1", "w3")]
            fused = name.replace("w1.weight", "gate_up_proj")
            out[renamed(fused, MODULES)] = np.concatenate([tensor, up], axis=1)
        elif name.endswith("experts.w2.weight") and ".shared" not in name:
            out[renamed(name.replace("w2.weight", "down_proj"), MODULES)] = tensor
        elif not (name.endswith("experts.w3.weight") and ".shared" not in name):
            out[renamed(name, MODULES)] = tensor
    write_safetensors(folder / "model.safetensors", out)
    return folder


Change = Callable[[dict[str, tuple[str, Any]], dict[str, Array]], None]


def write_gguf(path: Path, c: ModelConfig, *, nextn: bool = False, change: Change | None = None) -> Path:
    """TINY as GGUF in F32; `change` edits metadata {key: (type, value)} and tensors before they are written."""
    keys = gguf_metadata(c)
    tensors: dict[str, Array] = {}
    for name, tensor in stacked(weights(c), c.n_routed_experts).items():
        stored = renamed(name, GGUF)
        tensors[stored] = tensor.astype(np.int32) if tensor.dtype == np.int64 else tensor
    if nextn:
        tensors = with_nextn(tensors, c)
        keys["deepseek4.block_count"] = ("u32", len(c.layers) + 1)
    if change is not None:
        change(keys, tensors)
    architecture = keys.pop("general.architecture", ("str", "deepseek4"))[1]
    with GgufWriter(path, str(architecture)) as writer:
        for key, (kind, value) in keys.items():
            writer.add(key, kind, value)
        for name, tensor in tensors.items():
            writer.declare(name, "I32" if tensor.dtype == np.int32 else "F32", tensor.shape)
        for name, tensor in tensors.items():
            writer.write(name, tensor)
    return path


def with_nextn(tensors: dict[str, Array], c: ModelConfig) -> dict[str, Array]:
    """ds4's `mtp.0.*` as llama.cpp stores it: block n, projections side by side, embedding half first."""
    table = [(pattern, replacement.format(n=len(c.layers))) for pattern, replacement in NEXTN]
    joined = np.concatenate([tensors.pop("mtp.0.e_proj.weight"), tensors.pop("mtp.0.h_proj.weight")], axis=1)
    out = {renamed(name, table): tensor for name, tensor in tensors.items()}
    return out | {f"blk.{len(c.layers)}.nextn.eh_proj.weight": joined}


class _Keys:
    """Stands in for a writer and keeps what is added."""

    def __init__(self) -> None:
        self.kept: dict[str, tuple[str, Any]] = {}

    def add(self, key: str, kind: str, value: Any) -> None:
        self.kept[key] = (kind, value)


def gguf_metadata(c: ModelConfig) -> dict[str, tuple[str, Any]]:
    keys = _Keys()
    add_gguf_config(keys, c)  # type: ignore[arg-type]
    return keys.kept


# ---- reading back -----------------------------------------------------------------------------------------------


def plane_bytes(checkpoint: OpenedCheckpoint, plane: Plane) -> Bytes:
    with open(checkpoint.paths[plane.file], "rb") as file:
        file.seek(plane.offset)
        return np.frombuffer(file.read(plane.nbytes), np.uint8)


def values(checkpoint: OpenedCheckpoint, weight: Weight) -> Array:
    """The values of a weight in a format without scale planes."""
    data = plane_bytes(checkpoint, weight.data)
    rows, cols = int(np.prod(weight.shape[:-1], dtype=np.int64)), weight.shape[-1]
    if weight.stride is not None:
        width = len(encode(weight.format, np.zeros((1, cols), np.float32)).reshape(-1))
        data = np.concatenate([data[r * weight.stride :][:width] for r in range(rows)])
    if weight.format in ("I32", "I64"):
        return (
            data.view(np.int32 if weight.format == "I32" else np.int64).astype(np.int64).reshape(weight.shape)
        )
    return decode(weight.format, data, rows, cols).reshape(weight.shape)


def expert_values(checkpoint: OpenedCheckpoint, stack: ExpertStack, expert: int) -> Array:
    plane = Plane(int(stack.files[expert]), int(stack.offsets[expert]), stack.nbytes)
    return decode(stack.format, plane_bytes(checkpoint, plane), *stack.shape)
