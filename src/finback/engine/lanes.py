"""What the loop knows of a request: a prompt being read, and answers being drawn.

Owns where a prompt's steps end, for a checkpoint, and what an answer may have in its next step. Refuses to run
anything: the loop does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from finback.engine.choice import Choice
from finback.engine.publisher import Answer
from finback.engine.request import Request
from finback.engine.scheduler import Job
from finback.engine.speculate import Speculation
from finback.kv.layout import MAX_DRAFT

CHECKPOINT_SPACING = 2048
"""Tokens between checkpoints inside a long message. One of V4-Flash weighs as much as a thousand tokens of pages."""

MOST_MARKS = 16
"""Checkpoints at marks of a prompt that is read at once; above it, one for every MARK_SPACING tokens. Each costs a step
of its own, and a long conversation that comes in whole would be cut into many short ones."""

MARK_SPACING = 512


@dataclass(eq=False, slots=True)
class Reading:
    """A request whose prompt is being read."""

    request: Request
    job: Job
    answers: list[Answer]
    promises: list[Any]
    state: Any = None  # made when the first step is due
    stops: list[int] = field(default_factory=list)  # lengths at which a step ends, for a checkpoint

    @property
    def left(self) -> int:
        return len(self.request.ids) - int(self.state.length)

    def until_stop(self) -> int:
        """Tokens to the next checkpoint, or to the end."""
        length = self.state.length
        while self.stops and self.stops[0] <= length:
            self.stops.pop(0)
        return (self.stops[0] if self.stops else len(self.request.ids)) - int(length)


@dataclass(eq=False, slots=True)
class Lane:
    """An answer being drawn: its sequence, and the token that was drawn and not yet computed."""

    answer: Answer
    choice: Choice
    state: Any
    promise: Any
    tokens: list[int]  # prompt and answer so far
    speculation: Speculation | None = None
    pending: int = 0
    rows: int = 1  # of the last step
    sure: bool = False  # its drafts were tokens that the grammar leaves no choice about

    def drafts(self, room: int) -> list[int]:
        """What it may say after the pending token: no more than it may say at all, and can be taken back."""
        left = self.request.limit - self.choice.count - 1
        forced = list(self.choice.forced[: max(0, min(room, left))])
        self.sure = bool(forced)
        if self.sure or self.speculation is None:
            return forced
        return self.speculation.propose(min(MAX_DRAFT, room, left))

    @property
    def request(self) -> Request:
        return self.answer.request


def checkpoint_lengths(ids: Sequence[int], marks: Sequence[int], start: int) -> list[int]:
    """Lengths after `start` and before the end at which the state of a prompt is kept, ascending: its marks, thinned
    out where there are many, and every CHECKPOINT_SPACING tokens. The end itself is always kept."""
    end = len(ids)
    wanted = [mark for mark in marks if start < mark < end - MAX_DRAFT]  # later ones, the end serves
    if len(wanted) > MOST_MARKS:
        thinned: list[int] = []
        for mark in wanted:
            if not thinned or mark - thinned[-1] >= MARK_SPACING:
                thinned.append(mark)
        wanted = sorted({*thinned, *wanted[:2], *wanted[-MOST_MARKS // 2 :]})
    return sorted({*wanted, *range(start - start % CHECKPOINT_SPACING + CHECKPOINT_SPACING, end, CHECKPOINT_SPACING)})
