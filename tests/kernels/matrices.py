"""Random stored matrices of every format, and the native kernels on them.

Owns the one place where these tests touch the native module, and the making of bytes: all codes, plain or extreme
scales. Refuses infinities and NaN: what those do is tested on its own.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from tests.kernels.linear_model import BLOCK_BYTES, ENCODING, F32, U8, Stored

from finback import _native

FORMATS = tuple(BLOCK_BYTES)
UNIT = {name: cols for name, (cols, _) in BLOCK_BYTES.items()}


LEVELS = tuple(name for name, supported, _ in _native.levels() if supported)
FAST_LEVELS = LEVELS[1:]


def pack(level: str, encoding: str, x: F32) -> tuple[U8, bool]:
    packed, finite = _native.pack(level, encoding, np.ascontiguousarray(x, np.float32))
    return packed, finite


def pack_all(level: str, format: str, x: F32) -> U8:
    """Packed rows [n, bytes] of x [n, cols] in the encoding of the format."""
    rows = [pack(level, ENCODING[format], row) for row in x]
    assert all(finite for _, finite in rows)
    return np.stack([packed for packed, _ in rows])


def linear(
    level: str, m: Stored, packed: U8, row0: int = 0, row1: int | None = None, resident: bool = False
) -> F32:
    """float32 [n, row1 - row0], from the rows of m or from its resident copy"""
    end = m.rows if row1 is None else row1
    out: F32 = _native.linear(
        level, m.format, m.data, m.scales, m.rows, m.cols, m.block, packed, row0, end, resident
    )
    return out


def decode_row(level: str, m: Stored, row: int) -> F32:
    out: F32 = _native.decode_row(level, m.format, m.data, m.scales, m.rows, m.cols, m.block, row)
    return out


def halves(rng: np.random.Generator, count: int, extreme: bool) -> U8:
    """f16 scales as bytes [count, 2]: near 0.01 with both signs, or anything finite with subnormals and the largest."""
    if not extreme:
        values = (rng.standard_normal(count) * 0.01).astype(np.float16)
    else:
        some = rng.integers(0, 0x7C00, count).astype(np.uint16) | rng.integers(0, 2, count).astype(np.uint16) << 15
        edges = np.array([0x0000, 0x8000, 0x0001, 0x83FF, 0x0400, 0x7BFF, 0xFBFF], np.uint16)
        some[::3] = rng.choice(edges, len(some[::3]))
        values = some.view(np.float16)
    return values.view(np.uint8).reshape(count, 2)


HALVES_AT = {  # where d (and dmin) lie in a block; 0 for the formats that are not here
    "Q2_K": (80, 82),
    "Q3_K": (108,),
    "Q4_K": (0, 2),
    "Q5_K": (0, 2),
    "Q6_K": (208,),
}


def set_halves(format: str, data: U8, *factors: U8) -> None:
    """Writes d (and dmin), bytes [count, 2] each, into blocks [count, bytes of a block]."""
    if format == "IQ1_M":  # a nibble of d on top of each of four words
        for i in range(4):
            nibble = factors[0][:, i // 2] >> i % 2 * 4 & 15
            data[:, 49 + 2 * i] = data[:, 49 + 2 * i] & 15 | nibble << 4
        return
    for at, factor in zip(HALVES_AT.get(format, (0,)), factors, strict=True):
        data[:, at : at + 2] = factor


_SCALES_OF_ONE = [1] * 4 + [0] * 4 + [1] * 4  # Q4_K, Q5_K: eight scales of 1, eight minimums of 0
_ONES: dict[str, list[tuple[int, int, int | list[int]]]] = {  # bytes from .. to, and what is there; the rest is 0
    "Q8_0": [(2, 34, 1)],
    "Q4_0": [(2, 18, 0x99)],
    "MXFP4": [(1, 17, 0x22)],
    "MXFP4_PAIRS": [(0, 16, 0x22)],
    "Q2_K": [(0, 16, 1), (16, 80, 0x55)],
    "Q3_K": [(0, 32, 0xFF), (32, 96, 0x55), (96, 104, 0x11), (104, 108, 0xAA)],  # 5 - 4; scales of 33 - 32
    "Q4_K": [(4, 16, _SCALES_OF_ONE), (16, 144, 0x11)],
    "Q5_K": [(4, 16, _SCALES_OF_ONE), (48, 176, 0x11)],
    "Q6_K": [(0, 128, 0x11), (128, 192, 0xAA), (192, 208, 1)],  # 33 - 32
    "IQ4_NL": [(2, 18, 0x88)],
    "IQ4_XS": [(2, 4, 0xAA), (4, 8, 0x11), (8, 136, 0x88)],
}


def ones_in_blocks(format: str, scales: np.ndarray, rows: int = 1) -> Stored:
    """Rows whose block b holds scales[b] in every place; IQ1, which has no 1, holds -7/8 of it. The first point of
    the other grids is all ones."""
    n = len(scales)
    data = np.zeros((n, BLOCK_BYTES[format][1]), np.uint8)
    for start, stop, value in _ONES.get(format, []):
        data[:, start:stop] = value
    cols, e8m0 = n * UNIT[format], (127 + np.log2(np.abs(scales))).astype(np.uint8)
    if format == "MXFP4_PAIRS":
        return Stored(format, np.tile(data.ravel(), rows), rows, cols, np.tile(e8m0, rows), (1, 32))
    if format == "MXFP4":
        data[:, 0] = e8m0
    else:
        d = scales.astype(np.float16).view(np.uint8).reshape(n, 2)
        set_halves(format, data, *[d for _ in HALVES_AT.get(format, (0,))])
    return Stored(format, np.tile(data.ravel(), rows), rows, cols)


def value_of_ones(format: str) -> float:
    return -0.875 if format in ("IQ1_S", "IQ1_M") else 1.0


def exponents(rng: np.random.Generator, count: int, extreme: bool) -> U8:
    """E8M0 bytes near 2^-8, or from the least scale up to 2^40."""
    values = rng.integers(116, 124, count) if not extreme else rng.integers(0, 168, count)
    if extreme:
        values[::3] = rng.choice([0, 1, 2, 3, 127], len(values[::3]))
    return values.astype(np.uint8)


def random_matrix(
    rng: np.random.Generator,
    format: str,
    rows: int,
    cols: int,
    block: tuple[int, int] | None = None,
    float_scales: bool = False,
    extreme: bool = False,
) -> Stored:
    """Random codes (all of them occur) under random scales. `block` is for FP8_E4M3 only."""
    width, size = BLOCK_BYTES[format]
    count = rows * cols // width
    if format in ("F32", "F16", "BF16"):
        spread = np.exp2(rng.uniform(-60, 60, count)) if extreme and format != "F16" else np.ones(count)
        values = (rng.standard_normal(count) * spread).astype(np.float32)
        if format == "F16":
            data = halves(rng, count, extreme) if extreme else values.astype(np.float16).view(np.uint8)
        elif format == "BF16":
            data = (values.view(np.uint32) >> 16).astype(np.uint16).view(np.uint8)
        else:
            data = values.view(np.uint8)
        return Stored(format, np.ascontiguousarray(data).ravel(), rows, cols)
    data = rng.integers(0, 256, (count, size)).astype(np.uint8)
    if format == "FP8_E4M3":
        assert block is not None
        data[(data & 0x7F) == 0x7F] = 0x7E
        plane = -(-rows // block[0]) * -(-cols // block[1])
        scales = exponents(rng, plane, extreme)
        if float_scales:
            numbers = (rng.standard_normal(plane) * 0.01).astype(np.float32)
            return Stored(format, data.ravel(), rows, cols, numbers, block)
        return Stored(format, data.ravel(), rows, cols, scales, block)
    if format == "MXFP4_PAIRS":
        return Stored(format, data.ravel(), rows, cols, exponents(rng, count, extreme), (1, 32))
    if format == "MXFP4":
        data[:, 0] = exponents(rng, count, extreme)
    else:
        set_halves(format, data, *(halves(rng, count, extreme) for _ in HALVES_AT.get(format, (0,))))
    return Stored(format, data.ravel(), rows, cols)


def random_inputs(rng: np.random.Generator, n: int, cols: int) -> F32:
    """float32 [n, cols]: a plain row, then zeros, constants (codes at the clamp), wide ranges, tiny values, in turn."""
    x = rng.standard_normal((n, cols)).astype(np.float32)
    for t in range(1, n):
        kind = t % 5
        if kind == 1:
            x[t] = np.where(rng.random(cols) < 0.7, 0, x[t])
        elif kind == 2:
            x[t] = rng.choice(np.array([-3.5, 3.5], np.float32), cols)
        elif kind == 3:
            x[t] *= np.exp2(rng.uniform(-40, 10, cols)).astype(np.float32)
        elif kind == 4:
            x[t] *= np.float32(2.0 ** -rng.integers(60, 140))
    return x


def same_bits(a: F32, b: F32) -> bool:
    return a.dtype == b.dtype == np.float32 and a.shape == b.shape and a.tobytes() == b.tobytes()


def first_difference(a: F32, b: F32) -> str:
    at: Sequence[int] = np.argwhere(a.view(np.uint32) != b.view(np.uint32))[0]
    return f"at {tuple(int(i) for i in at)}: {a[tuple(at)]!r} against {b[tuple(at)]!r}"
