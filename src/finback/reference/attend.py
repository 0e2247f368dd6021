"""Attention of many heads over one list of shared K = V rows, with a sink in the denominator.

Owns the op `attend` (docs/exactness.md section 12, spec 3.3) on key lists that are already gathered:
compressed rows ascending, then window rows ascending. Exact maximum first, no running rescale. Refuses to
gather. """

from __future__ import annotations

import numpy as np

from finback.reference.arithmetic import Arithmetic, Array, Ints


def attend(a: Arithmetic, q: Array, keys: Array, counts: Ints, sink: Array) -> Array:
    """q [T, H, d], keys [T, L, d] of which the first counts [T] are the query's, sink [H] -> [T, H, d]."""
    scale = a.dtype.type(q.shape[-1] ** -0.5)
    logits = a.dot(q[:, :, None], keys[:, None]) * scale
    listed = np.arange(keys.shape[1]) < counts[:, None]
    logits = np.where(listed[:, None], logits, -np.inf).astype(a.dtype)
    m = np.maximum(logits.max(-1), sink)
    e = a.exp(logits - m[..., None])
    denominator = a.sum(e) + a.exp(sink - m)
    return np.asarray(a.chain(e, keys[:, None], counts[:, None]) / denominator[..., None])


def gather(lists: list[list[Array]]) -> tuple[Array, Ints]:
    """Key lists of unequal length as one array [T, L, d], filled up with zero rows, and their lengths [T]."""
    counts = np.array([len(rows) for rows in lists])
    keys = np.zeros((len(lists), counts.max(), len(lists[0][0])), lists[0][0].dtype)
    for t, rows in enumerate(lists):
        keys[t, : len(rows)] = rows
    return keys, counts
