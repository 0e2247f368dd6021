"""What a well-formed GGUF file gives: values of every type, getters, laziness, and agreement with gguf-py."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest
from tests.files.mk import (
    ARR,
    BOOL,
    F32,
    F64,
    I8,
    I16,
    I32,
    I64,
    STR,
    U8,
    U16,
    U32,
    U64,
    kv,
    mk,
    ti,
    with_keys,
)

from finback.errors import ModelFileError
from finback.formats.entry import read_tensor
from finback.formats.gguf import GgufFile, open_gguf
from finback.formats.metadata import StringArray


@pytest.fixture
def everything(tmp_path: Path) -> GgufFile:
    """One key of each type, and arrays."""
    path = tmp_path / "all.gguf"
    path.write_bytes(
        with_keys(
            kv("k.u8", U8, 255),
            kv("k.i8", I8, -128),
            kv("k.u16", U16, 65535),
            kv("k.i16", I16, -32768),
            kv("k.u32", U32, 2**32 - 1),
            kv("k.i32", I32, -(2**31)),
            kv("k.f32", F32, 0.5),
            kv("k.true", BOOL, 1),
            kv("k.false", BOOL, 0),
            kv("k.str", STR, "grüße\0!"),
            kv("k.u64", U64, 2**64 - 1),
            kv("k.i64", I64, -(2**63)),
            kv("k.f64", F64, 1e300),
            kv("k.nan", F32, float("nan")),
            kv("k.ints", ARR, (I16, [-1, 2, 3])),
            kv("k.floats", ARR, (F64, [0.5, -0.5])),
            kv("k.bools", ARR, (BOOL, [1, 0])),
            kv("k.empty", ARR, (U8, [])),
            kv("k.strs", ARR, (STR, ["a", "", "é"])),
            kv("k.nested", ARR, (ARR, [(U8, [1, 2]), (STR, ["x", "yz"]), (I64, [])])),
            kv("k.bad", STR, b"ok \xff"),
            kv("k.bads", ARR, (STR, ["fine", b"\xc3("])),
        )
    )
    return open_gguf(path)


def test_values_of_every_type(everything: GgufFile) -> None:
    meta = everything.metadata
    wanted = {
        "k.u8": 255, "k.i8": -128, "k.u16": 65535, "k.i16": -32768, "k.u32": 2**32 - 1, "k.i32": -(2**31),
        "k.f32": 0.5, "k.true": True, "k.false": False, "k.str": "grüße\0!", "k.u64": 2**64 - 1,
        "k.i64": -(2**63), "k.f64": 1e300,
    }  # fmt: skip
    for key, value in wanted.items():
        assert meta[key] == value
        assert type(meta[key]) is type(value)
    assert meta["k.ints"].tolist() == [-1, 2, 3]
    assert meta["k.floats"].tolist() == [0.5, -0.5]
    assert meta["k.bools"].tolist() == [True, False]
    assert meta["k.empty"].tolist() == []
    assert not meta["k.ints"].flags.writeable
    assert list(meta["k.strs"]) == ["a", "", "é"]
    nested = meta["k.nested"]
    assert [list(item) for item in nested] == [[1, 2], ["x", "yz"], []]
    assert (meta.label("k.u8"), meta.label("k.ints"), meta.label("k.nested")) == ("u8", "[i16]", "[array]")
    assert "k.none" not in meta
    assert len(meta) == len(list(meta)) == 24


def test_text_that_is_not_utf8_names_its_key(everything: GgufFile) -> None:
    with pytest.raises(ModelFileError, match=r"text of key 'k\.bad' is not UTF-8 \(byte 3"):
        everything.metadata["k.bad"]
    strings = everything.get_strings("k.bads")
    assert strings[0] == "fine"
    with pytest.raises(ModelFileError, match=r"string 1 of key 'k\.bads' is not UTF-8"):
        list(strings)


def test_string_arrays_are_sequences(everything: GgufFile) -> None:
    strings = everything.get_strings("k.strs")
    assert isinstance(strings, StringArray)
    assert len(strings) == 3
    assert (strings[2], strings[-3], strings[1:]) == ("é", "a", ["", "é"])
    assert "é" in strings
    for index in (3, -4):
        with pytest.raises(IndexError):
            strings[index]


def test_getters_give_values(everything: GgufFile) -> None:
    f = everything
    assert f.get_int("k.i16", -40000, 0) == -32768
    assert f.get_int("k.u64", 0, 2**64) == 2**64 - 1
    assert f.get_int("none", 0, 1, default=1) == 1
    assert f.get_float("k.f64", 0, 1e308) == 1e300
    assert f.get_float("none", 0, 1, default=0.25) == 0.25
    assert f.get_bool("k.true") is True
    assert f.get_bool("none", default=False) is False
    assert f.get_str("k.str") == "grüße\0!"
    assert f.get_str("none", default="") == ""
    assert f.get_ints("k.ints", -1, 3, length=3) == [-1, 2, 3]
    assert f.get_ints("k.u8", 0, 255, length=4) == [255] * 4
    assert f.get_ints("k.u8", 0, 255) == [255]
    assert f.get_floats("k.floats", -1, 1) == [0.5, -0.5]
    assert f.get_floats("k.f32", 0, 1, length=2) == [0.5, 0.5]


@pytest.mark.parametrize(
    ("call", "problem"),
    [
        (lambda f: f.get_int("k.none", 0, 1), "key 'k.none' is missing, wanted is int"),
        (lambda f: f.get_int("k.f32", 0, 1), "key 'k.f32' has type f32, wanted is int"),
        (lambda f: f.get_int("k.f32", 0, 1, default=3), "key 'k.f32' has type f32"),
        (lambda f: f.get_int("k.true", 0, 1), "key 'k.true' has type bool, wanted is int"),
        (lambda f: f.get_int("k.ints", 0, 1), "has type [i16], wanted is int"),
        (lambda f: f.get_int("k.u8", 0, 254), "key 'k.u8' is 255, allowed are 0 to 254"),
        (lambda f: f.get_float("k.u8", 0, 1), "has type u8, wanted is float"),
        (lambda f: f.get_float("k.nan", -1e9, 1e9), "key 'k.nan' is nan, allowed are"),
        (lambda f: f.get_float("k.f32", 0.6, 1), "key 'k.f32' is 0.5, allowed are 0.6 to 1"),
        (lambda f: f.get_bool("k.u8"), "has type u8, wanted is bool"),
        (lambda f: f.get_str("k.u8"), "has type u8, wanted is str"),
        (lambda f: f.get_strings("k.str"), "has type str, wanted is [str]"),
        (lambda f: f.get_ints("k.ints", 0, 9), "key 'k.ints' is -1, allowed are 0 to 9"),
        (lambda f: f.get_ints("k.ints", -9, 9, length=4), "has 3 values, wanted are 4"),
        (lambda f: f.get_ints("k.floats", -9, 9), "has type [f64], wanted is int or [int]"),
        (lambda f: f.get_floats("k.ints", -9, 9), "has type [i16], wanted is float or [float]"),
    ],
)
def test_getters_refuse(everything: GgufFile, call: object, problem: str) -> None:
    assert callable(call)
    with pytest.raises(ModelFileError) as caught:
        call(everything)
    assert problem in str(caught.value)
    assert "all.gguf" in str(caught.value)


def test_shapes_are_row_major_and_offsets_absolute(tmp_path: Path) -> None:
    path = tmp_path / "t.gguf"
    path.write_bytes(mk([], [ti("a", [32, 3, 2], 8, 0), ti("b", [4], 0, 224)], bytes(204 + 20 + 16)))
    files = open_gguf(path)
    a, b = files.tensors["a"], files.tensors["b"]
    assert (a.dtype, a.shape, a.nbytes, a.file) == ("Q8_0", (2, 3, 32), 204, 0)
    assert (b.dtype, b.shape, b.nbytes) == ("F32", (4,), 16)
    assert b.offset == a.offset + 224
    assert b.offset + b.nbytes == path.stat().st_size


@pytest.mark.parametrize(
    "strings",
    [
        ["x"] * 50_000,
        [chr(97 + i % 26) * (i % 300) for i in range(30_000)],
        ["" for _ in range(20_000)],
        ["a\0b\0\0\0\0\0\0\0\0c", "\0" * 20, ""] * 5000,
        ["w" * 255, "w" * 256] * 2000,
        ["tok"] * 20_000 + ["long" * 100_000] + ["tok"] * 20_000,
    ],
    ids=["short", "mixed", "empty", "zeros", "boundary", "one long"],
)
def test_strings_of_all_kinds_are_skipped_right(tmp_path: Path, strings: list[str]) -> None:
    path = tmp_path / "s.gguf"
    path.write_bytes(with_keys(kv("a.before", ARR, (STR, strings)), kv("a.after", U32, 77)))
    files = open_gguf(path)
    assert files.metadata["a.after"] == 77
    assert list(files.get_strings("a.before")) == strings
    assert files.get_strings("a.before")[len(strings) // 2] == strings[len(strings) // 2]


def test_a_file_of_the_gguf_package_reads_the_same(tmp_path: Path) -> None:
    path = tmp_path / "peer.gguf"
    rng = np.random.default_rng(0)
    writer = gguf.GGUFWriter(path, "deepseek4")
    writer.add_uint32("deepseek4.block_count", 2)
    writer.add_array("tokenizer.ggml.tokens", ["a", "bc", "ü"])
    writer.add_array("tokenizer.ggml.scores", [0.5, 1.5, -2.0])
    arrays = {"a": rng.standard_normal((3, 64), np.float32), "b": rng.standard_normal(5).astype(np.float32)}
    for name, array in arrays.items():
        writer.add_tensor(name, array)
    packed = gguf.quantize(arrays["a"], gguf.GGMLQuantizationType.Q8_0)
    writer.add_tensor("q", packed, raw_dtype=gguf.GGMLQuantizationType.Q8_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()

    files = open_gguf(path)
    assert files.get_str("general.architecture") == "deepseek4"
    assert files.get_int("deepseek4.block_count", 1, 100) == 2
    assert list(files.get_strings("tokenizer.ggml.tokens")) == ["a", "bc", "ü"]
    assert files.get_floats("tokenizer.ggml.scores", -9, 9) == [0.5, 1.5, -2.0]
    for name, array in arrays.items():
        assert files.tensors[name].shape == array.shape
        np.testing.assert_array_equal(read_tensor(files, files.tensors[name]).view(np.float32), array.ravel())
    assert (files.tensors["q"].dtype, files.tensors["q"].shape) == ("Q8_0", (3, 64))
    np.testing.assert_array_equal(read_tensor(files, files.tensors["q"]), packed.ravel())
