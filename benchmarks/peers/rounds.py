"""Rounds: every runner does every task, one after the other, so that a slow moment of the machine meets all of them.

Owns the order and what becomes of the times: rates, and the ratio of the rates of one round, whose median is what is
reported. Knows no library: a runner is whatever reads prompts and runs tokens.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from finback.tools.record import Row, measured, quartiles, rounded

OURS = "finback"

WARM_TOKENS = 2
"""Steps before those that are timed: the first after a prompt sets up what the others use again."""


class Runner(Protocol):
    """A loaded model of any library; both give seconds."""

    def read(self, ids: Sequence[int]) -> float:
        """A prompt into an empty context."""

    def decode(self, warm: Sequence[int], ids: Sequence[int]) -> float:
        """After it, `ids` one by one; `warm` before them is not timed."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Prompts of these sizes, and `tokens` steps after the smallest of them."""

    sizes: tuple[int, ...]
    tokens: int
    rounds: int

    @property
    def context(self) -> int:
        """Most tokens of a sequence."""
        return max(max(self.sizes), min(self.sizes) + WARM_TOKENS + self.tokens)


@dataclass(slots=True)
class Rates:
    """Tokens a second of each runner, by (what, size), round by round; with GB/s of plain reading and the system's load
    average, which says whether others wanted the processors too."""

    tokens_per_s: dict[tuple[str, str, int], list[float]] = field(default_factory=dict)
    read_gbps: list[float] = field(default_factory=list)
    load_average: list[float] = field(default_factory=list)

    def add(self, runner: str, what: str, size: int, rate: float) -> None:
        self.tokens_per_s.setdefault((runner, what, size), []).append(rate)


def run_rounds(
    runners: Mapping[str, Runner],
    ids: Sequence[int],
    plan: Plan,
    read_gbps: Callable[[], float],
    on_round: Callable[[int], None],
) -> Rates:
    """One round that is not counted, in which weights come into memory, and `plan.rounds` that are. Every other round
    goes backwards, so that nobody always follows the same other."""
    rates, warm = Rates(), Rates()
    for i in range(plan.rounds + 1):
        on_round(i)
        to = rates if i else warm
        order = list(runners) if i % 2 else list(runners)[::-1]
        for size in sorted(plan.sizes, reverse=True):
            for name in order:
                to.add(name, "prefill", size, size / runners[name].read(ids[:size]))
        for name in order:  # each context holds the smallest prompt
            tokens = ids[size : size + WARM_TOKENS + plan.tokens]
            seconds = runners[name].decode(tokens[:WARM_TOKENS], tokens[WARM_TOKENS:])
            to.add(name, "decode", size, plan.tokens / seconds)
        to.load_average.append(os.getloadavg()[0])
        to.read_gbps.append(read_gbps())
    return rates


def rows_of(rates: Rates, head: Row) -> list[Row]:
    """A row of the record for each runner and task."""
    return [
        {"runner": runner, "what": what, "size": size, **head, **measured("tokens_per_s", values)}
        for (runner, what, size), values in rates.tokens_per_s.items()
    ]


def ratios_of(rates: Rates, head: Row) -> list[dict[str, Any]]:
    """For each task our rate over that of the best peer, and quartiles of the ratios of the rounds."""
    found = []
    by_task: dict[tuple[str, int], dict[str, list[float]]] = {}
    for (runner, what, size), values in rates.tokens_per_s.items():
        by_task.setdefault((what, size), {})[runner] = values
    for (what, size), by_runner in by_task.items():
        ours = by_runner.pop(OURS)
        best = max(by_runner, key=lambda name: quartiles(by_runner[name])[1])
        each = [a / b for a, b in zip(ours, by_runner[best], strict=True)]
        found.append({"what": what, "size": size, **head, "against": best, **measured("ratio", each)})
    return found


def share_of_roof(rates: Rates, size: int, bytes_per_token: int) -> dict[str, float]:
    """Of each runner's decoding: bytes a token needs times tokens a second, over the speed of plain reading."""
    roof = quartiles(rates.read_gbps)[1] * 1e9 / bytes_per_token
    return {
        runner: rounded(quartiles(values)[1] / roof)
        for (runner, what, at), values in rates.tokens_per_s.items()
        if what == "decode" and at == size
    }
