"""An engine that says what it is told: chosen tokens at a chosen pace, through the real tokenizer and publisher.

Owns the pace and the order of answers. For tests of what is around an engine and for measuring it: nothing is computed.
Refuses to judge what it says.
"""

from __future__ import annotations

import heapq
import itertools
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from finback.config import GenerationDefaults
from finback.engine.choice import Drawn, Thinking
from finback.engine.engine import Encoded
from finback.engine.publisher import Answer, Over, Publisher, Read, Said
from finback.engine.request import Request
from finback.engine.result import TokenLogprob
from finback.engine.sampling import Sampling, resolve
from finback.engine.stats import EngineStats
from finback.engine.writer import Writer
from finback.errors import ContextLengthError, EngineStateError
from finback.text.dialects import V4_0731, Dialect
from finback.text.render import END_THINK, THINK
from finback.text.tokenizer import Tokenizer

EMPTY_BUDGET = 1 << 30


@dataclass(frozen=True, slots=True)
class Line:
    """What is said to one request: text, in which the spelling of a control token is that token, or ids. reading:
    seconds for the prompt, in `chunks` of progress. gap: seconds between tokens. ends: the end-of-text token follows;
    else the answer goes on until its limit, from the beginning again."""

    say: str | Sequence[int]
    reading: float = 0.0
    chunks: int = 1
    gap: float = 0.0
    ends: bool = True


@dataclass(eq=False, slots=True)
class _Play:
    """A request that is being answered."""

    request: Request
    answers: list[Answer]
    line: Line
    ids: list[int]
    at: int = 0  # token that comes next
    chunk: int = 0


@dataclass(frozen=True, slots=True)
class _Config:
    eos_token_ids: tuple[int, ...]
    hidden_size: int = 256


@dataclass(eq=False)
class ScriptedEngine:
    """Answers by `script`, a function of the prompt's text, or by the lines that were queued with `say`.

    slots: requests answered at once; others wait.
    """

    tokenizer: Tokenizer
    script: Callable[[str], Line] | None = None
    slots: int = 64
    context: int = 1 << 20
    notes: tuple[str, ...] = ()
    threads: int = 1
    isa: str = "none"
    runs: int = 0  # requests that were begun
    lines: deque[Line] = field(default_factory=deque)

    def __post_init__(self) -> None:
        self._due: list[tuple[float, int, _Play]] = []
        self._waiting: deque[_Play] = deque()
        self._open: set[_Play] = set()
        self._known: deque[list[int]] = deque(maxlen=32)
        self._order = itertools.count()
        self._changed = threading.Condition()
        self._closed = False
        self._publisher = Publisher()
        self._think = (self.tokenizer.control_id(THINK), self.tokenizer.control_id(END_THINK))
        self._thread = threading.Thread(target=self._work, name="finback-script", daemon=True)
        self._thread.start()

    # ---- what an engine has

    @property
    def config(self) -> Any:
        """What is asked of a model's architecture around an engine."""
        return _Config((self.tokenizer.eos_id,))

    @property
    def dialect(self) -> Dialect:
        """The prompt format."""
        return V4_0731

    def memory(self) -> dict[str, int]:
        """A budget, and nothing in it."""
        return {"budget": EMPTY_BUDGET}

    def set_aside(self, name: str, size: int) -> None:
        """There is no ledger."""

    def encode(self, prompt: str) -> list[int]:
        """Text after the begin-of-text token."""
        return [self.tokenizer.bos_id, *self.tokenizer.encode(prompt)]

    def say(self, *lines: str | Line) -> None:
        """What the next requests are answered with, one line each."""
        self.lines.extend(line if isinstance(line, Line) else Line(line) for line in lines)

    def submit(self, prompt: Encoded, sampling: Sampling | None = None, *, priority: int = 0) -> Request:
        """Begin an answer, as `Engine.submit` does."""
        if self._closed:
            raise EngineStateError("this engine is closed; load the model again")
        if len(prompt.ids) >= self.context:
            raise ContextLengthError(
                f"the prompt has {len(prompt.ids)} tokens, which leaves no room for an answer in a context of "
                f"{self.context}",
                tokens=len(prompt.ids),
                context=self.context,
            )
        p = resolve(sampling or Sampling(), GenerationDefaults())
        room = self.context - len(prompt.ids)
        limit = room if p.max_tokens is None else min(room, p.max_tokens)
        opened = prompt.ids[-1] == self._think[0] if prompt.thinking is None else prompt.thinking
        thinking = [Thinking(self._think[1], p.thinking_budget) if opened else None for _ in range(p.n)]
        request = Request(
            prompt.ids,
            prompt.marks,
            p,
            limit=limit,
            priority=priority,
            on_cancel=self._wake,
            thinking=thinking,
            constraints=[None] * p.n,
        )
        answers = [
            Answer(request, i, Writer(self.tokenizer, p.stops, p.min_tokens, None if t is None else t.end))
            for i, t in enumerate(thinking)
        ]
        line = self.lines.popleft() if self.lines else self._scripted(prompt.ids)
        said = line.say
        ids = self.tokenizer.encode_with_controls(said) if isinstance(said, str) else list(said)
        with self._changed:
            self._waiting.append(_Play(request, answers, line, ids))
            self._changed.notify()
        return request

    def stats(self) -> EngineStats:
        """Counts of requests."""
        return EngineStats(
            waiting=len(self._waiting),
            reading=0,
            running=len(self._open),
            steps={},
            rows={},
            seconds={},
            drawn=0,
            drafted=0,
            accepted=0,
            gap_seconds=0.0,
            prefix=None,
            disk=None,
            pages=0,
            shared_pages=0,
            memory=self.memory(),
        )

    def close(self) -> None:
        """End everything."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join()
        self._publisher.close()

    # ---- the thread

    def _scripted(self, ids: Sequence[int]) -> Line:
        return Line("") if self.script is None else self.script(self.tokenizer.decode(ids))

    def _wake(self) -> None:
        with self._changed:
            self._changed.notify()

    def _work(self) -> None:
        while True:
            with self._changed:
                if self._closed:
                    return
                self._begin_waiting()
                self._drop_cancelled()
                now = time.monotonic()
                if not self._due or self._due[0][0] > now:
                    self._changed.wait(self._due[0][0] - now if self._due else None)
                    continue
                _, _, play = heapq.heappop(self._due)
            if play in self._open:
                self._advance(play)

    def _begin_waiting(self) -> None:
        while self._waiting and len(self._open) < self.slots:
            play = self._waiting.popleft()
            if not play.request.cancelled:
                self.runs += 1
                play.request.started = time.perf_counter()
                play.request.cached_tokens = self._cached(play.request.ids)
            self._open.add(play)
            self._later(play, play.line.reading / play.line.chunks)

    def _cached(self, ids: Sequence[int]) -> int:
        """Tokens that an earlier request had in common, as a prefix cache would find them."""
        longest = max((_alike(ids, known) for known in self._known), default=0)
        return min(longest, len(ids) - 1)

    def _drop_cancelled(self) -> None:
        for play in [play for play in self._open if play.request.cancelled]:
            self._end(play, [Over(answer, "cancelled") for answer in play.answers])
        for play in [play for play in self._waiting if play.request.cancelled]:
            self._waiting.remove(play)
            self._publisher.post([Over(answer, "cancelled") for answer in play.answers])

    def _later(self, play: _Play, seconds: float) -> None:
        heapq.heappush(self._due, (time.monotonic() + seconds, next(self._order), play))

    def _end(self, play: _Play, notes: Sequence[Over]) -> None:
        self._open.discard(play)
        self._known.append([*play.request.ids, *play.ids[: play.at]])
        self._publisher.post(notes)

    def _advance(self, play: _Play) -> None:
        """The next of what a request gets: progress, or a token."""
        request, line = play.request, play.line
        if play.chunk < line.chunks:
            play.chunk += 1
            done = len(request.ids) * play.chunk // line.chunks
            self._publisher.post([Read(request, done)])
            self._later(play, line.reading / line.chunks if play.chunk < line.chunks else 0.0)
            return
        if play.at == 0:
            request.first_token = time.perf_counter()
            if request.prompt_logprobs is not None:
                request.prompt_logprobs += [self._logprob(token, 0) for token in request.ids[1:]]
        closing = request.thinking[0] is not None and request.thinking[0].close
        token = self._think[1] if closing else self._token(play)
        if closing and request.thinking[0] is not None:
            request.thinking[0].close = False
            play.at = play.ids.index(token) if token in play.ids else len(play.ids) - 1
        if token is None:
            end = self._logprob(self.tokenizer.eos_id, request.sampling.logprobs)
            self._publisher.post([Said(a, Drawn(self.tokenizer.eos_id, "stop", False, end)) for a in play.answers])
            self._end(play, ())
            return
        play.at += 1
        last = "length" if play.at >= request.limit else None
        logprob = self._logprob(token, request.sampling.logprobs)
        self._publisher.post([Said(a, Drawn(token, last, True, logprob)) for a in play.answers])  # type: ignore[arg-type]
        if last is not None or all(answer.ended for answer in play.answers):
            self._end(play, ())
        else:
            self._later(play, line.gap)

    def _token(self, play: _Play) -> int | None:
        """The token that comes next; None at the end."""
        if play.at < len(play.ids):
            return play.ids[play.at]
        return None if play.line.ends or not play.ids else play.ids[play.at % len(play.ids)]

    @staticmethod
    def _logprob(token: int, top: int | None) -> TokenLogprob | None:
        return None if top is None else TokenLogprob(token, -0.5, 1, ((token, -0.5),) if top else ())


def _alike(a: Sequence[int], b: Sequence[int]) -> int:
    """Tokens at the beginning that two have in common."""
    low, high = 0, min(len(a), len(b))
    while low < high:
        middle = (low + high + 1) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
