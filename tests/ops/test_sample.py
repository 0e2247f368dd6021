"""The native sampler against finback.reference.sample: the same ids, the same bytes of log-probabilities."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from finback import native
from finback.reference import sample
from tests.ops.compare import LEVELS

RNG = np.random.default_rng(5)

ROWS = {
    "small": (RNG.standard_normal(97) * 3).astype(np.float32),
    "large": (RNG.standard_normal(4099) * 4).astype(np.float32),
    "ties": np.repeat(np.array([1, 3, 3, 2], np.float32), 25),
    "masked": np.where(np.arange(97) % 3 == 0, RNG.standard_normal(97), -3.0e38).astype(np.float32),
    "single": np.array([0.5], np.float32),
}
SETTINGS = [
    {"temperature": t, "top_k": k, "top_p": p, "min_p": m}
    for t, k, p, m in itertools.product((0.0, 1e-6, 0.7, 2.0), (0, 1, 5), (0.0, 0.3, 0.95, 1.0), (0.0, 0.2, 1.0))
]


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("name", ROWS)
def test_draws(name: str, level: str) -> None:
    logits = ROWS[name]
    sampler = native.Sampler(level, len(logits))
    for number, s in enumerate(SETTINGS):
        for position in (0, 7 + number, 1 << 40):
            where = {"seed": number, "choice": number % 3, "position": position}
            drawn = sampler.draw(logits, *s.values(), *where.values())
            assert drawn == sample.draw(logits, **s, **where), (s, where)  # type: ignore[arg-type]


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("name", ROWS)
def test_log_probs(name: str, level: str) -> None:
    logits = ROWS[name]
    ids = np.arange(len(logits), dtype=np.int32)
    out = np.empty(len(logits), np.float32)
    assert native.Sampler(level, len(logits)).log_probs(logits, ids, out)
    assert out.tobytes() == sample.log_probs(logits, ids.astype(np.int64)).tobytes()


def test_counter() -> None:
    for numbers in ((0, 0, 0), (7, 1, 12345), (2**64 - 1, 3, 2**40)):
        assert native.counter_random(*numbers) == sample.counter(*numbers)
