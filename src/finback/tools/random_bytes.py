"""Random tensor bytes, valid in every format and the same for the same seed and name on every machine.

Owns the generator (a pool of random words, mixed per tensor by a hash of its name, so that gigabytes cost little more
than copying) and how each block format is made out of random bytes: finite scales of a size that keeps activations
near 1. Refuses formats without a codec. Knows nothing about models.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from hashlib import blake2b
from typing import Final

import numpy as np
import numpy.typing as npt

from finback.errors import RequestError, shown
from finback.formats.blocks import FORMATS, encode, row_bytes
from finback.formats.microfloats import encode_e4m3

Bytes = npt.NDArray[np.uint8]

POOL_WORDS: Final = 1 << 21
CHUNK_WORDS: Final = 1 << 19  # 4 MiB of random bytes a step
_E4M3_WIDEST: Final = 448.0
_UNIFORM_STD: Final = 1 / math.sqrt(3)  # of values uniform in -1..1
_E2M1_STD: Final = 2.93  # of uniform E2M1 codes


@dataclass(frozen=True, slots=True)
class RandomBytes:
    """Random bytes by name. The pool comes from SFC64, whose stream NumPy keeps the same in all versions."""

    seed: int
    _pool: npt.NDArray[np.uint64] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_pool", np.random.SFC64(self.seed).random_raw(POOL_WORDS))

    def take(self, name: str, count: int) -> Bytes:
        """`count` bytes, at most 4 MiB: a window of the pool, every word mixed with keys hashed from `name`."""
        words = -(-count // 8)
        digest = blake2b(f"{self.seed}\0{name}".encode(), digest_size=24).digest()
        start, flip, odd = (int.from_bytes(digest[i : i + 8], "little") for i in (0, 8, 16))
        start %= POOL_WORDS - words + 1
        mixed = (self._pool[start : start + words] ^ np.uint64(flip)) * np.uint64(odd | 1)
        return mixed.view(np.uint8)[:count]

    def matrix(self, name: str, format: str, rows: int, cols: int, std: float) -> Iterator[Bytes]:
        """A matrix [rows, cols] in `format`, piece by piece in row order; values have deviation about `std`."""
        width = row_bytes(format, cols)
        raw_width = 2 * cols if format in _PLAIN else width
        step = max(1, CHUNK_WORDS * 8 // raw_width)
        for row in range(0, rows, step):
            count = min(step, rows - row)
            yield _shaped(self.take(f"{name}\0{row}", count * raw_width), format, std)

    def scales(self, name: str, count: int, std: float, code_std: float) -> Bytes:
        """E8M0 scales that bring codes of deviation `code_std` to about `std`, of two neighbouring sizes."""
        base = 127 + round(math.log2(std / code_std))
        return (base - (self._bits(name, count) & 1)).astype(np.uint8)

    def uniform(self, name: str, count: int) -> npt.NDArray[np.float32]:
        """`count` values uniform in -1/2..1/2."""
        raw = self._bits(name, 4 * count).view(np.uint32)
        return (raw >> 8).astype(np.float32) / np.float32(1 << 24) - np.float32(0.5)

    def _bits(self, name: str, count: int) -> Bytes:
        most = CHUNK_WORDS * 8
        pieces = [self.take(f"{name}\0{i}", min(most, count - i)) for i in range(0, count, most)]
        return np.concatenate(pieces)


E4M3_STD: Final = _E4M3_WIDEST * _UNIFORM_STD
E2M1_STD: Final = _E2M1_STD
_E4M3_TABLE: Final = encode_e4m3(np.linspace(-_E4M3_WIDEST, _E4M3_WIDEST, 256, dtype=np.float32)).tobytes()
_PLAIN: Final = frozenset({"F32", "F16", "BF16"})
# Deviation of the integer codes of each format, so that `std / deviation` is the scale.
_INTEGER_STD: Final = {
    "Q8_0": 73.9,
    "Q4_0": 4.6,
    "Q2_K": 13.9,
    "Q3_K": 43.4,
    "Q4_K": 280.0,
    "Q5_K": 529.0,
    "Q6_K": 1367.0,
    "IQ1_S": 7.22,
    "IQ1_M": 7.21,
    "IQ2_XXS": 53.4,
    "IQ2_XS": 55.9,
    "IQ2_S": 56.4,
    "IQ3_XXS": 142.0,
    "IQ3_S": 140.0,
    "IQ4_NL": 67.2,
    "IQ4_XS": 1246.0,
}
_SCALE_AT: Final = {"Q2_K": 80, "Q3_K": 108, "Q6_K": 208}  # where a block keeps its scale; the others begin with it
_CENTRE: Final = {"Q2_K": 1.5, "Q4_K": 7.5, "Q5_K": 15.5}  # mean of a code: what the minimum, stored next, takes away


@lru_cache(maxsize=16)
def _ladder(format: str, std: float) -> npt.NDArray[np.uint16] | npt.NDArray[np.uint32]:
    """65,536 values uniform about 0, as stored in a plain format: what two random bytes pick from."""
    values = np.linspace(-1, 1, 1 << 16, dtype=np.float32) * np.float32(std / _UNIFORM_STD)
    stored = encode(format, values[None, :]).reshape(-1)
    return stored.view(np.uint32) if format == "F32" else stored.view(np.uint16)


def _shaped(raw: Bytes, format: str, std: float) -> Bytes:
    """Random bytes made valid in `format`: whole blocks, or for plain formats two bytes a value."""
    if format in _PLAIN:
        picked: Bytes = _ladder(format, std)[raw.view(np.uint16)].view(np.uint8)
        return picked
    if format == "FP8_E4M3":
        return np.frombuffer(raw.tobytes().translate(_E4M3_TABLE), np.uint8)
    if format == "MXFP4_PAIRS":
        return raw
    if format == "MXFP4":
        blocks = raw.reshape(-1, 17)
        blocks[:, 0] = 127 + round(math.log2(std / E2M1_STD)) - (blocks[:, 0] & 1)
        return raw
    if format not in _INTEGER_STD:
        raise RequestError(f"format is {shown(format)}; random bytes are made in {', '.join(_INTEGER_STD)}, "
                           "MXFP4, MXFP4_PAIRS, FP8_E4M3, F32, F16 and BF16")  # fmt: skip
    at, blocks = _SCALE_AT.get(format, 0), raw.reshape(-1, FORMATS[format].block_bytes)
    spread = np.float32(0.75) + blocks[:, at].astype(np.float32) / np.float32(512)  # so that no two blocks need agree
    scale = _halves(spread, std / _INTEGER_STD[format])
    if format == "IQ1_M":  # a nibble of it on top of each of the last four words
        nibbles = np.stack([scale & 15, scale >> 4], axis=2).reshape(-1, 4)
        blocks[:, 49::2] = blocks[:, 49::2] & 15 | nibbles << 4
        return raw
    blocks[:, at : at + 2] = scale
    if format in _CENTRE:
        blocks[:, at + 2 : at + 4] = _halves(spread, std / _INTEGER_STD[format] * _CENTRE[format])
    return raw


def _halves(spread: npt.NDArray[np.float32], factor: float) -> Bytes:
    """spread [n] * factor as half floats, uint8 [n, 2]."""
    return (spread * np.float32(factor)).astype(np.float16).view(np.uint8).reshape(-1, 2)
