"""`CheckpointTensors`: every kind of record of a checkpoint becomes the tensor that was written."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from finback.formats.blocks import encode
from finback.ops.eager_weights import CheckpointTensors, EagerWeights
from finback.reference.canonical import Canonical
from finback.reference.matrix import Matrix
from finback.weights.tensors import Plane, Weight
from tests.golden import value, weights
from tests.model.test_stored import fp8, mxfp4_pairs
from tests.ops.checkpoint import RawCheckpoint
from tests.tiny import TINY, is_expert, stored


class OneRecord(RawCheckpoint):
    """A checkpoint that answers any name with one record."""

    def __init__(self, path: Path, data: bytes, record: Weight) -> None:
        super().__init__(TINY, {}, path)
        path.write_bytes(data)
        self.record = record

    def weight(self, name: str) -> Weight:
        return self.record


def test_tensors_come_back(tmp_path: Path) -> None:
    tensors = stored(weights(TINY), mxfp4_pairs, is_expert)
    tensors["layers.2.attn.wq_a.weight"] = fp8(32, 32)(value("layers.2.attn.wq_a.weight", (32, 64)))
    read = CheckpointTensors(RawCheckpoint(TINY, tensors, tmp_path / "weights.bin"))
    for name, tensor in tensors.items():
        got = read[name]
        if isinstance(tensor, Matrix):
            assert isinstance(got, Matrix), name
            np.testing.assert_array_equal(got.exact, tensor.exact, err_msg=name)
        elif isinstance(got, Matrix):
            np.testing.assert_array_equal(got.plain, tensor, err_msg=name)
        else:
            np.testing.assert_array_equal(got, tensor, err_msg=name)


@pytest.mark.parametrize("half", [0, 1])
def test_rows_that_lie_apart(half: int, tmp_path: Path) -> None:
    """Two matrices side by side in one tensor: the second one's last row ends with the file."""
    x = value("eh_proj.weight", (5, 128))
    data = encode("Q8_0", x)  # 136 bytes a row, 68 of each half
    plane = Plane(0, 68 * half, 4 * 136 + 68)
    record = Weight("e_proj.weight", "Q8_0", (5, 64), plane, stride=136)
    source = EagerWeights(
        TINY, Canonical(), CheckpointTensors(OneRecord(tmp_path / "w.bin", data.tobytes(), record))
    )
    expected = Matrix("Q8_0", 5, 128, data).exact[:, 64 * half : 64 * half + 64]
    np.testing.assert_array_equal(source.matrix("e_proj.weight").exact, expected)


def test_a_vector_may_be_stored_in_blocks(tmp_path: Path) -> None:
    x = value("norm.weight", (1, 64))
    data = encode("Q8_0", x)
    record = Weight("norm.weight", "Q8_0", (64,), Plane(0, 0, data.size))
    source = EagerWeights(
        TINY, Canonical(), CheckpointTensors(OneRecord(tmp_path / "w.bin", data.tobytes(), record))
    )
    got = source.vector("norm.weight")
    assert got.dtype == np.float32
    assert got.shape == (64,)
    np.testing.assert_allclose(got, x[0], atol=0.01)


def test_experts_are_complete(tmp_path: Path) -> None:
    config = replace(TINY, n_routed_experts=3)
    source = EagerWeights(
        config, Canonical(), CheckpointTensors(RawCheckpoint(config, weights(config), tmp_path / "w"))
    )
    stack = source.experts("layers.1.ffn.experts", "w2")
    assert len(stack) == 3
    for e, matrix in enumerate(stack):
        assert isinstance(matrix, Matrix)
        name = f"layers.1.ffn.experts.{e}.w2.weight"
        np.testing.assert_array_equal(matrix.plain, value(name, (64, 64)))
