"""Cache rounding: values of spec section 2.2, short blocks, ties, and that rounding twice is rounding
once."""

from __future__ import annotations

import numpy as np
import pytest

from finback.formats.microfloats import E4M3_VALUES
from finback.reference import rows

RNG = np.random.default_rng(3)


def spread(*shape: int) -> np.ndarray:
    x = RNG.standard_normal(shape) * 10.0 ** RNG.uniform(-4, 3, shape)
    return np.asarray(x, np.float32)


def test_samples_of_the_spec() -> None:
    x = np.full(32, 0.01, np.float32)
    x[:4] = [0.1, -3.7, 5.2, 0]
    assert rows.round_fp4(x)[:5].tolist() == [0, -4, 6, 0, 0]
    y = np.zeros(64, np.float32)
    y[:3] = [1, 0.3, -0.017]
    np.testing.assert_array_equal(rows.round_fp8(y)[:3], np.array([1, 0.3125, -0.017578125], np.float32))


def test_e2m1_ties_go_to_the_even_code() -> None:
    ties = np.array([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0])
    assert rows.round_e2m1(ties).tolist() == [0, 1, 1, 2, 2, 4, 4]


def test_e4m3_is_the_nearest_code() -> None:
    values = np.unique(E4M3_VALUES[np.isfinite(E4M3_VALUES)].astype(np.float64))
    x = np.concatenate(
        [RNG.uniform(-448, 448, 3000), RNG.uniform(-0.05, 0.05, 3000), (values[1:] + values[:-1]) / 2]
    )
    error = np.abs(rows.round_e4m3(x) - x)
    assert np.isin(rows.round_e4m3(x), values).all()
    np.testing.assert_array_equal(error, np.abs(values[:, None] - x).min(0))


def test_powers_of_two() -> None:
    p = (2.0 ** np.arange(-126.0, 100)).astype(np.float32)
    assert (rows.pow2ceil(p) == p).all()
    assert (rows.pow2ceil(np.nextafter(p, np.float32(np.inf))) == 2 * p).all()


def test_last_block_may_be_short() -> None:
    """96 front channels are a block of 64 and one of 32, each with its own scale."""
    x = np.repeat(np.array([400, 0.013, 1 + 2.0**-9], np.float32), [64, 32, 32])
    y = rows.round_main(x, 32)
    assert (y[:64] == 400 - 16).all() or (y[:64] == 400 + 16).all()
    np.testing.assert_allclose(y[64:96], 0.013, rtol=1 / 16)
    assert (y[96:] == 1).all()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_rounding_twice_is_rounding_once(dtype: type) -> None:
    x = spread(300, 160).astype(dtype)
    main, fp4 = rows.round_main(x, 32), rows.round_fp4(x)
    assert main.dtype == dtype
    assert rows.round_main(main, 32).tobytes() == main.tobytes()
    assert rows.round_fp4(fp4).tobytes() == fp4.tobytes()


@pytest.mark.parametrize("n", [1, 2, 16, 64, 128])
def test_hadamard_is_sylvesters_matrix(n: int) -> None:
    matrix = np.ones((1, 1))
    while len(matrix) < n:
        matrix = np.block([[matrix, matrix], [matrix, -matrix]])
    x = RNG.standard_normal((5, n))
    np.testing.assert_allclose(rows.hadamard(x), x @ matrix / n**0.5, atol=1e-12)


@pytest.mark.parametrize("width", [32, 48, 128])
def test_index_codes_give_back_the_values(width: int) -> None:
    x = rows.round_fp4(spread(200, width))
    codes, scales = rows.index_codes(x)
    assert codes.shape == (200, -(-width // 32), 32)
    assert set(np.unique(np.abs(codes))) <= {0, 1, 2, 3, 4, 6, 8, 12}
    values = (codes * scales[..., None] / 2).reshape(200, -1)[:, :width]
    np.testing.assert_array_equal(values, x)


def test_zero_rows_stay_zero() -> None:
    zero = np.zeros((2, 96), np.float32)
    assert not rows.round_main(zero, 32).any()
    assert not rows.round_index(np.zeros((2, 64), np.float32)).any()
