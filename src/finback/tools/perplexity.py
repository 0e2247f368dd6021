"""Scores a text under a model: log-probability of each token, and perplexity over windows.

Owns the definition printed beside every number: natural logarithms, independent windows that begin with the
begin-of-text token, the token after it predicted first. Refuses texts with nothing to predict.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

import numpy as np

from finback.errors import RequestError

if TYPE_CHECKING:
    from finback.engine.engine import Engine

ROWS_AT_ONCE = 64  # rows of logits held at a time: 33 MB at the official vocabulary


@dataclass(frozen=True, slots=True)
class Scored:
    """One token: its log-probability given the ones before (None for the first), and the likeliest ones there."""

    token: int
    log_prob: float | None
    top: tuple[tuple[int, float], ...] = ()


def score(engine: Engine, ids: Sequence[int], *, top: int = 0) -> Iterator[Scored]:
    """Score every token of `ids`; computes in one pass, `ROWS_AT_ONCE` rows of logits at a time."""
    if not ids:
        raise RequestError("the text is empty; there is no token to score")
    yield Scored(ids[0], None)
    with engine.session() as session:
        for start in range(0, len(ids) - 1, ROWS_AT_ONCE):
            part = ids[start : start + ROWS_AT_ONCE]
            logits = session.append_logits(part)
            for row, token in enumerate(ids[start + 1 : start + 1 + len(part)]):
                best: list[int] = []
                if top:
                    order = np.lexsort((np.arange(logits.shape[1]), -logits[row]))
                    best = [int(i) for i in order[:top]]
                values = engine.log_probs(logits[row], [token, *best])
                pairs = tuple((i, float(v)) for i, v in zip(best, values[1:], strict=True))
                yield Scored(token, float(values[0]), pairs)


@dataclass(frozen=True, slots=True)
class Perplexity:
    """exp(mean negative log-probability) with its standard error, and what it was measured on."""

    perplexity: float
    error: float
    loss: float  # nats per token
    bits_per_byte: float
    tokens: int
    windows: int
    window: int

    def as_dict(self) -> dict[str, float | int]:
        return asdict(self)


def perplexity(
    engine: Engine, text: str, *, window: int, on_progress: Callable[[int, int], None] = lambda done, total: None
) -> Perplexity:
    """Perplexity of `text` in independent windows of `window` tokens, begin-of-text token included."""
    if not 2 <= window <= engine.context:
        raise RequestError(f"window is {window}; it must be from 2 to the context of {engine.context} tokens")
    body = engine.tokenizer.encode(text)
    if not body:
        raise RequestError("the text is empty; there is no token to score")
    bos = engine.config.bos_token_id
    head = [] if bos is None else [bos]
    step = window - len(head)
    losses: list[float] = []
    windows = 0
    for start in range(0, len(body), step):
        ids = head + body[start : start + step]
        if len(ids) < 2:
            continue
        losses += [-s.log_prob for s in score(engine, ids) if s.log_prob is not None]
        windows += 1
        on_progress(min(start + step, len(body)), len(body))
    if not losses:
        raise RequestError("the text has one token and the model no begin-of-text token; there is nothing to predict")
    values = np.asarray(losses)
    loss = float(values.mean())
    spread = float(values.std(ddof=1) / math.sqrt(len(values))) if len(values) > 1 else 0.0
    bits = float(values.sum()) / math.log(2) / max(len(text.encode()), 1)
    return Perplexity(math.exp(loss), math.exp(loss) * spread, loss, bits, len(losses), windows, window)
