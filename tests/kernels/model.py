"""docs/exactness.md sections 2, 3 and 7 to 14 in NumPy, byte for byte: what every kernel must compute.

Owns a second, independent statement of the arithmetic: plain loops over lanes and lists, f32 operations of
NumPy (one rounding each) and `fma32`. Functions that a kernel implements carry the kernel's name and take its
arguments without the level. Refuses speed and cleverness: it is read next to the page.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

F = np.float32
Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]
Bytes = NDArray[np.uint8]


# ---- section 1: one rounding


def fma32(a: Floats, b: Floats, c: Floats) -> Floats:
    """a * b + c rounded once.

    The product is exact in f64; the f64 sum is made odd where it is inexact, so that rounding it to f32 sees
    on which side of a tie the exact value lies.
    """
    product = np.asarray(a, np.float64) * np.asarray(b, np.float64)
    addend = np.asarray(c, np.float64)
    with np.errstate(invalid="ignore", over="ignore"):
        total = product + addend
        back = total - product
        error = (product - (total - back)) + (addend - back)  # exact: total + error = product + addend
        even = (total.view(np.int64) & 1) == 0
        away = np.nextafter(total, np.where(error > 0, np.inf, -np.inf))
        odd = np.where(np.isfinite(total) & (error != 0) & even, away, total)
        return odd.astype(F)


def largest_of(a: Floats, b: Floats | np.float32) -> Floats:
    return np.where(a > b, a, b).astype(F)


def smallest_of(a: Floats, b: Floats | np.float32) -> Floats:
    return np.where(a < b, a, b).astype(F)


# ---- section 2: lanes and trees, over the last axis


def tree16(lane: Floats) -> Floats:
    width = 8
    while width:
        lane = lane[..., :width] + lane[..., width : 2 * width]
        width //= 2
    return np.asarray(lane[..., 0], F)


def dot16(x: Floats, y: Floats) -> Floats:
    x, y = np.broadcast_arrays(x, y)
    lane = np.zeros((*x.shape[:-1], 16), F)
    for i in range(x.shape[-1]):
        lane[..., i % 16] = fma32(x[..., i], y[..., i], lane[..., i % 16])
    return tree16(lane)


def lanes16(x: Floats) -> Floats:
    lane = np.zeros((*x.shape[:-1], 16), F)
    for i in range(x.shape[-1]):
        lane[..., i % 16] = lane[..., i % 16] + x[..., i]
    return tree16(lane)


def sum16(x: Floats) -> float:
    return float(lanes16(x))


# ---- section 3: functions


def exp32(x: Floats) -> Floats:
    x = np.asarray(x, F)
    inside = np.where((x < F(-87)) | (x > F(88.72283)), F(0), x).astype(F)
    n = np.rint(inside * F(float.fromhex("0x1.715476p+0")))
    r = fma32(n, F(float.fromhex("-0x1.63p-1")), inside)
    r = fma32(n, F(float.fromhex("0x1.bd0106p-13")), r)
    p = F(float.fromhex("0x1.6a241ap-10"))
    for constant in ("0x1.1239f2p-7", "0x1.5558f2p-5", "0x1.555492p-3", "0x1.fffffcp-2", "0x1p0", "0x1p0"):
        p = fma32(p, r, F(float.fromhex(constant)))
    y = np.ldexp(p, n.astype(np.int32)).astype(F)
    y = np.where(x < F(-87), F(0), y)
    return np.where(x > F(88.72283), F(np.inf), y).astype(F)


def sigmoid(x: Floats) -> Floats:
    return F(1) / (F(1) + exp32(-x))


def silu(x: Floats) -> Floats:
    return x / (F(1) + exp32(-x))


def log1p32(e: Floats) -> Floats:
    s = e / (F(2) + e)
    z = s * s
    q = F(float.fromhex("0x1.f1aeep-4"))
    for constant in ("0x1.b6d6a4p-4", "0x1.250972p-3", "0x1.9996a8p-3", "0x1.555558p-2"):
        q = fma32(q, z, F(float.fromhex(constant)))
    t = s + s
    return fma32(t * z, q, t)


def softplus(x: Floats) -> Floats:
    return largest_of(x, F(0)) + log1p32(exp32(-np.abs(x)))


def _factorial(n: int) -> float:
    return 1.0 if n < 2 else n * _factorial(n - 1)


def sincos(x: float) -> tuple[float, float]:
    q = float(np.rint(x * float.fromhex("0x1.45f306dc9c883p-1")))
    y = x - q * float.fromhex("0x1.921fb5p+0")
    y = y - q * float.fromhex("0x1.110b46p-26")
    y = y - q * float.fromhex("0x1.1a62633145c07p-54")
    z = y * y
    sine, cosine = 0.0, 0.0
    for k in range(7, -1, -1):
        term = (-1.0) ** (k + 1) * (1 / _factorial(2 * k + 3))
        sine = term if k == 7 else sine * z + term
    for k in range(6, -1, -1):
        term = (-1.0) ** k * (1 / _factorial(2 * k + 4))
        cosine = term if k == 6 else cosine * z + term
    s, c = y + (y * z) * sine, (1 - 0.5 * z) + (z * z) * cosine
    return [(s, c), (c, -s), (-s, -c), (-c, s)][int(q) % 4]


def rotary_table(freq: Doubles, positions: NDArray[np.int64]) -> tuple[Floats, Floats]:
    pairs = [[sincos(float(p) * float(f)) for f in freq] for p in positions]
    both = np.array(pairs, np.float64).reshape(len(positions), len(freq), 2).astype(F)
    return both[..., 1], both[..., 0]


def exact_ln(x: float) -> float:
    mantissa, exponent = np.frexp(np.float64(x))  # [0.5, 1)
    m, e = float(mantissa), int(exponent)
    if m < float.fromhex("0x1.6a09e667f3bcdp-1"):
        m, e = 2 * m, e - 1
    s = (m - 1) / (m + 1)
    z = s * s
    total = 1 / 25
    for n in range(23, 0, -2):
        total = total * z + 1 / n
    return e * float.fromhex("0x1.62e42fefa39efp-1") + 2 * s * total


# ---- section 7


def rms(x: Floats, eps: float) -> float:
    with np.errstate(over="ignore"):
        return float(F(1) / np.sqrt(dot16(x, x) / F(len(x)) + F(eps)))


def scale_rows(x: Floats, inv: float, w: Floats | None) -> Floats:
    y = x * F(inv)
    return y if w is None else y * w


def hyper_pre(m: Floats, inv: float, scale: Floats, base: Floats, hc_eps: float) -> Floats:
    return sigmoid(fma32(m * F(inv), scale[0], base)) + F(hc_eps)


def hyper_mix(
    m: Floats, inv: float, scale: Floats, base: Floats, n: int, iters: int, hc_eps: float
) -> tuple[Floats, Floats, Floats]:
    eps = F(hc_eps)
    pre = hyper_pre(m[:n], inv, scale, base[:n], hc_eps)
    post = F(2) * sigmoid(fma32(m[n : 2 * n] * F(inv), scale[1], base[n : 2 * n]))
    a = fma32(m[2 * n :] * F(inv), scale[2], base[2 * n :]).reshape(n, n)
    e = exp32(a - a.max(-1, keepdims=True))
    comb = e / lanes16(e)[:, None] + eps
    comb = comb / (lanes16(comb.T) + eps)
    for _ in range(iters - 1):
        comb = comb / (lanes16(comb) + eps)[:, None]
        comb = comb / (lanes16(comb.T) + eps)
    return pre, post, comb


def collapse(streams: Floats, pre: Floats) -> Floats:
    acc = np.zeros(streams.shape[1], F)
    for row, factor in zip(streams, pre, strict=True):
        acc = fma32(factor, row, acc)
    return acc


def expand(streams: Floats, y: Floats, post: Floats, comb: Floats) -> Floats:
    out = np.empty_like(streams)
    for k in range(len(streams)):
        acc = post[k] * y
        for j in range(len(streams)):
            acc = fma32(comb[j, k], streams[j], acc)
        out[k] = acc
    return out


def add(a: Floats, b: Floats) -> Floats:
    return a + b


# ---- section 8


def rotate(x: Floats, cos: Floats, sin: Floats, inverse: bool) -> Floats:
    out = x.copy()
    first = len(x) - 2 * len(cos)
    sin = -sin if inverse else sin
    a, b = x[first::2], x[first + 1 :: 2]
    out[first::2] = fma32(a, cos, -(b * sin))
    out[first + 1 :: 2] = fma32(a, sin, b * cos)
    return out


# ---- section 9: codes by search over all values of a format, not by bits


def _values(codes: int, mantissa: int, bias: int) -> Floats:
    """Values of the non-negative codes 0 .. codes - 1 of a small float format."""
    out = []
    for code in range(codes):
        e, f = code >> mantissa, code & ((1 << mantissa) - 1)
        out.append(
            f * 2.0 ** (1 - bias - mantissa) if e == 0 else (1 + f / (1 << mantissa)) * 2.0 ** (e - bias)
        )
    return np.array(out, F)


E4M3, E2M1 = _values(127, 3, 7), _values(8, 1, 1)


def nearest_code(x: Floats, values: Floats, sign: int) -> Bytes:
    """Code of the nearest value, ties to the even code; `sign` is the bit of the sign."""
    size = np.abs(x).astype(np.float64)
    above = np.clip(np.searchsorted(values.astype(np.float64), size), 1, len(values) - 1)
    low, high = values[above - 1].astype(np.float64), values[above].astype(np.float64)
    up = (high - size < size - low) | ((high - size == size - low) & (above % 2 == 0))
    return np.asarray(np.where(up, above, above - 1) | (np.signbit(x).astype(int) << sign), np.uint8)


def decode_codes(code: Bytes, values: Floats, sign: int) -> Floats:
    size = values[code & ((1 << sign) - 1)]
    return np.where(code >> sign & 1, -size, size).astype(F)


def pow2ceil(t: np.float32) -> np.float32:
    m, e = np.frexp(t)
    return F(np.ldexp(1.0, int(e) - 1 if m == 0.5 else int(e)))


def quantise(x: Floats, block: int, values: Floats, sign: int, least: float) -> tuple[Bytes, Bytes]:
    """Codes and E8M0 scales of a row in blocks; the last block may be shorter."""
    top = values[-1]
    codes, scales = [], []
    for at in range(0, len(x), block):
        part = x[at : at + block]
        s = pow2ceil(max(np.abs(part).max(), F(least)) * (F(1) / top))
        codes.append(nearest_code(np.clip(part * (F(1) / s), -top, top), values, sign))
        scales.append(int(np.log2(s)) + 127)
    return np.concatenate(codes) if codes else np.zeros(0, np.uint8), np.array(scales, np.uint8)


def e8m0(code: Bytes) -> Floats:
    return np.ldexp(F(1), code.astype(np.int32) - 127).astype(F)


def bf16_bits(x: Floats) -> NDArray[np.uint16]:
    """Nearest even, by comparing with both neighbours."""
    down = (x.view(np.uint32) >> 16).astype(np.uint32)
    low, high = (down << 16).view(F).astype(np.float64), ((down + 1) << 16).view(F).astype(np.float64)
    to_low, to_high = np.abs(x - low), np.abs(high - x)
    up = (to_high < to_low) | ((to_high == to_low) & (down % 2 == 1))
    return (down + up).astype(np.uint16)


def encode_row(x: Floats, rotary: int, rounded: bool) -> Bytes:
    if not rounded:
        return x.view(np.uint8).copy()
    if not rotary:
        code, scale = quantise(x, 32, E2M1, 3, 6 * 2.0**-126)
        code = np.append(code, np.zeros(len(code) % 2, np.uint8))
        return np.concatenate([code[::2] | code[1::2] << 4, scale]).astype(np.uint8)
    front = len(x) - rotary
    code, scale = quantise(x[:front], 64, E4M3, 7, 1e-4)
    pad = np.zeros(-len(scale) % 8, np.uint8)
    return np.concatenate([code, scale, pad, bf16_bits(x[front:]).view(np.uint8)])


def decode_cache_row(row: Bytes, width: int, rotary: int, rounded: bool) -> Floats:
    if not rounded:
        return row.view(F).copy()
    if not rotary:
        half = (width + 1) // 2
        code = np.stack([row[:half] & 15, row[:half] >> 4], -1).reshape(-1)[:width]
        return decode_codes(code, E2M1, 3) * np.repeat(e8m0(row[half:]), 32)[:width]
    front = width - rotary
    blocks = (front + 63) // 64
    scale = np.repeat(e8m0(row[front : front + blocks]), 64)[:front]
    low = row[len(row) - 2 * rotary :].copy().view(np.uint16)
    tail = (low.astype(np.uint32) << 16).view(F)
    return np.concatenate([decode_codes(row[:front], E4M3, 7) * scale, tail])


def hadamard(x: Floats) -> Floats:
    n, out, h = len(x), x.copy(), 1
    while h < n:
        pairs = out.reshape(-1, 2, h)
        out = np.stack([pairs[:, 0] + pairs[:, 1], pairs[:, 0] - pairs[:, 1]], 1).reshape(-1)
        h *= 2
    return out * F(n**-0.5)


# ---- sections 10, 11, 12


def pool_add(
    m: Floats, l: Floats, a: Floats, kv: Floats, gate: Floats, ape: Floats
) -> tuple[Floats, Floats, Floats]:
    g = gate + ape
    top = largest_of(m, g)
    c, e = exp32(m - top), exp32(g - top)
    return top, fma32(l, c, e), fma32(a, c, e * kv)


def pool_close(l: Floats, a: Floats) -> Floats:
    return a / l


def index_scores(q: Bytes, w: Floats, width: int, rounded: bool, keys: Bytes) -> Floats:
    score = np.zeros(len(keys), F)
    half, blocks = (width + 1) // 2, (width + 31) // 32
    for h in range(len(q)):
        if rounded:
            ones = np.full(blocks, 127, np.uint8)
            unit = [decode_cache_row(np.append(r[:half], ones), width, 0, True) for r in [q[h], *keys]]
            dot = np.zeros(len(keys), F)
            for b in range(blocks):
                part = [(2 * u[32 * b : 32 * b + 32]).astype(np.int64) for u in unit]
                total = np.array([(part[0] * key).sum() for key in part[1:]], np.int64).astype(F)
                s = (e8m0(q[h, half + b : half + b + 1]) * F(0.25)) * e8m0(keys[:, half + b])
                dot = fma32(total, s, dot)
        else:
            dot = dot16(q[h, : 4 * width].view(F), np.ascontiguousarray(keys[:, : 4 * width]).view(F))
        score = fma32(w[h], largest_of(dot, F(0)), score)
    return score


def attend(q: Floats, scale: float, keys: Floats, sink: Floats) -> Floats:
    out = np.empty_like(q)
    for h in range(len(q)):
        t = dot16(q[h], keys) * F(scale)
        m = max(sink[h], t.max())
        e = exp32(t - m)
        den = lanes16(e) + exp32(sink[h] - m)
        acc = np.zeros(q.shape[1], F)
        for i in range(len(keys)):
            acc = fma32(e[i], keys[i], acc)
        out[h] = acc / den
    return out


# ---- sections 13, 14


def router_scores(logits: Floats) -> Floats:
    return np.sqrt(softplus(logits))


def swiglu(gate: Floats, up: Floats, limit: float, weight: float | None) -> Floats:
    if limit > 0:
        gate = smallest_of(gate, F(limit))
        up = largest_of(smallest_of(up, F(limit)), -F(limit))
    u = silu(gate) * up
    return u if weight is None else u * F(weight)


def exp_shifted(z: Floats, shift: float) -> Floats:
    return exp32(z - F(shift))


def max_value(x: Floats) -> tuple[float, bool]:
    return float(x.max() + F(0)), bool(np.isfinite(x).all())
