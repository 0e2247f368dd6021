"""The draw of a token and its log-probability, on rows of logits.

Owns the native scratch for it, and the check that logits are finite. A draw depends only on the logits, the parameters
and the token's place (docs/exactness.md section 14), never on what else the engine was doing.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from finback import native
from finback.engine.result import TokenLogprob
from finback.engine.sampling import Resolved
from finback.errors import NumericError

LEAST_LOGPROB = -9999.0
"""Log-probabilities below are given as this: JSON has no infinity, and nobody tells the difference."""


def check_finite(logits: npt.NDArray[np.float32], start: int, rows: Sequence[int]) -> npt.NDArray[np.float32]:
    """`logits` f32 [n, V] of rows `start + rows[i]` of a sequence; NumericError if one holds a NaN or an infinity."""
    for row, values in zip(rows, logits, strict=True):
        if not np.isfinite(values).all():
            raise NumericError(not_finite(start + row))
    return logits


def not_finite(position: int) -> str:
    """The sentence of logits that are not finite."""
    return (
        f"the logits at position {position} are not finite; the weights are damaged "
        f"(finback inspect --check finds where) or the prompt overflows"
    )


class Drawer:
    """Draws tokens from rows of logits; owns native scratch of the vocabulary's width."""

    def __init__(self, isa: str, vocab: int) -> None:
        self._native, self.vocab = native.Sampler(isa, vocab), vocab

    def draw(self, logits: npt.NDArray[np.float32], p: Resolved, position: int, choice: int = 0) -> int:
        """The token at `position` of its sequence, for answer `choice`; `logits` f32 [V]. NumericError if they are not
        finite."""
        token = self._native.draw(logits, p.temperature, p.top_k, p.top_p, p.min_p, p.seed, choice, position)
        if token < 0:
            raise NumericError(not_finite(position - 1))
        return token

    def log_probs(self, logits: npt.NDArray[np.float32], ids: Sequence[int]) -> npt.NDArray[np.float32]:
        """log-probabilities f32 [n] of `ids` under logits f32 [V], before temperature and filters."""
        wanted = np.asarray(ids, np.int32)
        out = np.empty(len(wanted), np.float32)
        if not self._native.log_probs(logits, wanted, out):
            raise NumericError("the logits given are not finite; there are no log-probabilities under them")
        return out

    def logprob(self, logits: npt.NDArray[np.float32], token: int, top: int) -> TokenLogprob:
        """A token's log-probability and rank, and the `top` likeliest, under logits f32 [V]. NumericError if they are
        not finite."""
        best = likeliest(logits, min(top, self.vocab))
        found = np.maximum(self.log_probs(logits, [token, *best]), np.float32(LEAST_LOGPROB)).tolist()
        value = logits[token]
        rank = 1 + int(np.count_nonzero(logits > value)) + int(np.count_nonzero(logits[:token] == value))
        return TokenLogprob(token, found[0], rank, tuple(zip(best, found[1:], strict=True)))


def likeliest(logits: npt.NDArray[np.float32], n: int) -> list[int]:
    """The n ids of the greatest logits, greatest first, equal ones by id."""
    if n == 0:
        return []
    least = np.partition(logits, len(logits) - n)[len(logits) - n]
    candidates = np.flatnonzero(logits >= least)
    order = np.lexsort((candidates, -logits[candidates]))
    found: list[int] = candidates[order[:n]].tolist()
    return found
