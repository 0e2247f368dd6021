"""Ids of texts that were encoded before: the messages of a conversation that comes again, longer by a few.

Owns what is kept and for how long: the least recently used goes first, in a budget of bytes. Refuses to encode; safe to
share between threads.
"""

from __future__ import annotations

import sys
import threading
from array import array
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence

SHORTEST = 32
"""Characters of a text worth keeping: shorter ones are encoded as fast as found."""


class TokenCache:
    """Texts and their ids, in at most `budget` bytes."""

    def __init__(self, budget: int) -> None:
        self._budget, self._held = budget, 0
        self._known: OrderedDict[str, array[int]] = OrderedDict()
        self._lock = threading.Lock()

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return self._held

    def find(self, texts: Iterable[str]) -> dict[str, Sequence[int]]:
        """The ids of those texts that are known."""
        with self._lock:
            found: dict[str, Sequence[int]] = {}
            for text in texts:
                ids = self._known.get(text)
                if ids is not None:
                    self._known.move_to_end(text)
                    found[text] = ids
            return found

    def keep(self, encoded: Mapping[str, Sequence[int]]) -> None:
        """Remember texts and their ids."""
        with self._lock:
            for text, ids in encoded.items():
                if len(text) < SHORTEST or text in self._known:
                    continue
                self._known[text] = array("i", ids)
                self._held += _size(text, ids)
            while self._held > self._budget:
                text, ids = self._known.popitem(last=False)
                self._held -= _size(text, ids)

    def clear(self) -> None:
        """Forget everything."""
        with self._lock:
            self._known.clear()
            self._held = 0


def _size(text: str, ids: Sequence[int]) -> int:
    return sys.getsizeof(text) + 4 * len(ids) + 200  # the table's own entry
