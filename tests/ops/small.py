"""Small native programs for tests of replay: values in a row, real operations, no model."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from finback import native
from finback.kv.layout import aligned, plan_layout
from finback.kv.pages import PagePool
from finback.kv.sequence import SequenceState
from finback.weights.ledger import Ledger
from tests.tiny import TINY, VOCAB

LAYOUT = plan_layout(TINY, cache_rounding=True, max_draft=3)


def matrix(values: np.ndarray, misplaced: int = 0) -> native.Matrix:
    """An F32 matrix in a buffer of its own, `misplaced` bytes after its start."""
    data = np.ascontiguousarray(values, np.float32)
    buffer = native.Buffer(data.nbytes + misplaced)
    buffer.view()[misplaced : misplaced + data.nbytes] = np.frombuffer(data.tobytes(), np.uint8)
    return native.Matrix(native.Format.F32, *data.shape, buffer, misplaced)


@dataclass
class Small:
    """A program under construction, and a sequence to run it over."""

    threads: int = 1
    max_rows: int = 8
    isa: str = "scalar"
    arena: native.Buffer = field(default_factory=lambda: native.Buffer(1 << 22))
    used: int = 0

    def __post_init__(self) -> None:
        self.ledger = Ledger(1 << 30)
        self.state = SequenceState(PagePool(LAYOUT, self.ledger))
        self.state.reserve(1024)
        self.program = native.start_program(
            self.isa,
            self.threads,
            max_rows=self.max_rows,
            max_logit_rows=4,
            max_context=1024,
            vocab=VOCAB,
            arena=self.arena,
            layout=LAYOUT.handle,
        )

    def value(self, width: int, parts: int = 1) -> native.Value:
        made = native.Value(self.used, aligned(4 * width * parts), parts, width)
        self.used += made.row_bytes * self.max_rows
        return made

    def read(self, value: native.Value, rows: int) -> np.ndarray:
        region = self.arena.view()[value.offset : value.offset + rows * value.row_bytes].view(np.float32)
        return region.reshape(rows, -1)[:, : value.parts * value.width].copy()

    def batch(self, ids: list[int], position: int = 0) -> native.Batch:
        batch = native.Batch(self.max_rows, 4, VOCAB)
        batch.add(self.state.handle, position, np.array(ids, np.int32))
        return batch


def chain(small: Small, length: int, width: int = 64, seed: int = 0) -> native.Value:
    """embed, then `length` products with a rotation matrix: finite for ever, and every product needs the
    last."""
    rng = np.random.default_rng(seed)
    small.program.add_embed(x := small.value(width), matrix(rng.standard_normal((VOCAB, width))))
    turn = matrix(np.linalg.qr(rng.standard_normal((width, width)))[0])
    values = [x, small.value(width)]
    packed = small.value(width)
    for i in range(length):
        small.program.add_pack(values[i % 2], packed, native.Encoding.F32, 1, False)
        small.program.add_linear(packed, native.Encoding.F32, [turn], [values[1 - i % 2]], False)
    return values[length % 2]
