"""Speculation: what an answer will probably say next, so that one step computes several of its tokens.

Owns where drafts come from and whether they pay. A draft is a row of the step like any other; the sampler draws from
each row what it would have drawn anyway, so a draft is right exactly when it is what plain decoding says next, and no
bit of an answer depends on drafts (docs/speculation.md). Refuses to draw and to touch caches: the loop does.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np

Mode = Literal["lookup", "mtp", "auto"]
MODES: tuple[Mode, ...] = ("lookup", "mtp", "auto")

LONGEST_MATCH, SHORTEST_MATCH = 4, 2
"""Tokens at the end of an answer that are looked up before: more say more, fewer are found more often."""

MATCHES_LOOKED_AT = 16

PAUSE_TOKENS = 64
"""Tokens without drafts after they did not pay; then they are tried again."""

TRIAL_STEPS = 8
"""Steps with drafts before they are judged."""


class Lookup:
    """Prompt lookup: what followed the last tokens when they occurred before, in the prompt or in the answer."""

    def __init__(self, tokens: Sequence[int]) -> None:
        self._count = len(tokens)
        self._tokens = np.empty(max(256, 2 * len(tokens)), np.int32)
        self._tokens[: len(tokens)] = tokens

    def extend(self, tokens: Sequence[int]) -> None:
        """More tokens were said."""
        for token in tokens:
            if self._count == len(self._tokens):
                self._tokens = np.concatenate([self._tokens, np.empty_like(self._tokens)])
            self._tokens[self._count] = token
            self._count += 1

    def propose(self, most: int) -> list[int]:
        """Up to `most` tokens that followed the longest match among the latest ones."""
        known = self._tokens[: self._count]
        if len(known) <= SHORTEST_MATCH:
            return []
        before, last = known[-2], known[-1]
        ends = np.flatnonzero((known[1:-1] == last) & (known[:-2] == before))[-MATCHES_LOOKED_AT:] + 2
        best, longest = 0, 0
        for end in ends.tolist()[::-1]:  # the latest first: of equal ones it stays
            length = SHORTEST_MATCH
            while length < min(LONGEST_MATCH, end) and known[end - 1 - length] == known[-1 - length]:
                length += 1
            if length > longest:
                best, longest = end, length
        found: list[int] = known[best : best + most].tolist() if longest else []
        return found


class Gate:
    """Whether drafts pay: tokens a step against what its rows cost, both as measured."""

    def __init__(self) -> None:
        self._steps, self._paused = 0, 0
        self._said = self._seconds = 0.0  # running means, the former in seconds of plain steps

    @property
    def open(self) -> bool:
        """Whether the next step may have drafts."""
        return self._paused <= 0

    def plain(self) -> None:
        """A step without drafts has been made."""
        self._paused -= 1

    def judge(self, said: int, seconds: float, plain: float) -> None:
        """A step with drafts has said `said` tokens, and its rows take about `seconds`, where a step without takes
        `plain`. Drafts pause when plain steps would have said more in the same time."""
        keep = 0.9 if self._steps else 0.0
        self._said = keep * self._said + (1 - keep) * said * plain
        self._seconds = keep * self._seconds + (1 - keep) * seconds
        self._steps += 1
        if self._steps >= TRIAL_STEPS and self._seconds > self._said:
            self._steps, self._paused = 0, PAUSE_TOKENS


class Speculation:
    """The drafts of one answer."""

    def __init__(self, mode: Mode, tokens: Sequence[int]) -> None:
        self._lookup = Lookup(tokens) if mode in ("lookup", "auto") else None
        self._next: int | None = None
        self.gate = Gate()

    def extend(self, tokens: Sequence[int]) -> None:
        """The answer goes on."""
        if self._lookup is not None:
            self._lookup.extend(tokens)

    def expect(self, token: int | None) -> None:
        """What the model's draft block says comes after the last token."""
        self._next = token

    def propose(self, most: int) -> list[int]:
        """Up to `most` drafts. What occurred before goes further than the draft block's one token."""
        if most <= 0 or not self.gate.open:
            return []
        found = self._lookup.propose(most) if self._lookup is not None else []
        expected, self._next = self._next, None
        if len(found) > 1 or expected is None:
            return found
        return [expected]
