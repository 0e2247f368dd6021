"""The loop detector: ends an answer that says the same for ever.

Owns the definition of a loop: the last tokens are one piece of 1 to LONGEST_PIECE tokens, `max_repeats` times in a row,
and cover at least LEAST_COVER tokens, so that a rule of dashes or the border of a table is none. Refuses to guess at
loops that vary.
"""

from __future__ import annotations

import numpy as np

LONGEST_PIECE = 256
LEAST_COVER = 64


class RepetitionWatch:
    """Watches the tokens of one answer."""

    def __init__(self, max_repeats: int) -> None:
        self._needed = (max_repeats - 1) * np.arange(1, LONGEST_PIECE + 1, dtype=np.int64)
        self._periods = np.arange(1, LONGEST_PIECE + 1, dtype=np.int64)
        self._last = np.full(LONGEST_PIECE, -1, np.int64)  # newest first
        # For each period, how many tokens up to now equal the one a period before.
        self._runs = np.zeros(LONGEST_PIECE, np.int64)

    def add(self, token: int) -> bool:
        """Whether the answer is in a loop with this token."""
        self._runs = np.where(self._last == token, self._runs + 1, 0)
        self._last[1:] = self._last[:-1]
        self._last[0] = token
        looping = (self._runs >= self._needed) & (self._runs + self._periods >= LEAST_COVER)
        return bool(looping.any())
