"""The model that is served: loaded when needed, let go of when asked, and never asked for more than its queue takes.

Owns the engine's life, who is using it, and the bound of the queue. Refuses what the queue has no place for, at once,
and to let go of an engine that is answering.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path

from finback.engine.engine import Engine
from finback.errors import FinbackError
from finback.server.ask import RefusedError
from finback.server.replay import Replay
from finback.server.runner import Runner, refused
from finback.text.token_cache import TokenCache

KEPT_SHARE = 0.02
"""Of the memory budget, for each of what is kept beside the engine: texts that were encoded, turns that may come back,
and answers that may be gone on from."""

KEPT_MOST = 64 << 20


@dataclass(frozen=True, slots=True)
class Names:
    """What the model is called: by its own name, and by others that clients may use. "*" among them is any."""

    own: str
    others: tuple[str, ...] = ()

    def has(self, name: str) -> bool:
        """Whether a request means this model."""
        return name in ("", self.own) or name in self.others or "*" in self.others

    @property
    def listed(self) -> list[str]:
        """The names that can be listed."""
        return [self.own, *(name for name in self.others if name != "*")]


class Ticket:
    """A request's place: waiting until the engine has begun it."""

    def __init__(self, served: Served) -> None:
        self._served, self.waiting = served, True
        self.began: float | None = None

    def begin(self) -> None:
        """The engine has begun it."""
        if self.waiting:
            self.waiting, self.began = False, time.monotonic()
            self._served.waiting -= 1


class Served:
    """One model, served by one engine at a time.

    queue: most requests that wait. keep_alive: seconds that the engine is kept after the last request; inf is for ever.
    replay_file: where turns survive restarts.
    """

    def __init__(
        self,
        load: Callable[[], Engine],
        names: Names,
        *,
        queue: int,
        keep_alive: float = math.inf,
        replay_file: Path | None = None,
    ) -> None:
        self._load, self.names, self._queue, self._default_keep = load, names, queue, keep_alive
        self._keep = keep_alive  # after the last request: what it asked for, else the default
        self._replay_file = replay_file
        self._runner: Runner | None = None
        self._loading = asyncio.Lock()
        self._closing: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self.waiting = self.users = 0
        self.expires: float | None = None  # seconds since 1970
        self.kept_bytes = 0  # that each of what is kept may take; known when the model was loaded

    @property
    def runner(self) -> Runner | None:
        """What answers, if the model is loaded."""
        return self._runner

    @property
    def idle(self) -> bool:
        """Whether nobody uses the engine."""
        return self.users == 0

    async def open(self) -> Runner:
        """What answers; loads the model if need be. RefusedError if that fails."""
        async with self._loading:
            if self._runner is None:
                try:
                    self._runner = await asyncio.to_thread(self._opened)
                except FinbackError as error:
                    raise RefusedError(str(refused(error)), status=500) from error
            return self._runner

    def _opened(self) -> Runner:
        engine = self._load()
        try:
            _ = engine.tokenizer  # a server without text makes no sense: raises what is wrong with it
            kept = min(KEPT_MOST, int(KEPT_SHARE * engine.memory()["budget"]))
            for what in ("replay", "texts", "responses"):
                engine.set_aside(what, kept)
            self.kept_bytes = kept
            return Runner(engine, Replay(kept, self._replay_file), TokenCache(kept))
        except BaseException:
            engine.close()
            raise

    @contextlib.asynccontextmanager
    async def ticket(self) -> AsyncIterator[Ticket]:
        """A place for one request. RefusedError if too many wait."""
        if self.waiting >= self._queue:
            raise RefusedError(
                f"{self.waiting} requests wait already, as many as the queue takes; try again in a moment",
                status=429,
                code="queue_full",
                retry_after=1,
            )
        self._cancel_closing()
        self._keep = self._default_keep
        ticket = Ticket(self)
        self.waiting += 1
        self.users += 1
        try:
            yield ticket
        finally:
            ticket.begin()
            self.users -= 1
            if self.users == 0:
                self._close_after(self._keep)

    # ---- letting go

    def keep_for(self, seconds: float) -> None:
        """Keep the engine so long after the requests of now; 0 lets go of it as soon as nobody uses it. The next
        request has its own."""
        self._keep = seconds
        self._cancel_closing()
        if self.users == 0:
            self._close_after(seconds)

    def _close_after(self, seconds: float) -> None:
        if self._runner is None or math.isinf(seconds):
            return
        self.expires = time.time() + seconds
        self._closing = asyncio.get_running_loop().call_later(seconds, self._start_closing)

    def _cancel_closing(self) -> None:
        self.expires = None
        if self._closing is not None:
            self._closing.cancel()
            self._closing = None

    def _start_closing(self) -> None:
        task = asyncio.get_running_loop().create_task(self._close_if_idle())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _close_if_idle(self) -> None:
        if self.users == 0:
            await self.close()

    async def close(self) -> None:
        """Let go of the engine: weights, pages, everything. The next request loads it again."""
        async with self._loading:
            runner, self._runner = self._runner, None
            self._cancel_closing()
            if runner is not None:
                await asyncio.to_thread(runner.engine.close)
