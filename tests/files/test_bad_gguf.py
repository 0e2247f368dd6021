"""Cut, lying and foreign GGUF files: each is refused in one sentence that names the file and the field."""

from __future__ import annotations

import os
import struct
from pathlib import Path

import pytest
from tests.files.mk import (
    ARR,
    BOOL,
    F32,
    F64,
    I8,
    STR,
    T_F32,
    T_Q4_K,
    T_Q8_0,
    U8,
    U16,
    U32,
    U64,
    base,
    kv,
    mk,
    s,
    ti,
    val,
    with_keys,
    with_tensors,
)

from finback.errors import ModelFileError, UnsupportedModelError
from finback.formats.entry import read_tensor
from finback.formats.gguf import open_gguf


def refusal(folder: Path, data: bytes, kind: type[ModelFileError] = ModelFileError) -> str:
    """The message with which these bytes are refused; it must name the file and be short."""
    path = folder / "bad.gguf"
    path.write_bytes(data)
    with pytest.raises(kind) as caught:
        open_gguf(path)
    message = str(caught.value)
    assert "bad.gguf" in message
    assert len(message) < 400
    return message


def opens(folder: Path, data: bytes) -> None:
    path = folder / "good.gguf"
    path.write_bytes(data)
    files = open_gguf(path)
    for value in files.metadata.values():
        assert value is not None
    for entry in files.tensors.values():
        assert read_tensor(files, entry).nbytes == entry.nbytes


# ---- cut files


@pytest.mark.parametrize("length", [0, 1, 3, 4, 5, 8, 16, 23])
def test_a_few_bytes(tmp_path: Path, length: int) -> None:
    assert f"has {length} bytes" in refusal(tmp_path, mk(*base())[:length])


def test_cut_at_every_byte(tmp_path: Path) -> None:
    keys, _, _ = base()
    tensors = [ti(f"t{i}.weight", [32, 2], T_Q8_0, 96 * i) for i in range(3)]
    extra = [
        kv("tokenizer.ggml.tokens", ARR, (STR, ["a", "", "long" * 90])),
        kv("x.y", ARR, (F32, [1.0, 2.0])),
    ]
    whole = mk(keys + extra, tensors, bytes(260))  # 96 + 96 + 68
    opens(tmp_path, whole)
    for length in range(len(whole)):
        message = refusal(tmp_path, whole[:length])
        if length >= len(whole) - 260:
            assert "needs 68 bytes" in message
            assert "are present" in message


@pytest.mark.parametrize("share", [25, 50, 75, 99])
def test_cut_data_names_the_first_tensor_without_its_bytes(tmp_path: Path, share: int) -> None:
    tensors = [ti(f"t{i}.weight", [1024], T_F32, 4096 * i) for i in range(3)]
    whole = with_tensors(tensors, 3 * 4096)
    cut = len(whole) * share // 100
    start = len(whole) - 3 * 4096
    lacking = next(i for i in range(3) if start + 4096 * (i + 1) > cut)
    present = max(cut - start - 4096 * lacking, 0)
    message = refusal(tmp_path, whole[:cut])
    assert f"'t{lacking}.weight' needs 4096 bytes" in message
    assert f"{present} are present" in message


def test_one_byte_short(tmp_path: Path) -> None:
    message = refusal(tmp_path, mk(*base())[:-1])
    assert "'t.weight' needs 32 bytes" in message
    assert "31 are present" in message


def test_a_file_that_shrinks_after_opening(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(mk(*base()))
    files = open_gguf(path)
    os.truncate(path, 170)
    with pytest.raises(ModelFileError, match=r"has become shorter: tensor 't\.weight' needs 32 bytes"):
        read_tensor(files, files.tensors["t.weight"])


# ---- versions, byte order, magic


@pytest.mark.parametrize("version", [2, 3])
def test_versions_that_open(tmp_path: Path, version: int) -> None:
    keys, tensors, data = base()
    opens(tmp_path, mk(keys, tensors, data, ver=version))


@pytest.mark.parametrize("version", [0, 1, 4, 5, 255, 65536 + 3, 2**32 - 1])
def test_other_versions_are_refused_by_number(tmp_path: Path, version: int) -> None:
    keys, tensors, data = base()
    assert f"version {version};" in refusal(
        tmp_path, mk(keys, tensors, data, ver=version), UnsupportedModelError
    )


@pytest.mark.parametrize("version", [2, 3, 4])
def test_swapped_bytes_are_recognised(tmp_path: Path, version: int) -> None:
    keys, tensors, data = base()
    message = refusal(tmp_path, mk(keys, tensors, data, ver=version << 24), UnsupportedModelError)
    assert f"big-endian GGUF (version {version})" in message
    assert "big-endian" in refusal(tmp_path, mk(keys, tensors, data, magic=b"FUGG"), UnsupportedModelError)


@pytest.mark.parametrize("magic", [b"GGUf", b"gguf", b"PK\3\4", b"\0\0\0\0", b"<htm"])
def test_other_magic(tmp_path: Path, magic: bytes) -> None:
    keys, tensors, data = base()
    message = refusal(tmp_path, mk(keys, tensors, data, magic=magic))
    assert "not a GGUF file" in message
    assert repr(magic) in message


def test_older_ggml_files(tmp_path: Path) -> None:
    keys, tensors, data = base()
    assert "older GGML file" in refusal(
        tmp_path, mk(keys, tensors, data, magic=b"tjgg"), UnsupportedModelError
    )


# ---- counts and lengths


@pytest.mark.parametrize("count", [2, 1000, 2**16, 2**16 + 1, 2**32, 2**62, 2**64 - 1])
def test_counts_beyond_the_file(tmp_path: Path, count: int) -> None:
    keys, tensors, data = base()
    refusal(tmp_path, mk(keys, tensors, data, n_t=count))
    refusal(tmp_path, mk(keys, tensors, data, n_kv=max(count, 3)))


HUGE = [2**62, 2**63, 2**64 - 1, 2**64 - 8, 2**32 + 3, 2**31, 100_000]


@pytest.mark.parametrize("length", HUGE)
def test_huge_key_length(tmp_path: Path, length: int) -> None:
    refusal(tmp_path, mk([struct.pack("<Q", length) + b"k" * 30], [], n_kv=1))


@pytest.mark.parametrize("length", HUGE)
def test_huge_text_length(tmp_path: Path, length: int) -> None:
    data = mk([s("a.text") + struct.pack("<IQ", STR, length) + b"v" * 40], [], n_kv=1)
    message = refusal(tmp_path, data)
    assert "'a.text'" in message


def test_text_one_byte_longer_than_the_file(tmp_path: Path) -> None:
    data = mk([s("a.text") + struct.pack("<IQ", STR, 41) + b"v" * 40], [], n_kv=1, align=0)
    assert "needs 41 bytes" in refusal(tmp_path, data)
    opens(tmp_path, mk([s("a.text") + struct.pack("<IQ", STR, 40) + b"v" * 40], [], n_kv=1, align=0))


@pytest.mark.parametrize("element", [U8, U32, F64, STR, ARR, BOOL])
@pytest.mark.parametrize("count", [2**61, 2**62, 2**64 - 1, 2**32 + 3, 1000])
def test_huge_array_length(tmp_path: Path, element: int, count: int) -> None:
    data = mk([s("a.list") + struct.pack("<IIQ", ARR, element, count) + b"\0" * 40], [], n_kv=1)
    assert "'a.list'" in refusal(tmp_path, data)


@pytest.mark.parametrize("length", HUGE)
@pytest.mark.parametrize("at", [0, 1, 40])
def test_huge_length_of_a_string_in_an_array(tmp_path: Path, length: int, at: int) -> None:
    items = b"".join(s("token") for _ in range(at)) + struct.pack("<Q", length) + b"x" * 30
    data = mk([s("a.list") + struct.pack("<IIQ", ARR, STR, at + 1) + items], [], n_kv=1)
    message = refusal(tmp_path, data)
    assert f"string {at} of key 'a.list'" in message


def test_long_tensor_names(tmp_path: Path) -> None:
    assert "name of tensor 0 is 10000000 bytes" in refusal(
        tmp_path, with_tensors([ti("n" * 10_000_000, [8], T_F32, 0)], 32)
    )
    refusal(tmp_path, with_tensors([ti("n" * 257, [8], T_F32, 0)], 32))
    opens(tmp_path, with_tensors([ti("n" * 256, [8], T_F32, 0)], 32))


def test_long_and_empty_keys(tmp_path: Path) -> None:
    opens(tmp_path, with_keys(kv("k" * 65535, U8, 1)))
    assert "65536 bytes" in refusal(tmp_path, with_keys(kv("k" * 65536, U8, 1)))
    assert "0 bytes" in refusal(tmp_path, with_keys(kv("", U8, 1)))
    assert "0 bytes" in refusal(tmp_path, with_tensors([ti("", [8], T_F32, 0)], 32))


def test_names_that_are_not_utf8(tmp_path: Path) -> None:
    assert "name of key 2 is not UTF-8" in refusal(tmp_path, with_keys(kv(b"a\xff", U8, 1)))
    assert "name of tensor 0 is not UTF-8" in refusal(
        tmp_path, with_tensors([ti(b"\xc3(", [8], T_F32, 0)], 32)
    )


# ---- types


@pytest.mark.parametrize(
    ("key", "kind", "value", "found", "wanted"),
    [
        ("tokenizer.ggml.scores", ARR, (U8, [1] * 1024), "[u8]", "[float]"),
        ("tokenizer.ggml.token_type", ARR, (F64, [1.0]), "[f64]", "[int]"),
        ("tokenizer.ggml.tokens", ARR, (U32, [1, 2]), "[u32]", "[str]"),
        ("tokenizer.ggml.merges", ARR, (I8, [1, 2]), "[i8]", "[str]"),
        ("tokenizer.ggml.tokens", STR, "one", "str", "[str]"),
        ("tokenizer.ggml.model", U8, 1, "u8", "str"),
        ("tokenizer.ggml.bos_token_id", STR, "1", "str", "int"),
        ("tokenizer.ggml.add_bos_token", U8, 1, "u8", "bool"),
        ("tokenizer.chat_template", ARR, (STR, ["x"]), "[str]", "str"),
        ("deepseek4.context_length", STR, "4096", "str", "int"),
        ("deepseek4.context_length", F32, 4096.0, "f32", "int"),
        ("llama.block_count", ARR, (U32, [1]), "[u32]", "int"),
        ("deepseek4.attention.compress_ratios", ARR, (F32, [4.0]), "[f32]", "int or [int]"),
        ("deepseek4.attention.layer_norm_rms_epsilon", U32, 1, "u32", "float"),
        ("deepseek4.swiglu_clamp_exp", ARR, (U8, [1]), "[u8]", "float or [float]"),
        ("deepseek4.expert_weights_norm", U8, 1, "u8", "bool"),
        ("deepseek4.block_count", ARR, (ARR, [(U8, [1])]), "[array]", "int"),
        ("split.no", F32, 0.0, "f32", "int"),
    ],
)
def test_known_keys_of_the_wrong_type(
    tmp_path: Path, key: str, kind: int, value: object, found: str, wanted: str
) -> None:
    message = refusal(tmp_path, with_keys(kv(key, kind, value)))
    assert f"key '{key}' has type {found}, wanted is {wanted}" in message


def test_architecture_as_a_number(tmp_path: Path) -> None:
    message = refusal(tmp_path, mk([kv("general.architecture", U32, 4)], []))
    assert "key 'general.architecture' has type u32, wanted is str" in message


@pytest.mark.parametrize("value", [2, 7, 255])
def test_bools_are_zero_or_one(tmp_path: Path, value: int) -> None:
    assert f"bool of value {value}" in refusal(tmp_path, with_keys(kv("any.flag", BOOL, value)))
    flags = kv("any.flags", ARR, (BOOL, [0, 1, value]))
    assert f"bool of value {value}" in refusal(tmp_path, with_keys(flags))
    nested = kv("any.flags", ARR, (ARR, [(BOOL, [0, value])]))
    assert f"bool of value {value}" in refusal(tmp_path, with_keys(nested))


@pytest.mark.parametrize("kind", [13, 14, 255, 2**32 - 1])
def test_unknown_value_types(tmp_path: Path, kind: int) -> None:
    scalar = s("any.key") + struct.pack("<IQ", kind, 0)
    assert f"value type {kind}" in refusal(tmp_path, with_keys(scalar))
    array = s("any.key") + struct.pack("<IIQ", ARR, kind, 0)
    assert f"value type {kind}" in refusal(tmp_path, with_keys(array))


@pytest.mark.parametrize("depth", [3, 4, 100, 20000])
def test_deep_arrays_are_refused(tmp_path: Path, depth: int) -> None:
    value = struct.pack("<IQ", ARR, 1) * (depth - 1) + val(ARR, (U8, [1]))
    data = mk([s("any.deep") + struct.pack("<I", ARR) + value], [], n_kv=1)
    assert "'any.deep' nests arrays more than 2 deep" in refusal(tmp_path, data)


def test_an_array_of_arrays_opens(tmp_path: Path) -> None:
    opens(tmp_path, with_keys(kv("any.deep", ARR, (ARR, [(U8, [1, 2]), (STR, ["a", ""]), (F64, [])]))))


@pytest.mark.parametrize("kind", [4, 5, 31, 38, 42, 2**31, 2**32 - 1])
def test_unknown_element_types(tmp_path: Path, kind: int) -> None:
    message = refusal(tmp_path, with_tensors([ti("t.weight", [256], kind, 0)], 1024), UnsupportedModelError)
    assert f"'t.weight' has element type {kind}" in message


def test_types_without_codec_are_listed(tmp_path: Path) -> None:
    path = tmp_path / "iq2.gguf"
    path.write_bytes(with_tensors([ti("a", [256], 16, 0), ti("b", [512, 3], 10, 96)], 96 + 504))
    tensors = open_gguf(path).tensors
    assert (tensors["a"].dtype, tensors["a"].nbytes) == ("IQ2_XXS", 66)
    assert (tensors["b"].dtype, tensors["b"].shape, tensors["b"].nbytes) == ("Q2_K", (3, 512), 504)


# ---- shapes and places


@pytest.mark.parametrize("dims", [[0], [8, 0], [0, 8, 0, 1], [], [1] * 5, [1] * 9, [8, 1, 1, 0]])
def test_dimensions_that_are_refused(tmp_path: Path, dims: list[int]) -> None:
    assert "'t.weight' has" in refusal(tmp_path, with_tensors([ti("t.weight", dims, T_F32, 0)], 64))


@pytest.mark.parametrize("rank", [0, 5, 1000, 2**32 - 1])
def test_rank_alone(tmp_path: Path, rank: int) -> None:
    line = s("t.weight") + struct.pack("<I", rank) + bytes(64)
    assert f"{rank} dimensions" in refusal(tmp_path, with_tensors([line], 64))


@pytest.mark.parametrize(
    "dims", [[2**62, 4], [2**63], [2**32, 2**32], [2**16] * 4, [2**21, 2**21, 2**21, 2], [2**64 - 1] * 4]
)
def test_products_that_overflow(tmp_path: Path, dims: list[int]) -> None:
    refusal(tmp_path, with_tensors([ti("t.weight", dims, T_F32, 0)], 64))


def test_rows_must_be_whole_blocks(tmp_path: Path) -> None:
    message = refusal(tmp_path, with_tensors([ti("t.weight", [128, 2], T_Q4_K, 0)], 1000))
    assert "rows of 128 values, no multiple of 256, the block of Q4_K" in message


@pytest.mark.parametrize("offset", [1, 8, 16, 31, 33])
def test_offsets_must_be_aligned(tmp_path: Path, offset: int) -> None:
    message = refusal(tmp_path, with_tensors([ti("t.weight", [8], T_F32, offset)], 256))
    assert f"offset {offset}, no multiple of the alignment" in message


@pytest.mark.parametrize("offset", [32, 2**20, 2**62, 2**63, 2**64 - 32])
def test_offsets_must_be_inside(tmp_path: Path, offset: int) -> None:
    message = refusal(tmp_path, with_tensors([ti("t.weight", [8], T_F32, offset)], 32))
    assert "'t.weight' needs 32 bytes" in message
    assert "0 are present" in message


@pytest.mark.parametrize("value", [0, 1, 3, 7, 24, 48, 2**17, 2**31, 2**32 - 1])
def test_alignments_that_are_refused(tmp_path: Path, value: int) -> None:
    keys = [kv("general.architecture", STR, "deepseek4"), kv("general.alignment", U32, value)]
    assert f"general.alignment is {value}," in refusal(tmp_path, mk(keys, base()[1], bytes(64)))


@pytest.mark.parametrize("value", [8, 16, 64, 4096, 65536])
def test_alignments_that_open(tmp_path: Path, value: int) -> None:
    keys = [kv("general.architecture", STR, "deepseek4"), kv("general.alignment", U64, value)]
    tensors = [ti("a", [1], T_F32, 0), ti("b", [1], T_F32, value)]
    opens(tmp_path, mk(keys, tensors, bytes(2 * value), align=value))


# ---- duplicates


def test_a_key_twice(tmp_path: Path) -> None:
    message = refusal(tmp_path, with_keys(kv("a.b", U8, 1), kv("a.c", U8, 1), kv("a.b", U16, 2)))
    assert "key 'a.b' is there twice" in message
    assert "'general.architecture' is there twice" in refusal(
        tmp_path, with_keys(kv("general.architecture", STR, "llama"))
    )


def test_a_tensor_twice(tmp_path: Path) -> None:
    lines = [ti("t", [8], T_F32, 0), ti("u", [8], T_F32, 32), ti("t", [8], T_F32, 64)]
    assert "tensor 't' is there twice" in refusal(tmp_path, with_tensors(lines, 96))


@pytest.mark.parametrize(
    ("first", "second"), [((0, 16), (32, 8)), ((0, 16), (0, 8)), ((32, 8), (0, 24)), ((0, 32), (32, 8))]
)
def test_overlapping_tensors(tmp_path: Path, first: tuple[int, int], second: tuple[int, int]) -> None:
    lines = [ti("t", [first[1]], T_F32, first[0]), ti("u", [second[1]], T_F32, second[0])]
    message = refusal(tmp_path, with_tensors(lines, 256))
    assert "overlap" in message
    assert "'t'" in message
    assert "'u'" in message


def test_tied_tensors_open(tmp_path: Path) -> None:
    lines = [ti(f"layer.{i}", [8, 2], T_F32, 0) for i in range(200)]
    opens(tmp_path, with_tensors(lines, 64))


def test_tied_tensors_do_not_hide_an_overlap(tmp_path: Path) -> None:
    lines = [ti("a", [16], T_F32, 0), ti("b", [16], T_F32, 0), ti("c", [8], T_F32, 32)]
    assert "overlap" in refusal(tmp_path, with_tensors(lines, 64))


# ---- not files


def test_things_that_are_not_files(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.gguf")
    with pytest.raises(ModelFileError, match="not a regular file"):
        open_gguf(tmp_path / "pipe.gguf")
    with pytest.raises(ModelFileError, match="not a regular file"):
        open_gguf("/dev/zero")
    with pytest.raises(ModelFileError, match=r"none\.gguf: cannot be opened: No such file"):
        open_gguf(tmp_path / "none.gguf")
    with pytest.raises(ModelFileError, match="null byte"):
        open_gguf("a\0b.gguf")
    with pytest.raises(ModelFileError, match="File name too long"):
        open_gguf(tmp_path / ("x" * 300))


def test_padding_after_the_data_is_allowed(tmp_path: Path) -> None:
    opens(tmp_path, mk(*base()) + bytes(100))


def test_a_vocabulary_alone_opens(tmp_path: Path) -> None:
    opens(tmp_path, mk([*base()[0], kv("tokenizer.ggml.tokens", ARR, (STR, ["a"]))], [], align=0))
