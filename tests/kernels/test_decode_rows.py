"""Weights as numbers: every format against the model, the gguf package and ml_dtypes, as bytes."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from gguf import GGMLQuantizationType
from gguf.quants import dequantize
from tests.kernels import linear_model
from tests.kernels.linear_model import Stored
from tests.kernels.matrices import (
    FORMATS,
    LEVELS,
    UNIT,
    decode_row,
    ones_in_blocks,
    random_matrix,
    same_bits,
    value_of_ones,
)

from finback.formats.blocks import decode
from finback.formats.grids import grid

INTEGER = tuple(f for f in FORMATS if UNIT[f] > 1)
IN_GGUF = tuple(f for f in FORMATS if f not in ("FP8_E4M3", "MXFP4_PAIRS"))


def cases(format: str) -> list[Stored]:
    rng = np.random.default_rng(len(format))
    if format == "FP8_E4M3":
        return [
            random_matrix(rng, format, rows, cols, block, float_scales, extreme)
            for rows, cols in ((1, 1), (3, 33), (131, 300))
            for block in ((128, 128), (32, 32))
            for float_scales, extreme in ((False, False), (False, True), (True, False))
        ]
    return [
        random_matrix(rng, format, rows, blocks * UNIT[format], extreme=extreme)
        for rows, blocks in ((1, 1), (3, 2), (5, 3), (7, 17))
        for extreme in (False, True)
    ]


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("level", LEVELS)
def test_rows_are_the_models(level: str, format: str) -> None:
    for m in cases(format):
        expected = linear_model.decoded(m)
        for r in range(m.rows):
            assert same_bits(decode_row(level, m, r), expected[r])


@pytest.mark.parametrize("format", IN_GGUF)
@pytest.mark.parametrize("level", LEVELS)
def test_rows_are_those_of_the_gguf_package(level: str, format: str) -> None:
    for m in cases(format):
        with np.errstate(over="ignore", invalid="ignore"):
            expected = dequantize(m.rows_of_bytes(), GGMLQuantizationType[format]).astype(np.float32)
        for r in range(m.rows):
            assert same_bits(decode_row(level, m, r), expected[r])


@pytest.mark.parametrize("level", LEVELS)
def test_every_fp8_code_under_every_scale(level: str) -> None:
    codes = np.arange(256, dtype=np.uint8)
    numbers = codes.view(ml_dtypes.float8_e4m3fn).astype(np.float32)
    for scale in range(256):
        m = Stored("FP8_E4M3", codes, 1, 256, np.full(2, scale, np.uint8), (128, 128))
        with np.errstate(over="ignore"):
            expected = numbers * np.array([scale], np.uint8).view(ml_dtypes.float8_e8m0fnu).astype(np.float32)
        assert np.array_equal(decode_row(level, m, 0), expected, equal_nan=True)


@pytest.mark.parametrize("level", LEVELS)
def test_every_mxfp4_code_under_every_scale(level: str) -> None:
    payload = (np.arange(16) | (15 - np.arange(16)) << 4).astype(np.uint8)
    low = np.arange(16, dtype=np.uint8).view(ml_dtypes.float4_e2m1fn).astype(np.float64) + 0.0  # no minus zero
    for e in range(256):
        scale = np.exp2(e - 127.0) if e < 255 else np.nan
        gguf = Stored("MXFP4", np.concatenate([[e], payload]).astype(np.uint8), 1, 32)
        pairs = Stored("MXFP4_PAIRS", payload, 1, 32, np.array([e], np.uint8), (1, 32))
        with np.errstate(over="ignore"):
            first = (np.concatenate([low, low[::-1]]) * scale).astype(np.float32)
            second = (np.stack([low, low[::-1]], axis=1).ravel() * scale).astype(np.float32)
        assert np.array_equal(decode_row(level, gguf, 0), first, equal_nan=True)
        assert np.array_equal(decode_row(level, pairs, 0), second, equal_nan=True)


@pytest.mark.parametrize("level", LEVELS)
def test_order_of_mxfp4_elements_depends_on_the_container(level: str) -> None:
    """Case A01: the same sixteen bytes, GGUF (i, i + 16) and safetensors (2i, 2i + 1)."""
    payload = np.array([j | (15 - j) << 4 for j in range(16)], np.uint8)
    up = [0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6]
    down = [-6, -4, -3, -2, -1.5, -1, -0.5, 0, 6, 4, 3, 2, 1.5, 1, 0.5, 0]
    gguf = Stored("MXFP4", np.concatenate([np.array([127], np.uint8), payload]), 1, 32)
    pairs = Stored("MXFP4_PAIRS", payload, 1, 32, np.array([127], np.uint8), (1, 32))
    assert decode_row(level, gguf, 0).tolist() == up + down
    assert decode_row(level, pairs, 0).tolist() == [v for both in zip(up, down, strict=True) for v in both]


@pytest.mark.parametrize("blocks", [1, 2, 3, 17])
@pytest.mark.parametrize("format", INTEGER)
@pytest.mark.parametrize("level", LEVELS)
def test_each_block_lands_in_its_own_columns(level: str, format: str, blocks: int) -> None:
    """Case A03 for all block formats; scales are powers of two, so that every format can hold them."""
    scales = np.exp2(np.arange(blocks) % 7 - 3.0)
    m = ones_in_blocks(format, scales, rows=3)
    expected = np.repeat(scales * value_of_ones(format), UNIT[format]).tolist()
    for r in range(3):
        assert decode_row(level, m, r).tolist() == expected


@pytest.mark.parametrize("level", LEVELS)
def test_q6_k_row_of_three_blocks(level: str) -> None:
    """Case A03 as reported."""
    row = decode_row(level, ones_in_blocks("Q6_K", np.array([1.0, 2.0, -0.5])), 0)
    assert row.tolist() == [1.0] * 256 + [2.0] * 256 + [-0.5] * 256


@pytest.mark.parametrize("format", ["IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S"])
def test_every_point_of_a_grid_is_that_of_the_gguf_package(format: str) -> None:
    """The grids of the kernels and of finback.formats, each with its own copy of the sets, at every point they have."""
    m = random_matrix(np.random.default_rng(1), format, 2, 256 * 768)
    expected = dequantize(m.rows_of_bytes(), GGMLQuantizationType[format]).astype(np.float32)
    assert same_bits(decode(format, m.data, m.rows, m.cols), expected)
    for r in range(m.rows):
        assert same_bits(decode_row("scalar", m, r), expected[r])
    name = "IQ1" if format.startswith("IQ1") else format
    points = grid(name).astype(np.int64)
    codes = linear_model.codes256(m).codes.reshape(-1, points.shape[1])
    seen = np.unique(np.round(codes / 8) if name == "IQ1" else np.abs(codes), axis=0)
    assert np.array_equal(seen, np.unique(points, axis=0))
