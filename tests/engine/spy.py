"""What a request really computed: the logits of every draw, as bytes, seen where they reach the sampler."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from finback.engine.choice import Choice, Drawn

Draws = dict[tuple[tuple[int, ...], int, int], bytes]
"""Logits before anything was done to them, by prompt, choice and position."""


@contextmanager
def drawn_logits() -> Iterator[Draws]:
    """Collects the logits of all draws of all engines of the process."""
    seen: Draws = {}
    real = Choice.draw

    def draw(self: Choice, drawer: Any, logits: Any, position: int) -> Drawn:
        seen[tuple(self.prompt), self.index, position] = logits.tobytes()
        return real(self, drawer, logits, position)

    Choice.draw = draw  # type: ignore[method-assign]
    try:
        yield seen
    finally:
        Choice.draw = real  # type: ignore[method-assign]
