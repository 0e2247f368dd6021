"""A checkpoint made of arrays: one file of raw bytes, and the records that say where each tensor lies in it.

Owns the way from named arrays and matrices (tests/tiny.py) to what the native program maps and the eager ops
read, without any container format between. Each tensor starts at an odd byte, as tensors in safetensors files
may. """

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from finback.config import ModelConfig
from finback.ops.eager_weights import Tensor
from finback.reference.matrix import Matrix
from finback.weights.tensors import ExpertStack, Plane, ScaleKind, Weight


class RawCheckpoint:
    """`weights.tensors.Checkpoint` over tensors by official name."""

    def __init__(self, config: ModelConfig, tensors: Mapping[str, Tensor], path: Path) -> None:
        self.config = config
        self.paths: Sequence[Path] = [path]
        self._weights: dict[str, Weight] = {}
        self._blob = bytearray(b"\0")
        for name, tensor in tensors.items():
            self._weights[name] = self._placed(name, tensor)
        path.write_bytes(self._blob)

    def _plane(self, values: np.ndarray) -> Plane:
        data = np.ascontiguousarray(values).tobytes()
        plane = Plane(0, len(self._blob), len(data))
        self._blob += data + b"\0" * (1 + len(data) % 2)
        return plane

    def _placed(self, name: str, tensor: Tensor) -> Weight:
        if not isinstance(tensor, Matrix):
            plain = {"f": "F32", "i": "I64"}[tensor.dtype.kind]
            return Weight(name, plain, tensor.shape, self._plane(tensor))
        shape, data = (tensor.rows, tensor.cols), self._plane(tensor.data)
        if tensor.scales is None:
            return Weight(name, tensor.format, shape, data)
        kind: ScaleKind = "E8M0" if tensor.scales.dtype == np.uint8 else "F32"
        return Weight(name, tensor.format, shape, data, self._plane(tensor.scales), kind, tensor.scale_block)

    @property
    def nbytes(self) -> int:
        return len(self._blob)

    def weight(self, name: str) -> Weight:
        return self._weights[name]

    def experts(self, prefix: str, matrix: str) -> ExpertStack:
        parts = [self._weights[f"{prefix}.{e}.{matrix}.weight"] for e in range(self.config.n_routed_experts)]
        first = parts[0]
        scales = [p.scale for p in parts if p.scale is not None]
        return ExpertStack(
            f"{prefix}.{matrix}",
            first.format,
            (first.shape[0], first.shape[1]),
            _files(parts),
            _offsets([p.data for p in parts]),
            first.data.nbytes,
            _files(parts) if scales else None,
            _offsets(scales) if scales else None,
            scales[0].nbytes if scales else 0,
            first.scale_kind,
            first.scale_block,
        )


def _files(parts: Sequence[Weight]) -> np.ndarray:
    return np.zeros(len(parts), np.int32)


def _offsets(planes: Sequence[Plane]) -> np.ndarray:
    return np.array([p.offset for p in planes], np.int64)
