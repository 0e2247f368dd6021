"""`head`: collapse without post and Sinkhorn, norm, and logits in several formats."""

from __future__ import annotations

from typing import Any

import pytest

from finback.config import ModelConfig
from finback.ops.base import Hyper
from tests.model.test_stored import CASES
from tests.ops.compare import compare, near
from tests.ops.inputs import FEW, SMALL, STEPS, WIDE, tensors


def needed(c: ModelConfig, format: str) -> dict[str, Any]:
    n, d = c.hc_mult, c.hidden_size
    shapes = {"hc_head_fn": (n, n * d), "hc_head_scale": (1,), "hc_head_base": (n,)}
    shapes |= {"norm.weight": (d,), "hnorm.weight": (d,), "head.weight": (c.vocab_size, d)}
    given = tensors(c, shapes)
    return given if format == "F32" else given | {"head.weight": CASES[format][0](given["head.weight"])}


def piece(ops: Any, source: Any) -> list[Any]:
    w = Hyper(source.matrix("hc_head_fn"), source.vector("hc_head_scale"), source.vector("hc_head_base"))
    streams = ops.norm(
        ops.embed(source.matrix("embed.weight"), ops.config.hc_mult), source.vector("hnorm.weight")
    )
    return [ops.head(ops.take_rows(streams), w, source.vector("norm.weight"), source.matrix("head.weight"))]


@pytest.mark.parametrize("format", ["F32", "BF16", "Q8_0", "FP8-32"])
def test_logits(format: str) -> None:
    near(compare(SMALL, needed(SMALL, format), piece, STEPS), 0.03)


@pytest.mark.parametrize("format", ["F32", "BF16", "Q8_0"])
def test_real_width(format: str) -> None:
    near(compare(WIDE, needed(WIDE, format), piece, FEW), 0.03)
