"""Reads every tensor of a model and reports values that are not finite. Slow by nature (the whole file is read);
used by `finback inspect --check`. Owns no fix: a damaged file has to be fetched again."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import numpy.typing as npt

from finback.formats.blocks import FORMATS, has_codec, row_bytes
from finback.formats.blocks import decode as decode_rows
from finback.formats.entry import TensorEntry
from finback.weights.checkpoint import OpenedCheckpoint

PIECE_BYTES = 8 << 20  # decoded to f32 this is at most 64 MB at a time


def verify(
    checkpoint: OpenedCheckpoint, *, on_progress: Callable[[int, int], None] = lambda done, total: None
) -> Iterator[str]:
    """One sentence for each stored tensor with a value that is not finite; nothing if all are sound."""
    stored = {(t.file, t.offset): t for t in checkpoint.stored()}
    total, done = sum(t.nbytes for t in stored.values()), 0
    for tensor in stored.values():
        bad = sum(_bad_values(tensor, piece, rows) for piece, rows in _pieces(checkpoint, tensor))
        if bad:
            yield f"{tensor.name}: {bad} values are not finite; fetch the file again"
        done += tensor.nbytes
        on_progress(done, total)


def _pieces(checkpoint: OpenedCheckpoint, tensor: TensorEntry) -> Iterator[tuple[npt.NDArray[np.uint8], int]]:
    """Whole rows of a tensor, at most PIECE_BYTES at a time (a single row may be longer)."""
    cols = tensor.shape[-1] if tensor.shape else 1
    width = row_bytes(tensor.dtype, cols)
    rows = tensor.nbytes // width
    step = max(1, PIECE_BYTES // width)
    with open(checkpoint.paths[tensor.file], "rb") as file:
        for start in range(0, rows, step):
            n = min(step, rows - start)
            file.seek(tensor.offset + start * width)
            yield np.frombuffer(file.read(n * width), np.uint8), n


def _bad_values(tensor: TensorEntry, piece: npt.NDArray[np.uint8], rows: int) -> int:
    """Values of a piece that are NaN or infinite. Integer tensors and packed FP4 codes have none; E8M0 255 is NaN."""
    if tensor.dtype == "E8M0":
        return int((piece == 255).sum())
    if tensor.dtype not in FORMATS or not has_codec(tensor.dtype) or tensor.dtype == "MXFP4_PAIRS":
        return 0
    with np.errstate(all="ignore"):
        values = decode_rows(tensor.dtype, piece, rows, tensor.shape[-1] if tensor.shape else 1)
    return int((~np.isfinite(values)).sum())
