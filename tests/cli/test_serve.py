"""`finback serve` as a process: what it prints, how it ends, and what a kill loses."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import httpx2
import pytest

HI = {"messages": [{"role": "user", "content": "Tell me a story about a fox."}], "thinking": {"type": "disabled"}}


class Process:
    """A server process, and what it has printed."""

    def __init__(self, *options: str, **env: str) -> None:
        command = [sys.executable, "-u", "-m", "finback.cli.main", "serve", "--port", "0", *options]
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ | env
        )
        self.out: list[str] = []
        self.lines: list[str] = []
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        pipes = ((self.process.stdout, self.out), (self.process.stderr, self.lines))
        self._readers = [threading.Thread(target=self._follow, args=pair, daemon=True) for pair in pipes]
        for reader in self._readers:
            reader.start()
        self.url = ""

    @staticmethod
    def _follow(pipe: IO[str], into: list[str]) -> None:
        with pipe:
            into.extend(line.rstrip() for line in pipe)

    def wait(self) -> Process:
        for _ in range(600):
            for line in list(self.out):
                if line.startswith("finback serves "):
                    self.url = line.rpartition(" at ")[2].strip()
            if self.url:
                try:
                    httpx2.get(self.url + "/health")
                    return self
                except httpx2.TransportError:
                    pass
            assert self.process.poll() is None, self.lines
            time.sleep(0.05)
        raise AssertionError(self.out + self.lines)

    def end(self, how: signal.Signals | None = signal.SIGTERM) -> int:
        """Its exit status, when it has ended, and everything it printed is here. None: it ends by itself."""
        if how is not None:
            self.process.send_signal(how)
        status = self.process.wait(60)
        for reader in self._readers:
            reader.join(30)
        return status


@contextmanager
def serving(*options: str, **env: str) -> Iterator[Process]:
    process = Process(*options, **env)
    try:
        yield process.wait()
    finally:
        process.end(signal.SIGKILL)


def test_what_it_prints_and_how_it_ends() -> None:
    with serving("--name", "fox") as server:
        answer = httpx2.post(server.url + "/v1/chat/completions", json=HI | {"max_tokens": 8}, timeout=60)
        assert answer.json()["model"] == "fox"
        assert server.end() == 0
        banner = "".join(server.out)
        for said in ("finback serves fox at", "ANTHROPIC_BASE_URL=http", "model_providers.finback", "/v1", "weights"):
            assert said in banner
        assert any("/v1/chat/completions prompt" in line for line in server.lines)
        assert not any("Traceback" in line for line in server.lines)


def test_sigterm_lets_an_answer_finish() -> None:
    with serving() as server:
        body = HI | {"max_tokens": 300, "stream": True, "min_tokens": 300}
        with httpx2.stream("POST", server.url + "/v1/chat/completions", json=body, timeout=60) as answer:
            pieces = answer.iter_text()
            text = next(pieces)
            server.process.send_signal(signal.SIGTERM)
            text += "".join(pieces)
        assert text.endswith("data: [DONE]\n\n")
        assert '"finish_reason":"length"' in text
        assert server.end(None) == 0


def test_a_restart_goes_on_where_it_was(tmp_path: Path) -> None:
    asked = {"role": "user", "content": "fox " * 1500}
    options = {"max_tokens": 4, "thinking": {"type": "disabled"}}
    for how in (signal.SIGTERM, signal.SIGKILL):
        folder = str(tmp_path / how.name)
        with serving("--kv-dir", folder) as server:
            first = httpx2.post(server.url + "/v1/chat/completions", json={"messages": [asked]} | options, timeout=60)
            answer = first.json()["choices"][0]["message"]
            for _ in range(200):
                if httpx2.get(server.url + "/prefix-cache").json()["disk"]["written"] or how is signal.SIGTERM:
                    break
                time.sleep(0.05)
            server.end(how)
        with serving("--kv-dir", folder) as server:
            body = {"messages": [asked, answer, {"role": "user", "content": "And?"}]} | options
            usage = httpx2.post(server.url + "/v1/chat/completions", json=body, timeout=60).json()["usage"]
            assert usage["prompt_tokens"] - usage["prompt_tokens_details"]["cached_tokens"] < 40


def test_keys_are_needed_beyond_this_machine(tmp_path: Path) -> None:
    def ends(*options: str) -> str:
        process = Process(*options)
        assert process.end(None) == 2
        return "".join(process.lines)

    assert "set FINBACK_API_KEY or give --api-key-file" in ends("--host", "0.0.0.0")
    assert "No such file" in ends("--api-key-file", str(tmp_path / "none"))
    assert "cannot be listened at" in ends("--host", "203.0.113.1", "--no-key")
    with serving("--host", "0.0.0.0", FINBACK_API_KEY="my-secret") as server:
        url = server.url.replace("0.0.0.0", "127.0.0.1")
        assert httpx2.get(url + "/v1/models").status_code == 401
        assert httpx2.get(url + "/v1/models", headers={"x-api-key": "my-secret"}).status_code == 200
        assert "my-secret" not in "".join(server.out + server.lines)


def test_a_trace_holds_everything_and_is_ones_own(tmp_path: Path) -> None:
    folder = tmp_path / "trace"
    with serving("--trace", str(folder)) as server:
        httpx2.post(server.url + "/v1/chat/completions", json=HI | {"max_tokens": 5}, timeout=60)
    (file,) = folder.iterdir()
    assert file.stat().st_mode & 0o777 == 0o600
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert "a story about a fox" in lines[0]["ask"]
    assert [line["event"] for line in lines[1:]][-1] == "over"


def test_two_at_one_port() -> None:
    with serving() as server:
        port = server.url.rpartition(":")[2]
        other = Process("--port", port)
        assert other.end(None) == 2
        assert f"127.0.0.1:{port} cannot be listened at (Address already in use)" in "".join(other.lines)


@pytest.mark.parametrize("options", [("--body-limit", "many"), ("--effort", "banana"), ("-m", "nothing.gguf")])
def test_options_that_make_no_sense(options: tuple[str, str]) -> None:
    process = Process(*options)
    assert process.end(None) == 2
    assert len(process.lines) <= 4
    assert not any("Traceback" in line for line in process.lines)


def test_every_command_has_the_same_defaults() -> None:
    """Case G03: with 1 GiB of addresses and nothing but a model all of them start, with the same context and budget."""
    limited = "import resource; resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30)); import sys; "
    limited += "from finback.cli.main import main; sys.argv = ['finback', *sys.argv[1:]]; main()"

    def said(*args: str, given: str = "") -> str:
        done = subprocess.run(
            [sys.executable, "-c", limited, *args], input=given, capture_output=True, text=True, timeout=60, check=True
        )
        return done.stdout + done.stderr

    ran = said("run", "-p", "Once", "--max-tokens", "2", "--stats")
    talked = said("chat", given="/stats\n/quit\n")
    assert said("bench", "prefill", "--sizes", "16")
    with serving() as server:
        banner = "\n".join(server.out)
    assert "of 32768" in talked
    assert "context 32768 tokens" in banner
    budgets = {re.search(pattern, text)[1] for pattern, text in ((r"of (\d+);", ran), (r"budget (\d+)", talked))}  # type: ignore[index]
    assert len(budgets) == 1
