"""Runs a model eagerly for the tests: prompt in chunks, all logits, the state left behind.

Owns the loop over chunks and nothing of the model. `ops` may be a subclass of EagerOps: that is how mutations
are made. """

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from finback.config import ModelConfig
from finback.models.deepseek_v4 import Weights, forward, forward_mtp, load_weights
from finback.ops.eager import Array, EagerBatch, EagerOps, EagerSequence, Stack
from finback.ops.eager_weights import EagerWeights, Tensor
from finback.reference.arithmetic import Arithmetic
from finback.reference.matrix import Matrix

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Model:
    """A loaded model: everything `run` needs besides tokens."""

    config: ModelConfig
    arithmetic: Arithmetic
    weights: Weights[Matrix, Array, Stack]
    ops: type[EagerOps] = EagerOps

    @classmethod
    def of(
        cls,
        config: ModelConfig,
        arithmetic: Arithmetic,
        tensors: Mapping[str, Tensor],
        ops: type[EagerOps] = EagerOps,
    ) -> Model:
        weights = load_weights(config, EagerWeights(config, arithmetic, tensors))
        return cls(config, arithmetic, weights, ops)

    def sequence(self) -> EagerSequence:
        return EagerSequence(self.config, self.arithmetic)

    def step(
        self, pieces: Sequence[tuple[EagerSequence, int, Ints]], logit_rows: Sequence[int] | None = None
    ) -> tuple[Array, Array]:
        """One step over pieces (sequence, first position, ids): logits of the rows asked for, streams of all
        rows."""
        batch = EagerBatch.of(pieces, logit_rows)
        return forward(
            self.ops(self.config, self.arithmetic, batch, self.config.cache_rounding), self.weights
        )

    def draft(self, sequence: EagerSequence, pos0: int, following: Ints, streams: Array) -> Array:
        """Logits of the draft block: streams of positions pos0 .. with the tokens that follow them."""
        batch = EagerBatch.of([(sequence, pos0, following)])
        ops = self.ops(self.config, self.arithmetic, batch, self.config.cache_rounding)
        return forward_mtp(ops, self.weights, streams)[0]


@dataclass(frozen=True, slots=True)
class Run:
    """Logits [T, V] and streams [T, N, D] of all rows, and the sequence after them."""

    logits: Array
    streams: Array
    sequence: EagerSequence


def run(model: Model, ids: Ints, chunks: Iterable[int] | None = None) -> Run:
    """The whole prompt in chunks of the given sizes (one chunk if None); the sizes add up to its length."""
    sequence, position = model.sequence(), 0
    logits, streams = [], []
    for n in chunks or [len(ids)]:
        out = model.step([(sequence, position, ids[position : position + n])])
        logits.append(out[0])
        streams.append(out[1])
        position += n
    assert position == len(ids), f"chunks cover {position} of {len(ids)} tokens"
    return Run(np.concatenate(logits), np.concatenate(streams), sequence)


def pieces_of(n: int, size: int) -> list[int]:
    """n tokens in chunks of `size`, the last one shorter."""
    return [size] * (n // size) + [n % size] * (n % size > 0)


def worst(a: npt.NDArray[Any], b: npt.NDArray[Any]) -> float:
    """Greatest absolute difference."""
    return float(np.abs(a - b).max())


def same_bits(a: npt.NDArray[Any], b: npt.NDArray[Any]) -> bool:
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
