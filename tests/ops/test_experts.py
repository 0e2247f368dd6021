"""`experts`: formats, shared expert, clamp; few and many rows per expert; different encodings in one call."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from finback.config import ModelConfig
from finback.ops.base import Expert
from finback.reference.matrix import Matrix
from tests.golden import prompt
from tests.model.test_stored import CASES, WIDE_CASES
from tests.ops.compare import compare, near, one_sequence
from tests.ops.inputs import FEW, SMALL, STEPS, WIDE, tensors
from tests.tiny import Encode


def repeated(format: str) -> Encode:
    """K-quants search for their scales, which takes seconds at real width: the first 256 columns stand for
    all."""

    def of(x: np.ndarray) -> Matrix:
        data = WIDE_CASES[format](np.ascontiguousarray(x[:, :256])).data
        return Matrix(format, len(x), x.shape[1], np.tile(data, (1, x.shape[1] // 256)))

    return of


ENCODE = {name: case[0] for name, case in CASES.items()} | {name: repeated(name) for name in WIDE_CASES}


def needed(c: ModelConfig, routed: str = "F32", shared: str = "F32") -> dict[str, Any]:
    d, inner, shapes = (
        c.hidden_size,
        c.moe_intermediate_size,
        {"gate.weight": (c.n_routed_experts, c.hidden_size)},
    )
    for name in [f"ffn.experts.{e}" for e in range(c.n_routed_experts)] + ["ffn.shared_experts"]:
        shapes |= {
            f"{name}.w1.weight": (inner, d),
            f"{name}.w3.weight": (inner, d),
            f"{name}.w2.weight": (d, inner),
        }
    given = tensors(c, shapes | {"gate.bias": (c.n_routed_experts,)})
    for part, format in ((".experts.", routed), (".shared_experts.", shared)):
        if format != "F32":
            given |= {name: ENCODE[format](t) for name, t in given.items() if part in name}
    return given


def piece(ops: Any, source: Any) -> list[Any]:
    x, layer = ops.embed(source.matrix("embed.weight"), 1), ops.config.layers[1]
    routing = ops.route(layer, x, source.matrix("gate.weight"), source.vector("gate.bias"), None)
    routed = Expert(*(source.experts("ffn.experts", w) for w in ("w1", "w3", "w2")))
    shared = Expert(*(source.matrix(f"ffn.shared_experts.{w}.weight") for w in ("w1", "w3", "w2")))
    return [ops.experts(x, routing, routed, shared), ops.experts(x, routing, routed, None)]


@pytest.mark.parametrize("limit", [0.0, 0.3, 10.0])
def test_float_experts(limit: float) -> None:
    config = replace(SMALL, swiglu_limit=limit)
    near(compare(config, needed(config), piece, STEPS), 1e-5)


@pytest.mark.parametrize("routed", CASES)
def test_stored_experts(routed: str) -> None:
    near(compare(SMALL, needed(SMALL, routed), piece, one_sequence(1, 6)), 0.05)


def test_shared_expert_in_another_encoding() -> None:
    near(compare(SMALL, needed(SMALL, "MXFP4_PAIRS", "FP8-32"), piece, one_sequence(1, 6)), 0.05)


@pytest.mark.parametrize("chosen", [1, 8])
def test_one_expert_and_all(chosen: int) -> None:
    config = replace(SMALL, num_experts_per_tok=chosen)
    near(compare(config, needed(config), piece, one_sequence(1, 6)), 1e-5)


@pytest.mark.parametrize("routed", ["MXFP4_PAIRS", "Q4_K", "Q6_K"])
def test_real_width(routed: str) -> None:
    near(compare(WIDE, needed(WIDE, routed, "FP8-128"), piece, FEW), 0.05)


def test_clamp_table() -> None:
    """Case A09 natively: gates -20 .. 50 by ups -50 .. 50, one-channel experts, routed and shared alike."""
    gates, ups = np.meshgrid([-20.0, -1, 0, 5, 12, 50], [-50.0, -9, 0, 9, 50])
    config = replace(
        SMALL,
        swiglu_limit=10.0,
        hidden_size=2,
        moe_intermediate_size=1,
        n_routed_experts=2,
        num_experts_per_tok=1,
    )
    given = needed(config)
    table = np.zeros((config.vocab_size, 2), np.float32)
    table[:] = np.resize(np.stack([gates.ravel(), ups.ravel()], axis=1), table.shape)
    given["embed.weight"] = table
    for name in given:
        if name.endswith((".w1.weight", ".w3.weight")):
            given[name] = np.array([[1.0, 0] if ".w1." in name else [0, 1.0]], np.float32)
        elif name.endswith(".w2.weight"):
            given[name] = np.ones((2, 1), np.float32)
    (both, _), (routed, _) = compare(config, given, piece, one_sequence(60))
    x = table[prompt(60, config.vocab_size)].astype(np.float64)
    gate, up = np.minimum(x[:, 0], 10), np.clip(x[:, 1], -10, 10)
    expected = gate / (1 + np.exp(-gate)) * up
    np.testing.assert_allclose(routed[:, 0], expected * config.routed_scaling_factor, rtol=2e-6, atol=1e-6)
    np.testing.assert_allclose(
        both[:, 0], expected * (1 + config.routed_scaling_factor), rtol=2e-6, atol=1e-6
    )
