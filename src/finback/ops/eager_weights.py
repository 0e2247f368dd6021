"""Weights for the eager ops: tensors by official name, from arrays in memory or from an opened checkpoint.

Owns the step from a tensor's bytes to the handles `EagerOps` takes: matrices in their stored format, vectors
in the float type of the arithmetic, tables of expert ids. Refuses names (weights/checkpoint.py knows them)
and conversion: a matrix keeps its format. """

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from finback.config import ModelConfig
from finback.formats.blocks import decode, row_bytes
from finback.ops.eager import Array, Stack
from finback.reference.arithmetic import Arithmetic
from finback.reference.matrix import Matrix
from finback.weights.tensors import Checkpoint, ExpertStack, Plane, Weight

Tensor = Matrix | npt.NDArray[Any]
"""A matrix in its stored format, or plain values of any shape: float32, or integers of a table."""


class EagerWeights:
    """`WeightSource` of `EagerOps` over tensors by official name."""

    def __init__(self, config: ModelConfig, arithmetic: Arithmetic, tensors: Mapping[str, Tensor]) -> None:
        self._config, self._arithmetic, self._tensors = config, arithmetic, tensors

    def matrix(self, name: str) -> Matrix:
        tensor = self._tensors[name]
        return tensor if isinstance(tensor, Matrix) else Matrix.of(tensor)

    def rows(self, name: str) -> Matrix:
        """A matrix whose rows are looked up: the same."""
        return self.matrix(name)

    def vector(self, name: str) -> Array:
        tensor = self._tensors[name]
        if isinstance(tensor, Matrix):
            return self._arithmetic.decode(tensor, np.arange(tensor.rows))
        return tensor.astype(self._arithmetic.dtype)

    def experts(self, prefix: str, matrix: str) -> Stack:
        return tuple(
            self.matrix(f"{prefix}.{e}.{matrix}.weight") for e in range(self._config.n_routed_experts)
        )

    def table(self, name: str) -> Stack:
        tensor = self._tensors[name]
        assert not isinstance(tensor, Matrix), f"{name} is a table of integers"
        return tensor.astype(np.int64)


class CheckpointTensors(Mapping[str, Tensor]):
    """Tensors of a checkpoint, read when asked for. Routed experts go by their single names, as in the
    official files: "layers.3.ffn.experts.5.w1.weight"."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._checkpoint = checkpoint

    def __getitem__(self, name: str) -> Tensor:
        prefix, experts, rest = name.partition(".experts.")
        if experts:
            number, matrix, _ = rest.split(".")
            stack = self._checkpoint.experts(f"{prefix}.experts", matrix)
            return self._expert(stack, int(number))
        return self._tensor(self._checkpoint.weight(name))

    def __iter__(self) -> Iterator[str]:
        raise TypeError("a checkpoint hands out tensors by name; it is not listed through this view")

    def __len__(self) -> int:
        raise TypeError("a checkpoint hands out tensors by name; it is not counted through this view")

    def _bytes(self, plane: Plane) -> npt.NDArray[np.uint8]:
        return np.fromfile(self._checkpoint.paths[plane.file], np.uint8, plane.nbytes, offset=plane.offset)

    def _tensor(self, w: Weight) -> Tensor:
        data = self._bytes(w.data)
        if w.format in ("I32", "I64"):
            table: Array = data.view({"I32": np.int32, "I64": np.int64}[w.format]).reshape(w.shape)
            return table
        if len(w.shape) != 2:
            return decode(w.format, data, 1, w.shape[-1]).reshape(w.shape)
        rows, cols = w.shape
        if w.stride is not None:  # rows lie apart; the last one is not followed by the gap
            data = np.pad(data, (0, rows * w.stride - len(data))).reshape(rows, w.stride)
            data = data[:, : row_bytes(w.format, cols)].copy()
        return self._matrix(w.format, (rows, cols), data, w, w.scale)

    def _expert(self, stack: ExpertStack, e: int) -> Matrix:
        data = self._bytes(Plane(int(stack.files[e]), int(stack.offsets[e]), stack.nbytes))
        scale = None
        if stack.scale_files is not None and stack.scale_offsets is not None:
            scale = Plane(int(stack.scale_files[e]), int(stack.scale_offsets[e]), stack.scale_nbytes)
        return self._matrix(stack.format, stack.shape, data, stack, scale)

    def _matrix(
        self,
        format: str,
        shape: tuple[int, int],
        data: npt.NDArray[np.uint8],
        w: Weight | ExpertStack,
        scale: Plane | None,
    ) -> Matrix:
        data = data.reshape(shape[0], -1)
        if scale is None or w.scale_block is None:
            return Matrix(format, *shape, data)
        raw = self._bytes(scale)
        plane = raw if w.scale_kind == "E8M0" else raw.view(np.float32)
        plane = plane.reshape(-(-shape[0] // w.scale_block[0]), -1)
        return Matrix(format, *shape, data, plane, w.scale_block)
