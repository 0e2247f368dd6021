"""One request, as its caller sees it: events to iterate over, in a thread or on an event loop, and a way to cancel.

Owns the way of events from the engine's threads to whoever waits. Refuses to lose one, to block the engine for a slow
reader, and to be read by two readers at once.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from types import TracebackType
from typing import Self

from finback.engine.choice import Thinking
from finback.engine.grammar import Constraint
from finback.engine.result import Completion, Event, FinishReason, Timings, TokenLogprob, Usage
from finback.engine.sampling import Resolved


class Mailbox:
    """Events and at most one error, in order, for one reader: a thread, or a task on any event loop."""

    def __init__(self) -> None:
        self._items: deque[Event | BaseException] = deque()
        self._changed = threading.Condition()
        self._sleeper: tuple[asyncio.AbstractEventLoop, asyncio.Future[None]] | None = None

    def put(self, item: Event | BaseException) -> None:
        """Hand over an event, or the error that ends them. From any thread; never blocks for the reader."""
        with self._changed:
            self._items.append(item)
            sleeper, self._sleeper = self._sleeper, None
            self._changed.notify()
        if sleeper is not None:
            loop, future = sleeper
            with suppress(RuntimeError):  # the reader's loop was closed: nobody reads any more
                loop.call_soon_threadsafe(_wake, future)

    def take(self) -> Event | BaseException:
        """The next item, waiting for it. Ctrl-C interrupts the wait."""
        with self._changed:
            while not self._items:
                self._changed.wait()
            return self._items.popleft()

    async def take_async(self) -> Event | BaseException:
        """The next item, without blocking the event loop."""
        while True:
            with self._changed:
                if self._items:
                    return self._items.popleft()
                loop = asyncio.get_running_loop()
                future: asyncio.Future[None] = loop.create_future()
                self._sleeper = (loop, future)
            await future


def _wake(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


class Request:
    """An answer in the making. Iterate over it, `for` or `async for`; the last event of each answer says how it ended.

    Leaving the iteration early, or a `with` or `async with` block, cancels it.
    """

    def __init__(
        self,
        ids: Sequence[int],
        marks: Sequence[int],
        sampling: Resolved,
        *,
        limit: int,
        priority: int,
        on_cancel: Callable[[], None],
        thinking: Sequence[Thinking | None],
        constraints: Sequence[Constraint | None],
    ) -> None:
        """ids: the prompt. marks: counts of its tokens at which the state is worth keeping. limit: most tokens of each
        answer; 0 only reads the prompt. thinking, constraints: of each answer, if there are any."""
        self.ids, self.marks, self.sampling = ids, marks, sampling
        self.limit, self.priority = limit, priority
        self.thinking, self.constraints = thinking, constraints
        self.submitted = time.perf_counter()
        self.mailbox = Mailbox()
        self._on_cancel, self._cancelled = on_cancel, False
        self._over = False  # the reader has had the last event, or an error
        # Written by the engine's loop before the publisher reads them.
        self.cached_tokens, self.cache_note = 0, ""
        self.fetched, self.retried = "", False  # the state on disk it was to begin from; whether that failed
        self.started = self.first_token = self.submitted
        self.prompt_logprobs: list[TokenLogprob | None] | None = None if sampling.prompt_logprobs is None else [None]
        # The publisher's.
        self.open_answers, self.completion_tokens = sampling.n, 0

    # ---- the caller's side

    @property
    def seed(self) -> int:
        """Repeats the answers."""
        return self.sampling.seed

    @property
    def cancelled(self) -> bool:
        """Whether `cancel` was called."""
        return self._cancelled

    def cancel(self) -> None:
        """End the request within one step; what was computed is kept for later ones. Its answers end with
        finish_reason "cancelled". From any thread; a request that is over stays as it is."""
        if not self._cancelled:
            self._cancelled = True
            self._on_cancel()

    def stop_thinking(self) -> None:
        """Have the model answer now: thinking is closed with the next token. From any thread; nothing happens where it
        does not think."""
        for thinking in self.thinking:
            if thinking is not None:
                thinking.close = True

    def __iter__(self) -> Iterator[Event]:
        try:
            while not self._over:
                yield self._received(self.mailbox.take())
        finally:
            self._leave()

    async def __aiter__(self) -> AsyncIterator[Event]:
        try:
            while not self._over:
                yield self._received(await self.mailbox.take_async())
        finally:
            self._leave()

    def _leave(self) -> None:
        if not self._over:
            self.cancel()

    def _received(self, item: Event | BaseException) -> Event:
        if isinstance(item, BaseException):
            self._over = True
            raise item
        self._over = item.usage is not None
        return item

    def result(self) -> Completion:
        """The whole answer, when it is done."""
        collected = Collected(self)
        for event in self:
            collected.add(event)
        return collected.completion()

    async def result_async(self) -> Completion:
        """The same on an event loop."""
        collected = Collected(self)
        async for event in self:
            collected.add(event)
        return collected.completion()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._leave()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._leave()


class Collected:
    """Events of a request put together."""

    def __init__(self, request: Request) -> None:
        n = request.sampling.n
        self._request = request
        self._tokens: list[list[int]] = [[] for _ in range(n)]
        self._texts: list[list[str]] = [[] for _ in range(n)]
        self._logprobs: list[list[TokenLogprob]] = [[] for _ in range(n)]
        self._finish: list[FinishReason | None] = [None] * n
        self._usage, self._timings = Usage(), Timings()

    def add(self, event: Event) -> None:
        """The next event."""
        self._tokens[event.index] += event.token_ids
        self._texts[event.index].append(event.text)
        self._logprobs[event.index] += event.logprobs
        if event.finish_reason is not None:
            self._finish[event.index] = event.finish_reason
        if event.usage is not None and event.timings is not None:
            self._usage, self._timings = event.usage, event.timings

    def completion(self) -> Completion:
        """The first answer, with the others of n > 1 in it."""
        first, *others = (self._answer(index) for index in range(len(self._tokens)))
        return replace(first, others=tuple(others))

    def _answer(self, index: int) -> Completion:
        request, finish = self._request, self._finish[index]
        assert finish is not None, "the last event of every answer says how it ended"
        prompt = request.prompt_logprobs
        return Completion(
            "".join(self._texts[index]),
            tuple(self._tokens[index]),
            finish,
            self._usage,
            request.seed,
            self._timings,
            tuple(self._logprobs[index]),
            None if prompt is None else tuple(prompt),
        )
