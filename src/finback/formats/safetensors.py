"""Opens safetensors: one file, or a Hugging Face folder with one file or an index and its shards.

Owns the header (JSON of a checked size, no key twice, integers that are integers), the element types, the
rule that tensors fill the data without gap or overlap, and the agreement of an index with its shards. Refuses
names in an index that lead out of the folder, and does not touch tensor data: opening costs the headers only.
Source: the safetensors format; architecture spec, section 6.
"""

from __future__ import annotations

import gc
import json
import os
from collections.abc import Iterator, Mapping, Set
from contextlib import contextmanager
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from types import MappingProxyType
from typing import Final, NamedTuple, NoReturn

from finback.errors import ModelFileError, UnsupportedModelError, shown
from finback.formats import limits
from finback.formats.blocks import FORMATS
from finback.formats.entry import ModelFiles, TensorEntry, open_regular

SINGLE_NAME: Final = "model.safetensors"
INDEX_NAME: Final = "model.safetensors.index.json"
LENGTH_BYTES: Final = 8  # the header's length, ahead of the header
LEAST_BYTES: Final = LENGTH_BYTES + 2  # and an empty JSON object

# Name in the file -> key of FORMATS. Packed E2M1 expert weights are stored as I8.
DTYPES: Final[Mapping[str, str]] = MappingProxyType(
    {name: name for name in ("BOOL", "U8", "I8", "U16", "I16", "U32", "I32", "U64", "I64")}
    | {name: name for name in ("F16", "BF16", "F32", "F64")}
    | {"F8_E4M3": "FP8_E4M3", "F8_E8M0": "E8M0"}
)
_KINDS: Final = {name: (format, FORMATS[format].block_bytes) for name, format in DTYPES.items()}
_FIELDS: Final = frozenset({"dtype", "shape", "data_offsets"})


@dataclass(slots=True)
class SafetensorsFiles(ModelFiles):
    """An opened safetensors model; `TensorEntry.file` indexes `paths`."""

    metadata: list[dict[str, str]]  # the `__metadata__` of each file, empty where it has none


def open_safetensors(path: str | os.PathLike[str]) -> SafetensorsFiles:
    """Opens one safetensors file. Raises ModelFileError with the file and the field.

    A shape may be empty (a scalar); a dimension of 0 is refused.
    """
    header = _read_header(Path(path), 0)
    return SafetensorsFiles([Path(path)], header.tensors, [header.metadata])


def open_folder(path: str | os.PathLike[str]) -> SafetensorsFiles:
    """Opens the model in a Hugging Face folder: `model.safetensors`, or the shards its index lists.

    Every tensor must be in the one shard the index puts it in, and nowhere else; every shard must be there.
    Raises ModelFileError with the file and the tensor.
    """
    folder = Path(path)
    index, single = folder / INDEX_NAME, folder / SINGLE_NAME
    if not os.path.lexists(index):
        if not os.path.lexists(single):
            raise ModelFileError(folder, f"holds neither {SINGLE_NAME} nor {INDEX_NAME}")
        return open_safetensors(single)
    with _collector_paused():
        return _open_indexed(folder)


def _open_indexed(folder: Path) -> SafetensorsFiles:
    """Checks the index and that all its shards are there, and opens them."""
    index, single = folder / INDEX_NAME, folder / SINGLE_NAME
    shard_of = _read_index(index)
    names = sorted(set(shard_of.values()))
    if os.path.lexists(single) and SINGLE_NAME not in names:
        raise ModelFileError(
            folder,
            f"holds {SINGLE_NAME} and an index that does not list it: remove the one that is not wanted",
        )
    if len(names) > limits.SAFETENSORS_SHARDS:
        raise ModelFileError(index, f"lists {len(names)} shards, allowed are {limits.SAFETENSORS_SHARDS}")
    missing = [name for name in names if not os.path.lexists(folder / name)]
    if missing:
        raise ModelFileError(
            index, f"lists {len(names)} shards, {len(missing)} of them are missing, first {shown(missing[0])}"
        )
    return _open_shards(folder, names, shard_of)


@contextmanager
def _collector_paused() -> Iterator[None]:
    """Holds back Python's cycle collector while many small objects are made and none becomes garbage.

    It would walk all of them again and again: a quarter of the time it takes to open V4-Flash.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _open_shards(folder: Path, names: list[str], shard_of: dict[str, str]) -> SafetensorsFiles:
    """Reads all shards and compares what they hold with what the index says."""
    listed: dict[str, set[str]] = {name: set() for name in names}
    for tensor, name in shard_of.items():
        listed[name].add(tensor)
    model = SafetensorsFiles([folder / name for name in names], {}, [])
    for file, name in enumerate(names):
        header = _read_header(folder / name, file)
        held = header.tensors.keys()
        if held != listed[name]:
            _refuse_shard(folder / name, held - listed[name], listed[name] - held, shard_of)
        model.tensors.update(header.tensors)
        model.metadata.append(header.metadata)
    return model


def _refuse_shard(path: Path, extra: Set[str], lacking: Set[str], shard_of: dict[str, str]) -> NoReturn:
    """Raises for a shard that holds, or lacks, what the index says otherwise; names the first by name."""
    if extra:
        tensor = min(extra)
        where = shown(shard_of[tensor]) if tensor in shard_of else "no shard"
        raise ModelFileError(path, f"holds tensor {shown(tensor)}, which the index puts in {where}")
    raise ModelFileError(path, f"lacks tensor {shown(min(lacking))}, which {INDEX_NAME} says is in it")


def _read_index(path: Path) -> dict[str, str]:
    """The shard file name of each tensor."""
    with open_regular(path) as (descriptor, size):
        if size > limits.JSON_BYTES:
            raise ModelFileError(path, f"has {size} bytes, an index may have {limits.JSON_BYTES}")
        document = _parse_json(path, _read(path, descriptor, 0, size, "index"), "index")
    weight_map = document.get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise ModelFileError(path, "has no weight_map, an object of tensor names and shard names")
    for tensor, name in weight_map.items():
        if not isinstance(name, str):
            raise ModelFileError(
                path, f"puts tensor {shown(tensor)} in {_brief(name)}, which is no file name"
            )
    for name in set(weight_map.values()):
        plain = name == os.path.basename(name) and "\\" not in name and name.isprintable()
        if not plain or not name.endswith(".safetensors"):
            raise ModelFileError(
                path, f"lists the shard {shown(name)}; shards are .safetensors files in the same folder"
            )
    return weight_map


class _Header(NamedTuple):
    tensors: dict[str, TensorEntry]  # in the order of their data
    metadata: dict[str, str]


def _read_header(path: Path, file: int) -> _Header:
    """Reads and checks one file's header; `file` is the index its tensors get."""
    with open_regular(path) as (descriptor, size):
        if size < LEAST_BYTES:
            raise ModelFileError(
                path, f"has {size} bytes, a safetensors file has at least {LEAST_BYTES}: cut"
            )
        length = int.from_bytes(_read(path, descriptor, 0, LENGTH_BYTES, "header length"), "little")
        left = size - LENGTH_BYTES
        if length > left:
            raise ModelFileError(path, f"header length is {length}, {left} bytes are left: cut or damaged")
        if length > limits.JSON_BYTES:
            raise ModelFileError(path, f"header length is {length}, finback allows {limits.JSON_BYTES}")
        document = _parse_json(path, _read(path, descriptor, LENGTH_BYTES, length, "header"), "header")
    metadata = _check_metadata(path, document.pop("__metadata__", {}))
    start = LENGTH_BYTES + length
    entries = [_tensor(path, file, name, fields, start) for name, fields in document.items()]
    entries.sort(key=attrgetter("offset"))
    _check_cover(path, entries, start, size)
    return _Header({entry.name: entry for entry in entries}, metadata)


def _tensor(path: Path, file: int, name: str, fields: object, start: int) -> TensorEntry:
    """One checked line of the header; `start` is where the data begins.

    The checks are written out flat: this runs 69,187 times for V4-Flash. type() is asked and not isinstance,
    for which True is an int.
    """
    if not 1 <= len(name) <= limits.TENSOR_NAME_BYTES or not name.isprintable():
        raise ModelFileError(
            path, f"tensor name {shown(name)} must have 1 to {limits.TENSOR_NAME_BYTES} printable characters"
        )
    if type(fields) is not dict or fields.keys() != _FIELDS:
        raise ModelFileError(path, f"tensor {shown(name)} needs exactly dtype, shape and data_offsets")
    dtype, shape, offsets = fields["dtype"], fields["shape"], fields["data_offsets"]
    kind = _KINDS.get(dtype) if type(dtype) is str else None
    if kind is None:
        raise UnsupportedModelError(
            path, f"tensor {shown(name)} has dtype {_brief(dtype)}; known are {', '.join(DTYPES)}"
        )
    format, nbytes = kind
    well_shaped = type(shape) is list and len(shape) <= limits.SAFETENSORS_DIMENSIONS
    for size in shape if well_shaped else ():
        if type(size) is not int or not 0 < size <= limits.TENSOR_ELEMENTS:
            well_shaped = False
            break
        nbytes *= size
    if not well_shaped:
        most = limits.SAFETENSORS_DIMENSIONS
        raise ModelFileError(
            path,
            f"tensor {shown(name)} has shape {_brief(shape)}, wanted are up to {most} whole numbers from 1",
        )
    if (
        type(offsets) is not list
        or len(offsets) != 2
        or type(offsets[0]) is not int
        or type(offsets[1]) is not int
    ):
        raise ModelFileError(
            path, f"tensor {shown(name)} has data_offsets {_brief(offsets)}, wanted are two whole numbers"
        )
    begin, end = offsets
    if begin < 0 or end - begin != nbytes or nbytes > limits.TENSOR_ELEMENTS:
        raise ModelFileError(
            path,
            f"tensor {shown(name)}, {dtype} {shown(shape)}, takes {shown(nbytes)} bytes, "
            f"its data_offsets are {shown(offsets)}",
        )
    return TensorEntry(name, format, tuple(shape), file, start + begin, nbytes)


def _brief(value: object) -> str:
    """A parsed value for a message. Only flat ones are shown: `repr` of deep nesting may not come back."""
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, list) and any(isinstance(item, list | dict) for item in value):
        return "a list of lists or objects"
    return shown(value)


def _check_cover(path: Path, entries: list[TensorEntry], start: int, size: int) -> None:
    """Tensors sorted by offset must fill the file from `start` to its end, each byte once."""
    position, before = start, "the header"
    for entry in entries:
        if entry.offset != position:
            kind = "overlaps" if entry.offset < position else "leaves a gap after"
            raise ModelFileError(
                path,
                f"tensor {shown(entry.name)} {kind} {before}: it is at {entry.offset}, not at {position}",
            )
        position, before = entry.offset + entry.nbytes, entry.name
        if position > size:
            raise ModelFileError(
                path,
                f"tensor {shown(entry.name)} needs {entry.nbytes} bytes at {entry.offset}, "
                f"{max(size - entry.offset, 0)} are present: the file is cut",
            )
    if position != size:
        raise ModelFileError(
            path, f"has {size - position} bytes too many after {shown(before)}, its last tensor"
        )


def _check_metadata(path: Path, value: object) -> dict[str, str]:
    if not isinstance(value, dict) or not all(isinstance(text, str) for text in value.values()):
        raise ModelFileError(path, "__metadata__ must be an object whose values are texts")
    return value


def _read(path: Path, descriptor: int, offset: int, length: int, field: str) -> bytes:
    """`length` bytes from `offset` on; `length` has been checked against the file's size and a limit."""
    data = os.pread(descriptor, length, offset)
    if len(data) != length:
        raise ModelFileError(path, f"has become shorter while its {field} was read")
    return data


def _parse_json(path: Path, raw: bytes, field: str) -> dict[str, object]:
    """Parses a JSON object of bounded cost. Raises ModelFileError for anything that is not one.

    Memory is bounded before parsing: each comma, bracket and brace stands for at most one value and one
    container, and text that is not ASCII takes up to four bytes a character in Python.
    """
    if not raw.isascii() and 4 * len(raw) > limits.JSON_BYTES:
        most = limits.JSON_BYTES // 4
        raise ModelFileError(
            path, f"{field} has {len(raw)} bytes, finback allows {most} of text beyond ASCII"
        )
    marks = raw.count(b",") + raw.count(b"{") + raw.count(b"[")
    if marks > limits.JSON_MARKS:
        raise ModelFileError(path, f"{field} holds {marks} values or so, finback allows {limits.JSON_MARKS}")

    def unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
        values = dict(pairs)
        if len(values) != len(pairs):
            raise ModelFileError(path, f"{field} has the key {shown(_first_repeated(pairs))} twice")
        return values

    def refuse_constant(text: str) -> NoReturn:
        raise ModelFileError(path, f"{field} holds {text}, which JSON does not know")

    try:
        document = json.loads(raw.decode("utf-8"), object_pairs_hook=unique, parse_constant=refuse_constant)
    except UnicodeDecodeError as error:
        raise ModelFileError(path, f"{field} is not UTF-8 (byte {error.start} of it)") from None
    except RecursionError:
        raise ModelFileError(path, f"{field} is nested too deeply") from None
    except ValueError as error:  # not JSON, or an integer of thousands of digits
        raise ModelFileError(path, f"{field} is not JSON: {error}") from None
    if not isinstance(document, dict):
        raise ModelFileError(path, f"{field} is {_brief(document)}, wanted is a JSON object")
    return document


def _first_repeated(pairs: list[tuple[str, object]]) -> str:
    """The first key that was there before; there is one."""
    seen: set[str] = set()
    for key, _ in pairs:
        if key in seen:
            return key
        seen.add(key)
    raise AssertionError("no key is repeated")
