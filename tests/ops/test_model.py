"""The whole model: native, canonical and oracle, in chunks over every boundary and with several sequences in
a step."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from finback.config import ModelConfig
from finback.models.deepseek_v4 import forward, load_weights
from tests.golden import GOLDEN, weights
from tests.model.test_stored import CASES, PLAIN, WIDE, WIDE_CASES
from tests.ops.compare import Step, compare, near, one_sequence
from tests.tiny import TINY, is_big_matrix, stored, with_ratios

RAGGED = one_sequence(1, 2, 3, 5, 9, 17)
MIXED: list[Step] = [[(0, 5), (1, 1)], [(0, 1), (1, 7), (2, 3)], [(2, 1), (1, 1), (0, 1)], [(1, 9)]]
LONG = one_sequence(1, 2, 3, 121, 2, 1, 10)  # edges at 127, 129 and 130


def model(config: ModelConfig) -> Any:
    """A piece: logits and final streams of all rows."""
    return lambda ops, source: list(forward(ops, load_weights(config, source)))


@pytest.mark.parametrize("rounding", [False, True], ids=["exact-cache", "rounded-cache"])
@pytest.mark.parametrize("steps", [RAGGED, MIXED], ids=["ragged", "mixed"])
def test_tiny(steps: list[Step], rounding: bool) -> None:
    config = replace(TINY, cache_rounding=rounding)
    near(compare(config, weights(config), model(config), steps), 1e-4)


def test_groups_of_128_and_a_window_across_chunks() -> None:
    """Heads of 128 = 96 + 32 channels, so that the second FP8 block is short, as in the published tiny
    model."""
    config = replace(
        with_ratios(GOLDEN, (0, 4, 128), 1),
        head_dim=128,
        qk_rope_head_dim=32,
        index_head_dim=64,
        cache_rounding=True,
    )
    compare(config, weights(config), model(config), LONG)


@pytest.mark.parametrize("name", CASES)
def test_stored_formats(name: str) -> None:
    encoding, chosen, _, _ = CASES[name]
    config = replace(PLAIN, cache_rounding=True)
    compare(config, stored(weights(config), encoding, chosen), model(config), one_sequence(1, 6, 2))


@pytest.mark.parametrize("name", WIDE_CASES)
def test_stored_formats_of_256(name: str) -> None:
    tensors = stored(weights(WIDE), WIDE_CASES[name], lambda t: is_big_matrix(t) and "wo_b" not in t)
    compare(WIDE, tensors, model(WIDE), one_sequence(1, 4))


@pytest.mark.parametrize(
    "changes",
    [
        {"norm_topk_prob": False},
        {"n_shared_experts": 0},
        {"swiglu_limit": 0.0},
        {"hc_mult": 2},
        {"num_experts_per_tok": 8},
        {"sliding_window": 1},
        {"index_topk": 1},
        {"o_groups": 4},
        {"hc_sinkhorn_iters": 1},
    ],
    ids=lambda changes: "-".join(f"{k}-{v}" for k, v in changes.items()),
)
def test_numbers_of_the_configuration_are_obeyed(changes: dict[str, Any]) -> None:
    config = replace(PLAIN, **changes)
    near(compare(config, weights(config), model(config), one_sequence(3, 20)), 1e-4)


def test_the_harness_notices_one_bit() -> None:
    """A piece whose second run differs in one weight's last bit must not pass."""
    tensors = dict(weights(TINY))
    calls: list[None] = []

    def piece(ops: Any, source: Any) -> list[Any]:
        calls.append(None)
        name = "norm.weight" if len(calls) == 1 else "other.weight"
        return [ops.norm(ops.embed(source.matrix("embed.weight"), 1), source.vector(name))]

    tensors["other.weight"] = tensors["norm.weight"].copy()
    tensors["other.weight"][5] = np.nextafter(tensors["norm.weight"][5], np.float32(2))
    with pytest.raises(AssertionError, match="value 0 at level scalar with 1 threads: rows"):
        compare(TINY, tensors, piece, one_sequence(3))
