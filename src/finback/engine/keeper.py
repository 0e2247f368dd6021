"""What requests leave behind: in the prefix cache, and on disk.

Owns when a state is kept, how much of them there may be, and the thread that reads and writes those on disk. Refuses to
fail a request for want of a kept state: without one, more is computed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Any

from finback.engine.request import Request
from finback.errors import MemoryBudgetError
from finback.kv.prefix import PrefixCache
from finback.kv.store import LEAST_SAVED, Store, Stored

SAVE_EVERY_S = 30.0
"""Seconds of work after which is written what a restart should find."""


class Keeper:
    """The kept states of one engine. Called by the loop's thread, but for what says otherwise."""

    def __init__(self, prefix: PrefixCache | None, store: Store | None, limit: int) -> None:
        """limit: most bytes of the prefix cache."""
        self._prefix, self._store, self._limit = prefix, store, limit
        self._disk = None if store is None else ThreadPoolExecutor(1, "finback-disk")
        self._saving: Future[None] | None = None
        self._next_save = time.monotonic() + SAVE_EVERY_S
        self._at_work: set[object] = set()
        self.on_memory: Callable[[], None] | None = None
        """Called, from the disk's thread, when memory that it held is free."""

    @property
    def holds_memory(self) -> bool:
        """Whether the disk's thread holds memory that is free soon, so that who lacks some should wait. Any thread."""
        return bool(self._at_work)

    @contextmanager
    def _work(self) -> Iterator[None]:
        """Memory is held inside."""
        mark = object()
        self._at_work.add(mark)
        try:
            yield
        finally:
            self._at_work.discard(mark)
            if self.on_memory is not None:
                self.on_memory()

    # ---- finding

    def known(self, request: Request) -> int:
        """Tokens of a prompt that memory serves."""
        if self._prefix is None or request.prompt_logprobs is not None:
            return 0
        return self._prefix.find(request.ids, len(request.ids) - 1).length

    def fetch(self, request: Request, known: int, then: Callable[[], None]) -> bool:
        """Whether a state on disk serves more of the prompt than the `known` tokens that memory does. It is read by
        another thread, which calls `then` when it is there, or turned out not to be."""
        if self._store is None or self._disk is None or request.fetched or request.prompt_logprobs is not None:
            return False
        stored, length = self._store.find(request.ids, len(request.ids) - 1)
        if stored is None or length - known < LEAST_SAVED:
            return False
        request.fetched = stored.name
        self._disk.submit(self._restore, stored, then)
        return True

    def _restore(self, stored: Stored, then: Callable[[], None]) -> None:
        """In the disk's thread. Without room for the state, or if its file is damaged, the prompt is computed."""
        assert self._store is not None
        assert self._prefix is not None
        try:
            with suppress(MemoryBudgetError), self._work():
                checkpoint = self._store.restore(stored)
                if checkpoint is not None:
                    self._prefix.insert(stored.tokens, checkpoint)
        finally:
            then()

    def begin(self, request: Request, state: Any) -> None:
        """Let an empty sequence start from the longest beginning of the prompt that was kept."""
        if self._prefix is None:
            request.cache_note = "the prefix cache is off"
        elif request.prompt_logprobs is not None:
            request.cache_note = "prompt_logprobs computes every token of the prompt"
        else:
            found = self._prefix.begin(request.ids, state)
            request.cache_note, request.cached_tokens = found.reason, found.length

    def forget(self, request: Request) -> bool:
        """A request failed that may have begun from a state on disk: whether it did, and the state is gone now."""
        if self._store is None or self._prefix is None or not request.fetched or request.retried:
            return False
        self._store.forget(request.fetched)
        self._prefix.forget(request.ids[: request.cached_tokens])
        request.retried = True
        return True

    # ---- keeping

    def keep(self, tokens: Sequence[int], state: Any) -> None:
        """A checkpoint of a sequence that goes on, for later requests. Without room for one, they compute more."""
        if self._prefix is None or self._prefix.has(tokens):
            return
        with suppress(MemoryBudgetError):
            self._prefix.insert(tokens, state.checkpoint())
            self._shrink()

    def give_back(self, state: Any, tokens: Sequence[int], keep: bool) -> None:
        """The end of a sequence: what it holds becomes a checkpoint, without a copy."""
        if not keep or self._prefix is None or not tokens or self._prefix.has(tokens):
            state.close()
            return
        self._prefix.insert(tokens, state.into_checkpoint())
        self._shrink()

    def _shrink(self) -> None:
        assert self._prefix is not None
        over = self._prefix.nbytes - self._limit
        if over > 0:
            self._prefix.evict(over)

    # ---- the disk

    def idle(self) -> None:
        """Nothing is to be done: a time to write."""
        if self._disk is not None and (self._saving is None or self._saving.done()):
            self._next_save = time.monotonic() + SAVE_EVERY_S
            self._saving = self._disk.submit(self.save, False)

    def busy(self) -> None:
        """A step was made. An engine that is never idle writes now and then, beside its steps."""
        if self._disk is not None and time.monotonic() >= self._next_save:
            self.idle()

    def save(self, closing: bool) -> None:
        """Write what a restart should find: in the disk's thread, and at the end in the loop's."""
        if self._prefix is None or self._store is None:
            return
        for tokens in self._prefix.worth_saving(closing=closing):
            if self._store.wants(tokens, closing=closing):
                with self._work():
                    lease = self._prefix.lease(tokens)
                    if lease is not None:
                        try:
                            self._store.save(tokens, lease.checkpoint)
                        finally:
                            lease.release()

    def close(self) -> None:
        """Write what is new, and let go of all."""
        if self._disk is not None:
            self._disk.shutdown()
            self.save(True)  # here: at the end of the interpreter executors take no more work
        if self._prefix is not None:
            self._prefix.clear()
