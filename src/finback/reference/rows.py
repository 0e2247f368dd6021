"""Cache rounding: what a row becomes when it is stored the way DeepSeek checkpoints were trained to store it.

Owns docs/exactness.md section 9 on values: FP8 and FP4 blocks with power-of-two scales, bf16 rotary channels,
the Hadamard transform. Works in the float type of its input; a block's scale is chosen in f32 in both truths,
so that rounding a rounded row changes nothing. Refuses storage: codes and bytes are the kernels' business.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Ints = npt.NDArray[np.int64]
F32 = npt.NDArray[np.float32]

FP8_BLOCK: Final = 64
FP4_BLOCK: Final = 32


def pow2ceil(t: F32) -> F32:
    """Smallest power of two >= t > 0."""
    mantissa, exponent = np.frexp(t)
    return np.ldexp(np.float32(1), np.where(mantissa == 0.5, exponent - 1, exponent)).astype(np.float32)


def round_float(x: Array, mantissa_bits: int, lowest_exponent: int) -> Array:
    """x to `mantissa_bits` below its leading bit, nearest even; spacing is constant below
    2^lowest_exponent."""
    magnitude = np.abs(x)
    exponent = np.maximum(np.frexp(magnitude)[1] - 1, lowest_exponent)
    spacing = np.ldexp(x.dtype.type(1), exponent - mantissa_bits)
    rounded: Array = np.copysign(np.rint(magnitude / spacing) * spacing, x)
    return rounded


def round_e4m3(x: Array) -> Array:
    """|x| <= 448 to the nearest E4M3 value."""
    return round_float(x, 3, -6)


def round_e2m1(x: Array) -> Array:
    """|x| <= 6 to the nearest E2M1 value."""
    return round_float(x, 1, 0)


def round_bf16(x: Array) -> Array:
    """x to the nearest bf16 value, in the type of x."""
    return round_float(x, 7, -126)


def fp8_scale(block: Array) -> Array:
    """Scale of an FP8 block on the last axis, kept as an axis of 1."""
    amax = np.abs(block).max(-1, keepdims=True).astype(np.float32)
    scale = pow2ceil(np.maximum(amax, np.float32(1e-4)) * np.float32(1 / 448))
    return scale.astype(block.dtype)


def fp4_scale(block: Array) -> Array:
    """Scale of an FP4 block on the last axis, kept as an axis of 1."""
    amax = np.abs(block).max(-1, keepdims=True).astype(np.float32)
    scale = pow2ceil(np.maximum(amax, np.float32(6 * 2.0**-126)) * np.float32(1 / 6))
    return scale.astype(block.dtype)


def round_fp8(x: Array) -> Array:
    """FP8 over the last axis in blocks of 64, the last one shorter where it must be."""
    out = np.empty_like(x)
    for start in range(0, x.shape[-1], FP8_BLOCK):
        block = x[..., start : start + FP8_BLOCK]
        s = fp8_scale(block)
        out[..., start : start + FP8_BLOCK] = round_e4m3(np.clip(block * (1 / s), -448, 448)) * s
    return out


def round_fp4(x: Array) -> Array:
    """FP4 over the last axis in blocks of 32, the last one shorter where it must be."""
    out = np.empty_like(x)
    for start in range(0, x.shape[-1], FP4_BLOCK):
        block = x[..., start : start + FP4_BLOCK]
        s = fp4_scale(block)
        out[..., start : start + FP4_BLOCK] = round_e2m1(np.clip(block * (1 / s), -6, 6)) * s
    return out


def hadamard(x: Array) -> Array:
    """Walsh-Hadamard over the last axis, n = 2^k channels, Sylvester order, scaled by n^-1/2."""
    n, step, y = x.shape[-1], 1, x
    while step < n:
        pairs = y.reshape(*x.shape[:-1], -1, 2, step)
        a, b = pairs[..., 0, :], pairs[..., 1, :]
        y = np.stack([a + b, a - b], axis=-2).reshape(x.shape)
        step *= 2
    return np.asarray(y * x.dtype.type(n**-0.5))


def round_main(x: Array, rotary: int) -> Array:
    """A KV row [..., d]: FP8 on the front channels, bf16 on the last `rotary`."""
    front = x.shape[-1] - rotary
    return np.concatenate([round_fp8(x[..., :front]), round_bf16(x[..., front:])], axis=-1)


def round_index(x: Array) -> Array:
    """An indexer key or query [..., d]: Hadamard, then FP4."""
    return round_fp4(hadamard(x))


def index_codes(x: Array) -> tuple[Ints, F32]:
    """Doubled FP4 codes [..., B, 32] and scales f32 [..., B] of rows [..., d] that hold FP4 values.

    A short last block is filled up with zero codes."""
    padded = np.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, -x.shape[-1] % FP4_BLOCK)])
    blocks = padded.reshape(*x.shape[:-1], -1, FP4_BLOCK)
    s = fp4_scale(blocks)
    codes = np.rint(blocks * (1 / s) * 2).astype(np.int64)
    return codes, s[..., 0].astype(np.float32)
