"""How the next token is chosen: the parameters a caller may set, and the draw itself.

Owns the names, ranges and precedence of sampling parameters: explicit beats the model's generation_config.json, which
beats the library's defaults. The draw is native and depends only on the logits, the parameters and the token's position
(docs/exactness.md section 14), never on what else the engine was doing.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from finback import native
from finback.config import GenerationDefaults
from finback.errors import NumericError, RequestError, shown
from finback.text.stop import check_stops

SEED_RANGE = 2**64


@dataclass(frozen=True, slots=True)
class Sampling:
    """Sampling parameters of one answer. None means: the model's generation_config.json, else the library's default.

    temperature: 0 is greedy, equal logits to the lowest id. top_k: 0 is off. top_p: 1 is off. min_p: share of the
    greatest probability below which a token is dropped; 0 is off. seed: the same seed gives the same answer; None
    draws one, which the answer reports. max_tokens: None is until the context is full. stop: strings that end the
    answer, not part of it. stop_token_ids: ids that end the answer, not part of it. ignore_eos: go on past the
    end-of-text token.
    """

    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    seed: int | None = None
    max_tokens: int | None = None
    stop: str | Sequence[str] = ()
    stop_token_ids: Sequence[int] = ()
    ignore_eos: bool = False

    def __post_init__(self) -> None:
        _real("temperature", self.temperature, 0.0, 100.0)
        _whole("top_k", self.top_k, 0, 2**31 - 1)
        _real("top_p", self.top_p, 0.0, 1.0, open_low=True)
        _real("min_p", self.min_p, 0.0, 1.0)
        _whole("seed", self.seed, 0, SEED_RANGE - 1)
        _whole("max_tokens", self.max_tokens, 1, 2**31 - 1)
        object.__setattr__(self, "stop", check_stops(self.stop))
        object.__setattr__(self, "stop_token_ids", tuple(self.stop_token_ids))
        for token in self.stop_token_ids:
            _whole("stop_token_ids", token, 0, 2**31 - 1)

    @property
    def stops(self) -> tuple[str, ...]:
        return tuple(self.stop)


def _real(name: str, value: float | None, low: float, high: float, *, open_low: bool = False) -> None:
    if value is None:
        return
    good = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if not good or value < low or value > high or (open_low and value == low):
        bracket = "(" if open_low else "["
        raise RequestError(f"{name} is {shown(value)}; it must be a number in {bracket}{low:g}, {high:g}]")


def _whole(name: str, value: int | None, low: int, high: int) -> None:
    if value is None:
        return
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise RequestError(f"{name} is {shown(value)}; it must be a whole number from {low} to {high}")


@dataclass(frozen=True, slots=True)
class Resolved:
    """Sampling with every default filled in."""

    temperature: float
    top_k: int
    top_p: float
    min_p: float
    seed: int
    max_tokens: int | None
    stops: tuple[str, ...]
    stop_token_ids: frozenset[int]
    ignore_eos: bool


def resolve(sampling: Sampling, defaults: GenerationDefaults) -> Resolved:
    """Fill what `sampling` leaves open: from the model's generation_config.json, else from the library.

    A model that says `do_sample: false` asks for greedy decoding. Library defaults: temperature 1, no filter.
    """

    def pick(explicit: float | None, model: float | None, library: float) -> float:
        return explicit if explicit is not None else model if model is not None else library

    return Resolved(
        temperature=float(pick(sampling.temperature, defaults.temperature, 1.0)),
        top_k=int(pick(sampling.top_k, defaults.top_k, 0)),
        top_p=float(pick(sampling.top_p, defaults.top_p, 1.0)),
        min_p=sampling.min_p if sampling.min_p is not None else 0.0,
        seed=sampling.seed if sampling.seed is not None else secrets.randbits(53),
        max_tokens=sampling.max_tokens,
        stops=sampling.stops,
        stop_token_ids=frozenset(sampling.stop_token_ids),
        ignore_eos=sampling.ignore_eos,
    )


def check_finite(logits: npt.NDArray[np.float32], start: int, rows: Sequence[int]) -> npt.NDArray[np.float32]:
    """`logits` f32 [n, V] of rows `start + rows[i]` of a sequence; NumericError if one holds a NaN or an infinity."""
    for row, values in zip(rows, logits, strict=True):
        if not np.isfinite(values).all():
            raise NumericError(_not_finite(start + row))
    return logits


def _not_finite(position: int) -> str:
    return (
        f"the logits at position {position} are not finite; the weights are damaged "
        f"(finback inspect --check finds where) or the prompt overflows"
    )


class Drawer:
    """Draws tokens from rows of logits; owns native scratch of the vocabulary's width."""

    def __init__(self, isa: str, vocab: int) -> None:
        self._native = native.Sampler(isa, vocab)

    def draw(self, logits: npt.NDArray[np.float32], p: Resolved, position: int, choice: int = 0) -> int:
        """The token at `position` of its sequence; `logits` f32 [V]. NumericError if they are not finite."""
        token = self._native.draw(logits, p.temperature, p.top_k, p.top_p, p.min_p, p.seed, choice, position)
        if token < 0:
            raise NumericError(_not_finite(position - 1))
        return token

    def log_probs(self, logits: npt.NDArray[np.float32], ids: Sequence[int]) -> npt.NDArray[np.float32]:
        """log-probabilities f32 [n] of `ids` under logits f32 [V], before temperature and filters."""
        wanted = np.asarray(ids, np.int32)
        out = np.empty(len(wanted), np.float32)
        if not self._native.log_probs(logits, wanted, out):
            raise NumericError("the logits given are not finite; there are no log-probabilities under them")
        return out
