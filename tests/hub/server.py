"""A hub of one's own: the answers of the Hugging Face hub that downloads need, and every way to give them wrongly."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@dataclass
class Hub:
    """Files of one repository, and what goes wrong with each: a list of faults, one for each request."""

    files: dict[str, bytes]
    repo: str = "org/name"
    faults: dict[str, list[str]] = field(default_factory=dict)
    small: frozenset[str] = frozenset({"config.json"})  # in git itself, with git's hash
    unhashed: frozenset[str] = frozenset()
    listings: list[object] = field(default_factory=list)  # of /api/models, before the right one: a status, or a body
    commit: str = COMMIT
    requests: list[tuple[str, str | None]] = field(default_factory=list)
    url: str = ""

    def info(self) -> dict[str, object]:
        """What /api/models says."""
        siblings = []
        for name, data in self.files.items():
            entry: dict[str, object] = {"rfilename": name, "size": len(data)}
            if name in self.small:
                entry["blobId"] = hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()
            elif name not in self.unhashed:
                entry["blobId"] = "0" * 40
                entry["lfs"] = {"sha256": hashlib.sha256(data).hexdigest(), "size": len(data), "pointerSize": 130}
            siblings.append(entry)
        known = {"id": self.repo, "modelId": self.repo, "sha": self.commit, "private": False, "tags": []}
        return known | {"siblings": siblings}


class _Handler(BaseHTTPRequestHandler):
    hub: Hub
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        hub, path = self.hub, self.path.partition("?")[0]
        hub.requests.append((path, self.headers.get("Range")))
        if path.startswith(f"/api/models/{hub.repo}"):
            answer = hub.listings.pop(0) if hub.listings else hub.info()
            if isinstance(answer, int):
                self.plain(answer, b"", Retry_After="0")
            else:
                body = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
                self.plain(200, body, "application/json")
            return
        prefix = f"/{hub.repo}/resolve/{hub.commit}/"
        name = path.removeprefix(prefix)
        if not path.startswith(prefix) or name not in hub.files:
            self.plain(404, b"", error="EntryNotFound" if hub.repo in path else "RepoNotFound")
        else:
            self.file(hub.files[name], (hub.faults.get(name) or [""]).pop(0))

    def plain(self, status: int, body: bytes, kind: str = "text/plain", error: str = "", **headers: str) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Content-Type", kind)
        if error:
            self.send_header("X-Error-Code", error)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(body)

    def file(self, data: bytes, fault: str) -> None:
        asked = self.headers.get("Range")
        start = int(asked.removeprefix("bytes=").rstrip("-")) if asked else 0
        if fault == "html":
            self.plain(200, b"<html>log in</html>", "text/html; charset=utf-8")
            return
        if fault in ("404", "429", "503"):
            self.plain(int(fault), b"", Retry_After="0")
            return
        if fault == "flip":
            data = data[:-1] + bytes([data[-1] ^ 1])
        if fault == "ignore range":
            start = 0
        body = data[start:]
        self.send_response(206 if start else 200)
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(data) - 1}/{len(data)}")
        self.send_header("Content-Length", str(len(body) + (7 if fault == "length" else 0)))
        self.send_header("Content-Type", "application/octet-stream")
        self.end_headers()
        if fault.startswith("drop"):
            body = body[: int(len(data) * 0.3)]
            self.close_connection = True
        self.wfile.write(body)


@contextmanager
def serving(hub: Hub) -> Iterator[Hub]:
    """The hub on a port of this machine."""
    handler = type("Handler", (_Handler,), {"hub": hub})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    hub.url = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
