"""What one step computes: parts of several sequences, computed together.

Owns the one shape in which work reaches a model, whatever the backend. Refuses policy: which sequences take part is the
caller's choice, and no bit of a part depends on its neighbours.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

S = TypeVar("S")


@dataclass(frozen=True, slots=True)
class Part(Generic[S]):
    """One sequence's share of a step: the tokens `ids` that follow what it holds.

    wanted: rows whose logits are wanted, ascending; row i is the one of ids[i].
    """

    state: S
    ids: Sequence[int]
    wanted: Sequence[int] = ()


def wanted_rows(parts: Sequence[Part[S]]) -> list[int]:
    """The rows of the step whose logits are wanted, in order: parts lie one after the other."""
    rows, start = [], 0
    for part in parts:
        rows += [start + row for row in part.wanted]
        start += len(part.ids)
    return rows


def spans(parts: Sequence[Part[S]]) -> Iterator[tuple[int, int]]:
    """First row and row after the last of each part."""
    start = 0
    for part in parts:
        yield start, start + len(part.ids)
        start += len(part.ids)
