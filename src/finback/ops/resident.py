"""Resident copies of a checkpoint's matrices: read once, laid out for the kernels, charged to the ledger.

Owns which copies exist, keyed by byte range so that tensors that share bytes share a copy, the buffers they lie in, and
how the file is read: where it is mapped, or past the page cache. Refuses weights that are not numbers, naming the
tensor: in a copy they would be found by nobody. Scale planes of FP8_E4M3 stay where they lie.
"""

from __future__ import annotations

import os
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
    """Copies made so far; `nbytes` of them are charged to the ledger as "weights".

    direct: read past the page cache, so that a model that fills most of the memory is not there twice while it is
    loaded. `buffered` says why a file was read the ordinary way all the same.
    """

    def __init__(self, ledger: Ledger, *, isa: str, threads: int, direct: bool) -> None:
        self._ledger, self._isa, self._threads, self._direct = ledger, isa, threads, direct
        self._made: dict[Key, tuple[native.Buffer, int]] = {}
        self._readers: list[native.DirectFile] = []
        self._windows: list[native.Buffer] = []
        self.nbytes = 0

    def open(self, maps: Sequence[native.FileMap]) -> None:
        """The files that copies are made from."""
        self._readers = [native.DirectFile(file) for file in maps] if self._direct else []

    def matrix(self, path: str, weight: Weight, source: native.Matrix) -> native.Matrix:
        """The matrix `source`, whose bytes are those of `weight`, in a resident copy."""
        scale = (weight.scale.file, weight.scale.offset) if weight.scale else (None, None)
        key = (weight.format, *weight.shape, weight.data.file, weight.data.offset, weight.stride, *scale)
        if key not in self._made:
            buffer = self._buffer(native.resident_bytes(source.format, source.rows, source.cols))
            if self._copy(path, source, [0], buffer, [0]) is not None:
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
            bad = self._copy(paths[stack.files[0]], source, [e for _, e in order], buffer, offsets)
            if bad is not None:
                raise _not_finite(paths[stack.files[bad]], f"{stack.name} of expert {bad}")
            self._made.update((key, (buffer, at)) for (key, _), at in zip(order, offsets, strict=True))
        places = [self._made[key] for key in keys]
        buffers = list({id(buffer): buffer for buffer, _ in places}.values())
        numbered = {id(buffer): i for i, buffer in enumerate(buffers)}
        which = np.array([numbered[id(buffer)] for buffer, _ in places], np.int32)
        return native.resident_stack(source, buffers, which, np.array([at for _, at in places], np.int64))

    def _copy(
        self,
        path: str,
        source: native.Matrix | native.MatrixStack,
        numbers: list[int],
        to: native.Buffer,
        offsets: list[int],
    ) -> int | None:
        """Make copies; the number of a matrix that holds what is not a number. ModelFileError if the file was cut."""
        if self._readers:
            self._widen(native.window_bytes(source))
        try:
            return native.make_resident(
                self._isa,
                self._threads,
                source,
                numbers,
                to,
                offsets,
                readers=self._readers,
                windows=self._windows,
            )
        except EOFError:
            raise ModelFileError(path, "was cut while it was read; restore it and load the model again") from None

    def _widen(self, size: int) -> None:
        """Windows of at least `size` bytes, one a thread, until everything is read."""
        if not self._windows or self._windows[0].size < size:
            self._close_windows()
            self._windows = [self._buffer(size) for _ in range(self._threads)]

    def _close_windows(self) -> None:
        held = sum(window.size for window in self._windows)
        self._windows = []
        self._ledger.release("weights", held)
        self.nbytes -= held

    def finish(self) -> str | None:
        """Everything is read: give back what only reading needed. Why a file was not read past the page cache, if that
        was wanted and could not be."""
        self._close_windows()
        reasons = {reader.buffered for reader in self._readers if reader.buffered}
        self._readers = []
        return os.strerror(min(reasons)) if reasons else None

    @property
    def buffers(self) -> list[native.Buffer]:
        """The memory of all copies."""
        return list({id(buffer): buffer for buffer, _ in self._made.values()}.values())

    def release(self) -> None:
        """Give back what was charged; memory ends with the last program that reads it."""
        self._windows = []
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
