"""Layers of V4-Flash's real width, in GGUF and as published: finite, and the same bytes for any cut, threads,
level and layout."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import finback
from finback import native
from finback.tools.synth import synth

pytestmark = pytest.mark.slow


MODELS = {  # formats of experts and dense matrices; None: the published ones
    "model.gguf": (None, None),
    "q2.gguf": ("IQ2_XXS", "Q2_K"),
    "folder": (None, None),
}


@pytest.mark.parametrize("name", MODELS)
def test_v4_flash_width(name: str, tmp_path: Path) -> None:
    experts, dense = MODELS[name]
    synth(
        tmp_path / name,
        "v4-flash",
        layers=5,
        experts=8,
        vocab=4096,
        drafts=0,
        seed=3,
        experts_format=experts,
        dense_format=dense,
    )
    ids = [int(t) for t in np.random.default_rng(1).integers(3, 4096, 135)]
    rows = [0, 3, 4, 127, 128, 134]
    found, few = set(), set()
    for threads, chunks, weights in (
        (2, None, "mapped"),
        (1, [5, 1, 122, 3, 4], "mapped"),
        (2, [70, 65], "resident"),
        (1, None, "resident"),
    ):
        with finback.load(tmp_path / name, threads=threads, context=160, weights=weights) as engine:
            logits = engine.logits(ids, chunks=chunks, rows=rows)
            assert np.isfinite(logits).all()
            found.add(logits.tobytes())
            few.add(engine.logits(ids[:6]).tobytes())
    for level in native.levels():
        if level.supported:
            for weights in ("mapped", "resident"):
                with finback.load(tmp_path / name, isa=level.name, threads=2, context=160, weights=weights) as engine:
                    few.add(engine.logits(ids[:6]).tobytes())
    assert len(found) == len(few) == 1
