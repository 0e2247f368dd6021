"""One answer being drawn: from a row of logits to its next token, and whether that is its last.

Owns everything about a draw that depends on the answer so far: what was said, penalties, counts, the loop detector.
Refuses to know text: stop strings are the publisher's. Nothing depends on anything but the prompt, the tokens so far,
the parameters, the number of the answer and the position, so a row drawn later, or twice, gives the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from finback.engine.grammar import Constraint
from finback.engine.penalties import Adjustments, force
from finback.engine.repetition import RepetitionWatch
from finback.engine.result import FinishReason, TokenLogprob
from finback.engine.sampler import Drawer, not_finite
from finback.engine.sampling import Resolved
from finback.errors import NumericError


class Drawn(NamedTuple):
    """A token that was drawn. finish: why the answer ends with it, or None. kept: whether it is part of the answer."""

    token: int
    finish: FinishReason | None = None
    kept: bool = True
    logprob: TokenLogprob | None = None


class Thinking:
    """Thinking that the prompt has opened. end: the token that closes it. left: tokens until it is closed, None: as
    many as the model wants. close: set to have it closed with the next token."""

    def __init__(self, end: int, left: int | None) -> None:
        self.end, self.left, self.close = end, left, False

    @property
    def closes(self) -> bool:
        """Whether the next token closes it, whatever is drawn."""
        return self.close or self.left == 0


class Choice:
    """An answer."""

    def __init__(
        self,
        p: Resolved,
        index: int,
        prompt: Sequence[int],
        end_ids: frozenset[int],
        vocab: int,
        *,
        thinking: Thinking | None = None,
        constraint: Constraint | None = None,
    ) -> None:
        """index: the number of the answer among the n of its request. end_ids: the model's end-of-text tokens.
        thinking: if the prompt has opened it. constraint: the form of the answer."""
        self.index, self.prompt, self.count = index, prompt, 0
        self._p, self._limit = p, p.max_tokens
        self._thinking, self._constraint = thinking, constraint
        self._ends = p.stop_token_ids if p.ignore_eos else p.stop_token_ids | end_ids
        changed = p.logit_bias or p.min_tokens or p.repetition_penalty != 1.0
        plain = not (changed or p.presence_penalty or p.frequency_penalty)
        self._adjust = None if plain else Adjustments(p, prompt, self._ends, vocab)
        self._watch = None if p.max_repeats is None else RepetitionWatch(p.max_repeats)

    @property
    def forced(self) -> Sequence[int]:
        """Tokens that come next whatever is drawn."""
        return () if self._constraint is None or self._thinking is not None else self._constraint.forced

    def draw(self, drawer: Drawer, logits: npt.NDArray[np.float32], position: int) -> Drawn:
        """The token at `position` of the sequence, from the logits f32 [V] after the one before; the row is changed in
        place. NumericError if it is not finite, RequestError if a grammar turns out too hard."""
        p, logprobs = self._p, self._p.logprobs
        changes = self._adjust is not None or self._thinking is not None or self._constraint is not None
        raw = logits.copy() if logprobs is not None and changes else logits
        if changes:
            self._change(logits, position)
        token = drawer.draw(logits, p, position, self.index)
        logprob = None if logprobs is None else drawer.logprob(raw, token, logprobs)
        if token in self._ends and self.count >= p.min_tokens:
            return Drawn(token, "stop", False, logprob)
        self.count += 1
        return Drawn(token, self._note(token), True, logprob)

    def _change(self, logits: npt.NDArray[np.float32], position: int) -> None:
        """Biases, penalties and masks; a row that is not finite is found before they hide it."""
        if not np.isfinite(logits).all():
            raise NumericError(not_finite(position - 1))
        if self._adjust is not None:
            self._adjust.apply(logits, may_end=self.count >= self._p.min_tokens)
        if self._thinking is not None and self._thinking.closes:
            force(logits, self._thinking.end)
        elif self._constraint is not None:
            self._constraint.apply(logits)

    def _note(self, token: int) -> FinishReason | None:
        """The answer goes on with `token`; why it ends there, or None."""
        if self._adjust is not None:
            self._adjust.add(token)
        if self._constraint is not None:
            self._constraint.accept(token)
        thinking = self._thinking
        if thinking is not None:
            if thinking.left is not None:
                thinking.left = max(0, thinking.left - 1)
            if token == thinking.end:
                self._thinking = None
        if self._watch is not None and self._watch.add(token):
            return "repetition"
        if self._constraint is not None and self._constraint.done:
            return "stop"
        return "length" if self.count == self._limit else None
