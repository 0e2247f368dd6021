"""Weights that anyone can rebuild: every element from an integer hash of its tensor's name (spec section
11.4).

Owns the rule, the list of a model's tensors with their shapes (spec section 6), and the configuration of the
golden values. Nothing is random and nothing is stored, so a fixture only has to hold results. """

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from finback.config import LayerConfig, LayerKind, ModelConfig, RopeConfig

Tensors = dict[str, npt.NDArray[np.float32] | npt.NDArray[np.int64]]

KINDS: dict[int, LayerKind] = {0: "window", 4: "csa", 8: "hca", 128: "hca"}


def layers(ratios: tuple[int, ...], first: int, hashed: int) -> tuple[LayerConfig, ...]:
    """Layers numbered from `first`; those below `hashed` route by token id."""
    return tuple(LayerConfig(i, KINDS[r], r, i < hashed) for i, r in enumerate(ratios, first))


GOLDEN = ModelConfig(
    vocab_size=97,
    hidden_size=48,
    num_attention_heads=4,
    head_dim=32,
    qk_rope_head_dim=8,
    q_lora_rank=24,
    o_lora_rank=12,
    o_groups=2,
    sliding_window=16,
    index_n_heads=16,
    index_head_dim=16,
    index_topk=12,
    n_routed_experts=8,
    num_experts_per_tok=3,
    n_shared_experts=1,
    moe_intermediate_size=40,
    norm_topk_prob=True,
    routed_scaling_factor=1.5,
    swiglu_limit=0.7,
    hc_mult=4,
    hc_sinkhorn_iters=20,
    hc_eps=1e-6,
    rms_norm_eps=1e-6,
    rope=RopeConfig(10000.0),
    compress_rope=RopeConfig(160000.0, factor=16, original_context=256),
    max_position_embeddings=4096,
    layers=layers((0, 0, 4, 128, 4, 128), 0, 3),
    mtp_layers=layers((0,), 6, 3),
    cache_rounding=False,
)
"""The V4 model of spec section 11.4."""


def splitmix(x: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    with np.errstate(over="ignore"):
        z = x + np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return z ^ (z >> np.uint64(31))


def fnv1a(text: str) -> int:
    h = 0xCBF29CE484222325
    for byte in text.encode():
        h = (h ^ byte) * 0x100000001B3 & (1 << 64) - 1
    return h


def value(name: str, shape: tuple[int, ...], seed: int = 0) -> npt.NDArray[np.float32]:
    """The tensor `name` of model number `seed` (0: the golden values')."""
    start = np.uint64(fnv1a(name if seed == 0 else f"{seed}/{name}"))
    with np.errstate(over="ignore"):
        bits = splitmix(start + np.arange(int(np.prod(shape)), dtype=np.uint64)) >> np.uint64(40)
    u = (bits.astype(np.float64) / 2**24 - 0.5).reshape(shape)
    return _shaped(name, u, shape).astype(np.float32)


def _shaped(name: str, u: npt.NDArray[np.float64], shape: tuple[int, ...]) -> npt.NDArray[np.float64]:
    """u in -0.5 .. 0.5 as a plausible value for the kind of tensor that its name says."""
    kind = name.rsplit(".", 1)[-1]
    if kind.endswith("_fn"):
        return u * 0.5
    if kind.endswith("_scale"):
        return 0.5 + u * 0.5
    if kind.endswith("_base") or kind in ("attn_sink", "ape", "bias"):
        return u * 1.5
    if name.endswith("norm.weight"):
        return 1 + u * 0.4
    return u * 3.4 if name == "embed.weight" else u * 4 / shape[-1] ** 0.5


def shapes(c: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Name and shape of every float tensor of a model, the draft block included."""
    out: dict[str, tuple[int, ...]] = {
        "embed.weight": (c.vocab_size, c.hidden_size),
        "head.weight": (c.vocab_size, c.hidden_size),
        "norm.weight": (c.hidden_size,),
        **_head_mix(c, ""),
    }
    for layer in c.layers:
        out.update(_block(c, layer, f"layers.{layer.index}"))
    for i, layer in enumerate(c.mtp_layers):
        p, square = f"mtp.{i}", (c.hidden_size, c.hidden_size)
        out.update(_block(c, layer, p))
        out.update({f"{p}.{n}_proj.weight": square for n in "eh"})
        out.update({f"{p}.{n}.weight": (c.hidden_size,) for n in ("enorm", "hnorm", "norm")})
        out.update(_head_mix(c, f"{p}."))
    return out


def _head_mix(c: ModelConfig, prefix: str) -> dict[str, tuple[int, ...]]:
    n = c.hc_mult
    return {
        f"{prefix}hc_head_fn": (n, n * c.hidden_size),
        f"{prefix}hc_head_base": (n,),
        f"{prefix}hc_head_scale": (1,),
    }


def _block(c: ModelConfig, layer: LayerConfig, p: str) -> dict[str, tuple[int, ...]]:
    d, n, inner = c.hidden_size, c.hc_mult, c.moe_intermediate_size
    out: dict[str, tuple[int, ...]] = {}
    for part in ("attn", "ffn"):
        mixes = (2 + n) * n
        out |= {
            f"{p}.{part}_norm.weight": (d,),
            f"{p}.hc_{part}_fn": (mixes, n * d),
            f"{p}.hc_{part}_base": (mixes,),
            f"{p}.hc_{part}_scale": (3,),
        }
    out |= dict(_attention(c, layer, f"{p}.attn"))
    out[f"{p}.ffn.gate.weight"] = (c.n_routed_experts, d)
    if not layer.hashed:
        out[f"{p}.ffn.gate.bias"] = (c.n_routed_experts,)
    for expert in [f"experts.{e}" for e in range(c.n_routed_experts)] + [
        "shared_experts"
    ] * c.n_shared_experts:
        q = f"{p}.ffn.{expert}"
        out |= {f"{q}.w1.weight": (inner, d), f"{q}.w3.weight": (inner, d), f"{q}.w2.weight": (d, inner)}
    return out


def _attention(c: ModelConfig, layer: LayerConfig, a: str) -> Iterator[tuple[str, tuple[int, ...]]]:
    d, heads, width, q = c.hidden_size, c.num_attention_heads, c.head_dim, c.q_lora_rank
    inner = c.o_groups * c.o_lora_rank
    yield f"{a}.attn_sink", (heads,)
    yield f"{a}.wq_a.weight", (q, d)
    yield f"{a}.q_norm.weight", (q,)
    yield f"{a}.wq_b.weight", (heads * width, q)
    yield f"{a}.wkv.weight", (width, d)
    yield f"{a}.kv_norm.weight", (width,)
    yield f"{a}.wo_a.weight", (inner, heads * width // c.o_groups)
    yield f"{a}.wo_b.weight", (d, inner)
    if layer.ratio:
        yield from _compressor(c, layer, f"{a}.compressor", width)
    if layer.has_indexer:
        yield f"{a}.indexer.wq_b.weight", (c.index_n_heads * c.index_head_dim, q)
        yield f"{a}.indexer.weights_proj.weight", (c.index_n_heads, d)
        yield from _compressor(c, layer, f"{a}.indexer.compressor", c.index_head_dim)


def _compressor(
    c: ModelConfig, layer: LayerConfig, p: str, width: int
) -> Iterator[tuple[str, tuple[int, ...]]]:
    out = width * (2 if layer.kind == "csa" else 1)
    yield f"{p}.ape", (layer.ratio, out)
    yield f"{p}.wkv.weight", (out, c.hidden_size)
    yield f"{p}.wgate.weight", (out, c.hidden_size)
    yield f"{p}.norm.weight", (width,)


def weights(c: ModelConfig, seed: int = 0) -> Tensors:
    """Every tensor of the model by official name; tables of hashed layers as int64 [V, k]."""
    out: Tensors = {name: value(name, shape, seed) for name, shape in shapes(c).items()}
    for layer in c.layers:
        if layer.hashed:
            token, place = np.arange(c.vocab_size)[:, None], np.arange(c.num_experts_per_tok)[None]
            table = (token * 7 + place * 3 + layer.index) % c.n_routed_experts
            out[f"layers.{layer.index}.ffn.gate.tid2eid"] = table.astype(np.int64)
    return out


def prompt(n: int, vocab: int, seed: int = 0) -> npt.NDArray[np.int64]:
    """n token ids; seed 0 gives the golden values' prompt."""
    start = 1000 + seed * 1_000_000
    return (splitmix(np.arange(start, start + n, dtype=np.uint64)) % np.uint64(vocab)).astype(np.int64)
