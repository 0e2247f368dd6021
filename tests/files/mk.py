"""Builds crafted GGUF files byte by byte, well formed or not.

Owns the smallest helpers that lay out a header field; whatever is wrong with a file is in the test that makes
it. Refuses to share code with the product's writer, which must not be able to make such files.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

U8, I8, U16, I16, U32, I32, F32, BOOL, STR, ARR, U64, I64, F64 = range(13)
FMT = {
    U8: "<B", I8: "<b", U16: "<H", I16: "<h", U32: "<I", I32: "<i",
    F32: "<f", BOOL: "<B", U64: "<Q", I64: "<q", F64: "<d",
}  # fmt: skip
T_F32, T_F16, T_Q8_0, T_Q2_K, T_Q4_K, T_Q6_K, T_IQ2_XXS, T_BF16, T_MXFP4 = 0, 1, 8, 10, 12, 14, 16, 30, 39


def s(text: str | bytes) -> bytes:
    """Length-prefixed bytes."""
    data = text.encode() if isinstance(text, str) else text
    return struct.pack("<Q", len(data)) + data


def val(kind: int, value: Any) -> bytes:
    """A metadata value; for ARR it is (element type, list)."""
    if kind == STR:
        return s(value)
    if kind == ARR:
        element, items = value
        return struct.pack("<IQ", element, len(items)) + b"".join(val(element, item) for item in items)
    return struct.pack(FMT[kind], value)


def kv(key: str | bytes, kind: int, value: Any) -> bytes:
    """A key, its type and its value."""
    return s(key) + struct.pack("<I", kind) + val(kind, value)


def ti(name: str | bytes, dims: Sequence[int], kind: int, offset: int) -> bytes:
    """A line of the tensor list; dims in GGUF order, the row first."""
    sizes = b"".join(struct.pack("<Q", d) for d in dims)
    return s(name) + struct.pack("<I", len(dims)) + sizes + struct.pack("<IQ", kind, offset)


def mk(
    kvs: Sequence[bytes],
    tis: Sequence[bytes],
    data: bytes = b"",
    magic: bytes = b"GGUF",
    ver: int = 3,
    n_t: int | None = None,
    n_kv: int | None = None,
    align: int = 32,
) -> bytes:
    """A whole file; the counts are those of the lists unless told otherwise."""
    counts = (len(tis) if n_t is None else n_t, len(kvs) if n_kv is None else n_kv)
    out = magic + struct.pack("<IQQ", ver, *counts) + b"".join(kvs) + b"".join(tis)
    if align:
        out += b"\0" * (-len(out) % align)
    return out + data


def base() -> tuple[list[bytes], list[bytes], bytes]:
    """Keys, tensors and data of the smallest well-formed file: one F32 tensor of 8 values, 192 bytes."""
    keys = [kv("general.architecture", STR, "deepseek4"), kv("general.alignment", U32, 32)]
    return keys, [ti("t.weight", [8], T_F32, 0)], struct.pack("<8f", *range(8))


def with_keys(*extra: bytes) -> bytes:
    """The smallest file with more keys."""
    keys, tensors, data = base()
    return mk(keys + list(extra), tensors, data)


def with_tensors(tensors: Sequence[bytes], nbytes: int) -> bytes:
    """The smallest file with these tensors instead of its own, and `nbytes` of data."""
    return mk(base()[0], tensors, bytes(nbytes))


def parts(count: int, *, tag: str = "a", tensors: int = 7, keys_in_all: bool = False) -> list[bytes]:
    """A split model: the first part has all metadata, the others the split keys, as splitters make them."""
    out = []
    for number in range(count):
        mine = [i for i in range(tensors) if i * count // tensors == number]
        keys = base()[0] + [kv("general.name", STR, tag)] if number == 0 or keys_in_all else []
        keys += [
            kv("split.no", U16, number),
            kv("split.count", U16, count),
            kv("split.tensors.count", I32, tensors),
        ]
        lines = [ti(f"blk.{i}.{tag}", [8], T_F32, 32 * at) for at, i in enumerate(mine)]
        out.append(mk(keys, lines, b"".join(struct.pack("<8f", *[float(i)] * 8) for i in mine)))
    return out


def write_parts(folder: Path, files: Sequence[bytes], stem: str = "tiny") -> list[Path]:
    """Writes parts under their names, last first so that creation order says nothing."""
    paths = [folder / f"{stem}-{i + 1:05d}-of-{len(files):05d}.gguf" for i in range(len(files))]
    for path, data in reversed(list(zip(paths, files, strict=True))):
        path.write_bytes(data)
    return paths
