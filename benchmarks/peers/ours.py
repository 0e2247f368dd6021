"""finback as a runner of rounds.py, and the machine's limits: how fast the same threads read plain memory, and how many
bytes of weights a token needs.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import finback
from finback import native
from finback.tools.bench_kernels import LEAST_BYTES, clean, random_matrix
from finback.tools.record import quartiles
from finback.weights.checkpoint import open_checkpoint
from finback.weights.inventory import model_tensors

READ_BYTES = 512 << 20
READ_SECONDS = 0.3


class Finback:
    """An engine and one session of it."""

    def __init__(self, engine: finback.Engine) -> None:
        self._engine = engine
        self._session = engine.session()

    def read(self, ids: Sequence[int]) -> float:
        self._session.close()
        self._session = self._engine.session()
        begun = time.perf_counter()
        self._session.append(ids)
        return time.perf_counter() - begun

    def decode(self, warm: Sequence[int], ids: Sequence[int]) -> float:
        for token in warm:
            self._session.append([token])
        begun = time.perf_counter()
        for token in ids:
            self._session.append([token])
        return time.perf_counter() - begun


class PlainReading:
    """GB/s of reading memory that no cache holds, by its own threads, in the windows of `finback bench kernels`."""

    def __init__(self, level: str, threads: int) -> None:
        self._memory = native.allocate(READ_BYTES, "reading")
        self._memory.view()[:] = 1  # pages that nobody wrote are all the same one, and in the cache
        self._work = native.BenchProducts(level, random_matrix("Q8_0", 1024, 1024), LEAST_BYTES, False)
        self._threads = threads

    def __call__(self) -> float:
        work, reads, _ = self._work.time(1, self._threads, READ_SECONDS, self._memory)
        return quartiles(size / seconds / 1e9 for _, (seconds, size, _) in clean(work, reads))[1]


def bytes_per_token(model: Path | None) -> int:
    """Bytes of weights that a step of one token multiplies with or adds, as the file stores them: everything but the
    rows of the embedding and the experts that were not chosen."""
    config = open_checkpoint(model).config
    return dense_bytes(model) + config.num_experts_per_tok * expert_bytes(model)


def expert_bytes(model: Path | None) -> int:
    """Bytes of one expert in every layer."""
    checkpoint, total = open_checkpoint(model), 0
    for tensor in model_tensors(checkpoint.config):
        if tensor.role == "experts":
            stack = checkpoint.experts(*tensor.name.rsplit(".", 1))
            total += stack.nbytes + stack.scale_nbytes
    return total


def dense_bytes(model: Path | None) -> int:
    """Bytes of what every token needs, without the embedding."""
    checkpoint, total = open_checkpoint(model), 0
    for tensor in model_tensors(checkpoint.config):
        if tensor.role not in ("experts", "table") and tensor.name != "embed.weight":
            weight = checkpoint.weight(tensor.name)
            total += weight.data.nbytes + (weight.scale.nbytes if weight.scale else 0)
    return total
