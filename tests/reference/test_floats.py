"""The primitives of docs/exactness.md against exact rational arithmetic and against the page, written out one
by one."""

from __future__ import annotations

import math
from decimal import Decimal, localcontext
from fractions import Fraction

import numpy as np
import pytest

from finback.reference import floats
from finback.reference.floats import F32


def nearest_f32(x: Fraction) -> np.float32:
    """x rounded once to f32, nearest even, by integers alone."""
    if x == 0:
        return np.float32(0)
    magnitude = abs(x)
    exponent = magnitude.numerator.bit_length() - magnitude.denominator.bit_length()
    if Fraction(2) ** exponent > magnitude:
        exponent -= 1
    unit = Fraction(2) ** (max(exponent, -126) - 23)
    whole, rest = divmod(magnitude / unit, 1)
    whole += rest > Fraction(1, 2) or (rest == Fraction(1, 2) and whole % 2)
    return np.float32(math.copysign(float(whole * unit), x))


def exact_fma(a: F32, b: F32, c: F32) -> F32:
    return np.array(
        [
            nearest_f32(Fraction(float(x)) * Fraction(float(y)) + Fraction(float(z)))
            for x, y, z in zip(a, b, c, strict=True)
        ],
        np.float32,
    )


def random_f32(rng: np.random.Generator, n: int, low: int, high: int) -> F32:
    """Random signs and mantissas, exponents from 2^low to 2^high."""
    mantissa = 1 + rng.integers(0, 1 << 23, n) / (1 << 23)
    return (mantissa * 2.0 ** rng.integers(low, high, n) * rng.choice([-1, 1], n)).astype(np.float32)


@pytest.mark.parametrize(
    ("product", "addend"),
    [
        ((-2, 2), (-3, 3)),
        ((-2, 2), (-30, -20)),
        ((-2, 2), (20, 30)),
        ((-75, -60), (-149, -120)),
        ((-2, 2), (-110, -80)),
    ],
    ids=["near", "small addend", "large addend", "subnormal", "tiny addend"],
)
def test_fma_rounds_once(product: tuple[int, int], addend: tuple[int, int]) -> None:
    rng = np.random.default_rng(1)
    a, b = random_f32(rng, 3000, *product), random_f32(rng, 3000, *product)
    c = random_f32(rng, 3000, *addend)
    assert floats.fma(a, b, c).tobytes() == exact_fma(a, b, c).tobytes()


def test_fma_at_half_ways() -> None:
    """Products one bit beside the point half way between two f32, with an addend too small for f64: the case
    that rounding to f64 and then to f32 gets wrong."""
    one = np.float32(1)
    a = np.array([1 + 2.0**-12, 1 + 2.0**-12, 1 + 2.0**-23, 3], np.float32)
    b = np.array([1 + 2.0**-12, 1 + 2.0**-12, 0.5, 2.0**-24], np.float32)
    c = np.array([2.0**-80, -(2.0**-80), 2.0**-90, one], np.float32)
    assert floats.fma(a, b, c).tobytes() == exact_fma(a, b, c).tobytes()
    twice = (a.astype(np.float64) * b + c).astype(np.float32)
    assert (twice != exact_fma(a, b, c)).any(), "the inputs no longer show the difference"


def test_fma_cancels_exactly_and_overflows_to_infinity() -> None:
    x = np.float32(1 + 2.0**-23)
    below = np.float32(x * x)
    assert floats.fma(x, x, np.float32(-below)) == np.float32(float(x) * float(x) - float(below))
    assert np.isposinf(floats.fma(np.float32(3e38), np.float32(2), np.float32(0)))


def test_lanes_and_tree() -> None:
    rng = np.random.default_rng(2)
    for n in (1, 4, 15, 16, 17, 37):
        x, y = rng.standard_normal((2, n)).astype(np.float32)
        dot, plain = np.zeros((2, 16), np.float32)
        for i in range(n):
            dot[i % 16] = exact_fma(x[i : i + 1], y[i : i + 1], dot[i % 16 : i % 16 + 1])[0]
            plain[i % 16] += x[i]
        for lanes, result in ((dot, floats.dot16(x, y)), (plain, floats.sum16(x))):
            a = [lanes[i] + lanes[i + 8] for i in range(8)]
            b = [a[i] + a[i + 4] for i in range(4)]
            assert result == (b[0] + b[2]) + (b[1] + b[3])
    four = np.array([1e8, 1, -1e8, 1], np.float32)
    assert floats.sum16(four) == np.float32(2)  # (x0 + x2) + (x1 + x3)


def ulps(got: F32, exact: np.ndarray) -> float:
    return float(
        (np.abs(got.astype(np.float64) - exact) / np.spacing(np.abs(exact).astype(np.float32))).max()
    )


def test_exp_and_log1p_are_as_accurate_as_the_page_says() -> None:
    x = np.linspace(-86.9, 88.7, 200_001).astype(np.float32)
    assert ulps(floats.exp(x), np.exp(x.astype(np.float64))) < 0.88
    e = np.linspace(0, 1, 100_001).astype(np.float32)[1:]
    assert ulps(floats.log1p(e), np.log1p(e.astype(np.float64))) < 1.92


def test_exp_at_its_ends() -> None:
    x = np.array([-np.inf, -1e30, -87.00001, -87, -0.0, 0, 88.72283, 88.72285, np.inf], np.float32)
    y = floats.exp(x)
    assert (y[:3] == 0).all()
    assert y[3] == pytest.approx(1.6458115e-38, rel=1e-6)
    assert (y[4:6] == 1).all()
    assert np.isfinite(y[6])
    assert y[6] > 3.402e38
    assert np.isposinf(y[7:]).all()


def test_sigmoid_and_its_relatives() -> None:
    x = np.linspace(-80, 80, 4001).astype(np.float32)
    wide = x.astype(np.float64)
    np.testing.assert_allclose(floats.sigmoid(x), 1 / (1 + np.exp(-wide)), rtol=4e-7)
    np.testing.assert_allclose(floats.silu(x), wide / (1 + np.exp(-wide)), rtol=4e-7, atol=1e-30)
    np.testing.assert_allclose(floats.softplus(x), np.logaddexp(wide, 0), rtol=4e-7)


def test_sine_cosine_and_logarithm() -> None:
    x = np.concatenate([np.linspace(-10, 10, 10_001), np.linspace(0, 2.0**20, 10_001), [2.0**22 - 1]])
    sine, cosine = floats.sincos(x)
    assert np.abs(sine - np.sin(x)).max() < 3e-16
    assert np.abs(cosine - np.cos(x)).max() < 3e-16
    values = np.array([1e-300, 0.5, 0.70710678, 0.7071068, 1, 1.5, 129280, 1e300])
    with localcontext() as context:
        context.prec = 40
        exact = np.array([float(Decimal(float(v)).ln()) for v in values])
    np.testing.assert_allclose(floats.ln(values), exact, rtol=4e-16, atol=4e-16)
