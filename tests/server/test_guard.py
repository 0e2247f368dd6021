"""Who may reach the server. Cases I07 and I09: no page of the web, nobody without the key, and nothing told of it."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from finback.errors import RequestError
from finback.server import guard
from finback.server.ask import RefusedError
from finback.server.dialects import openai
from finback.server.guard import Access, Guard, access_to, host_allowed, host_name, is_loopback, read_keys
from finback.server.wire import to_json
from tests.server.asgi import Reply, raw, request

EVIL, LOCAL, LISTED = "https://evil.example", "http://localhost:3000", "https://app.example"
HOST = ("Host", "localhost:8000")
JSON = ("Content-Type", "application/json")
KEY, OTHER = "sk-the-first-key", "sk-the-second-key"
OPEN = Access(origins=frozenset([LISTED]))
CLOSED = Access((KEY.encode(), OTHER.encode()), origins=frozenset([LISTED]))


class Inner:
    """The application within: counts its calls."""

    def __init__(self) -> None:
        self.calls: list[Any] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.calls.append(scope)
        if scope["type"] == "http":
            start = {"type": "http.response.start", "status": 200, "headers": [(b"x-request-id", b"1")]}
            await send(start)
            await send({"type": "http.response.body", "body": b"a", "more_body": True})
            await send({"type": "http.response.body", "body": b"b"})


def body_of(path: str, refusal: RefusedError) -> bytes:
    """Ollama's shape under /api, OpenAI's elsewhere."""
    return to_json({"error": str(refusal)} if path.startswith("/api/") else openai.error_body(refusal))


def ask(
    *headers: tuple[str | bytes, str | bytes],
    method: str = "POST",
    path: str = "/v1/chat/completions",
    access: Access = OPEN,
    body: bytes = b"{}",
) -> Reply:
    """An answer: to a request with Host, and a length where there is a body. Only a status of 200 is the inner one's,
    and every refusal is strict JSON."""
    inner = Inner()
    sent = list(headers)
    if not any(str(name).lower() == "host" for name, _ in headers):
        sent.insert(0, HOST)
    if body and method not in ("GET", "HEAD", "OPTIONS"):
        sent.append(("Content-Length", str(len(body))))
    reply = request(Guard(inner, access, body_of), method, path, sent, body)
    assert len(inner.calls) == (reply.status == 200)
    if reply.status == 200:
        assert reply.body == b"ab"
        assert reply.one("x-request-id") == "1"
    elif reply.status != 204:
        assert reply.one("content-type") == "application/json"
        json.loads(reply.body.decode("utf-8"))
    return reply


def error(reply: Reply) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(reply.body)["error"]
    return found


# ---- Host

HOSTS = [
    # header, name, allowed where nothing is listed
    (b"localhost", "localhost", True),
    (b"localhost:8000", "localhost", True),
    (b"LocalHost:1", "localhost", True),
    (b"localhost.", "localhost", True),
    (b"localhost.:8000", "localhost", True),
    (b"127.0.0.1", "127.0.0.1", True),
    (b"127.0.0.1:65535", "127.0.0.1", True),
    (b"127.255.0.3", "127.255.0.3", True),
    (b"[::1]", "::1", True),
    (b"[::1]:8000", "::1", True),
    (b"[0:0:0:0:0:0:0:1]:8000", "::1", True),
    (b"evil.example:8000", "evil.example", False),
    (b"localhost.evil.example", "localhost.evil.example", False),
    (b"127.0.0.1.evil.example", "127.0.0.1.evil.example", False),
    (b"evil-localhost", "evil-localhost", False),
    (b"notlocalhost", "notlocalhost", False),
    (b"a.localhost", "a.localhost", False),
    (b"2130706433", "2130706433", False),
    (b"127.1", "127.1", False),
    (b"0x7f.0.0.1", "0x7f.0.0.1", False),
    (b"0177.0.0.1", "0177.0.0.1", False),
    (b"128.0.0.1", "128.0.0.1", False),
    (b"0.0.0.0:8000", "0.0.0.0", False),
    (b"[::]", "::", False),
    (b"[::ffff:127.0.0.1]", str(guard.IPv6Address("::ffff:127.0.0.1")), False),
    (b"[FD00:0::5]:8000", "fd00::5", False),
    (b"xn--bcher-kva.example", "xn--bcher-kva.example", False),
    (b"", None, False),
    (b":8000", None, False),
    (b".", None, False),
    (b"localhost..", None, False),
    (b".localhost", None, False),
    (b"localhost:", None, False),
    (b"localhost:x", None, False),
    (b"localhost:65536", None, False),
    (b"localhost:123456", None, False),
    (b"localhost:80:80", None, False),
    (b"localhost:-1", None, False),
    (b"localhost:\xb2", None, False),
    (b"user@localhost", None, False),
    (b"localhost@evil.example", None, False),
    (b"user:pass@localhost", None, False),
    (b"localhost, evil.example", None, False),
    (b"localhost evil.example", None, False),
    (b" localhost", None, False),
    (b"localhost\n", None, False),
    (b"localhost\0", None, False),
    (b"http://localhost", None, False),
    (b"localhost/", None, False),
    (b"localhost#", None, False),
    (b"[::1", None, False),
    (b"::1", None, False),
    (b"[::1]x", None, False),
    (b"[::1%25eth0]", None, False),
    (b"[127.0.0.1]", None, False),
    (b"[:::]", None, False),
    (b"[]", None, False),
    ("löcalhost".encode(), None, False),
    ("\uff4cocalhost".encode(), None, False),
    ("ⓛocalhost".encode(), None, False),
    (b"\xff\xfe", None, False),
    (b"%6cocalhost", None, False),
]


@pytest.mark.parametrize(("header", "name", "allowed"), HOSTS)
def test_hosts(header: bytes, name: str | None, allowed: bool) -> None:
    assert host_name(header) == name
    assert host_allowed(header, Access()) is allowed
    assert host_allowed(header, Access(hosts=frozenset("*"))) is (name is not None)
    assert host_allowed(header, Access(hosts=frozenset(["box.example"]))) is allowed
    if name is not None:
        assert host_allowed(header, Access(hosts=frozenset([name])))
    status = ask(("Host", header), JSON).status
    assert status == (200 if allowed else 400 if name is None else 403)


def test_host_is_asked_for_on_every_path_and_method() -> None:
    for method in ("GET", "HEAD", "POST", "DELETE", "OPTIONS", "BREW"):
        for path in ("/health", "/", "/api/chat"):
            reply = ask(("Host", "evil.example:8000"), JSON, method=method, path=path, access=OPEN)
            assert reply.status == 403
            assert "Host 'evil.example' is not served here" in reply.body.decode()
    assert error(ask(("Host", "evil.example"), JSON))["code"] == "host_not_allowed"
    assert ask(("Host", "evil.example"), ("Origin", LISTED), JSON).one("access-control-allow-origin") is None


def test_host_must_be_there_once() -> None:
    inner = Inner()
    for headers in ([], [HOST, HOST], [HOST, ("Host", "evil.example")]):
        reply = request(Guard(inner, OPEN, body_of), "GET", "/health", headers)
        assert reply.status == 400
        assert "Host is missing, given twice or no name" in error(reply)["message"]
    assert inner.calls == []


@pytest.mark.parametrize(
    ("bind", "keys", "hosts", "foreign", "listed"),
    [
        ("127.0.0.1", (), (), 403, 403),  # the default
        ("localhost", (), (), 403, 403),
        ("::1", (), (), 403, 403),
        ("127.0.0.1", (b"k",), (), 401, 401),  # the key protects
        ("0.0.0.0", (), (), 200, 200),  # its names are unknown
        ("::", (), (), 200, 200),
        ("192.168.1.5", (), (), 200, 200),
        ("0.0.0.0", (), ("Box.Example.",), 403, 200),  # a list counts everywhere
        ("127.0.0.1", (b"k",), ("box.example",), 403, 401),
        ("127.0.0.1", (), ("*",), 200, 200),
    ],
)
def test_when_host_is_checked(
    bind: str, keys: tuple[bytes, ...], hosts: tuple[str, ...], foreign: int, listed: int
) -> None:
    access = access_to(bind, keys, hosts)
    assert ask(("Host", "evil.example"), JSON, access=access).status == foreign
    assert ask(("Host", "box.example:80"), JSON, access=access).status == listed
    assert ask(JSON, access=access).status == (401 if keys else 200)


def test_lists_are_checked_at_the_start() -> None:
    origins = ["HTTPS://App.Example/", "tauri://localhost"]
    access = access_to("127.0.0.1", hosts=["fd00:0::5", "[fd00::6]"], origins=origins)
    assert access.hosts == {"fd00::5", "fd00::6"}
    assert access.origins == {LISTED, "tauri://localhost"}
    for host in ("", "box:8000", "http://box", "bücher.example", "fd00::5]", "a b"):
        with pytest.raises(RequestError, match=r"the host .* is no name"):
            access_to("127.0.0.1", hosts=[host])
    for origin in ("", "null", "app.example", "https://app.example/x", "https://"):
        with pytest.raises(RequestError, match=r"the origin .* is none"):
            access_to("127.0.0.1", origins=[origin])
    assert [is_loopback(name) for name in ("127.0.0.1", "localhost", "::1")] == [True] * 3
    assert [is_loopback(name) for name in ("0.0.0.0", "::", "", "192.168.1.5", "box")] == [False] * 5


# ---- pages


@pytest.mark.parametrize(
    "origin",
    [
        LISTED, LOCAL, "http://localhost", "https://localhost:8443", "http://127.0.0.1:5173", "http://127.8.0.1",
        "http://[::1]:3000",
    ],
)  # fmt: skip
def test_allowed_pages_use_the_server_and_read_the_answer(origin: str) -> None:
    for method in ("GET", "POST", "DELETE"):
        reply = ask(("Origin", origin), ("Sec-Fetch-Site", "cross-site"), JSON, method=method)
        assert reply.status == 200
        assert reply.one("access-control-allow-origin") == origin
        assert reply.one("vary") == "Origin"
        assert reply.one("access-control-expose-headers") == "request-id, x-request-id, retry-after"


@pytest.mark.parametrize(
    "origin",
    [
        EVIL, "null", "", "*", "https://app.example.evil.example", "http://app.example", "https://app.example:444",
        "https://sub.app.example", "http://localhost.evil.example", "http://127.0.0.1.evil.example",
        "http://0.0.0.0:8000",
        "http://localhost@evil.example", "http://localhost/", "http://localhost:8000/x", "localhost", "//localhost",
        "file://", "file://localhost", "tauri://localhost", "app://localhost", "vscode-webview://1a2b",
        "ftp://localhost",
        "http://", f"{LISTED} {LISTED}", f"{LISTED}, {EVIL}", b"http://\xff\xfe", "http://2130706433",
    ],
)  # fmt: skip
def test_other_pages_do_not(origin: str | bytes) -> None:
    for method in ("GET", "HEAD", "POST", "DELETE", "OPTIONS"):
        for more in ([], [("Access-Control-Request-Method", "POST")]):
            reply = ask(("Origin", origin), JSON, *more, method=method)
            assert reply.status == 403
            assert error(reply)["code"] == "origin_not_allowed"
            assert not any(name.startswith("access-control") for name in reply.headers)
    assert ask(("Origin", origin), JSON, ("Authorization", f"Bearer {KEY}"), access=CLOSED).status == 403


def test_two_origins_are_none() -> None:
    assert ask(("Origin", LISTED), ("Origin", LISTED), JSON).status == 403
    assert ask(("Origin", LISTED), ("Origin", EVIL), JSON).status == 403


def test_any_page_where_that_is_configured() -> None:
    anywhere = access_to("127.0.0.1", origins=["*"])
    for origin in (EVIL, "null", LOCAL):
        reply = ask(("Origin", origin), JSON, access=anywhere)
        assert (reply.status, reply.one("access-control-allow-origin"), reply.one("vary")) == (200, "*", None)
    assert ask(("Sec-Fetch-Site", "cross-site"), method="GET", access=anywhere).status == 200
    assert ask(("Host", "evil.example"), ("Origin", EVIL), JSON, access=anywhere).status == 403


@pytest.mark.parametrize(
    ("site", "status"),
    [("cross-site", 403), ("Cross-Site", 403), ("same-site", 200), ("same-origin", 200), ("none", 200)],
)
def test_images_and_links_of_other_pages(site: str, status: int) -> None:
    for method in ("GET", "HEAD", "POST"):
        reply = ask(("Sec-Fetch-Site", site), ("Sec-Fetch-Mode", "no-cors"), JSON, method=method, path="/health")
        assert reply.status == status


def test_programs_are_not_told_of_pages() -> None:
    reply = ask(JSON)
    assert set(reply.headers) == {"x-request-id"}


def test_a_preflight_needs_no_key() -> None:
    reply = ask(
        ("Origin", LISTED),
        ("Access-Control-Request-Method", "POST"),
        ("Access-Control-Request-Headers", "Authorization,content-type, X-Stainless-OS,b@d,,two words,x:y"),
        method="OPTIONS",
        access=CLOSED,
    )
    assert (reply.status, reply.body) == (204, b"")
    assert reply.one("access-control-allow-origin") == LISTED
    assert reply.one("vary") == "Origin"
    assert reply.one("access-control-allow-methods") == "GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS"
    assert reply.one("access-control-allow-headers") == "authorization, content-type, x-stainless-os"
    assert reply.one("access-control-max-age") == "600"
    assert reply.one("access-control-allow-private-network") is None
    assert reply.one("access-control-allow-credentials") is None


def test_odd_preflights() -> None:
    wanted = ("Access-Control-Request-Method", "GET")
    reply = ask(("Origin", LOCAL), wanted, method="OPTIONS")
    assert (reply.status, reply.one("access-control-allow-headers")) == (204, None)
    reply = ask(("Origin", LOCAL), wanted, ("Access-Control-Request-Private-Network", "true"), method="OPTIONS")
    assert reply.one("access-control-allow-private-network") == "true"
    many = ",".join(f"x-{index}" for index in range(500))
    reply = ask(("Origin", LOCAL), wanted, ("Access-Control-Request-Headers", many), method="OPTIONS")
    assert (reply.one("access-control-allow-headers") or "").count(",") == 99
    assert ask(("Origin", LOCAL), wanted, ("Host", "evil.example"), method="OPTIONS").status == 403


def test_options_that_are_no_preflight_go_on() -> None:
    assert ask(method="OPTIONS").status == 200
    assert ask(("Origin", LOCAL), method="OPTIONS").status == 200
    assert ask(("Access-Control-Request-Method", "POST"), method="OPTIONS").status == 200
    assert ask(method="OPTIONS", access=CLOSED).status == 401
    assert ask(("Origin", LOCAL), method="OPTIONS", access=CLOSED).status == 401


# ---- keys


@pytest.mark.parametrize("key", [KEY, OTHER])
@pytest.mark.parametrize(
    "header",
    [
        ("Authorization", "Bearer {}"), ("Authorization", "bearer {}"), ("AUTHORIZATION", "BEARER   {} "),
        ("x-api-key", "{}"), ("X-Api-Key", " {} "), ("api-key", "{}"),
    ],
)  # fmt: skip
def test_a_key_in_any_header(header: tuple[str, str], key: str) -> None:
    assert ask((header[0], header[1].format(key)), JSON, access=CLOSED).status == 200
    assert ask((header[0], header[1].format(key[:-1])), JSON, access=CLOSED).status == 401
    assert ask((header[0], header[1].format(key + "x")), JSON, access=CLOSED).status == 401
    assert ask((header[0], header[1].format(key.upper())), JSON, access=CLOSED).status == 401
    assert ask((header[0], header[1].format("any")), JSON, access=OPEN).status == 200


@pytest.mark.parametrize(
    ("headers", "said"),
    [
        ([], "an API key is missing"),
        ([("Authorization", "")], "an API key is missing"),
        ([("Authorization", KEY)], "an API key is missing"),
        ([("Authorization", f"Basic {KEY}")], "an API key is missing"),
        ([("Cookie", f"key={KEY}")], "an API key is missing"),
        ([("Authorization", "Bearer")], "the API key is wrong"),
        ([("Authorization", "Bearer sk-wrong")], "the API key is wrong"),
        ([("Authorization", f"Bearer {KEY} {OTHER}")], "the API key is wrong"),
        ([("Authorization", f"Bearer {KEY},{OTHER}")], "the API key is wrong"),
        ([("x-api-key", "")], "the API key is wrong"),
        ([("x-api-key", f"Bearer {KEY}")], "the API key is wrong"),
        ([("x-api-key", b"\xff\x00")], "the API key is wrong"),
    ],
)
def test_no_key_no_answer(headers: list[tuple[str, str | bytes]], said: str) -> None:
    reply = ask(*headers, JSON, access=CLOSED)
    assert reply.status == 401
    assert reply.one("www-authenticate") == "Bearer"
    problem = error(reply)
    assert problem.pop("message") == said + problem_end(said)
    assert problem == {"type": "authentication_error", "param": None, "code": "invalid_api_key"}
    assert not any(word in reply.body.decode() for word in (KEY, OTHER, "sk-wrong"))
    assert ask(*headers, method="GET", path="/health", access=CLOSED).status == 200
    for path in ("/health/", "/health/../v1/models", "/healthy", "", "//health"):
        assert ask(*headers, method="GET", path=path, access=CLOSED).status == 401


def problem_end(said: str) -> str:
    other = "send another" if "wrong" in said else "send it"
    return f"; {other} as Authorization: Bearer or x-api-key"


def test_one_right_key_among_several_is_enough() -> None:
    assert ask(("Authorization", "Bearer wrong"), ("x-api-key", KEY), JSON, access=CLOSED).status == 200
    assert ask(("Authorization", f"Bearer {OTHER}"), ("x-api-key", "wrong"), JSON, access=CLOSED).status == 200


def test_every_key_is_compared_every_time(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[tuple[bytes, bytes]] = []
    real = guard.hmac.compare_digest

    def counted(given: bytes, known: bytes) -> bool:
        compared.append((given, known))
        return real(given, known)

    monkeypatch.setattr(guard.hmac, "compare_digest", counted)
    for key in (KEY, OTHER, "wrong"):
        compared.clear()
        ask(("x-api-key", key), JSON, access=CLOSED)
        assert compared == [(key.encode(), known) for known in CLOSED.keys]


def test_keys_are_not_shown() -> None:
    assert KEY not in repr(CLOSED)


def test_a_page_may_read_why_it_was_refused() -> None:
    reply = ask(("Origin", LISTED), JSON, access=CLOSED)
    assert (reply.status, reply.one("access-control-allow-origin"), reply.one("vary")) == (401, LISTED, "Origin")


def test_keys_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    lines = f"\ufeff# of the team\r\n{KEY}\r\n\r\n  {OTHER}\n  # old\nwith#inside\n{KEY}\n"
    path.write_bytes(lines.encode())
    path.chmod(0o600)
    assert read_keys(path, {"FINBACK_API_KEY": "unused"}) == ((KEY.encode(), OTHER.encode(), b"with#inside"), ())
    for mode in (0o640, 0o604, 0o644):
        path.chmod(mode)
        keys, (note,) = read_keys(str(path), {})
        assert len(keys) == 3
        assert note == f"{path} can be read by other users; chmod 600 it"


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "has no key"),
        (b"# sk-secret\n\n \n", "has no key"),
        (b"fine\nsk-secret two\n", "line 2 has a character"),
        ("sk-secret-é".encode(), "line 1 has a character"),
        (b"sk-secret\0", "line 1 has a character"),
        (b"sk-secret" * 200_000, "is larger than 1 MiB"),
    ],
)
def test_files_that_hold_no_keys(tmp_path: Path, content: bytes, said: str) -> None:
    path = tmp_path / "keys"
    path.write_bytes(content)
    with pytest.raises(RequestError) as refused:
        read_keys(path, {})
    assert str(refused.value).startswith(str(path))
    assert said in str(refused.value)
    assert "secret" not in str(refused.value)


def test_files_that_are_none(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "missing"):
        with pytest.raises(RequestError, match="cannot be read") as refused:
            read_keys(path, {"FINBACK_API_KEY": KEY})
        assert str(path) in str(refused.value)


def test_keys_of_the_environment() -> None:
    assert read_keys(None, {}) == ((), ())
    assert read_keys(None, {"FINBACK_API_KEY": f"{KEY}, {OTHER},,{KEY}"}) == ((KEY.encode(), OTHER.encode()), ())
    for empty in ("", " ", ",,"):
        with pytest.raises(RequestError, match="FINBACK_API_KEY has no key; give one, or unset it"):
            read_keys(None, {"FINBACK_API_KEY": empty})
    with pytest.raises(RequestError, match="FINBACK_API_KEY: key 2 has a character") as refused:
        read_keys(None, {"FINBACK_API_KEY": "fine,sk secret"})
    assert "secret" not in str(refused.value)


# ---- types of bodies


@pytest.mark.parametrize(
    "kind",
    [
        "application/json", "Application/JSON", "application/json; charset=utf-8", "application/json;charset=\"UTF-8\"",
        "application/json; charset=utf8", "application/vnd.api+json", "application/json; profile=x",
        " application/json ;",
    ],
)  # fmt: skip
def test_json_is_taken(kind: str) -> None:
    for method in ("POST", "PUT", "PATCH", "DELETE"):
        assert ask(("Content-Type", kind), ("Origin", LOCAL), method=method).status == 200


@pytest.mark.parametrize(
    "kind",
    [
        "text/plain", "text/plain;charset=UTF-8", "application/x-www-form-urlencoded",
        "multipart/form-data; boundary=x", "", "application", "application/jsonp", "text/json", "json",
        "text/plain; application/json", "application/+json",
        "text/plain, application/json", "application/json, text/plain", "application/json; charset=gbk", b"\xff\xfe",
        "application/json; charset=utf-16", "application/json; charset=utf-8; charset=latin-1", "x/y+json",
    ],
)  # fmt: skip
def test_forms_and_other_types_are_not(kind: str | bytes) -> None:
    for method in ("POST", "PUT", "PATCH", "DELETE"):
        for origin in ([], [("Origin", LOCAL)]):
            reply = ask(("Content-Type", kind), *origin, method=method)
            assert (reply.status, error(reply)["code"]) == (415, "unsupported_media_type")
    inner = Inner()
    headers = [HOST, ("Content-Type", kind), ("Transfer-Encoding", "chunked")]
    assert request(Guard(inner, OPEN, body_of), "POST", "/", headers, b"{}").status == 415
    assert inner.calls == []


def test_two_types_are_none() -> None:
    assert ask(JSON, JSON).status == 415
    assert ask(JSON, ("Content-Type", "text/plain")).status == 415


def test_no_type_is_taken_from_programs_only() -> None:
    assert ask().status == 200
    assert ask(("Origin", LOCAL)).status == 415
    assert ask(("Sec-Fetch-Site", "same-origin")).status == 415
    assert ask(("Sec-Fetch-Mode", "no-cors")).status == 415


def test_without_a_body_the_type_does_not_matter() -> None:
    assert ask(("Content-Type", "text/plain"), body=b"").status == 200
    assert ask(("Content-Type", "text/plain"), ("Content-Length", "0"), body=b"").status == 200
    assert ask(("Content-Type", "text/plain"), method="GET").status == 200


@pytest.mark.parametrize("coding", ["gzip", "br", "deflate", "zstd", "identity, gzip", "x"])
def test_compressed_bodies_are_refused(coding: str) -> None:
    reply = ask(JSON, ("Content-Encoding", coding))
    assert (reply.status, error(reply)["message"]) == (415, "Content-Encoding is not taken; send the body uncompressed")
    assert ask(JSON, ("Content-Encoding", "Identity")).status == 200


# ---- the gate


def test_refusals_speak_the_dialect_of_the_path() -> None:
    assert isinstance(json.loads(ask(path="/api/chat", access=CLOSED).body)["error"], str)
    assert isinstance(json.loads(ask(path="/v1/models", access=CLOSED).body)["error"], dict)


def test_the_key_is_asked_for_before_the_type() -> None:
    assert ask(("Content-Type", "text/plain"), access=CLOSED).status == 401
    assert ask(("Content-Type", "text/plain"), ("x-api-key", KEY), access=CLOSED).status == 415


def test_when_to_try_again_is_told() -> None:
    headers = dict(guard.refusal_headers(RefusedError("busy", status=503, retry_after=3), b"{}"))
    assert headers == {b"content-type": b"application/json", b"content-length": b"2", b"retry-after": b"3"}


def test_websockets_are_closed_and_lifespan_passes() -> None:
    inner, sent = Inner(), []

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        return {"type": "websocket.connect"}

    gate = Guard(inner, OPEN, body_of)
    asyncio.run(gate({"type": "websocket", "path": "/", "headers": raw([HOST])}, receive, send))
    assert (sent, inner.calls) == ([{"type": "websocket.close", "code": 1008}], [])
    asyncio.run(gate({"type": "lifespan"}, receive, send))
    assert [scope["type"] for scope in inner.calls] == ["lifespan"]


def test_the_body_is_left_to_the_application() -> None:
    async def echo(scope: Any, receive: Any, send: Any) -> None:
        message = await receive()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": message["body"]})

    reply = request(Guard(echo, OPEN, body_of), "POST", "/", [HOST, JSON, ("Content-Length", "5")], b"[1,2]")
    assert reply.body == b"[1,2]"
