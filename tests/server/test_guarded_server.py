"""The gate before a running server. Cases I07, I09: web pages do not come in, whatever they try."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import httpx2
import pytest

from finback.server.guard import Access
from tests.server.running import Running, chat, running

CHAT = "/v1/chat/completions"


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with running() as found:
        yield found


@pytest.fixture(scope="module")
def locked() -> Iterator[Running]:
    keys, origins = (b"first-key", b"second-key"), frozenset({"https://my.app"})
    access = Access(keys, origins=origins, open_paths=frozenset({"/health"}))
    with running(access=access) as found:
        yield found


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),
        ({"host": "localhost:1"}, 200),
        ({"host": "[::1]:8000"}, 200),
        ({"host": "evil.example:8000"}, 403),
        ({"host": "127.0.0.1.evil.example"}, 403),
        ({"origin": "https://evil.example"}, 403),
        ({"origin": "null"}, 403),
        ({"origin": "http://localhost.evil.example"}, 403),
        ({"origin": "http://localhost:3000"}, 200),
        ({"origin": "http://127.0.0.1:8080"}, 200),
        ({"origin": "file://"}, 403),
        ({"sec-fetch-site": "cross-site"}, 403),
        ({"sec-fetch-site": "same-origin"}, 200),
    ],
)
def test_hosts_and_origins(server: Running, headers: dict[str, str], status: int) -> None:
    for answer in (server.get("/health", headers=headers), server.post(CHAT, chat(), headers=headers)):
        assert answer.status_code == status
        allowed = answer.headers.get("access-control-allow-origin")
        assert allowed == (headers.get("origin") if status == 200 else None)
        if status != 200:
            assert answer.json()["error"]["code"] in ("host_not_allowed", "origin_not_allowed")


def test_a_request_has_one_host(server: Running) -> None:
    for hosts in (b"", b"Host: localhost\r\nHost: evil.example\r\n"):
        with socket.create_connection(("127.0.0.1", int(server.url.rpartition(":")[2])), timeout=10) as sock:
            sock.sendall(b"GET /health HTTP/1.1\r\n" + hosts + b"\r\n")
            assert sock.recv(1000).startswith(b"HTTP/1.1 400")


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x"])
def test_forms_cannot_post(server: Running, kind: str) -> None:
    before = server.engine.runs
    answer = server.client.post(server.url + CHAT, content=b'{"messages": []}', headers={"content-type": kind})
    assert answer.status_code == 415
    assert server.engine.runs == before


def test_a_program_may_leave_the_kind_out_and_a_page_may_not(server: Running) -> None:
    def post(**headers: str) -> int:
        body = b'{"content": "x"}'
        request = server.client.build_request("POST", server.url + "/tokenize", content=body, headers=headers)
        request.headers.pop("content-type", None)
        return server.client.send(request).status_code

    assert post() == 200
    assert post(origin="http://localhost:1") == 415
    assert server.client.post(server.url + "/unload", headers={"content-length": "0"}).status_code == 200


def preflight(server: Running, origin: str) -> httpx2.Response:
    headers = {"origin": origin, "access-control-request-method": "POST"}
    headers["access-control-request-headers"] = "authorization, content-type, x-stainless-os"
    return server.client.options(server.url + CHAT, headers=headers)


def test_preflights(server: Running, locked: Running) -> None:
    for running_server, origin in ((server, "http://localhost:3000"), (locked, "https://my.app")):
        answer = preflight(running_server, origin)
        assert answer.status_code == 204
        assert answer.headers["access-control-allow-origin"] == origin
        assert answer.headers["access-control-allow-headers"] == "authorization, content-type, x-stainless-os"
        assert "POST" in answer.headers["access-control-allow-methods"]
        assert answer.headers["vary"] == "Origin"
    refused = preflight(server, "https://evil.example")
    assert (refused.status_code, refused.headers.get("access-control-allow-origin")) == (403, None)


def test_any_origin_has_to_be_asked_for() -> None:
    with running(access=Access(origins=frozenset({"*"}))) as server:
        answer = server.get("/health", headers={"origin": "https://any.example"})
        assert (answer.status_code, answer.headers["access-control-allow-origin"]) == (200, "*")


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 401),
        ({"authorization": "Bearer first-key"}, 200),
        ({"authorization": "bearer second-key"}, 200),
        ({"x-api-key": "second-key"}, 200),
        ({"api-key": "first-key"}, 200),
        ({"authorization": "Bearer"}, 401),
        ({"authorization": "Basic first-key"}, 401),
        ({"authorization": "Bearer first-key2"}, 401),
        ({"authorization": "Bearer first"}, 401),
        ({"x-api-key": "first-key,second-key"}, 401),
        ({"authorization": "Bearer first-key", "origin": "https://evil.example"}, 403),
    ],
)
def test_keys(locked: Running, headers: dict[str, str], status: int) -> None:
    answer = locked.post(CHAT, chat(), headers=headers)
    assert answer.status_code == status
    assert "first" not in answer.text
    if status == 401:
        assert answer.headers["www-authenticate"] == "Bearer"
        assert answer.json()["error"]["code"] == "invalid_api_key"
        assert locked.post("/v1/messages", {}, headers=headers).json()["error"]["type"] == "authentication_error"
        assert list(locked.post("/api/chat", {}, headers=headers).json()) == ["error"]
    assert locked.get("/health").status_code == 200
    assert locked.get("/v1/models").status_code == 401
    assert not any("first-key" in line for line in locked.lines)
