"""The functions of docs/exactness.md section 3: errors against 80-bit arithmetic, bits against the model.

Owns the numbers 0.895 and 1.97 ulp of that page, and the f64 functions. Both are the maxima over all floats
(found by trying them all, which takes minutes here); the grids contain the floats where they are reached. The
kernels reach exp through `exp_shifted` and log1p through `router_scores`; both are compared with the model on
the grids on which the model's error is measured.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from tests.kernels import model
from tests.kernels.cases import LEVELS, kernels

F = np.float32


def ulps(got: model.Floats, want: np.ndarray) -> float:
    """Largest distance in units of the last f32 place of the true value."""
    unit = np.ldexp(np.longdouble(1), np.frexp(want)[1] - 24)
    return float(np.max(np.abs(got.astype(np.longdouble) - want) / unit))


def exp_grid() -> model.Floats:
    """Dense over the range, denser around zero, and every float near the borders of the steps of ln 2."""
    steps = (np.arange(-125, 128) + 0.5) * np.log(2)
    near = np.nextafter(steps.astype(F), F(0))[:, None].view(np.int32) + np.arange(-200, 200, dtype=np.int32)
    return np.concatenate([
        np.linspace(-87, 88.72283, 500_000, dtype=F), np.linspace(-1, 1, 200_000, dtype=F),
        near.ravel().view(F),
        np.ldexp(F(1), np.arange(-149, 6)).astype(F), -np.ldexp(F(1), np.arange(-149, 6)).astype(F),
        np.array([float.fromhex("0x1.4cec68p+2"), float.fromhex("-0x1.aaf86cp+4")], F),
    ])  # fmt: skip


def unit_grid() -> model.Floats:
    return np.concatenate([
        np.linspace(0, 1, 400_000, dtype=F), np.geomspace(2.0**-149, 1, 200_000).astype(F),
        np.array([float.fromhex("0x1.fa2cp-9"), 0], F),
    ])  # fmt: skip


def test_exp_is_within_its_bound() -> None:
    x = exp_grid()
    assert np.finfo(np.longdouble).nmant >= 63, "this test needs 80-bit arithmetic"
    assert 0.894 < ulps(model.exp32(x), np.exp(x.astype(np.longdouble))) < 0.895


def test_log1p_is_within_its_bound() -> None:
    e = unit_grid()[:-1]
    e = e[e >= 2.0**-126]
    assert 1.968 < ulps(model.log1p32(e), np.log1p(e.astype(np.longdouble))) < 1.97


@pytest.mark.parametrize("level", LEVELS)
def test_kernels_have_the_bits_of_the_model(level: str) -> None:
    x = exp_grid()
    assert kernels.exp_shifted(level, x, 0.0).tobytes() == model.exp32(x).tobytes()
    logits = np.concatenate([-unit_grid(), x, np.array([1e30, -1e30, -0.0], F)])
    assert kernels.router_scores(level, logits).tobytes() == model.router_scores(logits).tobytes()


@pytest.mark.parametrize("level", LEVELS)
def test_exp_at_its_ends(level: str) -> None:
    top, bottom = F(88.72283), F(-87)
    x = np.array(
        [np.nextafter(top, F(100)), top, bottom, np.nextafter(bottom, F(-100)), -1e30, -np.inf, 0, -0.0], F
    )
    y = kernels.exp_shifted(level, x, 0.0)
    assert np.isposinf(y[0])
    assert np.isfinite(y[1])
    assert y[1] > 3.4e38
    assert y[2] > 2.0**-126
    assert y[3:].tobytes() == np.array([0, 0, 0, 1, 1], F).tobytes()


@pytest.mark.parametrize("level", LEVELS)
def test_activations_are_close_to_the_true_functions(level: str) -> None:
    x = np.linspace(-80, 80, 40_001, dtype=F)
    wide = x.astype(np.longdouble)
    true_silu = wide / (1 + np.exp(-wide))
    assert ulps(kernels.swiglu(level, x, np.ones_like(x), 0.0, None)[x != 0], true_silu[x != 0]) < 3
    true_scores = np.sqrt(np.maximum(wide, 0) + np.log1p(np.exp(-np.abs(wide))))
    assert ulps(kernels.router_scores(level, x), true_scores) < 3


def test_fma32_rounds_once() -> None:
    """Against exact fractions, on operands chosen so that a double rounding would show."""
    rng = np.random.default_rng(1)
    n = 4000
    a, b = (
        (rng.standard_normal(n) * 2.0 ** rng.integers(-70, 20, n)).astype(F),
        rng.standard_normal(n).astype(F),
    )
    product = a.astype(np.float64) * b.astype(np.float64)
    c = np.where(
        rng.random(n) < 0.5, -product * (1 + 2.0**-25), product * 2.0 ** rng.integers(-30, 30, n)
    ).astype(F)
    c[: n // 4] = np.nextafter(np.float64(1), 2) + 2.0**-24 * rng.integers(-3, 4, n // 4)
    got = model.fma32(a, b, c)
    for i in range(n):
        exact = Fraction(float(a[i])) * Fraction(float(b[i])) + Fraction(float(c[i]))
        below, above = np.nextafter(got[i], F(-np.inf)), np.nextafter(got[i], F(np.inf))
        error = abs(Fraction(float(got[i])) - exact)
        for other in (below, above):
            distance = abs(Fraction(float(other)) - exact)
            odd = int(got[i].view(np.int32)) & 1
            assert error < distance or (error == distance and not odd), (a[i], b[i], c[i])


def test_rotary_table() -> None:
    freq = np.concatenate([10000.0 ** (-np.arange(0, 64, 2) / 64), [1.0, 3.9, 0.0]])
    positions = np.array([0, 1, 2, 7, 100, 4095, 65_536, 999_999, 1_048_575], np.int64)
    cos, sin = kernels.rotary_table(freq, positions)
    assert cos.shape == sin.shape == (9, 35)
    want = model.rotary_table(freq, positions)
    assert (cos.tobytes(), sin.tobytes()) == (want[0].tobytes(), want[1].tobytes())
    angle = (positions[:, None] * freq).astype(
        np.longdouble
    )  # the f64 product is the definition of the angle
    np.testing.assert_allclose(cos, np.cos(angle), rtol=0, atol=2.0**-25 + 1e-14)
    np.testing.assert_allclose(sin, np.sin(angle), rtol=0, atol=2.0**-25 + 1e-14)


def test_rotary_table_near_multiples_of_half_pi() -> None:
    k = np.arange(1, 2_000_000, 997)
    freq = (k * np.pi / 2) / 1000
    cos, sin = kernels.rotary_table(freq, np.array([1000], np.int64))
    angle = (1000.0 * freq).astype(np.longdouble)
    small = np.where(k % 2 == 1, np.abs(cos[0]), np.abs(sin[0]))
    true = np.abs(np.where(k % 2 == 1, np.cos(angle), np.sin(angle)))
    inside = k * np.pi / 2 < 2**22
    np.testing.assert_allclose(small[inside], true[inside].astype(np.float64), rtol=1e-5, atol=1e-18)


def test_exact_ln() -> None:
    rng = np.random.default_rng(2)
    root = float.fromhex("0x1.6a09e667f3bcdp-1")
    x = np.concatenate([
        np.exp(rng.uniform(-700, 700, 20_000)), 1 + rng.uniform(-1e-6, 1e-6, 2000),
        np.ldexp(1.0, np.arange(-1022, 1024)),
        [1.0, root, np.nextafter(root, 0), np.nextafter(root, 1), 2 * root,
         np.nextafter(2 * root, 0), 1.7e308],
    ])  # fmt: skip
    got = kernels.exact_ln(x)
    assert got.tobytes() == np.array([model.exact_ln(float(v)) for v in x]).tobytes()
    want = np.log(x.astype(np.longdouble))
    np.testing.assert_allclose(got, want.astype(np.float64), rtol=6e-16)
    assert kernels.exact_ln(np.ones(1))[0] == 0.0
