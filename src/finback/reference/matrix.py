"""A weight matrix as its file stores it, with the fields of its blocks (fields.py).

Owns what a matrix is: bytes, format, shape and scale plane. Refuses arithmetic: what is done with the fields is
docs/exactness.md section 5 (canonical.py) or plain float64 (oracle.py). """

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from finback.reference.fields import E4M3_VALUES, E8M0_VALUES, READERS, Blocks, mxfp4_pairs

Bytes = npt.NDArray[np.uint8]
Ints = npt.NDArray[np.int64]
F32 = npt.NDArray[np.float32]
F64 = npt.NDArray[np.float64]


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
            return mxfp4_pairs(self.data, self.row_scales)
        size, read = READERS[self.format]
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
        return self.format == "MXFP4_PAIRS" or self.format in READERS

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
