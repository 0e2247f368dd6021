"""`compress` with `attend` behind it: the compressed rows are seen through what queries read from them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from finback.config import ModelConfig
from tests.ops.compare import Step, compare, near, one_sequence
from tests.ops.inputs import NARROW, SMALL, STEPS, tensors
from tests.tiny import with_ratios


def needed(c: ModelConfig) -> dict[str, Any]:
    shapes: dict[str, tuple[int, ...]] = {}
    for layer in c.layers:
        width = c.head_dim * (2 if layer.kind == "csa" else 1)
        shapes |= {
            f"{layer.index}.wkv.weight": (width, c.hidden_size),
            f"{layer.index}.wgate.weight": (width, c.hidden_size),
            f"{layer.index}.ape": (layer.ratio, width),
            f"{layer.index}.norm.weight": (c.head_dim,),
        }
    heads = c.num_attention_heads
    shapes |= {"wq.weight": (heads * c.head_dim, c.hidden_size), "w.weight": (c.head_dim, c.hidden_size)}
    return tensors(c, shapes | {"kv_norm.weight": (c.head_dim,), "attn_sink": (heads,)})


def piece(ops: Any, source: Any) -> list[Any]:
    """Attention over all visible compressed rows of each layer and a window."""
    x, rotary, out = ops.embed(source.matrix("embed.weight"), 1), ops.rotary(ops.config.compress_rope), []
    for layer in ops.config.layers:
        p = layer.index
        names = ("wq.weight", "w.weight", f"{p}.wkv.weight", f"{p}.wgate.weight")
        q, kv, pooled, gate = ops.linear(x, [source.matrix(name) for name in names])
        q, kv = ops.qkv_finish(layer, q, kv, source.vector("kv_norm.weight"), rotary)
        ape, norm = source.vector(f"{p}.ape"), source.vector(f"{p}.norm.weight")
        ops.compress(layer, "main", pooled, gate, ape, norm, rotary)
        out.append(ops.attend(layer, q, kv, source.vector("attn_sink"), rotary, None))
    return out


@pytest.mark.parametrize("rounding", [False, True], ids=["exact-cache", "rounded-cache"])
def test_pooled_groups(rounding: bool) -> None:
    config = with_ratios(SMALL, (8, 128), 0, cache_rounding=rounding)
    near(compare(config, needed(config), piece, STEPS), 0.05 if rounding else 2e-5)


@pytest.mark.parametrize("chunks", [(8,), (7, 1), (1,) * 9, (3, 14)], ids=str)
def test_edges_of_a_group(chunks: tuple[int, ...]) -> None:
    config = with_ratios(SMALL, (8,), 0, sliding_window=2)
    compare(config, needed(config), piece, one_sequence(*chunks))


def test_real_width() -> None:
    config = replace(with_ratios(NARROW, (8,), 0), sliding_window=4)
    steps: list[Step] = [[(0, 5)], [(0, 1), (1, 2)], [(0, 4)]]
    compare(config, needed(config), piece, steps)
