"""`route`: scored and hashed choice, weights with and without normalisation, ties."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from finback.config import ModelConfig
from tests.golden import layers
from tests.ops.compare import compare, one_sequence
from tests.ops.inputs import FEW, SMALL, STEPS, WIDE, tensors


def needed(c: ModelConfig) -> dict[str, Any]:
    shapes = {"gate.weight": (c.n_routed_experts, c.hidden_size), "gate.bias": (c.n_routed_experts,)}
    token, place = np.arange(c.vocab_size)[:, None], np.arange(c.num_experts_per_tok)[None]
    return tensors(c, shapes) | {"tid2eid": (token * 5 - place * 3) % c.n_routed_experts}


def piece(ops: Any, source: Any) -> list[Any]:
    x, gate = ops.embed(source.matrix("embed.weight"), 1), source.matrix("gate.weight")
    hashed, scored = ops.config.layers[0], ops.config.layers[1]
    return [
        ops.route(scored, x, gate, source.vector("gate.bias"), None).value,
        ops.route(hashed, x, gate, None, source.table("tid2eid")).value,
    ]


def agree(pairs: list[tuple[np.ndarray, np.ndarray]]) -> None:
    for bits, exact in pairs:
        assert (bits["ids"] == exact["ids"]).all()
        np.testing.assert_allclose(bits["weights"], exact["weights"], rtol=1e-4)


@pytest.mark.parametrize("normalise", [True, False])
@pytest.mark.parametrize("chosen", [1, 2, 8])
def test_choice_and_weights(chosen: int, normalise: bool) -> None:
    config = replace(SMALL, num_experts_per_tok=chosen, norm_topk_prob=normalise)
    agree(compare(config, needed(config), piece, STEPS))


def test_many_experts() -> None:
    """More experts than lanes, six of them, as in the published models."""
    config = replace(SMALL, n_routed_experts=256, num_experts_per_tok=6)
    agree(compare(config, needed(config), piece, FEW))


def test_real_width() -> None:
    agree(compare(WIDE, needed(WIDE), piece, FEW))


def test_equal_scores_go_to_the_lower_id() -> None:
    given = needed(SMALL)
    given["gate.weight"] = np.zeros_like(given["gate.weight"])
    given["gate.bias"] = np.array([0, 1, 0, 1, 1, 0, 0, 0], np.float32)
    scored, _ = compare(SMALL, given, piece, one_sequence(3))
    assert (scored[0]["ids"] == [1, 3]).all()


def test_a_table_may_repeat_an_id() -> None:
    config = replace(SMALL, layers=layers((0, 0), 0, 1))
    given = needed(config)
    given["tid2eid"] = np.full_like(given["tid2eid"], 3)
    _, hashed = compare(config, given, piece, one_sequence(3))
    assert (hashed[0]["ids"] == [3, 3]).all()
    np.testing.assert_allclose(hashed[0]["weights"], config.routed_scaling_factor / 2, rtol=1e-6)
