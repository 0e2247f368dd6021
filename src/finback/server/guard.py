"""Who may reach the server: the gate before the application.

Owns the checks that need no body: the name in Host, where a web page comes from, API keys, the type of a body. They
keep pages of the web away from a server on the same machine (case I07): a page may send what it likes, but its browser
says where it comes from, and asks first before it sends JSON. Refuses to read bodies, to show a key, and to run without
one where one was meant. Plain ASGI.
"""

from __future__ import annotations

import hmac
import os
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from ipaddress import AddressValueError, IPv4Address, IPv6Address
from pathlib import Path
from typing import TypeAlias

from finback.errors import RequestError, shorten_path, shown
from finback.server.ask import RefusedError
from finback.server.bodies import Headers, Message, Receive

Scope: TypeAlias = Message
Send: TypeAlias = Callable[[Message], Awaitable[None]]
App: TypeAlias = Callable[[Scope, Receive, Send], Awaitable[None]]
RefusalBody: TypeAlias = Callable[[str, RefusedError], bytes]
"""The JSON of a refusal, in the dialect of a path."""

ANY = "*"
OPEN_PATHS = ("/health",)
KEY_VARIABLE = "FINBACK_API_KEY"
MAX_KEY_FILE = 1 << 20
"""Bytes of a file of keys; a larger one is another file."""
METHODS = "GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS"
EXPOSED = "request-id, x-request-id, retry-after"
PREFLIGHT_S = 600
"""Seconds for which a browser need not ask again."""
MAX_ASKED = 100
"""Names of headers that a preflight may ask for."""

_WITH_BODY = ("POST", "PUT", "PATCH", "DELETE")
_HOST = re.compile(r"(?:\[(?P<v6>[0-9a-f:.]+)\]|(?P<name>[a-z0-9_-]+(?:\.[a-z0-9_-]+)*)\.?)(?::(?P<port>[0-9]{1,5}))?")
_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://[^/?#@\s]+")
_TOKEN = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,64}")
_JSON = re.compile(r"application/(?:[a-z0-9!#$&^_.-]+\+)?json")
_CHARSET = re.compile(r"\s*charset\s*=\s*\"?utf-?8\"?\s*")


@dataclass(frozen=True, slots=True)
class Access:
    """Who may come in.

    keys: API keys; () needs none. hosts: names that Host may have beside this machine's own; "*" is any. origins: where
    pages may come from beside this machine; "*" is anywhere. open_paths: reachable without a key.
    """

    keys: tuple[bytes, ...] = field(default=(), repr=False)
    hosts: frozenset[str] = frozenset()
    origins: frozenset[str] = frozenset()
    open_paths: frozenset[str] = frozenset(OPEN_PATHS)


def access_to(
    bind: str,
    keys: Sequence[bytes] = (),
    hosts: Sequence[str] = (),
    origins: Sequence[str] = (),
    open_paths: Sequence[str] = OPEN_PATHS,
) -> Access:
    """What is let in by a server that listens on the address `bind`. Raises RequestError for a name or an origin that
    no header could have.

    Without a list of hosts, Host is checked where nothing else is: on loopback, without a key. A page whose name is
    made to point to this machine knows no key; and of a server open to the network we do not know the names.
    """
    names = [host if host == ANY else _listed_host(host) for host in hosts]
    if not hosts and (keys or not is_loopback(bind)):
        names.append(ANY)
    pages = [origin.lower().rstrip("/") for origin in origins]
    for page, origin in zip(pages, origins, strict=True):
        if page != ANY and not _ORIGIN.fullmatch(page):
            raise RequestError(f"the origin {shown(origin)} is none; give one such as https://app.example, or *")
    return Access(tuple(keys), frozenset(names), frozenset(pages), frozenset(open_paths))


def _listed_host(host: str) -> str:
    bracketed = f"[{host}]" if host.count(":") > 1 and not host.startswith("[") else host
    name = host_name(f"{bracketed}:1".encode())  # no name, if there is a port already
    if name is None:
        raise RequestError(f"the host {shown(host)} is no name; give one without a port, such as box.example")
    return name


# ---- Host


def host_name(header: bytes) -> str | None:
    """The name in a Host header, without port, brackets and the dot at the end, in lower case; an IPv6 address in its
    shortest form. None where there is none. A number that only some programs take for an address (2130706433, 127.1)
    is a name like any other, and thus foreign."""
    found = _HOST.fullmatch(header.decode("latin-1").lower())
    if found is None or int(found["port"] or 0) > 65535:
        return None
    if found["v6"] is None:
        return found["name"]
    try:
        return str(IPv6Address(found["v6"]))
    except AddressValueError:
        return None


def is_loopback(name: str) -> bool:
    """Whether a name or an address means this machine to everyone. 0.0.0.0 does not: it reaches it, but also stands
    for all its addresses."""
    if name in ("localhost", "::1"):
        return True
    try:
        return IPv4Address(name).is_loopback
    except AddressValueError:
        return False


def host_allowed(host_header: bytes, access: Access) -> bool:
    """Whether a Host header names this machine, or what it was told to answer to."""
    name = host_name(host_header)
    return name is not None and (ANY in access.hosts or is_loopback(name) or name in access.hosts)


def _check_host(headers: Headers, access: Access) -> None:
    """A page whose own name was made to point to this machine still sends that name."""
    found = _values(headers, b"host")
    name = host_name(found[0]) if len(found) == 1 else None
    if name is None:
        raise RefusedError("Host is missing, given twice or no name; send one, such as Host: localhost:8000")
    if not host_allowed(found[0], access):
        text = f"Host {shown(name)} is not served here; use localhost, or start the server with that host allowed"
        raise RefusedError(text, status=403, code="host_not_allowed")


# ---- where pages come from


def origin_allowed(origin: str, access: Access) -> bool:
    """Whether a page may use the server: one that this machine itself serves, on any port, or a listed one. "null",
    which sandboxed frames and local files send, could be anybody, as could an app's own scheme: list that."""
    if ANY in access.origins or origin.lower() in access.origins:
        return True
    scheme, _, rest = origin.partition("://")
    if scheme not in ("http", "https") or not rest.isascii():
        return False
    name = host_name(rest.encode())
    return name is not None and is_loopback(name)


def _check_origin(headers: Headers, access: Access) -> str | None:
    """The origin of the page that asks, or None if it is not one. Browsers leave it out where a page embeds an answer
    as an image or a script; then they say that the page is foreign."""
    found = [value.decode("latin-1") for value in _values(headers, b"origin")]
    for origin in found:
        if len(found) > 1 or not origin_allowed(origin, access):
            text = f"pages of {shown(origin)} may not use this server; start it with that origin allowed"
            raise RefusedError(text, status=403, code="origin_not_allowed")
    sites = [value.strip().lower() for value in _values(headers, b"sec-fetch-site")]
    if not found and b"cross-site" in sites and ANY not in access.origins:
        text = "pages of other sites may not use this server; call it from a program, or from an allowed origin"
        raise RefusedError(text, status=403, code="origin_not_allowed")
    return found[0] if found else None


def _cors(origin: str | None, access: Access) -> list[tuple[bytes, bytes]]:
    """What lets an allowed page read the answer."""
    if origin is None:
        return []
    shared = [(b"access-control-expose-headers", EXPOSED.encode())]
    if ANY in access.origins:
        return [(b"access-control-allow-origin", b"*"), *shared]
    return [(b"access-control-allow-origin", origin.encode("latin-1")), (b"vary", b"Origin"), *shared]


def _preflight(headers: Headers) -> list[tuple[bytes, bytes]]:
    """What an allowed page may send: any method, and the headers that it asks for."""
    asked = b",".join(_values(headers, b"access-control-request-headers")).split(b",")[:MAX_ASKED]
    names = [name for name in (part.strip().lower() for part in asked) if _TOKEN.fullmatch(name)]
    answer = [
        (b"access-control-allow-methods", METHODS.encode()),
        (b"access-control-max-age", str(PREFLIGHT_S).encode()),
    ]
    if names:
        answer.append((b"access-control-allow-headers", b", ".join(names)))
    if b"true" in _values(headers, b"access-control-request-private-network"):
        answer.append((b"access-control-allow-private-network", b"true"))
    return answer


# ---- keys


def read_keys(path: str | os.PathLike[str] | None, env: Mapping[str, str]) -> tuple[tuple[bytes, ...], tuple[str, ...]]:
    """The keys of a file, one a line with comments after # at its start, or else of FINBACK_API_KEY, separated by
    commas; and what to tell the operator. Neither is no key. Raises RequestError, naming the place.

    A variable that is set and empty is refused: it was meant to protect.
    """
    if path is not None:
        return _from_file(Path(path))
    if KEY_VARIABLE not in env:
        return (), ()
    named = [(f"{KEY_VARIABLE}: key {index}", key) for index, key in enumerate(env[KEY_VARIABLE].split(","), 1)]
    return _checked(named, f"{KEY_VARIABLE} has no key; give one, or unset it"), ()


def _from_file(path: Path) -> tuple[tuple[bytes, ...], tuple[str, ...]]:
    place = shorten_path(str(path))
    try:
        with path.open("rb") as file:
            mode, data = os.fstat(file.fileno()).st_mode, file.read(MAX_KEY_FILE + 1)
    except OSError as error:
        raise RequestError(f"{place} cannot be read ({error.strerror}); give a file of API keys") from None
    if len(data) > MAX_KEY_FILE:
        raise RequestError(f"{place} is larger than 1 MiB; give a file of API keys, one a line")
    lines = data.removeprefix(b"\xef\xbb\xbf").decode("latin-1").split("\n")
    named = [(f"{place}: line {index}", line) for index, line in enumerate(lines, 1) if line.strip()[:1] != "#"]
    keys = _checked(named, f"{place} has no key; write one a line")
    others = mode & 0o044
    return keys, (f"{place} can be read by other users; chmod 600 it",) if others else ()


def _checked(named: Sequence[tuple[str, str]], none: str) -> tuple[bytes, ...]:
    """Keys without repetitions. named: each with its place. none: what to say if there is none."""
    keys: dict[bytes, None] = {}
    for place, key in named:
        key = key.strip(" \t\r")
        if not all("!" <= character <= "~" for character in key):
            raise RequestError(f"{place} has a character that no header can carry; use ASCII without spaces")
        if key:
            keys[key.encode()] = None
    if not keys:
        raise RequestError(none)
    return tuple(keys)


def _check_key(headers: Headers, access: Access) -> None:
    """One of the keys must be there, in any of the headers that clients use. Every key is compared in full, so that the
    time says nothing."""
    given = _values(headers, b"x-api-key") + _values(headers, b"api-key")
    for value in _values(headers, b"authorization"):
        scheme, _, key = value.strip().partition(b" ")
        if scheme.lower() == b"bearer":
            given.append(key)
    found = False
    for key in given:
        for known in access.keys:
            found |= hmac.compare_digest(key.strip(), known)
    if not found:
        text = "the API key is wrong; send another" if given else "an API key is missing; send it"
        raise RefusedError(f"{text} as Authorization: Bearer or x-api-key", status=401, code="invalid_api_key")


# ---- types of bodies


def _check_type(headers: Headers, method: str) -> None:
    """A body must say that it is JSON: a page can send a form or plain text without asking first, and JSON it cannot.

    A few programs send no type. A browser leaves it out only with an Origin, or with headers of Sec-Fetch; without
    them it is none, and the body is taken.
    """
    if method not in _WITH_BODY or not _has_body(headers):
        return
    for value in _values(headers, b"content-encoding"):
        if value.strip().lower() not in (b"", b"identity"):
            raise _unsupported("Content-Encoding is not taken; send the body uncompressed")
    found = [value.decode("latin-1").lower() for value in _values(headers, b"content-type")]
    if not found:
        if any(name == b"origin" or name.startswith(b"sec-fetch-") for name, _ in headers):
            raise _unsupported("Content-Type is missing; send application/json")
        return
    kind, *parameters = found[0].split(";")
    if len(found) > 1 or not _JSON.fullmatch(kind.strip()):
        raise _unsupported(f"Content-Type is {shown(kind.strip())}; send application/json (curl -H, not just -d)")
    for parameter in parameters:
        if parameter.strip().startswith("charset") and not _CHARSET.fullmatch(parameter):
            raise _unsupported("the charset in Content-Type is not taken; send JSON in UTF-8")


def _has_body(headers: Headers) -> bool:
    lengths = _values(headers, b"content-length")
    return any(value.strip() != b"0" for value in lengths) or bool(_values(headers, b"transfer-encoding"))


def _unsupported(text: str) -> RefusedError:
    return RefusedError(text, status=415, code="unsupported_media_type")


def _values(headers: Headers, name: bytes) -> list[bytes]:
    return [value for each, value in headers if each == name]


# ---- the gate


class Guard:
    """An application behind the checks. WebSockets are closed: nothing here speaks them, and browsers let any page open
    one."""

    def __init__(self, app: App, access: Access, refusal_body: RefusalBody) -> None:
        self._app, self._access, self._refusal_body = app, access, refusal_body

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One connection of ASGI."""
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
        elif scope["type"] != "http":
            await self._app(scope, receive, send)
        else:
            await self._http(scope, receive, send)

    async def _http(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers, access = list(scope["headers"]), self._access
        cors: list[tuple[bytes, bytes]] = []
        try:
            _check_host(headers, access)
            origin = _check_origin(headers, access)
            cors = _cors(origin, access)
            if origin and scope["method"] == "OPTIONS" and _values(headers, b"access-control-request-method"):
                await _answer(send, 204, cors + _preflight(headers))  # browsers send no key with it
                return
            if access.keys and scope["path"] not in access.open_paths:
                _check_key(headers, access)
            _check_type(headers, scope["method"])
        except RefusedError as refusal:
            body = self._refusal_body(scope["path"], refusal)
            await _answer(send, refusal.status, cors + refusal_headers(refusal, body), body)
            return
        await self._app(scope, receive, _with_headers(send, cors) if cors else send)


def refusal_headers(refusal: RefusedError, body: bytes) -> list[tuple[bytes, bytes]]:
    """The headers of a refusal with that body."""
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    if refusal.status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    if refusal.retry_after is not None:
        headers.append((b"retry-after", str(refusal.retry_after).encode()))
    return headers


async def _answer(send: Send, status: int, headers: list[tuple[bytes, bytes]], body: bytes = b"") -> None:
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def _with_headers(send: Send, more: list[tuple[bytes, bytes]]) -> Send:
    """A `send` whose answers have more headers."""

    async def send_more(message: Message) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message.get("headers", ()), *more]}
        await send(message)

    return send_more
