"""Strict readers of streams, and answers to tell in every dialect."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from finback.server.answer import (
    AnswerEvent,
    Begun,
    CallArguments,
    CallBegun,
    CallEnded,
    Done,
    Ended,
    Said,
    Thought,
    Timings,
    Usage,
)
from finback.server.ask import Stamp

STAMP = Stamp("0123456789abcdef01234567", 1_700_000_000.25, "a-model")
DONE = Done(Usage(prompt=20, completion=12, reasoning=4, cached=16), Timings(0.25, 0.5, 1.0))


def sse_events(chunks: Iterable[bytes]) -> list[tuple[str | None, Any]]:
    """Server-sent events, by the letter: each ends with a blank line, has one data line of JSON (or [DONE]) and at most
    one event line before it; comments may stand between events. Each chunk holds whole events."""
    found = []
    for chunk in chunks:
        text = chunk.decode("utf-8")
        assert text.endswith("\n\n"), text
        for block in text[:-2].split("\n\n"):
            if block.startswith(":"):
                assert "\n" not in block
                continue
            *before, data = block.split("\n")
            assert data.startswith("data: "), block
            assert all(line.startswith("event: ") for line in before), block
            assert len(before) <= 1, block
            body = data.removeprefix("data: ")
            name = before[0].removeprefix("event: ") if before else None
            found.append((name, body if body == "[DONE]" else json.loads(body)))
    return found


def spoken(*text: str, thought: str = "", calls: Iterable[tuple[str, str, str]] = ()) -> list[AnswerEvent]:
    """The events of an answer: thinking, content in pieces, calls as (id, name, arguments), arguments in two pieces."""
    events: list[AnswerEvent] = [Begun(20)]
    events += [Thought(0, piece) for piece in (thought[:3], thought[3:]) if piece]
    events += [Said(0, piece) for piece in text]
    calls = list(calls)
    for index, (id, name, arguments) in enumerate(calls):
        half = len(arguments) // 2
        events += [
            CallBegun(0, index, id, name),
            CallArguments(0, index, arguments[:half]),
            CallArguments(0, index, arguments[half:]),
            CallEnded(0, index),
        ]
    return [*events, Ended(0, "tool_calls" if calls else "stop"), DONE]
