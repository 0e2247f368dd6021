"""`index_select`: which rows are taken, with more rows than index_topk, with ties, with and without cache
rounding."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from finback.config import ModelConfig
from tests.ops.compare import compare, one_sequence
from tests.ops.inputs import NARROW, SMALL, STEPS, tensors
from tests.tiny import with_ratios


def needed(c: ModelConfig) -> dict[str, Any]:
    d, width, heads = c.hidden_size, c.index_head_dim, c.index_n_heads
    return tensors(
        c,
        {
            "wq_b.weight": (heads * width, d),
            "weights_proj.weight": (heads, d),
            "wkv.weight": (2 * width, d),
            "wgate.weight": (2 * width, d),
            "ape": (4, 2 * width),
            "norm.weight": (width,),
        },
    )


def piece(ops: Any, source: Any) -> list[Any]:
    (layer,) = ops.config.layers
    x, rotary = ops.embed(source.matrix("embed.weight"), 1), ops.rotary(ops.config.compress_rope)
    names = ("wq_b.weight", "weights_proj.weight", "wkv.weight", "wgate.weight")
    q, weights, kv, gate = ops.linear(x, [source.matrix(name) for name in names])
    ops.compress(layer, "index", kv, gate, source.vector("ape"), source.vector("norm.weight"), rotary)
    return [ops.index_select(layer, q, weights, rotary).value]


def csa(c: ModelConfig, **changes: Any) -> ModelConfig:
    return with_ratios(c, (4,), 0, **changes)


@pytest.mark.parametrize("rounding", [False, True], ids=["exact-cache", "rounded-cache"])
@pytest.mark.parametrize("topk", [1, 5, 64])
def test_selection(topk: int, rounding: bool) -> None:
    config = csa(SMALL, index_topk=topk, index_n_heads=16, cache_rounding=rounding)
    ((bits, exact),) = compare(config, needed(config), piece, STEPS)
    assert (bits["count"] == exact["count"]).all()
    agree = (bits["rows"] == exact["rows"]).all(axis=1).mean()
    assert agree > 0.9, "near ties may part; most selections may not"


def test_ties_go_to_the_lower_row() -> None:
    """Without weights every score is zero."""
    config = csa(SMALL, index_topk=3)
    given = needed(config)
    given["weights_proj.weight"] = np.zeros_like(given["weights_proj.weight"])
    ((bits, _),) = compare(config, given, piece, one_sequence(5, 30))
    assert bits["rows"][-1].tolist() == [0, 1, 2]


def test_visible_rows_only() -> None:
    ((bits, _),) = compare(csa(SMALL, index_topk=64), needed(csa(SMALL)), piece, one_sequence(3, 2, 20))
    assert bits["count"].tolist() == [(p + 1) // 4 for p in range(25)]


@pytest.mark.parametrize("rounding", [False, True], ids=["exact-cache", "rounded-cache"])
def test_real_width(rounding: bool) -> None:
    config = csa(replace(NARROW, cache_rounding=rounding, index_topk=2))
    compare(config, needed(config), piece, one_sequence(3, 2, 12))
