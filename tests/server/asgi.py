"""An ASGI application driven without sockets: one request in, everything that was sent out."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

Headers = Iterable[tuple[str | bytes, str | bytes]]


@dataclass
class Reply:
    """What an application sent. headers: by name, values in their order."""

    status: int = 0
    headers: dict[str, list[str]] = field(default_factory=dict)
    body: bytes = b""

    def one(self, name: str) -> str | None:
        """The value of a header that is there at most once."""
        values = self.headers.get(name, [])
        assert len(values) <= 1, values
        return values[0] if values else None


def raw(headers: Headers) -> list[tuple[bytes, bytes]]:
    """Headers as a server passes them: names in lower case."""

    def data(text: str | bytes) -> bytes:
        return text if isinstance(text, bytes) else text.encode("latin-1")

    return [(data(name).lower(), data(value)) for name, value in headers]


def feed(*pieces: bytes, then: Sequence[dict[str, Any]] = (), wait: float = 0.0) -> Any:
    """A `receive` that gives a body in pieces, each after `wait` seconds. then: messages in place of the body's end."""
    messages: list[dict[str, Any]] = [{"type": "http.request", "body": piece, "more_body": True} for piece in pieces]
    if then:
        messages += then
    else:
        messages.append({"type": "http.request"})
    messages.reverse()

    async def receive() -> dict[str, Any]:
        if wait:
            await asyncio.sleep(wait)
        return messages.pop()

    return receive


def request(app: Any, method: str, path: str, headers: Headers = (), body: bytes = b"") -> Reply:
    """What an application answers. Checks the order of its messages, and that lengths are true."""
    scope = {"type": "http", "method": method, "path": path, "query_string": b"", "headers": raw(headers)}
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    asyncio.run(app(scope, feed(body), send))
    start, *parts = sent
    assert start["type"] == "http.response.start"
    assert parts
    assert all(part["type"] == "http.response.body" for part in parts)
    assert [part.get("more_body", False) for part in parts] == [True] * (len(parts) - 1) + [False]
    reply = Reply(start["status"], body=b"".join(part.get("body", b"") for part in parts))
    for name, value in start["headers"]:
        assert name == name.lower()
        reply.headers.setdefault(name.decode(), []).append(value.decode("latin-1"))
    if (length := reply.one("content-length")) is not None:
        assert int(length) == len(reply.body)
    return reply
