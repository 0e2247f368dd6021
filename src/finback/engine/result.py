"""What an answer is made of: events while it is written, and the completion when it is done."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, NamedTuple

FinishReason = Literal["stop", "length", "repetition", "cancelled"]
"""stop: the end-of-text token, a stop token or a stop string. length: max_tokens, the end of the context or of the
memory. repetition: the loop detector. cancelled: `Request.cancel`."""


class TokenLogprob(NamedTuple):
    """How likely a token was: its log-probability before temperature, penalties and filters, its rank (1: the
    likeliest), and the likeliest ids with theirs, in order. Always finite: what is less likely than -9999 is that."""

    token: int
    logprob: float
    rank: int
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of a request: in the prompt, in its answers (stopping tokens not counted), and of the prompt reused from
    the prefix cache; `cache` says how, or why not more."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    cache: str = ""


@dataclass(frozen=True, slots=True)
class Timings:
    """Seconds from the request to the first token, from the first to the last, and, of the former, until its prompt
    was begun."""

    prefill_s: float = 0.0
    decode_s: float = 0.0
    queue_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Event:
    """A piece of an answer: new tokens (possibly none) and the text that became certain with them (possibly empty).

    The last event of each answer carries `finish_reason`, with what ended it if that was a stop string (`stop`) or a
    stopping token (`end`, where logprobs are asked for), neither of them part of the answer; the last of the request
    also `usage` and `timings`. `index` is the number of the answer, `logprobs` is parallel to `token_ids` if asked for.
    Events with `progress` come before: tokens of the prompt read so far, and all.
    """

    token_ids: tuple[int, ...] = ()
    text: str = ""
    finish_reason: FinishReason | None = None
    usage: Usage | None = None
    timings: Timings | None = None
    index: int = 0
    logprobs: tuple[TokenLogprob, ...] = ()
    progress: tuple[int, int] | None = None
    stop: str | None = None
    end: TokenLogprob | None = None


@dataclass(frozen=True, slots=True)
class Completion:
    """A whole answer. `seed` repeats it. `others`: the further answers of n > 1; usage is that of all."""

    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason
    usage: Usage
    seed: int
    timings: Timings = field(default_factory=Timings)
    logprobs: tuple[TokenLogprob, ...] = ()
    prompt_logprobs: tuple[TokenLogprob | None, ...] | None = None
    others: tuple[Completion, ...] = ()
