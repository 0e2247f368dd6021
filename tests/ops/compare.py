"""One piece of a model, three times: native at every level and thread count, canonical, oracle.

A *piece* is a function over the op protocol, like a model file but of a few calls; it starts from the
embedding, whose rows are the random inputs. Owns the running of a piece in steps (chunks of a prompt, several
sequences in a step) by each backend, and the comparison: native and canonical as bytes, the oracle within a
tolerance. Refuses to say what an op means. """

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from finback import native
from finback.config import ModelConfig
from finback.kv.layout import plan_layout
from finback.kv.pages import PagePool
from finback.kv.sequence import SequenceState
from finback.ops.eager import EagerBatch, EagerOps, EagerSequence
from finback.ops.eager_weights import CheckpointTensors, EagerWeights, Tensor
from finback.ops.native_weights import NativeWeights
from finback.ops.recorder import Recorder
from finback.ops.tape import Limits
from finback.reference.arithmetic import Arithmetic
from finback.reference.canonical import Canonical
from finback.reference.oracle import Oracle
from finback.weights.ledger import Ledger
from tests.golden import prompt
from tests.ops.checkpoint import RawCheckpoint

Piece = Callable[[Any, Any], list[Any]]
"""(ops, weights) -> values of the rows of the step; any backend's ops and weight source."""

Step = list[tuple[int, int]]
"""Rows of one step: (sequence, number of its next tokens)."""

LEVELS = [level.name for level in native.levels() if level.supported]
WAYS = [(level, threads) for level in LEVELS for threads in (1, 3)]


def one_sequence(*chunks: int) -> list[Step]:
    """A prompt in chunks."""
    return [[(0, n)] for n in chunks]


@dataclass(frozen=True, slots=True)
class Setup:
    """A piece with everything it runs on."""

    config: ModelConfig
    piece: Piece
    checkpoint: RawCheckpoint
    steps: list[Step]

    @property
    def prompts(self) -> dict[int, np.ndarray]:
        """Token ids of each sequence; different sequences have different prompts."""
        lengths: dict[int, int] = {}
        for step in self.steps:
            for sequence, n in step:
                lengths[sequence] = lengths.get(sequence, 0) + n
        return {s: prompt(n, self.config.vocab_size, s) for s, n in lengths.items()}


def compare(
    config: ModelConfig,
    tensors: Mapping[str, Tensor],
    piece: Piece,
    steps: list[Step],
    ways: Sequence[tuple[str, int]] = tuple(WAYS),
) -> list[tuple[np.ndarray, np.ndarray]]:
    """Runs the piece natively in each of the ways (level, threads) and canonically; asserts equal bytes in
    every row of every value. Returns, for each value, (canonical, oracle) of all rows, for the caller's
    tolerance."""
    with tempfile.TemporaryDirectory() as folder:
        setup = Setup(config, piece, RawCheckpoint(config, tensors, Path(folder) / "weights.bin"), steps)
        canonical = run_eager(setup, Canonical())
        wanted = [(row_bytes(value), used_bytes(value)) for value in canonical]
        for level, threads in ways:
            got = run_native(setup, level, threads)
            for number, (ours, (theirs, used)) in enumerate(zip(got, wanted, strict=True)):
                same = ((ours == theirs) | ~used).all(axis=1)
                where = f"value {number} at level {level} with {threads} threads"
                assert same.all(), f"{where}: rows {np.flatnonzero(~same).tolist()} differ"
        return list(zip(canonical, run_eager(setup, Oracle()), strict=True))


def near(pairs: list[tuple[np.ndarray, np.ndarray]], tolerance: float) -> None:
    """Asserts that float values of canonical and oracle differ by at most `tolerance` times the oracle's
    largest."""
    for bits, exact in pairs:
        assert bits.dtype == np.float32
        assert np.abs(bits - exact).max() <= tolerance * np.abs(exact).max()


def row_bytes(value: np.ndarray) -> np.ndarray:
    """uint8 [rows, bytes of a row] of an eager value, structured arrays included."""
    return np.ascontiguousarray(value).view(np.uint8).reshape(len(value), -1)


def used_bytes(value: np.ndarray) -> np.ndarray:
    """Which bytes of each row mean something: all, but for the places of a selection after its count."""
    used = np.ones(row_bytes(value).shape, bool)
    if value.dtype.names and "count" in value.dtype.names:
        used = np.arange(used.shape[1]) < 4 * (1 + value["count"][:, None])
    return used


def pieces_of(setup: Setup) -> list[list[tuple[int, int, np.ndarray]]]:
    """Each step as (sequence, first position, ids)."""
    prompts, done = setup.prompts, dict.fromkeys(setup.prompts, 0)

    def following(s: int, n: int) -> tuple[int, int, np.ndarray]:
        first = done[s]
        done[s] += n
        return s, first, prompts[s][first : first + n]

    return [[following(s, n) for s, n in step] for step in setup.steps]


def run_eager(setup: Setup, arithmetic: Arithmetic) -> list[np.ndarray]:
    """Values of all rows, in the order of the steps."""
    config, results = setup.config, []
    source = EagerWeights(config, arithmetic, CheckpointTensors(setup.checkpoint))
    sequences = {s: EagerSequence(config, arithmetic) for s in setup.prompts}
    for step in pieces_of(setup):
        batch = EagerBatch.of([(sequences[s], position, ids) for s, position, ids in step])
        ops = EagerOps(config, arithmetic, batch, config.cache_rounding)
        results.append(setup.piece(ops, source))
    return [np.concatenate(values) for values in zip(*results, strict=True)]


class NativePiece:
    """A piece recorded into a program of its own."""

    def __init__(self, setup: Setup, level: str, threads: int) -> None:
        self.config = setup.config
        self.ledger = Ledger(1 << 32)
        most = max(sum(n for _, n in step) for step in setup.steps)
        context = max(len(ids) for ids in setup.prompts.values())
        self.layout = plan_layout(self.config, cache_rounding=self.config.cache_rounding, max_draft=1)
        recorder = Recorder(self.config, self.layout, Limits(most, most, context, threads), "test")
        self.results = setup.piece(recorder, NativeWeights(setup.checkpoint, self.ledger, None))
        recorder.finish_entry("piece", self.results)
        placing = recorder.tape.plan()
        self.offsets = placing.offsets
        self.arena = native.allocate(native.buffer_size(placing.size), "the arena")
        self.program = native.start_program(
            level,
            threads,
            max_rows=most,
            max_logit_rows=most,
            max_context=context,
            vocab=self.config.vocab_size,
            arena=self.arena,
            layout=self.layout.handle,
        )
        for node in recorder.tape.nodes:
            node.emit(self.program, self.value)
        self.batch = native.Batch(most, most, self.config.vocab_size)
        self.pool = PagePool(self.layout, self.ledger)

    def value(self, tensor: Any) -> native.Value:
        return native.Value(self.offsets[tensor.number], tensor.row_bytes, tensor.parts, tensor.width)

    def sequence(self, length: int) -> SequenceState:
        state = SequenceState(self.pool)
        state.reserve(length)
        return state

    def step(self, rows: list[tuple[SequenceState, int, np.ndarray]]) -> list[np.ndarray]:
        """Bytes [rows, 4 * parts * width] of each value."""
        self.batch.clear()
        for state, position, ids in rows:
            self.batch.add(state.handle, position, ids.astype(np.int32))
        n = sum(len(ids) for _, _, ids in rows)
        self.batch.want_logits(np.arange(n, dtype=np.int32))
        native.run(self.program, self.batch)
        self.batch.clear()
        out = []
        for tensor in self.results:
            start = self.offsets[tensor.number]
            raw = self.arena.view()[start : start + n * tensor.row_bytes].reshape(n, tensor.row_bytes)
            out.append(raw[:, : 4 * tensor.parts * tensor.width].copy())
        return out


def run_native(setup: Setup, level: str, threads: int) -> list[np.ndarray]:
    """Bytes of all rows of each value, in the order of the steps."""
    piece = NativePiece(setup, level, threads)
    states = {s: piece.sequence(len(ids)) for s, ids in setup.prompts.items()}
    results = [
        piece.step([(states[s], position, ids) for s, position, ids in step]) for step in pieces_of(setup)
    ]
    for state in states.values():
        state.close()
    return [np.concatenate(values) for values in zip(*results, strict=True)]
