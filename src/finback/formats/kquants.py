"""The K-quant block formats Q4_K and Q6_K: 256 values under one half-precision scale and small sub-scales.

Owns their bit layout, exact decoding, and an encoder that searches each sub-block's scale for the least
squared error and then fits the half-precision factors to the codes it chose. Refuses to weigh errors by
importance, which is a quantiser's policy. The layouts are those of GGML files; the search is our own.
Sums run over a fixed tree of plain additions, so the same input gives the same bytes on every machine.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from finback.errors import NumericError

Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]

SUPER_BLOCK: Final = 256
Q4_K_BYTES: Final = 144  # d, dmin (half); 12 bytes of 6-bit scales and minima; 128 bytes of nibbles
Q6_K_BYTES: Final = 210  # 128 bytes of low nibbles, 64 of high bit pairs, 16 int8 scales, d (half)

HALF_OVERFLOW: Final = 65520.0  # rounds to infinity in half precision, as does everything above
LARGEST_VALUE: Final = 65504.0 * 128 * 32  # d, scale and code of Q6_K at their largest; Q4_K ends lower

# Step widths tried, as multiples of the one that spans a sub-block's range exactly. Narrower steps clip the
# extremes and serve the rest better; a few wider ones let the fit recentre.
Q4_K_STEPS: Final = tuple(0.70 + 0.025 * i for i in range(15))
Q6_K_STEPS: Final = tuple(0.88 + 0.02 * i for i in range(9))


def decode_q4_k(blocks: Bytes) -> Floats:
    """Q4_K blocks uint8 [n, 144] -> float32 [n, 256]: value = d * scale * q - dmin * minimum, q in 0..15."""
    halves = blocks[:, :4].copy().view(np.float16).astype(np.float32)  # [n, 2]: d, dmin
    scales, minima = _unpack_q4_k_scales(blocks[:, 4:16])
    nibbles = blocks[:, 16:].reshape(-1, 4, 1, 32) >> np.array([[0], [4]], np.uint8) & np.uint8(15)
    codes = nibbles.reshape(-1, 8, 32).astype(np.float32)
    step = halves[:, :1] * scales.astype(np.float32)
    lift = halves[:, 1:] * minima.astype(np.float32)
    return (step[..., None] * codes - lift[..., None]).reshape(-1, SUPER_BLOCK)


def encode_q4_k(x: Floats) -> Bytes:
    """float32 [n, 256], finite -> Q4_K blocks uint8 [n, 144].

    Raises NumericError where a value is too large for the half-precision scale. Steps below about 3e-8, half
    of half precision's smallest number, become zero.
    """
    _require_range(x)
    groups = x.reshape(-1, 8, 32)
    step, lift = _fit_q4_k_groups(groups)
    d, scales = _six_bit(step)
    dmin, minima = _six_bit(lift)
    codes = _round_between(
        groups + (dmin[:, None] * minima)[..., None], (d[:, None] * scales)[..., None], 0, 15
    )  # [n, 8, 32]
    d, dmin = _refit_q4_k(groups, codes, scales, minima, d, dmin)
    nibbles = codes.astype(np.uint8).reshape(-1, 4, 2, 32)
    halves = np.stack([_half(d), _half(dmin)], axis=1).view(np.uint8)
    packed = nibbles[:, :, 0] | nibbles[:, :, 1] << np.uint8(4)
    return np.concatenate([halves, _pack_q4_k_scales(scales, minima), packed.reshape(-1, 128)], axis=1)


def _fit_q4_k_groups(groups: Floats) -> tuple[Floats, Floats]:
    """Best (step, lift) of each 32 values, both [n, 8] and >= 0, for x ~ step * q - lift with q in 0..15."""
    low = np.minimum(groups.min(axis=2), np.float32(0))
    span = groups.max(axis=2) - low  # >= 0 unless every value is negative, and then still >= 0
    best_error = np.full(span.shape, np.inf, np.float32)
    best_step, best_lift = np.zeros_like(span), -low
    mean = _fold(groups) / np.float32(32)
    for factor in Q4_K_STEPS:
        trial = span * np.float32(factor / 15)
        codes = _round_between(groups - low[..., None], trial[..., None], 0, 15)
        step, lift = _line_through(groups, codes, mean)
        error = _fold(np.square(step[..., None] * codes - lift[..., None] - groups))
        better = error < best_error
        best_error = np.where(better, error, best_error)
        best_step, best_lift = np.where(better, step, best_step), np.where(better, lift, best_lift)
    return best_step, best_lift


def _line_through(groups: Floats, codes: Floats, mean: Floats) -> tuple[Floats, Floats]:
    """Least squares of x ~ step * q - lift per group, lift >= 0; (0, -mean or 0) where all q are equal."""
    centre = _fold(codes) / np.float32(32)
    spread = codes - centre[..., None]
    variance = _fold(np.square(spread))
    slope = _quotient(_fold(spread * groups), variance)
    lift = slope * centre - mean
    through_zero = _quotient(_fold(codes * groups), _fold(np.square(codes)))  # the fit when lift is held at 0
    negative = lift < 0
    step = np.maximum(np.where(negative, through_zero, slope), np.float32(0))
    return step, np.where(negative, np.float32(0), lift)


def _refit_q4_k(
    groups: Floats, codes: Floats, scales: Floats, minima: Floats, d: Floats, dmin: Floats
) -> tuple[Floats, Floats]:
    """Given all codes, the (d, dmin) of least squared error per block, kept where it is an improvement."""
    n = len(groups)
    up = (scales[..., None] * codes).reshape(n, SUPER_BLOCK)
    down = np.repeat(minima, 32, axis=1)
    x = groups.reshape(n, SUPER_BLOCK)
    uu, vv, uv = _fold(up * up), _fold(down * down), _fold(up * down)
    xu, xv = _fold(x * up), _fold(x * down)
    determinant = uu * vv - uv * uv
    new_d = np.where(vv > 0, _quotient(xu * vv - xv * uv, determinant), _quotient(xu, uu))
    new_dmin = _quotient(xu * uv - xv * uu, determinant)
    new_d, new_dmin = _through_half(_within_half(new_d, d)), _through_half(_within_half(new_dmin, dmin))

    def error(a: Floats, b: Floats) -> Floats:
        return _fold(np.square(a[:, None] * up - b[:, None] * down - x))

    better = (new_d >= 0) & (new_dmin >= 0) & (error(new_d, new_dmin) < error(d, dmin))
    return np.where(better, new_d, d), np.where(better, new_dmin, dmin)


def _six_bit(values: Floats) -> tuple[Floats, Floats]:
    """Per row of [n, 8] values >= 0: a half-precision unit [n] (as float32) and multiples 0..63 of it."""
    unit = _half_unit(values.max(axis=1), 63)
    return unit, _round_between(values, unit[:, None], 0, 63)


def _unpack_q4_k_scales(packed: Bytes) -> tuple[Bytes, Bytes]:
    """12 bytes -> 8 scales and 8 minima of 6 bits, uint8 [n, 8] each.

    Bytes 0..3 and 4..7 hold scales and minima 0..3 in their low six bits; bytes 8..11 hold the low nibbles of
    scale (low) and minimum (high) 4..7, whose upper two bits are the top bits of bytes 0..3 and 4..7.
    """
    first, second, third = packed[:, :4], packed[:, 4:8], packed[:, 8:]
    scales = np.concatenate([first & 63, third & 15 | first >> 6 << 4], axis=1)
    minima = np.concatenate([second & 63, third >> 4 | second >> 6 << 4], axis=1)
    return scales, minima


def _pack_q4_k_scales(scales: Floats, minima: Floats) -> Bytes:
    """The inverse of `_unpack_q4_k_scales`: [n, 8] and [n, 8] in 0..63 -> uint8 [n, 12]."""
    s, m = scales.astype(np.uint8), minima.astype(np.uint8)
    first = s[:, :4] | s[:, 4:] >> 4 << 6
    second = m[:, :4] | m[:, 4:] >> 4 << 6
    return np.concatenate([first, second, s[:, 4:] & 15 | (m[:, 4:] & 15) << 4], axis=1)


def decode_q6_k(blocks: Bytes) -> Floats:
    """Q6_K blocks uint8 [n, 210] -> float32 [n, 256]: value = d * scale * q, q in -32..31, 16 per scale."""
    low = blocks[:, :128].reshape(-1, 2, 1, 64) >> np.array([[0], [4]], np.uint8) & np.uint8(15)
    high = blocks[:, 128:192].reshape(-1, 2, 1, 32) >> np.array([[0], [2], [4], [6]], np.uint8) & np.uint8(3)
    codes = low.reshape(-1, 2, 4, 32) | high << np.uint8(4)  # [n, half, quarter, 32] is value order
    scales = blocks[:, 192:208].copy().view(np.int8).astype(np.float32)
    d = blocks[:, 208:].copy().view(np.float16).astype(np.float32)
    signed = codes.reshape(-1, 16, 16).astype(np.float32) - np.float32(32)
    return ((d * scales)[..., None] * signed).reshape(-1, SUPER_BLOCK)


def encode_q6_k(x: Floats) -> Bytes:
    """float32 [n, 256], finite -> Q6_K blocks uint8 [n, 210]; errors and underflow as `encode_q4_k`."""
    _require_range(x)
    groups = x.reshape(-1, 16, 16)
    steps = _fit_q6_k_groups(groups)
    widest = np.take_along_axis(steps, np.abs(steps).argmax(axis=1)[:, None], axis=1)[:, 0]
    d = np.copysign(_half_unit(np.abs(widest), 128), -widest)  # so that the widest step becomes -128
    scales = _round_between(steps, d[:, None], -128, 127)
    codes = _round_between(groups, (d[:, None] * scales)[..., None], -32, 31)
    regressor = (scales[..., None] * codes).reshape(-1, SUPER_BLOCK)
    fitted = _through_half(_within_half(_quotient(_fold(x * regressor), _fold(np.square(regressor))), d))

    def error(unit: Floats) -> Floats:
        return _fold(np.square(unit[:, None] * regressor - x))

    d = np.where(error(fitted) < error(d), fitted, d)
    stored = (codes + np.float32(32)).astype(np.uint8).reshape(-1, 2, 4, 32)
    low = (stored & 15)[:, :, :2] | (stored & 15)[:, :, 2:] << 4  # quarters 0, 1 low; 2, 3 high
    high = stored >> 4
    pairs = high[:, :, 0] | high[:, :, 1] << 2 | high[:, :, 2] << 4 | high[:, :, 3] << 6
    tail = [scales.astype(np.int8).view(np.uint8), _half(d)[:, None].view(np.uint8)]
    return np.concatenate([low.reshape(-1, 128), pairs.reshape(-1, 64), *tail], axis=1)


def _fit_q6_k_groups(groups: Floats) -> Floats:
    """Best signed step [n, 16] of each 16 values for x ~ step * q, q in -32..31."""
    peak = np.take_along_axis(groups, np.abs(groups).argmax(axis=2)[..., None], axis=2)[..., 0]
    best_gain, best_step = np.zeros_like(peak), np.zeros_like(peak)
    for factor in Q6_K_STEPS:
        trial = peak * np.float32(factor / -32)  # the peak takes the longer, negative side
        codes = _round_between(groups, trial[..., None], -32, 31)
        cross, square = _fold(groups * codes), _fold(np.square(codes))
        step = _quotient(cross, square)
        gain = step * cross  # the squared error is sum(x^2) - gain
        better = gain > best_gain
        best_gain, best_step = np.where(better, gain, best_gain), np.where(better, step, best_step)
    return best_step


def _round_between(x: Floats, step: Floats, low: int, high: int) -> Floats:
    """round(x / step) held to low..high, as float32; 0 where the step is 0."""
    return np.clip(np.rint(_quotient(x, step)), np.float32(low), np.float32(high))


def _quotient(numerator: Floats, denominator: Floats) -> Floats:
    """numerator / denominator, 0 where the denominator is 0; float32."""
    safe = np.where(denominator == 0, np.float32(1), denominator)
    with np.errstate(over="ignore"):  # a subnormal step may overflow the ratio; the caller clips it
        return np.where(denominator == 0, np.float32(0), numerator / safe).astype(np.float32)


def _fold(x: Floats) -> Floats:
    """Sum over the last axis, a power of two long, by halving: one order of additions on every machine."""
    while x.shape[-1] > 1:
        middle = x.shape[-1] // 2
        x = x[..., :middle] + x[..., middle:]
    return x[..., 0]


def _half(x: Floats) -> npt.NDArray[np.float16]:
    return x.astype(np.float16)  # never overflows: every caller has been through `_through_half`


def _through_half(x: Floats) -> Floats:
    """x rounded to half precision, as float32. Raises NumericError above its range, 65504."""
    if x.size and np.abs(x).max() >= HALF_OVERFLOW:
        raise NumericError(
            f"cannot encode: a block needs the scale {float(np.abs(x).max()):.3g}; half floats end at 65504"
        )
    return _half(x).astype(np.float32)


def _half_unit(widest: Floats, multiples: int) -> Floats:
    """The half-precision unit of which `widest` >= 0 is about `multiples`, as float32.

    Half precision is coarse below 6e-5. There the unit is rounded up, so that no multiple is out of reach: a
    unit rounded down would clip the widest step, one rounded to zero would erase the block.
    """
    unit = _half(_through_half(widest / np.float32(multiples)))
    short = unit.astype(np.float32) * np.float32(multiples + 0.5) < widest
    return np.where(short, np.nextafter(unit, np.float16(np.inf)), unit).astype(np.float32)


def _within_half(x: Floats, otherwise: Floats) -> Floats:
    """x where half precision can hold it, else `otherwise`: a fit to nearly parallel codes can go astray."""
    return np.where(np.abs(x) < HALF_OVERFLOW, x, otherwise)


def _require_range(x: Floats) -> None:
    """Raises NumericError for values no block can hold, before their squares overflow in the search."""
    if x.size and np.abs(x).max() > LARGEST_VALUE:
        raise NumericError(
            f"cannot encode: the value {float(np.abs(x).max()):.3g} is beyond what a K-quant block can hold"
        )
