"""The fields that the bytes of a block hold: codes, scales, minima, and the value of every small-float code.

Owns the meaning of the bytes of every block format that has a kernel (native/kernels/format.h), read independently
of the codecs in finback.formats: two readers of the same layouts, which tests hold equal. Only the grids of the IQ
formats, which are data and no layout, are shared. Refuses arithmetic: see matrix.py. """

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from finback.formats.grids import TABLE, grid

Bytes = npt.NDArray[np.uint8]
Ints = npt.NDArray[np.int64]
F32 = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Blocks:
    """Integer blocks of n codes in G equal groups: weight = scale * group_scale * code - minimum *
    group_minimum.

    codes [R, B, n]; group_scales [R, B, G]; scale f32 [R, B]; group_minima [R, B, G] and minimum f32 [R, B]
    or both None. R rows of the matrix, B blocks of a row. """

    codes: Ints
    group_scales: Ints
    scale: F32
    group_minima: Ints | None = None
    minimum: F32 | None = None

    @property
    def n(self) -> int:
        return int(self.codes.shape[2])

    @property
    def groups(self) -> int:
        return int(self.group_scales.shape[2])


# ---- values of the small floats ----------------------------------------------------------------------------


def _e4m3_values() -> F32:
    code = np.arange(256)
    exponent, mantissa = code >> 3 & 15, code & 7
    magnitude = np.where(exponent == 0, mantissa * 2.0**-9, (8 + mantissa) * 2.0 ** (exponent - 10))
    magnitude[code & 127 == 127] = np.nan
    return np.where(code < 128, magnitude, -magnitude).astype(np.float32)


E4M3_VALUES: Final = _e4m3_values()
E8M0_VALUES: Final = np.append(2.0 ** np.arange(-127.0, 128.0), np.nan).astype(np.float32)
DOUBLED_E2M1: Final = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12])
"""Twice the value of each E2M1 code: integers, so that a block's dot product is exact."""


# ---- readers: uint8 [R, B, bytes of a block] -> fields -----------------------------------------------------


def _half(data: Bytes) -> F32:
    return np.ascontiguousarray(data).view(np.float16)[..., 0].astype(np.float32)


def _ones(data: Bytes) -> Ints:
    return np.ones((*data.shape[:2], 1), np.int64)


def _halves(packed: Bytes) -> Ints:
    """Nibbles of byte i are values i and i + bytes."""
    return np.concatenate([packed & 15, packed >> 4], axis=-1).astype(np.int64)


def _q8_0(data: Bytes) -> Blocks:
    codes = np.ascontiguousarray(data[..., 2:]).view(np.int8).astype(np.int64)
    return Blocks(codes, _ones(data), _half(data[..., :2]))


def _q4_0(data: Bytes) -> Blocks:
    return Blocks(_halves(data[..., 2:]) - 8, _ones(data), _half(data[..., :2]))


def _mxfp4(data: Bytes) -> Blocks:
    """s = 2^(E8M0 - 128) on doubled codes: half the stored scale."""
    return Blocks(
        DOUBLED_E2M1[_halves(data[..., 1:])], _ones(data), E8M0_VALUES[data[..., 0]] / np.float32(2)
    )


def mxfp4_pairs(data: Bytes, scales: F32) -> Blocks:
    """Byte i of a row holds values 2i (low) and 2i + 1."""
    nibbles = np.stack([data & 15, data >> 4], axis=-1).reshape(*scales.shape, 32)
    return Blocks(DOUBLED_E2M1[nibbles], np.ones((*scales.shape, 1), np.int64), scales / np.float32(2))


def _q4_k(data: Bytes) -> Blocks:
    """12 bytes hold eight 6-bit scales and minima: the first four of each in the low 6 bits of bytes 0..3 and
    4..7, the last four as a nibble in bytes 8..11 and two high bits on top of the first ones."""
    packed = data[..., 4:16].astype(np.int64)
    a, b, c = packed[..., :4], packed[..., 4:8], packed[..., 8:]
    scales = np.concatenate([a & 63, (c & 15) | (a >> 6) << 4], axis=-1)
    minima = np.concatenate([b & 63, (c >> 4) | (b >> 6) << 4], axis=-1)
    codes = _halves(data[..., 16:].reshape(*data.shape[:2], 4, 32)).reshape(*data.shape[:2], 256)
    return Blocks(codes, scales, _half(data[..., :2]), minima, _half(data[..., 2:4]))


def _q6_k(data: Bytes) -> Blocks:
    """Each half of 128: four runs of 32 whose low nibbles share 64 bytes and whose high bit pairs share
    32."""
    low = data[..., :128].astype(np.int64).reshape(*data.shape[:2], 2, 2, 32)
    high = data[..., 128:192].astype(np.int64).reshape(*data.shape[:2], 2, 1, 32)
    nibbles = np.concatenate([low & 15, low >> 4], axis=-2)
    pairs = high >> np.array([[0], [2], [4], [6]]) & 3
    codes = (nibbles | pairs << 4).reshape(*data.shape[:2], 256) - 32
    scales = np.ascontiguousarray(data[..., 192:208]).view(np.int8).astype(np.int64)
    return Blocks(codes, scales, _half(data[..., 208:210]))


def _nibble_list(packed: Bytes) -> Ints:
    """Nibbles of byte i are values 2 i and 2 i + 1."""
    return np.stack([packed & 15, packed >> 4], axis=-1).reshape(*packed.shape[:-1], -1).astype(np.int64)


def _runs(packed: Bytes, bits: int) -> Ints:
    """256 codes of 1, 2 or 4 bits: byte i of every 32 holds values i, i + 32, i + 64 ... of its run."""
    lead, per_byte = packed.shape[:2], 8 // bits
    rows = packed.astype(np.int64).reshape(*lead, -1, 1, 32)
    return (rows >> bits * np.arange(per_byte)[:, None] & (1 << bits) - 1).reshape(*lead, 256)


def _q2_k(data: Bytes) -> Blocks:
    """16 bytes of scales and minima, nibbles of a byte; codes of two bits; d, dmin."""
    scales, minima = (data[..., :16] & 15).astype(np.int64), (data[..., :16] >> 4).astype(np.int64)
    return Blocks(_runs(data[..., 16:80], 2), scales, _half(data[..., 80:82]), minima, _half(data[..., 82:84]))


def _q3_k(data: Bytes) -> Blocks:
    """32 bytes of third bits, 64 of the lower two; scales: eight bytes of nibbles (all low ones first), four of bit
    pairs (scales 0..3 at bit 0, 4..7 at bit 2, ...)."""
    codes = _runs(data[..., 32:96], 2) + 4 * _runs(data[..., :32], 1) - 4
    packed = data[..., 96:108].astype(np.int64)
    low = np.concatenate([packed[..., :8] & 15, packed[..., :8] >> 4], axis=-1)
    high = np.concatenate([packed[..., 8:] >> shift & 3 for shift in (0, 2, 4, 6)], axis=-1)
    return Blocks(codes, low + 16 * high - 32, _half(data[..., 108:110]))


def _q5_k(data: Bytes) -> Blocks:
    """Q4_K with 32 bytes of fifth bits before the nibbles."""
    four = _q4_k(np.concatenate([data[..., :16], data[..., 48:]], axis=-1))
    codes = four.codes + 16 * _runs(data[..., 16:48], 1)
    return Blocks(codes, four.group_scales, four.scale, four.group_minima, four.minimum)


def _words(data: Bytes, kind: str) -> Ints:
    return np.ascontiguousarray(data).view(kind).astype(np.int64)


def _signed(points: npt.NDArray[np.int8], signs: Ints) -> Ints:
    """Points [..., 8] with a minus where a bit of `signs` [...] is set, joined to [R, B, 256]."""
    minus = signs[..., None] >> np.arange(8) & 1
    return (np.where(minus == 1, -1, 1) * points.astype(np.int64)).reshape(*signs.shape[:2], 256)


def _parity(seven: Ints) -> Ints:
    """Seven signs with the eighth on top, which makes the number of minuses even."""
    ones = (seven[..., None] >> np.arange(7) & 1).sum(axis=-1)
    eight: Ints = seven + 128 * (ones % 2)
    return eight


def _part(d: Bytes, fraction: float) -> F32:
    """An exact fraction of a half-precision scale."""
    return _half(d) * np.float32(fraction)


def _iq1(points: Ints, minus: Ints) -> Ints:
    """8 g + 1, or 8 g - 1 where `minus` is 1; both arguments [R, B, 32]."""
    codes = 8 * grid("IQ1")[points].astype(np.int64) + np.where(minus == 1, -1, 1)[..., None]
    return codes.reshape(*points.shape[:2], 256)


def _iq1_s(data: Bytes) -> Blocks:
    high = _words(data[..., 34:50], "<u2")
    bits = np.stack([high >> shift & 7 for shift in (0, 3, 6, 9)], axis=-1).reshape(*data.shape[:2], 32)
    points = data[..., 2:34].astype(np.int64) + 256 * bits
    scales = 2 * (high >> 12 & 7) + 1
    return Blocks(_iq1(points, np.repeat(high >> 15, 4, axis=-1)), scales, _part(data[..., :2], 1 / 8))


def _iq1_m(data: Bytes) -> Blocks:
    high, words = _nibble_list(data[..., 32:48]), _words(data[..., 48:56], "<u2")
    points = data[..., :32].astype(np.int64) + 256 * (high & 7)
    scales = 2 * np.stack([words >> shift & 7 for shift in (0, 3, 6, 9)], axis=-1).reshape(*data.shape[:2], 16) + 1
    tops = words >> 12
    d = np.stack([tops[..., 0] + 16 * tops[..., 1], tops[..., 2] + 16 * tops[..., 3]], axis=-1).astype(np.uint8)
    return Blocks(_iq1(points, high >> 3), scales, _part(d, 1 / 8))


def _seven_each(tail: Ints) -> Ints:
    """Words of 32 bits -> four times seven signs each, [R, B, 32], made eight."""
    seven = np.stack([tail >> shift & 127 for shift in (0, 7, 14, 21)], axis=-1)
    return _parity(seven.reshape(*tail.shape[:2], 32))


def _iq2_xxs(data: Bytes) -> Blocks:
    groups = data[..., 2:].reshape(*data.shape[:2], 8, 8)
    points = grid("IQ2_XXS")[groups[..., :4].reshape(*data.shape[:2], 32)]
    tail = _words(groups[..., 4:], "<u4")[..., 0]
    return Blocks(_signed(points, _seven_each(tail)), 2 * (tail >> 28) + 1, _part(data[..., :2], 1 / 8))


def _iq2_xs(data: Bytes) -> Blocks:
    q = _words(data[..., 2:66], "<u2")
    codes = _signed(grid("IQ2_XS")[q % 512], _parity(q // 512))
    return Blocks(codes, 2 * _nibble_list(data[..., 66:74]) + 1, _part(data[..., :2], 1 / 8))


def _iq2_s(data: Bytes) -> Blocks:
    high = np.stack([data[..., 66:74] >> shift & 3 for shift in (0, 2, 4, 6)], axis=-1).reshape(*data.shape[:2], 32)
    points = grid("IQ2_S")[data[..., 2:34].astype(np.int64) + 256 * high.astype(np.int64)]
    codes = _signed(points, data[..., 34:66].astype(np.int64))
    return Blocks(codes, 2 * _nibble_list(data[..., 74:82]) + 1, _part(data[..., :2], 1 / 8))


def _iq3_xxs(data: Bytes) -> Blocks:
    points = grid("IQ3_XXS")[data[..., 2:66]].reshape(*data.shape[:2], 32, 8)
    tail = _words(data[..., 66:98], "<u4")
    return Blocks(_signed(points, _seven_each(tail)), 2 * (tail >> 28) + 1, _part(data[..., :2], 1 / 4))


def _iq3_s(data: Bytes) -> Blocks:
    high = np.unpackbits(np.ascontiguousarray(data[..., 66:74]), axis=-1, bitorder="little").astype(np.int64)
    points = grid("IQ3_S")[data[..., 2:66].astype(np.int64) + 256 * high].reshape(*data.shape[:2], 32, 8)
    codes = _signed(points, data[..., 74:106].astype(np.int64))
    return Blocks(codes, 2 * _nibble_list(data[..., 106:110]) + 1, _half(data[..., :2]))


def _iq4_nl(data: Bytes) -> Blocks:
    return Blocks(TABLE.astype(np.int64)[_halves(data[..., 2:])], _ones(data), _half(data[..., :2]))


def _iq4_xs(data: Bytes) -> Blocks:
    high = _words(data[..., 2:4], "<u2") >> 2 * np.arange(8) & 3
    nibbles = _halves(data[..., 8:].reshape(*data.shape[:2], 8, 16)).reshape(*data.shape[:2], 256)
    scales = _nibble_list(data[..., 4:8]) + 16 * high - 32
    return Blocks(TABLE.astype(np.int64)[nibbles], scales, _half(data[..., :2]))


READERS: Final[dict[str, tuple[int, Callable[[Bytes], Blocks]]]] = {
    "Q8_0": (34, _q8_0),
    "Q4_0": (18, _q4_0),
    "MXFP4": (17, _mxfp4),
    "Q2_K": (84, _q2_k),
    "Q3_K": (110, _q3_k),
    "Q4_K": (144, _q4_k),
    "Q5_K": (176, _q5_k),
    "Q6_K": (210, _q6_k),
    "IQ1_S": (50, _iq1_s),
    "IQ1_M": (56, _iq1_m),
    "IQ2_XXS": (66, _iq2_xxs),
    "IQ2_XS": (74, _iq2_xs),
    "IQ2_S": (82, _iq2_s),
    "IQ3_XXS": (98, _iq3_xxs),
    "IQ3_S": (110, _iq3_s),
    "IQ4_NL": (18, _iq4_nl),
    "IQ4_XS": (136, _iq4_xs),
}
