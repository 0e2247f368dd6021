"""From official names to byte ranges: finds a tensor under whatever name its container uses, and checks it.

Owns the comparison of what a file holds with what the configuration needs (shape, format, scale planes), stacks of
experts, and matrices fused into one tensor, which become offsets. Refuses, naming tensor, found and expected: a
missing tensor, another shape, a format that a role cannot have. Reads no tensor data.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from finback.errors import ModelFileError, UnsupportedModelError, shown
from finback.formats.blocks import FORMATS, row_bytes
from finback.formats.entry import TensorEntry
from finback.formats.names import Spelled, Spelling
from finback.weights.inventory import ROLE_FORMATS, Expected
from finback.weights.tensors import ExpertStack, Plane, ScaleKind, Weight

MX_COLUMNS: Final = 32  # values under one scale of a packed MXFP4 row
_SCALE_DTYPES: Final[Mapping[str, ScaleKind]] = {"E8M0": "E8M0", "U8": "E8M0", "F32": "F32"}
_PACKED: Final = frozenset({"I8", "U8"})  # two E2M1 codes a byte


class _Scales(NamedTuple):
    entry: TensorEntry
    kind: ScaleKind
    block: tuple[int, int]


@dataclass(slots=True)
class Resolver:
    """Looks tensors up by official name. `expected` is the model's inventory, `experts` the number a layer has."""

    paths: Sequence[Path]
    tensors: Mapping[str, TensorEntry]
    spellings: Sequence[Spelling]
    experts: int
    scale_block: tuple[int, int]  # of FP8 matrices
    expected: dict[str, Expected] = field(default_factory=dict)
    _stacks: dict[str, ExpertStack] = field(default_factory=dict)

    def require(self, tensors: Iterable[Expected]) -> None:
        """Adds tensors to the inventory and checks each. Raises ModelFileError for the first that does not fit."""
        for wanted in tensors:
            self.expected[wanted.name] = wanted
            if wanted.role == "experts":
                self.stack(wanted.name)
            else:
                self.weight(wanted.name)

    def holds(self, wanted: Expected) -> bool:
        """Whether the file has the tensor (of a stack: its first expert), whatever its shape."""
        name = _member(wanted.name, 0) if wanted.role == "experts" else wanted.name
        return self.find(name) is not None

    def find(self, name: str) -> tuple[TensorEntry, Spelled] | None:
        """The stored tensor that holds official `name`; None if no spelling of it is there."""
        for spelling in self.spellings:
            spelled = spelling.spell(name)
            if spelled is not None and (entry := self.tensors.get(spelled.name)) is not None:
                return entry, spelled
        return None

    def weight(self, name: str) -> Weight:
        """One tensor of the inventory, checked. Raises ModelFileError naming it, found and expected."""
        wanted = self._wanted(name)
        entry, spelled = self._found(name)
        if spelled.half is not None:
            return self._half(wanted, entry, spelled.half)
        format, shape = self._logical(wanted, entry)
        if _squeezed(shape) != _squeezed(wanted.shape):
            raise self._mismatch(wanted, entry, shape)
        self._check_format(wanted, entry, format)
        plane = Plane(entry.file, entry.offset, entry.nbytes)
        scales = self._scales(wanted, entry, format, wanted.shape)
        if scales is None:
            return Weight(name, format, wanted.shape, plane)
        scale = Plane(scales.entry.file, scales.entry.offset, scales.entry.nbytes)
        return Weight(name, format, wanted.shape, plane, scale, scales.kind, scales.block)

    def stack(self, name: str) -> ExpertStack:
        """One matrix of all experts of a layer, by a name such as "layers.3.ffn.experts.w1"."""
        if name not in self._stacks:
            wanted = self._wanted(name)
            entry, spelled = self._found(_member(name, 0))
            gather = self._gather if spelled.expert is None else self._slice
            self._stacks[name] = gather(wanted, entry, spelled)
        return self._stacks[name]

    def used(self) -> set[str]:
        """Stored names of everything in the inventory."""
        names: set[str] = set()
        for wanted in self.expected.values():
            members = [wanted.name]
            if wanted.role == "experts":
                members = [_member(wanted.name, expert) for expert in range(self.experts)]
            for member in members:
                found = self.find(member)
                if found is None:
                    continue
                names.add(found[0].name)
                names.update(scale for scale in _scale_names(found[0].name) if scale in self.tensors)
                if found[1].expert is not None:
                    break  # all experts are in this one
        return names

    # ---- one tensor ----

    def _wanted(self, name: str) -> Expected:
        wanted = self.expected.get(name)
        if wanted is None:
            raise ModelFileError(
                self.paths[0], f"has no use for a tensor {shown(name)}: its configuration names none"
            )
        return wanted

    def _found(self, name: str) -> tuple[TensorEntry, Spelled]:
        found = self.find(name)
        if found is None:
            spelled = self.spellings[0].spell(name)
            stored = name if spelled is None else spelled.name
            raise ModelFileError(self.paths[0], f"tensor {shown(stored)} is missing; the file is incomplete or its "
                                 "configuration is another model's")  # fmt: skip
        return found

    def _logical(self, wanted: Expected, entry: TensorEntry) -> tuple[str, tuple[int, ...]]:
        """Format and shape in values: packed MXFP4 is stored as bytes of half as many columns."""
        if wanted.role in ("matrix", "experts") and entry.dtype in _PACKED and entry.shape:
            return "MXFP4_PAIRS", (*entry.shape[:-1], 2 * entry.shape[-1])
        return entry.dtype, entry.shape

    def _check_format(self, wanted: Expected, entry: TensorEntry, format: str) -> None:
        allowed = ROLE_FORMATS[wanted.role]
        if allowed is None:
            if FORMATS[format].activation is not None:
                return
            allowed = frozenset(known.name for known in FORMATS.values() if known.activation is not None)
        elif format in allowed:
            return
        problem = f"tensor {shown(entry.name)} is stored as {format}; finback runs it as {', '.join(sorted(allowed))}"
        raise UnsupportedModelError(self.paths[entry.file], problem)

    def _scales(
        self, wanted: Expected, entry: TensorEntry, format: str, shape: tuple[int, ...]
    ) -> _Scales | None:
        """The scale plane of an FP8 or packed MXFP4 tensor of `shape`, whose first axes may stack experts."""
        if format not in ("FP8_E4M3", "MXFP4_PAIRS"):
            return None
        block = (1, MX_COLUMNS) if format == "MXFP4_PAIRS" else self.scale_block
        scale = next((self.tensors[name] for name in _scale_names(entry.name) if name in self.tensors), None)
        if scale is None:
            names = " or ".join(shown(name) for name in _scale_names(entry.name))
            raise ModelFileError(self.paths[entry.file], f"tensor {shown(entry.name)} is {format} and its scales, "
                                 f"{names}, are missing")  # fmt: skip
        kind = _SCALE_DTYPES.get(scale.dtype)
        if kind is None or (format == "MXFP4_PAIRS" and kind != "E8M0"):
            problem = f"scales {shown(scale.name)} are stored as {scale.dtype}; finback runs E8M0, with FP8 also F32"
            raise UnsupportedModelError(self.paths[scale.file], problem)
        rows, columns = shape[-2:]
        expected = (*shape[:-2], -(-rows // block[0]), -(-columns // block[1]))
        if scale.shape != expected:
            problem = (f"scales {shown(scale.name)} have shape {list(scale.shape)}; {list(expected)} is expected for "
                       f"blocks of {block[0]} x {block[1]}")  # fmt: skip
            raise ModelFileError(self.paths[scale.file], problem)
        return _Scales(scale, kind, block)

    def _half(self, wanted: Expected, entry: TensorEntry, half: int) -> Weight:
        """One of two matrices in a tensor: beside each other in every row (llama.cpp), or one above the other."""
        rows, columns = wanted.shape
        self._check_format(wanted, entry, entry.dtype)
        if columns % FORMATS[entry.dtype].block:
            raise self._mismatch(wanted, entry, entry.shape)
        row = row_bytes(entry.dtype, columns)
        if entry.shape == (rows, 2 * columns):
            plane = Plane(entry.file, entry.offset + half * row, (2 * rows - 1) * row)
            return Weight(wanted.name, entry.dtype, wanted.shape, plane, stride=2 * row)
        if entry.shape == (2 * rows, columns):
            return Weight(wanted.name, entry.dtype, wanted.shape, Plane(entry.file, entry.offset + half * rows * row,
                                                                        rows * row))  # fmt: skip
        expected = f"{[rows, 2 * columns]} (two matrices side by side)"
        raise ModelFileError(self.paths[entry.file], f"tensor {shown(entry.name)} has shape {list(entry.shape)}; "
                             f"{expected} is expected")  # fmt: skip

    def _mismatch(self, wanted: Expected, entry: TensorEntry, shape: tuple[int, ...]) -> ModelFileError:
        problem = (f"tensor {shown(entry.name)} has shape {list(shape)}; the configuration asks for "
                   f"{list(wanted.shape)}")  # fmt: skip
        return ModelFileError(self.paths[entry.file], problem)

    # ---- experts ----

    def _gather(self, wanted: Expected, first: TensorEntry, spelled: Spelled) -> ExpertStack:
        """Experts in tensors of their own: all must agree with the first."""
        format, shape = self._logical(wanted, first)
        if shape != wanted.shape:
            raise self._mismatch(wanted, first, shape)
        self._check_format(wanted, first, format)
        scales = self._scales(wanted, first, format, shape)
        head, tail = spelled.name.rsplit(".experts.0.", 1)
        entries = self._members(head, tail, first)
        files, offsets = _places(entries)
        stack = ExpertStack(wanted.name, format, (shape[0], shape[1]), files, offsets, first.nbytes)
        if scales is None:
            return stack
        scale_tail = scales.entry.name.rsplit(".experts.0.", 1)[1]
        scale_files, scale_offsets = _places(self._members(head, scale_tail, scales.entry))
        return ExpertStack(
            wanted.name, format, (shape[0], shape[1]), files, offsets, first.nbytes,
            scale_files, scale_offsets, scales.entry.nbytes, scales.kind, scales.block,
        )  # fmt: skip

    def _members(self, head: str, tail: str, first: TensorEntry) -> list[TensorEntry]:
        """The tensors of all experts, of one dtype and shape."""
        names = [f"{head}.experts.{expert}.{tail}" for expert in range(self.experts)]
        found = list(map(self.tensors.get, names))  # a real model has 33,792 of them: no work per expert
        entries = [entry for entry in found if entry is not None]
        if len(entries) < len(found):
            absent = names[found.index(None)]
            raise ModelFileError(self.paths[0], f"tensor {shown(absent)} is missing; the configuration asks for "
                                 f"{self.experts} experts")  # fmt: skip
        if set(map(_kind, entries)) != {_kind(first)}:
            entry = next(entry for entry in entries if _kind(entry) != _kind(first))
            problem = (f"tensor {shown(entry.name)} is {entry.dtype} {list(entry.shape)}; expert 0 of the layer is "
                       f"{first.dtype} {list(first.shape)}, and all must agree")  # fmt: skip
            raise ModelFileError(self.paths[entry.file], problem)
        return entries

    def _slice(self, wanted: Expected, entry: TensorEntry, spelled: Spelled) -> ExpertStack:
        """Experts stacked in one tensor, gate and up possibly fused: offsets into it."""
        rows, columns = wanted.shape
        parts = 1 if spelled.half is None else 2
        stacked = (self.experts, parts * rows, columns)
        format, shape = self._logical(wanted, entry)
        if _squeezed(shape) != _squeezed(stacked):
            raise self._mismatch(Expected(wanted.name, stacked, wanted.role), entry, shape)
        self._check_format(wanted, entry, format)
        scales = self._scales(wanted, entry, format, stacked)
        files, offsets, nbytes = self._cut(entry, parts, spelled.half or 0)
        stack = ExpertStack(wanted.name, format, (rows, columns), files, offsets, nbytes)
        if scales is None:
            return stack
        if rows % scales.block[0]:
            problem = (
                f"tensor {shown(entry.name)} fuses matrices of {rows} rows, but {scales.block[0]} rows share a scale; "
                "finback needs a multiple"
            )
            raise UnsupportedModelError(self.paths[entry.file], problem)
        return ExpertStack(
            wanted.name, format, (rows, columns), files, offsets, nbytes,
            *self._cut(scales.entry, parts, spelled.half or 0), scales.kind, scales.block,
        )  # fmt: skip

    def _cut(
        self, entry: TensorEntry, parts: int, part: int
    ) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int64], int]:
        """File and offset of each expert's part, and its bytes."""
        nbytes = entry.nbytes // (self.experts * parts)
        offsets = entry.offset + nbytes * (parts * np.arange(self.experts, dtype=np.int64) + part)
        return np.full(self.experts, entry.file, np.int32), offsets, nbytes


_kind: Final = attrgetter("dtype", "shape")


def _member(stack: str, expert: int) -> str:
    """ "layers.3.ffn.experts.w1" -> "layers.3.ffn.experts.7.w1.weight"."""
    head, matrix = stack.rsplit(".", 1)
    return f"{head}.{expert}.{matrix}.weight"


def _scale_names(name: str) -> tuple[str, str]:
    """How the scale plane of a stored tensor may be called: as published, and as transformers and V3 do."""
    return name.removesuffix("weight").removesuffix(".") + ".scale", name + "_scale_inv"


def _squeezed(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Without leading axes of length 1, which containers add and drop."""
    first = next((i for i, size in enumerate(shape) if size != 1), len(shape))
    return shape[first:]


def _places(entries: Sequence[TensorEntry]) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int64]]:
    """File and offset of each tensor."""
    files = np.fromiter(map(attrgetter("file"), entries), np.int32, len(entries))
    return files, np.fromiter(map(attrgetter("offset"), entries), np.int64, len(entries))
