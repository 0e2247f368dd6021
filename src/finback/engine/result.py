"""What an answer is made of: events while it is written, and the completion when it is done."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

FinishReason = Literal["stop", "length"]
"""stop: the end-of-text token, a stop token or a stop string. length: max_tokens or the end of the context."""


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of a request: in the prompt, in the answer (the stopping token not counted), and reused from a cache."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Timings:
    """Seconds from the request to the first token, and from the first to the last."""

    prefill_s: float = 0.0
    decode_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Event:
    """A piece of an answer: new tokens (possibly none) and the text that became certain with them (possibly empty).

    The last event of an answer carries `finish_reason`, `usage` and `timings`.
    """

    token_ids: tuple[int, ...] = ()
    text: str = ""
    finish_reason: FinishReason | None = None
    usage: Usage | None = None
    timings: Timings | None = None


@dataclass(frozen=True, slots=True)
class Completion:
    """A whole answer. `seed` repeats it."""

    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason
    usage: Usage
    seed: int
    timings: Timings = field(default_factory=Timings)
