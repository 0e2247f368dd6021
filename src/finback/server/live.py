"""Answers on their way to a client: at once or piece by piece, until it leaves.

Owns the rhythm of a stream: headers at once, pieces as they come, together if they come together, and a sign of life
when nothing else was sent for a while. Refuses to go on for a client that has gone.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from typing import TypeVar

from finback.server.bodies import Receive
from finback.server.guard import Scope, Send

PING_S = 5.0
"""Seconds without a byte after which a sign of life is sent."""

_T = TypeVar("_T")


class GoneError(Exception):
    """The client has gone."""


async def gone(receive: Receive) -> None:
    """Returns when the client has gone."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def unless_gone(receive: Receive, work: Awaitable[_T]) -> _T:
    """What `work` brings. GoneError if the client goes before; the work is cancelled then, and has ended."""
    task, watch = asyncio.ensure_future(work), asyncio.ensure_future(gone(receive))
    try:
        await asyncio.wait({task, watch}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise GoneError
        return task.result()
    finally:
        for other in (task, watch):
            other.cancel()
        await asyncio.gather(task, watch, return_exceptions=True)


class Streamed:
    """An ASGI response that sends pieces as they come.

    pieces: an async generator; it is closed when the client goes. ping: the sign of life. on_end: awaited at the end,
    however it comes, with whether everything was sent.
    """

    def __init__(
        self,
        pieces: AsyncGenerator[bytes, None],
        *,
        media_type: str,
        ping: bytes,
        on_end: Callable[[bool], Awaitable[None]],
        headers: Sequence[tuple[bytes, bytes]] = (),
        ping_s: float = PING_S,
    ) -> None:
        self._pieces, self._ping, self._ping_s, self._on_end = pieces, ping, ping_s, on_end
        self._headers = [
            (b"content-type", media_type.encode()),
            (b"cache-control", b"no-cache"),
            (b"x-accel-buffering", b"no"),  # proxies such as nginx would hold pieces back
            *headers,
        ]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        whole = False
        try:
            await send({"type": "http.response.start", "status": 200, "headers": self._headers})
            whole = await self._run(receive, send)
        finally:
            await asyncio.shield(self._end(whole))

    async def _run(self, receive: Receive, send: Send) -> bool:
        """Send everything; whether the client stayed for it."""
        waiting: asyncio.Queue[bytes | None] = asyncio.Queue()
        producer = asyncio.ensure_future(self._produce(waiting))
        watch = asyncio.ensure_future(gone(receive))
        sender = asyncio.ensure_future(self._send(waiting, send))
        try:
            await asyncio.wait({sender, watch}, return_when=asyncio.FIRST_COMPLETED)
            return sender.done() and not sender.cancelled() and sender.exception() is None
        finally:
            for task in (producer, watch, sender):
                task.cancel()
            await asyncio.gather(producer, watch, sender, return_exceptions=True)

    async def _end(self, whole: bool) -> None:
        with contextlib.suppress(RuntimeError):
            await self._pieces.aclose()
        await self._on_end(whole)

    async def _produce(self, waiting: asyncio.Queue[bytes | None]) -> None:
        try:
            async for piece in self._pieces:
                waiting.put_nowait(piece)
        finally:
            waiting.put_nowait(None)

    async def _send(self, waiting: asyncio.Queue[bytes | None], send: Send) -> None:
        """Pieces, all that are there together; then the end."""
        while True:
            try:
                first = await asyncio.wait_for(waiting.get(), self._ping_s)
            except TimeoutError:
                await send({"type": "http.response.body", "body": self._ping, "more_body": True})
                continue
            body, more = bytearray(), first is not None
            piece = first
            while piece is not None:
                body += piece
                if waiting.empty():
                    break
                piece = waiting.get_nowait()
                more = piece is not None
            if body or not more:
                await send({"type": "http.response.body", "body": bytes(body), "more_body": more})
            if not more:
                return
