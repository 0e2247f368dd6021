"""The indexer: which compressed rows a query attends to.

Owns the op `index_select` (docs/exactness.md section 11, spec 3.6): scores, the causal limit, the top-k with
ties to the lower row. Refuses to prepare keys (compress) and to round queries (rows). """

from __future__ import annotations

import numpy as np

from finback.reference.arithmetic import Arithmetic, Array, Ints


def scores(a: Arithmetic, q: Array, weights: Array, keys: Array, rounded: bool) -> Array:
    """q [T, H, d], weights [T, H], keys [n, d] -> [T, n]: a chain over heads of w_h max(q_h . k, 0)."""
    total = np.zeros((len(q), len(keys)), a.dtype)
    for head in range(q.shape[1]):
        dots = a.index_dot(q[:, head, None], keys[None], rounded)
        total = a.fma(weights[:, head, None], np.where(dots > 0, dots, a.dtype.type(0)), total)
    return total


def select(
    a: Arithmetic, q: Array, weights: Array, keys: Array, visible: Ints, topk: int, rounded: bool
) -> list[Ints]:
    """Row numbers of each query, ascending: the first `visible` [T] keys, or the topk best of them."""
    chosen: list[Ints] = [np.arange(min(n, topk)) for n in visible]
    busy = np.flatnonzero(visible > topk)
    if len(busy):
        ranked = scores(a, q[busy], weights[busy], keys[: visible[busy].max()], rounded)
        for t, row in zip(busy, ranked, strict=True):
            best = np.argsort(-row[: visible[t]], kind="stable")[:topk]
            chosen[t] = np.sort(best)
    return chosen
