"""Cache rounding and encodings against torch's own small floats, bit for bit."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
import pytest

from finback.reference import rows
from finback.reference.canonical import Canonical
from finback.reference.fields import E4M3_VALUES, E8M0_VALUES
from finback.reference.matrix import Matrix

pytestmark = pytest.mark.oracle

RNG = np.random.default_rng(0)


@pytest.fixture(scope="module")
def torch() -> Any:
    """Imported only when these tests run, for torch is not in every environment."""
    return importlib.import_module("torch")


def spread(n: int, low: float, high: float) -> np.ndarray:
    return (RNG.standard_normal(n) * 10.0 ** RNG.uniform(low, high, n)).astype(np.float32)


def test_e4m3_rounding_is_torchs(torch: Any) -> None:
    x = np.concatenate([spread(200_000, -4, 2.5), np.linspace(-448, 448, 40_001, dtype=np.float32)]).clip(
        -448, 448
    )
    theirs = torch.tensor(x).to(torch.float8_e4m3fn).float().numpy()
    assert rows.round_e4m3(x).tobytes() == theirs.tobytes()


def test_bf16_rounding_is_torchs(torch: Any) -> None:
    x = spread(200_000, -30, 30)
    theirs = torch.tensor(x).to(torch.bfloat16).float().numpy()
    assert rows.round_bf16(x).tobytes() == theirs.tobytes()


def test_code_tables_are_torchs(torch: Any) -> None:
    codes = torch.arange(256, dtype=torch.uint8)
    np.testing.assert_array_equal(E4M3_VALUES, codes.view(torch.float8_e4m3fn).float().numpy())
    np.testing.assert_array_equal(E8M0_VALUES[:255], codes.view(torch.float8_e8m0fnu).float().numpy()[:255])
    assert np.isnan(E8M0_VALUES[255])


def test_float_matrices_are_torchs(torch: Any) -> None:
    x = torch.tensor(spread(4 * 64, -3, 3).reshape(4, 64))
    for format, dtype in (("F16", torch.float16), ("BF16", torch.bfloat16)):
        stored = x.to(dtype)
        w = Matrix(format, 4, 64, stored.view(torch.uint8).numpy().reshape(4, -1))
        np.testing.assert_array_equal(Canonical().decode(w, np.arange(4)), stored.float().numpy())


def test_fma_is_the_processors(torch: Any) -> None:
    """torch.addcmul in float64 rounds the sum once to f64; where that leaves no half way, f32 must agree."""
    a, b, c = (torch.tensor(spread(100_000, -3, 3)) for _ in range(3))
    wide = torch.addcmul(c.double(), a.double(), b.double())
    bits = wide.view(torch.int64) & (1 << 29) - 1
    clear = (bits != 1 << 28).numpy()
    ours = Canonical.fma(a.numpy(), b.numpy(), c.numpy())
    np.testing.assert_array_equal(ours[clear], wide.float().numpy()[clear])
