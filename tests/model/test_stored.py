"""Canonical arithmetic against the oracle on weights in their stored formats.

With float weights the two differ by float32 rounding. With quantised weights the oracle multiplies the same
stored numbers by unrounded activations, so the difference is the activations' own encoding: 8 bits or bf16.
Each bound is a few times what was measured, and far below what a wrong scale, nibble order or block would
give. """

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from finback.config import ModelConfig
from finback.formats.blocks import encode, encode_fp8, encode_mxfp4_pairs
from finback.reference.canonical import Canonical
from finback.reference.matrix import Matrix
from finback.reference.oracle import Oracle
from tests.golden import prompt, weights
from tests.model.run import Model, run, same_bits, worst
from tests.tiny import TINY, Encode, is_big_matrix, is_expert, stored, with_ratios

PLAIN = replace(TINY, cache_rounding=False, index_n_heads=16)
WIDE = replace(
    with_ratios(PLAIN, (0, 4), 1),
    hidden_size=256,
    moe_intermediate_size=256,
    q_lora_rank=256,
    num_attention_heads=16,
    n_routed_experts=4,
)
"""Rows that are a multiple of 256, for K-quants."""


def in_blocks(format: str) -> Encode:
    return lambda x: Matrix(format, len(x), x.shape[1], encode(format, x))


def fp8(rows: int, columns: int) -> Encode:
    def of(x: np.ndarray) -> Matrix:
        codes, scales = encode_fp8(x, (rows, columns))
        return Matrix("FP8_E4M3", len(x), x.shape[1], codes, scales, (rows, columns))

    return of


def mxfp4_pairs(x: np.ndarray) -> Matrix:
    packed, scales = encode_mxfp4_pairs(x)
    return Matrix("MXFP4_PAIRS", len(x), x.shape[1], packed, scales, (1, 32))


CASES: dict[str, tuple[Encode, Callable[[str], bool], float, float]] = {
    # encoding, which matrices, bound of the greatest difference, bound of the mean difference
    "F16": (in_blocks("F16"), is_big_matrix, 1e-5, 1e-6),
    "BF16": (in_blocks("BF16"), is_big_matrix, 1e-5, 1e-6),
    "Q8_0": (in_blocks("Q8_0"), is_big_matrix, 1.0, 0.03),
    "Q4_0": (in_blocks("Q4_0"), is_big_matrix, 1.0, 0.03),
    "FP8-128": (fp8(128, 128), is_big_matrix, 1.0, 0.03),
    "FP8-32": (fp8(32, 32), is_big_matrix, 1.0, 0.03),
    "MXFP4": (in_blocks("MXFP4"), is_expert, 1.0, 0.03),
    "MXFP4_PAIRS": (mxfp4_pairs, is_expert, 1.0, 0.03),
}
WIDE_CASES = {"Q4_K": in_blocks("Q4_K"), "Q6_K": in_blocks("Q6_K")}


def both(config: ModelConfig, tensors: dict[str, Any], n: int) -> tuple[np.ndarray, np.ndarray]:
    ids = prompt(n, PLAIN.vocab_size)
    exact = run(Model.of(config, Oracle(), tensors), ids).logits
    bits = run(Model.of(config, Canonical(), tensors), ids).logits
    return exact, bits


@pytest.mark.parametrize("name", CASES)
def test_canonical_is_near_the_oracle(name: str) -> None:
    encoding, chosen, greatest, mean = CASES[name]
    exact, bits = both(PLAIN, stored(weights(PLAIN), encoding, chosen), 21)
    assert worst(exact, bits) < greatest
    assert np.abs(exact - bits).mean() < mean


@pytest.mark.parametrize("name", WIDE_CASES)
def test_canonical_is_near_the_oracle_in_blocks_of_256(name: str) -> None:
    def chosen(tensor: str) -> bool:
        return is_big_matrix(tensor) and "wo_b" not in tensor

    exact, bits = both(WIDE, stored(weights(WIDE), WIDE_CASES[name], chosen), 9)
    assert worst(exact, bits) < 1.0
    assert np.abs(exact - bits).mean() < 0.04


def test_both_nibble_orders_give_the_same_bytes() -> None:
    """The two MXFP4 containers hold the same numbers, so the product has the same bits."""
    ids, tensors = prompt(6, PLAIN.vocab_size), weights(PLAIN)
    halves, pairs = (
        run(Model.of(PLAIN, Canonical(), stored(tensors, e, is_expert)), ids).logits
        for e in (in_blocks("MXFP4"), mxfp4_pairs)
    )
    assert same_bits(halves, pairs)


@pytest.mark.parametrize("name", ["Q8_0", "FP8-32", "MXFP4"])
def test_chunks_give_the_same_bytes_on_stored_formats(name: str) -> None:
    encoding, chosen, _, _ = CASES[name]
    model = Model.of(TINY, Canonical(), stored(weights(TINY), encoding, chosen))
    ids = prompt(13, TINY.vocab_size)
    assert same_bits(run(model, ids, [1, 2, 3, 7]).logits, run(model, ids).logits)
