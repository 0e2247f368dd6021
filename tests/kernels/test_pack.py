"""Activation packing: the bytes of every encoding against the model, at both ends of the range of float32."""

from __future__ import annotations

import numpy as np
import pytest
from tests.kernels import linear_model
from tests.kernels.linear_model import F32
from tests.kernels.matrices import LEVELS, pack, random_inputs

UNIT = {"F32": 1, "BF16": 1, "A8x32": 32, "A8x256": 256}
WIDTHS = {"F32": (1, 2, 7, 8, 9, 15, 16, 17, 31, 100), "BF16": (1, 2, 15, 16, 17, 31, 32, 33, 100)} | {
    name: tuple(UNIT[name] * blocks for blocks in (1, 2, 3, 5, 17)) for name in ("A8x32", "A8x256")
}
ENCODED = [(level, encoding, k) for level in LEVELS for encoding, widths in WIDTHS.items() for k in widths]


@pytest.mark.parametrize(("level", "encoding", "k"), ENCODED)
def test_bytes_are_the_models(level: str, encoding: str, k: int) -> None:
    for x in random_inputs(np.random.default_rng(k), 11, k):
        packed, finite = pack(level, encoding, x)
        assert finite
        assert packed.tobytes() == linear_model.pack(encoding, x).bytes


def rows_at_the_edges() -> dict[str, F32]:
    """Rows of 256 that meet a rule of section 4."""
    ramp = np.arange(-128, 128).astype(np.float32)
    half = np.full(256, 0.5, np.float32)
    half[0] = 127  # scale exactly 1: codes fall on ties
    bits = np.random.default_rng(5).integers(0, 2**32, 256, np.uint32).view(np.float32)
    return {
        "ramp": ramp,
        "ties": ramp * np.float32(0.5) + half * (ramp == -128),
        "half": half,
        "zero": np.zeros(256, np.float32),
        "minus zero": -np.zeros(256, np.float32),
        "largest": ramp * np.float32(2.6e36),
        "just above the least scale": np.full(256, 127 * 2.0**-126, np.float32),
        "just below the least scale": np.full(256, 126.9 * 2.0**-126, np.float32),
        "subnormal": ramp * np.float32(2.0**-149),
        "around 2^-100": ramp * np.float32(2.0**-107),
        "any bits": np.where(np.isfinite(bits), bits, np.float32(1)),
        "bf16 ties": (np.arange(0x3F80, 0x4080).astype(np.uint32) << 16 | 0x8000).view(np.float32),
        "bf16 near ties": (np.arange(0x3F80, 0x4080).astype(np.uint32) << 16 | 0x7FFF).view(np.float32),
    }


@pytest.mark.parametrize("name", rows_at_the_edges())
@pytest.mark.parametrize("encoding", UNIT)
@pytest.mark.parametrize("level", LEVELS)
def test_edges(level: str, encoding: str, name: str) -> None:
    x = rows_at_the_edges()[name]
    packed, finite = pack(level, encoding, x)
    assert finite
    assert packed.tobytes() == linear_model.pack(encoding, x).bytes


@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan])
@pytest.mark.parametrize("at", [0, 7, 100, 255])
@pytest.mark.parametrize("encoding", UNIT)
@pytest.mark.parametrize("level", LEVELS)
def test_a_value_that_is_not_finite_is_reported_and_packs_to_zeros(
    level: str, encoding: str, at: int, bad: float
) -> None:
    x = np.ones(256, np.float32)
    x[at] = bad
    packed, finite = pack(level, encoding, x)
    assert not finite
    assert not packed.any()


@pytest.mark.parametrize("level", LEVELS)
def test_the_last_odd_values_are_looked_at(level: str) -> None:
    for k in range(1, 40):
        x = np.ones(k, np.float32)
        x[-1] = np.nan
        assert not pack(level, "F32", x)[1]
        assert not pack(level, "BF16", x)[1]


@pytest.mark.parametrize("level", LEVELS)
def test_what_rounds_to_infinity_in_bf16_is_not_finite(level: str) -> None:
    largest, over = np.uint32(0x7F7F7FFF).view(np.float32), np.uint32(0x7F7F8000).view(np.float32)
    for x, good in ((largest, True), (-largest, True), (over, False), (-over, False)):
        for k in (1, 8, 19):
            row = np.ones(k, np.float32)
            row[-1] = x
            packed, finite = pack(level, "BF16", row)
            assert finite == good
            assert packed.any() == good
