"""The op protocol at once, on NumPy arrays: a model runs line by line, every value can be looked at.

Owns the meaning of a step for the reference formulas: which rows belong to which sequence, what a sequence
holds between steps, which keys a query sees. The formulas and their arithmetic come from finback.reference;
canonical arithmetic gives the bits of the native program, the oracle gives float64. Refuses speed, rewinding
and files (ops/eager_weights.py reads those). """

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from finback.config import LayerConfig, ModelConfig, RopeConfig
from finback.errors import NumericError
from finback.ops.base import Expert, Hyper, Mix, Rotary, Routing, RowKind, Selection
from finback.reference import (
    attend,
    compress,
    embed,
    experts,
    head,
    hyper,
    index,
    linear,
    norm_rope,
    route,
    rows,
)
from finback.reference.arithmetic import Arithmetic
from finback.reference.compress import Groups
from finback.reference.matrix import Matrix

Array = npt.NDArray[Any]
Ints = npt.NDArray[np.int64]
Stack = tuple[Matrix, ...] | Ints
"""One matrix of every routed expert, or a table [V, k] of expert ids."""


# ---- what a sequence holds ---------------------------------------------------------------------------------


@dataclass(slots=True)
class Stream:
    """Compressed rows of one kind: the open groups (CSA: current and next; HCA: one) and the closed rows
    [width]."""

    groups: Groups
    rows: list[Array] = field(default_factory=list)


@dataclass(slots=True)
class LayerState:
    """Window rows of the last `sliding_window - 1` positions, oldest first, and the layer's compressed
    streams."""

    window: list[Array] = field(default_factory=list)
    streams: dict[RowKind, Stream] = field(default_factory=dict)


class EagerSequence:
    """State of one sequence in every layer, draft layers included; `copy.deepcopy` is a checkpoint of it."""

    def __init__(self, config: ModelConfig, arithmetic: Arithmetic) -> None:
        self.layers = [
            _empty_layer(layer, config, arithmetic) for layer in (*config.layers, *config.mtp_layers)
        ]


def _empty_layer(layer: LayerConfig, config: ModelConfig, a: Arithmetic) -> LayerState:
    def stream(width: int) -> Stream:
        return Stream(compress.empty_groups(a, 2 if layer.kind == "csa" else 1, width))

    state = LayerState()
    if layer.ratio:
        state.streams["main"] = stream(config.head_dim)
    if layer.has_indexer:
        state.streams["index"] = stream(config.index_head_dim)
    return state


# ---- one step ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Segment:
    """Consecutive rows row0 .. row0 + n of the step: one sequence at positions pos0 .. pos0 + n."""

    sequence: EagerSequence
    row0: int
    n: int
    pos0: int

    @property
    def rows(self) -> slice:
        return slice(self.row0, self.row0 + self.n)


@dataclass(frozen=True, slots=True)
class EagerBatch:
    """Rows of one step: token ids [T], positions [T], their segments, and which rows want logits."""

    ids: Ints
    positions: Ints
    segments: tuple[Segment, ...]
    logit_rows: Ints

    @classmethod
    def of(
        cls, pieces: Sequence[tuple[EagerSequence, int, Ints]], logit_rows: Sequence[int] | None = None
    ) -> EagerBatch:
        """Pieces (sequence, position of the first token, token ids) one after the other; all rows want logits
        unless `logit_rows` names some."""
        segments, row0 = [], 0
        for sequence, pos0, ids in pieces:
            segments.append(Segment(sequence, row0, len(ids), pos0))
            row0 += len(ids)
        positions = np.concatenate([np.arange(s.pos0, s.pos0 + s.n) for s in segments])
        wanted = np.arange(row0) if logit_rows is None else np.asarray(logit_rows, np.int64)
        return cls(np.concatenate([ids for _, _, ids in pieces]), positions, tuple(segments), wanted)


@lru_cache(maxsize=32)
def _frequencies(rope: RopeConfig, channels: int) -> tuple[float, ...]:
    """Decimal arithmetic takes milliseconds; a program asks once for each layer and step."""
    return tuple(rope.frequencies(channels))


class EagerOps:
    """`Ops` over one batch. Values are arrays in the arithmetic's float type; selections and routings are
    structured arrays with the fields (count, rows) and (ids, weights)."""

    def __init__(
        self, config: ModelConfig, arithmetic: Arithmetic, batch: EagerBatch, cache_rounding: bool
    ) -> None:
        self.config, self.arithmetic, self.batch = config, arithmetic, batch
        self.cache_rounding = cache_rounding

    # ---- rows in and out of the streams

    def embed(self, table: Matrix, streams: int) -> Array:
        return embed.embed(self.arithmetic, table, self.batch.ids, streams)

    def _mixing(self, w: Hyper[Matrix, Array]) -> hyper.Mixing:
        c = self.config
        return hyper.Mixing(w.fn, w.scale, w.base, c.hc_eps, c.rms_norm_eps, c.hc_sinkhorn_iters)

    def hyper_in(self, streams: Array, w: Hyper[Matrix, Array], norm: Array) -> tuple[Array, Mix[Array]]:
        x, post, comb = hyper.hyper_in(self.arithmetic, streams, self._mixing(w), norm)
        return x, Mix(np.concatenate([post, comb.reshape(len(x), -1)], axis=-1))

    def hyper_out(self, streams: Array, y: Array, mix: Mix[Array]) -> Array:
        n = streams.shape[1]
        post, comb = mix.value[:, :n], mix.value[:, n:].reshape(-1, n, n)
        return hyper.hyper_out(self.arithmetic, streams, y, post, comb)

    def take_rows(self, streams: Array) -> Array:
        rows: Array = streams[self.batch.logit_rows]
        return rows

    def mtp_in(self, embedded: Array, streams: Array) -> Array:
        return hyper.mtp_in(embedded, streams)

    def head(self, streams: Array, w: Hyper[Matrix, Array], norm: Array, matrix: Matrix) -> Array:
        return _finite("head", head.head(self.arithmetic, streams, self._mixing(w), norm, matrix))

    # ---- products

    def norm(self, x: Array, w: Array) -> Array:
        return norm_rope.norm(self.arithmetic, x, w, self.config.rms_norm_eps)

    def linear(self, x: Array, matrices: Sequence[Matrix]) -> list[Array]:
        return linear.linear(self.arithmetic, _finite("linear", x), matrices)

    def grouped_linear(self, x: Array, matrix: Matrix, groups: int) -> Array:
        return linear.grouped_linear(self.arithmetic, _finite("grouped_linear", x), matrix, groups)

    # ---- attention

    def rotary(self, rope: RopeConfig) -> Rotary[Array]:
        frequencies = _frequencies(rope, self.config.qk_rope_head_dim)
        return Rotary(norm_rope.rotary(self.arithmetic, self.batch.positions, frequencies), rope)

    def qkv_finish(
        self, layer: LayerConfig, q: Array, kv: Array, kv_norm: Array, rotary: Rotary[Array]
    ) -> tuple[Array, Array]:
        a, c = self.arithmetic, self.config
        heads = q.reshape(len(q), c.num_attention_heads, c.head_dim)
        queries = norm_rope.queries(a, heads, rotary.value, c.rms_norm_eps)
        keys = norm_rope.keys(a, kv, kv_norm, rotary.value, c.rms_norm_eps)
        return queries.reshape(q.shape), self._rounded(keys, "main")

    def _rounded(self, x: Array, kind: RowKind) -> Array:
        if not self.cache_rounding:
            return x
        return rows.round_main(x, self.config.qk_rope_head_dim) if kind == "main" else rows.round_index(x)

    def compress(
        self,
        layer: LayerConfig,
        kind: RowKind,
        kv: Array,
        gate: Array,
        ape: Array,
        norm: Array,
        rotary: Rotary[Array],
    ) -> None:
        for segment in self.batch.segments:
            stream = segment.sequence.layers[layer.index].streams[kind]
            for i in range(segment.n):
                row, position = segment.row0 + i, segment.pos0 + i
                stream.groups, pooled = compress.feed(
                    self.arithmetic, stream.groups, kv[row], gate[row], ape, position
                )
                if pooled is not None:
                    first = position + 1 - layer.ratio
                    stream.rows.append(self._compressed(kind, pooled, norm, rotary.rope, first))

    def _compressed(self, kind: RowKind, pooled: Array, norm: Array, rope: RopeConfig, first: int) -> Array:
        """The row of a closed group: norm, rotation at the position of its first token, cache rounding."""
        table = norm_rope.rotary(
            self.arithmetic, np.array([first]), _frequencies(rope, self.config.qk_rope_head_dim)
        )
        row = norm_rope.keys(self.arithmetic, pooled[None], norm, table, self.config.rms_norm_eps)
        rounded: Array = self._rounded(row, kind)[0]
        return rounded

    def index_select(
        self, layer: LayerConfig, q: Array, weights: Array, rotary: Rotary[Array]
    ) -> Selection[Array]:
        a, c = self.arithmetic, self.config
        heads, width, topk = c.index_n_heads, c.index_head_dim, c.index_topk
        queries = norm_rope.rotate(a, q.reshape(len(q), heads, width), rotary.value)
        queries = self._rounded(queries, "index")
        weights = weights * a.dtype.type(width**-0.5 * heads**-0.5)
        chosen = np.zeros(len(q), np.dtype([("count", np.int32), ("rows", np.int32, (topk,))]))
        for segment in self.batch.segments:
            r, stream = segment.rows, segment.sequence.layers[layer.index].streams["index"]
            visible = (self.batch.positions[r] + 1) // layer.ratio
            keys = np.array(stream.rows).reshape(-1, width)
            lists = index.select(a, queries[r], weights[r], keys, visible, topk, self.cache_rounding)
            for row, ids in zip(range(r.start, r.stop), lists, strict=True):
                chosen["count"][row] = len(ids)
                chosen["rows"][row, : len(ids)] = ids
        return Selection(chosen)

    def attend(
        self,
        layer: LayerConfig,
        q: Array,
        kv: Array,
        sink: Array,
        rotary: Rotary[Array],
        selection: Selection[Array] | None,
    ) -> Array:
        lists: list[list[Array]] = []
        for segment in self.batch.segments:
            lists += self._key_lists(segment, layer, kv, selection)
        keys, counts = attend.gather(lists)
        heads = q.reshape(len(q), self.config.num_attention_heads, -1)
        out = attend.attend(self.arithmetic, heads, keys, counts, sink)
        return norm_rope.rotate(self.arithmetic, out, rotary.value, inverse=True).reshape(q.shape)

    def _key_lists(
        self, segment: Segment, layer: LayerConfig, kv: Array, selection: Selection[Array] | None
    ) -> list[list[Array]]:
        """Keys of each query of a segment: compressed rows, then window rows. The segment's rows enter the
        window."""
        state, width = segment.sequence.layers[layer.index], self.config.sliding_window
        window = [*state.window, *kv[segment.rows]]
        oldest = segment.pos0 - len(state.window)  # position of window[0]
        closed = state.streams["main"].rows if layer.ratio else []
        lists = []
        for i in range(segment.n):
            p = segment.pos0 + i
            far = closed[: (p + 1) // layer.ratio] if layer.ratio else []
            if selection is not None:
                count, picked = selection.value[segment.row0 + i]
                far = [closed[r] for r in picked[:count]]
            lists.append([*far, *window[max(0, p - width + 1) - oldest : p + 1 - oldest]])
        state.window = window[len(window) - min(width - 1, len(window)) :]
        return lists

    # ---- experts

    def route(
        self, layer: LayerConfig, x: Array, gate: Matrix, bias: Array | None, table: Stack | None
    ) -> Routing[Array]:
        a, c = self.arithmetic, self.config
        (logits,) = self.linear(x, [gate])
        scores = route.affinities(a, logits)
        if isinstance(table, np.ndarray):
            ids = np.sort(table[self.batch.ids], axis=-1)
        else:
            assert bias is not None, "a scored layer has a bias"
            ids = route.choose(scores, bias, c.num_experts_per_tok)
        weights = route.weigh(a, scores, ids, c.routed_scaling_factor, c.norm_topk_prob)
        k = ids.shape[1]
        routing = np.zeros(len(x), np.dtype([("ids", np.int32, (k,)), ("weights", a.dtype, (k,))]))
        routing["ids"], routing["weights"] = ids, weights
        return Routing(routing)

    def experts(
        self, x: Array, routing: Routing[Array], routed: Expert[Stack], shared: Expert[Matrix] | None
    ) -> Array:
        w1, w3, w2 = (_matrices(stack) for stack in (routed.w1, routed.w3, routed.w2))
        return experts.experts(
            self.arithmetic,
            _finite("experts", x),
            routing.value["ids"].astype(np.int64),
            routing.value["weights"],
            list(zip(w1, w3, w2, strict=True)),
            (shared.w1, shared.w3, shared.w2) if shared else None,
            self.config.swiglu_limit,
        )


def _matrices(stack: Stack) -> tuple[Matrix, ...]:
    assert isinstance(stack, tuple), "experts are matrices, not a table of ids"
    return stack


def _finite(op: str, x: Array) -> Array:
    """x, or NumericError naming its first row with a NaN or an infinity (docs/exactness.md section 15)."""
    finite = np.isfinite(x).reshape(len(x), -1).all(axis=1)
    if not finite.all():
        row = int(np.flatnonzero(~finite)[0])
        raise NumericError(
            f"row {row} of the step holds a value that is not finite at {op}; check the model's weights"
        )
    return x
