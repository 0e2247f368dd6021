"""The same numbers under official, transformers' and GGUF names give the same logit bytes, draft block included."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import finback
from finback.ops.step import Part
from finback.tools.export import export_folder
from finback.tools.synth import synth
from tests.tiny import TINY, prompt
from tests.weights.test_containers import CONTAINERS

IDS = [int(t) for t in prompt(90, TINY.vocab_size)]


def logits(path: Path) -> bytes:
    with finback.load(path, context=256) as engine:
        found = engine.logits(IDS, chunks=[1, 40, 49])
        assert np.isfinite(found).all()
        return found.tobytes()


def drafts(path: Path) -> bytes:
    """Logits of the draft block over a run of the whole prompt."""
    with finback.load(path, context=256) as engine:
        model = engine._model
        state = model.new_sequence()
        state.reserve(len(IDS))
        model.run([Part(state, IDS[:60])])
        found = model.draft([Part(state, IDS[1:61], list(range(60)))])
        state.close()
        return found.tobytes()


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return CONTAINERS["published"][0](tmp_path_factory.mktemp("published") / "model", TINY)


@pytest.mark.parametrize("name", [name for name in CONTAINERS if name != "published"])
def test_names_change_no_bit(name: str, published: Path, tmp_path: Path) -> None:
    write, has_draft = CONTAINERS[name]
    other = write(tmp_path / "model", TINY)
    assert logits(other) == logits(published)
    if has_draft:
        assert drafts(other) == drafts(published)


def test_plain_floats_of_any_width_give_the_same_bits(tmp_path: Path) -> None:
    synth(
        tmp_path / "m.gguf",
        "v4-tiny",
        layers=5,
        experts=4,
        vocab=320,
        experts_format="BF16",
        dense_format="BF16",
        seed=2,
    )
    export_folder(tmp_path / "m.gguf", tmp_path / "folder", format="F32")  # from BF16 and F16, exactly
    ids = [int(t) for t in prompt(140, 320)]
    found = []
    for path in (tmp_path / "m.gguf", tmp_path / "folder"):
        with finback.load(path, context=256) as engine:
            found.append(engine.logits(ids).tobytes())
    assert found[0] == found[1]
