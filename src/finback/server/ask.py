"""What a client asks for, whatever dialect it spoke.

Owns the one request type that every dialect is read into, and how a request is refused. Refuses to know HTTP, and to
run anything; `server/runner.py` does.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from finback.engine.sampling import Sampling
from finback.errors import FinbackError
from finback.text.messages import Message, ToolDefinition
from finback.text.render import JsonReply


class RefusedError(FinbackError):
    """A request that is not answered. Each dialect has its own JSON shape for it.

    status: of HTTP. field: the client's spelling of what is wrong, by path (`messages[2].content`), or None.
    code: a word that programs look at, such as `context_length_exceeded`.
    retry_after: seconds after which another try makes sense, or None.
    """

    def __init__(
        self,
        message: str,
        *,
        status: int = 400,
        field: str | None = None,
        code: str | None = None,
        retry_after: int | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.field, self.code, self.retry_after = status, field, code, retry_after


@dataclass(frozen=True, slots=True)
class Defaults:
    """What a request that says nothing of it gets: whether the model thinks, and how long."""

    thinking: bool = True
    effort: str | int | None = None


@dataclass(frozen=True, slots=True)
class Choice:
    """Which tools the answer may or must call. names: with "required", the ones it must call one of; () is any."""

    kind: Literal["auto", "none", "required"] = "auto"
    names: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Chat:
    """A conversation to go on with.

    parallel_calls: whether the answer may call more than once. thinking: whether it thinks first. reply: what the
    prompt says of the answer's form; its enforcement is in the sampling parameters. continue_last: whether the last
    message, the model's, is continued.
    """

    messages: tuple[Message, ...]
    tools: tuple[ToolDefinition, ...] = ()
    choice: Choice = field(default_factory=Choice)
    parallel_calls: bool = True
    thinking: bool = True
    effort: str | int | None = None
    reply: JsonReply | None = None
    continue_last: bool = False


@dataclass(frozen=True, slots=True)
class Raw:
    """Text, or token ids, to go on with as they are. suffix: what comes after the text to be written (fill in the
    middle). echo: whether the answer begins with the prompt. only_read: nothing is to be written."""

    prompt: str | tuple[int, ...]
    suffix: str | None = None
    echo: bool = False
    only_read: bool = False


@dataclass(frozen=True, slots=True)
class Ask:
    """One request. model: as the client named it; "" is the one there is. priority: of the engine, -100 the most
    urgent. ignored: fields that nobody knows here, by path."""

    model: str
    prompt: Chat | Raw
    sampling: Sampling
    stream: bool = False
    priority: int = 0
    ignored: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Stamp:
    """What marks one answer: a random id (hex, without a dialect's prefix), when it was begun (seconds since 1970), and
    the model as the client named it."""

    id: str
    created: float
    model: str
