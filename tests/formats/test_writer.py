"""The writers: what they write, our readers and others read; and half a file is no file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import safetensors.numpy

from finback.errors import RequestError
from finback.formats.blocks import FORMATS, decode, encode
from finback.formats.entry import read_tensor
from finback.formats.gguf import open_gguf
from finback.formats.safetensors import DTYPES, INDEX_NAME, open_folder, open_safetensors
from finback.formats.writer import GgufWriter, SafetensorsFolderWriter, SafetensorsWriter

RNG = np.random.default_rng(0)
X = RNG.standard_normal((6, 256), np.float32)


def test_gguf_of_every_format(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    formats = ["F32", "F16", "BF16", "MXFP4", "Q8_0", "Q4_0", "Q4_K", "Q6_K"]
    with GgufWriter(path, "deepseek4") as writer:
        writer.add("deepseek4.block_count", "u32", 2)
        for name in formats:
            writer.declare(f"{name}.weight", name, (2, 3, 256))
        for name in formats:
            writer.write(f"{name}.weight", encode(name, X))
    assert [p.name for p in tmp_path.iterdir()] == ["model.gguf"]
    files = open_gguf(path)
    peer = {tensor.name: tensor for tensor in gguf.GGUFReader(path).tensors}
    assert files.version == 3
    for name in formats:
        entry = files.tensors[f"{name}.weight"]
        assert (entry.dtype, entry.shape) == (name, (2, 3, 256))
        assert entry.offset % 32 == 0
        values = decode(name, read_tensor(files, entry), 6, 256)
        np.testing.assert_array_equal(values, decode(name, encode(name, X), 6, 256))
        theirs = gguf.dequantize(peer[entry.name].data, gguf.GGMLQuantizationType[name])
        np.testing.assert_array_equal(theirs.reshape(6, 256), values)


def test_metadata_comes_back(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    values = {
        "a.u8": ("u8", 255), "a.i8": ("i8", -128), "a.u64": ("u64", 2**64 - 1), "a.i64": ("i64", -(2**63)),
        "a.f32": ("f32", 0.5), "a.f64": ("f64", 1e300), "a.one": ("f32", 1), "a.bool": ("bool", True),
        "a.str": ("str", "grüße"), "a.ints": ("[i32]", [-1, 2]), "a.floats": ("[f32]", [0.5, 1.0]),
        "a.bools": ("[bool]", [True, False]), "a.strs": ("[str]", ["x", ""]), "a.none": ("[u32]", []),
        "a.array": ("[u16]", np.arange(3)),
    }  # fmt: skip
    with GgufWriter(path, "deepseek4", alignment=64) as writer:
        for key, (kind, value) in values.items():
            writer.add(key, kind, value)
    files = open_gguf(path)
    for key, (kind, value) in values.items():
        assert files.metadata.label(key) == kind
        found = files.metadata[key]
        assert list(found) == list(value) if kind.startswith("[") else found == value
    assert files.get_str("general.architecture") == "deepseek4"
    assert files.get_int("general.alignment", 1, 1000) == 64


def test_tensors_come_in_pieces_and_aliases_share_bytes(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    data = encode("Q8_0", X)
    with GgufWriter(path, "deepseek4") as writer:
        writer.declare("blk.0.a", "Q8_0", X.shape)
        writer.alias("blk.1.a", "blk.0.a")
        writer.alias("blk.2.a", "blk.1.a")
        writer.declare("b", "F32", (3,))
        for row in data:
            writer.write("blk.0.a", row)
        writer.write("b", np.float32([1, 2, 3]))
    files = open_gguf(path)
    places = {(files.tensors[f"blk.{i}.a"].offset, files.tensors[f"blk.{i}.a"].nbytes) for i in range(3)}
    assert len(places) == 1
    np.testing.assert_array_equal(read_tensor(files, files.tensors["blk.2.a"]), data.ravel())
    np.testing.assert_array_equal(read_tensor(files, files.tensors["b"]).view(np.float32), [1, 2, 3])


def open_writer(kind: type, path: Path) -> Any:
    return kind(path, "deepseek4") if kind is GgufWriter else kind(path)


@pytest.mark.parametrize("kind", [GgufWriter, SafetensorsWriter])
def test_half_a_file_is_no_file(tmp_path: Path, kind: type) -> None:
    def write_half() -> None:
        with open_writer(kind, tmp_path / "m") as writer:
            writer.declare("a", "F32", (1,))
            writer.declare("b", "F32", (1,))
            writer.write("a", b"1234")

    def fail_halfway() -> None:
        with open_writer(kind, tmp_path / "m") as writer:
            writer.declare("a", "F32", (2,))
            writer.write("a", b"1234")
            raise ZeroDivisionError

    with pytest.raises(RequestError, match="'b' got 0 of its 4 bytes"):
        write_half()
    with pytest.raises(ZeroDivisionError):
        fail_halfway()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("kind", [GgufWriter, SafetensorsWriter])
@pytest.mark.parametrize(
    ("pieces", "problem"),
    [
        ([("b", b"1234")], "bytes of tensor 'b' came when 'a' was next"),
        ([("a", b"12345")], "tensor 'a' takes 4 bytes, got 5"),
        ([("a", b"12"), ("b", b"1234")], "bytes of tensor 'b' came when 'a' was next"),
        ([("a", b"1234"), ("a", b"1234")], "bytes of tensor 'a' came when 'b' was next"),
        ([("a", b"1234"), ("b", b"1234"), ("b", b"1")], "came when no tensor was next"),
        ([("c", b"1234")], "bytes of tensor 'c' came when 'a' was next"),
    ],
)
def test_bytes_out_of_turn_are_refused(
    tmp_path: Path, kind: type, pieces: list[tuple[str, bytes]], problem: str
) -> None:
    def write_all() -> None:
        with open_writer(kind, tmp_path / "m") as writer:
            writer.declare("a", "F32", (1,))
            writer.declare("b", "F32", (1,))
            for name, data in pieces:
                writer.write(name, data)

    with pytest.raises(RequestError, match=problem):
        write_all()
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_declared_after_the_first_byte(tmp_path: Path) -> None:
    with GgufWriter(tmp_path / "m", "deepseek4") as writer:
        writer.declare("a", "F32", (1,))
        writer.write("a", b"1234")
        with pytest.raises(RequestError, match="declared after data"):
            writer.declare("b", "F32", (1,))
        with pytest.raises(RequestError, match="added after data"):
            writer.add("x.y", "u8", 1)


def test_gguf_writer_refuses_what_a_file_cannot_hold(tmp_path: Path) -> None:
    writer = GgufWriter(tmp_path / "m", "deepseek4")
    writer.declare("there", "F32", (1,))
    for call, problem in [
        (lambda: writer.declare("there", "F32", (1,)), "declared twice"),
        (lambda: writer.declare("a", "FP8_E4M3", (1,)), "cannot be FP8_E4M3"),
        (lambda: writer.declare("a", "Q9", (1,)), "'Q9' is unknown"),
        (lambda: writer.declare("a", "Q8_0", (4, 31)), "no multiple of 32"),
        (lambda: writer.declare("a", "F32", ()), "0 dimensions"),
        (lambda: writer.declare("a", "F32", (1, 1, 1, 1, 1)), "5 dimensions"),
        (lambda: writer.declare("a", "F32", (0,)), "sizes from 1"),
        (lambda: writer.declare("", "F32", (1,)), "must take 1 to 256 bytes"),
        (lambda: writer.alias("a", "none"), "'none' is not declared"),
        (lambda: writer.add("general.architecture", "str", "x"), "is there already"),
        (lambda: writer.add("k", "u33", 1), "kind 'u33' is unknown"),
        (lambda: writer.add("k", "u8", 256), "does not fit u8"),
        (lambda: writer.add("k", "[u8]", np.array([1, 300])), "does not fit u8"),
        (lambda: writer.add("k", "f32", 1e39), "does not fit f32"),
        (lambda: writer.add("k", "u8", -1), "does not fit u8"),
        (lambda: writer.add("k", "u8", True), "True is no u8"),
        (lambda: writer.add("k", "u8", 1.0), "1.0 is no u8"),
        (lambda: writer.add("k", "str", 1), "1 is no str"),
        (lambda: writer.add("k", "[str]", 7), "7 is no str"),
        (lambda: writer.add("", "u8", 1), "must take 1 to"),
    ]:
        with pytest.raises(RequestError) as caught:
            call()
        assert problem in str(caught.value)
    with pytest.raises(RequestError, match="power of two"):
        GgufWriter(tmp_path / "m", "deepseek4", alignment=24)
    assert list(tmp_path.iterdir()) == []


def test_safetensors_reads_elsewhere(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    arrays = {"a": X, "b": np.arange(5, dtype=np.int64), "c": np.array(3, np.int8), "d": X.astype(np.float16)}
    kinds = {"a": "F32", "b": "I64", "c": "I8", "d": "F16"}
    with SafetensorsWriter(path) as writer:
        for name, array in arrays.items():
            writer.declare(name, kinds[name], array.shape)
        for name, array in arrays.items():
            writer.write(name, array)
    theirs = safetensors.numpy.load_file(path)
    files = open_safetensors(path)
    assert files.metadata == [{"format": "pt"}]
    for name, array in arrays.items():
        np.testing.assert_array_equal(theirs[name], array)
        assert files.tensors[name].shape == array.shape
        np.testing.assert_array_equal(
            read_tensor(files, files.tensors[name]), array.reshape(-1).view(np.uint8)
        )


def test_safetensors_of_the_peer_read_here(tmp_path: Path) -> None:
    path = tmp_path / "peer.safetensors"
    safetensors.numpy.save_file({"a": X, "s": np.array(1.5, np.float32)}, path, metadata={"k": "v"})
    files = open_safetensors(path)
    assert files.metadata == [{"k": "v"}]
    assert files.tensors["s"].shape == ()
    np.testing.assert_array_equal(read_tensor(files, files.tensors["a"]).view(np.float32).reshape(X.shape), X)


@pytest.mark.parametrize(("shard_bytes", "shards"), [(1, 5), (6144, 5), (2 * 6144, 3), (1 << 30, 1)])
def test_folders(tmp_path: Path, shard_bytes: int, shards: int) -> None:
    with SafetensorsFolderWriter(tmp_path, shard_bytes=shard_bytes) as writer:
        for i in range(5):
            writer.declare(f"t{i}", "F32", X.shape)
        for i in range(5):
            for row in X:
                writer.write(f"t{i}", row + i)
    files = open_folder(tmp_path)
    assert len(files.paths) == shards
    assert all(path.name.endswith(f"-of-{shards:05d}.safetensors") for path in files.paths)
    for i in range(5):
        got = read_tensor(files, files.tensors[f"t{i}"]).view(np.float32).reshape(X.shape)
        np.testing.assert_array_equal(got, X + i)
    index = json.loads((tmp_path / INDEX_NAME).read_text())
    assert index["metadata"] == {"total_size": 5 * X.nbytes}


@pytest.mark.parametrize(
    ("written", "problem"),
    [([], "'a' got no bytes"), (["a"], "'b' got no bytes"), (["c"], "'c' came when 'a' was next"),
     (["a", "c"], "'c' came when no tensor was next"), (["a", "a"], "'a' came when no tensor was next")],
)  # fmt: skip
def test_half_a_folder_has_no_index(tmp_path: Path, written: list[str], problem: str) -> None:
    def write_some() -> None:
        with SafetensorsFolderWriter(tmp_path, shard_bytes=1) as writer:
            for name in ("a", "b", "c"):
                writer.declare(name, "U8", (4,))
            for name in written:
                writer.write(name, b"1234")

    with pytest.raises(RequestError, match=problem):
        write_some()
    assert not (tmp_path / INDEX_NAME).exists()
    assert not list(tmp_path.glob(".*"))


def test_folders_hold_what_safetensors_can(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="cannot be Q8_0"):
        SafetensorsFolderWriter(tmp_path).declare("a", "Q8_0", (32,))


def test_every_safetensors_type_has_a_format() -> None:
    assert all(FORMATS[name].block == 1 for name in DTYPES.values())
