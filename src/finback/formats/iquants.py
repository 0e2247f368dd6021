"""The IQ block formats: IQ1, IQ2 and IQ3, whose values are points of a grid, and IQ4, whose values are table entries.

Owns their bit layouts (those of GGML files) and exact decoding, and encoding of IQ4 with the search of `fitting`.
Refuses to encode into grids: which point serves best is a quantiser's question, and an expensive one. A scale s
stands for 2 s + 1 on a fraction of d; codes are whole numbers (IQ1 in eighths), so every value here is exact.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from finback.formats.fitting import best_steps, fit_signed, half, of_table, quotient, refit, require_range, through_half
from finback.formats.grids import EIGHT_SIGNS, TABLE, grid

Bytes = npt.NDArray[np.uint8]
Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float32]

SUPER_BLOCK: Final = 256
IQ4_STEPS: Final = tuple(0.80 + 0.025 * i for i in range(15))  # tried, as multiples of the one that fits the peak


# ---- IQ1: 8 g + 1 or 8 g - 1, in eighths of d ----------------------------------------------------------------------


def decode_iq1_s(blocks: Bytes) -> Floats:
    """d; 32 low bytes of points; per 32 values 16 bits: four times three high bits, s (3 bits), the shift's sign."""
    high = _words(blocks[:, 34:50])[..., None]  # [n, 8, 1]
    at = blocks[:, 2:34].reshape(-1, 8, 4) | (high >> np.arange(0, 12, 3) & 7) << 8
    shift = 1 - 2 * (high >> 15)
    codes = 8 * grid("IQ1")[at].astype(np.int64) + shift[..., None]
    return _values(_half(blocks[:, :2]) * np.float32(0.125), high[..., 0] >> 12 & 7, codes)


def decode_iq1_m(blocks: Bytes) -> Floats:
    """32 low bytes of points; a nibble for each: three high bits, the shift's sign; four words of 16 bits: four
    scales of three bits (16 values each), and a nibble of d."""
    words = _words(blocks[:, 48:56])
    d = (words >> 12 << np.arange(0, 16, 4)).sum(axis=1).astype(np.uint16).view(np.float16)[:, None]
    scales = (words[..., None] >> np.arange(0, 12, 3) & 7).reshape(-1, 16)
    high = _nibbles(blocks[:, 32:48])
    codes = 8 * grid("IQ1")[blocks[:, :32] | (high & 7) << 8].astype(np.int64) + (1 - 2 * (high >> 3))[..., None]
    return _values(d.astype(np.float32) * np.float32(0.125), scales, codes)


# ---- IQ2: signed points of eight, in eighths of d ------------------------------------------------------------------


def decode_iq2_xxs(blocks: Bytes) -> Floats:
    """d; per 32 values four points, then 32 bits: four times seven signs, s (4 bits)."""
    groups = blocks[:, 2:].reshape(-1, 8, 8)
    tail = _tails(groups[..., 4:])
    codes = grid("IQ2_XXS")[groups[..., :4]] * _signs(_seven_signs(tail))
    return _values(_half(blocks[:, :2]) * np.float32(0.125), tail >> 28, codes)


def decode_iq2_xs(blocks: Bytes) -> Floats:
    """d; per 8 values 16 bits: nine of the point, seven signs; s (4 bits) per 16 values."""
    q = _words(blocks[:, 2:66])
    codes = grid("IQ2_XS")[q & 511] * _signs(EIGHT_SIGNS[q >> 9])
    return _values(_half(blocks[:, :2]) * np.float32(0.125), _nibbles(blocks[:, 66:]), codes)


def decode_iq2_s(blocks: Bytes) -> Floats:
    """d; 32 low bytes of points; 32 bytes of signs; two high bits of each point; s (4 bits) per 16 values."""
    high = (blocks[:, 66:74, None] >> np.arange(0, 8, 2) & 3).reshape(-1, 32)
    codes = grid("IQ2_S")[blocks[:, 2:34] | high.astype(np.int64) << 8] * _signs(blocks[:, 34:66])
    return _values(_half(blocks[:, :2]) * np.float32(0.125), _nibbles(blocks[:, 74:]), codes)


# ---- IQ3: signed points of four ------------------------------------------------------------------------------------


def decode_iq3_xxs(blocks: Bytes) -> Floats:
    """In quarters of d. d; 64 points; per 32 values 32 bits: four times seven signs, s (4 bits)."""
    tail = _tails(blocks[:, 66:].reshape(-1, 8, 4))
    codes = grid("IQ3_XXS")[blocks[:, 2:66]].reshape(-1, 8, 4, 8) * _signs(_seven_signs(tail))
    return _values(_half(blocks[:, :2]) * np.float32(0.25), tail >> 28, codes)


def decode_iq3_s(blocks: Bytes) -> Floats:
    """d; 64 low bytes of points; a high bit for each; 32 bytes of signs; s (4 bits) per 32 values."""
    high = (blocks[:, 66:74, None] >> np.arange(8) & 1).reshape(-1, 64)
    codes = grid("IQ3_S")[blocks[:, 2:66] | high.astype(np.int64) << 8].reshape(-1, 32, 8) * _signs(blocks[:, 74:106])
    return _values(_half(blocks[:, :2]), _nibbles(blocks[:, 106:]), codes)


# ---- IQ4: nibbles that pick from a table; byte i of 16 holds values i (low) and i + 16 -----------------------------


def decode_iq4_nl(blocks: Bytes) -> Floats:
    """d; 16 bytes: 32 values d * table entry."""
    return _half(blocks[:, :2]) * _picks(blocks[:, 2:])


def encode_iq4_nl(x: Floats) -> Bytes:
    """float32 [n, 32], finite -> IQ4_NL blocks uint8 [n, 18]. Raises NumericError above half precision's range."""
    require_range(x)
    nearest = of_table(TABLE)
    d = through_half(best_steps(x[:, None], nearest, int(TABLE[0]), IQ4_STEPS)[:, 0])
    codes = nearest(quotient(x, d[:, None]))
    d = refit(x, codes, d)
    return np.concatenate([half(d)[:, None].view(np.uint8), _pack_picks(codes)], axis=1)


def decode_iq4_xs(blocks: Bytes) -> Floats:
    """d; per 32 values two high bits of the scale; its low nibble; 16 bytes. Value = d * (scale - 32) * entry."""
    high = _words(blocks[:, 2:4]) >> np.arange(0, 16, 2) & 3
    scales = (_nibbles(blocks[:, 4:8]) | high << 4) - 32
    step = _half(blocks[:, :2]) * scales.astype(np.float32)
    return (step[..., None] * _picks(blocks[:, 8:].reshape(-1, 8, 16))).reshape(-1, SUPER_BLOCK)


def encode_iq4_xs(x: Floats) -> Bytes:
    """float32 [n, 256], finite -> IQ4_XS blocks uint8 [n, 136]; errors as `encode_iq4_nl`."""
    fit = fit_signed(x, 32, of_table(TABLE), lowest=int(TABLE[0]), scale_low=-32, factors=IQ4_STEPS)
    scales = fit.scales.astype(np.int64) + 32
    low, high = (scales & 15).astype(np.uint8), (scales >> 4 << np.arange(0, 16, 2)).sum(axis=1).astype("<u2")
    parts = [
        half(fit.d)[:, None].view(np.uint8),
        high[:, None].view(np.uint8),
        low[:, 0::2] | low[:, 1::2] << np.uint8(4),
        _pack_picks(fit.codes).reshape(-1, 128),
    ]
    return np.concatenate(parts, axis=1)


def _picks(packed: Bytes) -> Floats:
    values: Floats = TABLE[np.concatenate([packed & 15, packed >> 4], axis=-1)].astype(np.float32)
    return values


def _pack_picks(codes: Floats) -> Bytes:
    """Table entries [..., 32] -> uint8 [..., 16]."""
    nibbles = np.searchsorted(TABLE, codes.astype(np.int8)).astype(np.uint8)
    return nibbles[..., :16] | nibbles[..., 16:] << np.uint8(4)


# ---- fields --------------------------------------------------------------------------------------------------------


def _values(d: Floats, scales: Ints, codes: npt.NDArray[np.integer]) -> Floats:
    """d * (2 s + 1) * code: d [n, 1], s [n, groups], codes [n, ...] of 256."""
    step = d * (2 * scales + 1).astype(np.float32)
    return (step[..., None] * codes.reshape(*scales.shape, -1).astype(np.float32)).reshape(-1, SUPER_BLOCK)


def _half(stored: Bytes) -> Floats:
    """uint8 [n, 2] -> float32 [n, 1]"""
    return stored.copy().view(np.float16).astype(np.float32)


def _words(stored: Bytes) -> Ints:
    """16-bit words of the last axis."""
    return np.ascontiguousarray(stored).view("<u2").astype(np.int64)


def _tails(stored: Bytes) -> Ints:
    """uint8 [n, groups, 4] -> [n, groups] words of 32 bits."""
    return np.ascontiguousarray(stored).view("<u4")[..., 0].astype(np.int64)


def _nibbles(stored: Bytes) -> Ints:
    """[n, k] -> [n, 2 k], the low one first."""
    return np.stack([stored & 15, stored >> 4], axis=2).reshape(len(stored), -1).astype(np.int64)


def _seven_signs(tail: Ints) -> Bytes:
    """[n, groups] -> the eight signs of each of four points, [n, groups, 4]."""
    eight: Bytes = EIGHT_SIGNS[tail[..., None] >> np.arange(0, 28, 7) & 127]
    return eight


def _signs(stored: Bytes) -> npt.NDArray[np.int8]:
    """[...] -> [..., 8] of +1 and -1."""
    return 1 - 2 * (stored[..., None] >> np.arange(8, dtype=np.uint8) & 1).astype(np.int8)
