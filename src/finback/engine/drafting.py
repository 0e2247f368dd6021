"""The model's draft block, following the steps of requests: what it expects comes next.

Owns its logits and what its runs cost. Refuses to decide anything: what it expects is a draft (engine/speculate.py).
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from finback.engine.choice import Drawn
from finback.engine.lanes import Lane, Reading
from finback.engine.scheduler import StepCost
from finback.errors import NumericError
from finback.ops.select import Model
from finback.ops.step import Part


class DraftBlock:
    """It follows every row of the step just made, all parts in their order, before any row is taken back."""

    def __init__(self, model: Model, max_batch: int) -> None:
        self._model = model
        self._logits = np.empty((max_batch, model.config.vocab_size), np.float32)
        self.cost = StepCost()

    def follow_prompts(
        self, shares: list[tuple[Reading, Part[Any]]], said: list[tuple[Lane, list[Drawn]]]
    ) -> None:
        """After a step over prompts, where it will be asked: it looks back over one window."""
        window = self._model.config.sliding_window
        if not any(reading.state.length > len(reading.request.ids) - window for reading, _ in shares):
            return
        first = {lane.request: (lane, drawn[0]) for lane, drawn in said if lane.request.sampling.n == 1}
        parts, asked = [], []
        for reading, part in shares:
            end, ids = reading.state.length, reading.request.ids
            lane, drawn = first.get(reading.request, (None, None))
            following = [*ids[end - len(part.ids) + 1 : end + 1]]
            if lane is not None and drawn is not None and drawn.finish is None:
                parts.append(Part(part.state, [*following, drawn.token], (len(part.ids) - 1,)))
                asked.append(lane)
            else:
                parts.append(Part(part.state, [*following, 0][: len(part.ids)]))
        for lane, expected in zip(asked, self._expected(parts), strict=True):
            assert lane.speculation is not None
            lane.speculation.expect(expected)

    def follow_answers(
        self, ready: list[tuple[Lane, Part[Any]]], said: list[tuple[Lane, list[Drawn]]]
    ) -> None:
        """After a step over answers: nothing if a part was cut short, or no answer wants drafts now."""
        whole = all(lane.rows == len(part.ids) for lane, part in ready)
        wanted = any(lane.speculation is not None and lane.speculation.gate.open for lane, _ in said)
        if not wanted or not whole or len(said) < len(ready):
            return
        heard = dict(said)
        parts, asked = [], []
        for lane, part in ready:
            drawn = heard.get(lane)
            if drawn is None or drawn[-1].finish is not None:
                parts.append(Part(part.state, (*part.ids[1:], 0)))
            else:
                following = (*part.ids[1 : len(drawn)], drawn[-1].token, *part.ids[len(drawn) + 1 :], 0)
                parts.append(Part(part.state, following[: len(part.ids)], (len(drawn) - 1,)))
                asked.append(lane)
        for lane, expected in zip(asked, self._expected(parts), strict=True):
            assert lane.speculation is not None
            lane.speculation.expect(expected)

    def _expected(self, parts: list[Part[Any]]) -> list[int | None]:
        """The likeliest token of each row that the draft block is asked for; None where it says nothing sound."""
        begun = time.perf_counter()
        try:
            rows = self._model.draft(parts, self._logits)
            self.cost.add(sum(len(part.ids) for part in parts), time.perf_counter() - begun)
        except NumericError:
            return [None] * sum(len(part.wanted) for part in parts)
        return [int(token) for token in rows.argmax(axis=1)]
