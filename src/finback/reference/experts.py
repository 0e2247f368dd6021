"""Routed experts and the shared one: gated networks whose outputs are added in the order of ids.

Owns the op `experts` (docs/exactness.md section 13, spec 3.7). The clamp lies inside the activation,
one-sided on the gate; the router weight multiplies before the down projection, as the vendor's code does. """

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from finback.reference.arithmetic import Arithmetic, Array, Ints
from finback.reference.matrix import Matrix

Network = tuple[Matrix, Matrix, Matrix]
"""Gate w1 and up w3 [I, D], down w2 [D, I]."""


def swiglu(a: Arithmetic, gate: Array, up: Array, limit: float, weight: Array | None) -> Array:
    """silu(min(gate, limit)) * clamp(up, limit) [* weight], all [..., I]; limit 0 means no clamp."""
    if limit:
        bound = a.dtype.type(limit)
        gate, up = np.where(gate < bound, gate, bound), np.where(up < bound, up, bound)
        up = np.where(up > -bound, up, -bound)
    u = a.silu(gate) * up
    return u if weight is None else u * weight


def network(a: Arithmetic, x: Array, w: Network, limit: float, weight: Array | None) -> Array:
    """One expert on rows x [n, D] -> [n, D]; weight [n, 1] or None for the shared expert."""
    w1, w3, w2 = w
    return a.product(swiglu(a, a.product(x, w1), a.product(x, w3), limit, weight), w2)


def experts(
    a: Arithmetic,
    x: Array,
    ids: Ints,
    weights: Array,
    routed: Sequence[Network],
    shared: Network | None,
    limit: float,
) -> Array:
    """x [T, D] through the experts ids [T, k] (ascending) with weights [T, k], plus the shared expert -> [T,
    D].

    Experts come in ascending order, so each row adds its own in the order of its list; an id listed twice
    adds twice. """
    y = np.zeros_like(x)
    for expert in np.unique(ids):
        rows, places = np.nonzero(ids == expert)
        out = network(a, x[rows], routed[expert], limit, weights[rows, places][:, None])
        np.add.at(y, rows, out)  # one addition after the other where a row comes twice
    return y if shared is None else y + network(a, x, shared, limit, None)
