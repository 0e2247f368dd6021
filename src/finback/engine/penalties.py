"""What is done to a row of logits before a token is drawn from it: biases, penalties, and tokens that may not end it.

Owns the order and the rounding of these operations, which docs/exactness.md section 14 fixes to the bit: float32, one
rounding each. Refuses nothing: the parameters were checked, and no finite row becomes one that is not.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from finback.engine.sampling import Resolved

GREATEST = np.finfo(np.float32).max
MASKED = -GREATEST
"""The logit of a token that may not be drawn: the least finite number, so that a row stays one."""


def force(logits: npt.NDArray[np.float32], token: int) -> None:
    """Leave one token of a row f32 [V], however unlikely it was."""
    kept = max(logits[token], np.float32(0.0))
    logits[:] = MASKED
    logits[token] = kept


class Adjustments:
    """Biases and penalties of one answer. Counts the tokens of its prompt and of itself."""

    def __init__(self, p: Resolved, prompt: Sequence[int], end_ids: Iterable[int], vocab: int) -> None:
        """end_ids: what may not be drawn before min_tokens."""
        self._bias_ids = np.array([token for token in p.logit_bias if token < vocab], np.int64)
        self._bias = np.array([v for token, v in p.logit_bias.items() if token < vocab], np.float32)
        self._repetition = np.float32(p.repetition_penalty)
        self._frequency, self._presence = np.float32(p.frequency_penalty), np.float32(p.presence_penalty)
        self._repeats = p.repetition_penalty != 1.0
        self._counts_answer = p.frequency_penalty != 0.0 or p.presence_penalty != 0.0
        self._seen = np.zeros(vocab if self._repeats else 0, bool)
        if self._repeats:
            self._seen[np.asarray(prompt, np.int64)] = True
        self._counts: dict[int, int] = {}
        self._end_ids = np.array(sorted(token for token in end_ids if token < vocab), np.int64)

    def add(self, token: int) -> None:
        """The answer goes on with `token`."""
        if self._repeats:
            self._seen[token] = True
        if self._counts_answer:
            self._counts[token] = self._counts.get(token, 0) + 1

    def apply(self, logits: npt.NDArray[np.float32], *, may_end: bool) -> None:
        """Change a row f32 [V] of finite logits in place."""
        with np.errstate(over="ignore"):  # what overflows is brought back below
            if len(self._bias_ids):
                logits[self._bias_ids] = _finite(logits[self._bias_ids] + self._bias)
            if self._repeats:
                z = logits[self._seen]
                logits[self._seen] = _finite(np.where(z > 0, z / self._repetition, z * self._repetition))
            if self._counts:
                ids = np.fromiter(self._counts.keys(), np.int64, len(self._counts))
                counts = np.fromiter(self._counts.values(), np.float32, len(self._counts))
                z = _finite(logits[ids] - self._frequency * counts)
                logits[ids] = _finite(z - self._presence)
        if not may_end:
            logits[self._end_ids] = MASKED


def _finite(z: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    return np.clip(z, -GREATEST, GREATEST)
