"""The other side of the comparison: transformers' DeepSeek-V4 loaded with our weights under their official
names.

Needs torch and transformers; imported only by the oracle tests and by make_fixtures.py.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from transformers import DeepseekV4Config, DeepseekV4ForCausalLM
from transformers.cache_utils import DynamicCache

from finback.config import ModelConfig
from tests.golden import Tensors
from tests.tiny import official_config, write_safetensors

Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int64]

NAMES = {
    "window": "sliding_attention",
    "csa": "compressed_sparse_attention",
    "hca": "heavily_compressed_attention",
}


def transformers_config(c: ModelConfig) -> DeepseekV4Config:
    """The same model in transformers' own spelling: any ratio can be said there."""
    official = official_config(c)
    for key in (
        "rope_scaling",
        "num_nextn_predict_layers",
        "compress_ratios",
        "num_hash_layers",
        "torch_dtype",
    ):
        del official[key]
    y = c.compress_rope
    yarn: dict[str, Any] = {"rope_type": "default"}
    if y.factor is not None:
        yarn = {
            "rope_type": "yarn",
            "factor": y.factor,
            "beta_fast": y.beta_fast,
            "beta_slow": y.beta_slow,
            "original_max_position_embeddings": y.original_context,
        }
    ratios = {NAMES[layer.kind]: layer.ratio for layer in c.layers if layer.ratio}
    return DeepseekV4Config(
        **official,
        layer_types=[NAMES[layer.kind] for layer in c.layers],
        mlp_layer_types=["hash_moe" if layer.hashed else "moe" for layer in c.layers],
        compress_rates={NAMES["csa"]: 4, NAMES["hca"]: 128} | ratios,
        rope_parameters=yarn,
    )


def load(c: ModelConfig, tensors: Tensors) -> DeepseekV4ForCausalLM:
    """transformers' model in float64 from a file with our tensors under official names; no name may be left
    over."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        body = {name: t for name, t in tensors.items() if not name.startswith("mtp.")}
        write_safetensors(Path(folder) / "model.safetensors", body)
        transformers_config(c).save_pretrained(folder)
        model, info = DeepseekV4ForCausalLM.from_pretrained(
            folder,
            dtype=torch.float64,
            attn_implementation="eager",
            experts_implementation="eager",
            output_loading_info=True,
        )
    left = {key: info[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys") if info[key]}
    assert not left, f"transformers does not know these names as we do: {left}"
    return model.eval()


def prefill(model: DeepseekV4ForCausalLM, ids: Ints) -> Floats:
    """Logits [T, V] of the whole prompt at once, without a cache."""
    with torch.no_grad():
        return model(torch.from_numpy(ids)[None], use_cache=False).logits[0].numpy()


def chunked(model: DeepseekV4ForCausalLM, ids: Ints, sizes: list[int]) -> Floats:
    """Logits [T, V] with transformers' own cache, the prompt in chunks of the given sizes."""
    cache, out, position = DynamicCache(config=model.config), [], 0
    with torch.no_grad():
        for n in sizes:
            piece = torch.from_numpy(ids[position : position + n])[None]
            out.append(model(piece, cache=cache, use_cache=True).logits[0].numpy())
            position += n
    return np.concatenate(out)
