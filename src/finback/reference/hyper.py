"""Hyper-connections: several residual streams, mixed down before a layer and written back after it.

Owns the ops `hyper_in`, `hyper_out` and `mtp_in` (docs/exactness.md section 7, spec 3.2) and the collapse
that `head` shares. The comb matrix is applied by its first index, and Sinkhorn starts with rows, then
columns: both orders matter. """

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from finback.reference.arithmetic import Arithmetic, Array
from finback.reference.matrix import Matrix
from finback.reference.norm_rope import norm, rms


@dataclass(frozen=True, slots=True)
class Mixing:
    """Weights and numbers of one hyper-connection: fn [(2 + N) N, N D] (head: [N, N D]), scale, base."""

    fn: Matrix
    scale: Array
    base: Array
    hc_eps: float
    norm_eps: float
    sinkhorn_iters: int = 0


def raw_mix(a: Arithmetic, streams: Array, w: Mixing) -> Array:
    """fn times the flattened streams [T, N, D] (stream 0 first), divided by their root mean square."""
    flat = streams.reshape(len(streams), -1)
    return np.asarray(a.product(flat, w.fn) * rms(a, flat, w.norm_eps))


def pre_weights(a: Arithmetic, m: Array, w: Mixing) -> Array:
    """What each stream gives to the collapsed row, [T, N], of the first N raw numbers."""
    n = m.shape[-1]
    return np.asarray(a.sigmoid(a.fma(m, w.scale[0], w.base[:n])) + a.dtype.type(w.hc_eps))


def sinkhorn(a: Arithmetic, logits: Array, iters: int, hc_eps: float) -> Array:
    """Doubly stochastic [T, N, N] of logits: softmax of the rows, columns normalised, then rows and columns
    in turn."""
    eps = a.dtype.type(hc_eps)
    e = a.exp(logits - logits.max(-1, keepdims=True))
    comb: Array = e / a.sum(e)[..., None] + eps
    comb = comb / (_column_sums(a, comb) + eps)
    for _ in range(iters - 1):
        comb = comb / (a.sum(comb)[..., None] + eps)
        comb = comb / (_column_sums(a, comb) + eps)
    return comb


def _column_sums(a: Arithmetic, comb: Array) -> Array:
    return a.sum(np.swapaxes(comb, -1, -2))[..., None, :]


def collapse(a: Arithmetic, streams: Array, pre: Array) -> Array:
    """One row [T, D]: the sum of pre_j S_j."""
    return a.chain(pre, streams)


def hyper_in(a: Arithmetic, streams: Array, w: Mixing, norm_weight: Array) -> tuple[Array, Array, Array]:
    """Streams [T, N, D] -> normalised row [T, D], post [T, N], comb [T, N, N]."""
    n = streams.shape[1]
    m = raw_mix(a, streams, w)
    pre = pre_weights(a, m[:, :n], w)
    post = 2 * a.sigmoid(a.fma(m[:, n : 2 * n], w.scale[1], w.base[n : 2 * n]))
    logits = a.fma(m[:, 2 * n :], w.scale[2], w.base[2 * n :]).reshape(-1, n, n)
    comb = sinkhorn(a, logits, w.sinkhorn_iters, w.hc_eps)
    return norm(a, collapse(a, streams, pre), norm_weight, w.norm_eps), post, comb


def hyper_out(a: Arithmetic, streams: Array, y: Array, post: Array, comb: Array) -> Array:
    """S'[k] = post[k] y + sum_j comb[j, k] S[j], [T, N, D]."""
    out = post[..., None] * y[:, None]
    for j in range(streams.shape[1]):
        out = a.fma(comb[:, j, :, None], streams[:, j, None], out)
    return out


def mtp_in(embedded: Array, streams: Array) -> Array:
    """X[j] = embedded [T, D] + streams[j], [T, N, D]."""
    return embedded[:, None] + streams
