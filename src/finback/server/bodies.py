"""Bodies of requests: read within limits, and JSON or refused.

Owns the limits of size and time, and the sentences for what is no JSON: they tell the place, never the bytes. Refuses
to guess an encoding. Of a key that comes twice the last one counts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

import msgspec

from finback.errors import shown_size
from finback.server.ask import RefusedError
from finback.server.live import Receive

_decode = msgspec.json.Decoder().decode


class ClientGoneError(Exception):
    """The client left before its body was whole."""


async def read_json(receive: Receive, headers: Iterable[tuple[bytes, bytes]], limit: int, seconds: float) -> Any:
    """The body as JSON. limit: most bytes; seconds: until it is whole. RefusedError, or ClientGoneError."""
    length = dict(headers).get(b"content-length", b"")
    if length.isdigit() and int(length) > limit:
        raise _too_large(limit)
    try:
        async with asyncio.timeout(seconds):
            body = await _read(receive, limit)
    except TimeoutError:
        raise RefusedError(f"the body did not come within {seconds:g} seconds; send it faster", status=408) from None
    return parse(body)


async def _read(receive: Receive, limit: int) -> bytes:
    pieces, size, more = [], 0, True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGoneError
        piece = message.get("body", b"")
        size += len(piece)
        if size > limit:
            raise _too_large(limit)
        pieces.append(piece)
        more = message.get("more_body", False)
    return b"".join(pieces)


def parse(body: bytes) -> Any:
    """JSON, or RefusedError."""
    if not body.strip():
        raise RefusedError("the body is empty; send a JSON object")
    try:
        return _decode(body)
    except RecursionError:
        raise RefusedError("the body is nested too deeply; flatten it") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise RefusedError(f"the body is not JSON ({_plain(error)}); send a JSON object in UTF-8") from None


def _plain(error: Exception) -> str:
    """What is wrong, without the bytes that are."""
    if isinstance(error, UnicodeDecodeError):
        return f"invalid UTF-8 at byte {error.start}"
    return str(error).removeprefix("JSON is malformed: ").partition(" - at")[0]


def _too_large(limit: int) -> RefusedError:
    return RefusedError(
        f"the body has more than {shown_size(limit)}; send less, or raise --body-limit",
        status=413,
        code="request_too_large",
    )
