"""Opens a GGUF model: one file or all parts of a split one, as one list of tensors and one set of metadata.

Owns `open_gguf`, `GgufFile` with its typed getters, and the checks that parts belong together. Reading and
checking a single header is `formats.gguf_header`, finding the parts `formats.split`. Refuses to give a value
of another type than asked for, or one outside the range asked for; the message names file, key, found and
wanted. Opening costs the header only: tensor data is not touched, strings are decoded when read.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

import numpy as np

from finback.errors import ModelFileError, shown
from finback.formats import limits
from finback.formats.entry import ModelFiles, TensorEntry
from finback.formats.gguf_header import Header, read_header
from finback.formats.known_keys import word_of
from finback.formats.metadata import Metadata, MetadataValue, StringArray
from finback.formats.split import PartName, find_parts

Item = TypeVar("Item")
Number = TypeVar("Number", int, float)

INT_RANGE: Final = (-(1 << 63), (1 << 64) - 1)  # everything a GGUF integer can hold


@dataclass(slots=True)
class GgufFile(ModelFiles):
    """An opened GGUF model. Metadata is that of the first part; `TensorEntry.file` indexes `paths`.

    The getters raise ModelFileError for a missing key, a wrong type, or a value outside the range. Where a
    `default` is given, a missing key (never a wrong one) gives the default.
    """

    version: int
    metadata: Metadata

    def get_int(self, key: str, low: int, high: int, *, default: int | None = None) -> int:
        """An integer of any width and sign with low <= value <= high."""
        value = self._get(key, ("int",), default)
        assert isinstance(value, int), "the stored type is among those wanted"
        return self._within(key, value, low, high)

    def get_float(self, key: str, low: float, high: float, *, default: float | None = None) -> float:
        """A finite float of any width with low <= value <= high."""
        value = self._get(key, ("float",), default)
        assert isinstance(value, float), "the stored type is among those wanted"
        return self._within(key, value, low, high)

    def get_bool(self, key: str, *, default: bool | None = None) -> bool:
        """A boolean."""
        return bool(self._get(key, ("bool",), default))

    def get_str(self, key: str, *, default: str | None = None) -> str:
        """Text; UTF-8 is checked here."""
        return str(self._get(key, ("str",), default))

    def get_strings(self, key: str) -> StringArray:
        """An array of strings, decoded as it is read."""
        value = self._get(key, ("[str]",), None)
        assert isinstance(value, StringArray), "the stored type is among those wanted"
        return value

    def get_ints(self, key: str, low: int, high: int, *, length: int | None = None) -> list[int]:
        """Integers from an array, or from a single one that stands for `length` equal ones (1 without)."""
        value = self._get(key, ("int", "[int]"), None)
        items = value.tolist() if isinstance(value, np.ndarray) else [value] * (length or 1)
        return [self._within(key, int(item), low, high) for item in self._counted(key, items, length)]

    def get_floats(self, key: str, low: float, high: float, *, length: int | None = None) -> list[float]:
        """Finite floats, from an array or from a single one, as `get_ints`."""
        value = self._get(key, ("float", "[float]"), None)
        items = value.tolist() if isinstance(value, np.ndarray) else [value] * (length or 1)
        return [self._within(key, float(item), low, high) for item in self._counted(key, items, length)]

    def _get(self, key: str, wanted: tuple[str, ...], default: MetadataValue | None) -> MetadataValue:
        stored = self.metadata.stored(key)
        if stored is None:
            if default is not None:
                return default
            raise ModelFileError(
                self.paths[0], f"key {shown(key)} is missing, wanted is {' or '.join(wanted)}"
            )
        if word_of(stored) not in wanted:
            raise ModelFileError(
                self.paths[0], f"key {shown(key)} has type {stored.label}, wanted is {' or '.join(wanted)}"
            )
        return self.metadata[key]

    def _within(self, key: str, value: Number, low: Number, high: Number) -> Number:
        if not low <= value <= high or not math.isfinite(value):
            raise ModelFileError(self.paths[0], f"key {shown(key)} is {value}, allowed are {low} to {high}")
        return value

    def _counted(self, key: str, items: Sequence[Item], length: int | None) -> Sequence[Item]:
        if length is not None and len(items) != length:
            raise ModelFileError(
                self.paths[0], f"key {shown(key)} has {len(items)} values, wanted are {length}"
            )
        return items


def open_gguf(path: str | os.PathLike[str]) -> GgufFile:
    """Opens a model from a file, from any part of a split model, or from a folder that holds one model.

    Every length, type, range and name in the headers is checked here; raises ModelFileError with the file and
    the field, UnsupportedModelError (a kind of it) for what is valid GGUF but not for finback.
    """
    paths = find_parts(Path(path))
    first = read_header(paths[0], 0)
    _check_numbers(paths[0], first.metadata, 0, len(paths))
    tensors = dict(first.tensors)
    for index in range(1, len(paths)):
        part = read_header(paths[index], index)
        _check_numbers(paths[index], part.metadata, index, len(paths))
        _check_same_model(paths[index], part, first)
        _add_tensors(tensors, part.tensors, paths)
    total = first.metadata.get("split.tensors.count", len(tensors))
    if total != len(tensors):
        raise ModelFileError(
            paths[0],
            f"split.tensors.count is {total}, but there are {len(tensors)} tensors in {len(paths)} parts: "
            "one of them belongs to another model",
        )
    return GgufFile(paths, tensors, first.version, first.metadata)


def _check_numbers(path: Path, metadata: Metadata, index: int, count: int) -> None:
    """Compares what a part says about itself with its name: part `index` (from 0) of `count`."""
    if count > 1 and "split.count" not in metadata:
        raise ModelFileError(path, f"is named one of {count} parts, but has no key split.count")
    stored_count, stored_index = metadata.get("split.count", 1), metadata.get("split.no", 0)
    if stored_count != count:
        if PartName.parse(path.name) is None:
            raise ModelFileError(
                path,
                f"is one part of {stored_count} (key split.count): put all parts of the model side by side "
                "under their names, NAME-00001-of-000NN.gguf",
            )
        raise ModelFileError(
            path, f"is named one of {count} parts, but its key split.count is {stored_count}"
        )
    if stored_index != index:
        raise ModelFileError(
            path,
            f"is named part {index + 1}, but its key split.no is {stored_index}, counted from 0: wrong part",
        )


def _check_same_model(path: Path, part: Header, first: Header) -> None:
    """Every key that a later part shares with the first one must have the same value, but for its number."""
    if part.version != first.version:
        raise ModelFileError(
            path, f"has GGUF version {part.version}, the first part {first.version}: wrong part"
        )
    for key in part.metadata:
        if key == "split.no" or key not in first.metadata:
            continue
        same = part.metadata.label(key) == first.metadata.label(key)
        if not same or part.metadata.payload(key) != first.metadata.payload(key):
            raise ModelFileError(
                path,
                f"has another value of key {shown(key)} than the first part: it belongs to another model",
            )


def _add_tensors(tensors: dict[str, TensorEntry], more: dict[str, TensorEntry], paths: list[Path]) -> None:
    """Adds the tensors of one part, each of which must be new."""
    for name, entry in more.items():
        if name in tensors:
            raise ModelFileError(
                paths[entry.file],
                f"tensor {shown(name)} is in {shown(paths[tensors[name].file].name)} as well: "
                "one of the parts belongs to another model",
            )
        tensors[name] = entry
    if len(tensors) > limits.GGUF_TENSORS:
        raise ModelFileError(
            paths[0], f"holds more than {limits.GGUF_TENSORS} tensors in its {len(paths)} parts"
        )
