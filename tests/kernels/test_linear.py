"""Matrix products of every format: the scalar level against the model, the others against the scalar level, as bytes.

Also the cases that caught others: each position of a block on its own, rows of several blocks, sums at the edge of
16 bits, lanes that hold a minus zero, scales at both ends of their range, and any split of rows and inputs.
"""

from __future__ import annotations

import numpy as np
import pytest
from tests.kernels import linear_model
from tests.kernels.linear_model import ENCODING, F32, Stored, fma32
from tests.kernels.matrices import (
    FAST_LEVELS,
    FORMATS,
    HALVES_AT,
    LEVELS,
    UNIT,
    first_difference,
    linear,
    ones_in_blocks,
    pack_all,
    random_inputs,
    random_matrix,
    same_bits,
    set_halves,
    value_of_ones,
)

INTEGER = tuple(f for f in FORMATS if UNIT[f] > 1)
FLOAT = ("F32", "F16", "BF16")


def shapes(format: str, blocks: tuple[int, ...]) -> list[tuple[int, tuple[int, int] | None, bool]]:
    """(columns, FP8 block, float scales) for the given block counts, and odd widths where a format has no blocks."""
    if format in FLOAT:
        widths = [16 * b + extra for b in blocks for extra in (0, -9, 7)]
        return [(cols, None, False) for cols in (1, 15, *widths)]
    if format != "FP8_E4M3":
        return [(UNIT[format] * b, None, False) for b in blocks]
    return [
        (cols, block, float_scales)
        for block, float_scales in (((128, 128), False), ((32, 32), False), ((128, 128), True), ((32, 32), True))
        for cols in {max(1, 32 * b + extra) for b in blocks for extra in (0, -31, -1, 13)}
    ]


def check(got: F32, expected: F32, what: str) -> None:
    assert same_bits(got, expected), f"{what}: {first_difference(got, expected)}"


@pytest.mark.parametrize("extreme", [False, True])
@pytest.mark.parametrize("format", FORMATS)
def test_scalar_is_the_model(format: str, extreme: bool) -> None:
    rng = np.random.default_rng(len(format) + extreme)
    for cols, block, float_scales in shapes(format, (1, 2, 3, 5, 17)):
        m = random_matrix(rng, format, 5, cols, block, float_scales, extreme)
        x = random_inputs(rng, 6, cols)
        expected = linear_model.linear(m, [linear_model.pack(ENCODING[format], row) for row in x])
        check(linear("scalar", m, pack_all("scalar", format, x)), expected, f"{cols} columns")


@pytest.mark.parametrize("level", FAST_LEVELS)
@pytest.mark.parametrize("rows", [1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 20])
@pytest.mark.parametrize("format", FORMATS)
def test_levels_agree(level: str, format: str, rows: int) -> None:
    rng = np.random.default_rng(rows)
    for cols, block, float_scales in shapes(format, (1, 2, 3, 5, 17, 33)):
        m = random_matrix(rng, format, rows, cols, block, float_scales, extreme=rows % 4 == 1)
        packed = pack_all("scalar", format, random_inputs(rng, 4 if cols > 2000 else 7, cols))
        expected = linear("scalar", m, packed)
        for n in (1, len(packed)):
            check(linear(level, m, packed[:n]), expected[:n], f"{cols} columns, {n} inputs")


@pytest.mark.parametrize("level", FAST_LEVELS)
@pytest.mark.parametrize("format", FORMATS)
def test_any_number_of_inputs(level: str, format: str) -> None:
    """1 .. 9, 16, 33 and more inputs than one pass takes; each input's result is that of the input alone."""
    rng = np.random.default_rng(7)
    block = (128, 128) if format == "FP8_E4M3" else None
    cols = 2 * UNIT[format] if UNIT[format] > 1 else 301
    m = random_matrix(rng, format, 11, cols, block)
    packed = pack_all("scalar", format, random_inputs(rng, 150, cols))
    expected = linear("scalar", m, packed)
    for n in (*range(1, 10), 16, 33, 64, 65, 150):
        check(linear(level, m, packed[:n]), expected[:n], f"{n} inputs")


@pytest.mark.parametrize("level", FAST_LEVELS)
@pytest.mark.parametrize("format", FORMATS)
def test_inputs_wider_than_one_pass(level: str, format: str) -> None:
    """Rows so wide that only the least number of inputs fits a pass; several chunks of columns and a short last one."""
    rng = np.random.default_rng(8)
    block = (32, 32) if format == "FP8_E4M3" else None
    cols = 256 * 131 if UNIT[format] > 1 else 256 * 131 + 37
    m = random_matrix(rng, format, 2, cols, block)
    packed = pack_all("scalar", format, random_inputs(rng, 9, cols))
    check(linear(level, m, packed), linear("scalar", m, packed), f"{cols} columns")


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("format", FORMATS)
def test_any_range_of_rows(level: str, format: str) -> None:
    rng = np.random.default_rng(9)
    block = (32, 32) if format == "FP8_E4M3" else None
    cols = UNIT[format] if UNIT[format] > 1 else 77
    m = random_matrix(rng, format, 37, cols, block)
    packed = pack_all("scalar", format, random_inputs(rng, 3, cols))
    whole = linear("scalar", m, packed)
    for row0, row1 in ((0, 0), (0, 1), (1, 2), (3, 12), (5, 37), (31, 34), (36, 37), (37, 37), (0, 37)):
        for n in (1, 3):
            part = np.ascontiguousarray(whole[:n, row0:row1])
            check(linear(level, m, packed[:n], row0, row1), part, f"{row0}..{row1}")


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("format", INTEGER)
def test_each_column_meets_its_own_weight(level: str, format: str) -> None:
    """Case A01 as a product: a row times the unit vector of column k, for every k of two blocks.

    The unit vector packs to code 127 under scale 1/127; blocks without it have scale 0. The expected value is built
    from the integer codes of column k, so nothing of the order inside a block is shared with the product.
    """
    rng = np.random.default_rng(11)
    cols = 2 * UNIT[format]
    m = random_matrix(rng, format, 9, cols)
    packed = pack_all(level, format, np.eye(cols, dtype=np.float32))
    got = linear(level, m, packed)
    alone = np.concatenate([linear(level, m, packed[k : k + 1]) for k in range(cols)])
    check(alone, got, "unit vectors one by one")
    for k in range(cols):
        check(got[k], weights_times_127(m, k), f"column {k}")


def weights_times_127(m: Stored, k: int) -> F32:
    """float32 [rows]: the chain of the block of column k when only that column has a code, 127."""
    da = np.float32(1) / np.float32(127)
    zero = np.zeros(m.rows, np.float32)
    b, i = divmod(k, UNIT[m.format])
    if ENCODING[m.format] == "A8x32":
        codes, d = linear_model.codes32(m)
        return fma32((127 * codes[:, b, i]).astype(np.float32), d[:, b] * da, zero)
    w = linear_model.codes256(m)
    g, at = divmod(i, w.codes.shape[3])
    products = 127 * w.codes[:, b, g, at] * w.sc[:, b, g]
    acc = fma32(products.astype(np.float32), w.d[:, b] * da, zero)
    if w.low is None or w.dmin is None:
        return acc
    return fma32((127 * w.low[:, b, g]).astype(np.float32), -(w.dmin[:, b] * da), acc)


def filled(format: str, byte: int, blocks: int) -> Stored:
    """Three rows whose code bytes (and sub-scales) are all `byte`, under scales of one."""
    data = np.full((3 * blocks, linear_model.BLOCK_BYTES[format][1]), byte, np.uint8)
    one = np.array([1], np.float16).view(np.uint8)
    cols = blocks * UNIT[format]
    if format == "MXFP4_PAIRS":
        return Stored(format, data.ravel(), 3, cols, np.full(3 * blocks, 127, np.uint8), (1, 32))
    if format == "MXFP4":
        data[:, 0] = 127
    else:
        set_halves(format, data, *[np.tile(one, (len(data), 1)) for _ in HALVES_AT.get(format, (0,))])
    return Stored(format, data.ravel(), 3, cols)


@pytest.mark.parametrize("byte", [0x00, 0x77, 0x7F, 0x80, 0x88, 0xFF])
@pytest.mark.parametrize("format", INTEGER)
@pytest.mark.parametrize("level", LEVELS)
def test_integer_sums_at_their_largest(level: str, format: str, byte: int) -> None:
    """Every code at an end of its range against activations at the clamp, all of one sign and alternating: the sums in
    16 bits come as close to their limit as they can."""
    m = filled(format, byte, 3)
    up = np.ones(m.cols, np.float32)
    swing = np.where(np.arange(m.cols) % 2 == 0, up, -up)
    x = np.stack([up, -up, swing, -swing, np.where(np.arange(m.cols) % 4 < 2, up, -up)])
    expected = linear_model.linear(m, [linear_model.pack(ENCODING[format], row) for row in x])
    packed = pack_all(level, format, x)
    check(linear(level, m, packed), expected, "together")
    check(np.concatenate([linear(level, m, packed[t : t + 1]) for t in range(5)]), expected, "one by one")


@pytest.mark.parametrize("format", [f for f in INTEGER if ENCODING[f] == "A8x256"])
def test_sums_of_a_block_fit(format: str) -> None:
    """The bounds that docs/exactness.md states, from the greatest code, scale and minimum that bytes can spell."""
    w = linear_model.codes256(random_matrix(np.random.default_rng(13), format, 64, 1024))
    assert 256 * 127 * np.abs(w.codes).max() * np.abs(w.sc).max() <= 133_169_152
    assert w.low is None or 256 * 127 * w.low.max() <= 2_048_256


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("level", LEVELS)
def test_zero_input_gives_plus_zero(level: str, format: str) -> None:
    cols = UNIT[format] if UNIT[format] > 1 else 45
    m = random_matrix(np.random.default_rng(3), format, 9, cols, (32, 32) if format == "FP8_E4M3" else None)
    for x in (np.zeros((5, cols), np.float32), -np.zeros((5, cols), np.float32)):
        packed = pack_all(level, format, x)
        for n in (1, 5):
            assert linear(level, m, packed[:n]).tobytes() == bytes(4 * 9 * n)


@pytest.mark.parametrize("level", FAST_LEVELS)
@pytest.mark.parametrize("format", FLOAT)
def test_lanes_keep_a_minus_zero(level: str, format: str) -> None:
    """Products that underflow leave -0 in a lane; a short last group of columns must not add +0 to lanes it lacks."""
    tiny = {"F32": np.float32(-1e-30), "F16": np.float16(-6e-8), "BF16": np.float32(-1e-30)}[format]
    for cols in range(1, 50):
        values = np.full(cols, tiny)
        data = (values.view(np.uint32) >> 16).astype(np.uint16) if format == "BF16" else values
        m = Stored(format, np.ascontiguousarray(data).view(np.uint8), 1, cols)
        x = np.full((4, cols), 1e-40, np.float32)
        packed = pack_all("scalar", format, x)
        expected = linear_model.linear(m, [linear_model.pack("F32", row) for row in x])
        # sixteen lanes of -0 sum to -0; an untouched lane is +0 and makes the sum +0
        assert np.signbit(expected).all() == (cols >= 16)
        for n in (1, 4):
            check(linear(level, m, packed[:n]), np.ascontiguousarray(expected[:n]), f"{cols} columns")


@pytest.mark.parametrize("level", LEVELS)
def test_every_fp8_code_times_every_position(level: str) -> None:
    """All 254 numbers of E4M3 at all positions of a 32-wide step: exact products with 1.0 and with 2^-100."""
    codes = np.array([c for c in range(256) if c & 0x7F != 0x7F], np.uint8)
    values = linear_model.floats(Stored("FP8_E4M3", codes, 1, 254))[0]
    for unit in (np.float32(1), np.float32(2.0**-100)):
        data = np.repeat(codes, 32)
        m = Stored("FP8_E4M3", data, 254, 32, np.full(8, 127, np.uint8), (32, 32))
        packed = pack_all(level, "FP8_E4M3", np.eye(32, dtype=np.float32) * unit)
        together = linear(level, m, packed)
        alone = np.concatenate([linear(level, m, packed[k : k + 1]) for k in range(32)])
        expected = np.repeat((values * unit + np.float32(0))[None], 32, axis=0)
        check(together, expected, "together")
        check(alone, expected, "alone")


@pytest.mark.parametrize("level", LEVELS)
def test_fp8_inputs_up_to_the_largest(level: str) -> None:
    """bf16 inputs around 2^28 and 2^120, beyond which 2^100 and 2^8 times the input leave float32, up to the largest:
    lanes that overflow stay infinite."""
    rng = np.random.default_rng(12)
    cols = 256
    m = random_matrix(rng, "FP8_E4M3", 6, cols, (32, 32))
    m.data[:] &= 0x37  # positive, below 1: sums of a lane stay finite until the inputs near 2^125
    tops = (27.9, 28.1, 99, 118, 119.9, 120.1, 121, 127.9)
    x = np.stack([np.exp2(rng.uniform(top - 3, top, cols)) for top in tops]).astype(np.float32)
    x[:7, ::3] *= -1
    x[1, 17] = 2.0**28
    expected = linear_model.linear(m, [linear_model.pack("BF16", row) for row in x])
    assert np.isfinite(expected[:7]).all()
    assert np.isposinf(expected[7]).any()
    packed = pack_all(level, "FP8_E4M3", x)
    check(linear(level, m, packed), expected, "together")
    check(np.concatenate([linear(level, m, packed[t : t + 1]) for t in range(len(x))]), expected, "one by one")


@pytest.mark.parametrize("level", LEVELS)
def test_fp8_at_both_ends_of_scales_and_inputs(level: str) -> None:
    """The least inputs under all codes, subnormal ones too, and float scales from subnormal ones to those around 2^108
    and the largest: the factors a kernel moves between inputs and scales cost no bit."""
    rng = np.random.default_rng(13)
    cols, rows = 32 * 9 + 5, 37
    m = random_matrix(rng, "FP8_E4M3", rows, cols, (32, 32), float_scales=True)
    assert m.scales is not None
    signs = rng.choice([-1, 1], cols)
    x = np.stack([np.exp2(rng.uniform(low, low + 2, cols)) * signs for low in (-100, -60, 25)]).astype(np.float32)
    for low, high in ((-149, -120), (-30, 0), (100, 107.9), (104, 108.5), (120, 127.9)):
        magnitude = np.exp2(rng.uniform(low, high, len(m.scales)))
        scales = (magnitude * rng.choice([-1, 1], len(m.scales))).astype(np.float32)
        stored = Stored(m.format, m.data, rows, cols, scales, m.block)
        packed = pack_all(level, "FP8_E4M3", x)
        with np.errstate(over="ignore", invalid="ignore"):
            expected = linear_model.linear(stored, [linear_model.pack("BF16", row) for row in x])
        assert np.isfinite(expected[:2]).all()
        check(linear(level, stored, packed), expected, f"2^{low}, together")
        alone = np.concatenate([linear(level, stored, packed[t : t + 1]) for t in range(len(x))])
        check(alone, expected, f"2^{low}, alone")


@pytest.mark.parametrize("level", FAST_LEVELS)
@pytest.mark.parametrize("format", ["FP8_E4M3", *FLOAT])
def test_ranges_that_cross_blocks_of_scales(level: str, format: str) -> None:
    """Ranges of one to many rows that start and end anywhere, for one input, which takes rows that lie far apart
    together, and for several."""
    rng = np.random.default_rng(14)
    block = (32, 32) if format == "FP8_E4M3" else None
    m = random_matrix(rng, format, 150, 70, block)
    packed = pack_all("scalar", format, random_inputs(rng, 3, 70))
    whole = linear("scalar", m, packed)
    ranges = [(first, first + count) for first in (0, 1, 30, 31, 32, 95) for count in (*range(1, 21), 33, 55)]
    for row0, row1 in [*ranges, (0, 150), (1, 149)]:
        for n in (1, 3):
            part = np.ascontiguousarray(whole[:n, row0:row1])
            check(linear(level, m, packed[:n], row0, row1), part, f"{row0}..{row1}, {n} inputs")


@pytest.mark.parametrize("level", FAST_LEVELS)
@pytest.mark.parametrize("cols", [16383, 16384, 16385])
def test_fp8_rows_around_the_widest_of_one_input(level: str, cols: int) -> None:
    rng = np.random.default_rng(15)
    m = random_matrix(rng, "FP8_E4M3", 5, cols, (128, 128))
    packed = pack_all("scalar", "FP8_E4M3", random_inputs(rng, 1, cols))
    check(linear(level, m, packed), linear("scalar", m, packed), f"{cols} columns")


@pytest.mark.parametrize("format", ["FP8_E4M3", "MXFP4", "MXFP4_PAIRS"])
@pytest.mark.parametrize("level", LEVELS)
def test_nan_weights_are_not_lost(level: str, format: str) -> None:
    """A NaN code or scale makes its rows NaN, and no other row."""
    rng = np.random.default_rng(4)
    cols, block = 96, (32, 32) if format == "FP8_E4M3" else None
    m = random_matrix(rng, format, 40, cols, block)
    data, scales = m.data.copy(), None if m.scales is None else m.scales.copy()
    expected = np.zeros(40, bool)
    if format == "MXFP4":
        data.reshape(40, 3, 17)[[3, 20], 1, 0] = 255
        expected[[3, 20]] = True
    elif format == "MXFP4_PAIRS":
        assert scales is not None
        scales.reshape(40, 3)[[3, 20], 2] = 255
        expected[[3, 20]] = True
    else:
        assert scales is not None
        data.reshape(40, 96)[[3, 20], [0, 95]] = [0x7F, 0xFF]
        scales.reshape(2, 3)[1, 1] = 255
        expected[[3, 20, *range(32, 40)]] = True
    broken = Stored(m.format, data, m.rows, m.cols, scales, m.block)
    packed = pack_all(level, format, random_inputs(rng, 4, cols)[[0, 2, 0, 2]])
    for n in (1, 4):
        assert (np.isnan(linear(level, broken, packed[:n])) == expected).all()


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("level", LEVELS)
def test_close_to_the_product_in_float64(level: str, format: str) -> None:
    """Within what rounding the activations can cost: half a step of 1/127 of the block's maximum, or 2^-9 for bf16."""
    rng = np.random.default_rng(6)
    cols = 1024
    m = random_matrix(rng, format, 16, cols, (128, 128) if format == "FP8_E4M3" else None)
    x = rng.standard_normal((4, cols)).astype(np.float32)
    w = linear_model.decoded(m).astype(np.float64)
    width = {"A8x32": 32, "A8x256": 256}.get(ENCODING[format])
    if width:
        step = np.abs(x).reshape(4, -1, width).max(axis=2).repeat(width, axis=1) / 254
    else:
        step = np.abs(x) * (2.0**-9 if ENCODING[format] == "BF16" else 0)
    bound = step @ np.abs(w).T + 1e-5 * (np.abs(x) @ np.abs(w).T)
    assert (np.abs(linear(level, m, pack_all(level, format, x)) - x.astype(np.float64) @ w.T) <= bound).all()


def test_the_models_fma_rounds_once() -> None:
    """Against integers: a * b + c of 24-bit numbers, with c far enough away that two roundings would go wrong."""
    rng = np.random.default_rng(0)
    for shift in range(0, 60, 3):
        a, b, c = (rng.integers(-(2**24) + 1, 2**24, 200) for _ in range(3))
        scale = np.exp2(-shift)
        got = fma32(a.astype(np.float32), b.astype(np.float32), (c * scale).astype(np.float32))
        for i in range(200):
            exact = int(a[i]) * int(b[i]) * 2**shift + int(c[i])  # times 2^-shift
            assert float(got[i]) == nearest_f32(exact) * scale


def nearest_f32(value: int) -> float:
    """An integer rounded to 24 bits, ties to even."""
    drop = max(0, abs(value).bit_length() - 24)
    quotient, rest = divmod(abs(value), 1 << drop)
    if 2 * rest > 1 << drop or (2 * rest == 1 << drop and quotient & 1):
        quotient += 1
    return float(quotient << drop) * (1 if value >= 0 else -1)


@pytest.mark.parametrize("format", INTEGER)
@pytest.mark.parametrize("level", LEVELS)
def test_row_of_three_blocks(level: str, format: str) -> None:
    """Case A03 as a product: blocks of equal weights under scales 1, 2, 0.5, and inputs that reach one or all."""
    width, scales = UNIT[format], (1.0, 2.0, 0.5)
    m = ones_in_blocks(format, np.array(scales), rows=5)
    reach = np.array([[127, 0, 0], [0, 127, 0], [0, 0, 127], [127, 127, 127]], np.float32)
    packed = pack_all(level, format, np.repeat(reach, width, axis=1))
    expected = [127 * width * value_of_ones(format) * s for s in (*scales, sum(scales))]
    assert linear(level, m, packed).T.tolist() == [expected] * 5
    assert [linear(level, m, packed[t : t + 1])[0, 4] for t in range(4)] == expected
