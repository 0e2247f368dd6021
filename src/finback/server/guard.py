"""Who may reach the server.

Owns the checks before any route: names of hosts, origins of web pages, kinds of content, keys. A page on the web must
not reach a server without a key by rebinding a name, by a form, or by an image. Refuses in the dialect of the path, and
never says a key.
"""

from __future__ import annotations

import hmac
import ipaddress
import os
import re
import stat
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from finback.errors import RequestError
from finback.server.ask import RefusedError

ENVIRONMENT = "FINBACK_API_KEY"
_AUTHORITY = re.compile(rb"(?P<host>\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(?::(?P<port>[0-9]{1,5}))?")
_ORIGIN = re.compile(rb"https?://(?P<authority>[^/?#@\s]+)")
_TOKENS = re.compile(rb"[A-Za-z0-9!#$%&'*+.^_`|~-]+(?:\s*,\s*[A-Za-z0-9!#$%&'*+.^_`|~-]+)*")
_WRITING = ("POST", "PUT", "PATCH", "DELETE")
_EXPOSED = b"x-request-id, retry-after"


@dataclass(frozen=True, slots=True)
class Access:
    """Who may. keys: one of them is needed; () is none. hosts: names beside those of this machine; "*" is any.
    origins: of web pages; "*" is any. open_paths: reached without a key."""

    keys: tuple[bytes, ...] = ()
    hosts: frozenset[str] = frozenset()
    origins: frozenset[str] = frozenset()
    open_paths: frozenset[str] = frozenset()


def read_keys(path: str | None, environment: Mapping[str, str]) -> tuple[tuple[bytes, ...], list[str]]:
    """The keys of a file, one a line, and of the environment, with commas between; and what is to be said of them.
    RequestError if the file cannot be read or holds none."""
    notes: list[str] = []
    found = [key.strip() for key in environment.get(ENVIRONMENT, "").split(",") if key.strip()]
    if path is not None:
        try:
            lines = Path(path).read_text(encoding="utf-8").splitlines()
            mode = os.stat(path).st_mode
        except (OSError, UnicodeDecodeError) as error:
            why = error.strerror if isinstance(error, OSError) else "is not UTF-8"
            raise RequestError(f"--api-key-file {path}: {why}; give a text file, one key a line") from None
        keys = [line.strip() for line in lines if line.strip() and not line.lstrip().startswith("#")]
        if not keys:
            raise RequestError(f"--api-key-file {path} holds no key; write one a line")
        if mode & (stat.S_IRGRP | stat.S_IROTH):
            notes.append(f"{path} can be read by other users of this machine; chmod 600 keeps its keys to yourself")
        found += keys
    return tuple(dict.fromkeys(key.encode() for key in found)), notes


def is_own(host: bytes, allowed: frozenset[str]) -> bool:
    """Whether a Host names this machine, or is allowed: with any port, in any case."""
    match = _AUTHORITY.fullmatch(host)
    if match is None or int(match["port"] or 0) > 65535:
        return False
    name = match["host"].decode("ascii").lower().removesuffix(".").strip("[]")
    if "*" in allowed or name == "localhost" or name in allowed:
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


class Guard:
    """The application behind its checks. refusal_body: the JSON of a refusal at a path."""

    def __init__(
        self, app: ASGIApp, access: Access, refusal_body: Callable[[str, RefusedError], bytes]
    ) -> None:
        self._app, self._access, self._refusal_body = app, access, refusal_body

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = _Headers(scope["headers"])
        origin = headers.get(b"origin")
        try:
            self._check_host(headers)
            self._check_origin(headers, origin)
            if scope["method"] == "OPTIONS" and headers.get(b"access-control-request-method") is not None:
                await _say(send, 204, self._preflight(headers, origin))
                return
            self._check_key(scope["path"], headers)
            _check_content(scope["method"], headers)
        except RefusedError as refusal:
            more = [(b"www-authenticate", b"Bearer")] if refusal.status == 401 else []
            body = self._refusal_body(scope["path"], refusal)
            more += [(b"content-type", b"application/json"), *self._shared(origin)]
            await _say(send, refusal.status, more, body)
            return
        await self._app(scope, receive, self._sharing(send, origin) if origin is not None else send)

    # ---- checks

    def _check_host(self, headers: _Headers) -> None:
        hosts = headers.all(b"host")
        if len(hosts) != 1:
            raise RefusedError("a request has one Host header", status=400)
        if not is_own(hosts[0], self._access.hosts):
            raise RefusedError(
                "this Host is not that of the server; --allow-host names others", status=403, code="host_not_allowed"
            )

    def _check_origin(self, headers: _Headers, origin: bytes | None) -> None:
        """Pages of this machine may ask, and those that are allowed."""
        if origin is None:
            if headers.get(b"sec-fetch-site") == b"cross-site":
                raise self._foreign()
            return
        if not self._may_ask(origin):
            raise self._foreign()

    def _may_ask(self, origin: bytes) -> bool:
        if "*" in self._access.origins or origin.decode("latin-1") in self._access.origins:
            return True
        match = _ORIGIN.fullmatch(origin)
        return match is not None and is_own(match["authority"], frozenset())

    @staticmethod
    def _foreign() -> RefusedError:
        return RefusedError(
            "web pages of this origin may not ask here; --allow-origin names those that may",
            status=403,
            code="origin_not_allowed",
        )

    def _check_key(self, path: str, headers: _Headers) -> None:
        """Every key is compared, in the same time, whatever is sent."""
        if not self._access.keys or path in self._access.open_paths:
            return
        sent = headers.get(b"x-api-key") or headers.get(b"api-key")
        scheme, _, token = (headers.get(b"authorization") or b"").partition(b" ")
        if scheme.lower() == b"bearer":
            sent = token.strip() or sent
        right = False
        for key in self._access.keys:
            right |= hmac.compare_digest(key, sent or b"")
        if not right:
            what = "the API key is wrong" if sent else "an API key is needed"
            raise RefusedError(
                f"{what}; send it as Authorization: Bearer or x-api-key", status=401, code="invalid_api_key"
            )

    # ---- sharing with web pages (CORS)

    def _shared(self, origin: bytes | None) -> list[tuple[bytes, bytes]]:
        if origin is None or not self._may_ask(origin):
            return []
        return [
            (b"access-control-allow-origin", origin),
            (b"access-control-expose-headers", _EXPOSED),
            (b"vary", b"Origin"),
        ]

    def _preflight(self, headers: _Headers, origin: bytes | None) -> list[tuple[bytes, bytes]]:
        asked = headers.get(b"access-control-request-headers") or b""
        allowed = asked if _TOKENS.fullmatch(asked) else b"authorization, content-type"
        return [
            *self._shared(origin),
            (b"access-control-allow-methods", b"GET, POST, DELETE, OPTIONS"),
            (b"access-control-allow-headers", allowed),
            (b"access-control-max-age", b"600"),
        ]

    def _sharing(self, send: Send, origin: bytes) -> Send:
        more = self._shared(origin)

        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message.get("headers", ()), *more]}
            await send(message)

        return sending


def _check_content(method: str, headers: _Headers) -> None:
    """A body is JSON and says so: a form of a web page cannot. A client that is no browser may say nothing."""
    if method not in _WRITING:
        return
    if (headers.get(b"content-encoding") or b"identity").lower() != b"identity":
        raise RefusedError("the body is packed; send it as it is", status=415)
    kind = headers.get(b"content-type")
    has_body = (headers.get(b"content-length") or b"0") != b"0" or headers.get(b"transfer-encoding") is not None
    if kind is None:
        if has_body and (headers.get(b"origin") or headers.get(b"sec-fetch-site")):
            raise RefusedError("the content type is missing; send application/json", status=415)
        return
    name, _, parameters = kind.lower().partition(b";")
    if name.strip() != b"application/json" and not name.strip().endswith(b"+json"):
        raise RefusedError("the content type is not JSON; send application/json", status=415)
    charset = parameters.replace(b" ", b"").replace(b'"', b"")
    if b"charset=" in charset and charset.partition(b"charset=")[2].partition(b";")[0] not in (b"utf-8", b"utf8"):
        raise RefusedError("the charset is not UTF-8; send UTF-8", status=415)


class _Headers:
    """Headers of a request, whose names are lower case."""

    def __init__(self, raw: Any) -> None:
        self._raw: list[tuple[bytes, bytes]] = list(raw)

    def all(self, name: bytes) -> list[bytes]:
        return [value for key, value in self._raw if key == name]

    def get(self, name: bytes) -> bytes | None:
        return next((value for key, value in self._raw if key == name), None)


async def _say(send: Send, status: int, headers: list[tuple[bytes, bytes]], body: bytes = b"") -> None:
    sized = [*headers, (b"content-length", str(len(body)).encode())] if status != 204 else headers
    await send({"type": "http.response.start", "status": status, "headers": sized})
    await send({"type": "http.response.body", "body": body})
