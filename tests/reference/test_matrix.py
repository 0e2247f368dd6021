"""Matrices in their stored formats: fields against the codecs, products against the page written out in
scalars."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from finback.formats.blocks import decode, decode_fp8, decode_mxfp4_pairs, encode
from finback.reference.canonical import Canonical, pack_bf16, pack_int8
from finback.reference.matrix import Matrix
from finback.reference.oracle import Oracle
from finback.tools.random_bytes import RandomBytes
from tests.reference.test_floats import exact_fma, nearest_f32

RNG = np.random.default_rng(7)
GRIDS = ["IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S"]
INTEGER = ["Q8_0", "Q4_0", "MXFP4", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL", "IQ4_XS", *GRIDS]
SIMPLE = ["F32", "F16", "BF16", *INTEGER]


def example(format: str, rows: int, cols: int) -> Matrix:
    """A matrix of random values in a format, with scales of different sizes in its blocks."""
    if format in GRIDS:
        random = RandomBytes(int(RNG.integers(1 << 30)))
        return Matrix(format, rows, cols, next(random.matrix("w", format, rows, cols, 1.0)).reshape(rows, -1))
    spread = 2.0 ** RNG.integers(-3, 4, (rows, cols // 32, 1))
    x = (RNG.standard_normal((rows, cols // 32, 32)) * spread).astype(np.float32).reshape(rows, cols)
    return Matrix(format, rows, cols, encode(format, x))


def fp8(rows: int, cols: int, block: tuple[int, int], kind: str) -> Matrix:
    codes = RNG.integers(0, 256, (rows, cols), dtype=np.uint8)
    codes[codes & 127 == 127] = 0
    shape = (-(-rows // block[0]), -(-cols // block[1]))
    e8m0 = RNG.integers(120, 134, shape, dtype=np.uint8)
    scales = e8m0 if kind == "E8M0" else RNG.uniform(0.01, 3, shape).astype(np.float32)
    return Matrix("FP8_E4M3", rows, cols, codes, scales, block)


@pytest.mark.parametrize("format", SIMPLE)
def test_values_equal_the_codecs(format: str) -> None:
    w = example(format, 5, 512)
    expected = decode(format, w.data, 5, 512)
    got = Canonical().decode(w, np.arange(5))
    assert got.dtype == np.float32
    np.testing.assert_array_equal(got, expected)
    np.testing.assert_allclose(w.exact, expected, rtol=2e-7, atol=1e-6)


@pytest.mark.parametrize("kind", ["E8M0", "F32"])
def test_fp8_values_equal_the_codec(kind: str) -> None:
    w = fp8(70, 75, (32, 32), kind)
    assert w.scales is not None
    np.testing.assert_array_equal(
        Canonical().decode(w, np.arange(70)), decode_fp8(w.data, w.scales, (32, 32))
    )


def test_mxfp4_pairs_equal_the_codec() -> None:
    packed = RNG.integers(0, 256, (4, 32), dtype=np.uint8)
    scales = RNG.integers(100, 140, (4, 2), dtype=np.uint8)
    w = Matrix("MXFP4_PAIRS", 4, 64, packed, scales, (1, 32))
    np.testing.assert_array_equal(Canonical().decode(w, np.arange(4)), decode_mxfp4_pairs(packed, scales))


def test_element_order_of_both_mxfp4_layouts() -> None:
    """Case A01: the same sixteen payload bytes, read as halves and as pairs."""
    payload = np.array([[j | (15 - j) << 4 for j in range(16)]], np.uint8)
    scale = np.array([[127]], np.uint8)
    values = [0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6]
    halves = Matrix("MXFP4", 1, 32, np.concatenate([scale, payload], axis=1))
    assert halves.exact[0].tolist() == values + values[::-1]
    pairs = Matrix("MXFP4_PAIRS", 1, 32, payload, scale, (1, 32))
    assert pairs.exact[0, 0::2].tolist() == values
    assert pairs.exact[0, 1::2].tolist() == values[::-1]
    for i in range(32):  # 127: the int8 encoding of a one-hot vector is exact
        hot = np.zeros((1, 32), np.float32)
        hot[0, i] = 127
        for w in (halves, pairs):
            assert Canonical().product(hot, w)[0, 0] == 127 * w.exact[0, i]


def test_blocks_of_a_row_stay_apart() -> None:
    """Case A03: Q6_K quants all +1 under block scales 1, 2 and -1/2."""
    blocks = []
    for d in (1.0, 2.0, -0.5):
        codes = np.concatenate(
            [np.full(128, 0x11, np.uint8), np.full(64, 0xAA, np.uint8), np.ones(16, np.uint8)]
        )
        blocks.append(np.concatenate([codes, np.array([d], np.float16).view(np.uint8)]))
    w = Matrix("Q6_K", 1, 768, np.concatenate(blocks)[None])
    assert w.exact[0].tolist() == [1.0] * 256 + [2.0] * 256 + [-0.5] * 256


@pytest.mark.parametrize("block", [32, 256])
def test_int8_encoding(block: int) -> None:
    x = RNG.standard_normal((3, 512)).astype(np.float32)
    x[1, :block] = 0
    x[2, :block] *= np.float32(1e-37)  # amax / 127 is subnormal: everything becomes zero
    codes, d = pack_int8(x, block)
    assert codes.shape == (3, 512 // block, block)
    for row in range(3):
        for b in range(512 // block):
            values = x[row, b * block : (b + 1) * block]
            scale = np.abs(values).max() / np.float32(127)
            if scale < 2.0**-126:
                assert d[row, b] == 0
                assert not codes[row, b].any()
                continue
            inverse = np.float32(1) / scale
            assert d[row, b] == scale
            assert codes[row, b].tolist() == [max(-127, min(127, int(np.rint(v * inverse)))) for v in values]
    assert np.abs(codes).max() == 127


def test_bf16_encoding() -> None:
    x = np.array(
        [1 + 2.0**-8, 1 + 3 * 2.0**-8, -(1 + 2.0**-8 + 2.0**-20), 2.0**-101, -(2.0**-100), 0], np.float32
    )
    assert pack_bf16(x).tolist() == [1, 1 + 2.0**-6, -(1 + 2.0**-7), 0, -(2.0**-100), 0]
    assert not np.signbit(pack_bf16(np.array([-1e-35], np.float32)))[0]


@pytest.mark.parametrize("format", INTEGER)
def test_block_product_is_the_page(format: str) -> None:
    """Section 5, a scalar chain with exact fma over blocks, from the fields."""
    w, x = example(format, 3, 512), RNG.standard_normal((2, 512)).astype(np.float32)
    got, fields = Canonical().product(x, w), w.blocks
    codes, d = pack_int8(x, fields.n)
    width = fields.n // fields.groups
    for t in range(2):
        for r in range(3):
            acc = np.zeros(1, np.float32)
            for b in range(fields.codes.shape[1]):
                groups = [slice(j * width, (j + 1) * width) for j in range(fields.groups)]
                whole = sum(
                    int(fields.group_scales[r, b, j]) * int(fields.codes[r, b, g] @ codes[t, b, g])
                    for j, g in enumerate(groups)
                )
                acc = exact_fma(np.array([whole], np.float32), fields.scale[r, b : b + 1] * d[t, b], acc)
                if fields.group_minima is not None and fields.minimum is not None:
                    minima = fields.group_minima[r, b]
                    lift = sum(int(minima[j]) * int(codes[t, b, g].sum()) for j, g in enumerate(groups))
                    acc = exact_fma(
                        np.array([lift], np.float32), -(fields.minimum[r, b : b + 1] * d[t, b]), acc
                    )
            assert got[t, r] == acc[0]


@pytest.mark.parametrize("cols", [64, 75, 128, 131])
@pytest.mark.parametrize("columns", [32, 128])
def test_fp8_product_is_the_page(cols: int, columns: int) -> None:
    """Section 5, FP8: odd element before even, lanes fresh in each scale block, an odd last column without a
    partner."""
    w, x = fp8(2, cols, (128, columns), "F32"), RNG.standard_normal((1, cols)).astype(np.float32)
    packed, values, got = pack_bf16(x)[0], w.plain, Canonical().product(x, w)[0]
    for r in range(2):
        total = np.zeros(16, np.float32)
        for block, start in enumerate(range(0, cols, columns)):
            lane = np.zeros(16, np.float32)
            stop = min(start + columns, cols)
            for k in range(start, stop, 2):
                j = (k - start) // 2 % 16
                for i in (k + 1, k):
                    if i < stop:
                        lane[j : j + 1] = exact_fma(values[r, i : i + 1], packed[i : i + 1], lane[j : j + 1])
            total = exact_fma(lane, np.full(16, w.row_scales[r, block]), total)
        a = total[:8] + total[8:]
        b = a[:4] + a[4:]
        assert got[r] == (b[0] + b[2]) + (b[1] + b[3])


@pytest.mark.parametrize("format", ["F32", "F16", "BF16"])
def test_float_product_is_near_the_oracle(format: str) -> None:
    w, x = example(format, 9, 96), RNG.standard_normal((4, 96)).astype(np.float32)
    exact = Oracle().product(x.astype(np.float64), w)
    np.testing.assert_allclose(Canonical().product(x, w), exact, atol=1e-4)


def test_part_keeps_the_scales_of_its_rows() -> None:
    """Rows 5 .. 13 of a matrix whose scale blocks are 8 rows high."""
    w, x = fp8(24, 64, (8, 32), "E8M0"), RNG.standard_normal((2, 64)).astype(np.float32)
    np.testing.assert_array_equal(w.part(5, 13).exact, w.exact[5:13])
    assert Canonical().product(x, w.part(5, 13)).tobytes() == Canonical().product(x, w)[:, 5:13].tobytes()


def test_exact_rounding_helper_agrees_with_numpy() -> None:
    x = RNG.standard_normal(200)
    assert [nearest_f32(Fraction(v)) for v in x] == x.astype(np.float32).tolist()
