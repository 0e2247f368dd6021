"""Block formats against the values GGML gives their bytes, and against values worked out by hand."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType, quants

from finback.errors import NumericError, RequestError
from finback.formats import blocks

GRIDS = ["IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S"]  # read, not encoded
SEARCHED = ["Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL", "IQ4_XS"]  # with an encoder that searches
ENCODED = ["F32", "F16", "BF16", "MXFP4", "Q8_0", "Q4_0", *SEARCHED]  # known to GGML, with both ways here
HALF_SCALES = {  # where half floats lie in a block
    **{name: [0] for name in ["Q8_0", "Q4_0", "IQ4_NL", "IQ4_XS", *GRIDS]},
    "Q2_K": [80, 82],
    "Q3_K": [108],
    "Q4_K": [0, 2],
    "Q5_K": [0, 2],
    "Q6_K": [208],
    "IQ1_M": [54],  # the exponent is in the top of the last byte; the rest is spread over three words before
}


def random_rows(format: str, rows: int, cols: int, seed: int = 0) -> np.ndarray:
    """Random stored bytes whose half-precision fields are finite: [rows, row_bytes]."""
    entry = blocks.FORMATS[format]
    rng = np.random.default_rng(seed)
    data = rng.integers(0, 256, (rows * cols // entry.block, entry.block_bytes), np.uint8)
    for at in HALF_SCALES.get(format, []):
        data[:, at + 1] &= 0xBB  # clears an exponent bit: neither infinity nor NaN
    if format == "MXFP4":
        data[:, 0] = np.arange(len(data)) % 255
    if format in {"F32", "F16", "BF16"}:
        plain = rng.standard_normal((rows, cols), np.float32)
        return blocks.encode(format, plain)
    return data.reshape(rows, -1)


def ggml_values(format: str, data: np.ndarray) -> np.ndarray:
    with np.errstate(over="ignore"):
        return np.asarray(quants.dequantize(data, GGMLQuantizationType[format]), np.float32)


@pytest.mark.parametrize("format", [*ENCODED, *GRIDS])
@pytest.mark.parametrize("count", [1, 2, 3, 17])
@pytest.mark.parametrize("rows", [1, 3])
def test_decode_gives_ggml_values(format: str, count: int, rows: int) -> None:
    cols = count * blocks.FORMATS[format].block
    data = random_rows(format, rows, cols)
    ours = blocks.decode(format, data, rows, cols)
    assert ours.shape == (rows, cols)
    assert ours.dtype == np.float32
    np.testing.assert_array_equal(ours, ggml_values(format, data).reshape(rows, cols))


@pytest.mark.parametrize("format", ["Q8_0", "Q4_0", "BF16", "F16", "F32"])
@pytest.mark.parametrize("scale", [1e-30, 1e-3, 1.0, 300.0])
def test_encode_gives_ggml_bytes(format: str, scale: float) -> None:
    x = np.random.default_rng(1).standard_normal((5, 96), np.float32) * np.float32(scale)
    x[0, :32] = 0
    x[1, :4] = [0.5, -0.5, 127, -127]
    x[2, 32:64] = np.arange(-16, 16) / 2  # ties
    theirs = quants.quantize(x, GGMLQuantizationType[format])
    np.testing.assert_array_equal(blocks.encode(format, x), theirs.view(np.uint8).reshape(5, -1))


def test_sizes_are_those_of_ggml() -> None:
    legacy = {"Q8_1"}  # an activation type, never in files; the package still lists its old 40-byte form
    for kind, (block, nbytes) in gguf.GGML_QUANT_SIZES.items():
        entry = blocks.GGML_FORMATS[int(kind)]
        assert entry.name == kind.name
        if kind.name not in legacy:
            assert (entry.block, entry.block_bytes) == (block, nbytes), kind.name


def test_activation_encodings() -> None:
    wanted = {
        "A8x32": {"Q8_0", "Q4_0", "MXFP4", "MXFP4_PAIRS", "IQ4_NL"},
        "A8x256": {*SEARCHED, *GRIDS} - {"IQ4_NL"},
        "BF16": {"FP8_E4M3"},
        "F32": {"F32", "F16", "BF16"},
    }
    for kind, names in wanted.items():
        assert {entry.name for entry in blocks.FORMATS.values() if entry.activation == kind} == names
    assert {name for name in blocks.FORMATS if blocks.has_codec(name)} == set().union(*wanted.values())


def test_mxfp4_order_depends_on_the_container() -> None:
    payload = np.array([j | (15 - j) << 4 for j in range(16)], np.uint8)
    low = [0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6]
    high = [-6, -4, -3, -2, -1.5, -1, -0.5, 0, 6, 4, 3, 2, 1.5, 1, 0.5, 0]
    ggml_block = np.concatenate([np.array([127], np.uint8), payload])
    np.testing.assert_array_equal(blocks.decode("MXFP4", ggml_block, 1, 32)[0], low + high)
    interleaved = np.array([low, high]).T.ravel()
    np.testing.assert_array_equal(blocks.decode("MXFP4_PAIRS", payload, 1, 32)[0], interleaved)
    scales = np.array([[127]], np.uint8)
    np.testing.assert_array_equal(blocks.decode_mxfp4_pairs(payload[None], scales)[0], interleaved)


def q6_k_block(d: float) -> np.ndarray:
    """Every low nibble 1, every high pair 2, every sub-scale 1: each quant is +1."""
    parts = [
        np.full(128, 0x11),
        np.full(64, 0b10101010),
        np.ones(16),
        np.array([d], np.float16).view(np.uint8),
    ]
    return np.concatenate(parts).astype(np.uint8)


def q4_k_block(d: float) -> np.ndarray:
    """Every code 1, all eight scales 1, minima 0."""
    halves = np.array([d, 0], np.float16).view(np.uint8)
    return np.concatenate([halves, [1] * 4, [0] * 4, [1] * 4, np.full(128, 0x11)]).astype(np.uint8)


def q2_k_block(d: float) -> np.ndarray:
    """Every code 1, all scales 1, minima 0."""
    halves = np.array([d, 0], np.float16).view(np.uint8)
    return np.concatenate([np.full(16, 1), np.full(64, 0x55), halves]).astype(np.uint8)


def iq2_xxs_block(d: float) -> np.ndarray:
    """The first point is eight times 8, the scale (2 * 0 + 1) / 8."""
    return np.concatenate([np.array([d], np.float16).view(np.uint8), np.zeros(64)]).astype(np.uint8)


def q8_0_block(d: float) -> np.ndarray:
    return np.concatenate([np.array([d], np.float16).view(np.uint8), np.ones(32)]).astype(np.uint8)


@pytest.mark.parametrize(
    ("format", "make"),
    [
        ("Q6_K", q6_k_block),
        ("Q4_K", q4_k_block),
        ("Q2_K", q2_k_block),
        ("IQ2_XXS", iq2_xxs_block),
        ("Q8_0", q8_0_block),
    ],
)
def test_each_block_of_a_row_fills_its_own_place(format: str, make: object) -> None:
    assert callable(make)
    block = blocks.FORMATS[format].block
    row = np.concatenate([make(1.0), make(2.0), make(-0.5)])
    wanted = np.repeat(np.array([1, 2, -0.5], np.float32), block)
    np.testing.assert_array_equal(blocks.decode(format, row, 1, 3 * block)[0], wanted)
    np.testing.assert_array_equal(
        blocks.decode(format, np.tile(row, 5), 5, 3 * block), np.tile(wanted, (5, 1))
    )


@pytest.mark.parametrize("format", [*ENCODED, "FP8_E4M3", "MXFP4_PAIRS"])
def test_chunks_do_not_show(format: str, monkeypatch: pytest.MonkeyPatch) -> None:
    x = np.random.default_rng(2).standard_normal((7, 768), np.float32)
    data = blocks.encode(format, x)
    values = blocks.decode(format, data, 7, 768)
    monkeypatch.setattr(blocks, "CHUNK_VALUES", 1024)
    np.testing.assert_array_equal(blocks.encode(format, x), data)
    np.testing.assert_array_equal(blocks.decode(format, data, 7, 768), values)


@pytest.mark.parametrize("format", ["MXFP4", "MXFP4_PAIRS", "FP8_E4M3", "Q8_0", "F16", "BF16"])
def test_encoding_decoded_values_changes_nothing(format: str) -> None:
    x = np.random.default_rng(3).standard_normal((4, 256), np.float32)
    values = blocks.decode(format, blocks.encode(format, x), 4, 256)
    np.testing.assert_array_equal(blocks.decode(format, blocks.encode(format, values), 4, 256), values)


@pytest.mark.parametrize("format", [*ENCODED, "FP8_E4M3", "MXFP4_PAIRS"])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_encode_refuses_what_is_not_finite(format: str, bad: float) -> None:
    x = np.zeros((2, 256), np.float32)
    x[1, 7] = bad
    with pytest.raises(NumericError, match=r"\[1, 7\]"):
        blocks.encode(format, x)


@pytest.mark.parametrize("format", ["F16", "BF16", "Q8_0", "Q4_0", *SEARCHED])
def test_encode_refuses_what_overflows(format: str) -> None:
    x = np.full((1, 256), np.finfo(np.float32).max, np.float32)
    with pytest.raises(NumericError, match="cannot encode"):
        blocks.encode(format, x)


@pytest.mark.parametrize("format", ["Q8_0", "Q4_0", *SEARCHED, "MXFP4", "F16", "BF16"])
@pytest.mark.parametrize("value", [0.0, -0.0, 1e-44, 1e-38, -1e-38])
def test_the_smallest_values_encode(format: str, value: float) -> None:
    x = np.full((1, 256), value, np.float32)
    y = blocks.decode(format, blocks.encode(format, x), 1, 256)
    assert np.abs(y - x).max() <= 1.2e-38


def test_sizes_that_do_not_fit_are_refused() -> None:
    with pytest.raises(RequestError, match="no multiple of 256"):
        blocks.row_bytes("Q4_K", 128)
    with pytest.raises(RequestError, match="no multiple"):
        blocks.row_bytes("F32", 0)
    with pytest.raises(RequestError, match="take 68 bytes"):
        blocks.decode("Q8_0", np.zeros(67, np.uint8), 2, 32)
    with pytest.raises(RequestError, match="Q5_1 can be listed"):
        blocks.decode("Q5_1", np.zeros(24, np.uint8), 1, 32)
    with pytest.raises(RequestError, match="'Q9_K' is unknown"):
        blocks.row_bytes("Q9_K", 256)
    with pytest.raises(RequestError, match="IQ2_S can be read but not encoded"):
        blocks.encode("IQ2_S", np.zeros((1, 256), np.float32))
    with pytest.raises(RequestError, match="float32"):
        blocks.encode("Q8_0", np.zeros(32, np.float32))
