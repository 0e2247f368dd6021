"""Writes GGUF and safetensors files, one tensor at a time.

Owns the order of things: metadata and declarations first, then each declared tensor's bytes in order, so that
the header is known before the data and no more than the piece in hand is in memory. Files appear under a
temporary name and get their own when complete. Refuses bytes for an undeclared tensor, too many or too few.
"""

from __future__ import annotations

import json
import math
import os
import struct
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Final, NamedTuple, Self, TypeAlias

import numpy as np
import numpy.typing as npt

from finback.errors import RequestError, shown
from finback.formats import limits
from finback.formats.blocks import format_of, row_bytes
from finback.formats.metadata import FLOATS, SCALAR_DTYPES, Scalar, ValueType
from finback.formats.safetensors import DTYPES, INDEX_NAME

GGUF_VERSION: Final = 3
SAFETENSORS_ALIGNMENT: Final = 8  # the header is padded with spaces, so that data begins at a multiple
MetadataInput: TypeAlias = Scalar | Sequence[Scalar] | npt.NDArray[np.generic]


class _Declared(NamedTuple):
    """A tensor whose bytes are yet to come."""

    name: str
    format: str
    shape: tuple[int, ...]  # row-major
    nbytes: int


def _declared(name: str, format: str, shape: Sequence[int]) -> _Declared:
    """A declaration after the checks that hold for every kind of file."""
    if not 1 <= len(name.encode()) <= limits.TENSOR_NAME_BYTES:
        raise RequestError(f"tensor name {shown(name)} must take 1 to {limits.TENSOR_NAME_BYTES} bytes")
    sizes = tuple(int(size) for size in shape)
    if any(size < 1 for size in sizes):
        raise RequestError(f"tensor {shown(name)} has shape {list(sizes)}, wanted are sizes from 1")
    nbytes = row_bytes(format, sizes[-1] if sizes else 1) * math.prod(sizes[:-1])
    return _Declared(name, format, sizes, nbytes)


class _TensorStream(ABC):
    """What all writers share: a file under a temporary name, declarations, and bytes in their order."""

    def __init__(self, path: str | os.PathLike[str], *, data_alignment: int) -> None:
        self._path = Path(path)
        self._temporary = self._path.with_name(f".{self._path.name}.{os.getpid()}.part")
        self._data_alignment = data_alignment  # of each tensor's first byte
        self._declared: dict[str, _Declared] = {}
        self._file: BinaryIO | None = None  # open from the first byte of data on
        self._order: list[_Declared] = []
        self._current = 0  # index into _order
        self._written = 0  # bytes of the current tensor

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self._finish()
        else:
            self._discard()

    def declare(self, name: str, format: str, shape: Sequence[int]) -> None:
        """Announces a tensor: `format` a key of FORMATS, `shape` row-major, [out, in] for a matrix.

        All declarations come before the first byte of data. Raises RequestError for a name already used, or a
        format or shape that the file cannot hold.
        """
        if self._file is not None:
            raise RequestError(f"tensor {shown(name)} is declared after data was written: declare all first")
        tensor = _declared(name, format, shape)
        self._check(tensor)
        if name in self._declared:
            raise RequestError(f"tensor {shown(name)} is declared twice")
        self._declared[name] = tensor

    def write(self, name: str, data: npt.NDArray[np.generic] | bytes) -> None:
        """Appends bytes of tensor `name`, all of them or a piece; tensors come in the order declared.

        Raises RequestError for another tensor's turn and for more bytes than the tensor has.
        """
        file = self._start_data() if self._file is None else self._file
        if self._current >= len(self._order) or self._order[self._current].name != name:
            turn = shown(self._order[self._current].name) if self._current < len(self._order) else "no tensor"
            raise RequestError(f"bytes of tensor {shown(name)} came when {turn} was next")
        tensor = self._order[self._current]
        flat = (
            np.frombuffer(data, np.uint8)
            if isinstance(data, bytes)
            else np.ascontiguousarray(data).reshape(-1)
        )
        if self._written + flat.nbytes > tensor.nbytes:
            got = self._written + flat.nbytes
            raise RequestError(f"tensor {shown(name)} takes {tensor.nbytes} bytes, got {got}")
        file.write(flat.view(np.uint8).data)
        self._written += flat.nbytes
        if self._written == tensor.nbytes:
            file.write(bytes(-tensor.nbytes % self._data_alignment))
            self._current, self._written = self._current + 1, 0

    def _finish(self) -> None:
        """Finishes the file and gives it its name; if data is missing, removes it and raises RequestError."""
        file = self._start_data() if self._file is None else self._file
        if self._current < len(self._order):
            tensor = self._order[self._current]
            self._discard()
            raise RequestError(
                f"tensor {shown(tensor.name)} got {self._written} of its {tensor.nbytes} bytes"
            )
        file.flush()
        os.fsync(file.fileno())
        file.close()
        os.replace(self._temporary, self._path)

    def _start_data(self) -> BinaryIO:
        """Opens the file and writes the header; from here on nothing can be declared."""
        header = self._header()
        self._order = list(self._declared.values())
        self._file = open(self._temporary, "wb")  # noqa: SIM115 - closed by _finish or _discard
        self._file.write(header)
        return self._file

    def _discard(self) -> None:
        if self._file is not None:
            self._file.close()
            self._temporary.unlink(missing_ok=True)

    @abstractmethod
    def _check(self, tensor: _Declared) -> None:
        """Raises RequestError if this kind of file cannot hold the tensor."""

    @abstractmethod
    def _header(self) -> bytes:
        """Everything ahead of the data, padded to where the data begins."""


class GgufWriter(_TensorStream):
    """Writes a GGUF version 3 file: `add` metadata, `declare` tensors, `write` their bytes.

    with GgufWriter("model.gguf", "deepseek4") as writer:
        writer.add("deepseek4.block_count", "u32", 2)
        writer.declare("output.weight", "Q8_0", (64, 256))
        writer.write("output.weight", encode("Q8_0", x))
    """

    def __init__(self, path: str | os.PathLike[str], architecture: str, *, alignment: int = 32) -> None:
        """`alignment` of each tensor's data in the file, a power of two; readers assume 32 when not told."""
        lowest, highest = limits.GGUF_ALIGNMENT
        if not lowest <= alignment <= highest or alignment & (alignment - 1):
            raise RequestError(
                f"alignment is {alignment}, wanted is a power of two from {lowest} to {highest}"
            )
        super().__init__(path, data_alignment=alignment)
        self._keys: dict[str, bytes] = {}
        self._aliases: dict[str, str] = {}
        self.add("general.architecture", "str", architecture)
        self.add("general.alignment", "u32", alignment)

    def add(self, key: str, kind: str, value: MetadataInput) -> None:
        """Adds metadata; `kind` is a type label: `u32`, `f32`, `bool`, `str` and so on, `[u32]` for an array.

        Raises RequestError for a key already there, an unknown kind and a value the kind cannot hold.
        """
        if self._file is not None:
            raise RequestError(f"metadata key {shown(key)} is added after data was written: add all first")
        if key in self._keys:
            raise RequestError(f"metadata key {shown(key)} is there already")
        if not 1 <= len(key.encode()) <= limits.GGUF_KEY_BYTES:
            raise RequestError(f"metadata key {shown(key)} must take 1 to {limits.GGUF_KEY_BYTES} bytes")
        is_array = kind.startswith("[") and kind.endswith("]")
        label = kind[1:-1] if is_array else kind
        types = {entry.label: entry for entry in ValueType if entry is not ValueType.ARRAY}
        if label not in types:
            raise RequestError(
                f"kind {shown(kind)} is unknown, known are {', '.join(types)} and these in brackets"
            )
        items = (
            list(value)
            if is_array and isinstance(value, Sequence | np.ndarray) and not isinstance(value, str)
            else [value]
        )
        payload = _packed_items(key, types[label], items)
        if is_array:
            payload = struct.pack("<IIQ", ValueType.ARRAY, types[label], len(items)) + payload
        else:
            payload = struct.pack("<I", types[label]) + payload
        self._keys[key] = payload

    def alias(self, name: str, of: str) -> None:
        """Declares `name` as another name of the bytes of the declared tensor `of`: a tied matrix."""
        target = self._declared.get(of)
        if target is None:
            raise RequestError(f"tensor {shown(of)} is not declared, so {shown(name)} cannot be a name of it")
        self.declare(name, target.format, target.shape)
        self._aliases[name] = self._aliases.get(of, of)

    def _check(self, tensor: _Declared) -> None:
        if format_of(tensor.format).ggml_type is None:
            raise RequestError(f"tensor {shown(tensor.name)} cannot be {tensor.format} in a GGUF file")
        if not 1 <= len(tensor.shape) <= limits.GGUF_DIMENSIONS:
            raise RequestError(
                f"tensor {shown(tensor.name)} has {len(tensor.shape)} dimensions, "
                f"GGUF holds 1 to {limits.GGUF_DIMENSIONS}"
            )

    def _start_data(self) -> BinaryIO:
        file = super()._start_data()
        self._order = [tensor for tensor in self._order if tensor.name not in self._aliases]
        return file

    def _header(self) -> bytes:
        offsets: dict[str, int] = {}
        position = 0
        for tensor in self._declared.values():
            if tensor.name in self._aliases:
                offsets[tensor.name] = offsets[self._aliases[tensor.name]]
            else:
                offsets[tensor.name] = position
                position += tensor.nbytes + -tensor.nbytes % self._data_alignment
        parts = [b"GGUF", struct.pack("<IQQ", GGUF_VERSION, len(self._declared), len(self._keys))]
        parts += [_packed_text(key) + payload for key, payload in self._keys.items()]
        for tensor in self._declared.values():
            rank, number = len(tensor.shape), format_of(tensor.format).ggml_type
            parts.append(_packed_text(tensor.name) + struct.pack(f"<I{rank}Q", rank, *reversed(tensor.shape)))
            parts.append(struct.pack("<IQ", number, offsets[tensor.name]))
        header = b"".join(parts)
        return header + bytes(-len(header) % self._data_alignment)


def _packed_text(text: str) -> bytes:
    data = text.encode("utf-8")
    return struct.pack("<Q", len(data)) + data


def _packed_items(key: str, kind: ValueType, items: Sequence[object]) -> bytes:
    """The payload of one value or of an array's elements; each must be of the kind and in its range."""
    if kind is ValueType.STR:
        wanted: tuple[type, ...] = (str,)
    elif kind is ValueType.BOOL:
        wanted = (bool, np.bool_)
    elif kind in FLOATS:
        wanted = (float, int, np.floating, np.integer)
    else:
        wanted = (int, np.integer)
    for item in items:
        if not isinstance(item, wanted) or (isinstance(item, bool) and bool not in wanted):
            raise RequestError(f"metadata key {shown(key)}: {shown(item)} is no {kind.label}")
    if kind is ValueType.STR:
        return b"".join(_packed_text(str(item)) for item in items)
    plain = [item.item() if isinstance(item, np.generic) else item for item in items]  # so that none wraps
    try:
        with np.errstate(over="raise"):
            return np.array(plain, SCALAR_DTYPES[kind]).tobytes()
    except (OverflowError, FloatingPointError):
        raise RequestError(f"metadata key {shown(key)}: a value does not fit {kind.label}") from None


class SafetensorsWriter(_TensorStream):
    """Writes one safetensors file: `declare` tensors, `write` their bytes. Formats are keys of FORMATS."""

    def __init__(self, path: str | os.PathLike[str], *, metadata: Mapping[str, str] | None = None) -> None:
        """`metadata` becomes `__metadata__`; without any it is `{"format": "pt"}`, which loaders ask for."""
        super().__init__(path, data_alignment=1)
        self._metadata = {"format": "pt"} if metadata is None else dict(metadata)

    def _check(self, tensor: _Declared) -> None:
        _check_safetensors(tensor)

    def _header(self) -> bytes:
        document: dict[str, object] = {"__metadata__": self._metadata}
        stored_as = {format: name for name, format in DTYPES.items()}
        position = 0
        for tensor in self._declared.values():
            document[tensor.name] = {
                "dtype": stored_as[tensor.format],
                "shape": list(tensor.shape),
                "data_offsets": [position, position + tensor.nbytes],
            }
            position += tensor.nbytes
        text = json.dumps(document, separators=(",", ":")).encode()
        text += b" " * (-len(text) % SAFETENSORS_ALIGNMENT)
        return struct.pack("<Q", len(text)) + text


def _check_safetensors(tensor: _Declared) -> None:
    """Raises RequestError if a safetensors file cannot hold the tensor."""
    if tensor.format not in DTYPES.values():
        raise RequestError(f"tensor {shown(tensor.name)} cannot be {tensor.format} in a safetensors file")
    if len(tensor.shape) > limits.SAFETENSORS_DIMENSIONS:
        raise RequestError(
            f"tensor {shown(tensor.name)} has {len(tensor.shape)} dimensions, "
            f"allowed are {limits.SAFETENSORS_DIMENSIONS}"
        )
    if tensor.name == "__metadata__":
        raise RequestError("a tensor cannot be called '__metadata__' in a safetensors file")


class SafetensorsFolderWriter:
    """Writes a Hugging Face folder: shards of at most `shard_bytes` of data, and the index that lists them.

    Used as the other writers: declare all, then write in order. A tensor larger than a shard gets its own.
    The index is written last, so a folder without one is an unfinished folder.
    """

    def __init__(self, folder: str | os.PathLike[str], *, shard_bytes: int = 5 << 30) -> None:
        self._folder, self._shard_bytes = Path(folder), shard_bytes
        self._tensors: dict[str, _Declared] = {}
        self._shard_of: dict[str, int] = {}  # empty until the first byte of data
        self._shard: SafetensorsWriter | None = None  # the one being written
        self._number = -1  # of that shard, from 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self._finish()
        elif self._shard is not None:
            self._shard.__exit__(kind, error, trace)

    def declare(self, name: str, format: str, shape: Sequence[int]) -> None:
        """Announces a tensor, as `SafetensorsWriter.declare`."""
        if self._shard_of:
            raise RequestError(f"tensor {shown(name)} is declared after data was written: declare all first")
        tensor = _declared(name, format, shape)
        _check_safetensors(tensor)
        if name in self._tensors:
            raise RequestError(f"tensor {shown(name)} is declared twice")
        self._tensors[name] = tensor

    def write(self, name: str, data: npt.NDArray[np.generic] | bytes) -> None:
        """Appends bytes of a tensor, as `SafetensorsWriter.write`."""
        if not self._shard_of:
            self._plan()
        if self._shard_of.get(name) == self._number + 1:
            self._next_shard()
        if self._shard is None:
            raise RequestError(
                f"bytes of tensor {shown(name)} came when {shown(next(iter(self._tensors)))} was next"
            )
        self._shard.write(name, data)

    def _plan(self) -> None:
        """Deals the tensors out to shards in order."""
        number, filled = 0, 0
        for tensor in self._tensors.values():
            if filled and filled + tensor.nbytes > self._shard_bytes:
                number, filled = number + 1, 0
            self._shard_of[tensor.name] = number
            filled += tensor.nbytes

    def _shard_name(self, number: int) -> str:
        return (
            f"model-{number + 1:05d}-of-{self._shard_of[next(reversed(self._shard_of))] + 1:05d}.safetensors"
        )

    def _next_shard(self) -> None:
        """Finishes the shard in hand, which must be complete, and opens the one after it."""
        if self._shard is not None:
            self._shard.__exit__(None, None, None)
        self._number += 1
        self._shard = SafetensorsWriter(self._folder / self._shard_name(self._number))
        for tensor in self._tensors.values():
            if self._shard_of[tensor.name] == self._number:
                self._shard.declare(tensor.name, tensor.format, tensor.shape)

    def _finish(self) -> None:
        """Finishes the last shard, then writes the index under a temporary name and renames it."""
        if self._shard is not None:
            self._shard.__exit__(None, None, None)
        unwritten = [name for name, number in self._shard_of.items() if number > self._number]
        if unwritten or not self._shard_of:
            first = unwritten[0] if unwritten else next(iter(self._tensors), None)
            raise RequestError(f"tensor {shown(first)} got no bytes: the folder has no index")
        index = {
            "metadata": {"total_size": sum(tensor.nbytes for tensor in self._tensors.values())},
            "weight_map": {name: self._shard_name(number) for name, number in self._shard_of.items()},
        }
        temporary = self._folder / f".{INDEX_NAME}.{os.getpid()}.part"
        temporary.write_text(json.dumps(index, indent=1), encoding="utf-8")
        os.replace(temporary, self._folder / INDEX_NAME)
