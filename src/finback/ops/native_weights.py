"""Weights for the native program: matrices where they lie in the mapped files, vectors decoded once.

Owns the mappings of a checkpoint and the step from its records (weights/tensors.py) to the handles the
recorder takes; matrices may go through resident copies (resident.py). Refuses, naming the tensor, what has no
kernel, what does not lie in its file any more, and expert ids out of range. Nothing is requantised; a matrix may
start at any byte, for the kernels load weights unaligned.
"""

from __future__ import annotations

import math
import resource
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from finback import native
from finback.errors import ModelFileError, UnsupportedModelError, shown_size
from finback.formats.blocks import FORMATS, decode, has_codec
from finback.ops.resident import ResidentCopies
from finback.weights.ledger import Ledger
from finback.weights.tensors import Checkpoint, ExpertStack, Plane, Weight


@dataclass(frozen=True, slots=True)
class NativeMatrix:
    """A matrix [rows, cols] in its stored format."""

    name: str
    rows: int
    cols: int
    format: native.Format
    handle: native.Matrix

    @property
    def encoding(self) -> native.Encoding:
        """How its inputs are packed."""
        return native.encoding_of(self.format)


@dataclass(frozen=True, slots=True)
class NativeVector:
    """A vector or small table, f32."""

    name: str
    values: npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class NativeStack:
    """One matrix [rows, cols] of each of `count` experts."""

    name: str
    rows: int
    cols: int
    count: int
    format: native.Format
    handle: native.MatrixStack

    @property
    def encoding(self) -> native.Encoding:
        """How its inputs are packed."""
        return native.encoding_of(self.format)


@dataclass(frozen=True, slots=True)
class NativeTable:
    """Expert ids by token, int32 [V, k]."""

    name: str
    ids: npt.NDArray[np.int32]


NativeExperts = NativeStack | NativeTable


class NativeWeights:
    """`WeightSource` of the recorder over a checkpoint.

    `nbytes`: what is charged to the ledger as "weights", beside the resident copies: every byte that stays
    mapped once (a page that is read stays in memory as long as there is room), and the vectors and tables
    that were decoded. MemoryBudgetError if that does not fit.
    """

    def __init__(self, checkpoint: Checkpoint, ledger: Ledger, copies: ResidentCopies | None) -> None:
        self._checkpoint, self._ledger, self._copies = checkpoint, ledger, copies
        self.nbytes = 0
        self._maps = [native.map_file(str(path)) for path in checkpoint.paths]
        self._charged: set[tuple[int, int]] = set()  # planes that stay mapped beside resident copies
        if copies is None:
            self._charge(checkpoint.nbytes)
        else:
            copies.open(self._maps)
        self._matrices: dict[str, NativeMatrix] = {}

    # ---- matrices

    def matrix(self, name: str) -> NativeMatrix:
        """A matrix for products: in a resident copy, or where it lies. Asked twice, it is the same handle."""
        if name not in self._matrices:
            w = self._checkpoint.weight(name)
            m = self._matrix(w)
            if self._copies is not None:
                copy = self._copies.matrix(self._path(w.data.file), w, m.handle)
                m = NativeMatrix(m.name, m.rows, m.cols, m.format, copy)
                if w.scale is not None and m.format is native.Format.FP8_E4M3:
                    self._keep_mapped(w.scale)
            self._matrices[name] = m
        return self._matrices[name]

    def rows(self, name: str) -> NativeMatrix:
        """A matrix whose rows are looked up, where it lies: a step reads few of its bytes."""
        w = self._checkpoint.weight(name)
        self._keep_mapped(w.data)
        return self._matrix(w)

    def _keep_mapped(self, plane: Plane) -> None:
        if self._copies is not None and (plane.file, plane.offset) not in self._charged:
            self._charged.add((plane.file, plane.offset))
            self._charge(plane.nbytes)

    def _matrix(self, w: Weight) -> NativeMatrix:
        format = self._format(w.name, w.format, w.data.file)
        if len(w.shape) != 2:
            raise self._unsupported(
                w.data.file, w.name, f"has the shape {list(w.shape)}; a matrix [out, in] is needed"
            )
        rows, cols = w.shape
        self._check_plane(w.name, w.data)
        if w.scale is None or w.scale_block is None:
            handle = native.Matrix(
                format, rows, cols, self._maps[w.data.file], w.data.offset, row_stride=w.stride or 0
            )
        else:
            self._check_plane(w.name, w.scale)
            handle = native.Matrix(
                format,
                rows,
                cols,
                self._maps[w.data.file],
                w.data.offset,
                self._maps[w.scale.file],
                w.scale.offset,
                _scale_kind(w),
                *w.scale_block,
            )
        return NativeMatrix(w.name, rows, cols, format, handle)

    def experts(self, prefix: str, matrix: str) -> NativeExperts:
        """Matrix w1, w2 or w3 of all experts, each where it lies."""
        stack = self._checkpoint.experts(prefix, matrix)
        format = self._format(stack.name, stack.format, int(stack.files[0]))
        rows, cols = stack.shape
        self._check_planes(stack.name, stack.files, stack.offsets, stack.nbytes)
        block = stack.scale_block or (0, 0)
        if stack.scale_files is not None and stack.scale_offsets is not None:
            self._check_planes(stack.name, stack.scale_files, stack.scale_offsets, stack.scale_nbytes)
        handle = native.MatrixStack(
            format,
            rows,
            cols,
            self._maps,
            stack.files,
            stack.offsets,
            stack.scale_files,
            stack.scale_offsets,
            _scale_kind(stack),
            *block,
        )
        if self._copies is not None:
            paths = [str(path) for path in self._checkpoint.paths]
            handle = self._copies.stack(paths, stack, handle)
            if format is native.Format.FP8_E4M3 and stack.scale_files is not None:
                for e, file in enumerate(stack.scale_files):
                    assert stack.scale_offsets is not None
                    self._keep_mapped(Plane(int(file), int(stack.scale_offsets[e]), stack.scale_nbytes))
        return NativeStack(stack.name, rows, cols, len(stack.files), format, handle)

    # ---- vectors and tables

    def vector(self, name: str) -> NativeVector:
        """The values, decoded to f32."""
        w = self._checkpoint.weight(name)
        if w.scale is not None or w.format not in FORMATS or not has_codec(w.format):
            raise self._unsupported(
                w.data.file, name, f"is stored as {w.format}; vectors are of a type without a scale plane, as BF16"
            )
        cols = w.shape[-1] if w.shape else 1
        rows = math.prod(w.shape[:-1])
        values = np.ascontiguousarray(decode(w.format, self._bytes(name, w.data), rows, cols)).reshape(
            w.shape
        )
        self._charge(values.nbytes)
        return NativeVector(name, values)

    def table(self, name: str) -> NativeExperts:
        """Expert ids by token, checked against the number of experts."""
        w = self._checkpoint.weight(name)
        types: dict[str, np.dtype[np.signedinteger]] = {"I32": np.dtype("<i4"), "I64": np.dtype("<i8")}
        if w.format not in types or len(w.shape) != 2:
            raise self._unsupported(
                w.data.file, name, f"is stored as {w.format} {list(w.shape)}; I32 or I64 [V, k] is needed"
            )
        ids = self._bytes(name, w.data).view(types[w.format])
        experts = self._checkpoint.config.n_routed_experts
        wrong = np.flatnonzero((ids < 0) | (ids >= experts))
        if wrong.size:
            raise ModelFileError(
                self._path(w.data.file),
                f"tensor {name} names expert {int(ids[wrong[0]])} in entry {int(wrong[0])}; the model has "
                f"experts 0 to {experts - 1}; download the file again",
            )
        self._charge(4 * ids.size)
        return NativeTable(name, np.ascontiguousarray(ids.reshape(w.shape), np.int32))

    def finish(self, pin: bool) -> list[str]:
        """Everything is loaded. pin: keep it in memory. Sentences about what the system did not allow."""
        notes = []
        reason = None if self._copies is None else self._copies.finish()
        if reason is not None:
            notes.append(
                f'weights="direct" reads through the page cache, as weights="resident" does: direct reads of '
                f"{self._checkpoint.paths[0].name} are refused ({reason})"
            )
        if pin:
            notes += self._pin()
        return notes

    def _pin(self) -> list[str]:
        """Keep copies, or what is mapped where there are none, in memory."""
        owners = self._maps if self._copies is None else self._copies.buffers
        reason = native.lock_memory(owners)
        if reason is None:
            return []
        limit = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
        allowed = "all" if limit == resource.RLIM_INFINITY else shown_size(limit)
        return [
            f"pin: the weights stay unpinned, the system may page them out: {shown_size(sum(o.size for o in owners))} "
            f"are to be locked and this process may lock {allowed} ({reason}); raise the limit with ulimit -l, or "
            f"LimitMEMLOCK= of its service"
        ]

    def release(self) -> None:
        """Give back what was charged. Mappings and copies end when the last program that reads them does."""
        self._matrices.clear()
        if self._copies is not None:
            self._copies.release()
        self._ledger.release("weights", self.nbytes)
        self.nbytes = 0

    # ---- checks

    def _charge(self, size: int) -> None:
        self._ledger.reserve("weights", size, "raise memory= or take a smaller model")
        self.nbytes += size

    def _path(self, file: int) -> str:
        return str(self._checkpoint.paths[file])

    def _unsupported(self, file: int, name: str, problem: str) -> UnsupportedModelError:
        return UnsupportedModelError(self._path(file), f"tensor {name} {problem}")

    def _format(self, name: str, format: str, file: int) -> native.Format:
        if format not in native.Format.__members__:
            known = ", ".join(native.Format.__members__)
            kind = "a type" if format in FORMATS else "an unknown type"
            raise self._unsupported(
                file, name, f"is stored as {format}, {kind} without kernels; those with are {known}"
            )
        return native.Format[format]

    def _check_plane(self, name: str, plane: Plane) -> None:
        size = self._maps[plane.file].size
        if plane.offset + plane.nbytes > size:
            raise ModelFileError(
                self._path(plane.file),
                f"tensor {name} needs bytes {plane.offset} to {plane.offset + plane.nbytes}; the file now "
                f"ends at {size}; download it again",
            )

    def _check_planes(
        self, name: str, files: npt.NDArray[np.int32], offsets: npt.NDArray[np.int64], nbytes: int
    ) -> None:
        for file in np.unique(files):
            last = int(offsets[files == file].max())
            self._check_plane(name, Plane(int(file), last, nbytes))

    def _bytes(self, name: str, plane: Plane) -> npt.NDArray[np.uint8]:
        """A copy of a plane: aligned, whatever its place in the file."""
        self._check_plane(name, plane)
        return np.frombuffer(self._maps[plane.file].read(plane.offset, plane.nbytes), np.uint8)


def _scale_kind(record: Weight | ExpertStack) -> native.ScaleKind:
    return native.ScaleKind[record.scale_kind] if record.scale_kind else native.ScaleKind.NONE
