"""Speculation: what an answer will probably say next, so that one step computes several of its tokens.

Owns where drafts come from and whether they pay. A draft is a row of the step like any other; the sampler draws from
each row what it would have drawn anyway, so a draft is right exactly when it is what plain decoding says next, and no
bit of an answer depends on drafts (docs/speculation.md). Refuses to draw and to touch caches: the loop does.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Literal

Mode = Literal["lookup", "mtp", "auto"]
MODES: tuple[Mode, ...] = ("lookup", "mtp", "auto")

LONGEST_MATCH, SHORTEST_MATCH = 4, 2
"""Tokens at the end of an answer that are looked up before: more say more, fewer are found more often."""

MATCHES_LOOKED_AT = 16

PAUSE_TOKENS, LONGEST_PAUSE = 64, 1024
"""Tokens without drafts after they did not pay; then they are tried again, and paused for twice as long if it is the
same."""

TRIAL_STEPS = 6
"""Steps with drafts before they are judged."""


class Lookup:
    """Prompt lookup: what followed the last tokens when they occurred before, in the prompt or in the answer."""

    def __init__(self, tokens: Sequence[int]) -> None:
        self._tokens: list[int] = []
        self._ends: dict[tuple[int, int], deque[int]] = {}  # two tokens in a row -> where they were followed
        self.extend(tokens)

    def extend(self, tokens: Sequence[int]) -> None:
        """More tokens were said."""
        known = self._tokens
        for token in tokens:
            known.append(token)
            end = len(known) - 1  # what comes before the latest token is followed by it
            if end >= SHORTEST_MATCH:
                pair = known[end - 2], known[end - 1]
                ends = self._ends.get(pair)
                if ends is None:
                    ends = self._ends[pair] = deque(maxlen=MATCHES_LOOKED_AT)
                ends.append(end)

    def propose(self, most: int) -> list[int]:
        """Up to `most` tokens that followed the longest match among the latest ones."""
        known = self._tokens
        if len(known) <= SHORTEST_MATCH:
            return []
        best, longest = 0, 0
        for end in reversed(self._ends.get((known[-2], known[-1]), ())):  # the latest first: of equal ones it stays
            length = SHORTEST_MATCH
            while length < min(LONGEST_MATCH, end) and known[end - 1 - length] == known[-1 - length]:
                length += 1
            if length > longest:
                best, longest = end, length
        return known[best : best + most] if longest else []


class Gate:
    """Whether drafts pay: tokens a step against what its rows cost, both as measured."""

    def __init__(self) -> None:
        self._steps, self._paused, self._pause = 0, 0, PAUSE_TOKENS
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
        if self._steps < TRIAL_STEPS:
            return
        if self._seconds > self._said:
            self._steps, self._paused = 0, self._pause
            self._pause = min(2 * self._pause, LONGEST_PAUSE)
        else:
            self._pause = PAUSE_TOKENS


class Speculation:
    """The drafts of one answer."""

    def __init__(self, mode: Mode, tokens: Sequence[int]) -> None:
        self._lookup = Lookup(tokens) if mode in ("lookup", "auto") else None
        self._next: int | None = None
        self._length = 1  # drafts of the next step: more after all were right, fewer after one was wrong
        self.gate = Gate()

    def extend(self, tokens: Sequence[int]) -> None:
        """The answer goes on."""
        if self._lookup is not None:
            self._lookup.extend(tokens)

    def learn(self, drafted: int, right: int) -> None:
        """A step had so many drafts, and so many of them were right."""
        self._length = 2 * drafted if right == drafted else max(1, right)

    def expect(self, token: int | None) -> None:
        """What the model's draft block says comes after the last token."""
        self._next = token

    def propose(self, most: int) -> list[int]:
        """Up to `most` drafts. What occurred before goes further than the draft block's one token, but is less often
        right: it is taken where both begin alike."""
        if most <= 0 or not self.gate.open:
            return []
        found = self._lookup.propose(min(most, self._length)) if self._lookup is not None else []
        expected, self._next = self._next, None
        return found if expected is None or found[:1] == [expected] else [expected]
