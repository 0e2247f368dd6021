"""Opens any model: a GGUF file or its parts, a Hugging Face folder, a lone .safetensors file, the embedded one.

Owns `open_checkpoint` and `OpenedCheckpoint`, the `Checkpoint` that the engine loads from: configuration, byte ranges
by official name, and what lies beside them (sampling defaults, where the tokenizer is, notes about what is there and
not used). Opening reads headers only and checks all of them. Refuses, in one sentence naming file and field, whatever
is incomplete, contradictory or another architecture.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Literal

import numpy as np

from finback.config import GenerationDefaults, ModelConfig
from finback.errors import ModelFileError, UnsupportedModelError, shown
from finback.formats.entry import ModelFiles, TensorEntry, open_regular
from finback.formats.gguf import GgufFile, open_gguf
from finback.formats.names import FolderNames, ModuleNames, Spelling, is_dspark, is_vision
from finback.formats.safetensors import INDEX_NAME, SINGLE_NAME, open_folder, open_safetensors
from finback.weights.gguf_config import config_from_gguf, draft_blocks, generation_from_gguf
from finback.weights.hf_config import config_from_hf, generation_from_hf, token_ids
from finback.weights.inventory import draft_tensors, model_tensors
from finback.weights.jsonfile import read_object
from finback.weights.resolve import Resolver
from finback.weights.tensors import ExpertStack, Weight

EMBEDDED: Final = Path(__file__).parent.parent / "assets" / "tiny.gguf"
FP8_BLOCK: Final = (128, 128)  # of V4; read from quantization_config where it says otherwise

Kind = Literal["gguf", "safetensors", "embedded"]


@dataclass(frozen=True, slots=True)
class GgufVocabulary:
    """The tokenizer lists of a GGUF file, decoded when read (keys tokenizer.ggml.*); `path` names the file."""

    path: Path
    model: str
    pre: str
    tokens: Sequence[str]
    token_types: Sequence[int]
    merges: Sequence[str]
    bos_id: int
    eos_id: int
    pad_id: int | None


@dataclass(slots=True)
class OpenedCheckpoint:
    """A model whose headers have been read and checked. Holds no file open."""

    kind: Kind
    config: ModelConfig
    paths: Sequence[Path]
    generation: GenerationDefaults
    tokenizer: (
        Path | GgufVocabulary | None
    )  # a tokenizer.json, the lists of a GGUF file, or nothing: logits only
    dialect: str | None  # of the prompt format, where the file tells its generation: v4-preview, v4-0731
    notes: tuple[str, ...]  # sentences about what the files hold and finback does not use
    _resolver: Resolver

    def weight(self, name: str) -> Weight:
        """A tensor by official name; ModelFileError naming it if the model lacks it."""
        return self._resolver.weight(name)

    def experts(self, prefix: str, matrix: str) -> ExpertStack:
        """Matrix `w1`, `w2` or `w3` of all experts below `prefix`, such as "layers.3.ffn.experts"."""
        return self._resolver.stack(f"{prefix}.{matrix}")

    def stored(self) -> Collection[TensorEntry]:
        """Every tensor of the files under its own name, used or not, in file order."""
        return self._resolver.tensors.values()

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors; ranges that several names share count once."""
        return sum({(t.file, t.offset): t.nbytes for t in self.stored()}.values())

    @property
    def unused(self) -> tuple[str, ...]:
        """Stored names of tensors that this configuration has no use for, in file order."""
        used = self._resolver.used()
        return tuple(name for name in self._resolver.tensors if name not in used)

    @property
    def identity(self) -> str:
        """Changes when a file is replaced or touched: SHA-256 over absolute paths, sizes and times of change."""
        digest = hashlib.sha256()
        for path in self.paths:
            try:
                status = os.stat(path)
            except OSError as error:
                raise ModelFileError(path, f"cannot be looked at any more: {error.strerror}") from None
            digest.update(f"{path.resolve()}\0{status.st_size}\0{status.st_mtime_ns}\n".encode())
        return digest.hexdigest()


def open_checkpoint(
    path: str | os.PathLike[str] | None,
    *,
    draft: str | os.PathLike[str] | None = None,
    cache_rounding: bool = True,
) -> OpenedCheckpoint:
    """Opens the model at `path`; None opens the embedded one.

    A GGUF file, any part of a split one, a folder of its parts, a Hugging Face folder, or one .safetensors file
    beside its config.json; or, where no such path exists, the name of a model in the cache of the Hugging Face hub
    (`hub/names.py`). `draft` is a GGUF file with the draft block alone, as ds4 ships it. `cache_rounding`
    False keeps cached rows in full precision, as transformers does; the published models were trained with it on,
    and so it is for every deepseek_v4 file. Raises ModelFileError (UnsupportedModelError for what is well formed
    and not for finback) with the file, the field or tensor, and what was expected.
    """
    if path is None:
        opened = _open_gguf(EMBEDDED, draft, cache_rounding)
        opened.kind = "embedded"
        return opened
    place = Path(path)
    if not os.path.lexists(place) and isinstance(path, str):
        from finback.hub.cache import resolve

        place = resolve(path) or place
    if not os.path.lexists(place):
        raise ModelFileError(
            path, "does not exist; give a .gguf file, a model folder, or a .safetensors file"
        )
    if _is_gguf(place):
        return _open_gguf(place, draft, cache_rounding)
    if draft is not None:
        raise ModelFileError(
            draft, f"goes with a GGUF model only; {shown(place.name)} has its own draft block or none"
        )
    return _open_hf(place, cache_rounding)


def _is_gguf(path: Path) -> bool:
    """By content, then by name: a file without a suffix may be GGUF, a .gguf with other content gets GGUF's message."""
    if os.path.isdir(path):
        names = os.listdir(path)
        gguf = any(name.lower().endswith(".gguf") for name in names)
        tensors = SINGLE_NAME in names or INDEX_NAME in names
        if gguf and tensors:
            raise ModelFileError(
                path, f"holds both .gguf and {SINGLE_NAME} models; name the .gguf file you mean"
            )
        if not gguf and not tensors:
            raise ModelFileError(path, f"holds no model: neither .gguf, {SINGLE_NAME} nor {INDEX_NAME}")
        return gguf
    if path.suffix.lower() == ".gguf":
        return True
    with open_regular(path) as (descriptor, _):
        magic = os.pread(descriptor, 4, 0)
    if magic != b"GGUF" and path.suffix.lower() != ".safetensors":
        raise ModelFileError(path, f"is no model file: it begins with {magic!r}, and its name ends neither in .gguf "
                             "nor .safetensors")  # fmt: skip
    return magic == b"GGUF"


# ---- GGUF -------------------------------------------------------------------------------------------------------


def _open_gguf(path: Path, draft: str | os.PathLike[str] | None, cache_rounding: bool) -> OpenedCheckpoint:
    file = open_gguf(path)
    if draft is not None:
        _add_draft(file, open_gguf(draft))
    config, names = config_from_gguf(file, cache_rounding=cache_rounding)
    return _finish(
        "gguf", file, config, [names], FP8_BLOCK, generation_from_gguf(file), _vocabulary(file, config)
    )


def _add_draft(file: GgufFile, draft: GgufFile) -> None:
    """Takes the `mtp.N` tensors of ds4's separate file into the model's list."""
    added = {name: entry for name, entry in draft.tensors.items() if name.startswith("mtp.")}
    if not added:
        raise ModelFileError(draft.paths[0], "holds no draft block: none of its tensors is called mtp.0.…")
    twice = next((name for name in added if name in file.tensors), None)
    if twice is not None:
        raise ModelFileError(draft.paths[0], f"holds tensor {shown(twice)}, which the model has already")
    first = len(file.paths)
    file.paths.extend(draft.paths)
    file.tensors.update({name: entry._replace(file=first + entry.file) for name, entry in added.items()})


def _vocabulary(file: GgufFile, config: ModelConfig) -> GgufVocabulary | None:
    if "tokenizer.ggml.tokens" not in file.metadata:
        return None
    tokens = file.get_strings("tokenizer.ggml.tokens")
    if len(tokens) > config.vocab_size:
        problem = f"tokenizer.ggml.tokens has {len(tokens)} entries; the vocabulary has {config.vocab_size}"
        raise ModelFileError(file.paths[0], problem)
    last = config.vocab_size - 1
    return GgufVocabulary(
        path=file.paths[0],
        model=file.get_str("tokenizer.ggml.model"),
        pre=file.get_str("tokenizer.ggml.pre"),
        tokens=tokens,
        token_types=_token_types(file, len(tokens)),
        merges=file.get_strings("tokenizer.ggml.merges"),
        bos_id=file.get_int("tokenizer.ggml.bos_token_id", 0, last),
        eos_id=file.get_int("tokenizer.ggml.eos_token_id", 0, last),
        pad_id=config.pad_token_id,
    )


def _token_types(file: GgufFile, count: int) -> list[int]:
    """One number per token; their meaning is the tokenizer's business."""
    types = file.metadata.get("tokenizer.ggml.token_type")
    if not isinstance(types, np.ndarray) or len(types) != count:
        found = "missing" if types is None else f"{shown(types)}"
        problem = f"tokenizer.ggml.token_type is {found}; {count} integers are expected, one per token"
        raise ModelFileError(file.paths[0], problem)
    return [int(kind) for kind in types.tolist()]


# ---- Hugging Face -----------------------------------------------------------------------------------------------


def _open_hf(path: Path, cache_rounding: bool) -> OpenedCheckpoint:
    is_folder = os.path.isdir(path)
    folder = path if is_folder else path.parent
    config_path = folder / "config.json"
    if not os.path.lexists(config_path):
        raise ModelFileError(path, "has no config.json beside it; the folder of a model must have one")
    raw = read_object(config_path)
    # Any shard stands for its folder; a file with another name is a model of its own.
    sharded = os.path.lexists(folder / INDEX_NAME) and "-of-" in path.name
    files: ModelFiles = open_folder(folder) if is_folder or sharded else open_safetensors(path)
    bare = _bare_names(files)
    prefix = "model." if "model.norm.weight" in files.tensors else ""
    dspark = any(map(is_dspark, bare))
    config = config_from_hf(
        raw, config_path, drafts=0 if dspark else draft_blocks(bare), cache_rounding=cache_rounding
    )
    generation = GenerationDefaults()
    sampling = folder / "generation_config.json"
    if os.path.lexists(sampling):
        values = read_object(sampling)
        generation = generation_from_hf(values, sampling)
        stops = dict.fromkeys((*config.eos_token_ids, *token_ids(values, "eos_token_id", sampling)))
        config = replace(config, eos_token_ids=tuple(stops))
    tokenizer = folder / "tokenizer.json"
    names: list[Spelling] = [
        FolderNames(layout, p) for p in dict.fromkeys((prefix, "")) for layout in _LAYOUTS
    ]
    names += [ModuleNames(p) for p in dict.fromkeys((prefix, ""))]
    return _finish(
        "safetensors", files, config, names, _scale_block(raw, config_path), generation,
        tokenizer if os.path.lexists(tokenizer) else None,
    )  # fmt: skip


_LAYOUTS: Final[tuple[Literal["official", "saved"], ...]] = ("official", "saved")


def _scale_block(raw: Mapping[str, object], path: Path) -> tuple[int, int]:
    """Rows and columns of an FP8 matrix that share a scale."""
    quantization = raw.get("quantization_config")
    if quantization is None:
        return FP8_BLOCK
    if not isinstance(quantization, Mapping):
        raise ModelFileError(path, f"quantization_config is {shown(quantization)}; allowed: an object")
    method = quantization.get("quant_method")
    if method != "fp8":
        raise UnsupportedModelError(
            path, f"quantization_config.quant_method is {shown(method)}; finback runs 'fp8'"
        )
    block = quantization.get("weight_block_size", list(FP8_BLOCK))
    if isinstance(block, list) and len(block) == 2 and all(type(n) is int and 1 <= n <= 65536 for n in block):
        return block[0], block[1]
    problem = f"quantization_config.weight_block_size is {shown(block)}; allowed: two numbers from 1 to 65536"
    raise ModelFileError(path, problem)


# ---- both -------------------------------------------------------------------------------------------------------


def _finish(
    kind: Kind,
    files: ModelFiles,
    config: ModelConfig,
    spellings: Sequence[Spelling],
    scale_block: tuple[int, int],
    generation: GenerationDefaults,
    tokenizer: Path | GgufVocabulary | None,
) -> OpenedCheckpoint:
    """Checks every tensor against the configuration and settles what is not used."""
    resolver = Resolver(files.paths, files.tensors, spellings, config.n_routed_experts, scale_block)
    resolver.require(model_tensors(config))
    _refuse_contradictions(resolver, config)
    notes: list[str] = []
    bare = _bare_names(files)
    dspark = any(map(is_dspark, bare))
    if dspark:
        notes.append("the draft stages (mtp.*) are DSpark, which finback does not run; drafting is off")
    wanted = list(draft_tensors(config))
    missing = next((tensor.name for tensor in wanted if not resolver.holds(tensor)), None)
    if missing is not None:
        notes.append(f"the draft block lacks tensor {missing!r}; drafting is off")
        config = replace(config, mtp_layers=())
    else:
        resolver.require(wanted)
    if any(map(is_vision, bare)):
        notes.append("the picture encoder is not used: finback reads text only")
    preview = "v4-preview" if config.mtp_layers else None
    dialect = "v4-0731" if dspark else preview
    return OpenedCheckpoint(kind, config, files.paths, generation, tokenizer, dialect, tuple(notes), resolver)


def _bare_names(files: ModelFiles) -> list[str]:
    """Names without the prefix of some folders, routed experts left out: they are most of a model."""
    return [name.removeprefix("model.") for name in files.tensors if ".experts." not in name]


def _refuse_contradictions(resolver: Resolver, config: ModelConfig) -> None:
    """Tensors that the configuration says a layer does not have, where ignoring them would be another model."""
    for layer in config.layers:
        prefix = f"layers.{layer.index}"
        signs = [
            ("attn.compressor.ape", layer.ratio == 0, "its compression ratio is 0"),
            (
                "attn.indexer.wq_b.weight",
                not layer.has_indexer,
                f"ratio {layer.ratio} goes without an indexer",
            ),
            (
                "ffn.gate.tid2eid",
                not layer.hashed,
                "the configuration does not count it among the hashed layers",
            ),
        ]
        for name, absent, reason in signs:
            found = resolver.find(f"{prefix}.{name}") if absent else None
            if found is not None:
                path = resolver.paths[found[0].file]
                raise ModelFileError(
                    path, f"tensor {shown(found[0].name)} contradicts layer {layer.index}: {reason}"
                )
