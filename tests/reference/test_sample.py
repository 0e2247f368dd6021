"""Sampling by docs/exactness.md section 14: known random bits, filters by hand, and frequencies that fit."""

from __future__ import annotations

import numpy as np
import pytest

from finback.reference import sample

LOGITS = np.array([1.0, 3.0, 2.0, 3.0, -1.0], np.float32)


def draws(n: int, **settings: float) -> list[int]:
    return [sample.draw(LOGITS, position=p, **settings) for p in range(n)]  # type: ignore[arg-type]


def test_splitmix_is_the_published_generator() -> None:
    """First outputs of splitmix64 from state 1234567 (the reference implementation's own example)."""
    state, golden = 1234567, 0x9E3779B97F4A7C15
    outputs = [sample.mix(state + i * golden) for i in range(3)]
    assert outputs == [6457827717110365317, 3203168211198807973, 9817491932198370423]


def test_temperature_zero_takes_the_lowest_of_equals() -> None:
    assert draws(5, temperature=0) == [1] * 5


def test_filters() -> None:
    assert set(draws(300, temperature=1.0, top_k=1)) == {1}
    assert set(draws(300, temperature=1.0, top_k=2)) == {1, 3}
    assert set(draws(300, temperature=1.0, top_p=0.3)) == {1}
    assert set(draws(300, temperature=1.0, top_p=0.85)) == {1, 2, 3}
    assert set(draws(300, temperature=1.0, min_p=0.9)) == {1, 3}
    assert set(draws(300, temperature=1e-6)) == {1, 3}
    assert set(draws(300, temperature=1e-45)) == {1, 3}


def test_frequencies_follow_the_softmax() -> None:
    count = np.bincount(draws(2000, temperature=1.0, seed=7), minlength=5) / 2000
    e = np.exp(LOGITS - 3.0)
    np.testing.assert_allclose(count, e / e.sum(), atol=0.03)


def test_draws_depend_on_seed_choice_and_position_alone() -> None:
    assert draws(40, temperature=1.0, seed=1) == draws(40, temperature=1.0, seed=1)
    assert draws(40, temperature=1.0, seed=1) != draws(40, temperature=1.0, seed=2)
    assert draws(40, temperature=1.0, choice=1) != draws(40, temperature=1.0, choice=2)


def test_log_probs() -> None:
    ids = np.arange(5)
    wide = LOGITS.astype(np.float64)
    expected = wide - np.log(np.exp(wide).sum())
    got = sample.log_probs(LOGITS, ids)
    assert got.dtype == np.float32
    np.testing.assert_allclose(got, expected, rtol=1e-6)
    assert np.exp(got.astype(np.float64)).sum() == pytest.approx(1, abs=1e-6)
