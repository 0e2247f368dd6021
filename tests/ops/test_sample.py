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


WIDE = {
    "peaked": (RNG.standard_normal(20_011) * 2.5 + 9 * (RNG.random(20_011) < 1e-3)).astype(np.float32),
    "flat": (RNG.standard_normal(20_011) * 0.01).astype(np.float32),
    "steps": np.sort(RNG.integers(-40, 40, 20_011)).astype(np.float32),
    "masked": np.where(np.arange(20_011) < 20_000, -1.0e30, RNG.standard_normal(20_011) * 4).astype(np.float32),
}


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("name", WIDE)
def test_draws_from_a_wide_row(name: str, level: str) -> None:
    """Rows of more blocks than a filter looks at first: its answer may lie in the few, in more, or in all."""
    logits = WIDE[name]
    sampler = native.Sampler(level, len(logits))
    for t, k, p, m in (
        (1.0, 0, 1.0, 0.0), (0.0, 0, 1.0, 0.0), (1e-38, 0, 0.9, 0.0), (1.0, 40, 1.0, 0.0), (0.7, 400, 0.9, 0.0),
        (1.0, 19_000, 0.99, 0.0), (1.3, 0, 0.01, 0.0), (1.0, 0, 0.5, 0.0), (1.0, 0, 0.999, 0.01), (0.9, 0, 1.0, 0.02),
    ):  # fmt: skip
        for seed in range(3):
            where = {"temperature": t, "top_k": k, "top_p": p, "min_p": m, "seed": seed, "choice": 0, "position": 5}
            assert sampler.draw(logits, *where.values()) == sample.draw(logits, **where), where  # type: ignore[arg-type]


@pytest.mark.parametrize("level", LEVELS)
def test_a_smaller_logit_of_the_same_quotient_comes_first_by_its_id(level: str) -> None:
    """Division can make two logits one z; top_k then keeps the lower id, though its block's maximum is smaller."""
    most = np.float32(7)
    less = np.nextafter(most, np.float32(0))
    t = next(x for x in np.arange(1.7, 1.8, 1e-3, dtype=np.float32) if most / x == less / x)
    logits = np.full(20_000, -50, np.float32)
    logits[[10, 15_000]] = less, most
    where = {"temperature": float(t), "top_k": 1, "top_p": 1.0, "min_p": 0.0, "seed": 3, "choice": 0, "position": 9}
    assert sample.draw(logits, **where) == 10  # type: ignore[arg-type]
    assert native.Sampler(level, len(logits)).draw(logits, *where.values()) == 10


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
