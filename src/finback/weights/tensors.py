"""Where a checkpoint's numbers lie: byte ranges of files, with format and shape. Plain records, no reading.

The contract between whoever opens checkpoints (weights/checkpoint.py) and whoever uses the bytes (ops/native.py maps
them, ops/eager.py decodes them). Names are the official ones of spec section 6 whatever the file calls them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

import numpy as np
import numpy.typing as npt

from finback.config import ModelConfig

ScaleKind = Literal["E8M0", "F32"]


Placing = Literal["mapped", "resident", "direct"]
"""Where matrices lie that are multiplied with: in the mapped file, or in copies, made through the page cache or past
it."""


@dataclass(frozen=True, slots=True)
class Plane:
    """`nbytes` bytes at `offset` of file number `file` (an index into `Checkpoint.paths`)."""

    file: int
    offset: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class Weight:
    """One tensor: a matrix [out, in], a vector [n] or a table. `format` is a key of formats.blocks.FORMATS.

    With a `stride`, `data` spans from the first row's first byte to the last row's last one, and the bytes between
    rows belong to another matrix.
    """

    name: str
    format: str
    shape: tuple[int, ...]
    data: Plane
    scale: Plane | None = None  # FP8_E4M3 and MXFP4_PAIRS keep their scales in a second plane
    scale_kind: ScaleKind | None = None
    scale_block: tuple[int, int] | None = None  # weights covered by one scale: (rows, columns)
    stride: int | None = None  # bytes from a row to the next where rows lie apart (half of llama.cpp's eh_proj)


@dataclass(frozen=True, slots=True)
class ExpertStack:
    """Matrix `w1`, `w2` or `w3` of all experts of a layer; all share format and shape, each has its own bytes."""

    name: str  # "layers.3.ffn.experts.w1"
    format: str
    shape: tuple[int, int]  # [out, in] of one expert
    files: npt.NDArray[np.int32]  # [E]
    offsets: npt.NDArray[np.int64]  # [E] start of each expert's data
    nbytes: int  # of one expert's data
    scale_files: npt.NDArray[np.int32] | None = None
    scale_offsets: npt.NDArray[np.int64] | None = None
    scale_nbytes: int = 0
    scale_kind: ScaleKind | None = None
    scale_block: tuple[int, int] | None = None


class Checkpoint(Protocol):
    """An opened model of any container."""

    config: ModelConfig
    paths: Sequence[Path]

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors; ranges that several names share count once."""

    def weight(self, name: str) -> Weight:
        """A tensor by official name; ModelFileError naming the tensor if the model lacks it."""

    def experts(self, prefix: str, matrix: str) -> ExpertStack:
        """`prefix` such as "layers.3.ffn.experts", `matrix` one of w1, w2, w3."""
