"""The engine: one loaded model, and the three things to do with it (generate, stream, logits) plus sessions.

Owns the path from a prompt to an answer: text or messages become ids, ids become logits, logits become tokens, tokens
become text. Refuses what cannot fit (context, memory) before it starts, with the numbers. Calls from several threads
are answered one after another. Nothing here knows a tensor; `ops/native.py` does.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import numpy.typing as npt

from finback.engine.result import Completion, Event, FinishReason, Timings, Usage
from finback.engine.sampler import Drawer, Resolved, Sampling, check_finite, resolve
from finback.engine.session import OnPrefill, Session
from finback.errors import EngineStateError, ModelFileError, RequestError, shown
from finback.ops.step import Part
from finback.text.stop import StopMatcher
from finback.text.utf8 import Utf8Decoder

if TYPE_CHECKING:
    from finback.config import ModelConfig
    from finback.ops.native import Listed
    from finback.ops.select import Model
    from finback.text.tokenizer import Tokenizer
    from finback.weights.checkpoint import OpenedCheckpoint
    from finback.weights.ledger import Ledger

Prompt = str | Sequence[int] | Sequence[Mapping[str, Any]]
"""Text to continue, token ids as they are, or chat messages in OpenAI's shape."""


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
        tokenizer: Tokenizer | ModelFileError | None,
    ) -> None:
        self._checkpoint, self._model, self._ledger = checkpoint, model, ledger
        self._tokenizer, self._drawer = tokenizer, Drawer(model.isa, checkpoint.config.vocab_size)
        self.context, self.prefill_chunk = context, prefill_chunk
        self._sessions: set[Session] = set()
        self._lock = threading.RLock()
        self._closed = False

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

    def memory(self) -> dict[str, int]:
        """Bytes in use by entry of the ledger, "budget" among them."""
        return self._ledger.table()

    def program_listing(self) -> list[Listed]:
        """The recorded operations: entry point, name, rows, shape, bytes and arena offset of each value."""
        return self._model.program_listing()

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
        if isinstance(prompt, str):
            bos = self.config.bos_token_id
            return ([] if bos is None else [bos]) + self.tokenizer.encode(prompt)
        items = list(prompt)
        if items and all(isinstance(item, Mapping) for item in items):
            return self._render(items, thinking, effort, tools)
        return self._check_ids(items)

    def _render(
        self, messages: list[Any], thinking: bool, effort: str | int | None, tools: Sequence[Mapping[str, Any]]
    ) -> list[int]:
        from finback.text.dialects import V4_0731, find_dialect
        from finback.text.messages import messages_from_json, tools_from_json, wants_continuation
        from finback.text.render import render

        prompt = render(
            messages_from_json(messages, thinking=thinking),
            tools=tools_from_json(tools),
            thinking=thinking,
            effort=effort,
            continue_last=wants_continuation(messages),
            dialect=find_dialect(self._checkpoint.dialect) if self._checkpoint.dialect else V4_0731,
        )
        return self.tokenizer.encode_prompt(prompt).ids

    def generate(
        self,
        prompt: Prompt,
        sampling: Sampling | None = None,
        *,
        thinking: bool = False,
        effort: str | int | None = None,
        tools: Sequence[Mapping[str, Any]] = (),
    ) -> Completion:
        """A whole answer to a prompt (text to continue, chat messages, or token ids)."""
        resolved = self._resolve(sampling)
        ids = self.encode(prompt, thinking=thinking, effort=effort, tools=tools)
        tokens: list[int] = []
        text: list[str] = []
        last = Event()
        for last in self._answer(ids, resolved, None):
            tokens += last.token_ids
            text.append(last.text)
        assert last.finish_reason is not None
        assert last.usage is not None
        assert last.timings is not None
        return Completion("".join(text), tuple(tokens), last.finish_reason, last.usage, resolved.seed, last.timings)

    def stream(
        self,
        prompt: Prompt,
        sampling: Sampling | None = None,
        *,
        thinking: bool = False,
        effort: str | int | None = None,
        tools: Sequence[Mapping[str, Any]] = (),
        on_prefill: OnPrefill | None = None,
    ) -> Iterator[Event]:
        """The same answer as events, as soon as each piece is certain. Errors of the request are raised here, before
        the first event. Closing the iterator ends the answer and frees its memory."""
        resolved = self._resolve(sampling)
        ids = self.encode(prompt, thinking=thinking, effort=effort, tools=tools)
        self._check_prompt(ids)
        return self._answer(ids, resolved, on_prefill)

    def _answer(self, ids: list[int], p: Resolved, on_prefill: OnPrefill | None) -> Iterator[Event]:
        """Prefill, then draw until something ends the answer."""
        self._check_prompt(ids)
        begun = time.perf_counter()
        first = begun
        tokenizer = self._tokenizer
        if isinstance(tokenizer, ModelFileError):
            tokenizer = self.tokenizer if p.stops else None  # raises: stop strings need it
        writer = _Writer(tokenizer, p)
        limit = self.context - len(ids) if p.max_tokens is None else min(p.max_tokens, self.context - len(ids))
        with self.session() as session:
            session.append(ids, on_prefill=on_prefill)
            finish: FinishReason = "length"
            while writer.count < limit:
                token = self._drawer.draw(session._last_logits(), p, len(session))
                if writer.count == 0:
                    first = time.perf_counter()
                if self._ends(token, p):
                    finish = "stop"
                    break
                text = writer.write(token)
                if writer.stopped:
                    yield Event((token,), text)
                    finish = "stop"
                    break
                yield Event((token,), text)
                if writer.count < limit:
                    session._append_drawn(token)
            usage = Usage(len(ids), writer.count, 0)
            end = time.perf_counter()
            yield Event((), writer.finish(), finish, usage, Timings(first - begun, end - first))

    def _ends(self, token: int, p: Resolved) -> bool:
        return token in p.stop_token_ids or (not p.ignore_eos and token in self.config.eos_token_ids)

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

    def _check_prompt(self, ids: Sequence[int], room: int = 1) -> None:
        if not ids:
            raise RequestError("the prompt is empty; give at least one token of text")
        if len(ids) + room > self.context:
            raise RequestError(
                f"the prompt has {len(ids)} tokens, which leaves no room for an answer in a context of {self.context}; "
                f"load with a larger context= or shorten the prompt"
                if room
                else f"{len(ids)} tokens exceed the context of {self.context}; load with a larger context="
            )

    def _check_open(self) -> None:
        if self._closed:
            raise EngineStateError("this engine is closed; load the model again")

    def _forget(self, session: Session) -> None:
        self._sessions.discard(session)

    def close(self) -> None:
        """Give everything back: sessions, pages, weights, mappings. Closing twice is fine."""
        with self._lock:
            if self._closed:
                return
            for session in list(self._sessions):
                session.close()
            self._closed = True
            self._model.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<finback.Engine {self.path.name}: {self.config.num_hidden_layers} layers, context {self.context}>"


class _Writer:
    """Tokens in, certain text out: whole characters only, stop strings cut exactly. Without a tokenizer, no text."""

    def __init__(self, tokenizer: Tokenizer | None, p: Resolved) -> None:
        if tokenizer is None and p.stops:
            raise RequestError("stop strings need a tokenizer, and this model has none; use stop_token_ids")
        self._tokenizer = tokenizer
        self._characters, self._matcher = Utf8Decoder(), StopMatcher(p.stops)
        self.count = 0

    @property
    def stopped(self) -> bool:
        return self._matcher.matched is not None

    def write(self, token: int) -> str:
        self.count += 1
        if self._tokenizer is None:
            return ""
        return self._matcher.feed(self._characters.feed(self._tokenizer.id_to_bytes(token)))

    def finish(self) -> str:
        if self.stopped:
            return ""
        return self._matcher.feed(self._characters.flush()) + self._matcher.flush()
