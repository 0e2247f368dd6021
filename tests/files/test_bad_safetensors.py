"""Cut, lying and foreign safetensors files and folders, each refused with the file and the field."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pytest

from finback.errors import ModelFileError, UnsupportedModelError
from finback.formats.safetensors import INDEX_NAME, open_folder, open_safetensors


def pack(header: object, data: bytes = b"", *, length: int | None = None) -> bytes:
    """A file; `header` is an object, or the bytes to use as they are."""
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(raw) if length is None else length) + raw + data


def line(dtype: Any = "F32", shape: Any = (2, 2), offsets: Any = (0, 16)) -> dict[str, Any]:
    tuples = {key: list(value) if isinstance(value, tuple) else value for key, value in
              {"shape": shape, "data_offsets": offsets}.items()}  # fmt: skip
    return {"dtype": dtype, **tuples}


GOOD = {"a": line(), "b": line("BF16", (3,), (16, 22)), "c": line("I64", (), (22, 30))}


def refusal(folder: Path, data: bytes, kind: type[ModelFileError] = ModelFileError) -> str:
    path = folder / "bad.safetensors"
    path.write_bytes(data)
    with pytest.raises(kind) as caught:
        open_safetensors(path)
    message = str(caught.value)
    assert "bad.safetensors" in message
    assert len(message) < 400
    return message


def test_the_good_file_opens(tmp_path: Path) -> None:
    path = tmp_path / "good.safetensors"
    path.write_bytes(pack(GOOD | {"__metadata__": {"format": "pt"}}, bytes(30)))
    files = open_safetensors(path)
    assert files.metadata == [{"format": "pt"}]
    assert [(e.name, e.dtype, e.shape, e.nbytes) for e in files.tensors.values()] == [
        ("a", "F32", (2, 2), 16),
        ("b", "BF16", (3,), 6),
        ("c", "I64", (), 8),
    ]


def test_cut_at_every_byte(tmp_path: Path) -> None:
    whole = pack(GOOD, bytes(30))
    for length in range(len(whole)):
        message = refusal(tmp_path, whole[:length])
        if length >= len(whole) - 8:
            assert "tensor 'c' needs 8 bytes" in message
            assert f"{length - len(whole) + 8} are present" in message


def test_bytes_after_the_last_tensor(tmp_path: Path) -> None:
    assert "1 bytes too many after 'c'" in refusal(tmp_path, pack(GOOD, bytes(31)))
    assert "too many after 'the header'" in refusal(tmp_path, pack({}, bytes(1)))


@pytest.mark.parametrize("length", [2**63, 2**64 - 1, 2**32, 10**8, 100_000])
def test_huge_header_length(tmp_path: Path, length: int) -> None:
    assert f"header length is {length}" in refusal(tmp_path, pack(GOOD, bytes(30), length=length))


@pytest.mark.parametrize("length", [0, 1, 2, 10])
def test_short_header_length(tmp_path: Path, length: int) -> None:
    assert "header is" in refusal(tmp_path, pack(GOOD, bytes(30), length=length))


@pytest.mark.parametrize(
    ("raw", "problem"),
    [
        (b'{"a":1', "is not JSON"),
        (b"[]", "wanted is a JSON object"),
        (b"17", "is 17, wanted is a JSON object"),
        (b'{"a\xff":1}', "is not UTF-8 (byte 3"),
        (b'{"a":NaN}', "holds NaN"),
        (b'{"a":-Infinity}', "holds -Infinity"),
        (b"{} x", "is not JSON"),
        (b"\xef\xbb\xbf{}", "is not JSON"),
        (b"[" * 100_000, "nested too deeply"),
        (b'{"a":' * 100_000, "nested too deeply"),
        (b'{"a":' + b"9" * 10_000 + b"}", "is not JSON"),
    ],
)
def test_bad_json(tmp_path: Path, raw: bytes, problem: str) -> None:
    assert problem in refusal(tmp_path, pack(raw))


@pytest.mark.parametrize("depth", [50, 300, 700, 900, 960, 990])
def test_nested_values_do_not_break_the_message(tmp_path: Path, depth: int) -> None:
    deep = b"[" * depth + b"]" * depth
    refusal(tmp_path, pack(deep))
    refusal(tmp_path, pack(b'{"a":{"dtype":"F32","shape":' + deep + b',"data_offsets":[0,4]}}', bytes(4)))
    refusal(tmp_path, pack(b'{"a":{"dtype":' + deep + b',"shape":[1],"data_offsets":[0,4]}}', bytes(4)))
    refusal(tmp_path, pack(b'{"a":{"dtype":"F32","shape":[1],"data_offsets":' + deep + b"}}", bytes(4)))
    refusal(tmp_path, pack(b'{"__metadata__":{"a":' + deep + b"}}"))


def test_keys_twice(tmp_path: Path) -> None:
    text = json.dumps({"a": line()})
    twice = f"{text[:-1]},{text[1:]}".encode()
    assert "has the key 'a' twice" in refusal(tmp_path, pack(twice, bytes(16)))
    inner = text.replace('"dtype": "F32"', '"dtype": "F32", "dtype": "I32"').encode()
    assert "has the key 'dtype' twice" in refusal(tmp_path, pack(inner, bytes(16)))
    escaped = text[:-1].encode() + b',"\\u0061":' + text[6:].encode()
    assert "has the key 'a' twice" in refusal(tmp_path, pack(escaped, bytes(16)))


@pytest.mark.parametrize(
    "shape",
    [
        None, 4, "4", {}, [[2, 2]], [2, "2"], [2.0, 2], [True, 4], [-2, -2], [0, 4], [2**64, 1],
        [4, None], [1] * 9, [10**400],
    ],
)  # fmt: skip
def test_shapes_that_are_refused(tmp_path: Path, shape: object) -> None:
    assert "tensor 'a' has shape" in refusal(tmp_path, pack({"a": line(shape=shape)}, bytes(16)))


@pytest.mark.parametrize(
    "offsets",
    [None, 16, [0], [0, 8, 16], ["0", "16"], [0.0, 16.0], [False, 16], [[0], 16], {}],
)
def test_offsets_that_are_refused(tmp_path: Path, offsets: object) -> None:
    assert "tensor 'a' has data_offsets" in refusal(tmp_path, pack({"a": line(offsets=offsets)}, bytes(16)))


@pytest.mark.parametrize("offsets", [[0, 15], [0, 17], [16, 0], [0, 0], [0, 2**64], [-16, 0]])
def test_offsets_must_agree_with_the_shape(tmp_path: Path, offsets: list[int]) -> None:
    assert "takes 16 bytes, its data_offsets are" in refusal(
        tmp_path, pack({"a": line(offsets=offsets)}, bytes(16))
    )


@pytest.mark.parametrize("dtype", ["F8_E5M2", "F4", "f32", "", "C64", None, 3, ["F32"]])
def test_dtypes_that_are_refused(tmp_path: Path, dtype: object) -> None:
    message = refusal(tmp_path, pack({"a": line(dtype=dtype)}, bytes(16)), UnsupportedModelError)
    assert "tensor 'a' has dtype" in message


@pytest.mark.parametrize(
    "fields", [None, 1, [], {}, {"dtype": "F32"}, {**line(), "extra": 1}, {"dtype": "F32", "shape": [4]}]
)
def test_lines_with_other_fields(tmp_path: Path, fields: object) -> None:
    assert "needs exactly dtype, shape and data_offsets" in refusal(tmp_path, pack({"a": fields}, bytes(16)))


@pytest.mark.parametrize(
    ("second", "problem"),
    [((8, 24), "overlaps 'a'"), ((0, 16), "overlaps 'a'"), ((17, 33), "leaves a gap after 'a'")],
)
def test_data_is_covered_once(tmp_path: Path, second: tuple[int, int], problem: str) -> None:
    header = {"a": line(), "b": line(offsets=second)}
    assert problem.replace("'a'", "a") in refusal(tmp_path, pack(header, bytes(40))).replace("'a'", "a")


def test_data_begins_after_the_header(tmp_path: Path) -> None:
    assert "leaves a gap after the header" in refusal(tmp_path, pack({"a": line(offsets=(8, 24))}, bytes(24)))


@pytest.mark.parametrize("name", ["", "n" * 257, "a\nb", "\ud800", "a\0"])
def test_names_that_are_refused(tmp_path: Path, name: str) -> None:
    assert "tensor name" in refusal(tmp_path, pack({name: line()}, bytes(16)))


@pytest.mark.parametrize("value", [None, [], {"a": 1}, "x"])
def test_metadata_that_is_refused(tmp_path: Path, value: object) -> None:
    assert "__metadata__ must be an object" in refusal(tmp_path, pack({"__metadata__": value}))


# ---- folders


def make_folder(folder: Path, weight_map: object, shards: dict[str, dict[str, Any]]) -> None:
    (folder / INDEX_NAME).write_text(json.dumps({"weight_map": weight_map}))
    for name, header in shards.items():
        (folder / name).write_bytes(pack(header, bytes(16 * len(header))))


ONE, TWO = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
SHARDS = {ONE: {"a": line(), "b": line(offsets=(16, 32))}, TWO: {"c": line()}}
MAP = {"a": ONE, "b": ONE, "c": TWO}


def folder_refusal(folder: Path) -> str:
    with pytest.raises(ModelFileError) as caught:
        open_folder(folder)
    assert len(str(caught.value)) < 400
    return str(caught.value)


def test_a_folder_with_shards(tmp_path: Path) -> None:
    make_folder(tmp_path, MAP, SHARDS)
    files = open_folder(tmp_path)
    assert files.paths == [tmp_path / ONE, tmp_path / TWO]
    assert {name: entry.file for name, entry in files.tensors.items()} == {"a": 0, "b": 0, "c": 1}


def test_a_folder_with_one_file(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(pack(GOOD, bytes(30)))
    assert list(open_folder(tmp_path).tensors) == ["a", "b", "c"]


def test_folders_without_a_model(tmp_path: Path) -> None:
    assert "holds neither" in folder_refusal(tmp_path)
    assert "holds neither" in folder_refusal(tmp_path / "none")


def test_a_folder_with_two_models(tmp_path: Path) -> None:
    make_folder(tmp_path, MAP, SHARDS)
    (tmp_path / "model.safetensors").write_bytes(pack(GOOD, bytes(30)))
    assert "an index that does not list it" in folder_refusal(tmp_path)


def test_a_missing_shard(tmp_path: Path) -> None:
    make_folder(tmp_path, MAP, SHARDS)
    (tmp_path / TWO).unlink()
    message = folder_refusal(tmp_path)
    assert "1 of them are missing" in message
    assert TWO in message


@pytest.mark.parametrize(
    ("weight_map", "problem"),
    [
        ({**MAP, "d": TWO}, f"{TWO}: lacks tensor 'd'"),
        ({**MAP, "b": TWO}, f"{ONE}: holds tensor 'b', which the index puts in '{TWO}'"),
        ({"a": ONE, "c": TWO}, f"{ONE}: holds tensor 'b', which the index puts in no shard"),
    ],
)
def test_an_index_that_disagrees(tmp_path: Path, weight_map: dict[str, str], problem: str) -> None:
    make_folder(tmp_path, weight_map, SHARDS)
    assert problem in folder_refusal(tmp_path)


def test_a_tensor_in_two_shards(tmp_path: Path) -> None:
    make_folder(tmp_path, MAP, {ONE: SHARDS[ONE], TWO: {"c": line(), "a": line(offsets=(16, 32))}})
    assert f"{TWO}: holds tensor 'a', which the index puts in '{ONE}'" in folder_refusal(tmp_path)


@pytest.mark.parametrize(
    "name",
    ["/etc/x.safetensors", "../x.safetensors", "sub/x.safetensors", "..", "", "a\0.safetensors",
     "c:\\x.safetensors", "x.bin", ".", "x.safetensors/"],
)  # fmt: skip
def test_shard_names_that_lead_elsewhere(tmp_path: Path, name: str) -> None:
    make_folder(tmp_path, {"a": name}, {})
    assert "shards are .safetensors files in the same folder" in folder_refusal(tmp_path)


@pytest.mark.parametrize(
    "document", ["{}", '{"weight_map": {}}', '{"weight_map": []}', '{"weight_map": {"a": 1}}']
)
def test_indexes_that_are_none(tmp_path: Path, document: str) -> None:
    (tmp_path / INDEX_NAME).write_text(document)
    assert INDEX_NAME in folder_refusal(tmp_path)


@pytest.mark.parametrize("document", [b"", b"[", b'{"weight_map":{"a":"x","a":"y"}}', b"\xff", b"[" * 9999])
def test_indexes_that_are_no_json(tmp_path: Path, document: bytes) -> None:
    (tmp_path / INDEX_NAME).write_bytes(document)
    assert INDEX_NAME in folder_refusal(tmp_path)


def test_an_index_that_is_a_folder(tmp_path: Path) -> None:
    (tmp_path / INDEX_NAME).mkdir()
    assert "not a regular file" in folder_refusal(tmp_path)
