"""The output head: streams collapsed to one row, norm, logits.

Owns the op `head` (docs/exactness.md section 7, spec 3.2). No post, no Sinkhorn: only the collapse of a
hyper-connection. Refuses to choose rows: `take_rows` came before.
"""

from __future__ import annotations

from finback.reference.arithmetic import Arithmetic, Array
from finback.reference.hyper import Mixing, collapse, pre_weights, raw_mix
from finback.reference.matrix import Matrix
from finback.reference.norm_rope import norm


def head(a: Arithmetic, streams: Array, w: Mixing, norm_weight: Array, matrix: Matrix) -> Array:
    """Streams [R, N, D] -> logits [R, V]."""
    pre = pre_weights(a, raw_mix(a, streams, w), w)
    return a.product(norm(a, collapse(a, streams, pre), norm_weight, w.norm_eps), matrix)
