"""DeepSeek V4 (Flash, Pro and their small relatives): the whole architecture, once.

Reads like spec sections 3.1 to 3.8. `load_weights` is the bill of materials, `forward` the stack, `forward_mtp` the
draft block. Control flow depends on the configuration only, so the same functions are recorded into a native program
and run eagerly on NumPy. Owns no arithmetic, no cache, no file.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from finback.config import LayerConfig, ModelConfig
from finback.ops.base import E, Expert, Hyper, M, Ops, Rotary, T, V

M_co = TypeVar("M_co", covariant=True)
V_co = TypeVar("V_co", covariant=True)
E_co = TypeVar("E_co", covariant=True)


class WeightSource(Protocol[M_co, V_co, E_co]):
    """Hands out a checkpoint's tensors by official name (spec section 6) as handles of one backend."""

    def matrix(self, name: str) -> M_co:
        """A matrix [out, in] in its stored format, for products."""

    def rows(self, name: str) -> M_co:
        """A matrix of which single rows are looked up."""

    def vector(self, name: str) -> V_co:
        """A small f32 vector or table."""

    def experts(self, prefix: str, matrix: str) -> E_co:
        """Matrix `w1`, `w2` or `w3` of all routed experts below `prefix`."""

    def table(self, name: str) -> E_co:
        """Integer table [V, k] of expert ids."""


@dataclass(frozen=True, slots=True)
class Compressor(Generic[M, V]):
    wkv: M
    wgate: M
    ape: V
    norm: V


@dataclass(frozen=True, slots=True)
class Indexer(Generic[M, V]):
    wq_b: M
    weights_proj: M
    compressor: Compressor[M, V]


@dataclass(frozen=True, slots=True)
class Attention(Generic[M, V]):
    wq_a: M
    q_norm: V
    wq_b: M
    wkv: M
    kv_norm: V
    sink: V
    wo_a: M
    wo_b: M
    compressor: Compressor[M, V] | None
    indexer: Indexer[M, V] | None


@dataclass(frozen=True, slots=True)
class Moe(Generic[M, V, E]):
    gate: M
    bias: V | None
    table: E | None
    routed: Expert[E]
    shared: Expert[M] | None


@dataclass(frozen=True, slots=True)
class Block(Generic[M, V, E]):
    layer: LayerConfig
    hc_attn: Hyper[M, V]
    attn_norm: V
    attn: Attention[M, V]
    hc_ffn: Hyper[M, V]
    ffn_norm: V
    ffn: Moe[M, V, E]


@dataclass(frozen=True, slots=True)
class Mtp(Generic[M, V, E]):
    enorm: V
    hnorm: V
    e_proj: M
    h_proj: M
    block: Block[M, V, E]
    hc_head: Hyper[M, V]
    norm: V


@dataclass(frozen=True, slots=True)
class Weights(Generic[M, V, E]):
    embed: M
    blocks: tuple[Block[M, V, E], ...]
    hc_head: Hyper[M, V]
    norm: V
    head: M
    mtp: tuple[Mtp[M, V, E], ...]


# ---- bill of materials ------------------------------------------------------------------------------------------


def load_weights(config: ModelConfig, source: WeightSource[M, V, E]) -> Weights[M, V, E]:
    """Every tensor of the model, by official name."""
    blocks = tuple(_block(source, f"layers.{layer.index}", layer, config) for layer in config.layers)
    first = len(config.layers)
    mtp = tuple(_mtp(source, f"mtp.{layer.index - first}", layer, config) for layer in config.mtp_layers)
    return Weights(
        embed=source.rows("embed.weight"),
        blocks=blocks,
        hc_head=_hyper(source, "hc_head"),
        norm=source.vector("norm.weight"),
        head=source.matrix("head.weight"),
        mtp=mtp,
    )


def _hyper(source: WeightSource[M, V, E], prefix: str) -> Hyper[M, V]:
    return Hyper(source.matrix(f"{prefix}_fn"), source.vector(f"{prefix}_scale"), source.vector(f"{prefix}_base"))


def _compressor(source: WeightSource[M, V, E], prefix: str) -> Compressor[M, V]:
    return Compressor(
        wkv=source.matrix(f"{prefix}.wkv.weight"),
        wgate=source.matrix(f"{prefix}.wgate.weight"),
        ape=source.vector(f"{prefix}.ape"),
        norm=source.vector(f"{prefix}.norm.weight"),
    )


def _attention(source: WeightSource[M, V, E], p: str, layer: LayerConfig) -> Attention[M, V]:
    indexer = None
    if layer.has_indexer:
        indexer = Indexer(
            wq_b=source.matrix(f"{p}.indexer.wq_b.weight"),
            weights_proj=source.matrix(f"{p}.indexer.weights_proj.weight"),
            compressor=_compressor(source, f"{p}.indexer.compressor"),
        )
    return Attention(
        wq_a=source.matrix(f"{p}.wq_a.weight"),
        q_norm=source.vector(f"{p}.q_norm.weight"),
        wq_b=source.matrix(f"{p}.wq_b.weight"),
        wkv=source.matrix(f"{p}.wkv.weight"),
        kv_norm=source.vector(f"{p}.kv_norm.weight"),
        sink=source.vector(f"{p}.attn_sink"),
        wo_a=source.matrix(f"{p}.wo_a.weight"),
        wo_b=source.matrix(f"{p}.wo_b.weight"),
        compressor=_compressor(source, f"{p}.compressor") if layer.ratio else None,
        indexer=indexer,
    )


def _moe(source: WeightSource[M, V, E], p: str, layer: LayerConfig, config: ModelConfig) -> Moe[M, V, E]:
    def network(prefix: str) -> Expert[M]:
        return Expert(*(source.matrix(f"{prefix}.{w}.weight") for w in ("w1", "w3", "w2")))

    return Moe(
        gate=source.matrix(f"{p}.gate.weight"),
        bias=None if layer.hashed else source.vector(f"{p}.gate.bias"),
        table=source.table(f"{p}.gate.tid2eid") if layer.hashed else None,
        routed=Expert(*(source.experts(f"{p}.experts", w) for w in ("w1", "w3", "w2"))),
        shared=network(f"{p}.shared_experts") if config.n_shared_experts else None,
    )


def _block(source: WeightSource[M, V, E], p: str, layer: LayerConfig, config: ModelConfig) -> Block[M, V, E]:
    return Block(
        layer=layer,
        hc_attn=_hyper(source, f"{p}.hc_attn"),
        attn_norm=source.vector(f"{p}.attn_norm.weight"),
        attn=_attention(source, f"{p}.attn", layer),
        hc_ffn=_hyper(source, f"{p}.hc_ffn"),
        ffn_norm=source.vector(f"{p}.ffn_norm.weight"),
        ffn=_moe(source, f"{p}.ffn", layer, config),
    )


def _mtp(source: WeightSource[M, V, E], p: str, layer: LayerConfig, config: ModelConfig) -> Mtp[M, V, E]:
    return Mtp(
        enorm=source.vector(f"{p}.enorm.weight"),
        hnorm=source.vector(f"{p}.hnorm.weight"),
        e_proj=source.matrix(f"{p}.e_proj.weight"),
        h_proj=source.matrix(f"{p}.h_proj.weight"),
        block=_block(source, p, layer, config),
        hc_head=_hyper(source, f"{p}.hc_head"),
        norm=source.vector(f"{p}.norm.weight"),
    )


# ---- forward ----------------------------------------------------------------------------------------------------


def forward(ops: Ops[T, M, V, E], w: Weights[M, V, E]) -> tuple[T, T]:
    """The main stack (spec 3.1): logits [R, V] of the rows asked for, and the final streams [T, N, D] of all rows."""
    config = ops.config
    window, compressed = ops.rotary(config.rope), ops.rotary(config.compress_rope)
    streams = ops.embed(w.embed, config.hc_mult)
    for block in w.blocks:
        streams = run_block(ops, block, streams, compressed if block.layer.ratio else window)
    return head(ops, w, streams), streams


def head(ops: Ops[T, M, V, E], w: Weights[M, V, E], streams: T) -> T:
    """Logits [R, V] of the chosen rows of final streams [T, N, D]."""
    return ops.head(ops.take_rows(streams), w.hc_head, w.norm, w.head)


def forward_mtp(ops: Ops[T, M, V, E], w: Weights[M, V, E], streams: T) -> tuple[T, T]:
    """The draft block (spec 3.8): `streams` of position p with the embedding of token p + 1 predict token p + 2.

    The step's token ids are the following tokens; logits [R, V] and the block's streams, for chaining drafts.
    """
    mtp = w.mtp[0]
    (embedded,) = ops.linear(ops.norm(ops.embed(w.embed, 1), mtp.enorm), [mtp.e_proj])
    (carried,) = ops.linear(ops.norm(streams, mtp.hnorm), [mtp.h_proj])
    rotary = ops.rotary(ops.config.compress_rope if mtp.block.layer.ratio else ops.config.rope)
    streams = run_block(ops, mtp.block, ops.mtp_in(embedded, carried), rotary)
    return ops.head(ops.take_rows(streams), mtp.hc_head, mtp.norm, w.head), streams


def run_block(ops: Ops[T, M, V, E], block: Block[M, V, E], streams: T, rotary: Rotary[T]) -> T:
    """One layer: attention, then experts, each inside its hyper-connection."""
    x, mix = ops.hyper_in(streams, block.hc_attn, block.attn_norm)
    streams = ops.hyper_out(streams, attention(ops, block.layer, block.attn, x, rotary), mix)
    x, mix = ops.hyper_in(streams, block.hc_ffn, block.ffn_norm)
    return ops.hyper_out(streams, moe(ops, block.layer, block.ffn, x), mix)


def attention(
    ops: Ops[T, M, V, E], layer: LayerConfig, w: Attention[M, V], x: T, rotary: Rotary[T]
) -> T:
    """Spec 3.3: low-rank queries, one shared K = V row per token, compressed rows, grouped output projection."""
    c, i = w.compressor, w.indexer
    matrices = [w.wq_a, w.wkv]
    if c:
        matrices += [c.wkv, c.wgate]
    if i:
        matrices += [i.compressor.wkv, i.compressor.wgate, i.weights_proj]
    qa, kv, *rest = ops.linear(x, matrices)
    qr = ops.norm(qa, w.q_norm)
    q, *iq = ops.linear(qr, [w.wq_b, i.wq_b] if i else [w.wq_b])
    q, kv = ops.qkv_finish(layer, q, kv, w.kv_norm, rotary)
    selection = None
    if c:
        ops.compress(layer, "main", rest[0], rest[1], c.ape, c.norm, rotary)
    if i:
        ops.compress(layer, "index", rest[2], rest[3], i.compressor.ape, i.compressor.norm, rotary)
        selection = ops.index_select(layer, iq[0], rest[4], rotary)
    o = ops.attend(layer, q, kv, w.sink, rotary, selection)
    z = ops.grouped_linear(o, w.wo_a, ops.config.o_groups)
    (y,) = ops.linear(z, [w.wo_b])
    return y


def moe(ops: Ops[T, M, V, E], layer: LayerConfig, w: Moe[M, V, E], x: T) -> T:
    """Spec 3.7: hashed or scored routing, routed experts, one shared expert."""
    return ops.experts(x, ops.route(layer, x, w.gate, w.bias, w.table), w.routed, w.shared)
