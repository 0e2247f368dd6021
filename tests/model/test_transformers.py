"""The model against transformers, whose logits lie in tests/model/fixtures.

The bound is four times the noise of the fixture: the difference between transformers' own decode and its own
prefill, which comes from the float32 steps inside its float64 run. Measured agreement is at most twice that
noise. """

from __future__ import annotations

import numpy as np
import pytest

from finback.reference.canonical import Canonical
from finback.reference.oracle import Oracle
from tests.golden import prompt, weights
from tests.model.fixtures import CASES, LENGTH, read
from tests.model.run import Model, run, worst

BOUNDARIES = [1, 2, 3, 126, 5, 1, 130, 33]
"""Chunks that start and stop before, at and after the edges of groups of 4, 8 and 128 and of the window."""


def ragged(n: int) -> list[int]:
    sizes, left = [], n
    for size in BOUNDARIES:
        if left:
            sizes.append(min(size, left))
            left -= sizes[-1]
    return sizes


def loaded(
    name: str, arithmetic: type[Oracle] | type[Canonical]
) -> tuple[Model, np.ndarray, np.ndarray, float]:
    case, fixture = CASES[name], read(name)
    assert fixture.noise < 2e-6, f"{name}: a fixture with near ties proves nothing"
    model = Model.of(case.config, arithmetic(), weights(case.config, case.seed))
    return model, prompt(LENGTH[name], case.config.vocab_size, case.seed), fixture.logits, fixture.noise


@pytest.mark.parametrize("name", CASES)
def test_prefill_equals_transformers(name: str) -> None:
    model, ids, logits, noise = loaded(name, Oracle)
    assert worst(run(model, ids).logits, logits) < 4 * noise


@pytest.mark.parametrize("name", CASES)
def test_ragged_chunks_equal_transformers(name: str) -> None:
    model, ids, logits, noise = loaded(name, Oracle)
    assert worst(run(model, ids, ragged(len(ids))).logits, logits) < 4 * noise


@pytest.mark.parametrize("name", ["tiny", "window", "sparse", "pooled"])
def test_token_by_token_equals_transformers(name: str) -> None:
    model, ids, logits, noise = loaded(name, Oracle)
    assert worst(run(model, ids, [1] * len(ids)).logits, logits) < 4 * noise


@pytest.mark.parametrize("name", ["tiny", "window", "sparse", "pooled"])
def test_canonical_float32_equals_transformers(name: str) -> None:
    model, ids, logits, noise = loaded(name, Canonical)
    ids, logits = ids[:60], logits[:60]
    result = run(model, ids, ragged(len(ids))).logits
    assert worst(result, logits) < 4 * noise + 5e-6  # 5e-6: float32 against float64 through all layers
    assert (result.argmax(-1) == logits.argmax(-1)).all()
