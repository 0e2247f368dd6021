"""The dialects as the service uses them: how each reads, tells, and refuses.

Owns the one shape behind which a dialect stands. Refuses to know what is in a body.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from finback.server.answer import AnswerEvent, Outcome
from finback.server.ask import Ask, Defaults, RefusedError, Stamp
from finback.server.dialects import chat, messages, ollama, openai, responses

SSE, NDJSON = "text/event-stream; charset=utf-8", "application/x-ndjson"


class Writer(Protocol):
    """Tells an answer as it comes."""

    def write(self, event: AnswerEvent) -> list[bytes]:
        """What an event makes of the stream."""


@dataclass(frozen=True, slots=True)
class Tongue:
    """A dialect. read: a body to a request and the style of its answer. whole, stream: the answer, at once and as it
    comes. ping: a sign of life in a stream. error: the body of a refusal. prefix: of the ids of its answers."""

    name: str
    read: Callable[[object, Defaults], tuple[Ask, Any]]
    whole: Callable[[Any, Stamp, Outcome], dict[str, Any]]
    stream: Callable[[Any, Stamp], Writer]
    ping: Callable[[Any, Stamp], bytes]
    error: Callable[[RefusedError], dict[str, Any]]
    media_type: str = SSE
    prefix: str = ""


CHAT = Tongue(
    "chat", chat.read, chat.whole, chat.Stream, lambda *_: chat.PING, openai.error_body, prefix="chatcmpl-"
)
MESSAGES = Tongue(
    "messages",
    messages.read,
    messages.whole,
    messages.Stream,
    lambda *_: messages.PING,
    messages.error_body,
    prefix="msg_",
)
RESPONSES = Tongue(
    "responses",
    responses.read,
    responses.whole,
    responses.Stream,
    lambda *_: responses.PING,
    openai.error_body,
    prefix="resp_",
)


def _ollama(name: str, read: Callable[[object, Defaults], tuple[Ask, ollama.Style]]) -> Tongue:
    return Tongue(
        name,
        read,
        ollama.whole,
        ollama.Stream,
        lambda style, stamp: ollama.Stream(style, stamp).ping(),
        ollama.error_body,
        NDJSON,
    )


OLLAMA_CHAT = _ollama("ollama chat", ollama.read_chat)
OLLAMA_GENERATE = _ollama("ollama generate", ollama.read_generate)


def error_of(path: str, refusal: RefusedError) -> dict[str, Any]:
    """The body of a refusal in the dialect of a path."""
    if path.startswith("/api/"):
        return ollama.error_body(refusal)
    if path.startswith(("/v1/messages", "/messages")):
        return messages.error_body(refusal)
    return openai.error_body(refusal)
