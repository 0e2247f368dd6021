"""What the server has done: one line a request, and counts for Prometheus.

Owns what is written about requests: never a word of a prompt or an answer. Refuses to slow a request down.
"""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from finback.engine.stats import EngineStats
from finback.server.answer import AnswerEvent, Begun, CallArguments, Done, Ended, Failed, Said, Thought, Usage

BUCKETS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
"""Upper bounds of the histograms, seconds."""

_INDEX = re.compile(r"\[\d+\]")


@dataclass(slots=True)
class Entry:
    """One request, as it goes. ended: how, in a word. streams: its answer is sent piece by piece, and its line is
    written when that ends."""

    endpoint: str
    id: str = ""
    begun: float = field(default_factory=time.monotonic)
    first: float | None = None
    prompt: int = 0
    usage: Usage | None = None
    status: int = 200
    ended: str = ""
    streams: bool = False

    def see(self, event: AnswerEvent) -> None:
        """Take note of an event."""
        match event:
            case Begun(tokens):
                self.prompt = tokens
            case Thought() | Said() | CallArguments():
                if self.first is None:
                    self.first = time.monotonic()
            case Ended(reason=reason):
                self.ended = self.ended or reason
            case Done(usage):
                self.usage = usage
            case Failed(refusal):
                self.status, self.ended = refusal.status, "error"
            case _:
                pass


class Account:
    """Counts since the start. tell: gets the line of each request."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell = tell
        self.started = time.time()
        self.requests: Counter[tuple[str, int]] = Counter()
        self.tokens: Counter[str] = Counter()
        self._first: Counter[float] = Counter()
        self._whole: Counter[float] = Counter()
        self._sums = {"first": 0.0, "whole": 0.0}
        self.open = 0
        self._unknown: set[str] = set()

    def ignored(self, endpoint: str, names: tuple[str, ...]) -> None:
        """Fields that nobody knows: each name is said once."""
        for name in names:
            plain = _INDEX.sub("[]", name[:200])[:80]
            if plain not in self._unknown and len(self._unknown) < 1000:
                self._unknown.add(plain)
                self._tell(f"{endpoint}: the field {plain!r} is not known here and is ignored")

    def close(self, entry: Entry) -> None:
        """A request is over."""
        took = time.monotonic() - entry.begun
        self.requests[entry.endpoint, entry.status] += 1
        self._add("whole", self._whole, took)
        line = f"{time.strftime('%H:%M:%S')} {entry.endpoint}"
        if entry.status != 200:
            self._tell(f"{line} {entry.status} {took:.2f} s")
            return
        usage = entry.usage or Usage(prompt=entry.prompt)
        self.tokens.update(prompt=usage.prompt, cached=usage.cached, completion=usage.completion)
        cached = f", {100 * usage.cached // usage.prompt} % cached" if usage.prompt else ""
        line += f" prompt {usage.prompt}{cached}"
        if entry.first is not None:
            first = entry.first - entry.begun
            self._add("first", self._first, first)
            decode = time.monotonic() - entry.first
            speed = f", {(usage.completion - 1) / decode:.1f} tok/s" if usage.completion > 1 and decode > 0 else ""
            line += f", first {first:.2f} s, out {usage.completion}{speed}"
        self._tell(f"{line}, {entry.ended or 'done'}")

    def _add(self, name: str, buckets: Counter[float], seconds: float) -> None:
        self._sums[name] += seconds
        buckets[next((bound for bound in BUCKETS if seconds <= bound), float("inf"))] += 1

    # ---- Prometheus

    def metrics(self, stats: EngineStats | None, waiting: int, served: Mapping[str, float]) -> str:
        """Everything in the text format of Prometheus. served: more gauges by name."""
        return "\n".join([*self._requests(), *self._engine(stats, waiting), *_gauges(served)]) + "\n"

    def _requests(self) -> Iterator[str]:
        yield from _head("requests_total", "counter", "Requests that are over, by endpoint and status.")
        for (endpoint, status), count in sorted(self.requests.items()):
            yield f'finback_requests_total{{endpoint="{endpoint}",status="{status}"}} {count}'
        texts = {
            "prompt": "Tokens of prompts.",
            "cached": "Tokens of prompts that were not computed.",
            "completion": "Tokens of answers.",
        }
        for name, text in texts.items():
            yield from _head(f"{name}_tokens_total", "counter", text)
            yield f"finback_{name}_tokens_total {self.tokens[name]}"
        yield from self._histogram("time_to_first_token_seconds", "first", self._first, "Until the first token.")
        yield from self._histogram("request_seconds", "whole", self._whole, "Of whole requests.")

    def _histogram(self, name: str, key: str, buckets: Counter[float], text: str) -> Iterator[str]:
        yield from _head(name, "histogram", text)
        count = 0
        for bound in BUCKETS:
            count += buckets[bound]
            yield f'finback_{name}_bucket{{le="{bound:g}"}} {count}'
        count += buckets[float("inf")]
        yield f'finback_{name}_bucket{{le="+Inf"}} {count}'
        yield f"finback_{name}_sum {self._sums[key]:.6f}"
        yield f"finback_{name}_count {count}"

    @staticmethod
    def _engine(stats: EngineStats | None, waiting: int) -> Iterator[str]:
        yield from _head("requests_waiting", "gauge", "Requests that wait for the engine.")
        yield f"finback_requests_waiting {waiting}"
        if stats is None:
            return
        numbers: dict[str, tuple[str, str, float]] = {
            "requests_reading": ("gauge", "Prompts that are being read.", stats.reading),
            "requests_running": ("gauge", "Answers that are being drawn.", stats.running),
            "drafts_total": ("counter", "Drafts that were computed.", stats.drafted),
            "drafts_accepted_total": ("counter", "Drafts that were right.", stats.accepted),
            "pages": ("gauge", "Pages of the cache in use.", stats.pages),
            "pages_shared": ("gauge", "Pages in use by more than one sequence.", stats.shared_pages),
        }
        for name, (kind, text, value) in numbers.items():
            yield from _head(name, kind, text)
            yield f"finback_{name} {value}"
        for name, text, by_kind in (
            ("steps_total", "Steps of the engine.", stats.steps),
            ("step_rows_total", "Tokens computed in steps.", stats.rows),
            ("step_seconds_total", "Seconds of steps.", stats.seconds),
        ):
            yield from _head(name, "counter", text)
            for kind, number in by_kind.items():
                yield f'finback_{name}{{kind="{kind}"}} {number}'
        yield from _head("memory_bytes", "gauge", "Bytes by entry of the memory plan.")
        for entry, size in stats.memory.items():
            yield f'finback_memory_bytes{{entry="{entry}"}} {size}'


def _head(name: str, kind: str, text: str) -> Iterator[str]:
    yield f"# HELP finback_{name} {text}"
    yield f"# TYPE finback_{name} {kind}"


def _gauges(values: Mapping[str, float]) -> Iterator[str]:
    for name, value in values.items():
        yield f"# TYPE finback_{name} gauge"
        yield f"finback_{name} {value:g}"
