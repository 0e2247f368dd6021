"""Split models: found from any part or the folder, and refused with the part that is wrong."""

from __future__ import annotations

import shutil
import struct
from pathlib import Path

import pytest
from tests.files.mk import I32, STR, U16, base, kv, mk, parts, with_keys, write_parts

from finback.errors import ModelFileError
from finback.formats.entry import read_tensor
from finback.formats.gguf import GgufFile, open_gguf


def content(files: GgufFile) -> dict[str, float]:
    """The first value of each tensor: in `parts`, the number in its name."""
    return {name: struct.unpack("<f", read_tensor(files, e)[:4])[0] for name, e in files.tensors.items()}


WHOLE = {f"blk.{i}.a": float(i) for i in range(7)}


def refusal(path: Path) -> str:
    with pytest.raises(ModelFileError) as caught:
        open_gguf(path)
    assert len(str(caught.value)) < 400
    return str(caught.value)


def test_any_part_and_the_folder_open_the_same_model(tmp_path: Path) -> None:
    paths = write_parts(tmp_path, parts(5))
    for path in (paths[0], paths[2], paths[4], tmp_path):
        files = open_gguf(path)
        assert files.paths == paths
        assert content(files) == WHOLE
        assert files.metadata["general.name"] == "a"
        assert list(files.tensors) == list(WHOLE)


def test_parts_that_repeat_the_metadata_open(tmp_path: Path) -> None:
    paths = write_parts(tmp_path, parts(3, keys_in_all=True))
    assert content(open_gguf(paths[1])) == WHOLE


def test_a_first_part_without_tensors_opens(tmp_path: Path) -> None:
    keys = [*base()[0], kv("split.no", U16, 0), kv("split.count", U16, 2), kv("split.tensors.count", I32, 1)]
    rest = [kv("split.no", U16, 1), kv("split.count", U16, 2), kv("split.tensors.count", I32, 1)]
    _, tensors, data = base()
    paths = write_parts(tmp_path, [mk(keys, []), mk(rest, tensors, data)])
    assert list(open_gguf(paths[0]).tensors) == ["t.weight"]


def test_symbolic_links_are_siblings_where_they_are(tmp_path: Path) -> None:
    (tmp_path / "blobs").mkdir()
    (tmp_path / "snapshot").mkdir()
    for path in write_parts(tmp_path / "blobs", parts(3)):
        (tmp_path / "snapshot" / path.name).symlink_to(path.rename(path.with_name(f"sha-{path.name[:11]}")))
    assert content(open_gguf(tmp_path / "snapshot" / "tiny-00002-of-00003.gguf")) == WHOLE


@pytest.mark.parametrize("gone", [0, 3, 4])
@pytest.mark.parametrize("opened", [1, 2])
def test_a_missing_part_is_named(tmp_path: Path, gone: int, opened: int) -> None:
    paths = write_parts(tmp_path, parts(5))
    paths[gone].unlink()
    for path in (paths[opened], tmp_path):
        message = refusal(path)
        assert "a part is missing" in message
        assert paths[gone].name in message


def test_many_missing_parts(tmp_path: Path) -> None:
    paths = write_parts(tmp_path, parts(7))
    for path in paths[1:]:
        path.unlink()
    message = refusal(paths[0])
    assert "6 parts are missing" in message
    assert "3 more" in message


@pytest.mark.parametrize(("copied", "onto"), [(1, 3), (0, 1), (4, 0)])
def test_a_part_twice_is_named(tmp_path: Path, copied: int, onto: int) -> None:
    paths = write_parts(tmp_path, parts(5))
    shutil.copy(paths[copied], paths[onto])
    message = refusal(paths[2])
    assert paths[onto].name in message
    assert f"is named part {onto + 1}, but its key split.no is {copied}" in message


def test_the_count_in_the_name_must_be_that_in_the_file(tmp_path: Path) -> None:
    message = refusal(write_parts(tmp_path, parts(5)[:4])[0])
    assert "is named one of 4 parts, but its key split.count is 5" in message


def test_names_without_split_keys(tmp_path: Path) -> None:
    write_parts(tmp_path, [mk(*base()), mk(*base())])
    assert "has no key split.count" in refusal(tmp_path)


def test_one_part_of_one(tmp_path: Path) -> None:
    paths = write_parts(tmp_path, [mk(*base())])
    assert list(open_gguf(paths[0]).tensors) == ["t.weight"]


def test_a_part_under_a_plain_name(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(parts(5)[0])
    assert "is one part of 5 (key split.count)" in refusal(path)


@pytest.mark.parametrize("keys_in_all", [False, True])
def test_parts_of_two_models(tmp_path: Path, keys_in_all: bool) -> None:
    paths = write_parts(tmp_path, parts(5, keys_in_all=keys_in_all))
    paths[3].write_bytes(parts(5, tag="b", tensors=11, keys_in_all=keys_in_all)[3])
    message = refusal(paths[0])
    assert paths[3].name in message
    assert "another model" in message


def test_parts_of_two_models_with_as_many_tensors(tmp_path: Path) -> None:
    paths = write_parts(tmp_path, parts(5))
    paths[3].write_bytes(parts(5)[2].replace(b"split.no\x02\0\0\0\x02", b"split.no\x02\0\0\0\x03"))
    message = refusal(paths[0])
    assert paths[3].name in message
    assert "'blk." in message


def test_fewer_tensors_than_announced(tmp_path: Path) -> None:
    files = [
        data.replace(b"tensors.count\x05\0\0\0\x07", b"tensors.count\x05\0\0\0\x09") for data in parts(3)
    ]
    assert "split.tensors.count is 9, but there are 7 tensors" in refusal(write_parts(tmp_path, files)[0])


@pytest.mark.parametrize("count", [2, 5])
@pytest.mark.parametrize("name", ["joined.gguf", "tiny-00001-of-00005.gguf", "tiny-00001-of-00001.gguf"])
def test_parts_joined_with_cat(tmp_path: Path, count: int, name: str) -> None:
    files = parts(5)
    write_parts(tmp_path, files)
    path = tmp_path / name
    path.write_bytes(b"".join(files[:count]))
    assert "split files must not be joined with cat" in refusal(path)


def test_whole_models_joined_with_cat(tmp_path: Path) -> None:
    path = tmp_path / "two.gguf"
    for gap in (0, 24, 4096):
        path.write_bytes(mk(*base()) + bytes(gap) + mk(*base()))
        assert "joined with cat" in refusal(path)


@pytest.mark.parametrize("part", [0, 2])
def test_upper_case_extension_of_a_part(tmp_path: Path, part: int) -> None:
    paths = write_parts(tmp_path, parts(5))
    upper = paths[part].rename(paths[part].with_suffix(".GGUF"))
    for path in (paths[1], upper, tmp_path):
        message = refusal(path)
        assert f"part '{upper.name}' is misnamed: rename it to '{paths[part].name}'" in message


def test_numbers_out_of_range(tmp_path: Path) -> None:
    for name in (
        "m-00000-of-00005.gguf",
        "m-00006-of-00005.gguf",
        "m-00001-of-00000.gguf",
        "m-00001-of-99999.gguf",
    ):
        path = tmp_path / name
        path.write_bytes(parts(5)[0])
        assert "parts go from 1" in refusal(path)


def test_a_damaged_part_is_named(tmp_path: Path) -> None:
    paths = write_parts(tmp_path, parts(5))
    paths[3].write_bytes(paths[3].read_bytes()[:-1])
    message = refusal(paths[0])
    assert paths[3].name in message
    assert "31 are present" in message


def test_folders(tmp_path: Path) -> None:
    assert "holds no .gguf file" in refusal(tmp_path)
    (tmp_path / "one.gguf").write_bytes(with_keys())
    assert list(open_gguf(tmp_path).tensors) == ["t.weight"]
    (tmp_path / "two.gguf").write_bytes(with_keys(kv("a.b", STR, "x")))
    message = refusal(tmp_path)
    assert "holds 2 GGUF models" in message
    assert "'one.gguf', 'two.gguf'" in message
