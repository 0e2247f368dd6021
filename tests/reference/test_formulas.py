"""Single formulas where a case of the past says exactly what must come out: clamp, bias, ties, pooling,
attention."""

from __future__ import annotations

import math

import numpy as np
import pytest

from finback.reference import attend, compress, experts, hyper, index, norm_rope, route, rows
from finback.reference.arithmetic import Arithmetic
from finback.reference.canonical import Canonical
from finback.reference.matrix import Matrix
from finback.reference.oracle import Oracle

BOTH = pytest.mark.parametrize("a", [Oracle(), Canonical()], ids=["oracle", "canonical"])
RNG = np.random.default_rng(11)


def values(a: Arithmetic, *shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(a.dtype)


GATES = [-20.0, -1, 0, 5, 12, 50]
UPS = [-50.0, -9, 0, 9, 50]


@BOTH
@pytest.mark.parametrize("weight", [None, 0.375], ids=["shared", "routed"])
def test_clamp_inside_the_activation(a: Arithmetic, weight: float | None) -> None:
    """Case A09: silu(min(gate, 10)) * clip(up, -10, 10), for shared and routed experts alike."""
    gate, up = (np.array(x, a.dtype).ravel() for x in np.meshgrid(GATES, UPS))
    w = None if weight is None else a.dtype.type(weight)
    got = experts.swiglu(a, gate, up, 10.0, w)
    for g, u, y in zip(gate.tolist(), up.tolist(), got.tolist(), strict=True):
        clamped = min(g, 10.0)
        expected = clamped / (1 + math.exp(-clamped)) * max(min(u, 10.0), -10.0) * (weight or 1.0)
        assert y == pytest.approx(expected, rel=1e-6, abs=1e-30)


@BOTH
def test_clamp_in_whole_experts(a: Arithmetic) -> None:
    """Case A09 through `experts`: the same one-channel network as the routed and as the shared expert."""
    network = tuple(Matrix.of(np.array([[s]], np.float32)) for s in (50.0, -50.0, 1.0))
    w1, w3, w2 = network
    x, one = np.ones((1, 1), a.dtype), np.ones((1, 1), a.dtype)
    ids = np.zeros((1, 1), np.int64)
    routed = experts.experts(a, x, ids, one, [(w1, w3, w2)], None, 10.0)
    both = experts.experts(a, x, ids, one, [(w1, w3, w2)], (w1, w3, w2), 10.0)
    single = -100 / (1 + math.exp(-10))
    assert routed[0, 0] == pytest.approx(single, rel=1e-6)
    assert both[0, 0] == pytest.approx(2 * single, rel=1e-6)
    assert experts.experts(a, x, ids, one, [(w1, w3, w2)], None, 0.0)[0, 0] == pytest.approx(-2500, rel=1e-6)


@BOTH
def test_an_expert_listed_twice_adds_twice(a: Arithmetic) -> None:
    network = tuple(Matrix.of(RNG.standard_normal(s).astype(np.float32)) for s in ((6, 4), (6, 4), (4, 6)))
    w1, w3, w2 = network
    x, weights = values(a, 1, 4), np.array([[0.25, 0.75]], a.dtype)
    twice = experts.experts(a, x, np.zeros((1, 2), np.int64), weights, [(w1, w3, w2)], None, 0.0)
    once = experts.experts(a, x, np.zeros((1, 1), np.int64), weights[:, :1] * 4, [(w1, w3, w2)], None, 0.0)
    np.testing.assert_allclose(twice, once, rtol=1e-5)


@BOTH
def test_bias_chooses_and_never_weighs(a: Arithmetic) -> None:
    """Case A11: scores 0.50 and 0.49, bias 0 and 0.05, top-1: expert 1, with weight from 0.49."""
    scores, bias = np.array([[0.50, 0.49]], a.dtype), np.array([0, 0.05], a.dtype)
    ids = route.choose(scores, bias, 1)
    assert ids.tolist() == [[1]]
    assert route.weigh(a, scores, ids, 2.0, False)[0, 0] == pytest.approx(0.98)
    assert route.weigh(a, scores, ids, 2.0, True)[0, 0] == pytest.approx(2.0)


def test_equal_scores_go_to_the_lower_id() -> None:
    scores = np.array([[1.0, 2, 2, 1, 2]], np.float32)
    assert route.choose(scores, np.zeros(5, np.float32), 2).tolist() == [[1, 2]]
    assert route.choose(scores, np.zeros(5, np.float32), 4).tolist() == [[0, 1, 2, 4]]


@BOTH
def test_index_ties_go_to_the_lower_row(a: Arithmetic) -> None:
    """All ReLUs closed, so every score is zero (of either sign): the first rows are taken."""
    q, keys = np.ones((1, 2, 8), a.dtype), -np.ones((6, 8), a.dtype)
    weights = np.array([[1.0, -1.0]], a.dtype)
    assert [ids.tolist() for ids in index.select(a, q, weights, keys, np.array([6]), 3, False)] == [[0, 1, 2]]


@BOTH
def test_index_limit_and_order(a: Arithmetic) -> None:
    q, weights = np.ones((3, 1, 4), a.dtype), np.ones((3, 1), a.dtype)
    keys = np.array([[1.0], [5], [2], [4], [9]], a.dtype) * np.ones(4, a.dtype)
    chosen = index.select(a, q, weights, keys, np.array([0, 2, 4]), 2, False)
    assert [ids.tolist() for ids in chosen] == [[], [0, 1], [1, 3]]


def test_index_scores_on_codes_equal_scores_on_values() -> None:
    """Section 11: exact integers on FP4 codes are the dot product of the values they stand for."""
    q, keys = rows.round_index(values(Canonical(), 3, 4, 128)), rows.round_index(values(Canonical(), 20, 128))
    weights = values(Canonical(), 3, 4)
    bits = index.scores(Canonical(), q, weights, keys, True)
    exact = index.scores(
        Oracle(), q.astype(np.float64), weights.astype(np.float64), keys.astype(np.float64), True
    )
    np.testing.assert_allclose(bits, exact, rtol=1e-5, atol=1e-5)


@BOTH
def test_pooling_is_a_softmax_over_the_group(a: Arithmetic) -> None:
    ratio, width = 8, 5
    kv, gate, ape = values(a, ratio, width), values(a, ratio, width) * 20, values(a, ratio, width)
    groups, closed = compress.empty_groups(a, 1, width), []
    for p in range(ratio):
        groups, row = compress.feed(a, groups, kv[p], gate[p], ape, p)
        closed.append(row)
    assert [row is None for row in closed] == [True] * (ratio - 1) + [False]
    e = np.exp((gate + ape) - (gate + ape).max(0))
    np.testing.assert_allclose(np.asarray(row), (e * kv).sum(0) / e.sum(0), rtol=2e-5, atol=1e-6)
    assert np.isneginf(groups.m).all()
    assert not groups.l.any()


@BOTH
def test_overlapped_groups_share_a_token(a: Arithmetic) -> None:
    """CSA: row 1 pools tokens 0..3 by their lower channels and 4..7 by their upper; row 0 only its own
    tokens."""
    ratio, width = 4, 3
    kv, gate, ape = values(a, 8, 2 * width), values(a, 8, 2 * width), values(a, ratio, 2 * width)
    groups, pooled = compress.empty_groups(a, 2, width), []
    for p in range(8):
        groups, row = compress.feed(a, groups, kv[p], gate[p], ape, p)
        if row is not None:
            pooled.append(row)
    biased = gate + np.concatenate([ape, ape])
    low, high = slice(0, width), slice(width, 2 * width)
    for row, parts in zip(
        pooled, ([(slice(0, 4), high)], [(slice(0, 4), low), (slice(4, 8), high)]), strict=True
    ):
        k = np.concatenate([kv[t, c] for t, c in parts])
        g = np.concatenate([biased[t, c] for t, c in parts])
        e = np.exp(g - g.max(0))
        np.testing.assert_allclose(row, (e * k).sum(0) / e.sum(0), rtol=2e-5, atol=1e-6)


@BOTH
def test_attention_ignores_what_is_not_listed(a: Arithmetic) -> None:
    """Rows beyond a query's count change no bit, whatever they hold; the sink takes its share of the
    denominator."""
    q, keys, sink = values(a, 2, 3, 16), values(a, 2, 9, 16), values(a, 3)
    counts = np.array([4, 9])
    out = attend.attend(a, q, keys, counts, sink)
    disturbed = keys.copy()
    disturbed[0, 4:] = 1e3
    assert attend.attend(a, q, disturbed, counts, sink).tobytes() == out.tobytes()
    for t in range(2):
        k = keys[t, : counts[t]].astype(np.float64)
        logits = q[t] @ k.T / 4
        e = np.exp(logits)
        expected = e @ k / (e.sum(-1) + np.exp(sink))[:, None]
        np.testing.assert_allclose(out[t], expected, rtol=1e-4, atol=1e-6)


@BOTH
def test_rotation_turns_back(a: Arithmetic) -> None:
    x, table = (
        values(a, 5, 2, 16),
        norm_rope.rotary(a, np.array([0, 1, 7, 1000, 1_000_000]), [1.0, 0.01, 1e-6]),
    )
    there = norm_rope.rotate(a, x, table)
    np.testing.assert_array_equal(there[..., :10], x[..., :10])
    np.testing.assert_array_equal(there[0], x[0])
    np.testing.assert_allclose(norm_rope.rotate(a, there, table, inverse=True), x, atol=1e-6)
    first = x[1, 0, -6] * math.cos(1) - x[1, 0, -5] * math.sin(1)
    assert there[1, 0, -6] == pytest.approx(first, abs=1e-6)


@BOTH
@pytest.mark.parametrize("n", [2, 4, 8])
def test_sinkhorn_ends_with_columns(a: Arithmetic, n: int) -> None:
    comb = hyper.sinkhorn(a, values(a, 6, n, n) * 3, 20, 1e-6)
    np.testing.assert_allclose(comb.sum(1), 1, atol=1e-3)  # hc_eps in the denominators
    np.testing.assert_allclose(comb.sum(2), 1, atol=0.05)
    one = hyper.sinkhorn(a, values(a, 6, n, n) * 3, 1, 1e-6)
    np.testing.assert_allclose(one.sum(1), 1, atol=1e-3)
