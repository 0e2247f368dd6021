"""`attend`: the window across chunks, the sink, and selected compressed rows (CSA) as the model uses them."""

from __future__ import annotations

from typing import Any

import pytest

from finback.config import ModelConfig
from finback.models.deepseek_v4 import attention, load_weights
from tests.golden import weights
from tests.ops.compare import Step, compare, near, one_sequence
from tests.ops.inputs import NARROW, SMALL, STEPS, tensors
from tests.tiny import with_ratios


def needed(c: ModelConfig) -> dict[str, Any]:
    width, heads = c.head_dim, c.num_attention_heads
    shapes = {"wq.weight": (heads * width, c.hidden_size), "wkv.weight": (width, c.hidden_size)}
    return tensors(c, shapes | {"kv_norm.weight": (width,), "attn_sink": (heads,)})


def window(ops: Any, source: Any) -> list[Any]:
    layer, rotary = ops.config.layers[0], ops.rotary(ops.config.rope)
    x = ops.embed(source.matrix("embed.weight"), 1)
    q, kv = ops.linear(x, [source.matrix("wq.weight"), source.matrix("wkv.weight")])
    q, kv = ops.qkv_finish(layer, q, kv, source.vector("kv_norm.weight"), rotary)
    return [ops.attend(layer, q, kv, source.vector("attn_sink"), rotary, None)]


def whole_layer(ops: Any, source: Any) -> list[Any]:
    """Attention of a CSA layer as the model file has it."""
    (block,) = load_weights(ops.config, source).blocks
    x = ops.embed(source.matrix("embed.weight"), 1)
    return [attention(ops, block.layer, block.attn, x, ops.rotary(ops.config.compress_rope))]


@pytest.mark.parametrize("width", [1, 2, 16, 200])
@pytest.mark.parametrize("rounding", [False, True], ids=["exact-cache", "rounded-cache"])
def test_window(width: int, rounding: bool) -> None:
    config = with_ratios(SMALL, (0,), 0, sliding_window=width, cache_rounding=rounding)
    near(compare(config, needed(config), window, STEPS), 0.05 if rounding else 2e-5)


def test_window_at_real_width() -> None:
    config = with_ratios(NARROW, (0,), 0, sliding_window=20)
    steps: list[Step] = [[(0, 23)], [(0, 1), (1, 3)], [(0, 2)]]
    near(compare(config, needed(config), window, steps), 0.05)


@pytest.mark.parametrize("topk", [2, 64])
def test_selected_rows(topk: int) -> None:
    config = with_ratios(SMALL, (4,), 0, sliding_window=3, index_topk=topk, index_n_heads=16)
    compare(
        config,
        weights(config),
        whole_layer,
        [[(0, 3), (1, 9)], [(0, 1)], [(1, 1), (0, 30)], [(0, 1), (1, 2)]],
    )


def test_a_dropped_sink_would_be_noticed() -> None:
    config = with_ratios(SMALL, (0,), 0)
    given = needed(config)
    ((with_sink, _),) = compare(config, given, window, one_sequence(4))
    ((without, _),) = compare(
        config, given | {"attn_sink": given["attn_sink"] - 1e9}, window, one_sequence(4)
    )
    assert abs(with_sink - without).max() > 0.05
