"""The K-quant block formats Q2_K to Q6_K: 256 values under one or two half-precision factors and small sub-scales.

Owns their bit layouts (those of GGML files), exact decoding, and encoding with the searches of `fitting`. Refuses
values that do not fit a block's half-precision factors.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from finback.formats.fitting import fit_lifted, fit_signed, half, whole

Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]

SUPER_BLOCK: Final = 256

# Step widths tried, as multiples of the one that spans a group's range exactly. Narrower steps clip the
# extremes and serve the rest better; a few wider ones let the fit recentre.
Q2_K_STEPS: Final = tuple(0.50 + 0.05 * i for i in range(13))
Q3_K_STEPS: Final = tuple(0.70 + 0.04 * i for i in range(13))
Q4_K_STEPS: Final = tuple(0.70 + 0.025 * i for i in range(15))
Q6_K_STEPS: Final = tuple(0.88 + 0.02 * i for i in range(9))

_PAIR_SHIFTS: Final = np.array([[0], [2], [4], [6]], np.uint8)
_NIBBLE_SHIFTS: Final = np.array([[0], [4]], np.uint8)
_BIT_SHIFTS: Final = np.arange(8, dtype=np.uint8)[:, None]


# ---- Q2_K: 16 bytes of scales (low nibble) and minima (high), 64 bytes of bit pairs, d, dmin (half) ----------------


def decode_q2_k(blocks: Bytes) -> Floats:
    """Q2_K blocks uint8 [n, 84] -> float32 [n, 256]: value = d * scale * q - dmin * minimum, q in 0..3."""
    scales, minima = blocks[:, :16] & np.uint8(15), blocks[:, :16] >> np.uint8(4)
    return _lifted_values(blocks[:, 80:], scales, minima, _unpack_pairs(blocks[:, 16:80]))


def encode_q2_k(x: Floats) -> Bytes:
    """float32 [n, 256], finite -> Q2_K blocks uint8 [n, 84]; errors and underflow as `encode_q4_k`."""
    fit = fit_lifted(x, 16, top=3, most=15, factors=Q2_K_STEPS)
    scales = fit.scales.astype(np.uint8) | fit.minima.astype(np.uint8) << np.uint8(4)
    return np.concatenate([scales, _pack_pairs(fit.codes), _pack_halves(fit.d, fit.dmin)], axis=1)


# ---- Q3_K: 32 bytes of high bits, 64 of low bit pairs, 12 bytes of 6-bit scales, d (half) --------------------------


def decode_q3_k(blocks: Bytes) -> Floats:
    """Q3_K blocks uint8 [n, 110] -> float32 [n, 256]: value = d * scale * q, q in -4..3, 16 per scale."""
    stored = _unpack_pairs(blocks[:, 32:96]) | _unpack_bits(blocks[:, :32]) << np.uint8(2)
    scales = _unpack_q3_k_scales(blocks[:, 96:108]).astype(np.float32) - np.float32(32)
    return _signed_values(blocks[:, 108:], scales, stored.astype(np.float32) - np.float32(4))


def encode_q3_k(x: Floats) -> Bytes:
    """float32 [n, 256], finite -> Q3_K blocks uint8 [n, 110]; errors and underflow as `encode_q4_k`."""
    fit = fit_signed(x, 16, whole(-4, 3), lowest=-4, scale_low=-32, factors=Q3_K_STEPS)
    stored = (fit.codes + np.float32(4)).astype(np.uint8)
    scales = (fit.scales + np.float32(32)).astype(np.uint8)
    codes = [_pack_bits(stored >> np.uint8(2)), _pack_pairs(stored & np.uint8(3))]
    return np.concatenate([*codes, _pack_q3_k_scales(scales), _pack_halves(fit.d)], axis=1)


def _unpack_q3_k_scales(packed: Bytes) -> Bytes:
    """12 bytes -> 16 scales of 6 bits. Scale j: nibble j / 8 of byte j % 8, under bit pair j / 4 of byte 8 + j % 4."""
    low = packed[:, None, :8] >> _NIBBLE_SHIFTS & np.uint8(15)
    high = packed[:, None, 8:] >> _PAIR_SHIFTS & np.uint8(3)
    return low.reshape(-1, 16) | high.reshape(-1, 16) << np.uint8(4)


def _pack_q3_k_scales(scales: Bytes) -> Bytes:
    """The inverse of `_unpack_q3_k_scales`."""
    low = scales & np.uint8(15)
    high = (scales >> np.uint8(4)).reshape(-1, 4, 4) << _PAIR_SHIFTS
    return np.concatenate([low[:, :8] | low[:, 8:] << np.uint8(4), np.bitwise_or.reduce(high, axis=1)], axis=1)


# ---- Q4_K: d, dmin (half), 12 bytes of 6-bit scales and minima, 128 bytes of nibbles -------------------------------


def decode_q4_k(blocks: Bytes) -> Floats:
    """Q4_K blocks uint8 [n, 144] -> float32 [n, 256]: value = d * scale * q - dmin * minimum, q in 0..15."""
    return _lifted_values(blocks[:, :4], *_unpack_scales(blocks[:, 4:16]), _unpack_nibbles(blocks[:, 16:]))


def encode_q4_k(x: Floats) -> Bytes:
    """float32 [n, 256], finite -> Q4_K blocks uint8 [n, 144].

    Raises NumericError where a value is too large for the half-precision scale. Steps below about 3e-8, half
    of half precision's smallest number, become zero.
    """
    fit = fit_lifted(x, 32, top=15, most=63, factors=Q4_K_STEPS)
    parts = [_pack_halves(fit.d, fit.dmin), _pack_scales(fit.scales, fit.minima), _pack_nibbles(fit.codes)]
    return np.concatenate(parts, axis=1)


# ---- Q5_K: as Q4_K, with 32 bytes of high bits before the nibbles --------------------------------------------------


def decode_q5_k(blocks: Bytes) -> Floats:
    """Q5_K blocks uint8 [n, 176] -> float32 [n, 256]: value = d * scale * q - dmin * minimum, q in 0..31."""
    codes = _unpack_nibbles(blocks[:, 48:]) | _unpack_bits(blocks[:, 16:48]) << np.uint8(4)
    return _lifted_values(blocks[:, :4], *_unpack_scales(blocks[:, 4:16]), codes)


def encode_q5_k(x: Floats) -> Bytes:
    """float32 [n, 256], finite -> Q5_K blocks uint8 [n, 176]; errors and underflow as `encode_q4_k`."""
    fit = fit_lifted(x, 32, top=31, most=63, factors=Q4_K_STEPS)
    codes = fit.codes.astype(np.uint8)
    head = [_pack_halves(fit.d, fit.dmin), _pack_scales(fit.scales, fit.minima)]
    return np.concatenate([*head, _pack_bits(codes >> np.uint8(4)), _pack_nibbles(codes & np.uint8(15))], axis=1)


# ---- Q6_K: 128 bytes of low nibbles, 64 of high bit pairs, 16 int8 scales, d (half) --------------------------------


def decode_q6_k(blocks: Bytes) -> Floats:
    """Q6_K blocks uint8 [n, 210] -> float32 [n, 256]: value = d * scale * q, q in -32..31, 16 per scale."""
    low = blocks[:, :128].reshape(-1, 2, 1, 64) >> _NIBBLE_SHIFTS & np.uint8(15)
    stored = low.reshape(-1, SUPER_BLOCK) | _unpack_pairs(blocks[:, 128:192]) << np.uint8(4)
    scales = blocks[:, 192:208].copy().view(np.int8).astype(np.float32)
    return _signed_values(blocks[:, 208:], scales, stored.astype(np.float32) - np.float32(32))


def encode_q6_k(x: Floats) -> Bytes:
    """float32 [n, 256], finite -> Q6_K blocks uint8 [n, 210]; errors and underflow as `encode_q4_k`."""
    fit = fit_signed(x, 16, whole(-32, 31), lowest=-32, scale_low=-128, factors=Q6_K_STEPS)
    stored = (fit.codes + np.float32(32)).astype(np.uint8)
    nibbles = (stored & 15).reshape(-1, 2, 4, 32)
    low = nibbles[:, :, :2] | nibbles[:, :, 2:] << 4  # of each half: quarters 0, 1 low; 2, 3 high
    tail = [fit.scales.astype(np.int8).view(np.uint8), _pack_halves(fit.d)]
    return np.concatenate([low.reshape(-1, 128), _pack_pairs(stored >> np.uint8(4)), *tail], axis=1)


# ---- values --------------------------------------------------------------------------------------------------------


def _lifted_values(halves: Bytes, scales: Bytes, minima: Bytes, codes: Bytes) -> Floats:
    """d and dmin as bytes [n, 4]; scales and minima [n, groups]; codes [n, 256]."""
    factors = halves.copy().view(np.float16).astype(np.float32)
    step = factors[:, :1] * scales.astype(np.float32)
    lift = factors[:, 1:] * minima.astype(np.float32)
    grouped = codes.reshape(*scales.shape, -1).astype(np.float32)
    return (step[..., None] * grouped - lift[..., None]).reshape(-1, SUPER_BLOCK)


def _signed_values(halves: Bytes, scales: Floats, codes: Floats) -> Floats:
    """d as bytes [n, 2]; scales [n, groups]; codes [n, 256], with their sign."""
    d = halves.copy().view(np.float16).astype(np.float32)
    return ((d * scales)[..., None] * codes.reshape(*scales.shape, -1)).reshape(-1, SUPER_BLOCK)


# ---- bits: codes uint8 [n, 256] in runs of 32, which share bytes ---------------------------------------------------


def _unpack_nibbles(packed: Bytes) -> Bytes:
    """Two runs in 32 bytes."""
    return (packed.reshape(-1, 4, 1, 32) >> _NIBBLE_SHIFTS & np.uint8(15)).reshape(-1, SUPER_BLOCK)


def _pack_nibbles(codes: Bytes | Floats) -> Bytes:
    runs = codes.astype(np.uint8).reshape(-1, 4, 2, 32) << _NIBBLE_SHIFTS
    packed: Bytes = np.bitwise_or.reduce(runs, axis=2).reshape(-1, 128)
    return packed


def _unpack_pairs(packed: Bytes) -> Bytes:
    """Four runs in 32 bytes."""
    return (packed.reshape(-1, 2, 1, 32) >> _PAIR_SHIFTS & np.uint8(3)).reshape(-1, SUPER_BLOCK)


def _pack_pairs(codes: Bytes | Floats) -> Bytes:
    runs = codes.astype(np.uint8).reshape(-1, 2, 4, 32) << _PAIR_SHIFTS
    packed: Bytes = np.bitwise_or.reduce(runs, axis=2).reshape(-1, 64)
    return packed


def _unpack_bits(packed: Bytes) -> Bytes:
    """Eight runs in 32 bytes."""
    return (packed.reshape(-1, 1, 32) >> _BIT_SHIFTS & np.uint8(1)).reshape(-1, SUPER_BLOCK)


def _pack_bits(codes: Bytes) -> Bytes:
    packed: Bytes = np.bitwise_or.reduce(codes.reshape(-1, 8, 32) << _BIT_SHIFTS, axis=1).reshape(-1, 32)
    return packed


def _pack_halves(*factors: Floats) -> Bytes:
    """Each [n] -> uint8 [n, 2 * factors]."""
    return np.stack([half(factor) for factor in factors], axis=1).view(np.uint8)


def _unpack_scales(packed: Bytes) -> tuple[Bytes, Bytes]:
    """12 bytes -> 8 scales and 8 minima of 6 bits, uint8 [n, 8] each.

    Bytes 0..3 and 4..7 hold scales and minima 0..3 in their low six bits; bytes 8..11 hold the low nibbles of
    scale (low) and minimum (high) 4..7, whose upper two bits are the top bits of bytes 0..3 and 4..7.
    """
    first, second, third = packed[:, :4], packed[:, 4:8], packed[:, 8:]
    scales = np.concatenate([first & 63, third & 15 | first >> 6 << 4], axis=1)
    minima = np.concatenate([second & 63, third >> 4 | second >> 6 << 4], axis=1)
    return scales, minima


def _pack_scales(scales: Floats, minima: Floats) -> Bytes:
    """The inverse of `_unpack_scales`: [n, 8] and [n, 8] in 0..63 -> uint8 [n, 12]."""
    s, m = scales.astype(np.uint8), minima.astype(np.uint8)
    first = s[:, :4] | s[:, 4:] >> 4 << 6
    second = m[:, :4] | m[:, 4:] >> 4 << 6
    return np.concatenate([first, second, s[:, 4:] & 15 | (m[:, 4:] & 15) << 4], axis=1)
