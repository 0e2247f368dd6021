"""The encoders that search (K-quants and IQ4): how close they come, and the blocks that break careless ones."""

from __future__ import annotations

import numpy as np
import pytest
from gguf import GGMLQuantizationType, quants

from finback.formats.blocks import decode, encode

RNG = np.random.default_rng(0)
DRAWS = {
    "normal": RNG.standard_normal((512, 256), np.float32) * 0.02,
    "laplace": RNG.laplace(size=(512, 256)).astype(np.float32),
    "uniform": RNG.random((512, 256), np.float32),
    "heavy": RNG.standard_t(3, (512, 256)).astype(np.float32),
}
# Relative root-mean-square errors the search reaches, with 3 % to spare.
BOUNDS = {
    "Q2_K": {"normal": 0.279, "laplace": 0.308, "uniform": 0.1361, "heavy": 0.31},
    "Q3_K": {"normal": 0.148, "laplace": 0.174, "uniform": 0.1044, "heavy": 0.188},
    "Q4_K": {"normal": 0.074, "laplace": 0.087, "uniform": 0.0303, "heavy": 0.096},
    "Q5_K": {"normal": 0.037, "laplace": 0.044, "uniform": 0.0149, "heavy": 0.0486},
    "Q6_K": {"normal": 0.0178, "laplace": 0.0218, "uniform": 0.0133, "heavy": 0.026},
    "IQ4_NL": {"normal": 0.0765, "laplace": 0.0887, "uniform": 0.0612, "heavy": 0.1026},
    "IQ4_XS": {"normal": 0.0772, "laplace": 0.0896, "uniform": 0.0618, "heavy": 0.104},
}
# What is lost when decoded values are encoded again, as a share of what the first time lost; 0.1 for the others.
AGAIN = {"Q5_K": 0.12, "IQ4_NL": 0.16, "IQ4_XS": 0.16}
# Odd blocks that a format with few codes, or with none that is worth 0 (IQ4), does less well with.
COARSE = {
    ("Q2_K", "groups of very different size"): 0.043,
    ("Q2_K", "a zero group beside others"): 0.027,
    ("Q3_K", "large"): 0.056,
    ("Q3_K", "small"): 0.056,
    ("IQ4_NL", "one outlier"): 0.045,
    ("IQ4_XS", "one outlier"): 0.045,
    ("IQ4_NL", "groups of very different size"): 0.043,
    ("IQ4_XS", "groups of very different size"): 0.046,
    ("IQ4_NL", "large"): 0.056,
    ("IQ4_XS", "large"): 0.056,
    ("IQ4_NL", "small"): 0.056,
    ("IQ4_XS", "small"): 0.056,
}


def relative_error(y: np.ndarray, x: np.ndarray) -> float:
    return float(np.sqrt(np.square(y - x, dtype=np.float64).sum() / np.square(x, dtype=np.float64).sum()))


@pytest.mark.parametrize("draw", DRAWS)
@pytest.mark.parametrize("format", BOUNDS)
def test_error_is_small_as_ggml_reads_it(format: str, draw: str) -> None:
    x = DRAWS[draw]
    y = quants.dequantize(encode(format, x), GGMLQuantizationType[format])
    assert relative_error(y, x) < BOUNDS[format][draw]


@pytest.mark.parametrize("draw", DRAWS)
def test_q4_k_is_clearly_better_than_q4_0(draw: str) -> None:
    x = DRAWS[draw]
    q4_k, q4_0 = (decode(f, encode(f, x), *x.shape) for f in ("Q4_K", "Q4_0"))
    assert relative_error(q4_k, x) < 0.88 * relative_error(q4_0, x)


@pytest.mark.parametrize("format", BOUNDS)
def test_encoding_decoded_values_loses_almost_nothing(format: str) -> None:
    x = DRAWS["normal"]
    once = decode(format, encode(format, x), *x.shape)
    twice = decode(format, encode(format, once), *x.shape)
    assert relative_error(twice, once) < AGAIN.get(format, 0.1) * relative_error(once, x)


@pytest.mark.parametrize("format", BOUNDS)
@pytest.mark.parametrize(
    ("name", "row", "tolerance"),
    [
        ("zero", np.zeros(256), 0.0),
        ("one positive constant", np.full(256, 0.37), 2e-3),
        ("one negative constant", np.full(256, -0.37), 2e-3),
        ("one outlier", np.eye(1, 256, 100)[0] * 1000, 1e-3),
        ("groups of very different size", np.repeat(2.0 ** -np.arange(8), 32) * np.tile([1, -1], 128), 0.02),
        ("a zero group beside others", np.repeat([0, 1, 0, -1, 0, 2, 0, 0.5], 32), 0.02),
        ("large", np.linspace(-60000, 60000, 256), 0.05),
        ("small", np.linspace(-1e-4, 1e-4, 256), 0.05),
    ],
)
def test_odd_blocks(format: str, name: str, row: np.ndarray, tolerance: float) -> None:
    x = row.astype(np.float32)[None]
    y = decode(format, encode(format, x), 1, 256)
    assert np.linalg.norm(y - x) <= COARSE.get((format, name), tolerance) * np.linalg.norm(x), name


@pytest.mark.parametrize("format", BOUNDS)
def test_blocks_do_not_influence_each_other(format: str) -> None:
    x = DRAWS["heavy"][:9]
    rows = [encode(format, x[i : i + 1]) for i in range(9)]
    np.testing.assert_array_equal(encode(format, x), np.concatenate(rows))
    np.testing.assert_array_equal(encode(format, x.reshape(1, -1)), np.concatenate(rows, axis=1))
