"""Configurations and tensors for tests of single operations.

Owns the small configuration (TINY without its draft block), a configuration of real widths with few heads and
experts, and `tensors`, which makes what a piece asks for by the hash rule of tests/golden.py. """

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from finback.config import ModelConfig
from tests.golden import value
from tests.ops.compare import Step, one_sequence
from tests.tiny import TINY, with_ratios

SMALL = with_ratios(TINY, (0, 4, 8), 1)

WIDE = replace(
    with_ratios(TINY, (0, 4, 128), 1),
    vocab_size=64,
    hidden_size=4096,
    head_dim=512,
    qk_rope_head_dim=64,
    num_attention_heads=2,
    sliding_window=128,
    index_n_heads=3,
    index_head_dim=128,
    index_topk=5,
    moe_intermediate_size=256,
    n_routed_experts=3,
    num_experts_per_tok=2,
    swiglu_limit=10.0,
)
"""Channels of V4-Flash, with as few heads, experts and tokens as still show a mistake."""

NARROW = replace(WIDE, hidden_size=256)
"""The same heads and cache rows over a narrow hidden state, for operations that only see its projections."""

STEPS: list[Step] = [[(0, 3)], [(1, 1), (0, 2)], [(0, 126)], [(0, 1), (1, 6)], [(0, 5)]]
"""Odd row counts; chunks across 4, 8 and 128; two sequences in a step."""

FEW = one_sequence(1, 4)


def tensors(config: ModelConfig, shapes: dict[str, tuple[int, ...]]) -> dict[str, Any]:
    """The embedding [V, D] and tensors of the given shapes, by the rule that their names say."""
    embed = {"embed.weight": value("embed.weight", (config.vocab_size, config.hidden_size))}
    return embed | {name: value(name, shape) for name, shape in shapes.items()}


def vector(*values: float) -> np.ndarray:
    return np.array(values, np.float32)
