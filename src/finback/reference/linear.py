"""Matrix products over rows of a step.

Owns the ops `linear` and `grouped_linear`; the order of every product is the arithmetic's (docs/exactness.md
sections 4 and 5). Refuses shapes that do not fit, as NumPy does. """

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from finback.reference.arithmetic import Arithmetic, Array
from finback.reference.matrix import Matrix


def linear(a: Arithmetic, x: Array, matrices: Sequence[Matrix]) -> list[Array]:
    """x [..., K] by each matrix [R, K] -> [..., R]."""
    return [a.product(x, w) for w in matrices]


def grouped_linear(a: Arithmetic, x: Array, w: Matrix, groups: int) -> Array:
    """Piece g of x [T, groups K] by rows g R .. (g + 1) R of w [groups R, K] -> [T, groups R]."""
    pieces = x.reshape(len(x), groups, -1)
    rows = w.rows // groups
    out = [a.product(pieces[:, g], w.part(g * rows, (g + 1) * rows)) for g in range(groups)]
    return np.concatenate(out, axis=-1)
