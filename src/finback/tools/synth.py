"""Random models of real or tiny shape, for tests and for measuring machines without a download.

Owns `synth` and the shapes it knows. A file is written as a stream, is the same bytes for the same arguments on every
machine, and opens like any model: GGUF with ds4's names and types, or a Hugging Face folder with the published names
and dtypes (spec sections 6 and 7). The numbers mean nothing as a language model; scales keep activations finite.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from finback.config import LayerConfig, ModelConfig, RopeConfig
from finback.errors import RequestError, shown
from finback.formats.blocks import FORMATS, encode, row_bytes
from finback.formats.names import GgufNames
from finback.formats.writer import GgufWriter, SafetensorsFolderWriter
from finback.tools import byte_vocabulary as vocabulary
from finback.tools.metadata import add_gguf_config, add_gguf_vocabulary, hf_config
from finback.tools.random_bytes import E2M1_STD, E4M3_STD, Bytes, RandomBytes
from finback.weights.hf_config import layer_of_ratio
from finback.weights.inventory import Expected, draft_tensors, model_tensors

Progress = Callable[[int, int], None]  # bytes written, bytes in all

_COMMON: Final[Mapping[str, Any]] = {
    "n_shared_experts": 1, "norm_topk_prob": True, "swiglu_limit": 10.0, "hc_mult": 4, "hc_sinkhorn_iters": 20,
    "hc_eps": 1e-6, "rms_norm_eps": 1e-6, "max_position_embeddings": 1 << 20, "sliding_window": 128,
    "rope": RopeConfig(10000.0), "compress_rope": RopeConfig(160000.0, 16.0), "cache_rounding": True,
    "bos_token_id": 0, "eos_token_ids": (1,), "pad_token_id": 2, "mtp_layers": (),
}  # fmt: skip
_FLASH: Final[Mapping[str, Any]] = {
    "vocab_size": 129280, "hidden_size": 4096, "num_attention_heads": 64, "head_dim": 512, "qk_rope_head_dim": 64,
    "q_lora_rank": 1024, "o_lora_rank": 1024, "o_groups": 8, "index_n_heads": 64, "index_head_dim": 128,
    "index_topk": 512, "n_routed_experts": 256, "num_experts_per_tok": 6, "moe_intermediate_size": 2048,
    "routed_scaling_factor": 1.5,
}  # fmt: skip
_TINY_WIDTHS: Final[Mapping[str, Any]] = {
    "vocab_size": vocabulary.SMALLEST, "hidden_size": 256, "num_attention_heads": 4, "head_dim": 128,
    "qk_rope_head_dim": 32, "q_lora_rank": 256, "o_lora_rank": 128, "o_groups": 2, "index_n_heads": 4,
    "index_head_dim": 64, "index_topk": 64, "moe_intermediate_size": 256,
}  # fmt: skip
_SHAPES: Final[Mapping[str, tuple[Mapping[str, Any], tuple[int, ...]]]] = {
    "v4-flash": (_FLASH, (0, 0, *(4, 128) * 20, 4)),
    "v4-pro": (
        {**_FLASH, "hidden_size": 7168, "num_attention_heads": 128, "q_lora_rank": 1536, "o_groups": 16,
         "index_topk": 1024, "n_routed_experts": 384, "moe_intermediate_size": 3072, "routed_scaling_factor": 2.5},
        (128, 128, *(4, 128) * 29, 4),
    ),
    # Every matrix row is a multiple of 256 long, so that any block format fits.
    "v4-tiny": ({**_FLASH, **_TINY_WIDTHS, "n_routed_experts": 8, "num_experts_per_tok": 2}, (0, 0, 4, 128, 4)),
    # The tensors of V4-Flash by name and number, each as small as its format allows.
    "v4-flash-small": (
        {**_FLASH, **_TINY_WIDTHS, "hidden_size": 64, "head_dim": 32, "qk_rope_head_dim": 8, "q_lora_rank": 32,
         "o_lora_rank": 16, "index_head_dim": 16, "moe_intermediate_size": 32},
        (0, 0, *(4, 128) * 20, 4),
    ),
}  # fmt: skip
_HASHED: Final = 3
_SHARD_BYTES: Final = 5 << 30
_FP8_BLOCK: Final = (128, 128)


def synth(
    out: str | os.PathLike[str],
    arch: str = "v4-tiny",
    *,
    layers: int | None = None,
    experts: int | None = None,
    vocab: int | None = None,
    experts_format: str | None = None,
    dense_format: str | None = None,
    drafts: int = 1,
    seed: int = 0,
    alias: bool = False,
    shards: int | None = None,
    progress: Progress | None = None,
) -> ModelConfig:
    """Writes a random model to `out`: one GGUF file if the name ends in .gguf, else a new folder.

    `arch` is v4-flash, v4-pro, v4-tiny, or v4-flash-small: the tensors of V4-Flash with small widths. `layers`,
    `experts` and `vocab` replace its numbers; layers keep its order of kinds. Formats are keys of FORMATS: of routed
    experts (default MXFP4; MXFP4_PAIRS in a folder) and of the large matrices (default Q8_0; FP8_E4M3 in a folder).
    `drafts` MTP blocks follow. With `alias`, like layers of a GGUF file share their bytes. A folder has at most
    `shards` files, without it one per 5 GiB. Needs memory for a few pieces of 4 MiB. Raises RequestError for an
    argument out of range, and for an `out` that exists.
    """
    place = Path(out)
    if os.path.lexists(place):
        raise RequestError(f"out is {shown(str(place))}, which exists; remove it or name another place")
    config = synth_config(arch, layers=layers, experts=experts, vocab=vocab, drafts=drafts)
    if place.suffix.lower() == ".gguf":
        plan = _Plan(config, experts_format or "MXFP4", dense_format or "Q8_0", RandomBytes(seed), gguf=True)
        _write_gguf(place, plan, alias, progress)
    elif alias:
        raise RequestError(
            "alias is True; only GGUF files can share bytes between tensors: let out end in .gguf"
        )
    else:
        plan = _Plan(
            config, experts_format or "MXFP4_PAIRS", dense_format or "FP8_E4M3", RandomBytes(seed), gguf=False
        )
        if shards is not None and shards < 1:
            raise RequestError(f"shards is {shards}; allowed are numbers from 1")
        _write_folder(place, plan, shards, progress)
    return config


def synth_config(
    arch: str,
    *,
    layers: int | None = None,
    experts: int | None = None,
    vocab: int | None = None,
    drafts: int = 1,
) -> ModelConfig:
    """The configuration `synth` writes. Raises RequestError for an unknown `arch` or a number out of range."""
    if arch not in _SHAPES:
        raise RequestError(f"arch is {shown(arch)}; known are {', '.join(_SHAPES)}")
    shape, ratios = _SHAPES[arch]
    count = len(ratios) if layers is None else layers
    if not 1 <= count <= len(ratios):
        raise RequestError(f"layers is {shown(count)}; {arch} has 1 to {len(ratios)}")
    if drafts not in (0, 1):
        raise RequestError(f"drafts is {shown(drafts)}; allowed are 0 and 1")
    stack = tuple(layer_of_ratio(i, ratios[i], hashed=i < _HASHED) for i in range(count))
    numbers = {**_COMMON, **shape}
    numbers["vocab_size"] = numbers["vocab_size"] if vocab is None else vocab
    vocabulary.check_size(numbers["vocab_size"])
    if experts is not None:
        numbers["n_routed_experts"] = experts
        numbers["num_experts_per_tok"] = min(numbers["num_experts_per_tok"], experts)
    draft = tuple(LayerConfig(count + i, "window", 0, False) for i in range(drafts))
    config = ModelConfig(**numbers, layers=stack)
    return replace(config, mtp_layers=draft)


@dataclass(frozen=True, slots=True)
class _Plan:
    """What is written: formats by role, and the bytes of each tensor."""

    config: ModelConfig
    experts_format: str
    dense_format: str
    random: RandomBytes
    gguf: bool

    def tensors(self) -> Iterator[Expected]:
        yield from model_tensors(self.config)
        yield from draft_tensors(self.config)

    def format(self, tensor: Expected) -> str:
        """The published folder's dtypes, or ds4's GGUF types (spec sections 6 and 7)."""
        name = tensor.name
        if tensor.role == "experts":
            return self.experts_format
        if tensor.role == "table":
            return "I32" if self.gguf else "I64"
        if tensor.role == "float":
            return "F16" if self.gguf else "F32" if "hc_" in name else "BF16"
        if tensor.role == "vector":
            return "BF16" if name.endswith("norm.weight") and not self.gguf else "F32"
        if "compressor" in name or "weights_proj" in name or name == "embed.weight":
            return "F16" if self.gguf else "BF16"
        if name == "head.weight" and not self.gguf:
            return "BF16"
        return self.dense_format

    def pieces(self, name: str, tensor: Expected, format: str) -> Iterator[Bytes]:
        """The bytes of one matrix, vector or table, called `name` for the generator."""
        if tensor.role == "table":
            yield self._table(name, tensor, format)
        elif tensor.role == "vector":
            yield encode(format, self._vector(name, tensor)[None, :])
        else:
            rows, cols = tensor.shape
            yield from self.random.matrix(name, format, rows, cols, self.std(tensor))

    def std(self, tensor: Expected) -> float:
        """Keeps a product with an activation of size 1 near 1."""
        return 1.0 if tensor.name == "embed.weight" else float(tensor.shape[-1] ** -0.5)

    def _vector(self, name: str, tensor: Expected) -> np.ndarray[Any, np.dtype[np.float32]]:
        count = int(np.prod(tensor.shape))
        u = self.random.uniform(name, count)
        if name.endswith("norm.weight"):
            return np.float32(1) + u * np.float32(0.4)
        if name.endswith("_scale"):
            return np.float32(0.5) + u * np.float32(0.5)
        return u * np.float32(0.3 if name.endswith("gate.bias") else 1.5)

    def _table(self, name: str, tensor: Expected, format: str) -> Bytes:
        """Different experts in every row: a random first one and a step that cannot come round to it."""
        rows, chosen = tensor.shape
        experts = self.config.n_routed_experts
        u = (self.random.uniform(name, 2 * rows).astype(np.float64) + 0.5).reshape(2, rows, 1)
        longest = max(1, (experts - 1) // max(1, chosen - 1))
        first, step = (u[0] * experts).astype(np.int64), 1 + (u[1] * longest).astype(np.int64)
        ids = (first + step * np.arange(chosen)) % experts
        flat: Bytes = ids.astype(np.int32 if format == "I32" else np.int64).reshape(-1).view(np.uint8)
        return flat


def _check_formats(plan: _Plan, most: frozenset[str]) -> None:
    for field, format in (("experts_format", plan.experts_format), ("dense_format", plan.dense_format)):
        if format not in most:
            raise RequestError(
                f"{field} is {shown(format)}; this kind of file holds {', '.join(sorted(most))}"
            )


class _Counter:
    """Bytes written so far, told to `progress`."""

    def __init__(self, total: int, progress: Progress | None) -> None:
        self._done, self._total, self._progress = 0, total, progress

    def add(self, nbytes: int) -> None:
        self._done += nbytes
        if self._progress is not None:
            self._progress(self._done, self._total)


# ---- GGUF -------------------------------------------------------------------------------------------------------


def _write_gguf(path: Path, plan: _Plan, alias: bool, progress: Progress | None) -> None:
    storable = {f.name for f in FORMATS.values() if f.ggml_type is not None and f.activation is not None}
    _check_formats(plan, frozenset(storable))
    config, names = plan.config, GgufNames()
    written: dict[str, tuple[str, Expected]] = {}
    with GgufWriter(path, "deepseek4") as writer:
        writer.add("general.name", "str", "random model of DeepSeek-V4 shape")
        add_gguf_config(writer, config)
        size = config.vocab_size
        tokens, types = vocabulary.contents(size), vocabulary.token_types(size)
        add_gguf_vocabulary(writer, config, vocabulary.PRE_TOKENIZER, tokens, types, ())
        total = 0
        for tensor in plan.tensors():
            member = (
                f"{tensor.name[:-2]}0.{tensor.name[-2:]}.weight" if tensor.role == "experts" else tensor.name
            )
            spelled = names.spell(member)
            assert spelled is not None, "the inventory and the tables of names agree"
            key = _alike(tensor, config) if alias else tensor.name
            if key in written:
                writer.alias(spelled.name, written[key][0])
                continue
            shape = (config.n_routed_experts, *tensor.shape) if tensor.role == "experts" else tensor.shape
            writer.declare(spelled.name, plan.format(tensor), shape)
            written[key] = (spelled.name, tensor)
            total += row_bytes(plan.format(tensor), shape[-1]) * int(np.prod(shape[:-1], dtype=np.int64))
        counter = _Counter(total, progress)
        for stored, tensor in written.values():
            members = [tensor.name]
            if tensor.role == "experts":
                members = [f"{tensor.name}.{expert}" for expert in range(config.n_routed_experts)]
            for member in members:
                for piece in plan.pieces(member, tensor, plan.format(tensor)):
                    writer.write(stored, piece)
                    counter.add(piece.nbytes)


def _alike(tensor: Expected, config: ModelConfig) -> str:
    """The name without its layer, with the kind of layer in its place: what may share bytes."""
    parts = tensor.name.split(".")
    if parts[0] != "layers" or parts[-1] == "tid2eid":
        return tensor.name
    layer = config.layers[int(parts[1])]
    return f"ratio {layer.ratio}: {'.'.join(parts[2:])}"


# ---- folder -----------------------------------------------------------------------------------------------------


def _write_folder(folder: Path, plan: _Plan, shards: int | None, progress: Progress | None) -> None:
    _check_formats(plan, frozenset({"F32", "F16", "BF16", "FP8_E4M3", "MXFP4_PAIRS"}))
    stored = [item for tensor in plan.tensors() for item in _stored(plan, tensor)]
    sizes = [row_bytes(s.format, s.shape[-1]) * int(np.prod(s.shape[:-1], dtype=np.int64)) for s in stored]
    total = sum(sizes)
    # Room for one tensor more than an equal share, so that no rest is left for a further shard.
    limit = _SHARD_BYTES if shards is None else -(-total // shards) + max(sizes)
    folder.mkdir(parents=True)
    _write_sidecars(folder, plan)
    counter = _Counter(total, progress)
    with SafetensorsFolderWriter(folder, shard_bytes=limit) as writer:
        for item in stored:
            writer.declare(item.name, item.format, item.shape)
        for item in stored:
            for piece in item.pieces(plan):
                writer.write(item.name, piece)
                counter.add(piece.nbytes)


def _write_sidecars(folder: Path, plan: _Plan) -> None:
    """config.json, generation_config.json and tokenizer.json."""
    config = hf_config(plan.config)
    if "FP8_E4M3" in (plan.dense_format, plan.experts_format):
        config["quantization_config"] = {
            "quant_method": "fp8", "fmt": "e4m3", "scale_fmt": "ue8m0", "activation_scheme": "dynamic",
            "weight_block_size": list(_FP8_BLOCK),
        }  # fmt: skip
    sampling = {"bos_token_id": 0, "eos_token_id": 1, "do_sample": True, "temperature": 1.0, "top_p": 1.0}
    tokenizer = vocabulary.tokenizer_json(plan.config.vocab_size)
    named = {"config.json": config, "generation_config.json": sampling, "tokenizer.json": tokenizer}
    for name, value in named.items():
        text = json.dumps(value, ensure_ascii=False) + "\n"
        (folder / name).write_text(text, encoding="utf-8")


@dataclass(frozen=True, slots=True)
class _Stored:
    """A tensor of the folder: of the inventory, one expert's, or the scale plane (`scales_of`) of either."""

    name: str
    format: str  # as stored: packed E2M1 is I8
    shape: tuple[int, ...]
    tensor: Expected
    scales_of: str | None = None

    def pieces(self, plan: _Plan) -> Iterator[Bytes]:
        std = plan.std(self.tensor)
        if self.scales_of is not None:
            code = E4M3_STD if self.scales_of == "FP8_E4M3" else E2M1_STD
            yield plan.random.scales(self.name, self.shape[0] * self.shape[1], std, code)
        elif self.format == "I8":
            yield from plan.pieces(self.name, self.tensor, "MXFP4_PAIRS")
        else:
            yield from plan.pieces(self.name, self.tensor, self.format)


def _stored(plan: _Plan, tensor: Expected) -> Iterator[_Stored]:
    format = plan.format(tensor)
    names = [tensor.name]
    if tensor.role == "experts":
        head, matrix = tensor.name.rsplit(".", 1)
        names = [f"{head}.{expert}.{matrix}.weight" for expert in range(plan.config.n_routed_experts)]
    for name in names:
        scale = name.removesuffix("weight") + "scale"
        if format == "MXFP4_PAIRS":
            rows, cols = tensor.shape
            yield _Stored(name, "I8", (rows, cols // 2), tensor)
            yield _Stored(scale, "E8M0", (rows, cols // 32), tensor, format)
        elif format == "FP8_E4M3":
            rows, cols = tensor.shape
            yield _Stored(name, format, tensor.shape, tensor)
            blocks = (-(-rows // _FP8_BLOCK[0]), -(-cols // _FP8_BLOCK[1]))
            yield _Stored(scale, "E8M0", blocks, tensor, format)
        else:
            yield _Stored(name, format, tensor.shape, tensor)
