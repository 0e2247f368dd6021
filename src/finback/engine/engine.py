"""The engine: one loaded model, and what to do with it: submit requests, generate, stream, logits, sessions.

Owns the path from a prompt to a request: text or messages become ids, parameters are resolved, what can never fit
(context, memory) is refused before it starts, with the numbers. The loop (engine/loop.py) answers requests together, as
many as there are; nothing of an answer depends on the others. Nothing here knows a tensor; `ops/native.py` does.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import numpy.typing as npt

from finback import native
from finback.engine.choice import Thinking
from finback.engine.grammar import Constraint, Grammars, wanted
from finback.engine.keeper import Keeper
from finback.engine.loop import Loop
from finback.engine.request import Request
from finback.engine.result import Completion, Event, Usage
from finback.engine.sampler import Drawer, check_finite
from finback.engine.sampling import Resolved, Sampling, resolve
from finback.engine.scheduler import Scheduler
from finback.engine.session import OnPrefill, Session
from finback.engine.speculate import Mode
from finback.engine.stats import EngineStats, LoopStats
from finback.errors import (
    ContextLengthError,
    EngineStateError,
    MemoryBudgetError,
    ModelFileError,
    RequestError,
    shown,
    shown_size,
)
from finback.kv.prefix import PrefixCache
from finback.kv.store import Store
from finback.ops.step import Part
from finback.text.render import END_THINK, THINK

if TYPE_CHECKING:
    from finback.config import ModelConfig
    from finback.ops.native import Listed
    from finback.ops.select import Model
    from finback.text.dialects import Dialect
    from finback.text.tokenizer import Tokenizer
    from finback.weights.checkpoint import OpenedCheckpoint
    from finback.weights.ledger import Ledger

LOWEST_PRIORITY = 100
"""Priorities go from -100, the most urgent, to 100."""


@dataclass(frozen=True, slots=True)
class Serving:
    """How requests share the engine. prefill_share: of the time, to prompts, while answers are running. max_stall:
    seconds that a running answer may stand still for a step over prompts. max_batch: answers drawn together.
    prefix_cache: most bytes of kept prefixes; 0 is off. speculation: where drafts come from, or None."""

    prefill_share: float
    max_stall: float
    max_batch: int
    prefix_cache: int
    speculation: Mode | None


@dataclass(frozen=True, slots=True)
class Encoded:
    """A prompt as tokens, and the counts of tokens at which its state is worth keeping. thinking: whether it ends
    inside thinking; None: if its last token opens it."""

    ids: list[int]
    marks: Sequence[int] = ()
    thinking: bool | None = None


Prompt = str | Encoded | Sequence[int] | Sequence[Mapping[str, Any]]
"""Text to continue, token ids as they are, with marks or without, or chat messages in OpenAI's shape."""


class Engine:
    """A loaded model. Made by `finback.load`; use it with `with`, or call `close()`."""

    def __init__(
        self,
        checkpoint: OpenedCheckpoint,
        model: Model,
        ledger: Ledger,
        *,
        context: int,
        prefill_chunk: int,
        serving: Serving,
        store: Store | None,
        tokenizer: Tokenizer | ModelFileError | None,
        identity: Callable[[], str],
    ) -> None:
        """identity: tells what states of sequences depend on, when one is saved or loaded."""
        self._identity = identity
        self._checkpoint, self._model, self._ledger = checkpoint, model, ledger
        self._tokenizer, self._drawer = tokenizer, Drawer(model.isa, checkpoint.config.vocab_size)
        self.context, self.prefill_chunk, self.serving = context, prefill_chunk, serving
        self._store = store
        self._sessions: set[Session] = set()
        self._lock = threading.RLock()
        self._closed = False
        self._pid = os.getpid()
        self._scheduler = Scheduler(
            max_rows=prefill_chunk,
            prefill_share=serving.prefill_share,
            max_stall=serving.max_stall,
            clock=time.monotonic,
        )
        self._prefix: PrefixCache | None = None
        if serving.prefix_cache and model.pool is not None:
            self._prefix = PrefixCache(
                model.pool, clock=time.monotonic, seconds_per_token=partial(_seconds_per_token, self._scheduler)
            )
        self._grammars = Grammars(
            lambda: self.tokenizer,
            self.config.vocab_size,
            frozenset(self.config.eos_token_ids),
            ledger if model.pool is None else model.pool,
        )
        self._think = _thinking_tokens(tokenizer)
        self._loop: Loop | None = None  # started by the first request

    # ---- what was loaded

    @property
    def config(self) -> ModelConfig:
        """The model's architecture."""
        return self._checkpoint.config

    @property
    def path(self) -> Path:
        """The first file of the model."""
        return Path(self._checkpoint.paths[0])

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's tokenizer. RequestError if the model came without one: such a model takes token ids only.
        ModelFileError if what came with it is broken."""
        if isinstance(self._tokenizer, ModelFileError):
            raise self._tokenizer.with_traceback(None)
        if self._tokenizer is None:
            raise RequestError(
                f"{self.path.name} has no tokenizer; give token ids instead of text, or add a tokenizer.json"
            )
        return self._tokenizer

    @property
    def dialect(self) -> Dialect:
        """The generation of the prompt format that the model was trained on."""
        from finback.text.dialects import V4_0731, find_dialect

        return find_dialect(self._checkpoint.dialect) if self._checkpoint.dialect else V4_0731

    @property
    def isa(self) -> str:
        """Instruction-set level of the kernels: "scalar", "avx2", ..."""
        return self._model.isa

    @property
    def threads(self) -> int:
        """Threads a step runs on."""
        return self._model.threads

    @property
    def cache_rounding(self) -> bool:
        """Whether cache rows are rounded as the model was trained (docs/exactness.md section 9)."""
        return self._model.cache_rounding

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences about what was asked for and the system did not allow: the engine goes on without."""
        return self._model.notes

    def memory(self) -> dict[str, int]:
        """Bytes in use by entry of the ledger, "budget" among them."""
        return self._ledger.table()

    def program_listing(self) -> list[Listed]:
        """The recorded operations: entry point, name, rows, shape, bytes and arena offset of each value."""
        return self._model.program_listing()

    def set_aside(self, name: str, size: int) -> None:
        """Charge the budget with memory that is held around the engine, until it is closed. MemoryBudgetError if it is
        not free."""
        self._ledger.reserve(name, size, "raise memory=")

    # ---- answers

    def encode(
        self,
        prompt: Prompt,
        *,
        thinking: bool = False,
        effort: str | int | None = None,
        tools: Sequence[Mapping[str, Any]] = (),
    ) -> list[int]:
        """Token ids of a prompt. Text gets the begin-of-text token and is never read as control tokens; messages are
        rendered in the model's prompt format."""
        return self._encode(prompt, thinking, effort, tools).ids

    def _encode(
        self, prompt: Prompt, thinking: bool, effort: str | int | None, tools: Sequence[Mapping[str, Any]]
    ) -> Encoded:
        if isinstance(prompt, str):
            bos = self.config.bos_token_id
            return Encoded(([] if bos is None else [bos]) + self.tokenizer.encode(prompt))
        if isinstance(prompt, Encoded):
            self._check_range(prompt.ids)
            return prompt
        items = list(prompt)
        if items and all(isinstance(item, Mapping) for item in items):
            return self._render(items, thinking, effort, tools)
        return Encoded(self._check_ids(items))

    def _render(
        self, messages: list[Any], thinking: bool, effort: str | int | None, tools: Sequence[Mapping[str, Any]]
    ) -> Encoded:
        from finback.text.messages import messages_from_json, tools_from_json, wants_continuation
        from finback.text.render import render

        prompt = render(
            messages_from_json(messages, thinking=thinking),
            tools=tools_from_json(tools),
            thinking=thinking,
            effort=effort,
            continue_last=wants_continuation(messages),
            dialect=self.dialect,
        )
        encoded = self.tokenizer.encode_prompt(prompt)
        return Encoded(encoded.ids, encoded.marks)

    def submit(
        self,
        prompt: Prompt,
        sampling: Sampling | None = None,
        *,
        thinking: bool = False,
        effort: str | int | None = None,
        tools: Sequence[Mapping[str, Any]] = (),
        priority: int = 0,
    ) -> Request:
        """Start answering a prompt (text to continue, chat messages, or token ids) together with all other requests.

        Read the answer with `for event in request` or, on any event loop, `async for event in request`; both may be
        left early. Safe to call from any thread. No bit of an answer depends on what else is running.

        Args:
            priority: from -100, the most urgent, to 100. A level is worth about ten seconds of waiting.

        Raises, before anything starts:
            RequestError: a parameter or the prompt is not possible.
            MemoryBudgetError: the budget can never hold what the request may grow to, with the numbers.
        """
        resolved = self._resolve(sampling)
        if isinstance(priority, bool) or not isinstance(priority, int) or abs(priority) > LOWEST_PRIORITY:
            raise RequestError(
                f"priority is {shown(priority)}; it must be a whole number from {-LOWEST_PRIORITY} to {LOWEST_PRIORITY}"
            )
        if effort is None and sampling is not None:
            effort = sampling.effort
        encoded = self._encode(prompt, thinking, effort, tools)
        self._check_prompt(encoded.ids)
        return self._submit(encoded, resolved, priority, self.context - len(encoded.ids))

    def _submit(self, encoded: Encoded, p: Resolved, priority: int, room: int) -> Request:
        """Hand a request to the loop. `room`: tokens an answer may have at most, whatever was asked."""
        limit = room if p.max_tokens is None else min(p.max_tokens, room)
        limit = self._within_memory(len(encoded.ids), limit, p)
        thinking = [self._thinking(encoded, p) for _ in range(p.n)]
        constraints = self._constraints(p, None if thinking[0] is None else thinking[0].end)
        loop = self._running_loop()
        if p.stops and isinstance(self._tokenizer, ModelFileError):
            _ = self.tokenizer  # raises what is wrong with it
        request = Request(
            encoded.ids,
            encoded.marks,
            replace(p, max_tokens=limit),
            limit=limit,
            priority=priority,
            on_cancel=loop.wake,
            thinking=thinking,
            constraints=constraints,
        )
        loop.submit(request)
        return request

    def _thinking(self, encoded: Encoded, p: Resolved) -> Thinking | None:
        """Whether the prompt ends with thinking opened, and what may come of it."""
        opened = self._think is not None and encoded.ids[-1] == self._think[0]
        if self._think is None or not (opened if encoded.thinking is None else encoded.thinking):
            return None
        return Thinking(self._think[1], p.thinking_budget)

    def _constraints(self, p: Resolved, start_after: int | None) -> list[Constraint | None]:
        """Where each answer begins in the grammar it has to follow. RequestError if that is not possible."""
        what = wanted(p)
        if what is None:
            return [None] * p.n
        if not self.config.eos_token_ids:
            raise RequestError(f"{what.field} needs a model with an end-of-text token; {self.path.name} names none")
        return [self._grammars.constraint(what, start_after) for _ in range(p.n)]

    def _within_memory(self, prompt: int, limit: int, p: Resolved) -> int:
        """The limit of an answer that the memory budget can hold. MemoryBudgetError if the one asked for does not fit
        even alone; an answer without a limit gets what there is."""
        held = self._ledger.table()
        fixed = sum(held.get(name, 0) for name in ("weights", "arena", "logits"))
        room = held["budget"] - fixed
        needed = self._model.promised_bytes(prompt, limit, p.n)
        if needed <= room:
            return limit
        if p.max_tokens is None:
            low, high = 0, limit  # the least that fits, the most that does not
            while high - low > 1:
                middle = (low + high) // 2
                low, high = (middle, high) if self._model.promised_bytes(prompt, middle, p.n) <= room else (low, middle)
            if low:
                return low
        raise MemoryBudgetError(
            f"this request can grow to {prompt + limit} tokens in {p.n} {'answers' if p.n > 1 else 'answer'}, which "
            f"need {shown_size(needed)}, and the memory budget of {shown_size(held['budget'])} has "
            f"{shown_size(max(0, room))} beside the weights; ask for fewer max_tokens or raise memory=",
            needed=fixed + needed,
            budget=held["budget"],
        )

    def _running_loop(self) -> Loop:
        if os.getpid() != self._pid:
            raise native.forked()
        with self._lock:
            self._check_open()
            if self._loop is None:
                tokenizer = None if isinstance(self._tokenizer, ModelFileError) else self._tokenizer
                self._loop = Loop(
                    self._model,
                    Keeper(self._prefix, self._store, self.serving.prefix_cache),
                    self._scheduler,
                    end_ids=frozenset(self.config.eos_token_ids),
                    max_batch=self.serving.max_batch,
                    tokenizer=tokenizer,
                    check=partial(_check_pages, self._model, self._ledger),
                    speculate=self.serving.speculation,
                )
                weakref.finalize(self, self._loop.begin_close).atexit = False
            return self._loop

    def generate(
        self,
        prompt: Prompt,
        sampling: Sampling | None = None,
        *,
        thinking: bool = False,
        effort: str | int | None = None,
        tools: Sequence[Mapping[str, Any]] = (),
        priority: int = 0,
    ) -> Completion:
        """A whole answer to a prompt (text to continue, chat messages, or token ids); see `submit`."""
        options: dict[str, Any] = {"thinking": thinking, "effort": effort, "tools": tools, "priority": priority}
        return self.submit(prompt, sampling, **options).result()

    def stream(
        self,
        prompt: Prompt,
        sampling: Sampling | None = None,
        *,
        thinking: bool = False,
        effort: str | int | None = None,
        tools: Sequence[Mapping[str, Any]] = (),
        priority: int = 0,
        on_prefill: OnPrefill | None = None,
    ) -> Iterator[Event]:
        """The same answer as events, as soon as each piece is certain. Errors of the request are raised here, before
        the first event. Closing the iterator ends the answer and frees its memory.

        `on_prefill(done, total)` is called as the prompt is read.
        """
        options: dict[str, Any] = {"thinking": thinking, "effort": effort, "tools": tools, "priority": priority}
        return _answer_events(self.submit(prompt, sampling, **options), on_prefill)

    def prefill(
        self,
        prompt: Prompt,
        *,
        thinking: bool = False,
        effort: str | int | None = None,
        tools: Sequence[Mapping[str, Any]] = (),
        on_prefill: OnPrefill | None = None,
    ) -> Usage:
        """Read a prompt into the prefix cache, so that an answer to it, or to one that begins like it, starts at once.
        Returns how many tokens there are, and how many of them were kept already."""
        resolved = self._resolve(Sampling(temperature=0.0))
        encoded = self._encode(prompt, thinking, effort, tools)
        self._check_prompt(encoded.ids, room=0)
        events = _answer_events(self._submit(encoded, resolved, 0, 0), on_prefill)
        usage = [event.usage for event in events][-1]
        assert usage is not None
        return usage

    # ---- numbers

    def logits(
        self, ids: Sequence[int], *, chunks: Sequence[int] | None = None, rows: Sequence[int] | None = None
    ) -> npt.NDArray[np.float32]:
        """Logits f32 [T, V] of a sequence of token ids, or of the rows asked for, in that order.

        `chunks` cuts the computation into steps of these sizes (their sum must be T); the result is the same to the bit
        for any cut. Row t holds the logits after token t.
        """
        self._check_open()
        tokens = self._check_ids(ids)
        self._check_prompt(tokens, room=0)
        sizes = self._chunks(len(tokens), chunks)
        wanted = list(range(len(tokens))) if rows is None else [self._row(r, len(tokens)) for r in rows]
        found: dict[int, npt.NDArray[np.float32]] = {}
        state = self._model.new_sequence()
        try:
            state.reserve(len(tokens))
            start = 0
            for n in sizes:
                here = sorted({r - start for r in wanted if start <= r < start + n})
                logits = check_finite(self._model.run([Part(state, tokens[start : start + n], here)]), start, here)
                found.update({start + r: logits[i] for i, r in enumerate(here)})
                start += n
        finally:
            state.close()
        if not wanted:
            return np.zeros((0, self.config.vocab_size), np.float32)
        return np.stack([found[r] for r in wanted])

    def _chunks(self, total: int, chunks: Sequence[int] | None) -> list[int]:
        if chunks is None:
            chunks = [self.prefill_chunk] * (total // self.prefill_chunk) + [total % self.prefill_chunk]
            return [n for n in chunks if n]
        for n in chunks:
            if not isinstance(n, int) or isinstance(n, bool) or n < 1:
                raise RequestError(f"chunks holds {shown(n)}; every chunk must be a whole number of at least 1 token")
        if sum(chunks) != total:
            raise RequestError(f"chunks add up to {sum(chunks)}, but there are {total} tokens")
        limit = self._model.max_rows
        return [min(limit, n - at) for n in chunks for at in range(0, n, limit)]

    @staticmethod
    def _row(row: int, total: int) -> int:
        at = row + total if row < 0 else row
        if not 0 <= at < total:
            raise RequestError(f"rows holds {shown(row)}; there are {total} rows")
        return at

    def log_probs(self, logits: npt.NDArray[np.float32], ids: Sequence[int]) -> npt.NDArray[np.float32]:
        """log-probabilities f32 [n] of token ids under one row of logits f32 [V]."""
        with self._lock:
            return self._drawer.log_probs(np.ascontiguousarray(logits, np.float32), self._check_ids(ids))

    def draw(self, session: Session, sampling: Sampling | None = None) -> int:
        """A token to follow those of a session, which stays as it is."""
        resolved = self._resolve(sampling)
        logits = session.logits()
        with self._lock:
            return self._drawer.draw(logits, resolved, len(session))

    def session(self) -> Session:
        """An empty timeline of tokens."""
        self._check_open()
        session = Session(self)
        self._sessions.add(session)
        return session

    # ---- checks and end

    def _resolve(self, sampling: Sampling | None) -> Resolved:
        self._check_open()
        return resolve(sampling or Sampling(), self._checkpoint.generation)

    def _check_ids(self, ids: Sequence[Any]) -> list[int]:
        vocab = self.config.vocab_size
        checked = []
        for position, token in enumerate(ids):
            if isinstance(token, bool) or not isinstance(token, int | np.integer) or not 0 <= token < vocab:
                raise RequestError(
                    f"token {position} is {shown(token)}; token ids are whole numbers from 0 to {vocab - 1}"
                )
            checked.append(int(token))
        return checked

    def _check_range(self, ids: list[int]) -> None:
        """The same for many that are whole numbers."""
        numbers = np.asarray(ids, np.int64)
        if numbers.size and not 0 <= numbers.min() <= numbers.max() < self.config.vocab_size:
            self._check_ids(ids)

    def _check_prompt(self, ids: Sequence[int], room: int = 1) -> None:
        if not ids:
            raise RequestError("the prompt is empty; give at least one token of text")
        if len(ids) + room > self.context:
            raise ContextLengthError(
                f"the prompt has {len(ids)} tokens, which leaves no room for an answer in a context of {self.context}; "
                f"load with a larger context= or shorten the prompt"
                if room
                else f"{len(ids)} tokens exceed the context of {self.context}; load with a larger context=",
                tokens=len(ids),
                context=self.context,
            )

    def _check_open(self) -> None:
        if self._closed:
            raise EngineStateError("this engine is closed; load the model again")

    def stats(self) -> EngineStats:
        """What is going on: requests, steps, the prefix cache, pages, memory. From any thread."""
        loop, pool = self._loop, self._model.pool
        counts = LoopStats() if loop is None else loop.stats
        return EngineStats(
            waiting=counts.waiting,
            reading=counts.reading,
            running=counts.running,
            steps=dict(counts.steps),
            rows=dict(counts.rows),
            seconds=dict(counts.seconds),
            drawn=counts.drawn,
            drafted=counts.drafted,
            accepted=counts.accepted,
            gap_seconds=counts.gap_seconds,
            prefix=None if self._prefix is None else self._prefix.stats(),
            disk=None if self._store is None else self._store.stats(),
            pages=0 if pool is None else pool.pages,
            shared_pages=0 if pool is None else pool.shared,
            memory=self.memory(),
            last_steps=tuple(counts.last),
        )

    def _forget(self, session: Session) -> None:
        self._sessions.discard(session)

    def close(self) -> None:
        """Give everything back: sessions, pages, weights, mappings. Requests that are not answered yet end with an
        error. Closing twice is fine."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            loop = self._loop if os.getpid() == self._pid else None  # threads do not survive a fork
        if loop is not None:
            loop.close()
        for session in list(self._sessions):
            session.close()
        if self._prefix is not None:
            self._prefix.clear()
        if self._store is not None:
            self._store.close()
        self._grammars.close()
        self._model.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<finback.Engine {self.path.name}: {self.config.num_hidden_layers} layers, context {self.context}>"


def _answer_events(request: Request, on_prefill: OnPrefill | None) -> Iterator[Event]:
    """Events of answers; those of prompts go to `on_prefill`."""
    with request:
        for event in request:
            if event.progress is None:
                yield event
            elif on_prefill is not None:
                on_prefill(*event.progress)


def _thinking_tokens(tokenizer: Tokenizer | ModelFileError | None) -> tuple[int, int] | None:
    """The tokens that open and close thinking, None where there are none."""
    if tokenizer is None or isinstance(tokenizer, ModelFileError):
        return None
    try:
        return tokenizer.control_id(THINK), tokenizer.control_id(END_THINK)
    except RequestError:
        return None


def _seconds_per_token(scheduler: Scheduler) -> float:
    """Measured seconds of reading a token of a long prompt."""
    return scheduler.work(4096) / 4096


def _check_pages(model: Model, ledger: Ledger) -> None:
    """Count the pages over while no request runs."""
    if model.pool is not None:
        model.pool.check(ledger.table)
