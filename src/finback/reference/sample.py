"""Sampling: the counter generator, the filters and the draw, and log-probabilities.

Owns docs/exactness.md section 14 in NumPy. A draw depends on the logits, the settings and (seed, choice,
position), on nothing that happened between. Refuses penalties and masks: they are already in the logits. """

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from finback.reference import floats
from finback.reference.floats import F32

Ints = npt.NDArray[np.int64]

_WORD = (1 << 64) - 1


def mix(x: int) -> int:
    """splitmix64's output function of x plus its increment."""
    z = (x + 0x9E3779B97F4A7C15) & _WORD
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 & _WORD
    z = (z ^ z >> 27) * 0x94D049BB133111EB & _WORD
    return z ^ z >> 31


def counter(seed: int, choice: int, position: int) -> int:
    """64 random bits for the token at `position` of choice number `choice`."""
    return mix(mix(mix(seed & _WORD) ^ choice) ^ position)


def shares(logits: F32, z: F32) -> F32:
    """e_i = exp(z_i - max z) of z = logits / temperature; where that overflows, 1 for the greatest logits,
    else 0."""
    top = np.float32(z[logits.argmax()])
    if np.isinf(top):
        return np.asarray(logits == logits.max(), np.float32)
    return floats.exp(z - top)


def draw(
    logits: F32,
    *,
    temperature: float,
    top_k: int = 0,
    top_p: float = 1.0,
    min_p: float = 0.0,
    seed: int = 0,
    choice: int = 0,
    position: int = 0,
) -> int:
    """The sampled id of logits [V]; temperature 0 takes the greatest, equal ones to the lowest id. top_k 0:
    all."""
    if temperature == 0:
        return int(logits.argmax())
    with np.errstate(over="ignore"):
        z = logits / np.float32(temperature)
    e = shares(logits, z)
    ids = np.flatnonzero(e > 0)
    order = ids[np.lexsort((ids, -z[ids]))]
    if top_k:
        order = order[:top_k]
    if top_p < 1:
        total = _running(e, np.sort(order))[-1]
        reached = np.flatnonzero(_running(e, order) >= float(np.float32(top_p)) * total)
        order = order[: reached[0] + 1] if len(reached) else order
    kept = np.sort(order[e[order] >= np.float32(min_p)])
    sums = _running(e, kept)
    u = (counter(seed, choice, position) >> 11) * 2.0**-53
    past = np.flatnonzero(sums > u * sums[-1])
    return int(kept[past[0]] if len(past) else kept[-1])


def _running(e: F32, ids: Ints) -> npt.NDArray[np.float64]:
    """Running f64 sums of e over ids in their order."""
    return np.cumsum(e[ids].astype(np.float64))


def log_probs(logits: F32, ids: Ints) -> F32:
    """Natural log-probabilities of ids under logits [V], before temperature and filters."""
    top = logits.max()
    total = _running(floats.exp(logits - top), np.arange(len(logits)))[-1]
    exact = logits[ids].astype(np.float64) - np.float64(top) - floats.ln(np.asarray(total))
    return exact.astype(np.float32)
