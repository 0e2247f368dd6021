"""A second reading of the spec, sharing no line with src/finback: float64, whole arrays, two-pass softmax in
the pooling.

Owns the forward pass of spec section 3 as a class over official names, checked against transformers (rounding
off) and the source of the golden values that transformers cannot give: the draft block, and everything with
cache rounding on. Chunks may follow one another; the state is what it kept. """

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from finback.config import LayerConfig, ModelConfig, RopeConfig

Array = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


def power_of_two_above(t: Array) -> Array:
    return 2.0 ** np.ceil(np.log2(t.astype(np.float32)))


def nearest(x: Array, values: Array) -> Array:
    """The nearest of ascending values >= 0 with the sign of x; ties to the value of even number."""
    magnitude = np.abs(x)
    above = np.clip(np.searchsorted(values, magnitude), 1, len(values) - 1)
    low, high = values[above - 1], values[above]
    middle = (low + high) / 2
    up = (magnitude > middle) | ((magnitude == middle) & (above % 2 == 0))
    return np.copysign(np.where(up, high, low), x)


E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])
E4M3 = np.array(
    [m / 8 * 2.0**-6 for m in range(8)] + [(1 + m / 8) * 2.0**e for e in range(-6, 9) for m in range(8)]
)[:-1]


def in_blocks(x: Array, size: int, values: Array, floor: float) -> Array:
    """x rounded to a power-of-two scale times one of the values, scale per block of the last axis."""
    parts = []
    for start in range(0, x.shape[-1], size):
        block = x[..., start : start + size]
        largest = np.maximum(np.abs(block).max(-1, keepdims=True), floor).astype(np.float32)
        s = power_of_two_above(largest * np.float32(1 / values[-1]))
        parts.append(nearest(np.clip(block / s, -values[-1], values[-1]), values) * s)
    return np.concatenate(parts, -1)


def to_bf16(x: Array) -> Array:
    """Nearest bf16, ties to even, by scaling the last kept bit to one."""
    unit = 2.0 ** (np.floor(np.log2(np.where(x == 0, 1, np.abs(x)))) - 7)
    return np.rint(x / unit) * unit


def walsh(n: int) -> Array:
    matrix = np.ones((1, 1))
    while len(matrix) < n:
        matrix = np.block([[matrix, matrix], [matrix, -matrix]])
    return matrix / math.sqrt(n)


def sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


def softmax(x: Array, axis: int) -> Array:
    e = np.exp(x - x.max(axis, keepdims=True))
    return e / e.sum(axis, keepdims=True)


def rms(x: Array, w: Array | None, eps: float) -> Array:
    y = x / np.sqrt((x * x).mean(-1, keepdims=True) + eps)
    return y if w is None else y * w


def frequencies(rope: RopeConfig, n: int) -> Array:
    f = rope.theta ** (-np.arange(0, n, 2) / n)
    if rope.factor is None:
        return f

    def channel(rotations: float) -> float:
        return n * math.log(rope.original_context / (rotations * 2 * math.pi)) / (2 * math.log(rope.theta))

    low, high = max(math.floor(channel(rope.beta_fast)), 0), min(math.ceil(channel(rope.beta_slow)), n - 1)
    ramp = np.clip((np.arange(n // 2) - low) / max(high - low, 1e-3), 0, 1)
    return f / rope.factor * ramp + f * (1 - ramp)


def turn(x: Array, position: npt.ArrayLike, freq: Array, back: bool = False) -> Array:
    """The last 2 len(freq) channels as complex numbers, multiplied by e^(i angle); positions broadcast."""
    n = 2 * len(freq)
    angle = np.asarray(position)[..., None] * freq * (-1 if back else 1)
    z = (x[..., -n::2] + 1j * x[..., 1 - n :: 2]) * np.exp(1j * angle)
    out = x.copy()
    out[..., -n::2], out[..., 1 - n :: 2] = z.real, z.imag
    return out


class Pool:
    """One compressed stream: all inputs so far, and the rows of the groups that closed."""

    def __init__(self, model: Independent, layer: LayerConfig, prefix: str, index: bool) -> None:
        self.m, self.layer, self.p, self.index = model, layer, prefix, index
        self.kv: list[Array] = []
        self.score: list[Array] = []
        self.rows: list[Array] = []

    def feed(self, x: Array, pos0: int) -> None:
        w, r = self.m.w, self.layer.ratio
        kv, gate = x @ w[f"{self.p}.wkv.weight"].T, x @ w[f"{self.p}.wgate.weight"].T
        for i in range(len(x)):
            self.kv.append(kv[i])
            self.score.append(gate[i] + w[f"{self.p}.ape"][(pos0 + i) % r])
            if (pos0 + i + 1) % r == 0:
                self.rows.append(self._close(pos0 + i + 1 - r))

    def _close(self, first: int) -> Array:
        r, m = self.layer.ratio, self.m
        kv, score = np.array(self.kv[first:]), np.array(self.score[first:])
        if self.layer.kind == "csa":  # the previous group's tokens come with the lower half of their channels
            d = kv.shape[1] // 2
            kv, score = kv[:, d:], score[:, d:]
            if first:
                kv = np.concatenate([np.array(self.kv[first - r : first])[:, :d], kv])
                score = np.concatenate([np.array(self.score[first - r : first])[:, :d], score])
        row = rms((kv * softmax(score, 0)).sum(0), m.w[f"{self.p}.norm.weight"], m.c.rms_norm_eps)
        row = turn(row, first, m.freq(self.layer))
        return m.round_index(row) if self.index else m.round_main(row)


class Independent:
    """The model over float64 copies of its weights; `rounding` is cache rounding."""

    def __init__(self, c: ModelConfig, weights: dict[str, Any], rounding: bool) -> None:
        self.c, self.rounding = c, rounding
        self.w = {k: v if v.dtype.kind == "i" else v.astype(np.float64) for k, v in weights.items()}
        every = (*c.layers, *c.mtp_layers)
        self.window: list[list[Array]] = [[] for _ in every]
        self.pools = [self._pools(layer) for layer in every]

    def prefix(self, layer: LayerConfig) -> str:
        n = len(self.c.layers)
        return f"layers.{layer.index}" if layer.index < n else f"mtp.{layer.index - n}"

    def _pools(self, layer: LayerConfig) -> tuple[Pool | None, Pool | None]:
        p = f"{self.prefix(layer)}.attn"
        main = Pool(self, layer, f"{p}.compressor", False) if layer.ratio else None
        return main, Pool(self, layer, f"{p}.indexer.compressor", True) if layer.kind == "csa" else None

    def freq(self, layer: LayerConfig) -> Array:
        return frequencies(self.c.compress_rope if layer.ratio else self.c.rope, self.c.qk_rope_head_dim)

    def round_main(self, x: Array) -> Array:
        n = self.c.qk_rope_head_dim
        if not self.rounding:
            return x
        return np.concatenate([in_blocks(x[..., :-n], 64, E4M3, 1e-4), to_bf16(x[..., -n:])], -1)

    def round_index(self, x: Array) -> Array:
        return in_blocks(x @ walsh(x.shape[-1]), 32, E2M1, 6 * 2.0**-126) if self.rounding else x

    def mix(self, s: Array, p: str) -> tuple[Array, Array, Array]:
        c, n, w = self.c, self.c.hc_mult, self.w
        m = rms(s.reshape(len(s), -1), None, c.rms_norm_eps) @ w[f"{p}_fn"].T
        scale, base = w[f"{p}_scale"], w[f"{p}_base"]
        pre = sigmoid(m[:, :n] * scale[0] + base[:n]) + c.hc_eps
        if len(base) == n:
            return pre, pre, pre
        post = 2 * sigmoid(m[:, n : 2 * n] * scale[1] + base[n : 2 * n])
        comb = softmax((m[:, 2 * n :] * scale[2] + base[2 * n :]).reshape(-1, n, n), 2) + c.hc_eps
        for i in range(c.hc_sinkhorn_iters):
            if i:
                comb = comb / (comb.sum(2, keepdims=True) + c.hc_eps)
            comb = comb / (comb.sum(1, keepdims=True) + c.hc_eps)
        return pre, post, comb

    def attention(self, x: Array, layer: LayerConfig, pos0: int) -> Array:
        c, w, t, p = self.c, self.w, len(x), f"{self.prefix(layer)}.attn"
        pos, freq, eps = pos0 + np.arange(t), self.freq(layer), c.rms_norm_eps
        qr = rms(x @ w[f"{p}.wq_a.weight"].T, w[f"{p}.q_norm.weight"], eps)
        q = rms((qr @ w[f"{p}.wq_b.weight"].T).reshape(t, c.num_attention_heads, -1), None, eps)
        q = turn(q, pos[:, None], freq)
        kv = turn(rms(x @ w[f"{p}.wkv.weight"].T, w[f"{p}.kv_norm.weight"], eps), pos, freq)
        window = self.window[layer.index]
        window.extend(self.round_main(kv))  # every row is kept: position = place in the list
        main, _ = self.pools[layer.index]
        if main:
            main.feed(x, pos0)
        picks = self.pick(x, qr, layer, pos0)
        out = np.empty_like(q)
        for i in range(t):
            keys = np.array(window[max(0, pos[i] - c.sliding_window + 1) : pos[i] + 1])
            if main and picks[i]:
                keys = np.concatenate([keys, np.array([main.rows[r] for r in picks[i]])])
            logits = q[i] @ keys.T / math.sqrt(c.head_dim)
            full = np.concatenate([logits, w[f"{p}.attn_sink"][:, None]], 1)
            out[i] = softmax(full, 1)[:, :-1] @ keys
        out = turn(out, pos[:, None], freq, back=True).reshape(t, c.o_groups, -1)
        wo_a = w[f"{p}.wo_a.weight"].reshape(c.o_groups, c.o_lora_rank, -1)
        return np.einsum("tgd,grd->tgr", out, wo_a).reshape(t, -1) @ w[f"{p}.wo_b.weight"].T

    def pick(self, x: Array, qr: Array, layer: LayerConfig, pos0: int) -> list[list[int]]:
        """Compressed rows of each query."""
        c, w, t, p = self.c, self.w, len(x), f"{self.prefix(layer)}.attn.indexer"
        if not layer.ratio:
            return [[] for _ in range(t)]
        visible = [(pos0 + i + 1) // layer.ratio for i in range(t)]
        index = self.pools[layer.index][1]
        if index is None:
            return [list(range(n)) for n in visible]
        index.feed(x, pos0)
        q = (qr @ w[f"{p}.wq_b.weight"].T).reshape(t, c.index_n_heads, -1)
        q = self.round_index(turn(q, pos0 + np.arange(t)[:, None], self.freq(layer)))
        weight = x @ w[f"{p}.weights_proj.weight"].T / math.sqrt(c.index_head_dim * c.index_n_heads)
        out = []
        for i, n in enumerate(visible):
            keys = np.array(index.rows[:n]).reshape(n, c.index_head_dim)
            score = weight[i] @ np.maximum(q[i] @ keys.T, 0)
            out.append(sorted(range(n), key=lambda r: (-score[r], r))[: c.index_topk])
        return out

    def network(self, x: Array, p: str) -> Array:
        limit, w = self.c.swiglu_limit or np.inf, self.w
        gate = np.minimum(x @ w[f"{p}.w1.weight"].T, limit)
        up = np.clip(x @ w[f"{p}.w3.weight"].T, -limit, limit)
        return (gate * sigmoid(gate) * up) @ w[f"{p}.w2.weight"].T

    def moe(self, x: Array, ids: Ints, p: str) -> Array:
        c, w = self.c, self.w
        score = np.sqrt(np.log1p(np.exp(x @ w[f"{p}.gate.weight"].T)))
        table = w.get(f"{p}.gate.tid2eid")
        y = self.network(x, f"{p}.shared_experts") if c.n_shared_experts else np.zeros_like(x)
        for i in range(len(x)):
            if table is not None:
                chosen = table[ids[i]]
            else:
                chosen = np.argsort(-(score[i] + w[f"{p}.gate.bias"]), kind="stable")[: c.num_experts_per_tok]
            total = score[i, chosen].sum() if c.norm_topk_prob else 1.0
            for e in chosen:
                factor = score[i, e] / total * c.routed_scaling_factor
                y[i] += factor * self.network(x[i : i + 1], f"{p}.experts.{e}")[0]
        return y

    def block(self, s: Array, layer: LayerConfig, ids: Ints, pos0: int) -> Array:
        p, w = self.prefix(layer), self.w
        for part in ("attn", "ffn"):
            pre, post, comb = self.mix(s, f"{p}.hc_{part}")
            x = rms(np.einsum("tj,tjd->td", pre, s), w[f"{p}.{part}_norm.weight"], self.c.rms_norm_eps)
            y = self.attention(x, layer, pos0) if part == "attn" else self.moe(x, ids, f"{p}.ffn")
            s = post[..., None] * y[:, None] + np.einsum("tjk,tjd->tkd", comb, s)
        return s

    def logits(self, s: Array, p: str) -> Array:
        x = np.einsum("tj,tjd->td", self.mix(s, f"{p}hc_head")[0], s)
        return rms(x, self.w[f"{p}norm.weight"], self.c.rms_norm_eps) @ self.w["head.weight"].T

    def forward(self, ids: Ints, pos0: int = 0) -> tuple[Array, Array]:
        """Logits [T, V] and final streams [T, N, D]."""
        s = np.repeat(self.w["embed.weight"][ids][:, None], self.c.hc_mult, 1)
        for layer in self.c.layers:
            s = self.block(s, layer, ids, pos0)
        return self.logits(s, ""), s

    def draft(self, streams: Array, following: Ints, pos0: int) -> Array:
        """Logits of the draft block for streams of positions pos0 .. and the tokens that follow them."""
        w, eps = self.w, self.c.rms_norm_eps
        e = rms(w["embed.weight"][following], w["mtp.0.enorm.weight"], eps) @ w["mtp.0.e_proj.weight"].T
        h = rms(streams, w["mtp.0.hnorm.weight"], eps) @ w["mtp.0.h_proj.weight"].T
        return self.logits(self.block(e[:, None] + h, self.c.mtp_layers[0], following, pos0), "mtp.0.")
