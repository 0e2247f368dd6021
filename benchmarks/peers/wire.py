"""The peer's end of the conversation with benchmarks/versus.py: JSON objects, one a line, over stdin and stdout.

    {"do": "load", ...}                              -> {"versions": {...}, ...}
    {"do": "read", "ids": [...]}                     -> {"seconds": ...}     a prompt into an empty context
    {"do": "decode", "warm": [...], "ids": [...]}    -> {"seconds": ...}     after it, one by one; `warm` is not timed

Owns the loop; an error answers {"error": "..."} and ends the process. Whatever a library prints goes to stderr, so that
stdout carries answers only. Imports nothing but the standard library: it runs in the peer's environment.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any, Protocol


class Runner(Protocol):
    """A loaded model."""

    def read(self, ids: list[int]) -> None:
        """Logits after a prompt, which begins a new context."""

    def step(self, token: int) -> None:
        """Logits after one more token."""


Load = Callable[[dict[str, Any]], tuple[Runner, dict[str, Any]]]
"""From the fields of "load" to a runner and what it has to say of itself."""


def serve(load: Load) -> None:
    """Answer until stdin ends."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    runner: Runner | None = None
    for line in sys.stdin:
        asked = json.loads(line)
        try:
            if asked["do"] == "load":
                runner, answer = load(asked)
            else:
                assert runner is not None, "load comes first"
                answer = {"seconds": timed(runner, asked)}
        except Exception as error:  # whatever the library raises is the answer
            answer = {"error": f"{type(error).__name__}: {error}"}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()
        if "error" in answer:
            return


def timed(runner: Runner, asked: dict[str, Any]) -> float:
    """Seconds of one measurement."""
    ids = asked["ids"]
    if asked["do"] == "read":
        begun = time.perf_counter()
        runner.read(ids)
        return time.perf_counter() - begun
    for token in asked["warm"]:
        runner.step(token)
    begun = time.perf_counter()
    for token in ids:
        runner.step(token)
    return time.perf_counter() - begun
