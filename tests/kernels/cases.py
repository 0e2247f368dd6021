"""Arguments for every float kernel, from a seed and a size, and the digest of a level over them.

Owns what counts as a hard input: zeros of both signs, subnormals, ties of every small format, large
magnitudes, lengths that are no multiple of a vector. Refuses NaN and infinities (docs/exactness.md
section 15), except the empty maximum of pooling.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import numpy as np
from tests.kernels import model

from finback import _native

kernels = _native.kernels
LEVELS = [name for name, supported, _ in _native.levels() if supported]
F = np.float32
Generator = np.random.Generator
Arguments = tuple[Any, ...]


def plain(rng: Generator, *shape: int) -> model.Floats:
    return rng.standard_normal(shape, F)


def wild(rng: Generator, *shape: int) -> model.Floats:
    """Normal values, with a share of zeros, subnormals, ties and large magnitudes."""
    n = int(np.prod(shape))
    x = plain(rng, n)
    for share, values in (
        (0.1, np.zeros(n)),
        (0.1, rng.integers(-40, 41, n) * 2.0**-149),
        (0.1, x * 2.0 ** rng.integers(-120, -60, n)),
        (0.1, x * 2.0 ** rng.integers(20, 60, n)),
        (0.2, (rng.integers(-64, 65, n) + 0.5) * 2.0 ** rng.integers(-12, 6, n)),
    ):
        x = np.where(rng.random(n) < share, values, x).astype(F)
    x = np.where(rng.random(n) < 0.5, x, -x).astype(F)
    return x.reshape(shape) * F(rng.choice([1, 1, 2.0**-140, 2.0**30]))


def turned(rng: Generator, pairs: int) -> tuple[model.Floats, model.Floats]:
    angle = rng.uniform(-3, 3, pairs)
    return np.cos(angle).astype(F), np.sin(angle).astype(F)


def hyper(rng: Generator, size: int) -> Arguments:
    n = 1 + size % 8
    many = (2 + n) * n
    return plain(rng, many) * F(8), 0.37, plain(rng, 3), plain(rng, many), n, 1 + size % 20, 1e-6


def row(rng: Generator, size: int) -> tuple[model.Floats, int, bool]:
    """A row to be stored: main (rotary channels), indexer (none) or not rounded."""
    kind = int(rng.integers(0, 3))
    rotary = 2 * int(rng.integers(1, size // 2 + 1)) if kind == 0 and size > 1 else 0
    return wild(rng, size), rotary, kind < 2


def stored(rng: Generator, size: int) -> Arguments:
    x, rotary, rounded = row(rng, size)
    return model.encode_row(x, rotary, rounded), size, rotary, rounded


def index(rng: Generator, size: int) -> Arguments:
    heads, n, rounded = 1 + size % 5, 1 + size % 37, bool(rng.integers(0, 2))
    rows = [model.encode_row(wild(rng, size) * F(2**-40), 0, rounded) for _ in range(heads + n)]
    return np.array(rows[:heads]), plain(rng, heads), size, rounded, np.array(rows[heads:])


def attention(rng: Generator, size: int) -> Arguments:
    heads, n = 1 + size % 6, 1 + size % 43
    sink = plain(rng, heads) * F(4)
    return plain(rng, heads, size) * F(2), size**-0.5, wild(rng, n, size) * F(2**-20), sink


def pool(rng: Generator, size: int) -> Arguments:
    m, l, a = np.full(size, -np.inf, F), np.zeros(size, F), np.zeros(size, F)
    for _ in range(int(rng.integers(0, 4))):
        m, l, a = model.pool_add(m, l, a, plain(rng, size), plain(rng, size) * F(30), plain(rng, size))
    return m, l, a, wild(rng, size), plain(rng, size) * F(30), plain(rng, size)


def maybe(rng: Generator, value: Any) -> Any:
    return value if rng.integers(0, 2) else None


# kernel name -> arguments after the level; size is 1 or more and says how long the rows are
BUILDERS: dict[str, Callable[[Generator, int], Arguments]] = {
    "rms": lambda rng, n: (wild(rng, n), 1e-6),
    "scale_rows": lambda rng, n: (wild(rng, n), 0.7, maybe(rng, plain(rng, n))),
    "hyper_mix": hyper,
    "hyper_pre": lambda rng, n: (plain(rng, 1 + n % 8), 1.3, plain(rng, 1), plain(rng, 1 + n % 8), 1e-6),
    "collapse": lambda rng, n: (wild(rng, 1 + n % 8, n), plain(rng, 1 + n % 8)),
    "expand": lambda rng, n: (wild(rng, h := 1 + n % 8, n), wild(rng, n), plain(rng, h), plain(rng, h, h)),
    "add": lambda rng, n: (wild(rng, n), wild(rng, n)),
    "rotate": lambda rng, n: (
        wild(rng, n),
        *turned(rng, int(rng.integers(0, n // 2 + 1))),
        bool(rng.integers(0, 2)),
    ),
    "encode_row": row,
    "decode_cache_row": stored,
    "hadamard": lambda rng, n: (wild(rng, 1 << (n - 1).bit_length()),),
    "pool_add": pool,
    "pool_close": lambda rng, n: (np.abs(plain(rng, n)) + F(0.1), wild(rng, n)),
    "index_scores": index,
    "attend": attention,
    "router_scores": lambda rng, n: (wild(rng, n),),
    "sum16": lambda rng, n: (wild(rng, n),),
    "swiglu": lambda rng, n: (wild(rng, n), wild(rng, n), float(rng.choice([0, 10])), maybe(rng, 0.3)),
    "exp_shifted": lambda rng, n: (wild(rng, n), 0.5),
    "max_value": lambda rng, n: (wild(rng, n),),
}


def arguments(name: str, size: int, seed: int) -> Arguments:
    return BUILDERS[name](np.random.default_rng([seed, size, sorted(BUILDERS).index(name)]), size)


def as_bytes(result: Any) -> bytes:
    """The bytes of a kernel's result: an array, a float, or a tuple of them."""
    if isinstance(result, tuple):
        return b"".join(as_bytes(part) for part in result)
    if isinstance(result, np.ndarray):
        return result.tobytes()
    return np.asarray(result, np.bool_ if isinstance(result, bool) else F).tobytes()


def run(level: str, name: str, args: Arguments) -> Any:
    return getattr(kernels, name)(level, *args)


Runner = Callable[[str, str, Arguments], Any]


def kernel_digest(level: str, runner: Runner = run) -> str:
    """SHA-256 over (function, size, seed, result bytes) of every float kernel of a level.

    Two levels are interchangeable when their digests are equal. `runner` stands between, so that a test can
    damage one result.
    """
    digest = hashlib.sha256()
    for name in sorted(BUILDERS):
        for size in (1, 16, 21, 64, 131):
            for seed in range(2):
                digest.update(f"{name} {size} {seed} ".encode())
                digest.update(as_bytes(runner(level, name, arguments(name, size, seed))))
    return digest.hexdigest()
