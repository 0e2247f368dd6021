"""E4M3, E2M1 and E8M0 against ml_dtypes, code by code, and the matrices made of them."""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np
import pytest
from gguf import GGMLQuantizationType, quants

from finback.errors import NumericError, RequestError
from finback.formats import microfloats as mf
from finback.formats.blocks import decode, encode

ALL_CODES = np.arange(256, dtype=np.uint8)


def test_every_code_has_the_standard_value() -> None:
    np.testing.assert_array_equal(mf.E4M3_VALUES, ALL_CODES.view(ml_dtypes.float8_e4m3fn).astype(np.float32))
    np.testing.assert_array_equal(mf.E8M0_VALUES, ALL_CODES.view(ml_dtypes.float8_e8m0fnu).astype(np.float32))
    e2m1 = ALL_CODES[:16].view(ml_dtypes.float4_e2m1fn).astype(np.float32)
    np.testing.assert_array_equal(mf.E2M1_VALUES, e2m1)
    np.testing.assert_array_equal(np.signbit(mf.E2M1_VALUES), np.signbit(e2m1))
    assert np.isnan(mf.E8M0_VALUES[255])
    assert np.signbit(mf.E4M3_VALUES[128])


def midpoints(values: np.ndarray) -> np.ndarray:
    """Every value, every tie between neighbours, and the float32 on each side of both."""
    ordered = np.unique(values)
    points = np.concatenate([ordered, (ordered[1:] + ordered[:-1]) / 2]).astype(np.float32)
    sides = [np.nextafter(points, np.float32(side)) for side in (-np.inf, np.inf)]
    return np.concatenate([points, *sides])


def test_e4m3_rounding_is_exact() -> None:
    rng = np.random.default_rng(0)
    spread = (rng.standard_normal(100_000) * 10 ** rng.uniform(-6, 2, 100_000)).astype(np.float32)
    x = np.clip(np.concatenate([midpoints(mf.E4M3_VALUES[:127]), spread]), -448, 448)
    x = np.concatenate([x, -x])
    np.testing.assert_array_equal(mf.encode_e4m3(x), x.astype(ml_dtypes.float8_e4m3fn).view(np.uint8))


def test_e2m1_rounding_is_exact() -> None:
    x = np.clip(
        np.concatenate([midpoints(mf.E2M1_VALUES), np.linspace(-6, 6, 24001, dtype=np.float32)]), -6, 6
    )
    np.testing.assert_array_equal(mf.encode_e2m1(x), x.astype(ml_dtypes.float4_e2m1fn).view(np.uint8))


def test_rounding_saturates() -> None:
    far = np.array([449, 464, 465, 1e30, -1e30, np.finfo(np.float32).max], np.float32)
    np.testing.assert_array_equal(mf.encode_e4m3(far), [126, 126, 126, 126, 254, 126])
    np.testing.assert_array_equal(mf.encode_e2m1(far), [7, 7, 7, 7, 15, 7])


def test_scale_is_the_power_of_two_ceiling() -> None:
    for largest in (448.0, 6.0):
        for power in range(-20, 21):
            exact = np.float32(largest * 2.0**power)
            amax = np.array(
                [np.nextafter(exact, np.float32(0)), exact, np.nextafter(exact, np.float32(1e30))]
            )
            np.testing.assert_array_equal(
                mf.ceil_scale(amax, largest).astype(int) - 127, [power, power, power + 1]
            )


def test_worked_examples_of_the_specification() -> None:
    row = np.zeros((1, 32), np.float32)
    row[0, :5] = [0.1, -3.7, 5.2, 0, 0.01]
    np.testing.assert_array_equal(mf.decode_mxfp4_pairs(*mf.encode_mxfp4_pairs(row))[0, :5], [0, -4, 6, 0, 0])
    row[0, :5] = [1, 0.3, -0.017, 0, 0]
    values = mf.decode_fp8(*mf.encode_fp8(row, (1, 32)), (1, 32))[0, :3]
    np.testing.assert_allclose(values, [1, 0.3125, -0.01757812], rtol=1e-6)


@pytest.mark.parametrize("shape", [(1, 1), (128, 128), (130, 257), (300, 64)])
@pytest.mark.parametrize("block", [(128, 128), (32, 32), (1, 128)])
def test_fp8_matrix_block_by_block(shape: tuple[int, int], block: tuple[int, int]) -> None:
    rng = np.random.default_rng(1)
    x = (rng.standard_normal(shape) * np.exp(rng.uniform(-8, 8, shape))).astype(np.float32)
    codes, scales = mf.encode_fp8(x, block)
    values = mf.decode_fp8(codes, scales, block)
    assert scales.shape == (math.ceil(shape[0] / block[0]), math.ceil(shape[1] / block[1]))
    for i in range(scales.shape[0]):
        for j in range(scales.shape[1]):
            at = np.s_[i * block[0] : (i + 1) * block[0], j * block[1] : (j + 1) * block[1]]
            amax = max(float(np.abs(x[at]).max()), 1e-4)
            scale = 2.0 ** math.ceil(math.log2(amax / 448))
            assert scales[i, j] == math.log2(scale) + 127
            wanted = (x[at] / np.float32(scale)).astype(ml_dtypes.float8_e4m3fn).astype(np.float32)
            np.testing.assert_array_equal(values[at], wanted * np.float32(scale))
    again = mf.encode_fp8(values, block)
    np.testing.assert_array_equal(mf.decode_fp8(*again, block), values)


def test_fp8_takes_float_scales() -> None:
    codes = np.full((3, 5), 0x38, np.uint8)  # 1.0
    scales = np.array([[0.1, 3.0]], np.float32)
    wanted = np.tile(np.float32([0.1, 0.1, 0.1, 0.1, 3.0]), (3, 1))
    np.testing.assert_array_equal(mf.decode_fp8(codes, scales, (4, 4)), wanted)


def test_nan_scales_make_nan_values() -> None:
    blocks = np.concatenate([[255], np.full(16, 0x22)]).astype(np.uint8)
    assert np.isnan(decode("MXFP4", blocks, 1, 32)).all()
    assert np.isnan(mf.decode_fp8(np.full((1, 4), 1, np.uint8), np.array([[255]], np.uint8), (1, 4))).all()


def test_shapes_that_do_not_belong_together_are_refused() -> None:
    with pytest.raises(RequestError, match=r"needs \[2, 1\]"):
        mf.decode_fp8(np.zeros((130, 4), np.uint8), np.zeros((1, 1), np.uint8), (128, 128))
    with pytest.raises(RequestError, match="MXFP4 scales"):
        mf.decode_mxfp4_pairs(np.zeros((2, 32), np.uint8), np.zeros((2, 1), np.uint8))
    with pytest.raises(RequestError, match="multiple of 32"):
        mf.encode_mxfp4_pairs(np.zeros((1, 48), np.float32))
    with pytest.raises(RequestError, match="17-byte"):
        mf.mxfp4_to_pairs(np.zeros((1, 33), np.uint8))


def test_both_mxfp4_layouts_hold_the_same_values() -> None:
    rng = np.random.default_rng(2)
    x = (rng.standard_normal((6, 96)) * np.exp(rng.uniform(-5, 5, (6, 96)))).astype(np.float32)
    packed, scales = mf.encode_mxfp4_pairs(x)
    blocks = encode("MXFP4", x)
    np.testing.assert_array_equal(blocks, mf.mxfp4_to_halves(packed, scales))
    values = mf.decode_mxfp4_pairs(packed, scales)
    np.testing.assert_array_equal(values, quants.dequantize(blocks, GGMLQuantizationType.MXFP4))
    amax = np.abs(x).reshape(6, 3, 32).max(axis=2)
    np.testing.assert_array_equal(scales.astype(int) - 127, np.ceil(np.log2(amax.astype(float) / 6)))


def test_repacking_is_a_permutation() -> None:
    rng = np.random.default_rng(3)
    packed = rng.integers(0, 256, (5, 48), np.uint8)
    scales = rng.integers(0, 256, (5, 3), np.uint8)
    back = mf.mxfp4_to_pairs(mf.mxfp4_to_halves(packed, scales))
    np.testing.assert_array_equal(back[0], packed)
    np.testing.assert_array_equal(back[1], scales)


def test_encoding_refuses_nan() -> None:
    x = np.zeros((2, 32), np.float32)
    x[1, 3] = np.nan
    for call in (lambda: mf.encode_fp8(x, (32, 32)), lambda: mf.encode_mxfp4_pairs(x)):
        with pytest.raises(NumericError, match=r"\[1, 3\]"):
            call()
