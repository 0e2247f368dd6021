"""`NativeWeights`: vectors come out of every format with a codec, and out of no other."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from finback.errors import UnsupportedModelError
from finback.formats.blocks import FORMATS, decode, has_codec
from finback.ops.native_weights import NativeWeights
from finback.reference.matrix import Matrix
from finback.tools.random_bytes import RandomBytes
from finback.weights.ledger import Ledger
from tests.model.test_stored import fp8, mxfp4_pairs
from tests.ops.checkpoint import RawCheckpoint
from tests.tiny import TINY

PLANES = ("FP8_E4M3", "MXFP4_PAIRS")


def opened(tensor: Matrix, folder: Path) -> NativeWeights:
    checkpoint = RawCheckpoint(TINY, {"table": tensor}, folder / "weights.bin")
    return NativeWeights(checkpoint, Ledger(1 << 20), None)


@pytest.mark.parametrize("format", [f for f in FORMATS if has_codec(f) and f not in PLANES])
def test_vectors_are_decoded(format: str, tmp_path: Path) -> None:
    data = next(RandomBytes(1).matrix("table", format, 3, 512, 0.5)).reshape(3, -1)
    found = opened(Matrix(format, 3, 512, data), tmp_path).vector("table")
    assert found.values.tobytes() == decode(format, data, 3, 512).tobytes()


@pytest.mark.parametrize("encode", [fp8(32, 32), mxfp4_pairs])
def test_vectors_with_a_scale_plane_are_refused(encode: object, tmp_path: Path) -> None:
    assert callable(encode)
    tensor = encode(np.ones((4, 256), np.float32))
    with pytest.raises(UnsupportedModelError, match="table is stored as"):
        opened(tensor, tmp_path).vector("table")
