"""Compressed rows: a softmax over the tokens of a group for each channel, pooled as the tokens come.

Owns the op `compress` (docs/exactness.md section 10, spec 3.5): the open groups' accumulators and the row of a closed one.
Pooling is sequential in the order of positions, so that any chunking of a prompt gives the same numbers. Refuses to keep
rows: it returns the ones that closed.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from finback.reference.arithmetic import Arithmetic, Array


@dataclass(frozen=True, slots=True)
class Group:
    """An open group after some tokens, each [width]: greatest gate m, denominator l, numerator a."""

    m: Array
    l: Array
    a: Array


def empty_group(a: Arithmetic, width: int) -> Group:
    zero = np.zeros(width, a.dtype)
    return Group(np.full(width, -np.inf, a.dtype), zero, zero)


def pool(a: Arithmetic, group: Group, kv: Array, gate: Array) -> Group:
    """The group with one more token; kv and gate [width], the position's bias already added to the gate."""
    m = np.where(group.m > gate, group.m, gate)
    c, e = a.exp(group.m - m), a.exp(gate - m)
    return Group(m, a.fma(group.l, c, e), a.fma(group.a, c, e * kv))


def feed(
    a: Arithmetic, groups: tuple[Group, ...], kv: Array, gate: Array, ape: Array, position: int
) -> tuple[tuple[Group, ...], Array | None]:
    """One token into the open groups: the groups after it, and the pooled row [width] if it closed one.

    One group: HCA, kv and gate [width]. Two: CSA, [2 width]; the upper half goes to the current group, the lower half to
    the next one, which becomes current when this one closes. ape [ratio, width or 2 width].
    """
    ratio, width = len(ape), len(groups[0].m)
    biased = gate + ape[position % ratio]
    groups = tuple(
        pool(a, group, kv[part * width : (part + 1) * width], biased[part * width : (part + 1) * width])
        for group, part in zip(groups, reversed(range(len(groups))), strict=True)
    )
    if (position + 1) % ratio:
        return groups, None
    closed = groups[0]
    return (*groups[1:], empty_group(a, width)), closed.a / closed.l
