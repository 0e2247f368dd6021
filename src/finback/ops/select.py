"""Which backend runs a model, and the verbs every backend has.

Owns the choice: the native program, or eager NumPy under FINBACK_EAGER=1. Imports a backend only when it is
chosen. Refuses to fall back from one to the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt

from finback.config import ModelConfig
from finback.errors import RequestError
from finback.ops.step import Part
from finback.settings import eager

if TYPE_CHECKING:
    from finback.kv.pages import PagePool
    from finback.ops.native import Listed
    from finback.weights.ledger import Ledger
    from finback.weights.tensors import Checkpoint, Placing

MAX_LOGIT_ROWS = 64
"""Rows of logits one replay gives; more are computed by replaying the head. 64 rows of 129,280 take 33 MB,
and reading the head once for 64 rows already costs a tenth of computing them."""


class Copy(Protocol):
    """A point that a sequence can come back to."""

    def release(self) -> None:
        """Give its memory back."""


class Promised(Protocol):
    """Memory set aside for one sequence (kv.pages.Promise)."""

    def release(self) -> None:
        """Give back what was not used."""


class State(Protocol):
    """What one sequence holds (kv.sequence.SequenceState says what each verb means)."""

    length: int

    def reserve(self, length: int) -> None: ...
    def fill(self, length: int, isa: str, seed: int) -> None: ...
    def can_rewind(self, length: int) -> bool: ...
    def rewind(self, length: int) -> None: ...
    def clear(self) -> None: ...
    def checkpoint(self) -> Copy: ...
    def fork(self, promise: Any = None, /) -> State: ...
    def restore(self, copy: Any, /) -> None: ...
    def close(self) -> None: ...


class Model(Protocol):
    """A loaded model (ops.native.NativeModel says what each verb means). Without a `pool`, memory of sequences is not
    planned, and prefixes are not kept."""

    config: ModelConfig
    isa: str
    threads: int
    max_rows: int
    cache_rounding: bool
    notes: tuple[str, ...]

    @property
    def pool(self) -> PagePool | None: ...
    @property
    def page_span(self) -> int: ...
    @property
    def has_draft(self) -> bool: ...
    def draft(self, parts: Sequence[Part[Any]], out: npt.NDArray[np.float32], /) -> npt.NDArray[np.float32]: ...
    def new_sequence(self, promise: Any = None, /) -> State: ...
    def promise(self, length: int, /) -> Promised: ...
    def promised_bytes(self, prompt: int, answer: int, n: int, /) -> int: ...
    def program_listing(self) -> list[Listed]: ...
    def run(
        self, parts: Sequence[Part[Any]], out: npt.NDArray[np.float32] | None = None, /
    ) -> npt.NDArray[np.float32]: ...
    def close(self) -> None: ...


def open_model(
    checkpoint: Checkpoint,
    ledger: Ledger,
    architecture: Any,
    *,
    isa: str,
    threads: int,
    context: int,
    max_rows: int,
    max_logit_rows: int,
    cache_rounding: bool,
    weights: Placing,
    pin: bool,
) -> Model:
    """The model of a checkpoint on the backend that the settings ask for; see `NativeModel` for arguments
    and errors."""
    if eager():
        if weights != "mapped" or pin:
            raise RequestError("FINBACK_EAGER=1 computes in NumPy arrays of its own; leave weights= and pin= out")
        from finback.ops.eager_model import EagerModel

        return EagerModel(checkpoint, architecture, isa=isa, max_rows=max_rows, cache_rounding=cache_rounding)
    from finback.ops.native import NativeModel

    return NativeModel(
        checkpoint,
        ledger,
        architecture,
        isa=isa,
        threads=threads,
        context=context,
        max_rows=max_rows,
        max_logit_rows=max_logit_rows,
        cache_rounding=cache_rounding,
        weights=weights,
        pin=pin,
    )
