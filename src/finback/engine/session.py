"""A session: one timeline of tokens and the cache rows they left, which a caller extends, reads and takes back.

Owns the token list, the checkpoints that make long rewinds cheap and the decision how to reach a wanted length: by
setting a length (up to max_draft rows), from a checkpoint, or by computing again. Refuses to guess: after an
interrupted step the timeline is computed again from the last good checkpoint. Knows no tensors and no sampling.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Literal, Self

import numpy as np
import numpy.typing as npt

from finback.engine.sampler import check_finite
from finback.errors import EngineStateError, MemoryBudgetError, RequestError, shown
from finback.kv.sequence import Checkpoint
from finback.kv.snapshot import SnapshotError, read_state, write_state
from finback.ops.step import Part

if TYPE_CHECKING:
    from finback.engine.engine import Engine
    from finback.ops.select import Copy

CHECKPOINT_SPACING = 2048
"""Tokens between automatic checkpoints: a multiple of 128, where compressor groups are closed. A checkpoint of V4-Flash
weighs as much as a thousand tokens of pages, so this keeps them under half of what a session costs."""

MAX_CHECKPOINTS = 8

Rewound = Literal["kept", "length", "checkpoint", "recomputed"]
"""How a rewind reached its length: nothing to do, by setting a length, from a checkpoint, or by computing from the
start."""

OnPrefill = Callable[[int, int], None]


class Session:
    """One timeline of tokens. Close it (or use `with`) to give its memory back."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._state = engine._model.new_sequence()
        self._tokens: list[int] = []
        self._checkpoints: list[tuple[int, Copy]] = []  # (length, copy), lengths ascending
        self._logits: npt.NDArray[np.float32] | None = None  # of the last token; None: must be computed again
        self._good = 0  # tokens whose cache rows are valid; less than the list after an interrupted step
        self._closed = False

    # ---- reading

    @property
    def tokens(self) -> tuple[int, ...]:
        """The timeline so far."""
        return tuple(self._tokens)

    def __len__(self) -> int:
        return len(self._tokens)

    def logits(self) -> npt.NDArray[np.float32]:
        """Logits f32 [V] after the last token. RequestError if the session is empty."""
        self._check_open()
        logits = self._last_logits()
        check_finite(logits[None], len(self._tokens) - 1, [0])
        return logits.copy()

    def _last_logits(self) -> npt.NDArray[np.float32]:
        """The same as they came from the step: finite or not, and only to be read."""
        if not self._tokens:
            raise RequestError("a session without tokens has no logits; append at least one token first")
        if self._logits is None:
            # One more step over the last token gives its logits again: its row is taken back first.
            self._restore(len(self._tokens) - 1)
            self._extend([], False, None)
        assert self._logits is not None
        return self._logits

    # ---- writing

    def append(self, ids: Sequence[int], *, on_prefill: OnPrefill | None = None) -> None:
        """Compute `ids` after the timeline. Refused before it starts if they do not fit the context or the memory.

        `on_prefill(done, total)` is called after each chunk. Ctrl-C leaves the timeline as it was before the call.
        """
        new = self._admit(ids)
        if new:
            self._extend(new, False, on_prefill)

    def _append_drawn(self, token: int) -> None:
        """`append` of one token that was drawn from the last logits, when the context is known to have room: what
        `_admit` checks needs no second look, and an answer comes here once a token."""
        self._check_open()
        self._state.reserve(len(self._tokens) + 1)
        self._extend([token], False, None)

    def append_logits(self, ids: Sequence[int]) -> npt.NDArray[np.float32]:
        """Like `append`, and the logits f32 [n, V] after each of `ids`: n times the vocabulary in memory."""
        new = self._admit(ids)
        if not new:
            return np.zeros((0, self._engine.config.vocab_size), np.float32)
        logits = np.concatenate(self._extend(new, True, None))[-len(new) :]
        return check_finite(logits, len(self._tokens) - len(new), range(len(new)))

    def fill(self, ids: Sequence[int], *, seed: int = 0) -> None:
        """Make an empty session one of `ids` without computing them: its cache rows are random. What follows takes the
        time it takes after so many tokens, and means nothing. For benchmarks."""
        if self._tokens:
            raise RequestError(f"this session has {len(self._tokens)} tokens; fill an empty one")
        new = self._admit(ids)
        if new:
            self._state.fill(len(new), self._engine.isa, seed)
            self._tokens, self._good = new, len(new)

    def _admit(self, ids: Sequence[int]) -> list[int]:
        """Check that `ids` can follow, bring the cache to the end of the timeline and reserve their memory."""
        self._check_open()
        new = self._engine._check_ids(ids)
        total = len(self._tokens) + len(new)
        if total > self._engine.context:
            raise RequestError(
                f"{len(self._tokens)} tokens and {len(new)} more exceed the context of {self._engine.context}; "
                f"load with a larger context= or shorten the prompt"
            )
        self._state.reserve(total)
        return new

    def _extend(self, new: list[int], every: bool, on_prefill: OnPrefill | None) -> list[npt.NDArray[np.float32]]:
        """Compute what the cache lacks of the timeline, then `new`, which joins it at the end.

        Returns logits: of every row computed, or of the last one only.
        """
        model, before, start = self._engine._model, len(self._tokens), self._good
        todo = self._tokens[start:] + new
        found: list[npt.NDArray[np.float32]] = []
        self._logits = None
        done = 0
        while done < len(todo):
            n = self._chunk(start + done, len(todo) - done)
            rows = range(n) if every else [n - 1] if done + n == len(todo) else []
            self._state.reserve(start + done + n)
            try:
                found.append(model.run([Part(self._state, todo[done : done + n], list(rows))]))
            except BaseException:
                self._fall_back(before)
                raise
            done += n
            self._good = min(start + done, before)
            self._checkpoint(start + done)
            if on_prefill is not None:
                on_prefill(done, len(todo))
        self._tokens += new
        self._good = len(self._tokens)
        self._logits = found[-1][-1]
        return found

    def _fall_back(self, length: int) -> None:
        """After a step that did not finish: it may have overwritten rows of the rings, so the cache goes back to the
        last checkpoint of the `length` tokens that stay. What is missing is computed with the next append."""
        while self._checkpoints and self._checkpoints[-1][0] > length:
            self._drop(len(self._checkpoints) - 1)
        self._good = self._jump(length)

    def _chunk(self, position: int, left: int) -> int:
        """Rows of the next step: a chunk, cut at the next checkpoint."""
        to_mark = CHECKPOINT_SPACING - position % CHECKPOINT_SPACING
        return min(self._engine.prefill_chunk, to_mark, left)

    def rewind(self, length: int) -> Rewound:
        """Take the timeline back to its first `length` tokens; says how the cache got there.

        The logits after the last kept token are computed again when asked for.
        """
        self._check_open()
        if not isinstance(length, int) or isinstance(length, bool) or not 0 <= length <= len(self._tokens):
            raise RequestError(f"length is {shown(length)}; a rewind takes a length from 0 to {len(self._tokens)}")
        if length == len(self._tokens) == self._good:
            return "kept"
        del self._tokens[length:]
        self._logits = None
        while self._checkpoints and self._checkpoints[-1][0] > length:
            self._drop(len(self._checkpoints) - 1)
        return self._restore(length)

    def _restore(self, length: int) -> Rewound:
        """Bring the cache to `length` tokens or, if no rewind or checkpoint reaches it, to the nearest point below."""
        if length <= self._good and self._state.can_rewind(length):
            self._state.rewind(length)
            self._good = length
            return "length"
        base = self._good = self._jump(length)
        how: Rewound = "checkpoint" if base else "recomputed"
        if base < length:
            kept, self._tokens = self._tokens[length:], self._tokens[:length]
            self._extend([], False, None)
            self._tokens += kept
            self._good = length
        return how

    # ---- checkpoints

    def _jump(self, length: int) -> int:
        """Bring the cache to the last checkpoint at or below `length`, or to the start; says where."""
        for at, copy in reversed(self._checkpoints):
            if at <= length:
                self._state.restore(copy)
                return at
        self._state.clear()
        return 0

    def _checkpoint(self, length: int) -> None:
        if length % CHECKPOINT_SPACING or any(at == length for at, _ in self._checkpoints):
            return
        if len(self._checkpoints) == MAX_CHECKPOINTS:
            # Thin out the middle: the newest serve edits near the end, the oldest those of the first messages.
            self._drop(MAX_CHECKPOINTS // 2)
        try:
            self._checkpoints.append((length, self._state.checkpoint()))
        except MemoryBudgetError:
            return  # checkpoints only make rewinds cheap: without room for one, a rewind computes more

    def _drop(self, index: int) -> None:
        self._checkpoints.pop(index)[1].release()

    # ---- files

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the timeline and its state to a file (docs/kv.md, On disk), readable by its owner only. What a broken
        step left open is computed first. RequestError if the session is empty, or the file cannot be written."""
        self._check_open()
        if not self._tokens:
            raise RequestError("an empty session has no state to save; append at least one token first")
        if self._good < len(self._tokens):
            self._restore(len(self._tokens))
        identity, copy = self._engine._identity(), self._state.checkpoint()
        assert isinstance(copy, Checkpoint), "backends without pages have no identity"
        try:
            write_state(Path(path), identity, self._tokens, copy)
        except OSError as error:
            raise RequestError(f"{path}: {error.strerror}; choose another place") from None

    def load(self, path: str | os.PathLike[str]) -> None:
        """Become the timeline of a file that `save` wrote with the same model and settings, without computing it.
        RequestError, saying why, if that is not possible; nothing changes then."""
        self._check_open()
        pool = self._engine._model.pool
        identity = self._engine._identity()
        assert pool is not None
        try:
            tokens, checkpoint = read_state(Path(path), identity, pool)
        except SnapshotError as error:
            raise RequestError(f"{error}; give a file that save() wrote with this model") from None
        try:
            if len(tokens) > self._engine.context:
                raise RequestError(
                    f"{path} has {len(tokens)} tokens, more than the context of {self._engine.context}; "
                    f"load the model with a larger context="
                )
            while self._checkpoints:
                self._drop(len(self._checkpoints) - 1)
            self._state.restore(checkpoint)
            self._tokens, self._good, self._logits = tokens, len(tokens), None
        finally:
            checkpoint.release()

    # ---- end

    def close(self) -> None:
        """Give the memory back; further calls raise EngineStateError. Closing twice is fine."""
        if self._closed:
            return
        self._closed = True
        while self._checkpoints:
            self._drop(len(self._checkpoints) - 1)
        self._state.close()
        self._engine._forget(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _check_open(self) -> None:
        if self._closed:
            raise EngineStateError("this session is closed; open another with engine.session()")
        self._engine._check_open()
