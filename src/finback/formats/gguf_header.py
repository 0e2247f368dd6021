"""Reads the header of one GGUF file: magic, version, metadata and tensor list, trusting nothing in it.

Owns every check of section 7 of the architecture for a single file: each length and count is compared with
what is left of the file before anything is read or allocated, each tensor's range with the file's size, and
each pair of ranges for overlap. Refuses to decode metadata values (`formats.metadata`) and to join the parts
of a split model (`formats.gguf`). Little-endian GGUF versions 2 and 3, which differ only in that version 3
may be big-endian; version 1 (32-bit lengths), unknown versions and big-endian files are refused by number.
"""

from __future__ import annotations

import os
import struct
from itertools import pairwise
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

from finback.errors import ModelFileError, UnsupportedModelError, shown
from finback.formats import limits
from finback.formats.blocks import GGML_FORMATS, row_bytes
from finback.formats.entry import TensorEntry, open_regular
from finback.formats.known_keys import wanted_types, word_of
from finback.formats.metadata import INTEGERS, SCALAR_DTYPES, Metadata, Stored, ValueType

MAGIC: Final = b"GGUF"
VERSIONS: Final = (2, 3)
FIXED_BYTES: Final = 24  # magic, version, tensor count, key count
DEFAULT_ALIGNMENT: Final = 32
OLDER_MAGICS: Final = (b"lmgg", b"fmgg", b"tjgg", b"algg")  # GGML, GGMF, GGJT, GGLA as little-endian numbers

FIRST_READ: Final = limits.MIB
READ_STEP: Final = 4 * limits.MIB
SCAN_WINDOW: Final = limits.MIB // 4  # bytes looked at together when skipping strings
WALKED_STRINGS: Final = 4096  # about as many as can be walked in the time one window takes

_U32: Final = struct.Struct("<I")
_U64: Final = struct.Struct("<Q")
_TYPE_OFFSET: Final = struct.Struct("<IQ")


class Header(NamedTuple):
    """What one GGUF file says about itself, checked."""

    version: int
    metadata: Metadata
    tensors: dict[str, TensorEntry]  # in file order, `file` as given to `read_header`


def read_header(path: Path, file: int) -> Header:
    """Reads and checks the header of one GGUF file; `file` is the index its tensors get.

    Raises ModelFileError naming the field, UnsupportedModelError for versions, byte orders and tensor types
    that finback does not know. Reads the header only, a megabyte at least; tensor data stays on disk.
    """
    with open_regular(path) as (descriptor, size):
        return _HeaderReader(path, descriptor, size).read(file)


class _HeaderReader:
    """A position in the header, and as many of the file's first bytes as have been needed so far."""

    def __init__(self, path: Path, descriptor: int, size: int) -> None:
        self.path, self.descriptor, self.size = path, descriptor, size
        self.buffer = bytearray()
        self.position = 0
        self.strings = 0  # met so far in arrays
        self.inner_arrays = 0  # met so far inside arrays

    def read(self, file: int) -> Header:
        version, tensor_count, key_count = self._fixed_part()
        stored: dict[str, Stored] = {}
        for index in range(key_count):
            key = self._name(limits.GGUF_KEY_BYTES, f"name of key {index}")
            if key in stored:
                raise self._error(f"key {shown(key)} is there twice")
            stored[key] = self._value(key)
            self._check_type(key, stored[key])
        alignment = self._alignment(stored)
        metadata_end = self.position
        tensors: dict[str, TensorEntry] = {}
        for index in range(tensor_count):
            entry = self._tensor(index, file)
            if entry.name in tensors:
                raise self._error(f"tensor {shown(entry.name)} is there twice")
            tensors[entry.name] = entry
        tensors = self._place(tensors, alignment)
        del self.buffer[metadata_end:]
        return Header(version, Metadata(self.path, self.buffer, stored), tensors)

    # ---- the file's bytes

    def _need(self, count: int, field: str) -> None:
        """Makes sure `count` bytes from the position on are in the buffer; refuses if the file has fewer."""
        end = self.position + count
        if end <= len(self.buffer):
            return
        if end > self.size:
            left = max(self.size - self.position, 0)
            raise self._error(
                f"{field} needs {count} bytes at {self.position}, {left} are left: cut or damaged"
            )
        if end > limits.GGUF_HEADER_BYTES:
            raise self._error(f"{field} lies beyond the {limits.GGUF_HEADER_BYTES} bytes a header may take")
        doubled = max(end, 2 * len(self.buffer), FIRST_READ)
        target = min(doubled, self.size, limits.GGUF_HEADER_BYTES)
        while len(self.buffer) < target:
            step = min(READ_STEP, target - len(self.buffer))
            chunk = os.pread(self.descriptor, step, len(self.buffer))
            if not chunk:
                raise self._error(f"has become shorter than {self.size} bytes while its header was read")
            self.buffer += chunk

    def _u32(self, field: str) -> int:
        self._need(4, field)
        value: int = _U32.unpack_from(self.buffer, self.position)[0]
        self.position += 4
        return value

    def _u64(self, field: str) -> int:
        self._need(8, field)
        value: int = _U64.unpack_from(self.buffer, self.position)[0]
        self.position += 8
        return value

    def _name(self, limit: int, field: str) -> str:
        """A key or a tensor name: 1 to `limit` bytes of UTF-8."""
        length = self._u64(f"length of the {field}")
        if not 1 <= length <= limit:
            raise self._error(f"the {field} is {length} bytes long, allowed are 1 to {limit}")
        self._need(length, field)
        start, self.position = self.position, self.position + length
        try:
            return self.buffer[start : self.position].decode("utf-8")
        except UnicodeDecodeError:
            raise self._error(f"the {field} is not UTF-8: {shown(bytes(self.buffer[start:][:20]))}") from None

    def _error(self, problem: str) -> ModelFileError:
        return ModelFileError(self.path, problem)

    # ---- fixed part

    def _fixed_part(self) -> tuple[int, int, int]:
        """Version, number of tensors and number of keys."""
        if self.size < FIXED_BYTES:
            raise self._error(
                f"has {self.size} bytes, a GGUF header takes at least {FIXED_BYTES}: cut or empty"
            )
        self._need(FIXED_BYTES, "header")
        self._check_magic(bytes(self.buffer[:4]))
        self.position = 4
        version = self._u32("version")
        if version & 0xFFFFFF == 0 and version:
            raise UnsupportedModelError(
                self.path, f"is a big-endian GGUF (version {version >> 24}); convert it to little-endian"
            )
        if version not in VERSIONS:
            raise UnsupportedModelError(
                self.path, f"has GGUF version {version}; finback reads versions 2 and 3"
            )
        tensor_count, key_count = self._u64("tensor count"), self._u64("key count")
        self._check_count("key count", key_count, limits.GGUF_KEYS, at_least=14)
        self._check_count("tensor count", tensor_count, limits.GGUF_TENSORS, at_least=33)
        return version, tensor_count, key_count

    def _check_magic(self, magic: bytes) -> None:
        if magic == MAGIC:
            return
        if magic == MAGIC[::-1]:
            raise UnsupportedModelError(self.path, "is a big-endian GGUF; convert it to little-endian")
        if magic in OLDER_MAGICS:
            raise UnsupportedModelError(
                self.path, f"is an older GGML file (magic {magic!r}); convert the model to GGUF again"
            )
        raise self._error(f"is not a GGUF file: it starts with {magic!r}, not {MAGIC!r}")

    def _check_count(self, field: str, count: int, limit: int, *, at_least: int) -> None:
        """Refuses a count of records, `at_least` bytes each, beyond the limit or the rest of the file."""
        if count > limit:
            raise self._error(f"{field} is {count}, allowed are at most {limit}")
        if count * at_least > self.size - self.position:
            raise self._error(f"{field} is {count}, but only {self.size - self.position} bytes are left")

    # ---- metadata values

    def _value(self, key: str) -> Stored:
        """Walks one value without decoding it."""
        kind = self._type(key)
        if kind is ValueType.ARRAY:
            return self._array(key, depth=1)
        if kind is ValueType.STR:
            count = self._u64(f"text length of key {shown(key)}")
        else:
            count = SCALAR_DTYPES[kind].itemsize
        self._need(count, f"value of key {shown(key)}")
        start, self.position = self.position, self.position + count
        if kind is ValueType.BOOL:
            self._check_bools(key, start)
        return Stored(kind, None, start, self.position)

    def _type(self, key: str) -> ValueType:
        number = self._u32(f"value type of key {shown(key)}")
        try:
            return ValueType(number)
        except ValueError:
            raise self._error(f"key {shown(key)} has value type {number}, known are 0 to 12") from None

    def _array(self, key: str, depth: int) -> Stored:
        self.inner_arrays += depth > 1
        if depth > limits.GGUF_ARRAY_DEPTH:
            raise self._error(f"key {shown(key)} nests arrays more than {limits.GGUF_ARRAY_DEPTH} deep")
        if self.inner_arrays > limits.GGUF_INNER_ARRAYS:
            raise self._error(f"key {shown(key)} holds more than {limits.GGUF_INNER_ARRAYS} arrays in arrays")
        kind = self._type(key)
        field = f"array length of key {shown(key)}"
        count = self._u64(field)
        start = self.position
        if kind is ValueType.ARRAY:
            self._check_count(field, count, limits.GGUF_HEADER_BYTES, at_least=12)
            for _ in range(count):
                self._array(key, depth + 1)
        elif kind is ValueType.STR:
            self._check_count(field, count, limits.GGUF_HEADER_BYTES, at_least=8)
            self.strings += count
            if self.strings > limits.GGUF_STRINGS:
                raise self._error(
                    f"key {shown(key)} makes {self.strings} strings, allowed are {limits.GGUF_STRINGS}"
                )
            self._skip_strings(key, count)
        else:
            nbytes = count * SCALAR_DTYPES[kind].itemsize
            self._need(nbytes, f"array of {count} {kind.label} of key {shown(key)}")
            self.position += nbytes
            if kind is ValueType.BOOL:
                self._check_bools(key, start)
        return Stored(kind, count, start, self.position)

    def _check_bools(self, key: str, start: int) -> None:
        if start == self.position:
            return
        largest = int(np.frombuffer(self.buffer, np.uint8, self.position - start, start).max())
        if largest > 1:
            raise self._error(f"key {shown(key)} holds a bool of value {largest}, allowed are 0 and 1")

    def _skip_strings(self, key: str, count: int) -> None:
        """Moves past `count` strings, checking each length.

        A vocabulary and its merges are some 250,000 strings, and a step of Python for each would be most of
        the time it takes to open a model. So runs of short strings are found with NumPy; where there are none
        (long or empty strings, zero bytes in the text) a growing number is walked before the next try.
        """
        done, walk = 0, WALKED_STRINGS
        while done < count:
            run = self._skip_short_strings(count - done)
            done += run
            if run >= WALKED_STRINGS:
                walk = WALKED_STRINGS
                continue
            steps = min(walk, count - done)
            self._walk_strings(key, done, steps)
            done, walk = done + steps, 2 * walk

    def _walk_strings(self, key: str, first: int, count: int) -> None:
        """Moves past strings `first` to `first + count - 1` one by one."""
        buffer, position = self.buffer, self.position
        for index in range(first, first + count):
            if position + 8 > len(buffer):
                self.position = position
                self._need(8, f"length of string {index} of key {shown(key)}")
            end = position + 8 + _U64.unpack_from(buffer, position)[0]
            if end > len(buffer):
                self.position = position
                self._need(end - position, f"string {index} of key {shown(key)}")
            position = end
        self.position = position

    def _skip_short_strings(self, most: int) -> int:
        """Moves past a run of strings of 1 to 255 bytes inside the buffer, at most `most`; returns how many.

        The length of such a string is one byte and seven zeros. Positions that look like that are exactly the
        strings' starts if each lies where the one before it ends, which is checked; the run ends where not.
        """
        window = np.frombuffer(self.buffer[self.position : self.position + SCAN_WINDOW], np.uint8)
        if len(window) < 9:
            return 0
        zero = window == 0
        two = zero[:-1] & zero[1:]
        four = two[:-2] & two[2:]  # zero at i to i + 3
        starts = np.flatnonzero(four[1:-3] & four[4:])[:most]  # zero at i + 1 to i + 7
        if not len(starts) or starts[0] != 0:
            return 0
        ends = starts + 8 + window[starts]
        linked = np.append(ends[:-1] == starts[1:], False)
        run = int(np.argmin(linked)) + 1
        if ends[run - 1] > len(window):
            run -= 1
        self.position += int(ends[run - 1]) if run else 0
        return run

    def _check_type(self, key: str, stored: Stored) -> None:
        wanted = wanted_types(key)
        if wanted is not None and word_of(stored) not in wanted:
            raise self._error(f"key {shown(key)} has type {stored.label}, wanted is {' or '.join(wanted)}")

    def _alignment(self, stored: dict[str, Stored]) -> int:
        place = stored.get("general.alignment")
        if place is None:
            return DEFAULT_ALIGNMENT
        assert place.type in INTEGERS, "the type of a known key has been checked"
        value = int.from_bytes(self.buffer[place.start : place.end], "little")
        lowest, highest = limits.GGUF_ALIGNMENT
        if not lowest <= value <= highest or value & (value - 1):
            raise self._error(
                f"general.alignment is {value}, allowed are powers of two from {lowest} to {highest}"
            )
        return value

    # ---- tensors

    def _tensor(self, index: int, file: int) -> TensorEntry:
        """One line of the tensor list; the offset is still relative to the data."""
        name = self._name(limits.TENSOR_NAME_BYTES, f"name of tensor {index}")
        field = f"tensor {shown(name)}"
        rank = self._u32(f"number of dimensions of {field}")
        if not 1 <= rank <= limits.GGUF_DIMENSIONS:
            raise self._error(f"{field} has {rank} dimensions, allowed are 1 to {limits.GGUF_DIMENSIONS}")
        self._need(8 * rank + 12, f"shape of {field}")
        dimensions = struct.unpack_from(f"<{rank}Q", self.buffer, self.position)
        number, offset = _TYPE_OFFSET.unpack_from(self.buffer, self.position + 8 * rank)
        self.position += 8 * rank + 12
        entry = GGML_FORMATS.get(number)
        if entry is None:
            raise UnsupportedModelError(
                self.path, f"{field} has element type {number}, which finback does not know"
            )
        elements = 1
        for size in dimensions:
            if size == 0:
                raise self._error(f"{field} has shape {list(dimensions)}: a dimension of 0 is refused")
            elements *= size
        if elements > limits.TENSOR_ELEMENTS:
            raise self._error(f"{field} has shape {list(dimensions)}: {elements} values are too many")
        if dimensions[0] % entry.block:
            raise self._error(
                f"{field} has rows of {dimensions[0]} values, "
                f"no multiple of {entry.block}, the block of {entry.name}"
            )
        nbytes = row_bytes(entry.name, dimensions[0]) * (elements // dimensions[0])
        return TensorEntry(name, entry.name, tuple(reversed(dimensions)), file, offset, nbytes)

    def _place(self, tensors: dict[str, TensorEntry], alignment: int) -> dict[str, TensorEntry]:
        """Tensors with absolute offsets, after checking alignment, the file's end and overlap.

        Tensors with exactly the same range are tied (several names for one matrix) and allowed.
        """
        start = -(-self.position // alignment) * alignment
        placed: dict[str, TensorEntry] = {}
        for entry in tensors.values():
            if entry.offset % alignment:
                raise self._error(
                    f"tensor {shown(entry.name)} has offset {entry.offset}, "
                    f"no multiple of the alignment, {alignment}"
                )
            at = start + entry.offset
            if at + entry.nbytes > self.size:
                raise self._error(
                    f"tensor {shown(entry.name)} needs {entry.nbytes} bytes at {at}, "
                    f"{max(self.size - at, 0)} are present: the file is cut or damaged"
                )
            placed[entry.name] = entry._replace(offset=at)
        for first, second in pairwise(
            sorted(placed.values(), key=lambda entry: (entry.offset, entry.nbytes))
        ):
            tied = first.offset == second.offset and first.nbytes == second.nbytes
            if not tied and first.offset + first.nbytes > second.offset:
                raise self._error(f"tensors {shown(first.name)} and {shown(second.name)} overlap")
        self._check_tail(
            max((entry.offset + entry.nbytes for entry in placed.values()), default=self.position)
        )
        return placed

    def _check_tail(self, end: int) -> None:
        """Recognises parts of a split model that were joined with cat: another header where the data ends."""
        tail = os.pread(self.descriptor, limits.GGUF_ALIGNMENT[1] + 8, end)
        at = tail.find(MAGIC)
        if at >= 0 and len(tail) >= at + 8 and _U32.unpack_from(tail, at + 4)[0] in VERSIONS:
            raise self._error(
                f"a second GGUF header starts at byte {end + at}: split files must not be joined with cat; "
                "keep the parts beside each other and open the first one"
            )
