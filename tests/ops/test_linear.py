"""`linear` and `grouped_linear`: every format, several matrices and encodings on one input, odd row
counts."""

from __future__ import annotations

from typing import Any

import pytest

from finback.config import ModelConfig
from tests.model.test_stored import CASES, WIDE_CASES
from tests.ops.compare import compare
from tests.ops.inputs import FEW, SMALL, STEPS, WIDE, tensors

ENCODE = {name: case[0] for name, case in CASES.items()} | WIDE_CASES


def needed(c: ModelConfig, format: str) -> dict[str, Any]:
    d = c.hidden_size
    given = tensors(
        c, {"a.weight": (33, d), "b.weight": (96, d), "c.weight": (7, d), "wo_a.weight": (6, d // 2)}
    )
    chosen = ("a.weight", "b.weight", "wo_a.weight") if d > 256 or format not in WIDE_CASES else ()
    return given | {name: ENCODE[format](given[name]) for name in chosen if format != "F32"}


def piece(ops: Any, source: Any) -> list[Any]:
    """One product of three matrices, of which c is F32 whatever the others are, and one of two groups."""
    x = ops.embed(source.matrix("embed.weight"), 1)
    out = ops.linear(x, [source.matrix(f"{name}.weight") for name in "abc"])
    return [*out, ops.grouped_linear(x, source.matrix("wo_a.weight"), 2)]


@pytest.mark.parametrize("format", ["F32", *CASES])
def test_small(format: str) -> None:
    for bits, exact in compare(SMALL, needed(SMALL, format), piece, STEPS[:2] + STEPS[3:]):
        assert abs(bits - exact).max() < 0.03 * abs(exact).max()


@pytest.mark.parametrize("format", ["F32", *ENCODE])
def test_real_width(format: str) -> None:
    for bits, exact in compare(WIDE, needed(WIDE, format), piece, FEW):
        assert abs(bits - exact).max() < 0.03 * abs(exact).max()


def test_streams_as_inputs() -> None:
    """Every part of a value is a row of its own."""

    def streams(ops: Any, source: Any) -> list[Any]:
        return ops.linear(ops.embed(source.matrix("embed.weight"), 4), [source.matrix("a.weight")])

    (pair,) = compare(SMALL, needed(SMALL, "Q8_0"), streams, FEW)
    assert pair[0].shape == (5, 4, 33)
