"""`embed` and `take_rows`: rows of the table in every stored format, copied to the streams."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from finback.reference.canonical import Canonical
from tests.model.test_stored import CASES, WIDE_CASES
from tests.ops.compare import compare, near
from tests.ops.inputs import FEW, SMALL, STEPS, WIDE, tensors


def piece(ops: Any, source: Any) -> list[Any]:
    table = source.matrix("embed.weight")
    return [ops.embed(table, 1), ops.embed(table, 4), ops.take_rows(ops.embed(table, 4))]


def test_float_rows() -> None:
    near(compare(SMALL, tensors(SMALL, {}), piece, STEPS), 0)


@pytest.mark.parametrize("name", [*CASES, *WIDE_CASES])
def test_stored_rows_at_real_width(name: str) -> None:
    encode = WIDE_CASES[name] if name in WIDE_CASES else CASES[name][0]
    table = encode(tensors(WIDE, {})["embed.weight"])
    pairs = compare(WIDE, {"embed.weight": table}, piece, FEW)
    near(pairs, 1e-6)
    row = Canonical().decode(table, np.arange(table.rows))
    assert np.isin(pairs[0][0], row).all()


def test_streams_are_copies() -> None:
    one, four, taken = (bits for bits, _ in compare(SMALL, tensors(SMALL, {}), piece, FEW))
    assert (four == one[:, None]).all()
    assert (taken == four).all()
