"""The arithmetic of docs/exactness.md sections 4 to 6 in NumPy, written from the page and not from the kernels.

Owns an fma that rounds once (float64 with rounding to odd), the meaning of the bytes of most blocks (of the others it
takes the fields that finback.reference reads), and packing, products and decoded rows built on them. All results are
float32 bits, to be compared as bytes. Refuses to be fast: a model.
"""

from __future__ import annotations

from dataclasses import dataclass

import ml_dtypes
import numpy as np
from gguf.quants import IQ4_NL
from numpy.typing import NDArray

from finback.reference.matrix import Matrix

F32 = NDArray[np.float32]
I64 = NDArray[np.int64]
U8 = NDArray[np.uint8]

BLOCK_BYTES = {  # format -> (columns of a block, its bytes in the row)
    "F32": (1, 4),
    "F16": (1, 2),
    "BF16": (1, 2),
    "FP8_E4M3": (1, 1),
    "MXFP4": (32, 17),
    "MXFP4_PAIRS": (32, 16),
    "Q8_0": (32, 34),
    "Q4_0": (32, 18),
    "Q4_K": (256, 144),
    "Q6_K": (256, 210),
    "Q2_K": (256, 84),
    "Q3_K": (256, 110),
    "Q5_K": (256, 176),
    "IQ1_S": (256, 50),
    "IQ1_M": (256, 56),
    "IQ2_XXS": (256, 66),
    "IQ2_XS": (256, 74),
    "IQ2_S": (256, 82),
    "IQ3_XXS": (256, 98),
    "IQ3_S": (256, 110),
    "IQ4_NL": (32, 18),
    "IQ4_XS": (256, 136),
}
_ENCODING_OF_WIDTH = {1: "F32", 32: "A8x32", 256: "A8x256"}
ENCODING = {name: _ENCODING_OF_WIDTH[cols] for name, (cols, _) in BLOCK_BYTES.items()} | {"FP8_E4M3": "BF16"}
DOUBLED_E2M1 = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12])
IQ4_VALUES = np.array(IQ4_NL.kvalues, np.int64)


@dataclass(frozen=True)
class Stored:
    """A matrix as a file holds it: `data` row after row; `scales` and their `block` (rows, cols) if it has a plane."""

    format: str
    data: U8
    rows: int
    cols: int
    scales: NDArray[np.uint8] | NDArray[np.float32] | None = None
    block: tuple[int, int] | None = None

    def rows_of_bytes(self) -> U8:
        return self.data.reshape(self.rows, -1)

    def blocks(self) -> U8:
        """uint8 [rows, blocks, bytes of a block]"""
        return self.data.reshape(self.rows, -1, BLOCK_BYTES[self.format][1])

    def scale_plane(self) -> F32:
        """float32 [scale rows, scale columns]; E8M0 bytes as 2^(b-127)"""
        assert self.scales is not None
        assert self.block is not None
        values = self.scales if self.scales.dtype == np.float32 else self.scales.view(ml_dtypes.float8_e8m0fnu)
        return values.astype(np.float32).reshape(-(-self.rows // self.block[0]), -1)


def fma32(a: F32 | I64, b: F32 | I64, c: F32 | I64) -> F32:
    """a * b + c of float32 values, rounded once.

    The product of two float32 is exact in float64. Its sum with c is rounded to odd there (53 bits >= 24 + 2), so the
    final rounding to float32 sees which side of every tie the true sum lies on.
    """
    with np.errstate(all="ignore"):
        p = np.asarray(a, np.float64) * np.asarray(b, np.float64)
        c64 = np.asarray(c, np.float64)
        s = p + c64
        back = s - p  # error of the sum, exact (two-sum)
        error = (p - (s - back)) + (c64 - back)
        bits = s.view(np.int64)
        inexact = (error != 0) & np.isfinite(s) & (bits & 1 == 0)
        away = (error > 0) == (s > 0)  # the true sum lies beyond s: a step up in magnitude, else a step down
        odd = np.where(inexact, np.where(away, bits + 1, bits - 1), bits)
        return odd.view(np.float64).astype(np.float32)


# ---- activations


@dataclass(frozen=True)
class Packed:
    """One row in an encoding: `codes` (int64, or float32 values) and, for the int8 ones, float32 scales per block."""

    codes: NDArray[np.int64] | F32
    scales: F32
    bytes: bytes


def padded(*arrays: NDArray[np.generic]) -> bytes:
    return b"".join(a.tobytes() + bytes(-a.nbytes % 64) for a in arrays)


def pack(encoding: str, x: F32) -> Packed:
    """A row of section 4. `x` float32 [k], finite."""
    if encoding == "F32":
        return Packed(x, np.ones(1, np.float32), padded(x))
    if encoding == "BF16":
        kept = np.where(np.abs(x) < np.float32(2.0**-100), np.float32(0), x).astype(ml_dtypes.bfloat16)
        return Packed(kept.astype(np.float32), np.ones(1, np.float32), padded(kept))
    width, group = (32, 32) if encoding == "A8x32" else (256, 16)
    blocks = x.reshape(-1, width)
    d = np.abs(blocks).max(axis=1) / np.float32(127)
    d = np.where(d < np.float32(2.0**-126), np.float32(0), d)
    with np.errstate(divide="ignore"):
        v = np.where(d == 0, np.float32(0), np.float32(1) / d).astype(np.float32)
    codes = np.clip(np.rint(blocks * v[:, None]), -127, 127).astype(np.int8)
    sums = codes.reshape(-1, group).sum(axis=1, dtype=np.int32 if width == 32 else np.int16)
    return Packed(codes.ravel().astype(np.int64), d, padded(codes, d, sums))


# ---- what the bytes of a block say


def _f16(b: U8) -> F32:
    return np.ascontiguousarray(b).view(np.float16)[..., 0].astype(np.float32)


def _nibbles(b: U8) -> tuple[I64, I64]:
    return (b & 15).astype(np.int64), (b >> 4).astype(np.int64)


def half_scale(e: U8) -> F32:
    """2^(e-128), by float64"""
    return np.where(e == 255, np.nan, np.exp2(e.astype(np.float64) - 128)).astype(np.float32)


def codes32(m: Stored) -> tuple[I64, F32]:
    """Formats with blocks of 32: signed codes [rows, blocks, 32], scales [rows, blocks]."""
    b = m.blocks()
    if m.format == "Q8_0":
        return b[..., 2:].view(np.int8).astype(np.int64), _f16(b[..., :2])
    if m.format == "MXFP4_PAIRS":
        assert m.scales is not None
        low, high = _nibbles(b)
        pairs = np.stack([low, high], axis=-1).reshape(*b.shape[:2], 32)
        return DOUBLED_E2M1[pairs], half_scale(m.scales.view(np.uint8).reshape(m.rows, -1))
    head = 1 if m.format == "MXFP4" else 2
    codes = np.concatenate(_nibbles(b[..., head:]), axis=-1)
    if m.format == "Q4_0":
        return codes - 8, _f16(b[..., :2])
    if m.format == "IQ4_NL":
        return IQ4_VALUES[codes], _f16(b[..., :2])
    return DOUBLED_E2M1[codes], half_scale(b[..., 0])


@dataclass(frozen=True)
class Codes256:
    """Blocks of 256 in G groups: codes [rows, blocks, G, 256 / G], sc and low [rows, blocks, G], d and dmin [rows,
    blocks]; low and dmin None for a format without minimums."""

    codes: I64
    sc: I64
    d: F32
    low: I64 | None = None
    dmin: F32 | None = None


def codes256(m: Stored) -> Codes256:
    if m.format == "Q4_K":
        return _q4_k(m)
    if m.format == "Q6_K":
        return _q6_k(m)
    b = Matrix(m.format, m.rows, m.cols, m.rows_of_bytes()).blocks
    codes = b.codes.reshape(*b.group_scales.shape, -1)
    return Codes256(codes, b.group_scales, b.scale, b.group_minima, b.minimum)


def _q4_k(m: Stored) -> Codes256:
    b = m.blocks()
    s = b[..., 4:16].astype(np.int64)
    first, second, third = s[..., 0:4], s[..., 4:8], s[..., 8:12]
    sc = np.concatenate([first & 63, (third & 15) | (first >> 6) << 4], axis=-1)
    low = np.concatenate([second & 63, (third >> 4) | (second >> 6) << 4], axis=-1)
    runs = b[..., 16:].reshape(*b.shape[:2], 4, 32)
    codes = np.stack(_nibbles(runs), axis=-2).reshape(*b.shape[:2], 8, 32)
    return Codes256(codes, sc, _f16(b[..., 0:2]), low, _f16(b[..., 2:4]))


def _q6_k(m: Stored) -> Codes256:
    b = m.blocks()
    lead = b.shape[:2]
    ql, qh = b[..., :128].reshape(*lead, 2, 2, 32), b[..., 128:192].reshape(*lead, 2, 1, 32).astype(np.int64)
    low = np.concatenate(_nibbles(ql), axis=-2)  # [.., half, run, 32]: runs 0, 1 low nibbles, 2, 3 high ones
    high = qh >> np.array([0, 2, 4, 6])[:, None] & 3
    codes = (low | high << 4) - 32
    sc = b[..., 192:208].view(np.int8).astype(np.int64)
    return Codes256(codes.reshape(*lead, 16, 16), sc, _f16(b[..., 208:210]))


def floats(m: Stored) -> F32:
    """F32, F16, BF16 and FP8 codes without scale: float32 [rows, cols]"""
    kind = {"F32": np.float32, "F16": np.float16, "BF16": ml_dtypes.bfloat16, "FP8_E4M3": ml_dtypes.float8_e4m3fn}
    values: F32 = m.data.view(kind[m.format]).astype(np.float32)
    return values.reshape(m.rows, m.cols)


# ---- products: float32 [n, rows]


def linear(m: Stored, x: list[Packed]) -> F32:
    with np.errstate(all="ignore"):
        if m.format in ("F32", "F16", "BF16"):
            return _dot16(m, x)
        if m.format == "FP8_E4M3":
            return _fp8(m, x)
        return _codes256(m, x) if ENCODING[m.format] == "A8x256" else _codes32(m, x)


def tree16(lanes: F32) -> F32:
    for half in (8, 4, 2, 1):
        lanes = lanes[..., :half] + lanes[..., half:]
    return lanes[..., 0]


def _dot16(m: Stored, x: list[Packed]) -> F32:
    w, a = floats(m)[None], np.stack([p.codes for p in x]).astype(np.float32)[:, None]
    lanes = np.zeros((len(x), m.rows, 16), np.float32)
    for k in range(0, m.cols, 16):
        n = min(16, m.cols - k)
        lanes[..., :n] = fma32(w[..., k : k + n], a[..., k : k + n], lanes[..., :n])
    return tree16(lanes)


def _fp8(m: Stored, x: list[Packed]) -> F32:
    assert m.block is not None
    w, a, plane = floats(m)[None], np.stack([p.codes for p in x]).astype(np.float32)[:, None], m.scale_plane()
    total = np.zeros((len(x), m.rows, 16), np.float32)
    for c, c0 in enumerate(range(0, m.cols, m.block[1])):
        c1 = min(c0 + m.block[1], m.cols)
        lanes = np.zeros_like(total)
        for k in range(c0, c1, 2):
            j = (k - c0) // 2 % 16
            for column in range(min(k + 1, c1 - 1), k - 1, -1):  # the odd column, if it is there, then the even one
                lanes[..., j] = fma32(w[..., column], a[..., column], lanes[..., j])
        scale = plane[np.arange(m.rows) // m.block[0], c][None, :, None]
        total = fma32(lanes, scale, total)
    return tree16(total)


def _scales(x: list[Packed], b: int) -> F32:
    return np.array([p.scales[b] for p in x], np.float32)[:, None]


def _codes32(m: Stored, x: list[Packed]) -> F32:
    codes, d = codes32(m)
    a = np.stack([p.codes for p in x]).astype(np.int64).reshape(len(x), -1, 32)
    acc = np.zeros((len(x), m.rows), np.float32)
    for b in range(m.cols // 32):
        acc = fma32((a[:, b] @ codes[:, b].T).astype(np.float32), d[None, :, b] * _scales(x, b), acc)
    return acc


def _codes256(m: Stored, x: list[Packed]) -> F32:
    w = codes256(m)
    a = np.stack([p.codes for p in x]).astype(np.int64).reshape(len(x), -1, *w.codes.shape[2:])
    acc = np.zeros((len(x), m.rows), np.float32)
    scaled = w.codes * w.sc[..., None]
    for b in range(m.cols // 256):
        products = a[:, b].reshape(len(x), 256) @ scaled[:, b].reshape(m.rows, 256).T
        acc = fma32(products.astype(np.float32), w.d[None, :, b] * _scales(x, b), acc)
        if w.low is not None and w.dmin is not None:
            minimums = a[:, b].sum(axis=2) @ w.low[:, b].T
            acc = fma32(minimums.astype(np.float32), -(w.dmin[None, :, b] * _scales(x, b)), acc)
    return acc


# ---- weights as numbers: float32 [rows, cols]


def decoded(m: Stored) -> F32:
    with np.errstate(all="ignore"):
        if m.format in ("F32", "F16", "BF16"):
            return floats(m)
        if m.format == "FP8_E4M3":
            assert m.block is not None
            plane = m.scale_plane()
            each = plane[np.arange(m.rows)[:, None] // m.block[0], np.arange(m.cols)[None] // m.block[1]]
            return floats(m) * each
        if ENCODING[m.format] == "A8x256":
            w = codes256(m)
            values = (w.d[..., None] * w.sc.astype(np.float32))[..., None] * w.codes.astype(np.float32)
            if w.low is not None and w.dmin is not None:
                values = values - (w.dmin[..., None] * w.low.astype(np.float32))[..., None]
        else:
            codes, d = codes32(m)
            values = d[..., None] * codes.astype(np.float32)
        return values.reshape(m.rows, m.cols)
