"""Resident copies: the same bytes made by every level, the same products as the matrix in rows, as bytes.

Cases that matter: rows that do not fill a tile, ranges of rows that start inside one, any number of inputs (each group
size of the many-input walk, more than a pass), widths beyond a chunk of 512 columns and beyond a slab, extreme scales.
"""

from __future__ import annotations

import numpy as np
import pytest
from tests.kernels.linear_model import Stored
from tests.kernels.matrices import (
    FORMATS,
    HALVES_AT,
    LEVELS,
    UNIT,
    first_difference,
    linear,
    pack_all,
    random_inputs,
    random_matrix,
    same_bits,
    set_halves,
)

from finback import _native

BLOCKS = {"FP8_E4M3": (128, 128)}
TILED = tuple(f for f in FORMATS if UNIT[f] > 1)


def copy(level: str, m: Stored) -> tuple[bytes, bool]:
    data, finite = _native.resident_copy(level, m.format, m.data, m.scales, m.rows, m.cols, m.block)
    return data.tobytes(), finite


def check(level: str, m: Stored, packed: np.ndarray, row0: int = 0, row1: int | None = None) -> None:
    expected = linear("scalar", m, packed, row0, row1)
    got = linear(level, m, packed, row0, row1, resident=True)
    assert same_bits(got, expected), f"{m.format} {m.rows}x{m.cols}: {first_difference(got, expected)}"


@pytest.mark.parametrize("format", FORMATS)
def test_every_level_makes_the_same_copy(format: str) -> None:
    rng = np.random.default_rng(1)
    unit = UNIT[format]
    for rows, cols in ((1, unit), (16, 2 * unit), (33, 5 * unit)):
        m = random_matrix(rng, format, rows, cols, BLOCKS.get(format), extreme=rows == 33)
        truth, finite = copy("scalar", m)
        assert finite
        assert len(truth) == _native.resident_bytes(_native.Format[format], rows, cols)
        for level in LEVELS[1:]:
            assert copy(level, m) == (truth, True), level


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("format", FORMATS)
def test_products_of_copies(level: str, format: str) -> None:
    rng = np.random.default_rng(2)
    unit = UNIT[format]
    for rows, blocks in ((1, 1), (15, 2), (16, 3), (17, 1), (50, 2), (65, 19 if unit == 32 else 3)):
        m = random_matrix(rng, format, rows, unit * blocks, BLOCKS.get(format), extreme=rows == 50)
        packed = pack_all("scalar", format, random_inputs(rng, 7, m.cols))
        for n in (1, 2, 3, 7):
            check(level, m, packed[:n])
        if rows > 20:
            check(level, m, packed, 3, rows - 2)
            check(level, m, packed[:1], 17, 19)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("format", TILED)
def test_any_number_of_inputs(level: str, format: str) -> None:
    rng = np.random.default_rng(3)
    m = random_matrix(rng, format, 18, UNIT[format], extreme=False)
    packed = pack_all("scalar", format, random_inputs(rng, 131, m.cols))
    for n in (4, 5, 6, 8, 9, 11, 12, 13, 15, 16, 23, 25, 63, 64, 65, 131):
        check(level, m, packed[:n])


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("format", ["Q8_0", "MXFP4", "Q4_K", "IQ2_XXS"])
def test_rows_longer_than_a_slab(level: str, format: str) -> None:
    """Enough columns and inputs that accumulators rest in the output between slabs, also for half a tile."""
    rng = np.random.default_rng(4)
    m = random_matrix(rng, format, 21, 7168, extreme=False)
    packed = pack_all("scalar", format, random_inputs(rng, 66, m.cols))
    check(level, m, packed)
    check(level, m, packed, 5, 20)


@pytest.mark.parametrize("level", LEVELS)
def test_a_weight_that_is_not_a_number_is_found(level: str) -> None:
    rng = np.random.default_rng(5)
    infinite = np.frombuffer(np.float16(np.inf).tobytes(), np.uint8)
    for format in FORMATS:
        m = random_matrix(rng, format, 20, 2 * max(UNIT[format], 16), BLOCKS.get(format))
        assert copy(level, m)[1]
        data = m.data.copy()
        if format in ("F32", "F16", "BF16"):
            size = 4 if format == "F32" else 2
            data[-size:] = {"F32": [0, 0, 0xC0, 0x7F], "F16": [0, 0x7C], "BF16": [0x80, 0xFF]}[format]
        elif format == "FP8_E4M3":
            data[-1] = 0xFF
        elif format == "MXFP4_PAIRS":
            assert m.scales is not None
            m.scales[-1] = 255
        elif format == "MXFP4":
            data[-17] = 255
        else:
            last = data.reshape(-1, data.size // (20 * m.cols // UNIT[format]))[-1:]
            set_halves(format, last, *[infinite[None] for _ in HALVES_AT.get(format, (0,))])
        assert not copy(level, Stored(format, data, m.rows, m.cols, m.scales, m.block))[1], (level, format)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("float_scales", [False, True])
def test_a_scale_that_is_not_a_number_is_found(level: str, float_scales: bool) -> None:
    rng = np.random.default_rng(6)
    for at in (0, 1, -1):
        m = random_matrix(rng, "FP8_E4M3", 200, 300, (128, 128), float_scales)
        assert copy(level, m)[1]
        assert m.scales is not None
        m.scales[at] = np.inf if float_scales else 255
        assert not copy(level, m)[1]
