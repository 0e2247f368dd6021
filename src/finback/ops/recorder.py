"""The recorder: the op protocol over symbolic values; each operation becomes one or two of the native list.

Owns which native operation stands for which op (native/program.h), what it reads, writes and needs as
scratch, and the memo of packed inputs. Refuses, naming the tensor, shapes that do not fit the configuration
or that no kernel has. Knows no file (native_weights.py), places nothing (plan.py) and runs nothing
(native.py). The meaning of the operations is in base.py and docs/ops.md.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import NoReturn

import numpy as np

from finback import native
from finback.config import LayerConfig, ModelConfig, RopeConfig
from finback.errors import UnsupportedModelError
from finback.kv.layout import Layout
from finback.ops.base import Expert, Hyper, Mix, Rotary, Routing, RowKind, Selection
from finback.ops.native_weights import NativeExperts, NativeMatrix, NativeStack, NativeTable, NativeVector
from finback.ops.tape import Limits, Tape, Tensor


@lru_cache(maxsize=64)
def frequencies(rope: RopeConfig, channels: int) -> list[float]:
    """`rope.frequencies`, whose decimal arithmetic takes milliseconds, once per family of layers."""
    return rope.frequencies(channels)


class Recorder:
    """`Ops` over a tape. `path` names the model in refusals."""

    def __init__(self, config: ModelConfig, layout: Layout, limits: Limits, path: str) -> None:
        self.config, self.layout, self.limits, self._path = config, layout, limits, path
        self.tape = Tape(limits)
        self._packed: dict[tuple[Tensor, native.Encoding, int], Tensor] = {}

    def finish_entry(self, name: str, results: Sequence[Tensor]) -> None:
        """Close an entry point. A replay of the next one alone must pack its own inputs, so the memo ends
        here."""
        self.tape.finish_entry(name, results)
        self._packed.clear()

    # ---- checks and packing

    def _refuse(self, problem: str) -> NoReturn:
        raise UnsupportedModelError(self._path, problem)

    def _check_matrix(self, m: NativeMatrix | NativeStack, rows: int | None, cols: int) -> None:
        wanted = m.rows if rows is None else rows
        if (m.rows, m.cols) != (wanted, cols):
            self._refuse(f"{m.name} is [{m.rows}, {m.cols}]; the configuration asks for [{wanted}, {cols}]")

    def _check_vector(self, v: NativeVector, *shape: int) -> None:
        if v.values.size != math.prod(shape):
            self._refuse(f"{v.name} has {v.values.size} values; the configuration asks for {list(shape)}")

    def _pack(self, x: Tensor, encoding: native.Encoding, groups: int = 1) -> Tensor:
        """x in one encoding, each part cut into `groups` pieces; packed once however many matrices read
        it."""
        key = (x, encoding, groups)
        if key not in self._packed:
            size = x.parts * groups * native.packed_bytes(encoding, x.width // groups)
            out = self.tape.tensor(x.rows, x.parts, x.width, size)
            of_logits = x.rows == "logits"
            self.tape.add(
                "pack", [x], [out], lambda p, at: p.add_pack(at(x), at(out), encoding, groups, of_logits)
            )
            self._packed[key] = out
        return self._packed[key]

    # ---- rows in and out of the streams

    def embed(self, table: NativeMatrix, streams: int) -> Tensor:
        c = self.config
        self._check_matrix(table, c.vocab_size, c.hidden_size)
        out = self.tape.tensor("step", streams, table.cols)
        self.tape.add("embed", [], [out], lambda p, at: p.add_embed(at(out), table.handle))
        return out

    def _check_hyper(
        self, w: Hyper[NativeMatrix, NativeVector], streams: Tensor, sums: int, scales: int
    ) -> None:
        if w.fn.encoding is not native.Encoding.F32:
            self._refuse(
                f"{w.fn.name} is stored as {w.fn.format.name}; hyper-connections need F32, F16 or BF16"
            )
        self._check_matrix(w.fn, sums, streams.parts * streams.width)
        self._check_vector(w.scale, scales)
        self._check_vector(w.base, sums)

    def hyper_in(
        self, streams: Tensor, w: Hyper[NativeMatrix, NativeVector], norm: NativeVector
    ) -> tuple[Tensor, Mix[Tensor]]:
        c, n = self.config, streams.parts
        self._check_hyper(w, streams, (2 + n) * n, 3)
        self._check_vector(norm, streams.width)
        x = self.tape.tensor("step", 1, streams.width)
        mix = self.tape.tensor("step", 1, n + n * n)
        dots = self.tape.tensor("step", 1, (2 + n) * n)
        self.tape.add(
            "hyper_in",
            [streams],
            [x, mix, dots],
            lambda p, at: p.add_hyper_in(
                at(streams),
                at(x),
                at(mix),
                at(dots),
                w.fn.handle,
                w.scale.values,
                w.base.values,
                norm.values,
                c.hc_sinkhorn_iters,
                c.hc_eps,
                c.rms_norm_eps,
            ),
        )
        return x, Mix(mix)

    def hyper_out(self, streams: Tensor, y: Tensor, mix: Mix[Tensor]) -> Tensor:
        out = self.tape.tensor("step", streams.parts, streams.width)
        self.tape.add(
            "hyper_out",
            [streams, y, mix.value],
            [out],
            lambda p, at: p.add_hyper_out(at(streams), at(y), at(mix.value), at(out)),
        )
        return out

    def take_rows(self, streams: Tensor) -> Tensor:
        out = self.tape.tensor("logits", streams.parts, streams.width)
        self.tape.add("take_rows", [streams], [out], lambda p, at: p.add_take_rows(at(streams), at(out)))
        return out

    def mtp_in(self, embedded: Tensor, streams: Tensor) -> Tensor:
        out = self.tape.tensor("step", streams.parts, streams.width)
        self.tape.add(
            "mtp_in",
            [embedded, streams],
            [out],
            lambda p, at: p.add_mtp_in(at(embedded), at(streams), at(out)),
        )
        return out

    def head(
        self, streams: Tensor, w: Hyper[NativeMatrix, NativeVector], norm: NativeVector, matrix: NativeMatrix
    ) -> Tensor:
        c = self.config
        self._check_hyper(w, streams, streams.parts, 1)
        self._check_vector(norm, streams.width)
        self._check_matrix(matrix, c.vocab_size, streams.width)
        x = self.tape.tensor("logits", 1, streams.width)
        dots = self.tape.tensor("logits", 1, streams.parts)
        self.tape.add(
            "hyper_head",
            [streams],
            [x, dots],
            lambda p, at: p.add_hyper_head(
                at(streams),
                at(x),
                at(dots),
                w.fn.handle,
                w.scale.values,
                w.base.values,
                norm.values,
                c.hc_eps,
                c.rms_norm_eps,
            ),
        )
        (logits,) = self.linear(x, [matrix])
        return logits

    # ---- products

    def norm(self, x: Tensor, w: NativeVector) -> Tensor:
        self._check_vector(w, x.width)
        out = self.tape.tensor(x.rows, x.parts, x.width)
        eps = self.config.rms_norm_eps
        self.tape.add("norm", [x], [out], lambda p, at: p.add_norm(at(x), at(out), w.values, eps))
        return out

    def linear(self, x: Tensor, matrices: Sequence[NativeMatrix]) -> list[Tensor]:
        """One native operation for each encoding among the matrices; a product of logit rows has one
        matrix."""
        for m in matrices:
            self._check_matrix(m, None, x.width)
        outs = [self.tape.tensor(x.rows, x.parts, m.rows) for m in matrices]
        for encoding in dict.fromkeys(m.encoding for m in matrices):
            packed = self._pack(x, encoding)
            same = [i for i, m in enumerate(matrices) if m.encoding is encoding]
            self._linear(packed, encoding, [matrices[i] for i in same], [outs[i] for i in same])
        return outs

    def _linear(
        self, packed: Tensor, encoding: native.Encoding, matrices: list[NativeMatrix], outs: list[Tensor]
    ) -> None:
        handles = [m.handle for m in matrices]
        of_logits = packed.rows == "logits"
        self.tape.add(
            "linear",
            [packed],
            outs,
            lambda p, at: p.add_linear(at(packed), encoding, handles, [at(out) for out in outs], of_logits),
        )

    def grouped_linear(self, x: Tensor, matrix: NativeMatrix, groups: int) -> Tensor:
        self._check_matrix(matrix, None, x.width // groups)
        if matrix.rows % groups:
            self._refuse(f"{matrix.name} has {matrix.rows} rows, which {groups} groups cannot share equally")
        encoding = matrix.encoding
        packed = self._pack(x, encoding, groups)
        out = self.tape.tensor("step", 1, matrix.rows)
        self.tape.add(
            "grouped_linear",
            [packed],
            [out],
            lambda p, at: p.add_grouped_linear(at(packed), encoding, matrix.handle, groups, at(out)),
        )
        return out

    # ---- attention

    @property
    def _pairs(self) -> int:
        return self.config.qk_rope_head_dim // 2

    def rotary(self, rope: RopeConfig) -> Rotary[Tensor]:
        out = self.tape.tensor("step", 1, 2 * self._pairs)
        numbers = frequencies(rope, self.config.qk_rope_head_dim)
        self.tape.add("rotary", [], [out], lambda p, at: p.add_rotary(at(out), numbers))
        return Rotary(out, rope)

    def qkv_finish(
        self, layer: LayerConfig, q: Tensor, kv: Tensor, kv_norm: NativeVector, rotary: Rotary[Tensor]
    ) -> tuple[Tensor, Tensor]:
        c, pairs = self.config, self._pairs
        self._check_vector(kv_norm, c.head_dim)
        if (q.width, kv.width) != (c.num_attention_heads * c.head_dim, c.head_dim):
            self._refuse(
                f"layer {layer.index} has queries of {q.width} and keys of {kv.width} channels, not H d and d"
            )
        q_out, kv_out = self.tape.tensor("step", 1, q.width), self.tape.tensor("step", 1, kv.width)
        self.tape.add(
            "qkv_finish",
            [q, kv, rotary.value],
            [q_out, kv_out],
            lambda p, at: p.add_qkv_finish(
                at(q),
                at(kv),
                at(q_out),
                at(kv_out),
                at(rotary.value),
                kv_norm.values,
                layer.index,
                c.num_attention_heads,
                c.head_dim,
                pairs,
                c.rms_norm_eps,
            ),
        )
        return q_out, kv_out

    def compress(
        self,
        layer: LayerConfig,
        kind: RowKind,
        kv: Tensor,
        gate: Tensor,
        ape: NativeVector,
        norm: NativeVector,
        rotary: Rotary[Tensor],
    ) -> None:
        c, lim = self.config, self.limits
        index = kind == "index"
        row = c.index_head_dim if index else c.head_dim
        width = row * (2 if layer.kind == "csa" else 1)
        if (kv.width, gate.width) != (width, width):
            self._refuse(
                f"layer {layer.index} pools {kv.width} and {gate.width} channels; {width} are needed"
            )
        self._check_vector(ape, layer.ratio, width)
        self._check_vector(norm, row)
        numbers = frequencies(rotary.rope, c.qk_rope_head_dim)
        scratch = self.tape.scratch(
            native.compress_scratch_bytes(
                self.layout.handle, layer.index, index, numbers, c.rms_norm_eps, lim.max_rows, lim.threads
            )
        )
        self.tape.add(
            "compress",
            [kv, gate],
            [scratch],
            lambda p, at: p.add_compress(
                at(kv),
                at(gate),
                at(scratch),
                ape.values,
                norm.values,
                layer.index,
                index,
                numbers,
                c.rms_norm_eps,
            ),
        )

    def index_select(
        self, layer: LayerConfig, q: Tensor, weights: Tensor, rotary: Rotary[Tensor]
    ) -> Selection[Tensor]:
        c, lim, pairs = self.config, self.limits, self._pairs
        heads, d, topk = c.index_n_heads, c.index_head_dim, c.index_topk
        if (q.width, weights.width) != (heads * d, heads):
            self._refuse(
                f"the indexer of layer {layer.index} has {q.width} channels and {weights.width} weights; "
                f"the configuration asks for {heads * d} and {heads}"
            )
        scale = float(np.float32(d**-0.5 * heads**-0.5))
        out = self.tape.tensor("step", 1, 1 + topk)
        scratch = self.tape.scratch(
            native.index_scratch_bytes(
                self.layout.handle, layer.index, heads, topk, d, pairs, scale, lim.max_rows, lim.threads
            )
        )
        self.tape.add(
            "index_select",
            [q, weights, rotary.value],
            [out, scratch],
            lambda p, at: p.add_index_select(
                at(q),
                at(weights),
                at(rotary.value),
                at(out),
                at(scratch),
                layer.index,
                heads,
                topk,
                d,
                pairs,
                scale,
            ),
        )
        return Selection(out)

    def attend(
        self,
        layer: LayerConfig,
        q: Tensor,
        kv: Tensor,
        sink: NativeVector,
        rotary: Rotary[Tensor],
        selection: Selection[Tensor] | None,
    ) -> Tensor:
        c, lim, pairs = self.config, self.limits, self._pairs
        heads, d, eps = c.num_attention_heads, c.head_dim, c.rms_norm_eps
        self._check_vector(sink, heads)
        topk = c.index_topk if selection else 0
        out = self.tape.tensor("step", 1, heads * d)
        scratch = self.tape.scratch(
            native.attend_scratch_bytes(
                self.layout.handle,
                layer.index,
                heads,
                d,
                pairs,
                eps,
                topk,
                lim.max_context,
                lim.max_rows,
                lim.threads,
            )
        )
        chosen = selection.value if selection else None
        self.tape.add(
            "attend",
            [q, kv, rotary.value, *([chosen] if chosen else [])],
            [out, scratch],
            lambda p, at: p.add_attend(
                at(q),
                at(kv),
                at(rotary.value),
                at(chosen) if chosen else None,
                at(out),
                at(scratch),
                sink.values,
                topk,
                layer.index,
                heads,
                d,
                pairs,
                eps,
            ),
        )
        return out

    # ---- experts

    def route(
        self,
        layer: LayerConfig,
        x: Tensor,
        gate: NativeMatrix,
        bias: NativeVector | None,
        table: NativeExperts | None,
    ) -> Routing[Tensor]:
        c = self.config
        experts, chosen = c.n_routed_experts, c.num_experts_per_tok
        self._check_matrix(gate, experts, x.width)
        ids = None
        if bias is not None:
            self._check_vector(bias, experts)
        if table is not None:
            assert isinstance(table, NativeTable), "expert choice by token needs a table of ids"
            if table.ids.shape != (c.vocab_size, chosen):
                self._refuse(
                    f"{table.name} is {list(table.ids.shape)}; the configuration asks for "
                    f"{[c.vocab_size, chosen]}"
                )
            ids = table.ids
        (logits,) = self.linear(x, [gate])
        out = self.tape.tensor("step", 1, 2 * chosen)
        self.tape.add(
            "route",
            [logits],
            [out],
            lambda p, at: p.add_route(
                at(logits),
                at(out),
                bias.values if bias is not None else None,
                ids,
                experts,
                chosen,
                c.routed_scaling_factor,
                c.norm_topk_prob,
            ),
        )
        return Routing(out)

    def experts(
        self,
        x: Tensor,
        routing: Routing[Tensor],
        routed: Expert[NativeExperts],
        shared: Expert[NativeMatrix] | None,
    ) -> Tensor:
        c, lim = self.config, self.limits
        stacks = self._stacks(routed, x.width)
        w1, _, w2 = stacks
        own = [] if shared is None else [shared.w1, shared.w3, shared.w2]
        if own:
            self._check_network(own, own[0].rows, x.width)
        shared_inner = own[0].rows if own else 0
        packed = self._pack(x, w1.encoding)
        packed_shared = self._pack(x, own[0].encoding) if own else packed
        out = self.tape.tensor("step", 1, x.width)
        scratch = self.tape.scratch(
            native.experts_scratch_bytes(
                w1.count,
                c.num_experts_per_tok,
                x.width,
                w1.rows,
                shared_inner,
                c.swiglu_limit,
                w2.encoding,
                own[2].encoding if own else w2.encoding,
                lim.max_rows,
                lim.threads,
            )
        )
        self.tape.add(
            "experts",
            [packed, packed_shared, routing.value],
            [out, scratch],
            lambda p, at: p.add_experts(
                at(packed),
                at(packed_shared),
                at(routing.value),
                at(out),
                at(scratch),
                [stack.handle for stack in stacks],
                [m.handle for m in own],
                c.num_experts_per_tok,
                c.swiglu_limit,
            ),
        )
        return out

    def _stacks(
        self, routed: Expert[NativeExperts], hidden: int
    ) -> tuple[NativeStack, NativeStack, NativeStack]:
        w1, w3, w2 = routed.w1, routed.w3, routed.w2
        assert isinstance(w1, NativeStack), "experts are matrices, not a table of ids"
        assert isinstance(w3, NativeStack), "experts are matrices, not a table of ids"
        assert isinstance(w2, NativeStack), "experts are matrices, not a table of ids"
        inner = self.config.moe_intermediate_size
        self._check_network([w1, w3, w2], inner, hidden)
        for stack in (w1, w3, w2):
            if stack.count != self.config.n_routed_experts:
                self._refuse(
                    f"{stack.name} has {stack.count} experts; there are {self.config.n_routed_experts}"
                )
        return w1, w3, w2

    def _check_network(
        self, matrices: Sequence[NativeMatrix] | Sequence[NativeStack], inner: int, hidden: int
    ) -> None:
        w1, w3, w2 = matrices
        self._check_matrix(w1, inner, hidden)
        self._check_matrix(w3, inner, hidden)
        self._check_matrix(w2, hidden, inner)
        if w1.encoding is not w3.encoding:
            self._refuse(
                f"{w1.name} is {w1.format.name} and {w3.name} is {w3.format.name}; "
                f"gate and up must read the same encoding"
            )
