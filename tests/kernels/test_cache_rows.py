"""Stored cache rows against ml_dtypes and against the rounding rules of the published model code, exact.

Owns the claim that what a row keeps is what DeepSeek's runtime simulates: FP8 in blocks of 64, bf16 rotary
channels, Hadamard and FP4 in blocks of 32, power-of-two scales. The rules are restated here in float form
(divide by the scale, round, multiply).
"""

from __future__ import annotations

from collections.abc import Callable

import ml_dtypes
import numpy as np
import pytest
from tests.kernels import model
from tests.kernels.cases import LEVELS, kernels, wild

F = np.float32


def pow2_ceil(t: float) -> float:
    return float(2.0 ** np.ceil(np.log2(np.float64(t))))


def simulated(
    x: model.Floats, block: int, least: float, top: float, cast: Callable[[model.Floats], model.Floats]
) -> model.Floats:
    """x through a block format and back, by division and a library's rounding."""
    parts = []
    for at in range(0, len(x), block):
        part = x[at : at + block]
        s = F(pow2_ceil(max(np.abs(part).max(), F(least)) * (F(1) / F(top))))
        parts.append(cast(np.clip(part / s, -top, top).astype(F)) * s)
    return np.concatenate(parts) if parts else x


def through_e4m3(x: model.Floats) -> model.Floats:
    return x.astype(ml_dtypes.float8_e4m3fn).astype(F)


def through_e2m1(x: model.Floats) -> model.Floats:
    return x.astype(ml_dtypes.float4_e2m1fn).astype(F)


def round_trip(level: str, x: model.Floats, rotary: int, rounded: bool = True) -> model.Floats:
    row = kernels.encode_row(level, x, rotary, rounded)
    return kernels.decode_cache_row(level, row, len(x), rotary, rounded)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("width", [512, 128, 80, 70, 66, 18])
def test_main_rows(level: str, width: int) -> None:
    rotary = 64 if width > 100 else 16
    rng = np.random.default_rng(width)
    for _ in range(40):
        x = wild(rng, width)
        got = round_trip(level, x, rotary)
        front = simulated(x[:-rotary], 64, 1e-4, 448, through_e4m3)
        tail = x[-rotary:].astype(ml_dtypes.bfloat16).astype(F)
        assert got.tobytes() == np.concatenate([front, tail]).tobytes()
        assert round_trip(level, got, rotary).tobytes() == got.tobytes(), "a stored row must store to itself"


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("width", [128, 64, 48, 32, 8])
def test_indexer_rows(level: str, width: int) -> None:
    rng = np.random.default_rng(width)
    for _ in range(40):
        x = wild(rng, width)
        got = round_trip(level, x, 0)
        assert got.tobytes() == simulated(x, 32, 6 * 2.0**-126, 6, through_e2m1).tobytes()
        assert round_trip(level, got, 0).tobytes() == got.tobytes()


def halves_between(values: model.Floats) -> model.Floats:
    """Every value of a format, every tie between neighbours, and the floats on both sides of each."""
    ties = (values[1:] + values[:-1]) / 2
    points = np.concatenate([values, ties])
    points = np.concatenate([points, np.nextafter(points, F(np.inf)), np.nextafter(points, F(-np.inf))])
    points = points[np.abs(points) <= values[-1]]
    return np.concatenate([points, -points]).astype(F)


@pytest.mark.parametrize("level", LEVELS)
def test_every_tie_of_e4m3(level: str) -> None:
    points = halves_between(model.E4M3)
    # 448 in each block fixes its scale at 1
    blocks = [np.concatenate([[448], points[i : i + 63]]) for i in range(0, len(points), 63)]
    x = np.concatenate([np.pad(b, (0, 64 - len(b))) for b in blocks] + [np.zeros(2)]).astype(F)
    assert round_trip(level, x, 2)[:-2].tobytes() == through_e4m3(x[:-2]).tobytes()


@pytest.mark.parametrize("level", LEVELS)
def test_every_tie_of_e2m1(level: str) -> None:
    points = halves_between(model.E2M1)
    blocks = [np.concatenate([[6], points[i : i + 31]]) for i in range(0, len(points), 31)]
    x = np.concatenate([np.pad(b, (0, 32 - len(b))) for b in blocks]).astype(F)
    assert round_trip(level, x, 0).tobytes() == through_e2m1(x).tobytes()


@pytest.mark.parametrize("level", LEVELS)
def test_every_code_decodes(level: str) -> None:
    codes = np.array([c for c in range(256) if c & 127 != 127], np.uint8)
    want = codes.view(ml_dtypes.float8_e4m3fn).astype(F)
    row = np.zeros(kernels.cache_row_bytes(254 + 2, 2, True), np.uint8)
    row[:254], row[254:258] = codes, 127 + 3
    assert kernels.decode_cache_row(level, row, 256, 2, True)[:254].tobytes() == (want * 8).tobytes()
    nibbles = np.arange(16, dtype=np.uint8)
    packed = np.append(nibbles[::2] | nibbles[1::2] << 4, np.uint8(127)).astype(np.uint8)
    want4 = nibbles.view(ml_dtypes.float4_e2m1fn).astype(F)
    assert kernels.decode_cache_row(level, packed, 16, 0, True).tobytes() == want4.tobytes()


@pytest.mark.parametrize("level", LEVELS)
def test_scales_are_the_power_of_two_above(level: str) -> None:
    """Around 448 * 2^k the scale steps, exactly where t = amax * (1/448)f passes a power of two."""
    for k in (-10, -3, 0, 5, 90):
        for amax in (448 * 2.0**k, float(np.nextafter(F(448 * 2.0**k), F(np.inf))), 447 * 2.0**k):
            x = np.zeros(66, F)
            x[5] = amax
            t = max(F(amax), F(1e-4)) * (F(1) / F(448))
            row = kernels.encode_row(level, x, 2, True)
            assert int(row[64]) == int(np.log2(pow2_ceil(t))) + 127
    least = kernels.encode_row(level, np.zeros(32, F), 0, True)
    assert int(least[16]) == 1, "a block of zeros has the smallest FP4 scale, 2^-126"


@pytest.mark.parametrize("level", LEVELS)
def test_layout_of_stored_rows(level: str) -> None:
    assert kernels.cache_row_bytes(512, 64, True) == 448 + 8 + 128
    assert kernels.cache_row_bytes(128, 0, True) == 64 + 4
    assert kernels.cache_row_bytes(80, 16, True) == 64 + 8 + 32
    assert kernels.cache_row_bytes(512, 64, False) == 2048
    x = np.random.default_rng(0).standard_normal(512, F)
    row = kernels.encode_row(level, x, 64, True)
    assert not row[448 + 7 : 456].any(), "padding is zeros, so equal rows are equal bytes"
    assert row[456:].tobytes() == x[448:].astype(ml_dtypes.bfloat16).tobytes()
    assert round_trip(level, x, 64, rounded=False).tobytes() == x.tobytes()


@pytest.mark.parametrize("level", LEVELS)
def test_hadamard_is_the_sylvester_matrix(level: str) -> None:
    for n in (1, 2, 4, 8, 16, 32, 128, 512):
        h = np.ones((1, 1))
        while len(h) < n:
            h = np.block([[h, h], [h, -h]])
        x = np.random.default_rng(n).standard_normal(n, F)
        np.testing.assert_allclose(
            kernels.hadamard(level, x), h @ x.astype(np.float64) / np.sqrt(n), atol=1e-5
        )
        units = np.eye(n, dtype=F)[n // 3]
        assert kernels.hadamard(level, units).tobytes() == (h[n // 3] * F(n**-0.5)).astype(F).tobytes()


@pytest.mark.parametrize("level", LEVELS)
def test_indexer_scores_are_products_of_decoded_rows(level: str) -> None:
    """The integers on the codes are the dot product of the decoded rows, up to the f32 sum over blocks."""
    rng = np.random.default_rng(5)
    q, keys, w = (
        rng.standard_normal((64, 128), F),
        rng.standard_normal((40, 128), F),
        rng.standard_normal(64, F),
    )
    q_rows, key_rows = (
        np.array([kernels.encode_row(level, kernels.hadamard(level, x), 0, True) for x in m])
        for m in (q, keys)
    )
    got = kernels.index_scores(level, q_rows, w, 128, True, key_rows)
    qd, kd = (
        np.array([kernels.decode_cache_row(level, r, 128, 0, True) for r in m]).astype(float)
        for m in (q_rows, key_rows)
    )
    np.testing.assert_allclose(got, (np.maximum(qd @ kd.T, 0) * w[:, None]).sum(0), rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize(
    ("rotary", "rounded", "step"), [(64, True, 2.0**-3), (0, True, 0.5), (64, False, 0.0)], ids=["fp8", "fp4", "f32"]
)
def test_row_r_holds_r(level: str, rotary: int, rounded: bool, step: float) -> None:
    """Case A13: three pages of rows side by side, row r filled with r; each reads back as its own, within half a step
    of its type: three bits of fraction in FP8, one in FP4."""
    width, rows = (128, 384) if rotary == 0 else (192, 384)
    stored = [kernels.encode_row(level, np.full(width, r, F), rotary, rounded) for r in range(rows)]
    memory = np.concatenate(stored)
    size = len(stored[0])
    for r in range(rows):
        row = np.ascontiguousarray(memory[r * size : (r + 1) * size])
        back = kernels.decode_cache_row(level, row, width, rotary, rounded)
        assert np.isfinite(back).all()
        assert np.abs(back - r).max() <= step / 2 * r
