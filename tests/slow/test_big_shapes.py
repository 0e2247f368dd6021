"""Layers of V4-Flash's real width, in GGUF and as published: finite, and the same bytes for any cut, threads and
level."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import finback
from finback.tools.synth import synth

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("name", ["model.gguf", "folder"])
def test_v4_flash_width(name: str, tmp_path: Path) -> None:
    synth(tmp_path / name, "v4-flash", layers=5, experts=8, vocab=4096, drafts=0, seed=3)
    ids = [int(t) for t in np.random.default_rng(1).integers(3, 4096, 135)]
    rows = [0, 3, 4, 127, 128, 134]
    found = []
    for threads, chunks in ((2, None), (1, [5, 1, 122, 3, 4])):
        with finback.load(tmp_path / name, threads=threads, context=160) as engine:
            logits = engine.logits(ids, chunks=chunks, rows=rows)
            assert np.isfinite(logits).all()
            found.append(logits.tobytes())
            few = engine.logits(ids[:6]).tobytes()
    assert found[0] == found[1]
    with finback.load(tmp_path / name, isa="scalar", threads=2, context=160) as engine:
        assert engine.logits(ids[:6]).tobytes() == few
