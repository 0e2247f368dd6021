"""A weight matrix as its file stores it, and the fields its blocks hold: codes, scales, minima.

Owns the meaning of the bytes of every format that has a kernel (native/kernels/format.h), read independently
of the codecs in finback.formats: two readers of the same layout, which tests hold equal. Refuses arithmetic:
what is done with the fields is docs/exactness.md section 5 (canonical.py) or plain float64 (oracle.py). """

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]
Ints = npt.NDArray[np.int64]
F32 = npt.NDArray[np.float32]
F64 = npt.NDArray[np.float64]


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


@dataclass(frozen=True)
class Matrix:
    """[rows, cols] in `format`; data uint8 [rows, bytes of a row].

    FP8_E4M3 and MXFP4_PAIRS keep `scales` apart: E8M0 bytes or f32, one for each `scale_block` (rows,
    columns) of weights, blocks at the lower and right edge partial. The other formats have none. """

    format: str
    rows: int
    cols: int
    data: Bytes
    scales: Bytes | F32 | None = None
    scale_block: tuple[int, int] | None = None

    @classmethod
    def of(cls, values: npt.NDArray[np.float32]) -> Matrix:
        """Float values [rows, cols] as an F32 matrix."""
        dense = np.ascontiguousarray(values, np.float32)
        rows, cols = dense.shape
        return cls("F32", rows, cols, dense.view(np.uint8).reshape(rows, -1))

    def part(self, start: int, stop: int) -> Matrix:
        """Rows start .. stop as a matrix of their own; scales become one for each row."""
        if self.scales is None:
            return Matrix(self.format, stop - start, self.cols, self.data[start:stop])
        assert self.scale_block is not None
        scales, block = self.row_scales[start:stop], (1, self.scale_block[1])
        return Matrix(self.format, stop - start, self.cols, self.data[start:stop], scales, block)

    @cached_property
    def blocks(self) -> Blocks:
        """Fields of a block format."""
        if self.format == "MXFP4_PAIRS":
            return _mxfp4_pairs(self.data, self.row_scales)
        size, read = _READERS[self.format]
        return read(self.data.reshape(self.rows, -1, size))

    @cached_property
    def plain(self) -> F32:
        """Values [rows, cols] of a format without blocks, scales not applied: F32, F16, BF16, FP8_E4M3."""
        if self.format == "FP8_E4M3":
            return E4M3_VALUES[self.data]
        if self.format == "BF16":
            return (self.data.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
        return self.data.view({"F32": np.float32, "F16": np.float16}[self.format]).astype(np.float32)

    @cached_property
    def row_scales(self) -> F32:
        """Scale plane as f32 with one row for each row of the matrix, [rows, ceil(cols / block columns)]."""
        assert self.scales is not None, f"{self.format} needs scales"
        assert self.scale_block is not None, f"{self.format} needs a scale block"
        plane = E8M0_VALUES[self.scales] if self.scales.dtype == np.uint8 else self.scales.astype(np.float32)
        return np.repeat(plane, self.scale_block[0], axis=0)[: self.rows]

    @property
    def is_block_format(self) -> bool:
        return self.format == "MXFP4_PAIRS" or self.format in _READERS

    @cached_property
    def exact(self) -> F64:
        """The weights as real numbers, float64 [rows, cols]: every product of stored fields is exact in
        f64."""
        if self.is_block_format:
            b = self.blocks
            per_code = b.scale[..., None].astype(np.float64) * b.group_scales
            values: F64 = b.codes.astype(np.float64) * np.repeat(per_code, b.n // b.groups, axis=2)
            if b.group_minima is not None and b.minimum is not None:
                lift = b.minimum[..., None].astype(np.float64) * b.group_minima
                values = values - np.repeat(lift, b.n // b.groups, axis=2)
            return values.reshape(self.rows, self.cols)
        values = self.plain.astype(np.float64)
        if self.format == "FP8_E4M3":
            assert self.scale_block is not None
            values = values * np.repeat(self.row_scales, self.scale_block[1], axis=1)[:, : self.cols]
        return values


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


def _mxfp4_pairs(data: Bytes, scales: F32) -> Blocks:
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


_READERS: Final[dict[str, tuple[int, Callable[[Bytes], Blocks]]]] = {
    "Q8_0": (34, _q8_0),
    "Q4_0": (18, _q4_0),
    "MXFP4": (17, _mxfp4),
    "Q4_K": (144, _q4_k),
    "Q6_K": (210, _q6_k),
}
