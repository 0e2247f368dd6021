"""The primitives the formulas of this package are written over: one protocol, two truths.

`canonical.Canonical` is docs/exactness.md to the bit in float32; `oracle.Oracle` is the real-number meaning
in float64. The formulas (embed, hyper, linear, ...) are written once and differ only in what they are handed.
Refuses shapes it would have to guess: every primitive says which axis it works on, leading axes broadcast.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from finback.reference.matrix import Matrix

Array = npt.NDArray[Any]
"""Values in the float type of an arithmetic."""
Ints = npt.NDArray[np.int64]


class Arithmetic(Protocol):
    """What a formula may do besides `+ - * /` and comparisons."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """Float type of all values."""

    def fma(self, a: Array, b: Array, c: Array) -> Array:
        """a * b + c."""

    def dot(self, x: Array, y: Array) -> Array:
        """Sum of x * y over the last axis."""

    def sum(self, x: Array) -> Array:
        """Sum over the last axis."""

    def chain(self, weights: Array, rows: Array, counts: Ints | None = None) -> Array:
        """Weights [..., n] times rows [..., n, c], summed over n in order -> [..., c].

        `counts` [...] (broadcasting like weights) ends each chain after that many items.
        """

    def exp(self, x: Array) -> Array: ...

    def sigmoid(self, x: Array) -> Array: ...

    def silu(self, x: Array) -> Array: ...

    def softplus(self, x: Array) -> Array: ...

    def sincos(self, angles: npt.NDArray[np.float64]) -> tuple[Array, Array]:
        """Sine and cosine of f64 radians."""

    def product(self, x: Array, w: Matrix) -> Array:
        """x [..., cols] by every row of w -> [..., rows], x in the encoding of w's format."""

    def decode(self, w: Matrix, rows: Ints) -> Array:
        """Rows of w as numbers, [..., cols] for row numbers [...]."""

    def index_dot(self, q: Array, keys: Array, rounded: bool) -> Array:
        """q [..., d] . keys [..., d] over the last axis; both are FP4 values when `rounded`."""
