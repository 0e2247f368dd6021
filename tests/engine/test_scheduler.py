"""Who gets the next step, on a virtual clock: shares of time, the longest stall, a bound that no adversary moves."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from finback.engine.scheduler import AGED_SHARE, Job, Scheduler, StepCost

ROW_S, STEP_S = 0.01, 0.05
"""A machine on which a step of n prompt rows takes STEP_S + n ROW_S, and a decode step 0.2 s."""
DECODE_S = 0.2


@dataclass
class Machine:
    """Runs what the scheduler says. `running`: answers in progress, which never end."""

    share: float = 0.4
    stall: float = 1.0
    running: int = 0
    now: float = 0.0
    spent: dict[str, float] = field(default_factory=lambda: {"prefill": 0.0, "decode": 0.0})
    longest: float = 0.0
    finished: dict[Job, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.scheduler = Scheduler(
            max_rows=256, prefill_share=self.share, max_stall=self.stall, clock=lambda: self.now
        )
        self.jobs: list[Job] = []
        self.stalled = 0.0

    def submit(self, tokens: int, priority: int = 0) -> Job:
        job = self.scheduler.add(tokens, priority)
        self.jobs.append(job)
        return job

    def step(self) -> bool:
        kind = self.scheduler.next(prompts=bool(self.jobs), answers=self.running > 0)
        if kind is None:
            return False
        if kind == "decode":
            rows, seconds, first = self.running, DECODE_S, None
            self.stalled = 0.0
        else:
            order = self.scheduler.order()
            budget = rows = self.scheduler.rows(answers=self.running > 0)
            first = order[0]
            read = []
            for job in order:
                n = min(job.left, budget)
                budget -= n
                read.append((job, n))
            rows -= budget
            seconds = STEP_S + rows * ROW_S
            self.stalled += seconds
            self.longest = max(self.longest, self.stalled if self.running else 0.0)
        self.now += seconds
        self.spent[kind] += seconds
        self.scheduler.ran(kind, rows, seconds, answers=self.running > 0, first=first)
        if kind == "prefill":
            for job, n in read:
                job.left -= n
                if job.left == 0:
                    self.scheduler.remove(job)
                    self.jobs.remove(job)
                    self.finished[job] = self.now
        return True

    def run_until(self, job: Job, before: Callable[[], None] = lambda: None, limit: float = 1e6) -> float:
        while job not in self.finished:
            before()
            assert self.step()
            assert self.now < limit, "the prompt starves"
        return self.finished[job]


@pytest.mark.parametrize("share", [0.1, 0.4, 0.5, 0.9])
@pytest.mark.parametrize("stall", [0.3, 1.0, 5.0])
def test_prompts_get_their_share_and_answers_stand_still_no_longer_than_asked(share: float, stall: float) -> None:
    machine = Machine(share=share, stall=stall, running=3)
    for _ in range(3):  # the costs are learned on the way
        machine.run_until(machine.submit(600))
    machine.spent, machine.longest = {"prefill": 0.0, "decode": 0.0}, 0.0
    machine.run_until(machine.submit(30000))
    total = sum(machine.spent.values())
    assert machine.spent["prefill"] / total == pytest.approx(share, abs=0.06)
    # Steps over prompts follow one another only where one decode step was longer than its share.
    assert machine.longest <= max(stall, STEP_S + 16 * ROW_S) + DECODE_S * share / (1 - share) + 0.3


def test_without_answers_prompts_get_all_and_without_prompts_answers_do() -> None:
    machine = Machine()
    assert machine.scheduler.next(prompts=False, answers=False) is None
    assert machine.scheduler.next(prompts=False, answers=True) == "decode"
    assert machine.scheduler.next(prompts=True, answers=False) == "prefill"
    assert machine.scheduler.rows(answers=False) == 256
    job = machine.submit(1000)
    machine.run_until(job)
    assert machine.now == pytest.approx(4 * STEP_S + 1000 * ROW_S)


def test_a_short_prompt_passes_a_long_one() -> None:
    machine = Machine()
    machine.run_until(machine.submit(512))
    begun = machine.now
    long = machine.submit(16000)
    for _ in range(5):
        machine.step()
    short = machine.submit(50)
    waited = machine.run_until(short) - begun
    whole = machine.run_until(long) - begun
    assert waited < 0.15 * whole


def test_priority_is_worth_seconds_not_eternity() -> None:
    machine = Machine()
    machine.run_until(machine.submit(512))
    low, high = machine.submit(2000, priority=3), machine.submit(2000, priority=-3)
    assert machine.scheduler.order() == [high, low]
    machine.now += 70.0
    later = machine.submit(2000, priority=-3)
    assert machine.scheduler.order() == [high, low, later]


@pytest.mark.parametrize("running", [0, 4])
def test_a_flood_of_urgent_short_prompts_does_not_starve_a_long_one(running: int) -> None:
    """The adversary sends more than the machine can do, always short and always at the highest priority."""
    machine = Machine(running=running)
    machine.run_until(machine.submit(512))
    begun = machine.now
    victim = machine.submit(5000, priority=100)
    own = machine.scheduler.work(5000)

    def flood() -> None:
        while len(machine.jobs) < 20:
            machine.submit(100, priority=-100)

    waited = machine.run_until(victim, flood) - begun
    share = AGED_SHARE * (machine.share if running else 1.0)
    assert waited <= 1.1 * (own + STEP_S + 256 * ROW_S) / share
    assert waited >= 2 * own, "the adversary did nothing: this test shows nothing"


@pytest.mark.parametrize("seed", range(5))
def test_under_poisson_arrivals_every_prompt_is_read_within_the_bound(seed: int) -> None:
    """Offered load 0.9, sizes over two decades, priorities at random, an adversary's bursts among them."""
    machine, dice = Machine(running=1), random.Random(seed)
    machine.run_until(machine.submit(512))
    arrivals: list[tuple[float, int, int]] = []
    at = machine.now
    while len(arrivals) < 300:
        at += dice.expovariate(1 / 20.0)
        arrivals.append((at, int(10 ** dice.uniform(1, 3.2)), dice.randint(-5, 5)))
        if dice.random() < 0.05:
            arrivals += [(at, 30, -100)] * 20
    waiting: list[tuple[Job, float]] = []
    upcoming = iter(arrivals)
    coming = next(upcoming, None)
    while coming is not None or machine.jobs:
        while coming is not None and (coming[0] <= machine.now or not machine.jobs):
            machine.now = max(machine.now, coming[0])
            job = machine.submit(coming[1], coming[2])
            # Every prompt that is still there came before it: their rows, each at most a step of its own.
            work = sum(STEP_S * (1 + other.left / 16) + ROW_S * other.left for other in machine.jobs)
            bound = (work + STEP_S + 256 * ROW_S) / (AGED_SHARE * machine.share)
            waiting.append((job, machine.now + 1.1 * bound))
            coming = next(upcoming, None)
        machine.step()
    assert len(waiting) >= 300
    for job, latest in waiting:
        assert machine.finished[job] <= latest


def test_costs_follow_a_line_and_survive_equal_sizes() -> None:
    cost = StepCost()
    assert cost.seconds(100) == pytest.approx(0.1)
    cost.add(64, 0.64)
    assert cost.line() == (0.0, pytest.approx(0.01))
    for n in (16, 64, 256, 128) * 5:
        cost.add(n, 0.5 + 0.002 * n)
    a, b = cost.line()
    assert (a, b) == (pytest.approx(0.5, rel=0.1), pytest.approx(0.002, rel=0.1))
    assert cost.rows_within(0.7, 1000) == pytest.approx(100, rel=0.2)
    assert cost.rows_within(0.1, 1000) == 1
    assert cost.rows_within(1e9, 1000) == 1000
    faster_when_larger = StepCost()
    faster_when_larger.add(10, 1.0)
    faster_when_larger.add(100, 0.5)
    a, b = faster_when_larger.line()
    assert a >= 0.0
    assert b >= 0.0
