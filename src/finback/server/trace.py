"""Whole sessions on disk, for reports of faults: only when asked, since they hold every word.

Owns the files: one for each request, of JSON lines, readable by their owner only. Refuses to be on by itself.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from finback.server.answer import AnswerEvent, Done, Failed
from finback.server.ask import Ask
from finback.server.runner import Prepared
from finback.server.wire import to_json


class Trace:
    """A folder of traces."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._folder = folder

    def begin(self, id: str, ask: Ask, prepared: Prepared) -> None:
        """A request was taken."""
        self._write(id, {"ask": repr(ask), "prompt_ids": prepared.encoded.ids, "sampling": repr(prepared.sampling)})

    def add(self, id: str, event: AnswerEvent) -> None:
        """An event of its answer."""
        line: dict[str, Any] = {"event": type(event).__name__, "what": repr(event)}
        self._write(id, line)
        if isinstance(event, Done | Failed):
            self._write(id, {"event": "over"})

    def _write(self, id: str, line: dict[str, Any]) -> None:
        path = self._folder / f"{id}.jsonl"
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "ab") as out:
            out.write(to_json(line) + b"\n")
