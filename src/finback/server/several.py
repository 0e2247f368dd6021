"""Completions of several prompts in one request: all at once, told together.

Owns the merging of their events. Refuses to know how a prompt is answered; the service does.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Sequence
from typing import Any

from finback.server.account import Entry
from finback.server.answer import AnswerEvent, Failed, Outcome
from finback.server.ask import Ask, Raw
from finback.server.bodies import Receive
from finback.server.dialects import completions
from finback.server.live import unless_gone
from finback.server.served import Ticket
from finback.server.service import Open, Service
from finback.server.tongues import SSE


async def respond(service: Service, body: object, receive: Receive, entry: Entry) -> Any:
    """The response to a body of completions: an ASGI application. RefusedError if it is refused."""
    asks, style = completions.read(body, service.settings.defaults)
    stamp = service.stamp(asks[0].model)
    entry.id = f"cmpl-{stamp.id}"
    async with contextlib.AsyncExitStack() as stack:
        ticket = await stack.enter_async_context(service.served.ticket())  # one place, however many prompts
        opened = await unless_gone(receive, _open(service, asks, entry, ticket, stack))
        echoed = [await _text(service, one) for one in opened] if style.echo else []
        if asks[0].stream:
            pieces = _pieces(service, opened, completions.Stream(style, stamp, echoed), entry)
            return service.streamed(pieces, SSE, completions.PING, entry, stack.pop_all())
        outcomes = await unless_gone(receive, _collect(service, opened, entry))
        return service.answered(completions.whole(style, stamp, outcomes, echoed), entry)


async def _open(
    service: Service, asks: Sequence[Ask], entry: Entry, ticket: Ticket, stack: contextlib.AsyncExitStack
) -> list[Open]:
    return [await service.open(ask, entry, ticket, stack) for ask in asks]


async def _text(service: Service, opened: Open) -> str:
    """The text of a prompt, as an answer repeats it."""
    raw = opened.ask.prompt
    assert isinstance(raw, Raw)
    if isinstance(raw.prompt, str):
        return raw.prompt
    return (await service.served.open()).engine.tokenizer.decode(raw.prompt)


async def _collect(service: Service, opened: Sequence[Open], entry: Entry) -> list[Outcome]:
    """The answers to all prompts; the first failure is that of all."""
    tasks = [asyncio.ensure_future(service.collect(one, entry)) for one in opened]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _pieces(
    service: Service, opened: Sequence[Open], writer: completions.Stream, entry: Entry
) -> AsyncGenerator[bytes, None]:
    """The bytes of a stream, events of all prompts as they come."""
    waiting: asyncio.Queue[tuple[int, AnswerEvent] | None] = asyncio.Queue()

    async def follow(number: int, one: Open) -> None:
        try:
            async for event in service.watch(one, entry):
                waiting.put_nowait((number, event))
        finally:
            waiting.put_nowait(None)

    tasks = [asyncio.ensure_future(follow(number, one)) for number, one in enumerate(opened)]
    left = len(tasks)
    try:
        while left:
            item = await waiting.get()
            if item is None:
                left -= 1
                continue
            for piece in writer.write(*item):
                yield piece
            if isinstance(item[1], Failed):
                return
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


