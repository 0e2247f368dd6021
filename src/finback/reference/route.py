"""The router: which experts a token goes to, and with what weight.

Owns the op `route` (docs/exactness.md section 13, spec 3.7). The bias chooses and never weighs; a hashed
layer takes its choice from a table and its weights from the same scores as any other. Refuses the product
that gives the logits. """

from __future__ import annotations

import numpy as np

from finback.reference.arithmetic import Arithmetic, Array, Ints


def affinities(a: Arithmetic, logits: Array) -> Array:
    """sqrt(softplus(x)) of router products [T, E]."""
    return np.asarray(np.sqrt(a.softplus(logits)))


def choose(scores: Array, bias: Array, k: int) -> Ints:
    """Ids [T, k] ascending of the k greatest scores + bias, equal ones to the lower id."""
    order = np.argsort(-(scores + bias), axis=-1, kind="stable")
    return np.sort(order[:, :k], axis=-1)


def weigh(a: Arithmetic, scores: Array, ids: Ints, factor: float, normalise: bool) -> Array:
    """Weights [T, k] of the chosen ids: their scores, as shares of their sum if `normalise`, times the
    factor."""
    chosen = np.take_along_axis(scores, ids, axis=-1)
    if normalise:
        chosen = chosen / a.sum(chosen)[..., None]
    return np.asarray(chosen * a.dtype.type(factor))
