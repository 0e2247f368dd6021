"""Answers of the responses endpoint, kept for a while: to be fetched, deleted, and gone on from.

Owns the bounds: so many answers, so many bytes, the oldest go first. Refuses nothing that fits.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from finback.server.wire import to_json

MOST_ANSWERS = 4096


@dataclass(frozen=True, slots=True)
class Kept:
    """An answer: its body, and the items of the conversation up to it."""

    body: Mapping[str, Any]
    items: Sequence[Mapping[str, Any]]
    size: int


class Store:
    """Answers by id, in at most `budget` bytes."""

    def __init__(self, budget: int) -> None:
        self._budget, self.nbytes = budget, 0
        self._kept: OrderedDict[str, Kept] = OrderedDict()

    def __len__(self) -> int:
        return len(self._kept)

    def keep(self, id: str, body: Mapping[str, Any], items: Sequence[Mapping[str, Any]]) -> None:
        """Remember an answer."""
        size = len(to_json(body)) + len(to_json(items))
        self.nbytes += size - (self._kept[id].size if id in self._kept else 0)
        self._kept[id] = Kept(body, items, size)
        while self.nbytes > self._budget or len(self._kept) > MOST_ANSWERS:
            _, old = self._kept.popitem(last=False)
            self.nbytes -= old.size

    def get(self, id: str | None) -> Kept | None:
        """An answer, if it is still kept."""
        return None if id is None else self._kept.get(id)

    def drop(self, id: str) -> bool:
        """Forget an answer; whether it was there."""
        kept = self._kept.pop(id, None)
        self.nbytes -= kept.size if kept else 0
        return kept is not None
