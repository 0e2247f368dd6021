"""Resident copies of a checkpoint's matrices: read once, laid out for the kernels, charged to the ledger.

Owns which copies exist, keyed by byte range so that tensors that share bytes share a copy, and the buffers they lie
in. Refuses weights that are not numbers, naming the tensor: in a copy they would be found by nobody. Scale planes of
FP8_E4M3 stay where they lie.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from finback import native
from finback.errors import ModelFileError
from finback.weights.ledger import Ledger
from finback.weights.tensors import ExpertStack, Weight

Key = tuple[str | int | None, ...]
"""Format, shape, then where data and scales lie: tensors with the same key have the same copy."""

SHARE = 0.75
"""Of the budget that copies may take under weights="auto": the rest is for the arena, pages and the prefix cache."""


class ResidentCopies:
    """Copies made so far; `nbytes` of them are charged to the ledger as "weights"."""

    def __init__(self, ledger: Ledger, *, isa: str, threads: int) -> None:
        self._ledger, self._isa, self._threads = ledger, isa, threads
        self._made: dict[Key, tuple[native.Buffer, int]] = {}
        self.nbytes = 0

    def matrix(self, path: str, weight: Weight, source: native.Matrix) -> native.Matrix:
        """The matrix `source`, whose bytes are those of `weight`, in a resident copy."""
        scale = (weight.scale.file, weight.scale.offset) if weight.scale else (None, None)
        key = (weight.format, *weight.shape, weight.data.file, weight.data.offset, weight.stride, *scale)
        if key not in self._made:
            buffer = self._buffer(native.resident_bytes(source.format, source.rows, source.cols))
            if native.make_resident(self._isa, self._threads, source, [0], buffer, [0]) is not None:
                raise _not_finite(path, weight.name)
            self._made[key] = (buffer, 0)
        buffer, offset = self._made[key]
        return native.resident_matrix(source, buffer, offset)

    def stack(self, paths: Sequence[str], stack: ExpertStack, source: native.MatrixStack) -> native.MatrixStack:
        """The matrices of all experts; those with the same bytes share one copy."""
        keys = _keys(stack)
        new = {key: e for e, key in reversed(list(enumerate(keys))) if key not in self._made}
        if new:
            rows, cols = stack.shape
            size = -(-native.resident_bytes(native.Format[stack.format], rows, cols) // 64) * 64
            buffer = self._buffer(size * len(new))
            order = sorted(new.items(), key=lambda item: item[1])
            offsets = [i * size for i in range(len(order))]
            bad = native.make_resident(self._isa, self._threads, source, [e for _, e in order], buffer, offsets)
            if bad is not None:
                raise _not_finite(paths[stack.files[bad]], f"{stack.name} of expert {bad}")
            self._made.update((key, (buffer, at)) for (key, _), at in zip(order, offsets, strict=True))
        places = [self._made[key] for key in keys]
        buffers = list({id(buffer): buffer for buffer, _ in places}.values())
        numbered = {id(buffer): i for i, buffer in enumerate(buffers)}
        which = np.array([numbered[id(buffer)] for buffer, _ in places], np.int32)
        return native.resident_stack(source, buffers, which, np.array([at for _, at in places], np.int64))

    def release(self) -> None:
        """Give back what was charged; memory ends with the last program that reads it."""
        self._ledger.release("weights", self.nbytes)
        self.nbytes = 0
        self._made.clear()

    def _buffer(self, size: int) -> native.Buffer:
        held = native.buffer_size(size)
        self._ledger.reserve("weights", held, 'raise memory=, or take weights="mapped"')
        try:
            buffer = native.allocate(held, "resident weights")
        except BaseException:
            self._ledger.release("weights", held)
            raise
        self.nbytes += held
        return buffer


def resident_size(shapes: Iterable[tuple[str, Sequence[int]]]) -> int:
    """Bytes of resident copies of stored tensors (format, shape); what has no kernel counts nothing."""
    total = 0
    for name, shape in shapes:
        if name not in native.Format.__members__ or len(shape) < 2:
            continue
        *stacked, rows, cols = shape
        total += int(np.prod(stacked, dtype=np.int64)) * native.resident_bytes(native.Format[name], rows, cols)
    return total


def _keys(stack: ExpertStack) -> list[Key]:
    none = [None] * len(stack.files)
    scale_files = none if stack.scale_files is None else stack.scale_files.tolist()
    scale_offsets = none if stack.scale_offsets is None else stack.scale_offsets.tolist()
    places = zip(stack.files.tolist(), stack.offsets.tolist(), none, scale_files, scale_offsets, strict=True)
    return [(stack.format, *stack.shape, *place) for place in places]


def _not_finite(path: str, name: str) -> ModelFileError:
    return ModelFileError(
        path, f"tensor {name} holds a weight that is not a number; download the file again or use another one"
    )
