"""A server with a scripted engine, on a port of this machine, and what tests ask it with."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import httpx2

from finback.engine.engine import Engine
from finback.engine.load import open_tokenizer
from finback.server.account import Account
from finback.server.app import application
from finback.server.ask import Defaults
from finback.server.guard import Access, Guard
from finback.server.host import listen, server
from finback.server.models import describe
from finback.server.served import Names, Served
from finback.server.service import Service, Settings
from finback.server.store import Store
from finback.server.tongues import error_of
from finback.server.wire import to_json
from finback.text.tokenizer import Tokenizer
from finback.tools.scripted import ScriptedEngine
from finback.weights.checkpoint import open_checkpoint

CALL4 = (
    '\n\n<｜DSML｜tool_calls>\n<｜DSML｜invoke name="look_up">\n'
    '<｜DSML｜parameter name="place" string="true">Oslo</｜DSML｜parameter>\n'
    '<｜DSML｜parameter name="days" string="false">2</｜DSML｜parameter>\n'
    "</｜DSML｜invoke>\n</｜DSML｜tool_calls>"
)
"""A call as the model writes it: look_up(place="Oslo", days=2)."""

TOOL = {
    "type": "function",
    "function": {
        "name": "look_up",
        "description": "weather",
        "parameters": {
            "type": "object",
            "properties": {"place": {"type": "string"}, "days": {"type": "integer"}},
            "required": ["place"],
        },
    },
}


def tiny_tokenizer() -> Tokenizer:
    """The embedded model's."""
    tokenizer = open_tokenizer(open_checkpoint(None))
    assert tokenizer is not None
    return tokenizer


@dataclass
class Running:
    """A server: its engine, what it wrote, and a client."""

    engine: ScriptedEngine
    service: Service
    url: str
    lines: list[str] = field(default_factory=list)
    client: httpx2.Client = field(default_factory=httpx2.Client)

    def post(self, path: str, body: Any = None, **options: Any) -> httpx2.Response:
        """A body of JSON, posted."""
        return self.client.post(self.url + path, json=body, timeout=60, **options)

    def get(self, path: str, **options: Any) -> httpx2.Response:
        return self.client.get(self.url + path, timeout=60, **options)

    def stream(self, path: str, body: Any) -> list[bytes]:
        """The pieces of a stream, as they came."""
        with self.client.stream("POST", self.url + path, json=body, timeout=60) as answer:
            assert answer.status_code == 200, answer.read()
            return list(answer.iter_raw())

    def settled(self) -> None:
        """Wait until no request is open."""
        for _ in range(400):
            if self.service.served.idle and not self.service.running and not self.engine.stats().running:
                return
            threading.Event().wait(0.01)
        raise AssertionError("requests stay open")


@contextlib.contextmanager
def running(
    engine: ScriptedEngine | None = None,
    *,
    access: Access | None = None,
    settings: Settings | None = None,
    names: Names | None = None,
    queue: int = 64,
    replay_file: Path | None = None,
    around: Callable[[Any], Any] | None = None,
) -> Iterator[Running]:
    """A server for a while. around: makes of the application what is served."""
    engine = engine or ScriptedEngine(tiny_tokenizer())
    names, lines = names or Names("scripted"), []
    ready, stop, failure = threading.Event(), threading.Event(), []
    found: list[Running] = []
    engines = iter([engine])

    def load() -> Engine:
        """The engine that was given, then new ones like it."""
        fresh = next(engines, None) or ScriptedEngine(engine.tokenizer, script=engine.script)
        if found:
            found[0].engine = fresh
        return cast(Engine, fresh)

    async def serve() -> None:
        listener = listen("127.0.0.1", 0)
        served = Served(load, names, queue=queue, replay_file=replay_file)
        service = Service(served, Account(lines.append), settings or Settings(Defaults(thinking=False), ping=0.2))
        described = describe(open_checkpoint(None), names.own, engine.context)
        app = application(service, described, Store(1 << 20))
        guarded = Guard(app, access or Access(), lambda path, refusal: to_json(error_of(path, refusal)))
        await served.open()
        host = server(around(guarded) if around else guarded, drain=5)
        found.append(Running(engine, service, f"http://127.0.0.1:{listener.getsockname()[1]}", lines))
        task = asyncio.ensure_future(host.serve(sockets=[listener]))
        while not host.started and not task.done():
            await asyncio.sleep(0.005)
        ready.set()
        while not stop.is_set() and not task.done():
            await asyncio.sleep(0.01)
        host.should_exit = True
        await task

    def work() -> None:
        try:
            asyncio.run(serve())
        except BaseException as error:
            failure.append(error)
        finally:
            ready.set()

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    assert ready.wait(30)
    assert not failure, failure
    try:
        yield found[0]
    finally:
        found[0].client.close()
        stop.set()
        thread.join(30)
        assert not thread.is_alive(), "the server does not end"
        assert not failure, failure


def chat(*messages: Any, **more: Any) -> dict[str, Any]:
    """A body of chat completions; a string is what the user said."""
    said = [{"role": "user", "content": m} if isinstance(m, str) else m for m in messages or ("Hi",)]
    return {"model": "scripted", "messages": said, **more}


def loads(text: str) -> Any:
    """JSON, by the letter."""
    return json.loads(text, parse_constant=lambda word: (_ for _ in ()).throw(ValueError(word)))
