"""What opening costs: little for a real model however large, and bounded for a file made to hurt.

Each hostile file is opened in a process of its own, whose growth in resident memory and time are measured.
"""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.files.mk import ARR, BOOL, F32, I32, STR, T_F32, U8, U32, base, kv, mk, s, ti, with_keys

from finback.formats import limits
from finback.formats.gguf import open_gguf
from finback.formats.safetensors import INDEX_NAME, open_folder

MOST_MB = 200
MOST_SECONDS = 5.0
HEADER = limits.GGUF_HEADER_BYTES - 4096  # what a header may take, with room for the fields around it

PROBE = """
import json, sys, time
sys.path[:0] = json.loads(sys.argv[2])
from finback.errors import ModelFileError
from finback.formats.gguf import open_gguf
from finback.formats.safetensors import open_safetensors
call = {"gguf": open_gguf, "safetensors": open_safetensors}[sys.argv[3]]
def peak():
    for line in open("/proc/self/status"):
        if line.startswith("VmHWM"):
            return int(line.split()[1]) / 1024
before, start = peak(), time.process_time()
try:
    call(sys.argv[1]); outcome = "opened"
except ModelFileError as error:
    outcome = str(error)
print(json.dumps([outcome, peak() - before, time.process_time() - start]))
"""


def cost(path: Path) -> tuple[str, float, float]:
    """Outcome, growth of resident memory at its peak in MB, and seconds, of opening the file."""
    kind = path.suffix[1:]
    command = [sys.executable, "-c", PROBE, str(path), json.dumps([p for p in sys.path if p]), kind]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    outcome, growth, seconds = json.loads(result.stdout)
    return outcome, growth, seconds


def array(element: int, count: int, payload: bytes) -> bytes:
    return s("any.list") + struct.pack("<IIQ", ARR, element, count) + payload


def many_empty_strings() -> bytes:
    return with_keys(array(STR, limits.GGUF_STRINGS, bytes(8 * limits.GGUF_STRINGS)))


def too_many_strings() -> bytes:
    half = limits.GGUF_STRINGS // 2
    first = array(STR, half, bytes(8 * half)).replace(b"any.list", b"any.more")
    return with_keys(first, array(STR, half + 1, bytes(8 * half + 8)))


def strings_without_long_runs() -> bytes:
    unit = s("ab") * 5 + s("")
    return with_keys(array(STR, limits.GGUF_STRINGS // 6 * 6, unit * (limits.GGUF_STRINGS // 6)))


def a_good_run_then_bad_ones() -> bytes:
    unit = s("ab") * 4200 + s("") * 600
    return with_keys(array(STR, limits.GGUF_STRINGS // 4800 * 4800, unit * (limits.GGUF_STRINGS // 4800)))


def a_wide_array() -> bytes:
    return with_keys(array(U8, HEADER, bytes(HEADER)))


def many_bools() -> bytes:
    return with_keys(array(BOOL, HEADER, bytes(HEADER)))


def inner_arrays() -> bytes:
    count = limits.GGUF_INNER_ARRAYS
    return with_keys(array(ARR, count, struct.pack("<IQ", U8, 0) * count))


def too_many_inner_arrays() -> bytes:
    return with_keys(array(ARR, HEADER // 12, struct.pack("<IQ", U8, 0) * (HEADER // 12)))


def many_keys() -> bytes:
    return with_keys(*[kv(f"key.{i:06d}" + "x" * 900, U8, 1) for i in range(limits.GGUF_KEYS - 2)])


def many_tensors() -> bytes:
    lines = [
        ti(f"tensor.{i:06d}" + "x" * 200, [1, 1, 1, 1], T_F32, 32 * i) for i in range(limits.GGUF_TENSORS)
    ]
    return mk(base()[0], lines, bytes(32 * limits.GGUF_TENSORS))


@pytest.mark.parametrize(
    ("make", "wanted"),
    [
        (many_empty_strings, "opened"),
        (too_many_strings, "key 'any.list' makes 4194305 strings"),
        (strings_without_long_runs, "opened"),
        (a_good_run_then_bad_ones, "opened"),
        (a_wide_array, "opened"),
        (many_bools, "opened"),
        (inner_arrays, "opened"),
        (too_many_inner_arrays, "holds more than 65536 arrays in arrays"),
        (many_keys, "opened"),
        (many_tensors, "opened"),
    ],
)
def test_gguf_headers_as_large_as_allowed(tmp_path: Path, make: Callable[[], bytes], wanted: str) -> None:
    path = tmp_path / "hostile.gguf"
    path.write_bytes(make())
    outcome, growth, seconds = cost(path)
    assert wanted in outcome
    assert growth < MOST_MB
    assert seconds < MOST_SECONDS


@pytest.mark.parametrize("element", [U8, STR, ARR, F32])
def test_a_sparse_giant(tmp_path: Path, element: int) -> None:
    path = tmp_path / "sparse.gguf"
    path.write_bytes(with_keys()[:24] + b"".join(base()[0][:1]) + array(element, 2**36, b""))
    os.truncate(path, 2**40)
    outcome, growth, seconds = cost(path)
    assert "'any.list'" in outcome
    assert growth < MOST_MB
    assert seconds < MOST_SECONDS


def json_file(raw: bytes) -> bytes:
    return struct.pack("<Q", len(raw)) + raw


def tiny_lists() -> bytes:
    return json_file(b"[" + b",".join([b"[]"] * 5_000_000) + b"]")


def lists_at_the_limit() -> bytes:
    return json_file(b"[" + b",".join([b"[]"] * (limits.JSON_MARKS // 2 - 1)) + b"]")


def keys_at_the_limit() -> bytes:
    return json_file(b"{" + b",".join(b'"%07d":1.5' % i for i in range(limits.JSON_MARKS - 2)) + b"}")


def objects_at_the_limit() -> bytes:
    return json_file(b"{" + b",".join(b'"%07d":{}' % i for i in range(limits.JSON_MARKS // 2 - 2)) + b"}")


def one_long_text() -> bytes:
    return json_file(b'{"a":"' + b"x" * (limits.JSON_BYTES - 100) + b'"}')


def one_long_text_beyond_ascii() -> bytes:
    return json_file(b'{"a":"' + "🐋".encode() * (limits.JSON_BYTES // 4 - 100) + b'"}')


def spaces() -> bytes:
    return json_file(b" " * (100 * 10**6))


def tensors_at_the_limit() -> bytes:
    count = limits.JSON_MARKS // 9
    lines = {
        f"layers.{i}": {"dtype": "F32", "shape": [1, 1], "data_offsets": [4 * i, 4 * i + 4]}
        for i in range(count)
    }
    return json_file(json.dumps(lines).encode()) + bytes(4 * count)


@pytest.mark.parametrize(
    "make",
    [
        tiny_lists, lists_at_the_limit, keys_at_the_limit, objects_at_the_limit, one_long_text,
        one_long_text_beyond_ascii, spaces, tensors_at_the_limit,
    ],
)  # fmt: skip
def test_safetensors_headers_as_large_as_allowed(tmp_path: Path, make: Callable[[], bytes]) -> None:
    path = tmp_path / "hostile.safetensors"
    path.write_bytes(make())
    outcome, growth, seconds = cost(path)
    assert (outcome == "opened") == (make is tensors_at_the_limit), outcome
    assert growth < MOST_MB
    assert seconds < MOST_SECONDS


def test_a_large_model_opens_fast(tmp_path: Path) -> None:
    """A vocabulary and tensor list as large as V4-Flash has, in a sparse file of 150 GB."""
    path = tmp_path / "flash.gguf"
    tokens = [f"token{i}"[: 3 + i % 8] for i in range(129_280)]
    merges = [f"{tokens[i]} {tokens[-i]}" for i in range(127_741)]
    keys = [
        kv("tokenizer.ggml.tokens", ARR, (STR, tokens)),
        kv("tokenizer.ggml.merges", ARR, (STR, merges)),
        kv("tokenizer.ggml.token_type", ARR, (I32, [1] * len(tokens))),
        kv("deepseek4.block_count", U32, 43),
    ]
    each = 113 * 2**20
    lines = [ti(f"blk.{i}.ffn_up.weight", [2**20, 113], 24, each * i) for i in range(1328)]
    path.write_bytes(mk(base()[0] + keys, lines))
    os.truncate(path, path.stat().st_size + 1328 * each)
    best = min(processor_seconds(lambda: open_gguf(path)) for _ in range(5))
    assert best < 0.05
    assert len(list(open_gguf(path).get_strings("tokenizer.ggml.merges"))) == len(merges)


def test_the_official_folder_opens_fast(tmp_path: Path) -> None:
    """As many tensors and shards as V4-Flash: 69,187 in 46."""
    shards = [f"model-{i + 1:05d}-of-00046.safetensors" for i in range(46)]
    weight_map: dict[str, str] = {}
    for i, shard in enumerate(shards):
        count = 1504 if i < 45 else 69_187 - 45 * 1504
        header = {}
        for j in range(count):
            name = f"layers.{i}.ffn.experts.{j // 6}.w{j % 3 + 1}.{'scale' if j // 3 % 2 else 'weight'}"
            header[name] = {"dtype": "I8", "shape": [2, 2048], "data_offsets": [4096 * j, 4096 * j + 4096]}
            weight_map[name] = shard
        (tmp_path / shard).write_bytes(json_file(json.dumps(header).encode()))
        os.truncate(tmp_path / shard, (tmp_path / shard).stat().st_size + 4096 * count)
    (tmp_path / INDEX_NAME).write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    assert len(open_folder(tmp_path).tensors) == 69_187
    best = min(processor_seconds(lambda: open_folder(tmp_path)) for _ in range(3))
    headers = [path.read_bytes()[8:].rstrip(b"\0") for path in tmp_path.glob("*.safetensors")]
    parsing = min(processor_seconds(lambda: [json.loads(raw) for raw in headers]) for _ in range(3))
    # Half a second on an idle machine; where parsing alone is slow, the neighbours are noisy.
    assert best < max(0.5, 6 * parsing)


def processor_seconds(call: Callable[[], object]) -> float:
    start = time.process_time()
    call()
    return time.process_time() - start
