"""Our end of a conversation with a peer (wire.py is the other): starts its process and asks.

Owns the sentences for a peer that is missing or fails. Refuses to go on without an answer.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

HERE = Path(__file__).parent


class PeerError(Exception):
    """A peer that is not there or gave no answer, in one sentence."""


class Peer:
    """A process that runs `worker` with another Python."""

    def __init__(self, name: str, python: str, worker: str, remedy: str) -> None:
        self.name = name
        self._python, self._remedy = python, remedy
        self._said = tempfile.TemporaryFile("w+")  # a pipe that nobody reads would stop it  # noqa: SIM115
        try:
            self._process = subprocess.Popen(
                [python, str(HERE / worker)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._said,
                text=True,
            )
        except OSError as error:
            self._said.close()
            raise PeerError(f"the peer {name} is missing: {python}: {error.strerror}; {remedy}") from None
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._to, self._from = self._process.stdin, self._process.stdout

    def ask(self, do: str, **fields: Any) -> dict[str, Any]:
        """The answer to one question. PeerError without one."""
        try:
            self._to.write(json.dumps({"do": do, **fields}) + "\n")
            self._to.flush()
            line = self._from.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            raise PeerError(self._why_it_ended())
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise PeerError(f"the peer {self.name} fails to {do}: {answer['error']}")
        return answer

    def _why_it_ended(self) -> str:
        status = self._process.wait()
        self._said.seek(0)
        said = self._said.read().strip().splitlines()
        last = said[-1] if said else f"exit status {status}"
        if last.startswith("ModuleNotFoundError"):
            module = last.split("'")[1]
            return f"the peer {self.name} is missing: {self._python} has no module {module}; {self._remedy}"
        return f"the peer {self.name} ended: {last}"

    def read(self, ids: Sequence[int]) -> float:
        """Seconds to read a prompt into an empty context."""
        return float(self.ask("read", ids=list(ids))["seconds"])

    def decode(self, warm: Sequence[int], ids: Sequence[int]) -> float:
        """Seconds to run `ids` one by one, after `warm`, which is not timed."""
        return float(self.ask("decode", warm=list(warm), ids=list(ids))["seconds"])

    def close(self) -> None:
        """End the process. Closing twice is fine."""
        with contextlib.suppress(BrokenPipeError):  # it ended first, which was told
            self._to.close()
        self._process.wait()
        self._from.close()
        self._said.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
