"""The server on its port: connections, their time limits, and an end that loses nothing.

Owns how the application is run by uvicorn. Refuses a connection that sends half a request and waits.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
import threading
from collections.abc import Iterator
from typing import Any

import h11
import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from finback.errors import RequestError
from finback.server.ask import RefusedError
from finback.server.dialects.openai import error_body
from finback.server.wire import to_json

HEAD_SECONDS = 20.0
"""For the line and the headers of a request, from its first byte, or from the connection's, on."""

IDLE_SECONDS = 75
"""That a connection may be kept without a request."""


class Timed(H11Protocol):
    """A connection. One that has begun a request and does not go on with its headers is closed."""

    _head: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._wait()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.conn.their_state is h11.IDLE:
            if self._head is None:
                self._wait()
        else:
            self._waited()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._waited()

    def send_400_response(self, msg: str) -> None:
        """What is no HTTP is refused in JSON, too, where an answer can still be sent."""
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            body = to_json(error_body(RefusedError("this is no HTTP request; send one of HTTP/1.1")))
            headers = [
                (b"content-type", b"application/json"),
                (b"content-length", str(len(body)).encode()),
                (b"connection", b"close"),
            ]
            for event in (h11.Response(status_code=400, headers=headers), h11.Data(data=body), h11.EndOfMessage()):
                self.transport.write(self.conn.send(event) or b"")
        self.transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._waited()
        super().connection_lost(exc)

    def _wait(self) -> None:
        self._head = self.loop.call_later(HEAD_SECONDS, self._give_up)

    def _waited(self) -> None:
        if self._head is not None:
            self._head.cancel()
            self._head = None

    def _give_up(self) -> None:
        if self.conn.their_state is h11.IDLE and not self.transport.is_closing():
            self.transport.close()


def listen(host: str, port: int) -> socket.socket:
    """A socket of an address. RequestError if it cannot be had."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except (OSError, OverflowError) as error:
        listener.close()
        raise RequestError(
            f"{host}:{port} cannot be listened at ({getattr(error, 'strerror', None) or error}); "
            f"give another --port, or end what has it"
        ) from None
    listener.set_inheritable(True)
    return listener


class Host(uvicorn.Server):
    """A server that ends well when it is told to end: uvicorn's own raises the signal once more at the end."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.signal(number, self.handle_exit) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def server(app: ASGIApp, *, drain: int, backlog: int = 2048) -> uvicorn.Server:
    """A server of an application. drain: seconds that requests may still take after SIGTERM."""
    config = uvicorn.Config(
        app,
        http=Timed,
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_keep_alive=IDLE_SECONDS,
        timeout_graceful_shutdown=drain,
        backlog=backlog,
        h11_max_incomplete_event_size=256 << 10,
    )
    return Host(config)
