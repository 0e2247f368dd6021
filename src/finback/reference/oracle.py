"""Float64 and plain NumPy: what the model means, without rounding of activations.

Owns nothing but the mapping of the primitives to NumPy. Weights are the exact real numbers that the file
stores. Tests compare with tolerances; where a discrete choice (top-k, a rounding step) is a near tie the two
truths may part. """

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from finback.reference.arithmetic import Array, Ints
from finback.reference.matrix import Matrix


class Oracle:
    """The `Arithmetic` of real numbers, as near as float64 comes."""

    @property
    def dtype(self) -> np.dtype[Any]:
        return np.dtype(np.float64)

    def fma(self, a: Array, b: Array, c: Array) -> Array:
        return np.asarray(a * b + c)

    def dot(self, x: Array, y: Array) -> Array:
        return np.asarray((x * y).sum(-1))

    def sum(self, x: Array) -> Array:
        return np.asarray(x.sum(-1))

    def chain(self, weights: Array, rows: Array, counts: Ints | None = None) -> Array:
        if counts is not None:
            weights = np.where(np.arange(weights.shape[-1]) < np.asarray(counts)[..., None], weights, 0.0)
        return np.asarray((weights[..., None, :] @ rows)[..., 0, :])

    def exp(self, x: Array) -> Array:
        return np.asarray(np.exp(x))

    def sigmoid(self, x: Array) -> Array:
        return np.asarray(1 / (1 + np.exp(-x)))

    def silu(self, x: Array) -> Array:
        return np.asarray(x / (1 + np.exp(-x)))

    def softplus(self, x: Array) -> Array:
        return np.asarray(np.logaddexp(x, 0.0))

    def sincos(self, angles: npt.NDArray[np.float64]) -> tuple[Array, Array]:
        return np.sin(angles), np.cos(angles)

    def product(self, x: Array, w: Matrix) -> Array:
        return np.asarray(x @ w.exact.T)

    def decode(self, w: Matrix, rows: Ints) -> Array:
        return w.exact[rows]

    def index_dot(self, q: Array, keys: Array, rounded: bool) -> Array:
        return self.dot(q, keys)
