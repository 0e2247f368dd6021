"""Searches for the scales of integer blocks: what the encoders of the K-quants and of IQ4 have in common.

Owns the search of each group's step for the least squared error, the fit of the half-precision factors to the codes it
chose, and sums over a fixed tree of plain additions, so that the same input gives the same bytes on every machine.
Refuses to weigh errors by importance, which is a quantiser's policy. Knows no bit layout; the search is our own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from finback.errors import NumericError

Floats = npt.NDArray[np.float32]
Nearest = Callable[[Floats], Floats]  # x in steps -> the code it is rounded to, as float32

HALF_OVERFLOW: Final = 65520.0  # rounds to infinity in half precision, as does everything above
LARGEST_VALUE: Final = 65504.0 * 128 * 32  # d, scale and code of Q6_K at their largest; the others end lower


class Signed(NamedTuple):
    """x ~ d * scale * code: d [n], scales [n, groups], codes [n, groups, width], all float32."""

    d: Floats
    scales: Floats
    codes: Floats


class Lifted(NamedTuple):
    """x ~ d * scale * code - dmin * minimum: d, dmin [n], scales, minima [n, groups], codes [n, groups, width]."""

    d: Floats
    dmin: Floats
    scales: Floats
    minima: Floats
    codes: Floats


def whole(low: int, high: int) -> Nearest:
    """Rounding to low..high."""
    return lambda ratio: np.clip(np.rint(ratio), np.float32(low), np.float32(high))


def of_table(table: npt.NDArray[np.int8]) -> Nearest:
    """Rounding to the nearest entry of an ascending table."""
    entries = table.astype(np.float32)
    between = (entries[:-1] + entries[1:]) / np.float32(2)
    return lambda ratio: entries[np.searchsorted(between, ratio)]


# ---- one scale for a group, and codes of both signs ----------------------------------------------------------------


def fit_signed(
    x: Floats, width: int, nearest: Nearest, *, lowest: int, scale_low: int, factors: tuple[float, ...]
) -> Signed:
    """Blocks [n, cols] in groups of `width`; codes go down to `lowest`, scales from `scale_low` to -scale_low - 1."""
    require_range(x)
    groups = x.reshape(len(x), -1, width)
    steps = best_steps(groups, nearest, lowest, factors)
    widest = np.take_along_axis(steps, np.abs(steps).argmax(axis=1)[:, None], axis=1)[:, 0]
    d = np.copysign(_half_unit(np.abs(widest), -scale_low), -widest)  # so that the widest step becomes scale_low
    scales = whole(scale_low, -scale_low - 1)(quotient(steps, d[:, None]))
    codes = nearest(quotient(groups, (d[:, None] * scales)[..., None]))
    return Signed(refit(x, scales[..., None] * codes, d), scales, codes)


def best_steps(groups: Floats, nearest: Nearest, lowest: int, factors: tuple[float, ...]) -> Floats:
    """Best signed step [n, groups] of each group for x ~ step * code. Steps are tried as multiples of the one that
    brings the value of largest magnitude to the code `lowest`, the longer side."""
    peak = np.take_along_axis(groups, np.abs(groups).argmax(axis=2)[..., None], axis=2)[..., 0]
    best_gain, best_step = np.zeros_like(peak), np.zeros_like(peak)
    for factor in factors:
        trial = peak * np.float32(factor / lowest)
        codes = nearest(quotient(groups, trial[..., None]))
        cross, square = fold(groups * codes), fold(np.square(codes))
        step = quotient(cross, square)
        gain = step * cross  # the squared error is sum(x^2) - gain
        better = gain > best_gain
        best_gain, best_step = np.where(better, gain, best_gain), np.where(better, step, best_step)
    return best_step


def refit(x: Floats, multiples: Floats, d: Floats) -> Floats:
    """Given all codes, the half-precision d [n] of least squared error for x ~ d * multiples, where it is better."""
    regressor = multiples.reshape(x.shape)
    fitted = through_half(_within_half(quotient(fold(x * regressor), fold(np.square(regressor))), d))

    def error(unit: Floats) -> Floats:
        return fold(np.square(unit[:, None] * regressor - x))

    return np.where(error(fitted) < error(d), fitted, d)


# ---- a scale and a minimum for a group, and codes from 0 -----------------------------------------------------------


def fit_lifted(x: Floats, width: int, *, top: int, most: int, factors: tuple[float, ...]) -> Lifted:
    """Blocks [n, cols] in groups of `width`: codes 0..top, scales and minima 0..most."""
    require_range(x)
    groups = x.reshape(len(x), -1, width)
    step, lift = _lines(groups, top, factors)
    d, scales = _multiples(step, most)
    dmin, minima = _multiples(lift, most)
    lifted = groups + (dmin[:, None] * minima)[..., None]
    codes = whole(0, top)(quotient(lifted, (d[:, None] * scales)[..., None]))
    d, dmin = _refit_lifted(groups, codes, scales, minima, d, dmin)
    return Lifted(d, dmin, scales, minima, codes)


def _lines(groups: Floats, top: int, factors: tuple[float, ...]) -> tuple[Floats, Floats]:
    """Best (step, lift) of each group, both [n, groups] and >= 0, for x ~ step * q - lift with q in 0..top. Steps are
    tried as multiples of the one that spans the group's range exactly."""
    low = np.minimum(groups.min(axis=2), np.float32(0))
    span = groups.max(axis=2) - low  # >= 0 unless every value is negative, and then still >= 0
    best_error = np.full(span.shape, np.inf, np.float32)
    best_step, best_lift = np.zeros_like(span), -low
    mean = fold(groups) / np.float32(groups.shape[2])
    for factor in factors:
        trial = span * np.float32(factor / top)
        codes = whole(0, top)(quotient(groups - low[..., None], trial[..., None]))
        step, lift = _line_through(groups, codes, mean)
        error = fold(np.square(step[..., None] * codes - lift[..., None] - groups))
        better = error < best_error
        best_error = np.where(better, error, best_error)
        best_step, best_lift = np.where(better, step, best_step), np.where(better, lift, best_lift)
    return best_step, best_lift


def _line_through(groups: Floats, codes: Floats, mean: Floats) -> tuple[Floats, Floats]:
    """Least squares of x ~ step * q - lift per group, lift >= 0; (0, -mean or 0) where all q are equal."""
    centre = fold(codes) / np.float32(groups.shape[2])
    spread = codes - centre[..., None]
    variance = fold(np.square(spread))
    slope = quotient(fold(spread * groups), variance)
    lift = slope * centre - mean
    through_zero = quotient(fold(codes * groups), fold(np.square(codes)))  # the fit when lift is held at 0
    negative = lift < 0
    step = np.maximum(np.where(negative, through_zero, slope), np.float32(0))
    return step, np.where(negative, np.float32(0), lift)


def _refit_lifted(
    groups: Floats, codes: Floats, scales: Floats, minima: Floats, d: Floats, dmin: Floats
) -> tuple[Floats, Floats]:
    """Given all codes, the (d, dmin) of least squared error per block, kept where it is an improvement."""
    n = len(groups)
    up = (scales[..., None] * codes).reshape(n, -1)
    down = np.repeat(minima, groups.shape[2], axis=1)
    x = groups.reshape(n, -1)
    uu, vv, uv = fold(up * up), fold(down * down), fold(up * down)
    xu, xv = fold(x * up), fold(x * down)
    determinant = uu * vv - uv * uv
    new_d = np.where(vv > 0, quotient(xu * vv - xv * uv, determinant), quotient(xu, uu))
    new_dmin = quotient(xu * uv - xv * uu, determinant)
    new_d, new_dmin = through_half(_within_half(new_d, d)), through_half(_within_half(new_dmin, dmin))

    def error(a: Floats, b: Floats) -> Floats:
        return fold(np.square(a[:, None] * up - b[:, None] * down - x))

    better = (new_d >= 0) & (new_dmin >= 0) & (error(new_d, new_dmin) < error(d, dmin))
    return np.where(better, new_d, d), np.where(better, new_dmin, dmin)


def _multiples(values: Floats, most: int) -> tuple[Floats, Floats]:
    """Per row of [n, groups] values >= 0: a half-precision unit [n] (as float32) and multiples 0..most of it."""
    unit = _half_unit(values.max(axis=1), most)
    return unit, whole(0, most)(quotient(values, unit[:, None]))


# ---- numbers -------------------------------------------------------------------------------------------------------


def quotient(numerator: Floats, denominator: Floats) -> Floats:
    """numerator / denominator, 0 where the denominator is 0; float32."""
    safe = np.where(denominator == 0, np.float32(1), denominator)
    with np.errstate(over="ignore"):  # a subnormal step may overflow the ratio; the caller clips it
        return np.where(denominator == 0, np.float32(0), numerator / safe).astype(np.float32)


def fold(x: Floats) -> Floats:
    """Sum over the last axis, a power of two long, by halving: one order of additions on every machine."""
    while x.shape[-1] > 1:
        middle = x.shape[-1] // 2
        x = x[..., :middle] + x[..., middle:]
    return x[..., 0]


def half(x: Floats) -> npt.NDArray[np.float16]:
    """As stored; x has been through `through_half`, so nothing overflows."""
    return x.astype(np.float16)


def through_half(x: Floats) -> Floats:
    """x rounded to half precision, as float32. Raises NumericError above its range, 65504."""
    if x.size and np.abs(x).max() >= HALF_OVERFLOW:
        raise NumericError(
            f"cannot encode: a block needs the scale {float(np.abs(x).max()):.3g}; half floats end at 65504"
        )
    return half(x).astype(np.float32)


def _half_unit(widest: Floats, multiples: int) -> Floats:
    """The half-precision unit of which `widest` >= 0 is about `multiples`, as float32.

    Half precision is coarse below 6e-5. There the unit is rounded up, so that no multiple is out of reach: a
    unit rounded down would clip the widest step, one rounded to zero would erase the block.
    """
    unit = half(through_half(widest / np.float32(multiples)))
    short = unit.astype(np.float32) * np.float32(multiples + 0.5) < widest
    return np.where(short, np.nextafter(unit, np.float16(np.inf)), unit).astype(np.float32)


def _within_half(x: Floats, otherwise: Floats) -> Floats:
    """x where half precision can hold it, else `otherwise`: a fit to nearly parallel codes can go astray."""
    return np.where(np.abs(x) < HALF_OVERFLOW, x, otherwise)


def require_range(x: Floats) -> None:
    """Raises NumericError for values no block can hold, before their squares overflow in the search."""
    if x.size and np.abs(x).max() > LARGEST_VALUE:
        raise NumericError(
            f"cannot encode: the value {float(np.abs(x).max()):.3g} is beyond what a quantised block can hold"
        )
