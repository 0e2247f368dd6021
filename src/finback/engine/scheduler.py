"""Who gets the next step: prompts or answers, and which prompts.

Owns the policy and the costs it measures; knows neither tensors nor text nor memory, so tests drive it with a virtual
clock. Refuses to mix prompts and answers in a step: a few prompt rows in a decode step would multiply the experts it
reads, so the two share time instead (docs/architecture.md section 6).

Prompts and answers. While both wait, prompts get `prefill_share` of the time, and one step over prompts takes at most
about `max_stall` seconds: the longest that a running answer stands still.

Among prompts. Every one has a deadline: when it arrived, plus PATIENCE times the work it brings, plus PRIORITY_SECONDS
for each level of its priority. The earliest deadline is served first, so short prompts pass long ones, though only
those that arrive before the long one's deadline do. And AGED_SHARE of the time goes to the prompt that came first,
whatever the deadlines say. Hence a bound that no later arrival can move: with W seconds of work in prompts that came
before it, its own included, a prompt is read in at most (W + one step) / (AGED_SHARE * prefill_share) seconds.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import Literal

Kind = Literal["prefill", "decode"]

PATIENCE = 8.0
"""Times its own work that a prompt waits before later ones stop passing it."""

PRIORITY_SECONDS = 10.0
"""What a level of priority is worth: a request yields to equal ones of the next level that come this much later."""

AGED_SHARE = 0.25
"""Of the time of prompts: to the one that came first."""

SHORTEST_STEP = 16
"""Rows of a step over prompts at least, however slow the machine: below, reading the weights costs more than the rows
are worth."""


FEW_ROWS = 64
"""Rows up to which each number of them is also measured by itself: two rows may cost what one does, and three more."""

_STEPS_OF_EACH = 15


class StepCost:
    """Seconds of a step by its rows: a line a + b n through what was measured, older steps counting less, and for few
    rows what steps of just so many took."""

    _KEEP = 0.95

    def __init__(self) -> None:
        self._weight = self._n = self._s = self._nn = self._ns = 0.0
        self._each: dict[int, deque[float]] = {}

    def add(self, rows: int, seconds: float) -> None:
        """A step of `rows` took `seconds`."""
        if rows <= FEW_ROWS:
            self._each.setdefault(rows, deque(maxlen=_STEPS_OF_EACH)).append(seconds)
        keep = self._KEEP
        self._weight = self._weight * keep + 1
        self._n = self._n * keep + rows
        self._s = self._s * keep + seconds
        self._nn = self._nn * keep + rows * rows
        self._ns = self._ns * keep + rows * seconds

    def line(self) -> tuple[float, float]:
        """a and b, neither negative. All is in b while the sizes seen are too much alike to tell, and before the first
        step it is a guess of a millisecond a row."""
        if not self._weight:
            return 0.0, 1e-3
        mean_n, mean_s = self._n / self._weight, self._s / self._weight
        spread = self._nn / self._weight - mean_n * mean_n
        if spread < 0.01 * mean_n * mean_n:
            return 0.0, mean_s / mean_n
        b = (self._ns / self._weight - mean_n * mean_s) / spread
        b = min(max(b, 0.0), mean_s / mean_n)
        return mean_s - b * mean_n, b

    def seconds(self, rows: int) -> float:
        """Expected seconds of a step of `rows`."""
        a, b = self.line()
        return a + b * rows

    def typical(self, rows: int) -> float:
        """Seconds of a step of just so many rows: the median of the last ones, which no disturbance moves; what the
        says where there were none."""
        each = self._each.get(rows)
        return median(each) if each else self.seconds(rows)

    def rows_within(self, seconds: float, most: int) -> int:
        """The most rows whose step is expected to take at most `seconds`; at most `most`, at least 1."""
        a, b = self.line()
        if b <= 0.0:
            return most
        return min(most, max(1, int((seconds - a) / b)))


@dataclass(eq=False, slots=True)
class Job:
    """What the policy knows of a prompt that is being read. `left`: tokens still to compute."""

    arrived: float
    left: int
    priority: int = 0
    deadline: float = 0.0


class Scheduler:
    """The policy. Called by the engine's loop only."""

    def __init__(
        self, *, max_rows: int, prefill_share: float, max_stall: float, clock: Callable[[], float]
    ) -> None:
        self._max_rows, self._clock = max_rows, clock
        self.prefill_share, self.max_stall = prefill_share, max_stall
        self.costs: dict[Kind, StepCost] = {"prefill": StepCost(), "decode": StepCost()}
        self._jobs: list[Job] = []  # as they arrived
        self._decode_owed = 0.0  # seconds that answers have a right to before the next step over prompts
        self._aged_owed = 0.0  # seconds that the first prompt has a right to

    # ---- prompts that wait

    def add(self, left: int, priority: int = 0) -> Job:
        """A prompt of `left` tokens to compute arrives now."""
        now = self._clock()
        job = Job(now, left, priority)
        job.deadline = now + PATIENCE * self.work(left) + PRIORITY_SECONDS * priority
        self._jobs.append(job)
        return job

    def remove(self, job: Job) -> None:
        """It was read, or is not wanted any more."""
        self._jobs.remove(job)
        if not self._jobs:
            self._aged_owed = 0.0

    def order(self) -> list[Job]:
        """The prompts, most urgent first."""
        by_deadline = sorted(self._jobs, key=lambda job: job.deadline)
        if self._aged_owed > 0.0 and by_deadline:
            first = self._jobs[0]
            by_deadline.remove(first)
            by_deadline.insert(0, first)
        return by_deadline

    def work(self, tokens: int) -> float:
        """Expected seconds of reading a prompt of `tokens`."""
        whole, rest = divmod(tokens, self._max_rows)
        cost = self.costs["prefill"]
        return whole * cost.seconds(self._max_rows) + (cost.seconds(rest) if rest else 0.0)

    # ---- steps

    def next(self, *, prompts: bool, answers: bool) -> Kind | None:
        """What the next step computes, given what could take part in one."""
        if not prompts:
            return "decode" if answers else None
        if not answers:
            return "prefill"
        return "decode" if self._decode_owed > 0.0 else "prefill"

    def rows(self, *, answers: bool) -> int:
        """Rows of the next step over prompts: all that fit, or as many as keep answers waiting `max_stall`."""
        if not answers:
            return self._max_rows
        rows = self.costs["prefill"].rows_within(self.max_stall, self._max_rows)
        return min(self._max_rows, max(rows, SHORTEST_STEP))

    def ran(self, kind: Kind, rows: int, seconds: float, *, answers: bool, first: Job | None = None) -> None:
        """A step is over. `answers`: whether running answers waited for it or took part; `first`: the prompt that
        the step over prompts was given to."""
        self.costs[kind].add(rows, seconds)
        if kind == "decode":
            self._decode_owed = max(self._decode_owed - seconds, -seconds)
            return
        share = self.prefill_share
        self._decode_owed = self._decode_owed + seconds * (1 - share) / share if answers else 0.0
        aged = bool(self._jobs) and first is self._jobs[0]
        self._aged_owed = max(self._aged_owed + AGED_SHARE * seconds - (seconds if aged else 0.0), -seconds)
