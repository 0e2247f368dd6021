"""docs/exactness.md in NumPy, to the bit: activation encodings, matrix products and the other primitives.

Owns sections 4 to 6 and the integer dot of section 11; `floats` owns 2 and 3. Everything is vectorised over
outputs and loops in Python over what the page puts in order. Refuses formats without a kernel (KeyError from
the table of readers). """

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from finback.reference import floats
from finback.reference.arithmetic import Array, Ints
from finback.reference.floats import F32, LANES
from finback.reference.matrix import Matrix
from finback.reference.rows import index_codes, round_bf16


def pack_int8(x: F32, block: int) -> tuple[Ints, F32]:
    """A8x32 / A8x256 of x [..., k]: codes [..., k / block, block] and scales f32 [..., k / block]."""
    groups = x.reshape(*x.shape[:-1], -1, block)
    d = np.abs(groups).max(-1) / np.float32(127)
    usable = d >= np.float32(2.0**-126)
    d = np.where(usable, d, np.float32(0))
    v = np.float32(1) / np.where(usable, d, np.float32(1))
    scaled = np.rint(groups * v[..., None])
    codes = np.where(usable[..., None], np.clip(scaled, -127, 127), 0).astype(np.int64)
    return codes, d


def pack_bf16(x: F32) -> F32:
    """The BF16 encoding: values below 2^-100 become +0, the others the nearest bf16."""
    return np.where(np.abs(x) < np.float32(2.0**-100), np.float32(0), round_bf16(x))


class Canonical:
    """The `Arithmetic` of the CPU backends."""

    @property
    def dtype(self) -> np.dtype[Any]:
        return np.dtype(np.float32)

    fma = staticmethod(floats.fma)
    dot = staticmethod(floats.dot16)
    sum = staticmethod(floats.sum16)
    exp = staticmethod(floats.exp)
    sigmoid = staticmethod(floats.sigmoid)
    silu = staticmethod(floats.silu)
    softplus = staticmethod(floats.softplus)

    def chain(self, weights: Array, rows: Array, counts: Ints | None = None) -> Array:
        n, channels = rows.shape[-2:]
        total = np.zeros((*np.broadcast_shapes(weights.shape[:-1], rows.shape[:-2]), channels), np.float32)
        for i in range(n):
            step = floats.fma(weights[..., i, None], rows[..., i, :], total)
            total = step if counts is None else np.where((i < counts)[..., None], step, total)
        return total

    def sincos(self, angles: npt.NDArray[np.float64]) -> tuple[Array, Array]:
        sine, cosine = floats.sincos(angles)
        return sine.astype(np.float32), cosine.astype(np.float32)

    def product(self, x: Array, w: Matrix) -> Array:
        flat = x.reshape(-1, w.cols)
        if w.is_block_format:
            out = _block_product(flat, w)
        elif w.format == "FP8_E4M3":
            out = _fp8_product(pack_bf16(flat), w)
        else:
            out = floats.dot16(flat[:, None], w.plain[None])
        return out.reshape(*x.shape[:-1], w.rows)

    def decode(self, w: Matrix, rows: Ints) -> Array:
        """Section 6."""
        if w.is_block_format:
            return _block_values(w)[rows]
        values = w.plain[rows]
        if w.format == "FP8_E4M3":
            assert w.scale_block is not None
            values = values * np.repeat(w.row_scales[rows], w.scale_block[1], axis=-1)[..., : w.cols]
        return values

    def index_dot(self, q: Array, keys: Array, rounded: bool) -> Array:
        """Section 11; q and keys broadcast over leading axes."""
        if not rounded:
            return floats.dot16(q, keys)
        (q_codes, q_scales), (k_codes, k_scales) = index_codes(q), index_codes(keys)
        total = np.zeros(np.broadcast_shapes(q.shape[:-1], keys.shape[:-1]), np.float32)
        for b in range(q_codes.shape[-2]):
            whole = (q_codes[..., b, :] * k_codes[..., b, :]).sum(-1)
            scale = (q_scales[..., b] * np.float32(0.25)) * k_scales[..., b]
            total = floats.fma(whole.astype(np.float32), scale, total)
        return total


def _block_values(w: Matrix) -> F32:
    """Weights of a block format as f32 [R, K]: (scale * group_scale) * code, minus (minimum *
    group_minimum)."""
    b = w.blocks
    width = b.n // b.groups
    per_group = b.scale[..., None] * b.group_scales.astype(np.float32)
    values = np.repeat(per_group, width, axis=2) * b.codes.astype(np.float32)
    if b.group_minima is not None and b.minimum is not None:
        lift = b.minimum[..., None] * b.group_minima.astype(np.float32)
        values = values - np.repeat(lift, width, axis=2)
    return values.reshape(w.rows, w.cols)


def _block_product(x: F32, w: Matrix) -> F32:
    """Section 5, block formats: x [T, K] -> [T, R], exact integers inside a block, one fma chain over the
    blocks."""
    b = w.blocks
    a, d = pack_int8(x, b.n)
    total = np.zeros((len(x), w.rows), np.float32)
    for k in range(b.codes.shape[1]):
        # [T, G, n / G] . [R, G, n / G] over the last axis; exact in f64, where matmul may add in any order.
        inputs = a[:, k].reshape(len(x), b.groups, -1).astype(np.float64)
        codes = b.codes[:, k].reshape(w.rows, b.groups, -1).astype(np.float64)
        scaled = (codes * b.group_scales[:, k, :, None]).reshape(w.rows, -1)
        whole = inputs.reshape(len(x), -1) @ scaled.T
        total = floats.fma(whole.astype(np.float32), b.scale[:, k] * d[:, k, None], total)
        if b.group_minima is not None and b.minimum is not None:
            lift = inputs.sum(-1) @ b.group_minima[:, k].astype(np.float64).T
            total = floats.fma(lift.astype(np.float32), -(b.minimum[:, k] * d[:, k, None]), total)
    return total


def _fp8_product(x: F32, w: Matrix) -> F32:
    """Section 5, FP8: fresh lanes for each scale block, pairs of columns with the odd one first, one tree
    last."""
    assert w.scale_block is not None
    total = np.zeros((len(x), w.rows, LANES), np.float32)
    for block, start in enumerate(range(0, w.cols, w.scale_block[1])):
        stop = min(start + w.scale_block[1], w.cols)
        lanes = np.zeros_like(total)
        for first in range(start, stop, 2 * LANES):
            end = min(first + 2 * LANES, stop)
            for offset in (1, 0):
                columns = slice(first + offset, end, 2)
                width = len(range(first + offset, end, 2))
                lanes[..., :width] = floats.fma(
                    x[:, None, columns], w.plain[None, :, columns], lanes[..., :width]
                )
        total = floats.fma(lanes, w.row_scales[None, :, block, None], total)
    return floats.tree16(total)
