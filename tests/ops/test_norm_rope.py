"""`norm`, `rotary` and `qkv_finish`: norms, rotation at small and large positions, cache rounding of the
step's rows."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from finback.config import ModelConfig
from tests.ops.compare import compare, near
from tests.ops.inputs import FEW, NARROW, SMALL, STEPS, WIDE, tensors


def needed(c: ModelConfig) -> dict[str, Any]:
    d, width = c.hidden_size, c.head_dim
    shapes = {"wq.weight": (c.num_attention_heads * width, d), "wkv.weight": (width, d)}
    return tensors(c, shapes | {"kv_norm.weight": (width,), "norm.weight": (d,)})


def norms(ops: Any, source: Any) -> list[Any]:
    table, w = source.matrix("embed.weight"), source.vector("norm.weight")
    return [ops.norm(ops.embed(table, 1), w), ops.norm(ops.embed(table, 4), w)]


def finish(ops: Any, source: Any) -> list[Any]:
    out = []
    x = ops.embed(source.matrix("embed.weight"), 1)
    q, kv = ops.linear(x, [source.matrix("wq.weight"), source.matrix("wkv.weight")])
    for layer, rope in (
        (ops.config.layers[0], ops.config.rope),
        (ops.config.layers[1], ops.config.compress_rope),
    ):
        rotary = ops.rotary(rope)
        out += [rotary.value, *ops.qkv_finish(layer, q, kv, source.vector("kv_norm.weight"), rotary)]
    return out


@pytest.mark.parametrize("config", [SMALL, WIDE], ids=["small", "real width"])
def test_norms(config: ModelConfig) -> None:
    near(compare(config, needed(config), norms, FEW), 1e-6)


@pytest.mark.parametrize("rounding", [False, True], ids=["exact-cache", "rounded-cache"])
def test_queries_and_keys(rounding: bool) -> None:
    config = replace(SMALL, cache_rounding=rounding)
    pairs = compare(config, needed(config), finish, STEPS)
    # A value beside the edge between two codes may fall on the other side in float32: one step of FP8, 1/16.
    near(pairs, 0.07 if rounding else 1e-5)


@pytest.mark.parametrize("rounding", [False, True], ids=["exact-cache", "rounded-cache"])
def test_real_width(rounding: bool) -> None:
    config = replace(NARROW, cache_rounding=rounding)
    near(compare(config, needed(config), finish, FEW), 0.07 if rounding else 1e-5)
