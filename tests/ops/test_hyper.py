"""`hyper_in`, `hyper_out` and `mtp_in`: mixing weights, collapse, write-back."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from finback.config import ModelConfig
from finback.ops.base import Hyper
from tests.model.test_stored import CASES
from tests.ops.compare import compare, near
from tests.ops.inputs import FEW, SMALL, STEPS, WIDE, tensors


def needed(c: ModelConfig) -> dict[str, Any]:
    n, d = c.hc_mult, c.hidden_size
    mixes = (2 + n) * n
    return tensors(
        c,
        {
            "hc_attn_fn": (mixes, n * d),
            "hc_attn_scale": (3,),
            "hc_attn_base": (mixes,),
            "attn_norm.weight": (d,),
        },
    )


def piece(ops: Any, source: Any) -> list[Any]:
    """Two rounds, so that the second starts from streams that differ."""
    w = Hyper(source.matrix("hc_attn_fn"), source.vector("hc_attn_scale"), source.vector("hc_attn_base"))
    norm, streams, out = (
        source.vector("attn_norm.weight"),
        ops.embed(source.matrix("embed.weight"), ops.config.hc_mult),
        [],
    )
    for _ in range(2):
        x, mix = ops.hyper_in(streams, w, norm)
        streams = ops.hyper_out(streams, x, mix)
        out += [x, mix.value, streams]
    return [*out, ops.mtp_in(x, streams)]


@pytest.mark.parametrize("streams", [2, 4, 8])
@pytest.mark.parametrize("iters", [1, 20])
def test_mixing(streams: int, iters: int) -> None:
    config = replace(SMALL, hc_mult=streams, hc_sinkhorn_iters=iters)
    near(compare(config, needed(config), piece, FEW), 1e-5)


def test_many_rows() -> None:
    near(compare(SMALL, needed(SMALL), piece, STEPS), 1e-5)


@pytest.mark.parametrize("format", ["F32", "F16", "BF16"])
def test_real_width(format: str) -> None:
    given = needed(WIDE)
    if format != "F32":
        given["hc_attn_fn"] = CASES[format][0](given["hc_attn_fn"])
    near(compare(WIDE, given, piece, FEW), 1e-5)
