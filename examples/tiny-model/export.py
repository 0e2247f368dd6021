"""Turns the trained tiny model (a Hugging Face folder) into the GGUF file that finback carries.

    python export.py FOLDER [OUT]           default OUT: src/finback/assets/tiny.gguf of this repository

Matrices become Q8_0; the router, the hyper-connections, norms, sinks and biases stay F32, as saved or exactly
widened. Names and keys are ds4's, the draft block's included (`mtp.0.*`). The same folder gives the same bytes.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt

from finback.config import ModelConfig
from finback.formats.blocks import decode, encode
from finback.formats.entry import Bytes, TensorEntry, read_tensor
from finback.formats.names import GgufNames
from finback.formats.safetensors import open_folder
from finback.formats.writer import GgufWriter
from finback.tools.metadata import add_gguf_config, add_gguf_sampling, add_gguf_vocabulary
from finback.weights.checkpoint import open_checkpoint
from finback.weights.inventory import Expected, draft_tensors, model_tensors

ASSET = Path(__file__).resolve().parents[2] / "src" / "finback" / "assets" / "tiny.gguf"
FORMATS = {"matrix": "Q8_0", "experts": "Q8_0", "float": "F32", "vector": "F32", "table": "I32"}
PRE_TOKENIZER = "deepseek-v3"  # the published expressions; single digits come from the merges
NORMAL, CONTROL, USER_DEFINED = 1, 3, 4  # GGUF token types


def export(folder: Path, out: Path) -> None:
    """Writes the model in `folder`, which must have official names and BF16 or F32 tensors, to `out`."""
    checkpoint, files = open_checkpoint(folder), open_folder(folder)
    config = checkpoint.config
    wanted = [*model_tensors(config), *draft_tensors(config)]
    out.parent.mkdir(parents=True, exist_ok=True)
    with GgufWriter(out, "deepseek4") as writer:
        writer.add("general.name", "str", "finback tiny model")
        writer.add("general.license", "str", "Apache-2.0")
        writer.add(
            "general.description", "str", "A 16-million-parameter DeepSeek-V4 for first runs and tests"
        )
        add_gguf_config(writer, config)
        add_vocabulary(writer, folder / "tokenizer.json", config)
        add_gguf_sampling(writer, checkpoint.generation)
        for tensor in wanted:
            stack = (config.n_routed_experts,) if tensor.role == "experts" else ()
            writer.declare(stored_name(tensor), FORMATS[tensor.role], (*stack, *tensor.shape))
        for tensor in wanted:
            for name in members(tensor, config.n_routed_experts):
                entry = files.tensors[name]
                writer.write(
                    stored_name(tensor), converted(read_tensor(files, entry), entry, FORMATS[tensor.role])
                )


def members(tensor: Expected, experts: int) -> Iterator[str]:
    """The official names of a tensor, or of the experts it stacks."""
    if tensor.role != "experts":
        yield tensor.name
        return
    head, matrix = tensor.name.rsplit(".", 1)
    for expert in range(experts):
        yield f"{head}.{expert}.{matrix}.weight"


def stored_name(tensor: Expected) -> str:
    spelled = GgufNames().spell(next(members(tensor, 1)))
    assert spelled is not None, "the inventory and the tables of names agree"
    return spelled.name


def converted(data: Bytes, entry: TensorEntry, format: str) -> npt.NDArray[np.generic]:
    """The bytes of a tensor in another format."""
    if format == "I32":
        return data.view(np.int64).astype(np.int32)
    rows = int(np.prod(entry.shape[:-1], dtype=np.int64))
    return encode(format, decode(entry.dtype, data, rows, entry.shape[-1]))


def add_vocabulary(writer: GgufWriter, path: Path, config: ModelConfig) -> None:
    """The lists of a tokenizer.json in GGUF's form."""
    root = json.loads(path.read_text(encoding="utf-8"))
    ids = dict(root["model"]["vocab"]) | {token["content"]: token["id"] for token in root["added_tokens"]}
    special = {token["content"]: token["special"] for token in root["added_tokens"]}
    tokens = sorted(ids, key=ids.__getitem__)
    if [ids[token] for token in tokens] != list(range(len(tokens))):
        raise SystemExit(f"{path}: token ids have gaps; GGUF lists cannot hold them")
    types = [
        NORMAL if token not in special else CONTROL if special[token] else USER_DEFINED for token in tokens
    ]
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in root["model"]["merges"]]
    add_gguf_vocabulary(writer, config, PRE_TOKENIZER, tokens, types, merges)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("out", type=Path, nargs="?", default=ASSET)
    arguments = parser.parse_args()
    export(arguments.folder, arguments.out)
