"""What an engine has done: counts since it was loaded, and its last steps one by one.

Owns the numbers that `Engine.stats` gives out. The loop writes them; anybody may read them at any time.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from finback.engine.scheduler import Kind
from finback.kv.prefix import PrefixStats
from finback.kv.store import StoreStats

STEPS_KEPT = 4096


@dataclass(frozen=True, slots=True)
class StepRecord:
    """A step: when it began (time.perf_counter), how long it ran, tokens computed, sequences in it, and the time since
    the step before ended (None after a pause)."""

    kind: Kind
    begun: float
    seconds: float
    rows: int
    sequences: int
    gap: float | None


class LoopStats:
    """Running counts of the loop."""

    def __init__(self) -> None:
        self.waiting = self.reading = self.running = 0
        self.drawn = self.drafted = self.accepted = 0
        self.steps: dict[Kind, int] = {"prefill": 0, "decode": 0}
        self.rows: dict[Kind, int] = {"prefill": 0, "decode": 0}
        self.seconds: dict[Kind, float] = {"prefill": 0.0, "decode": 0.0}
        self.gap_seconds = 0.0
        self.last: deque[StepRecord] = deque(maxlen=STEPS_KEPT)

    def add(self, step: StepRecord) -> None:
        """Count a step."""
        self.steps[step.kind] += 1
        self.rows[step.kind] += step.rows
        self.seconds[step.kind] += step.seconds
        self.gap_seconds += step.gap or 0.0
        self.last.append(step)


@dataclass(frozen=True, slots=True)
class EngineStats:
    """A view of an engine at one moment.

    waiting, reading, running: requests not yet admitted, prompts being read, answers being drawn. steps, rows (tokens
    computed) and seconds by kind of step; drawn: tokens of answers; drafted, accepted: drafts computed, and those that
    were right; gap_seconds: time between steps that followed one another. prefix, disk: the prefix cache and the store
    on disk, None if off. pages, shared_pages: in use, and by more than one. memory: bytes by entry of the ledger,
    "budget" among them.
    """

    waiting: int
    reading: int
    running: int
    steps: dict[Kind, int]
    rows: dict[Kind, int]
    seconds: dict[Kind, float]
    drawn: int
    drafted: int
    accepted: int
    gap_seconds: float
    prefix: PrefixStats | None
    disk: StoreStats | None
    pages: int
    shared_pages: int
    memory: dict[str, int] = field(default_factory=dict)
    last_steps: tuple[StepRecord, ...] = ()
