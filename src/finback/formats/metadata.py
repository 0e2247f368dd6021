"""GGUF metadata: typed values, strings and arrays decoded only when somebody asks.

Owns the thirteen value types, `Metadata` (a mapping over the header's bytes) and `StringArray`. Refuses to
know what a value means: which type a key must have is `formats.known_keys`, ranges and relations between keys
are the model configuration's business. Every position it is given lies inside the header:
`formats.gguf_header` has walked all of it.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator, Mapping, Sequence
from enum import IntEnum
from typing import Final, NamedTuple, TypeAlias, overload

import numpy as np
import numpy.typing as npt

from finback.errors import ModelFileError, shown


class ValueType(IntEnum):
    """Type numbers of GGUF values."""

    U8 = 0
    I8 = 1
    U16 = 2
    I16 = 3
    U32 = 4
    I32 = 5
    F32 = 6
    BOOL = 7
    STR = 8
    ARRAY = 9
    U64 = 10
    I64 = 11
    F64 = 12

    @property
    def label(self) -> str:
        """`u32`, `str`, `array`: as in messages and in the writer."""
        return self.name.lower()


SCALAR_DTYPES: Final[Mapping[ValueType, np.dtype[np.generic]]] = {
    ValueType.U8: np.dtype("<u1"),
    ValueType.I8: np.dtype("<i1"),
    ValueType.U16: np.dtype("<u2"),
    ValueType.I16: np.dtype("<i2"),
    ValueType.U32: np.dtype("<u4"),
    ValueType.I32: np.dtype("<i4"),
    ValueType.F32: np.dtype("<f4"),
    ValueType.BOOL: np.dtype("?"),
    ValueType.U64: np.dtype("<u8"),
    ValueType.I64: np.dtype("<i8"),
    ValueType.F64: np.dtype("<f8"),
}
INTEGERS: Final = frozenset(t for t, d in SCALAR_DTYPES.items() if d.kind in "ui")
FLOATS: Final = frozenset({ValueType.F32, ValueType.F64})

_U32: Final = struct.Struct("<I")
_U64: Final = struct.Struct("<Q")


class Stored(NamedTuple):
    """Where a value's bytes lie in the header, and what they are."""

    type: ValueType  # of the value, or of an array's elements
    length: int | None  # elements of an array; None for a single value
    start: int  # of the payload: past type and count, and past the length of a single string
    end: int

    @property
    def label(self) -> str:
        """As written in messages: `u32`, `str`, `[f32]`, `[array]`."""
        return self.type.label if self.length is None else f"[{self.type.label}]"


class StringArray(Sequence[str]):
    """An array of strings, decoded as it is read. Raises ModelFileError at a string that is not UTF-8."""

    __slots__ = ("_buffer", "_count", "_key", "_path", "_start", "_starts")

    def __init__(self, path: str | os.PathLike[str], key: str, buffer: memoryview, stored: Stored) -> None:
        self._path, self._key, self._buffer, self._start = path, key, buffer, stored.start
        self._count = stored.length or 0
        self._starts: npt.NDArray[np.uint32] | None = None

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[str]:
        position = self._start
        for index in range(self._count):
            length = _U64.unpack_from(self._buffer, position)[0]
            position += 8 + length
            yield self._text(index, position - length, position)

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(self._count))]
        at = index + self._count if index < 0 else index
        if not 0 <= at < self._count:
            raise IndexError(f"string {index} of {self._count}")
        start = int(self._string_starts()[at])
        return self._text(at, start + 8, start + 8 + _U64.unpack_from(self._buffer, start)[0])

    def _string_starts(self) -> npt.NDArray[np.uint32]:
        """Position of each string's length, found on the first access by index; headers are below 4 GiB."""
        if self._starts is None:
            starts, position = np.empty(self._count, np.uint32), self._start
            for index in range(self._count):
                starts[index] = position
                position += 8 + _U64.unpack_from(self._buffer, position)[0]
            self._starts = starts
        return self._starts

    def _text(self, index: int, start: int, end: int) -> str:
        try:
            return str(self._buffer[start:end], "utf-8")
        except UnicodeDecodeError as error:
            raise ModelFileError(
                self._path,
                f"string {index} of key {shown(self._key)} is not UTF-8 (byte {error.start} of it)",
            ) from None


Scalar: TypeAlias = int | float | bool | str
MetadataValue: TypeAlias = "Scalar | npt.NDArray[np.generic] | StringArray | list[MetadataValue]"


class Metadata(Mapping[str, MetadataValue]):
    """The metadata of one GGUF file, by key, in file order.

    A value is int, float, bool or str; an array is a read-only NumPy array, a `StringArray`, or a list for an
    array of arrays. Looking up text that is not UTF-8 raises ModelFileError naming the key.
    """

    __slots__ = ("_buffer", "_path", "_stored")

    def __init__(self, path: str | os.PathLike[str], header: bytearray, stored: dict[str, Stored]) -> None:
        self._path, self._buffer, self._stored = path, memoryview(header).toreadonly(), stored

    def __len__(self) -> int:
        return len(self._stored)

    def __iter__(self) -> Iterator[str]:
        return iter(self._stored)

    def __contains__(self, key: object) -> bool:
        return key in self._stored

    def __getitem__(self, key: str) -> MetadataValue:
        return self._decode(key, self._stored[key])

    def label(self, key: str) -> str:
        """The stored type of `key`: `u32`, `str`, `[f32]`, `[str]`, `[array]`. Raises KeyError."""
        return self._stored[key].label

    def stored(self, key: str) -> Stored | None:
        """Type and place of a value, None for a missing key."""
        return self._stored.get(key)

    def payload(self, key: str) -> bytes:
        """The stored bytes of a value, for telling whether two files agree on it."""
        stored = self._stored[key]
        return bytes(self._buffer[stored.start : stored.end])

    def _decode(self, key: str, stored: Stored) -> MetadataValue:
        if stored.type is ValueType.ARRAY:
            return self._decode_nested(key, stored)
        if stored.type is ValueType.STR:
            if stored.length is not None:
                return StringArray(self._path, key, self._buffer, stored)
            try:
                return str(self._buffer[stored.start : stored.end], "utf-8")
            except UnicodeDecodeError as error:
                raise ModelFileError(
                    self._path, f"the text of key {shown(key)} is not UTF-8 (byte {error.start} of it)"
                ) from None
        values = np.frombuffer(self._buffer[stored.start : stored.end], SCALAR_DTYPES[stored.type])
        if stored.length is not None:
            return values
        single: Scalar = values[0].item()
        return single

    def _decode_nested(self, key: str, stored: Stored) -> list[MetadataValue]:
        """An array of arrays: each element is its type, its count and its items."""
        values: list[MetadataValue] = []
        position = stored.start
        for _ in range(stored.length or 0):
            kind = ValueType(_U32.unpack_from(self._buffer, position)[0])
            count = _U64.unpack_from(self._buffer, position + 4)[0]
            start = position = position + 12
            if kind is ValueType.STR:
                for _ in range(count):
                    position += 8 + _U64.unpack_from(self._buffer, position)[0]
            else:
                position += count * SCALAR_DTYPES[kind].itemsize
            values.append(self._decode(key, Stored(kind, count, start, position)))
        return values
