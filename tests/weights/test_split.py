"""A GGUF model in parts opens as one, whichever part is named (case H15); what the parts must agree on is tested
with the container."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import numpy as np
import pytest

from finback.errors import ModelFileError
from finback.formats.writer import GgufWriter
from finback.weights.checkpoint import open_checkpoint
from tests.tiny import TINY
from tests.weights import models
from tests.weights.test_containers import check_values

PARTS = 5


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """TINY in five parts, written last part first."""
    folder = tmp_path_factory.mktemp("parts")
    kept: dict[str, models.Array] = {}
    models.write_gguf(folder / "whole.gguf", TINY, change=lambda keys, tensors: kept.update(tensors))
    (folder / "whole.gguf").unlink()
    names = list(kept)
    paths = [folder / f"tiny-{i + 1:05d}-of-{PARTS:05d}.gguf" for i in range(PARTS)]
    for i in reversed(range(PARTS)):
        with GgufWriter(paths[i], "deepseek4") as writer:
            if i == 0:
                for key, (kind, value) in models.gguf_metadata(TINY).items():
                    writer.add(key, kind, value)
            writer.add("split.no", "u16", i)
            writer.add("split.count", "u16", PARTS)
            writer.add("split.tensors.count", "i32", len(names))
            mine = names[i::PARTS]
            for name in mine:
                writer.declare(name, "I32" if kept[name].dtype == np.int32 else "F32", kept[name].shape)
            for name in mine:
                writer.write(name, kept[name])
    return paths


def test_any_part_and_the_folder_open_the_whole(parts: list[Path]) -> None:
    first = open_checkpoint(parts[0])
    check_values(first)
    for path in (parts[2], parts[4], parts[0].parent):
        opened = open_checkpoint(path)
        assert opened.config == first.config
        assert opened.identity == first.identity
        assert list(opened.paths) == parts
    check_values(open_checkpoint(parts[2]))


def test_wrong_parts_are_named(parts: list[Path], tmp_path: Path) -> None:
    def copy(kept: list[int]) -> Path:
        shutil.rmtree(tmp_path / "x", ignore_errors=True)
        (tmp_path / "x").mkdir()
        for i in kept:
            os.link(parts[i], tmp_path / "x" / parts[i].name)
        return tmp_path / "x"

    folder = copy([0, 1, 2, 4])
    with pytest.raises(ModelFileError, match="00004-of-00005"):
        open_checkpoint(folder)
    os.link(parts[1], folder / parts[3].name)
    with pytest.raises(ModelFileError, match="00004-of-00005"):
        open_checkpoint(folder)
    joined = tmp_path / "joined.gguf"
    joined.write_bytes(b"".join(path.read_bytes() for path in parts))
    with pytest.raises(ModelFileError, match=r"joined\.gguf"):
        open_checkpoint(joined)
