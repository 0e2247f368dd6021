"""Every error finback raises on purpose, in one hierarchy.

Owns the shape of a message: one sentence that names the thing, the value found, and what to do. Refuses to
carry tracebacks, file contents or prompt text. The command line prints `str(error)` and exits with
`error.exit_code`; a server turns the same text into a response.
"""

from __future__ import annotations

import os

MESSAGE_LIMIT = 380  # a sentence a person reads, not a dump; longer values are cut in the middle


def shown(value: object, limit: int = 80) -> str:
    """`value` as it may appear in a message: repr, on one line, cut in the middle when long."""
    text = repr(value)
    return text if len(text) <= limit else f"{text[: limit // 2]}…{text[-limit // 4 :]}"


def shown_size(size: int) -> str:
    """A number of bytes for people: "3.5 GiB"."""
    for power, unit in ((40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")):
        if size >= 1 << power:
            return f"{size / (1 << power):.1f} {unit}"
    return f"{size} bytes"


class FinbackError(Exception):
    """Base of all errors raised on purpose. `exit_code` is what a command exits with."""

    exit_code = 1

    def __init__(self, message: str) -> None:
        text = " ".join(message.split())
        if len(text) > MESSAGE_LIMIT:
            text = f"{text[: MESSAGE_LIMIT - 80]}…{text[-70:]}"
        super().__init__(text)


class ModelFileError(FinbackError):
    """A model file is cut, lying, foreign or of a kind we do not run. Names the file, the field, the value."""

    exit_code = 2

    def __init__(self, path: str | os.PathLike[str], problem: str) -> None:
        self.path = os.fspath(path)
        super().__init__(f"{shorten_path(self.path)}: {problem}")


class UnsupportedModelError(ModelFileError):
    """The file is well formed, but holds a model or a feature that finback does not run; named in the text."""


class RequestError(FinbackError):
    """An argument or a request is out of range. Names the argument, the value and the allowed range."""

    exit_code = 2


class ContextLengthError(RequestError):
    """A prompt is longer than the context. Carries both, in tokens."""

    def __init__(self, message: str, *, tokens: int, context: int) -> None:
        self.tokens, self.context = tokens, context
        super().__init__(message)


class ConfigError(RequestError):
    """A model's number makes no sense. Carries the field, the value and the allowed range, so that a reader of a
    model file can say the same with the file's own spelling of the field."""

    def __init__(self, field: str, value: object, allowed: str) -> None:
        self.field, self.value, self.allowed = field, value, allowed
        super().__init__(f"{field} is {shown(value)}; allowed: {allowed}")


class MemoryBudgetError(FinbackError):
    """The work would not fit the memory budget. Carries the numbers, in bytes."""

    exit_code = 2

    def __init__(self, message: str, *, needed: int, budget: int) -> None:
        self.needed, self.budget = needed, budget
        super().__init__(message)


class DownloadError(FinbackError):
    """Something cannot be downloaded. What arrived is kept where that helps."""


class NumericError(FinbackError):
    """A computation met a value that is not finite; the request that caused it ends, the engine lives.

    `rows`: the rows of the step concerned, ascending, where the error comes from a step; the others are good.
    """

    def __init__(self, message: str, *, rows: tuple[int, ...] = ()) -> None:
        self.rows = rows
        super().__init__(message)


class EngineStateError(FinbackError):
    """The engine or session cannot be used as asked: closed, or loaded before a fork."""


class PlatformError(FinbackError):
    """This machine lacks something that was asked for (an instruction set, an operating system)."""

    exit_code = 2


def shorten_path(path: str, limit: int = 120) -> str:
    """A path for a message: its end, which tells files apart, when it is long."""
    return path if len(path) <= limit else "…" + path[-limit + 1 :]
