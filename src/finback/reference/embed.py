"""The embedding: rows of a stored table as numbers, one copy for each hyper-connection stream.

Owns the op `embed` (docs/ops.md). Refuses ids outside the table (IndexError): the engine checks them before.
"""

from __future__ import annotations

import numpy as np

from finback.reference.arithmetic import Arithmetic, Array, Ints
from finback.reference.matrix import Matrix


def embed(a: Arithmetic, table: Matrix, ids: Ints, streams: int) -> Array:
    """ids [T] -> [T, streams, D]; [T, D] for one stream."""
    rows = a.decode(table, ids)
    return rows if streams == 1 else np.repeat(rows[:, None], streams, axis=1)
