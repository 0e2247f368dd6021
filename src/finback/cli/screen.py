"""Progress on a terminal, for anything that takes over a second. Silent when stderr is not a terminal; rich is imported
only when a bar is really drawn."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

DELAY_S = 1.0  # shorter work finishes before anybody reads a bar


class Bar:
    """A bar that appears after DELAY_S; call it with (done, total)."""

    def __init__(self, label: str, unit: str = "tokens") -> None:
        self._label, self._unit = label, unit
        self._begun = time.monotonic()
        self._progress: Any = None
        self._task: Any = None

    def __call__(self, done: int, total: int) -> None:
        if not sys.stderr.isatty() or time.monotonic() - self._begun < DELAY_S:
            return
        if self._progress is None:
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

            self._progress = Progress(
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TextColumn(self._unit),
                TimeRemainingColumn(),
                console=Console(stderr=True),
                transient=True,
            )
            self._progress.start()
            self._task = self._progress.add_task(self._label, total=total)
        self._progress.update(self._task, completed=done, total=total)
        if done >= total:
            self.close()

    def close(self) -> None:
        """Remove the bar."""
        if self._progress is not None:
            self._progress.stop()
            self._progress = None

    def __enter__(self) -> Callable[[int, int], None]:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@contextlib.contextmanager
def waiting(label: str) -> Iterator[None]:
    """A spinner for work whose length is not known, after DELAY_S."""
    if not sys.stderr.isatty():
        yield
        return
    done = threading.Event()

    def spin() -> None:
        if done.wait(DELAY_S):
            return
        from rich.console import Console

        with Console(stderr=True).status(label):
            done.wait()

    thread = threading.Thread(target=spin, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
