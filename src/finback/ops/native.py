"""A model as native programs: recorded once at load, then replayed, one native call a step.

Owns the entry points (main, head, mtp), the arena they share, the weights they read and the batch that
carries a step. Refuses, before anything is allocated, what the ledger does not grant. Numbers are checked
by config.py, shapes by the recorder. Steps from several threads are computed one after another. Knows no
text, no sampling and no policy of sequences.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from finback import native
from finback.config import ModelConfig
from finback.errors import EngineStateError, NumericError, RequestError
from finback.kv.layout import MAX_DRAFT, plan_layout
from finback.kv.pages import PagePool, Promise
from finback.kv.sequence import SequenceState
from finback.ops.native_weights import NativeWeights
from finback.ops.recorder import Recorder
from finback.ops.resident import ResidentCopies
from finback.ops.step import Part, spans, wanted_rows
from finback.ops.tape import Limits, Tensor
from finback.weights.ledger import Ledger
from finback.weights.tensors import Checkpoint, Placing

W = TypeVar("W")


class Architecture(Protocol[W]):
    """A model file of finback.models, as the recorder uses it."""

    def load_weights(self, config: ModelConfig, source: NativeWeights, /) -> W:
        """Every tensor of the model."""

    def forward(self, ops: Recorder, w: W, /) -> tuple[Tensor, Tensor]:
        """Logits of the rows asked for, and the final streams of all rows."""

    def head(self, ops: Recorder, w: W, streams: Tensor, /) -> Tensor:
        """Logits of the rows asked for, from final streams."""

    def forward_mtp(self, ops: Recorder, w: W, streams: Tensor, /) -> tuple[Tensor, Tensor]:
        """Logits and final streams of the draft block."""


@dataclass(frozen=True, slots=True)
class Listed:
    """A row of the listing: an operation of an entry point, and one value that it writes."""

    entry: str
    op: str
    rows: int
    shape: tuple[int, int]  # parts, width
    nbytes: int
    offset: int


class NativeModel:
    """A loaded model. `close()` gives its memory back."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        ledger: Ledger,
        architecture: Architecture[Any],
        *,
        isa: str,
        threads: int,
        context: int,
        max_rows: int,
        max_logit_rows: int,
        cache_rounding: bool,
        weights: Placing = "mapped",
        pin: bool = False,
        max_draft: int = MAX_DRAFT,
    ) -> None:
        """Record the programs of `architecture` over the weights of `checkpoint`.

        Args:
            isa: a level of `native.select_level`.
            context: the most tokens of a sequence.
            max_rows, max_logit_rows: the most rows of a step, and of logits of one replay.
            weights: multiply with the file where it is mapped, or with resident copies of the matrices, read through
                the page cache ("resident") or past it ("direct"). Same bits.
            pin: keep weights in memory. `notes` says what the system did not allow.

        Raises:
            ModelFileError, UnsupportedModelError: a tensor is not where it should be, or has no kernel.
            ConfigError: cache_rounding is on for a model whose widths cannot be rounded.
            MemoryBudgetError: weights or arena do not fit.
            PlatformError: the system refuses the threads.
        """
        # Rounding has a say in which shapes are possible: the record checks itself again.
        self.config = replace(checkpoint.config, cache_rounding=cache_rounding)
        self.isa, self.threads = isa, threads
        self.cache_rounding, self.max_rows = cache_rounding, max_rows
        self._ledger = ledger
        self.layout = plan_layout(self.config, cache_rounding=cache_rounding, max_draft=max_draft)
        self._limits = Limits(max_rows, max_logit_rows, context, threads)
        direct = weights == "direct"
        copies = None if weights == "mapped" else ResidentCopies(ledger, isa=isa, threads=threads, direct=direct)
        self._weights = NativeWeights(checkpoint, ledger, copies)
        self._arena: _Arena | None = None
        try:
            recorder = Recorder(self.config, self.layout, self._limits, str(checkpoint.paths[0]))
            self._results = _record(
                recorder, architecture, architecture.load_weights(self.config, self._weights)
            )
            self._tape, self._placing = recorder.tape, recorder.tape.plan()
            self._arena = _Arena(self._placing.size, ledger)
            self._programs = {
                entry: self._program(ops, self._arena.buffer) for entry, ops in self._tape.entries.items()
            }
            self.notes = tuple(self._weights.finish(pin))
            self._tape.drop_emitters()  # programs hold what they read; closing them is the end of the weights
        except BaseException:
            self._give_back()
            raise
        self._batch = native.Batch(max_rows, max_logit_rows, self.config.vocab_size)
        self._logits = {entry: self._view(tensor) for entry, tensor in self._results.items()}
        self.pool = PagePool(self.layout, ledger)
        self._lock = threading.Lock()
        self._closed = False

    def _program(self, ops: range, arena: native.Buffer) -> native.Program:
        program = native.start_program(
            self.isa,
            self.threads,
            max_rows=self._limits.max_rows,
            max_logit_rows=self._limits.max_logit_rows,
            max_context=self._limits.max_context,
            vocab=self.config.vocab_size,
            arena=arena,
            layout=self.layout.handle,
        )
        for i in ops:
            self._tape.nodes[i].emit(program, self._value)
        return program

    def _value(self, tensor: Tensor) -> native.Value:
        return native.Value(
            self._placing.offsets[tensor.number], tensor.row_bytes, tensor.parts, tensor.width
        )

    # ---- running

    def new_sequence(self, promise: Promise | None = None) -> SequenceState:
        """An empty sequence, its memory out of a promise if there is one; MemoryBudgetError if its frontier does
        not fit."""
        self._check_usable()
        return SequenceState(self.pool, promise)

    def promise(self, length: int) -> Promise:
        """Memory for one sequence of up to `length` tokens; MemoryBudgetError if it is not free."""
        return self.pool.promise(length)

    def promised_bytes(self, prompt: int, answer: int, n: int) -> int:
        """What a request takes from the budget at most: one sequence with the prompt and an answer, and for each
        further answer what it does not share with the first."""
        length, shared = prompt + answer, prompt - prompt % self.page_span
        return self.pool.promised_bytes(length) + (n - 1) * self.pool.promised_bytes(length - shared)

    @property
    def page_span(self) -> int:
        """Tokens of a page."""
        return self.layout.page_span

    def run(
        self, parts: Sequence[Part[SequenceState]], out: npt.NDArray[np.float32] | None = None
    ) -> npt.NDArray[np.float32]:
        """Compute the parts of one step: each after the tokens its sequence holds. Logits f32 [R, V] of the
        rows wanted, part after part.

        Args:
            parts: of different sequences, 1 to `max_rows` tokens of the vocabulary in all. Their pages must
                have been reserved.
            out: where the logits go, f32 [at least R, V]; None: a new array.

        Raises:
            NumericError: `rows` of the step are not finite. Every other row is good: `out` holds its logits,
                and sequences without a bad row have advanced.
            Others of `native.run`, and Ctrl-C: all sequences keep their length, but their rings may have been
                overwritten: go back to a checkpoint or to 0.
        """
        self._check_usable()
        count = sum(len(part.wanted) for part in parts)
        if out is None:
            out = np.empty((count, self.config.vocab_size), np.float32)
        with self._lock:
            pieces = [(part.state, part.state.length, part.ids) for part in parts]
            try:
                self._step(("main", "head"), pieces, wanted_rows(parts), out)
            except NumericError as error:
                for part, (first, end) in zip(parts, spans(parts), strict=True):
                    if not any(first <= row < end for row in error.rows):
                        part.state.advance(len(part.ids))
                raise
            for part in parts:
                part.state.advance(len(part.ids))
        return out[:count]

    def draft(
        self, parts: Sequence[Part[SequenceState]], out: npt.NDArray[np.float32] | None = None
    ) -> npt.NDArray[np.float32]:
        """The draft block over the rows of the run just made: logits f32 [R, V] of the tokens after next.

        Args:
            parts: of that run, all of them in its order, with as many tokens each. Row i combines the final
                streams of row i of the run with the token ids[i] that follows it. The sequences stand where
                the run left them.

        RequestError if the model has no draft block, or too many rows are wanted; else as `run`, but that
        no sequence advances.
        """
        self._check_usable()
        if not self.has_draft:
            raise RequestError(
                "this model has no draft block (num_nextn_predict_layers is 0); decode without drafts"
            )
        count = sum(len(part.wanted) for part in parts)
        if count > self._limits.max_logit_rows:
            raise RequestError(
                f"{count} rows of draft logits exceed the limit of {self._limits.max_logit_rows}"
            )
        if out is None:
            out = np.empty((count, self.config.vocab_size), np.float32)
        pieces = [(part.state, part.state.length - len(part.ids), part.ids) for part in parts]
        with self._lock:
            self._step(("mtp",), pieces, wanted_rows(parts), out)
        return out[:count]

    @property
    def has_draft(self) -> bool:
        """Whether the model has a draft block."""
        return "mtp" in self._programs

    def _step(
        self,
        entries: tuple[str, ...],
        pieces: Sequence[tuple[SequenceState, int, Sequence[int]]],
        rows: Sequence[int],
        out: npt.NDArray[np.float32],
    ) -> None:
        """Run the first entry, and the last one again for logits beyond the limit of one replay."""
        limit = self._limits.max_logit_rows
        bad: NumericError | None = None
        try:
            self._batch.clear()
            for state, position, ids in pieces:
                self._batch.add(state.handle, position, np.asarray(ids, np.int32))
            for start in range(0, max(len(rows), 1), limit):
                entry = entries[-1] if start else entries[0]
                wanted = rows[start : start + limit]
                self._batch.want_logits(np.asarray(wanted, np.int32))
                try:
                    native.run(self._programs[entry], self._batch)
                except NumericError as error:
                    bad = bad or error
                out[start : start + len(wanted)] = self._logits[entry][: len(wanted)]
        finally:
            self._batch.clear()
        if bad is not None:
            raise bad

    def _view(self, tensor: Tensor) -> npt.NDArray[np.float32]:
        """The rows of a result in the arena, f32 [max_logit_rows, V]."""
        assert self._arena is not None, "results are looked up while the model is made"
        value, n = self._value(tensor), self._limits.max_logit_rows
        rows = self._arena.buffer.view()[value.offset : value.offset + n * value.row_bytes].view(np.float32)
        return rows.reshape(n, value.row_bytes // 4)[:, : value.width]

    def _check_usable(self) -> None:
        if self._closed:
            raise EngineStateError("this model is closed; load it again")
        if (
            native.pool_owner() != os.getpid()
        ):  # before the lock, which the parent may have held when it forked
            raise native.forked()

    # ---- looking in

    def program_listing(self) -> list[Listed]:
        """Every operation of every entry point, once for each value it writes, with bytes and offset in the
        arena."""
        listed = []
        for entry, ops in self._tape.entries.items():
            for i in ops:
                node = self._tape.nodes[i]
                for t in node.writes:
                    size, offset = self._tape.size_of(t), self._placing.offsets[t.number]
                    listed.append(
                        Listed(entry, node.op, size // t.row_bytes, (t.parts, t.width), size, offset)
                    )
        return listed

    @property
    def arena_bytes(self) -> int:
        """Bytes of the arena."""
        return self._placing.size

    def close(self) -> None:
        """Give weights and arena back. Sequences give theirs back when they are closed. Closing twice is
        fine."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            self._programs.clear()
            self._logits.clear()  # they look into the arena
            self._give_back()

    def _give_back(self) -> None:
        if self._arena is not None:
            self._arena.release()
            self._arena = None
        self._weights.release()


def _record(recorder: Recorder, architecture: Architecture[W], weights: W) -> dict[str, Tensor]:
    """Record all entry points; the logits of each."""
    results = {}
    results["main"], streams = architecture.forward(recorder, weights)
    recorder.tape.pin(streams)
    recorder.finish_entry("main", [results["main"]])
    results["head"] = architecture.head(recorder, weights, streams)
    recorder.finish_entry("head", [results["head"]])
    if recorder.config.mtp_layers:
        results["mtp"], _ = architecture.forward_mtp(recorder, weights, streams)
        recorder.finish_entry("mtp", [results["mtp"]])
    return results


class _Arena:
    """The memory of all values, charged as "arena"."""

    def __init__(self, size: int, ledger: Ledger) -> None:
        self._ledger, self._size = ledger, native.buffer_size(size)
        ledger.reserve(
            "arena", self._size, "raise memory=, or load with a smaller prefill_chunk= or context="
        )
        try:
            self.buffer = native.allocate(self._size, "the arena")
        except BaseException:
            ledger.release("arena", self._size)
            raise

    def release(self) -> None:
        """Give the memory back."""
        self._ledger.release("arena", self._size)
        del self.buffer
