"""RMS norms, rotary positions, and what becomes of queries and keys before attention.

Owns the ops `norm`, `rotary` and `qkv_finish` (docs/exactness.md sections 7 and 8, spec 3.3 and 3.4). Refuses
the cache: the rounding of a row is `rows`, its place is the caller's. """

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from finback.reference.arithmetic import Arithmetic, Array, Ints


def rms(a: Arithmetic, x: Array, eps: float) -> Array:
    """The factor 1 / sqrt(mean(x^2) + eps) over the last axis, kept as an axis of 1."""
    mean = a.dot(x, x) / x.shape[-1]
    return np.asarray(1 / np.sqrt(mean + a.dtype.type(eps)))[..., None]


def norm(a: Arithmetic, x: Array, w: Array | None, eps: float) -> Array:
    """x scaled to unit mean square over the last axis, times w where there is one."""
    scaled = x * rms(a, x, eps)
    return scaled if w is None else scaled * w


def rotary(a: Arithmetic, positions: Ints, frequencies: Sequence[float]) -> Array:
    """Cos and sin of every pair's angle, [T, 2, pairs], for positions [T]; angles are f64."""
    angles = positions.astype(np.float64)[:, None] * np.asarray(frequencies, np.float64)
    sine, cosine = a.sincos(angles)
    return np.stack([cosine, sine], axis=1)


def rotate(a: Arithmetic, x: Array, table: Array, inverse: bool = False) -> Array:
    """x [T, ..., width] with its last 2 * pairs channels rotated as adjacent pairs by table [T, 2, pairs]."""
    pairs = table.shape[-1]
    spread = table.reshape(len(table), 2, *[1] * (x.ndim - 2), pairs)
    cosine, sine = spread[:, 0], -spread[:, 1] if inverse else spread[:, 1]
    out = x.copy()
    even, odd = x[..., -2 * pairs :: 2], x[..., -2 * pairs + 1 :: 2]
    out[..., -2 * pairs :: 2] = a.fma(even, cosine, -(odd * sine))
    out[..., -2 * pairs + 1 :: 2] = a.fma(even, sine, odd * cosine)
    return out


def queries(a: Arithmetic, q: Array, table: Array, eps: float) -> Array:
    """Queries [T, H, d]: norm of each head without weight, then rotation."""
    return rotate(a, norm(a, q, None, eps), table)


def keys(a: Arithmetic, kv: Array, w: Array, table: Array, eps: float) -> Array:
    """Window rows [T, d]: norm with weight, then rotation."""
    return rotate(a, norm(a, kv, w, eps), table)
