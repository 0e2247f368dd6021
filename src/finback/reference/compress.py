"""Compressed rows: a softmax over the tokens of a group for each channel, pooled as the tokens come.

Owns the op `compress` (docs/exactness.md section 10, spec 3.5): the open groups' accumulators and the row of
a closed one. Pooling is sequential in the order of positions, so that any chunking of a prompt gives the same
numbers. Refuses to keep rows: it returns the ones that closed. """

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from finback.reference.arithmetic import Arithmetic, Array


@dataclass(frozen=True, slots=True)
class Groups:
    """Open groups after some tokens, the current one first: greatest gate m, denominator l, numerator a
    [open, width].

    HCA keeps one open group, CSA two: the current and the next one.
    """

    m: Array
    l: Array
    a: Array


def empty_groups(a: Arithmetic, open_groups: int, width: int) -> Groups:
    zero = np.zeros((open_groups, width), a.dtype)
    return Groups(np.full_like(zero, -np.inf), zero, zero)


def pool(a: Arithmetic, groups: Groups, kv: Array, gate: Array) -> Groups:
    """The groups with one more token each; kv and gate [open, width], the position's bias already in the
    gate."""
    m = np.where(groups.m > gate, groups.m, gate)
    c, e = a.exp(np.stack([groups.m - m, gate - m]))
    return Groups(m, a.fma(groups.l, c, e), a.fma(groups.a, c, e * kv))


def feed(
    a: Arithmetic, groups: Groups, kv: Array, gate: Array, ape: Array, position: int
) -> tuple[Groups, Array | None]:
    """One token into the open groups: the groups after it, and the pooled row [width] if it closed one.

    kv and gate [open * width], ape [ratio, open * width]. In CSA the upper half of the channels goes to the
    current group and the lower half to the next, which becomes current when this one closes. """
    shape = groups.m.shape
    biased = gate + ape[position % len(ape)]
    groups = pool(a, groups, kv.reshape(shape)[::-1], biased.reshape(shape)[::-1])
    if (position + 1) % len(ape):
        return groups, None
    row = groups.a[0] / groups.l[0]
    fresh = empty_groups(a, 1, shape[1])
    following = [np.concatenate([old[1:], new]) for old, new in
                 ((groups.m, fresh.m), (groups.l, fresh.l), (groups.a, fresh.a))]  # fmt: skip
    return Groups(*following), row
