"""FINBACK_EAGER: the same engine on NumPy, with the same bits."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import finback
from finback.errors import EngineStateError, RequestError
from finback.ops.eager_model import EagerModel
from finback.ops.step import Part
from tests.tiny import write_folder

IDS = [int(i) for i in np.random.default_rng(4).integers(3, 250, 30)]


def test_eager_gives_the_bits_of_the_native_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_folder(tmp_path / "tiny")
    (folder / "tokenizer.json").unlink()  # token ids only
    with finback.load(folder, context=64) as engine:
        expected = engine.logits(IDS, rows=[0, 17, 29])
        assert engine.program_listing()
    monkeypatch.setenv("FINBACK_EAGER", "1")
    with finback.load(folder, context=64) as engine:
        assert isinstance(engine._model, EagerModel)
        assert np.array_equal(engine.logits(IDS, rows=[0, 17, 29], chunks=[11, 19]), expected)
        with engine.session() as session:
            session.append(IDS[:12])
            session.append([9, 9, 9])
            assert session.rewind(12) == "recomputed"
            session.append(IDS[12:])
            assert np.array_equal(session.logits(), expected[-1])
        with pytest.raises(RequestError, match="no program to list"):
            engine.program_listing()
        model = engine._model
    with pytest.raises(EngineStateError, match="closed"):
        model.run([Part(model.new_sequence(), [1])])


def test_a_wrong_value_is_refused_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FINBACK_EAGER", "maybe")
    with pytest.raises(RequestError, match="FINBACK_EAGER is 'maybe'"):
        finback.load(write_folder(tmp_path / "tiny"))
