"""Single-precision arithmetic to the bit: docs/exactness.md sections 2 and 3 in NumPy.

Owns `fma` and what is written over it: lanes, trees, exp, log1p and their relatives, and the f64 sine, cosine
and logarithm. NumPy rounds every f32 `+ - * / sqrt` once and never contracts, so only the fused operation has
to be made. Refuses to be fast: each function is the page, vectorised over everything except the order that
the page fixes. """

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt

F32 = npt.NDArray[np.float32]
F64 = npt.NDArray[np.float64]

Operand = F32 | np.float32

LANES: Final = 16

_BELOW_F32: Final = np.int64((1 << 29) - 1)  # bits of an f64 that an f32 has no room for
_HALF_WAY: Final = np.int64(1 << 28)
_SMALLEST_NORMAL: Final = 2.0**-126
_HEX: Final = float.fromhex


def fma(a: Operand, b: Operand, c: Operand) -> F32:
    """a * b + c rounded once to f32; the operands broadcast.

    The product of two f32 is exact in f64; the sum is rounded to f64 and then to f32. The second rounding can
    only be misled where the first one landed exactly half way between two f32 (f64 holds every such point,
    and rounding keeps order); those sums, and the subnormal ones, whose half ways lie elsewhere, are rounded
    to odd first. """
    product = np.multiply(a, b, dtype=np.float64)
    total = np.asarray(np.add(product, c, dtype=np.float64))
    delicate = (total.view(np.int64) & _BELOW_F32 == _HALF_WAY) | (np.abs(total) < _SMALLEST_NORMAL)
    if delicate.any():
        total[delicate] = _rounded_to_odd(
            np.broadcast_to(product, total.shape)[delicate],
            np.broadcast_to(np.asarray(c, np.float64), total.shape)[delicate],
        )
    with np.errstate(over="ignore"):
        return total.astype(np.float32)


def _rounded_to_odd(x: F64, y: F64) -> F64:
    """x + y where an inexact sum takes, of its two f64 neighbours, the one whose last bit is odd.

    With two bits to spare, such a number rounds on to f32 as the exact sum would (Boldo and Melquiond).
    """
    total = x + y
    part = total - x
    error = (x - (total - part)) + (y - part)  # what the sum lost, exactly
    bits = total.view(np.int64)
    outward = np.signbit(error) == np.signbit(total)
    odd = np.where(outward, bits + 1, bits - 1)
    return np.where((error != 0) & (bits & 1 == 0), odd, bits).view(np.float64)


def tree16(lanes: F32) -> F32:
    """Sum of the sixteen lanes on the last axis, in the one order of section 2."""
    a = lanes[..., :8] + lanes[..., 8:]
    b = a[..., :4] + a[..., 4:]
    c = b[..., :2] + b[..., 2:]
    return np.asarray(c[..., 0] + c[..., 1], np.float32)


def dot16(x: F32, y: F32) -> F32:
    """Dot product over the last axis: lane i mod 16 by fma, then the tree. Leading axes broadcast."""
    n = x.shape[-1]
    lanes = np.zeros((*np.broadcast_shapes(x.shape[:-1], y.shape[:-1]), LANES), np.float32)
    for start in range(0, n, LANES):
        width = min(LANES, n - start)
        stop = start + width
        lanes[..., :width] = fma(x[..., start:stop], y[..., start:stop], lanes[..., :width])
    return tree16(lanes)


def sum16(x: F32) -> F32:
    """Sum over the last axis: lane i mod 16 by addition, then the tree."""
    n = x.shape[-1]
    lanes = np.zeros((*x.shape[:-1], LANES), np.float32)
    for start in range(0, n, LANES):
        width = min(LANES, n - start)
        lanes[..., :width] += x[..., start : start + width]
    return tree16(lanes)


def maximum(a: npt.NDArray[Any], b: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """`a > b ? a : b`, which settles what NumPy leaves open for two zeros of different sign."""
    return np.where(a > b, a, b)


_EXP_POLYNOMIAL: Final = tuple(
    np.float32(_HEX(h))
    for h in ("0x1.1239f2p-7", "0x1.5558f2p-5", "0x1.555492p-3", "0x1.fffffcp-2", "0x1p+0", "0x1p+0")
)


def exp(x: F32) -> F32:
    """Section 3: 0 below -87, infinity above 88.72283, else 2^n times a polynomial of the remainder."""
    x = np.asarray(x, np.float32)
    inside = np.clip(x, np.float32(-87), np.float32(88.72283))
    n = np.rint(inside * np.float32(_HEX("0x1.715476p+0")))
    r = fma(n, np.float32(_HEX("-0x1.63p-1")), inside)
    r = fma(n, np.float32(_HEX("0x1.bd0106p-13")), r)
    p = np.full_like(r, _HEX("0x1.6a241ap-10"))
    for coefficient in _EXP_POLYNOMIAL:
        p = fma(p, r, coefficient)
    scaled = _add_to_exponent(p, n.astype(np.int64))
    return np.where(
        x < np.float32(-87), np.float32(0), np.where(x > np.float32(88.72283), np.inf, scaled)
    ).astype(np.float32)


def _add_to_exponent(p: F32, n: npt.NDArray[np.int64]) -> F32:
    """p * 2^n by adding n to the exponent field, as the kernels do; p is near 1, so it neither borrows nor
    wraps."""
    bits = np.ascontiguousarray(p, np.float32).view(np.int32).astype(np.int64) + (n << 23)
    return bits.astype(np.int32).view(np.float32)


def sigmoid(x: F32) -> F32:
    return np.asarray(np.float32(1) / (np.float32(1) + exp(-x)), np.float32)


def silu(x: F32) -> F32:
    return np.asarray(x / (np.float32(1) + exp(-x)), np.float32)


_LOG1P_POLYNOMIAL: Final = tuple(
    np.float32(_HEX(h)) for h in ("0x1.b6d6a4p-4", "0x1.250972p-3", "0x1.9996a8p-3", "0x1.555558p-2")
)


def log1p(e: F32) -> F32:
    """ln(1 + e) for 0 <= e <= 1."""
    s = e / (np.float32(2) + e)
    z = s * s
    q = np.full_like(z, _HEX("0x1.f1aeep-4"))
    for coefficient in _LOG1P_POLYNOMIAL:
        q = fma(q, z, coefficient)
    t = s + s
    return fma(t * z, q, t)


def softplus(x: F32) -> F32:
    return np.asarray(maximum(x, np.zeros_like(x)) + log1p(exp(-np.abs(x))), np.float32)


def _horner(z: F64, coefficients: list[float]) -> F64:
    """Polynomial in z, coefficients from the lowest power up, plain multiplications and additions."""
    total = np.full_like(z, coefficients[-1])
    for c in reversed(coefficients[:-1]):
        total = total * z + c
    return total


def _factorial(n: int) -> float:
    product = 1
    for i in range(2, n + 1):
        product *= i
    return float(product)


_SINE: Final = [(-1.0) ** (k + 1) / _factorial(2 * k + 3) for k in range(8)]
_COSINE: Final = [(-1.0) ** k / _factorial(2 * k + 4) for k in range(7)]
_LOGARITHM: Final = [1.0 / n for n in range(1, 26, 2)]


def sincos(x: F64) -> tuple[F64, F64]:
    """Sine and cosine of 0 <= |x| < 2^22 radians in plain f64 operations (section 3)."""
    q = np.rint(x * _HEX("0x1.45f306dc9c883p-1"))
    y = ((x - q * _HEX("0x1.921fb5p+0")) - q * _HEX("0x1.110b46p-26")) - q * _HEX("0x1.1a62633145c07p-54")
    z = y * y
    s = y + (y * z) * _horner(z, _SINE)
    c = (1 - 0.5 * z) + (z * z) * _horner(z, _COSINE)
    quadrant = q.astype(np.int64) & 3
    sine = np.choose(quadrant, [s, c, -s, -c])
    cosine = np.choose(quadrant, [c, -s, -c, s])
    return sine, cosine


def ln(x: F64) -> F64:
    """Natural logarithm of normal x > 0 in plain f64 operations (section 3)."""
    m, e = np.frexp(np.asarray(x, np.float64))
    low = m < np.sqrt(0.5)
    m, e = np.where(low, m * 2, m), np.where(low, e - 1, e)
    s = (m - 1) / (m + 1)
    z = s * s
    return np.asarray(e * _HEX("0x1.62e42fefa39efp-1") + 2 * s * _horner(z, _LOGARITHM), np.float64)
