"""One request from its body to its answer, in any dialect.

Owns the order: read, a place in the queue, render, answer, tell. Errors on the way become the dialect's refusals, and
nothing of one request reaches another. Refuses to know routes.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from starlette.responses import Response

from finback.engine.request import Request as EngineRequest
from finback.errors import shown
from finback.server.account import Account, Entry
from finback.server.answer import AnswerEvent, Done, Failed, Outcome
from finback.server.ask import Ask, Defaults, RefusedError, Stamp
from finback.server.bodies import Receive
from finback.server.live import Streamed, unless_gone
from finback.server.runner import Prepared, Runner
from finback.server.served import Served, Ticket
from finback.server.tongues import Tongue, Writer
from finback.server.trace import Trace
from finback.server.wire import to_json


@dataclass(frozen=True, slots=True)
class Settings:
    """How requests are served. limit: most bytes of a body. deadline: most seconds of a request. ping: seconds of
    silence after which a stream shows that it lives."""

    defaults: Defaults = field(default_factory=Defaults)
    body_limit: int = 64 << 20
    body_seconds: float = 60.0
    deadline: float | None = None
    ping: float = 5.0


@dataclass(eq=False, slots=True)
class Open:
    """A request that the engine has taken: its events, of which the first is known."""

    ask: Ask
    prepared: Prepared
    events: AsyncGenerator[AnswerEvent, None]
    first: AnswerEvent

    async def all(self) -> AsyncIterator[AnswerEvent]:
        """Its events, from the first on."""
        yield self.first
        async for event in self.events:
            yield event


OnOutcome = Callable[[Stamp, Outcome], None]
"""Gets the whole answer when it is there."""


class Service:
    """Answers requests with the model that is served."""

    def __init__(self, served: Served, account: Account, settings: Settings, trace: Trace | None = None) -> None:
        self.served, self.account, self.settings, self.trace = served, account, settings, trace
        self.running: dict[str, list[EngineRequest]] = {}
        """What the engine is answering, by the id of the answer."""

    def stamp(self, model: str) -> Stamp:
        """What marks an answer. RefusedError if it is another model that was asked for."""
        self.check_model(model)
        return Stamp(secrets.token_hex(12), time.time(), model or self.served.names.own)

    def check_model(self, name: str) -> None:
        """RefusedError if a name is not that of the model."""
        if not self.served.names.has(name):
            known = ", ".join(self.served.names.listed[:5])
            raise RefusedError(
                f"model is {shown(name)}, which is not served here; served is {known}",
                status=404,
                field="model",
                code="model_not_found",
            )

    # ---- one answer

    async def respond(
        self,
        tongue: Tongue,
        ask: Ask,
        style: Any,
        receive: Receive,
        entry: Entry,
        *,
        stamp: Stamp | None = None,
        on_outcome: OnOutcome | None = None,
    ) -> Any:
        """The response to a request: an ASGI application. RefusedError if it is refused, GoneError if its client left
        before."""
        stamp = stamp or self.stamp(ask.model)
        entry.id = tongue.prefix + stamp.id
        async with contextlib.AsyncExitStack() as stack:
            ticket = await stack.enter_async_context(self.served.ticket())
            opened = await unless_gone(receive, self.open(ask, entry, ticket, stack))
            if ask.stream:
                pieces = self._pieces(tongue.stream(style, stamp), opened, entry, stamp, on_outcome)
                return self.streamed(pieces, tongue.media_type, tongue.ping(style, stamp), entry, stack.pop_all())
            outcome = await unless_gone(receive, self.collect(opened, entry))
            if on_outcome is not None:
                on_outcome(stamp, outcome)
            return self.answered(tongue.whole(style, stamp, outcome), entry)

    async def open(self, ask: Ask, entry: Entry, ticket: Ticket, stack: contextlib.AsyncExitStack) -> Open:
        """Have the engine take a request. What is to be given back in the end is in `stack`."""
        self.account.ignored(entry.endpoint, ask.ignored)
        runner = await self.served.open()
        prepared = await runner.prepare(ask)

        def begun(request: EngineRequest) -> None:
            ticket.begin()
            self.running.setdefault(entry.id, []).append(request)

        events = runner.answer(prepared, ask, begun)
        stack.push_async_callback(events.aclose)
        stack.callback(self.running.pop, entry.id, None)
        if self.trace is not None:
            self.trace.begin(entry.id, ask, prepared)
        return Open(ask, prepared, events, await anext(events))

    async def watch(self, opened: Open, entry: Entry) -> AsyncIterator[AnswerEvent]:
        """The events of a request, noted; a request that takes too long fails."""
        try:
            async with asyncio.timeout(self.settings.deadline):
                async for event in opened.all():
                    self._note(event, entry)
                    yield event
        except TimeoutError:
            late = Failed(self._late())
            self._note(late, entry)
            yield late

    def _note(self, event: AnswerEvent, entry: Entry) -> None:
        entry.see(event)
        if self.trace is not None:
            self.trace.add(entry.id, event)

    def _late(self) -> RefusedError:
        return RefusedError(
            f"the answer took longer than the {self.settings.deadline:g} seconds that a request may take; ask for less",
            status=504,
            code="deadline_exceeded",
        )

    async def collect(self, opened: Open, entry: Entry) -> Outcome:
        """The whole answer. RefusedError if it failed."""
        outcome = Outcome()
        async for event in self.watch(opened, entry):
            outcome.add(event)
        return outcome

    async def _pieces(
        self, writer: Writer, opened: Open, entry: Entry, stamp: Stamp, on_outcome: OnOutcome | None
    ) -> AsyncGenerator[bytes, None]:
        """The bytes of a stream."""
        outcome = Outcome()
        async for event in self.watch(opened, entry):
            if on_outcome is not None and not isinstance(event, Failed):
                outcome.add(event)
                if isinstance(event, Done):
                    on_outcome(stamp, outcome)
            for piece in writer.write(event):
                yield piece

    def streamed(
        self,
        pieces: AsyncGenerator[bytes, None],
        media_type: str,
        ping: bytes,
        entry: Entry,
        stack: contextlib.AsyncExitStack,
    ) -> Streamed:
        """A response that sends pieces, and gives everything back in the end."""

        async def end(whole: bool) -> None:
            if not whole:
                entry.ended = "client gone"
            await stack.aclose()
            self.account.close(entry)

        headers = [(b"x-request-id", entry.id.encode())]
        return Streamed(
            pieces, media_type=media_type, ping=ping, on_end=end, headers=headers, ping_s=self.settings.ping
        )

    @staticmethod
    def answered(body: Mapping[str, Any], entry: Entry) -> Response:
        """A response with the whole answer."""
        return Response(to_json(body), media_type="application/json", headers={"x-request-id": entry.id})

    # ---- without an answer

    async def prepare(self, ask: Ask, receive: Receive) -> tuple[Runner, Prepared]:
        """A request as the engine would get it: to count its tokens, or to show its prompt."""
        self.check_model(ask.model)

        async def work() -> tuple[Runner, Prepared]:
            runner = await self.served.open()
            return runner, await runner.prepare(ask)

        return await unless_gone(receive, work())
