"""Writes any model finback opens as a plain model folder: official names, one float format, loadable by transformers.

Owns nothing of its own: names come from the inventory, values from the stored formats decoded exactly. Used to give
peers the same numbers in benchmarks and tests. Refuses formats without a float codec and folders that exist with
content.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt

from finback.config import ModelConfig
from finback.errors import RequestError, shown
from finback.formats.blocks import encode
from finback.formats.writer import SafetensorsFolderWriter
from finback.ops.eager_weights import CheckpointTensors
from finback.reference.matrix import Matrix
from finback.tools.metadata import hf_config
from finback.weights.checkpoint import open_checkpoint
from finback.weights.inventory import Expected, draft_tensors, model_tensors


def export_folder(
    model: str | os.PathLike[str] | None, folder: str | os.PathLike[str], *, format: Literal["F32", "BF16"] = "F32"
) -> None:
    """Write `model` (None: the embedded one) into `folder` with matrices in `format`; vectors stay F32, tables I64.

    The draft block is written too; transformers ignores it. Holds one tensor in memory at a time.
    """
    place = Path(folder)
    if place.is_dir() and any(place.iterdir()):
        raise RequestError(f"folder is {shown(str(place))}, which is not empty; name a new one")
    checkpoint = open_checkpoint(model)
    config, tensors = checkpoint.config, CheckpointTensors(checkpoint)
    wanted = [(name, t) for t in (*model_tensors(config), *draft_tensors(config)) for name in _names(t, config)]
    place.mkdir(parents=True, exist_ok=True)
    with SafetensorsFolderWriter(place) as writer:
        for name, tensor in wanted:
            writer.declare(name, _format(tensor, format), tensor.shape)
        for name, tensor in wanted:
            writer.write(name, _stored(tensors[name], tensor, format))
    (place / "config.json").write_text(json.dumps(hf_config(config), indent=1) + "\n", encoding="utf-8")


def _names(tensor: Expected, config: ModelConfig) -> Iterator[str]:
    """Official names behind an entry of the inventory: one for each expert of a stack."""
    if tensor.role != "experts":
        yield tensor.name
        return
    prefix, _, matrix = tensor.name.rpartition(".")
    for expert in range(config.n_routed_experts):
        yield f"{prefix}.{expert}.{matrix}.weight"


def _format(tensor: Expected, format: str) -> str:
    return {"table": "I64", "vector": "F32", "float": "F32"}.get(tensor.role, format)


def _stored(value: Matrix | npt.NDArray[np.generic], tensor: Expected, format: str) -> npt.NDArray[np.generic]:
    """The bytes or values to write."""
    if tensor.role == "table":
        assert not isinstance(value, Matrix)
        return value.astype(np.int64)
    plain = np.asarray(value.exact if isinstance(value, Matrix) else value, np.float32)
    if _format(tensor, format) == "F32":
        return np.ascontiguousarray(plain.reshape(tensor.shape))
    return encode(format, plain.reshape(-1, plain.shape[-1]))
