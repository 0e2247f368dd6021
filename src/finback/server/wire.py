"""Bytes of a stream: server-sent events and lines of JSON.

Owns the framing. Refuses to know what the events say.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

COMMENT = b": still working\n\n"
"""A server-sent event that every parser skips."""

_encode = msgspec.json.Encoder().encode


def to_json(value: object) -> bytes:
    """A value as JSON, keys in their order. Lone surrogates, which no UTF-8 has, become U+FFFD."""
    try:
        return _encode(value)
    except UnicodeEncodeError:
        return _encode(_repaired(value))


def _repaired(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, Mapping):
        return {_repaired(k): _repaired(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_repaired(v) for v in value]
    return value


def sse(data: Mapping[str, Any] | str, event: str | None = None) -> bytes:
    """One server-sent event."""
    body = data.encode() if isinstance(data, str) else to_json(data)
    return (b"event: %b\n" % event.encode() if event else b"") + b"data: %b\n\n" % body


def line(data: Mapping[str, Any]) -> bytes:
    """One line of newline-delimited JSON."""
    return to_json(data) + b"\n"
