"""Bodies of requests, read and parsed with limits.

Owns how long and how large a body may be, and what counts as JSON. Refuses what parsers disagree about (a name given
twice, NaN, half a character, numbers of a thousand digits), and never repeats a body's bytes in a sentence.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any, NoReturn, TypeAlias

import msgspec
import numpy as np

from finback.errors import FinbackError, shown
from finback.server.ask import RefusedError

Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Headers: TypeAlias = Iterable[tuple[bytes, bytes]]
"""As ASGI has them: names in lower case, in the order in which they came."""

IDLE_S = 15.0
"""Seconds without a byte after which a client counts as stalled."""
MAX_DEPTH = 100
"""Objects and lists within each other. Tools and schemas of real clients stay below 30."""
MAX_VALUES = 2_000_000
"""Values in a body: a prompt of a million token ids fits twice. In memory a value can take thirty
times its bytes: 64 MiB of `[],` would take gigabytes and half a minute."""
MAX_DIGITS = 999
"""Digits of one number, in a row. Longer ones take square time to read, and no field has a use for them."""
MAX_NAME = 40
"""Characters that a sentence repeats of a name."""

_BOM, _GZIP = b"\xef\xbb\xbf", b"\x1f\x8b"
_QUOTE, _COLON, _COMMA = ord('"'), ord(":"), ord(",")
_MARKS = b'"[]{}:,'
_NO_MARKS = bytes(code for code in range(256) if code not in _MARKS)
_DEEPER = np.zeros(256, np.int32)
_DEEPER[list(b"[{")], _DEEPER[list(b"]}")] = 1, -1
_NESTING = (dict, list)
_PIECE = 1 << 18  # marks looked at together
_DIGITS_ALIKE = bytes.maketrans(b"123456789", b"0" * 9)
_LONG_NUMBER = b"0" * (MAX_DIGITS + 1)


class ClientGoneError(FinbackError):
    """The client left before its request had arrived. There is nobody to answer."""


# ---- bytes


async def read_json(receive: Receive, headers: Headers, limit: int, timeout: float, idle: float = IDLE_S) -> object:
    """The body of a request, parsed. Any JSON value is taken; that it be an object is for the caller to ask.

    limit: bytes. timeout: seconds until the last byte. idle: seconds that may pass without any. Raises RefusedError,
    and ClientGoneError.
    """
    _check_length(headers, limit)
    return parse_json(await _read(receive, limit, timeout, idle))


def _check_length(headers: Headers, limit: int) -> None:
    """Refuse a body by the length it declares, before any of it is read."""
    for value in (value.strip() for name, value in headers if name == b"content-length"):
        if not value.isdigit():
            raise RefusedError("Content-Length is not a whole number; send the number of bytes of the body")
        if len(value) > 18 or int(value) > limit:
            raise _too_large(limit)


def _too_large(limit: int) -> RefusedError:
    text = f"the body is larger than {limit / 2**20:g} MiB, the most this server takes; send less"
    return RefusedError(text, status=413, code="request_too_large")


async def _read(receive: Receive, limit: int, timeout: float, idle: float) -> bytearray:
    """All bytes. Stops at the first that is too many."""
    data, clock = bytearray(), asyncio.get_running_loop().time
    end = clock() + timeout
    try:
        async with asyncio.timeout_at(end) as alarm:
            while True:
                if (now := clock()) >= end:  # a client may be slow and yet never let us wait
                    raise TimeoutError
                alarm.reschedule(min(end, now + idle))
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise ClientGoneError("the client left before its request had arrived")
                data += message.get("body", b"")
                if len(data) > limit:
                    raise _too_large(limit)
                if not message.get("more_body", False):
                    return data
    except TimeoutError:
        text = f"the body did not arrive within {timeout:g} s, or nothing came for {idle:g} s; send it faster"
        raise RefusedError(text, status=408, code="request_timeout") from None


# ---- JSON


def parse_json(data: bytes | bytearray) -> object:
    """JSON as a value. Raises RefusedError; its sentence has a position, and of the body at most a name given twice.

    A byte order mark before it is skipped: Windows shells write one.
    """
    data = data.removeprefix(_BOM)
    depth, names, values = _shape(data)
    if depth > MAX_DEPTH:
        raise RefusedError(f"the body is nested deeper than {MAX_DEPTH} levels; send it flatter")
    if values > MAX_VALUES:
        raise RefusedError(f"the body has more than {MAX_VALUES:,} values; send less at a time", status=413)
    try:
        if _LONG_NUMBER in data.translate(_DIGITS_ALIKE):  # in a number, or harmlessly in a string
            _look_closely(data)
        value: object = msgspec.json.decode(data)
    except ValueError as error:  # of all parsers
        raise _what_is_wrong(data, error) from None
    if names and names != _count_names(value):  # of two that are equal, one is lost
        _look_closely(data)
    return value


def _shape(data: bytes | bytearray) -> tuple[int, int, int]:
    """How deep the objects and lists of a text lie within each other, how many names its objects have, and at least how
    many values it has: one after each comma, and each list or object.

    Found without parsing, so that a parser never goes too far: from the marks outside of strings. In a text that is no
    JSON the numbers hold up to where it stops being some, and no parser goes further. There a backslash stands in
    strings only: without pairs of them, and then without `\\"`, every quote left begins or ends a string.
    """
    bare = data.replace(b"\\\\", b"").replace(b'\\"', b"").translate(None, _NO_MARKS)
    marks = np.frombuffer(bare, np.uint8)
    depth = deepest = names = values = quotes = 0
    for start in range(0, len(marks), _PIECE):
        piece = marks[start : start + _PIECE]
        seen = quotes + np.cumsum(piece == _QUOTE)
        outside = seen % 2 == 0
        steps = _DEEPER[piece] * outside
        depths = depth + np.cumsum(steps)
        names += int(np.count_nonzero((piece == _COLON) & outside))
        values += int(np.count_nonzero((piece == _COMMA) & outside)) + int(np.count_nonzero(steps == 1))
        deepest = max(deepest, int(depths.max()))
        depth, quotes = int(depths[-1]), int(seen[-1])
    return deepest, names, values


def _count_names(value: object) -> int:
    """How many names the objects in a value have."""
    count, left = 0, [value]
    while left:
        each = left.pop()
        if isinstance(each, dict):
            count += len(each)
            left += [inner for inner in each.values() if type(inner) in _NESTING]
        elif isinstance(each, list):
            left += [inner for inner in each if type(inner) in _NESTING]
    return count


def _what_is_wrong(data: bytes | bytearray, error: ValueError) -> RefusedError:
    """The refusal of what the parser did not take."""
    if not data or data.isspace():
        return RefusedError("the body is empty; send JSON")
    if data.startswith(_GZIP):
        return RefusedError("the body is compressed; send JSON as it is")
    try:
        data.decode()
    except UnicodeDecodeError as wrong:
        return RefusedError(f"the body is not UTF-8: byte {wrong.start} is wrong; send JSON in UTF-8")
    try:
        _look_closely(data)
    except json.JSONDecodeError as wrong:
        where = f"line {wrong.lineno}, column {wrong.colno}"
        return RefusedError(f"the body is not JSON: it stops being some at {where}; correct it there")
    except RefusedError as refusal:
        return refusal
    if isinstance(error, msgspec.ValidationError):
        return RefusedError("the body has a number beyond what 64 bits can hold; send a smaller one")
    return RefusedError(
        "the body has invalid Unicode: one half of a surrogate pair, as \\ud800 is; send whole characters"
    )


def _look_closely(data: bytes | bytearray) -> None:
    """Refuse what is well formed and yet not taken. Slower than the parser by far, and so only for a text that is
    suspect; raises JSONDecodeError for what is no JSON, and knows nothing of surrogates."""
    json.loads(
        data.decode(), object_pairs_hook=_unique, parse_int=_short, parse_float=_short, parse_constant=_no_constant
    )


def _unique(pairs: list[tuple[str, object]]) -> None:
    """Names given twice are refused: which of the two counts is answered differently by every parser, and a proxy that
    checks the one while we act on the other is no check."""
    seen: set[str] = set()
    for name, _ in pairs:
        if name in seen:
            cut = name if len(name) <= MAX_NAME else name[:MAX_NAME] + "…"
            raise RefusedError(f"the body has the name {shown(cut)} twice in one object; leave one out")
        seen.add(name)


def _short(number: str) -> None:
    if _LONG_NUMBER in number.encode().translate(_DIGITS_ALIKE):
        raise RefusedError(f"the body has a number of more than {MAX_DIGITS} digits; send a shorter one")


def _no_constant(name: str) -> NoReturn:
    raise RefusedError(f"the body has {name}, which JSON does not know; send a number or null")
