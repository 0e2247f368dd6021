"""Where drafts come from, and the gate that stops those that do not pay."""

from __future__ import annotations

import random

import pytest

from finback.engine.scheduler import StepCost
from finback.engine.speculate import (
    LONGEST_MATCH,
    PAUSE_TOKENS,
    SHORTEST_MATCH,
    TRIAL_STEPS,
    Gate,
    Lookup,
    Speculation,
)


def plainly(tokens: list[int], most: int) -> list[int]:
    """What Lookup proposes, by looking at every place."""
    if len(tokens) <= SHORTEST_MATCH:
        return []
    best, longest = 0, 0
    for end in range(SHORTEST_MATCH, len(tokens)):
        length = 0
        while length < min(LONGEST_MATCH, end) and tokens[end - 1 - length] == tokens[-1 - length]:
            length += 1
        if length >= SHORTEST_MATCH and length >= longest:
            best, longest = end, length
    return tokens[best : best + most] if longest else []


@pytest.mark.parametrize("alphabet", [2, 3, 8, 40])
def test_lookup_finds_the_latest_longest_match(alphabet: int) -> None:
    draw = random.Random(alphabet)
    tokens = [draw.randrange(alphabet) for _ in range(5)]
    lookup, found = Lookup(tokens), 0
    for _ in range(60 if alphabet < 8 else 400):
        expected = plainly(tokens, 3)
        if alphabet >= 8:  # fewer places than are looked at
            assert lookup.propose(3) == expected
        elif expected:
            assert lookup.propose(3)
        found += bool(expected)
        new = [draw.randrange(alphabet) for _ in range(draw.randrange(1, 3))]
        tokens += new
        lookup.extend(new)
    assert found > 5
    assert Lookup([1, 2]).propose(3) == []


def test_two_rows_that_cost_what_one_does_pay() -> None:
    """Few steps with drafts among many without: the line through them says that two rows cost twice as much."""
    cost, gate = StepCost(), Gate()
    for _ in range(50):
        cost.add(1, 0.010)
    for _ in range(3 * TRIAL_STEPS):
        cost.add(2, 0.011)
        gate.judge(2, cost.typical(2), cost.typical(1))
        assert gate.open
    assert cost.typical(3) == cost.seconds(3)


def test_a_disturbance_closes_nothing() -> None:
    cost, gate = StepCost(), Gate()
    for i in range(40):
        cost.add(1, 0.010)
        cost.add(2, 0.5 if i % 10 == 9 else 0.012)
        gate.judge(2, cost.typical(2), cost.typical(1))
    assert gate.open


def test_drafts_that_do_not_pay_are_tried_less_and_less() -> None:
    gate, pauses = Gate(), []
    for _ in range(6):
        steps = 0
        while gate.open:
            gate.judge(1, 0.013, 0.010)
            steps += 1
        assert steps == TRIAL_STEPS
        pause = 0
        while not gate.open:
            gate.plain()
            pause += 1
        pauses.append(pause)
    assert pauses == [64, 128, 256, 512, 1024, 1024]
    for _ in range(2 * TRIAL_STEPS):
        gate.judge(3, 0.013, 0.010)
    assert gate.open
    while gate.open:
        gate.judge(1, 0.013, 0.010)
    gate.plain()
    assert not gate.open
    for _ in range(PAUSE_TOKENS - 1):
        gate.plain()
    assert gate.open, "having paid, the next pause is short again"


def test_both_sources_together() -> None:
    """What occurred before is taken where it begins as the draft block expects."""
    said = Speculation("auto", [1, 2, 3, 4, 5, 1, 2])
    said.learn(2, 2)
    assert said.propose(3) == [3, 4, 5]
    said.expect(3)
    assert said.propose(3) == [3, 4, 5]
    said.expect(9)
    assert said.propose(3) == [9]
    assert said.propose(0) == []
    said.learn(3, 1)
    said.expect(3)
    assert said.propose(3) == [3], "one was right: one is tried"
    for drafted in (1, 2):
        said.learn(drafted, drafted)
    assert said.propose(3) == [3, 4, 5]
    said.learn(3, 0)
    assert said.propose(3) == [3]
    only = Speculation("mtp", [1, 2, 3, 1, 2])
    assert only.propose(3) == []
    only.expect(7)
    assert only.propose(3) == [7]
    assert only.propose(3) == [], "it was for one step"
