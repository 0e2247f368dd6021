"""Where clients are installed and run.

Owns the folders: what is installed stays in the cache, by its pin; each run has a home and a working folder of its own,
and reaches nothing but this machine. Refuses a client that fails, hangs, or is refused by the server.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from finback.server.ask import Defaults
from finback.server.service import Settings
from finback.tools.scripted import ScriptedEngine
from tests.clients.model import Model
from tests.server.running import Running, running, tiny_tokenizer

NODE = "node@24.21.0"
NOWHERE = "http://127.0.0.1:9"
PROGRAMS = Path(__file__).parent / "programs"


class ClientError(Exception):
    """A client that did not do what it should."""


class SkippedError(Exception):
    """A client that cannot do anything here, and why."""


@dataclass
class Bench:
    """One run of one client. cache: where things are installed. home, work: its folders. log: what was said."""

    cache: Path
    home: Path
    work: Path
    log: list[str] = field(default_factory=list)
    requests: list[tuple[str, int]] = field(default_factory=list)  # method and path, status
    path: str = "/usr/bin"  # looked at first

    # ---- installing

    def npm(self, pin: str, program: str) -> str:
        """A program of an npm package. From now on what runs finds a Node that is new enough."""
        self.path = str(self._npm(NODE))
        return str(self._npm(pin) / program)

    def _npm(self, pin: str) -> Path:
        """The programs of `name@version`."""
        folder = self.cache / pin.strip("@").replace("/", "_")
        if not (folder / "done").exists():
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
            (folder / "package.json").write_text('{"private": true}\n', encoding="utf-8")
            self._install(["npm", "install", "--no-audit", "--no-fund", "--no-package-lock", pin], folder)
        return folder / "node_modules" / ".bin"

    def pip(self, name: str, *pins: str) -> str:
        """The Python of an environment with `name==version` packages."""
        folder = self.cache / f"python-{name}"
        done = folder / "done"
        if not done.exists() or done.read_text(encoding="utf-8") != "\n".join(pins):
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
            python = folder / "bin" / "python"
            make = [sys.executable, "-m", "venv", str(folder)]
            subprocess.run(make, check=True, capture_output=True)
            quiet = ["--quiet", "--disable-pip-version-check", "--no-input"]
            self._install([str(python), "-m", "pip", "install", *quiet, *pins], folder)
            done.write_text("\n".join(pins), encoding="utf-8")
        return str(folder / "bin" / "python")

    def _install(self, command: Sequence[str], folder: Path) -> None:
        told = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=1800)
        self.log.append(f"$ {' '.join(command)}\n{told.stdout}{told.stderr}")
        if told.returncode:
            raise ClientError(f"{command[0]} does not install {command[-1]}")
        (folder / "done").touch()

    # ---- running

    def clear(self) -> None:
        """Begin again with an empty home and working folder."""
        self.requests.clear()
        for folder in (self.home, self.work):
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)

    @contextlib.contextmanager
    def serving(self, model: Model) -> Iterator[Running]:
        """A server whose model thinks, and says what `model` says. No request may be refused."""
        (self.work / "note.txt").write_text(f"Here is the {model.word}, and no other.\n", encoding="utf-8")
        settings = Settings(Defaults(thinking=True), ping=1.0)
        engine = ScriptedEngine(tiny_tokenizer(), script=model)
        with running(engine, settings=settings, around=self.watched) as server:
            try:
                yield server
            finally:
                self.log += ["requests:", *(f"{status} {request}" for request, status in self.requests)]
                self.log += ["server:", *server.lines]
                for i, asked in enumerate(model.asked):
                    self.log.append(f"prompt {i}:\n{asked.prompt}\nanswer {i}:\n{asked.answer}")
                self.log += [f"beside:\n{prompt}" for prompt in model.beside]

    def watched(self, app: ASGIApp) -> ASGIApp:
        """An application whose requests are noted: method, path, status."""

        async def watched(scope: Scope, receive: Receive, send: Send) -> None:
            async def sent(message: Message) -> None:
                if message["type"] == "http.response.start":
                    self.requests.append((f"{scope['method']} {scope['path']}", message["status"]))
                await send(message)

            await app(scope, receive, sent)

        return watched

    def check_requests(self, *wanted: str, may_fail: Collection[str] = ()) -> None:
        """ClientError unless the wanted requests came, and the server refused none but those that may fail."""
        refused = sorted({f"{r}: {s}" for r, s in self.requests if s >= 400 and r not in may_fail})
        if refused:
            raise ClientError(f"the server refused {', '.join(refused)}")
        missing = sorted(set(wanted) - {request for request, _ in self.requests})
        if missing:
            raise ClientError(f"it never asked {', '.join(missing)}")

    def run(self, command: Sequence[str], more: Mapping[str, str] | None = None, *, seconds: float = 120) -> str:
        """What a command prints, run in the working folder. ClientError if it fails or takes too long."""
        env = {
            "PATH": f"{self.path}:{os.environ['PATH']}",
            "HOME": str(self.home),
            "TMPDIR": str(self.home),
            "LANG": "C.UTF-8",
            "TERM": "dumb",
            "NO_PROXY": "127.0.0.1,localhost",
            "no_proxy": "127.0.0.1,localhost",
            **dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"), NOWHERE),
            **(more or {}),
        }
        out, err = self.home / "stdout.txt", self.home / "stderr.txt"
        with out.open("w") as said, err.open("w") as complained:
            process = subprocess.Popen(
                command,
                cwd=self.work,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=complained,
                start_new_session=True,
            )
            try:
                status = process.wait(seconds)
            except subprocess.TimeoutExpired:
                status = None
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)  # and what it left behind
                process.wait()
        text = out.read_text(encoding="utf-8", errors="replace")
        self.log += [f"$ {' '.join(command)}", text, err.read_text(encoding="utf-8", errors="replace")]
        if status is None:
            raise ClientError(f"it does not end within {seconds:g} seconds")
        if status:
            raise ClientError(f"exit status {status}")
        return text

    def program(self, python: str, name: str, *arguments: str) -> str:
        """What a program of tests/clients/programs prints."""
        return self.run([python, str(PROGRAMS / f"{name}.py"), *arguments])
