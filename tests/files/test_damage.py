"""Random damage: whatever happens to a file's bytes, it opens or is refused with a ModelFileError."""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.files.mk import (
    ARR,
    BOOL,
    F32,
    STR,
    T_F32,
    T_Q8_0,
    U8,
    U16,
    U32,
    U64,
    base,
    kv,
    mk,
    ti,
)
from tests.files.test_bad_safetensors import GOOD, pack

from finback.errors import ModelFileError
from finback.formats.entry import ModelFiles, read_tensor
from finback.formats.gguf import open_gguf
from finback.formats.safetensors import open_safetensors

GGUF_FILE = mk(
    [
        *base()[0],
        kv("tokenizer.ggml.tokens", ARR, (STR, ["a", "bc", "", "def"])),
        kv("tokenizer.ggml.scores", ARR, (F32, [1.0, 2.0])),
        kv("deepseek4.block_count", U32, 3),
        kv("any.flag", BOOL, 1),
        kv("any.deep", ARR, (ARR, [(U8, [1, 2]), (STR, ["x"])])),
        kv("split.count", U16, 1),
        kv("any.big", U64, 2**63),
    ],
    [ti("a", [32, 2], T_Q8_0, 0), ti("b", [4, 2, 2], T_F32, 96), ti("c", [4, 2, 2], T_F32, 96)],
    bytes(96 + 64),
)
SAFETENSORS_FILE = pack(GOOD | {"__metadata__": {"format": "pt"}}, bytes(30))
Files = TypeVar("Files", bound=ModelFiles)
TELLING = [b"\0", b"\xff", b"\x01", b"\x7f", b"\x80", b'"', b"{", b"[", b",", b"-", b"."]
WIDE = [struct.pack("<Q", v) for v in (0, 1, 2**31, 2**32 - 1, 2**32, 2**62, 2**63, 2**64 - 1)]

damage = st.lists(
    st.tuples(
        st.sampled_from(["set", "cut", "insert", "drop"]),
        st.integers(0, 2000),
        st.one_of(st.sampled_from(TELLING + WIDE), st.binary(min_size=1, max_size=9)),
    ),
    min_size=1,
    max_size=4,
)


def damaged(data: bytes, steps: list[tuple[str, int, bytes]]) -> bytes:
    for kind, at, piece in steps:
        i = at % (len(data) + 1)
        if kind == "set":
            data = data[:i] + piece + data[i + len(piece) :]
        elif kind == "insert":
            data = data[:i] + piece + data[i:]
        elif kind == "drop":
            data = data[:i] + data[i + len(piece) :]
        else:
            data = data[:i]
    return data


def read_all(files: ModelFiles) -> None:
    for entry in files.tensors.values():
        assert read_tensor(files, entry).nbytes == entry.nbytes


def opened(call: Callable[[Path], Files], path: Path) -> Files | None:
    """What opening gives; None for a refusal, which must be short. Any other exception ends the test."""
    try:
        return call(path)
    except ModelFileError as error:
        message = str(error)
    assert len(message) < 400
    return None


def try_gguf(path: Path, data: bytes) -> None:
    path.write_bytes(data)
    files = opened(open_gguf, path)
    if files is None:
        return
    read_all(files)
    for key in files.metadata:
        with contextlib.suppress(ModelFileError):  # text that is not UTF-8 is found when it is read
            assert files.metadata[key] is not None
            if files.metadata.label(key) == "[str]":
                assert len(list(files.get_strings(key))) == len(files.get_strings(key))


def try_safetensors(path: Path, data: bytes) -> None:
    path.write_bytes(data)
    files = opened(open_safetensors, path)
    if files is not None:
        read_all(files)


FUZZ = settings(max_examples=400, deadline=None, derandomize=True,
                suppress_health_check=[HealthCheck.function_scoped_fixture])  # fmt: skip


@FUZZ
@given(damage)
def test_damaged_gguf(tmp_path: Path, steps: list[tuple[str, int, bytes]]) -> None:
    try_gguf(tmp_path / "f.gguf", damaged(GGUF_FILE, steps))


@FUZZ
@given(damage)
def test_damaged_safetensors(tmp_path: Path, steps: list[tuple[str, int, bytes]]) -> None:
    try_safetensors(tmp_path / "f.safetensors", damaged(SAFETENSORS_FILE, steps))


@pytest.mark.parametrize("value", [b"\0", b"\x01", b"\xff", WIDE[5], WIDE[7]])
def test_every_place_in_a_gguf(tmp_path: Path, value: bytes) -> None:
    for at in range(len(GGUF_FILE) - 160):
        try_gguf(tmp_path / "f.gguf", GGUF_FILE[:at] + value + GGUF_FILE[at + len(value) :])


@pytest.mark.parametrize("value", [b"\0", b"\xff", b'"', b"}", b"9", b"-", b"e"])
def test_every_place_in_a_safetensors(tmp_path: Path, value: bytes) -> None:
    for at in range(len(SAFETENSORS_FILE) - 30):
        try_safetensors(
            tmp_path / "f.safetensors", SAFETENSORS_FILE[:at] + value + SAFETENSORS_FILE[at + 1 :]
        )
