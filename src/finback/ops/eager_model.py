"""A model run one operation at a time on NumPy, behind the same verbs as the native one: FINBACK_EAGER=1.

Owns the states of eager sequences. The arithmetic is canonical, so the logits are the native program's to
the bit. Refuses speed and the memory budget: Python's arrays are not entries of the ledger.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NoReturn, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from finback.config import ModelConfig
from finback.errors import EngineStateError, RequestError
from finback.ops.eager import Array, EagerBatch, EagerOps, EagerSequence
from finback.ops.eager_weights import CheckpointTensors, EagerWeights
from finback.ops.step import Part, wanted_rows
from finback.reference.canonical import Canonical
from finback.weights.tensors import Checkpoint

W = TypeVar("W")


class Architecture(Protocol[W]):
    """A model file of finback.models, as this backend uses it."""

    def load_weights(self, config: ModelConfig, source: EagerWeights, /) -> W:
        """Every tensor of the model."""

    def forward(self, ops: EagerOps, w: W, /) -> tuple[Array, Array]:
        """Logits of the rows asked for, and the final streams of all rows."""


@dataclass(frozen=True, slots=True)
class EagerCopy:
    """A copy of what a sequence holds, at a length."""

    length: int
    sequence: EagerSequence

    def release(self) -> None:
        """Nothing to give back: the copy goes with its last reference."""


class EagerPromise:
    """Nothing is set aside: Python's arrays are not planned."""

    def release(self) -> None:
        """Nothing to give back."""


class EagerState:
    """What one sequence holds; the verbs of kv.pages.SequenceState. It can be taken back to 0 or to a
    checkpoint only."""

    def __init__(self, config: ModelConfig) -> None:
        self._config, self.length = config, 0
        self._sequence: EagerSequence | None = EagerSequence(config, Canonical())

    @property
    def sequence(self) -> EagerSequence:
        """EngineStateError after close()."""
        if self._sequence is None:
            raise EngineStateError("this sequence is closed; open another")
        return self._sequence

    def reserve(self, length: int) -> None:
        """Lists grow by themselves."""

    def fill(self, length: int, isa: str, seed: int) -> NoReturn:
        """RequestError: long contexts are timed natively."""
        raise RequestError("FINBACK_EAGER=1 computes every row, none can be made up for timing; unset it")

    def can_rewind(self, length: int) -> bool:
        """Whether `rewind(length)` would work."""
        return length in (0, self.length)

    def rewind(self, length: int) -> None:
        """Forget all tokens, or none; RequestError for anything else."""
        if not self.can_rewind(length):
            raise RequestError(
                f"an eager sequence of {self.length} tokens goes back to 0 or a checkpoint, not to {length}"
            )
        if length == 0:
            self._sequence, self.length = EagerSequence(self._config, Canonical()), 0

    def clear(self) -> None:
        """Forget all tokens."""
        self.rewind(0)

    def checkpoint(self) -> EagerCopy:
        """A copy at the present length."""
        return EagerCopy(self.length, copy.deepcopy(self.sequence))

    def fork(self, promise: EagerPromise | None = None) -> EagerState:
        """An equal sequence."""
        other = EagerState(self._config)
        other.restore(self.checkpoint())
        return other

    def restore(self, saved: EagerCopy) -> None:
        """Come back to a checkpoint."""
        self._sequence, self.length = copy.deepcopy(saved.sequence), saved.length

    def close(self) -> None:
        """Let go of everything. Closing twice is fine."""
        self._sequence = None


class EagerModel:
    """A loaded model. `isa` and `threads` say what the rest of the engine uses; the operations here are
    NumPy's."""

    pool: None = None  # of pages: rows are arrays of their own
    page_span = 1
    has_draft = False  # recorded programs only
    notes: tuple[str, ...] = ()

    def __init__(
        self,
        checkpoint: Checkpoint,
        architecture: Architecture[Any],
        *,
        isa: str,
        max_rows: int,
        cache_rounding: bool,
    ) -> None:
        self.config = replace(checkpoint.config, cache_rounding=cache_rounding)
        self.isa, self.threads, self.max_rows, self.cache_rounding = isa, 1, max_rows, cache_rounding
        self._architecture, self._arithmetic = architecture, Canonical()
        source = EagerWeights(self.config, self._arithmetic, CheckpointTensors(checkpoint))
        self._weights: Any = architecture.load_weights(self.config, source)
        self._lock = threading.Lock()

    def new_sequence(self, promise: EagerPromise | None = None) -> EagerState:
        """An empty sequence."""
        return EagerState(self.config)

    def promise(self, length: int) -> EagerPromise:
        """Memory is there as long as the system has some."""
        return EagerPromise()

    def promised_bytes(self, prompt: int, answer: int, n: int) -> int:
        """Nothing is charged."""
        return 0

    def run(
        self, parts: Sequence[Part[EagerState]], out: npt.NDArray[np.float32] | None = None
    ) -> npt.NDArray[np.float32]:
        """Compute the parts of one step; logits f32 [R, V] of the rows wanted, in `out` if it is given.
        NumericError names the operation that met a value that is not finite; no sequence has advanced then."""
        if self._weights is None:
            raise EngineStateError("this model is closed; load it again")
        with self._lock:
            pieces = [(part.state.sequence, part.state.length, np.asarray(part.ids, np.int64)) for part in parts]
            batch = EagerBatch.of(pieces, wanted_rows(parts))
            ops = EagerOps(self.config, self._arithmetic, batch, self.cache_rounding)
            computed, _ = self._architecture.forward(ops, self._weights)
            for part in parts:
                part.state.length += len(part.ids)
        logits = np.asarray(computed, np.float32)
        if out is None:
            return logits
        out[: len(logits)] = logits
        return out[: len(logits)]

    def draft(self, parts: Sequence[Part[EagerState]], out: npt.NDArray[np.float32]) -> NoReturn:
        """RequestError: drafts are for speed."""
        raise RequestError("FINBACK_EAGER=1 computes no drafts; unset it")

    def program_listing(self) -> NoReturn:
        """RequestError: nothing was recorded."""
        raise RequestError(
            "FINBACK_EAGER=1 runs operations as they come, there is no program to list; unset it"
        )

    def close(self) -> None:
        """Let go of the weights. Closing twice is fine."""
        self._weights = None
