"""The tensors a model consists of, from its configuration alone: official name, shape and role (spec section 6).

Owns the one list that opening checks a checkpoint against and that writing a model follows. Routed experts are one
entry per matrix and layer, whatever number of tensors a container spreads them over. Refuses to know files and
formats: which ones a role may have is a table here, which one a file chose is the checkpoint's business.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Final, Literal, NamedTuple

from finback.config import LayerConfig, ModelConfig

Role = Literal["matrix", "float", "vector", "table", "experts"]

ROLE_FORMATS: Final[Mapping[Role, frozenset[str] | None]] = MappingProxyType(
    {
        "matrix": None,  # any format with a product
        "experts": None,
        # Selection must not depend on rounding: the router and the hyper-connections stay in floating point.
        "float": frozenset({"F32", "F16", "BF16"}),
        "vector": frozenset({"F32", "F16", "BF16"}),
        "table": frozenset({"I32", "I64"}),
    }
)


class Expected(NamedTuple):
    """One tensor the model needs; `experts` is one of `n_routed_experts` matrices of that shape."""

    name: str  # official; "layers.3.ffn.experts.w1" for a stack of experts
    shape: tuple[int, ...]  # row-major; of one expert for a stack
    role: Role


def model_tensors(config: ModelConfig) -> Iterator[Expected]:
    """Every tensor of the main model, in the order of a forward pass."""
    hidden, vocab = config.hidden_size, config.vocab_size
    yield Expected("embed.weight", (vocab, hidden), "matrix")
    for layer in config.layers:
        yield from block_tensors(config, layer, f"layers.{layer.index}")
    yield from _head(config, "hc_head")
    yield Expected("norm.weight", (hidden,), "vector")
    yield Expected("head.weight", (vocab, hidden), "matrix")


def draft_tensors(config: ModelConfig) -> Iterator[Expected]:
    """Every tensor of the draft (MTP) blocks, spec section 3.8."""
    hidden, first = config.hidden_size, len(config.layers)
    for layer in config.mtp_layers:
        prefix = f"mtp.{layer.index - first}"
        for name in ("enorm", "hnorm"):
            yield Expected(f"{prefix}.{name}.weight", (hidden,), "vector")
        for name in ("e_proj", "h_proj"):
            yield Expected(f"{prefix}.{name}.weight", (hidden, hidden), "matrix")
        yield from block_tensors(config, layer, prefix)
        yield from _head(config, f"{prefix}.hc_head")
        yield Expected(f"{prefix}.norm.weight", (hidden,), "vector")


def block_tensors(config: ModelConfig, layer: LayerConfig, prefix: str) -> Iterator[Expected]:
    """One layer, hyper-connections included."""
    hidden = config.hidden_size
    yield from _hyper(config, f"{prefix}.hc_attn")
    yield Expected(f"{prefix}.attn_norm.weight", (hidden,), "vector")
    yield from _attention(config, layer, f"{prefix}.attn")
    yield from _hyper(config, f"{prefix}.hc_ffn")
    yield Expected(f"{prefix}.ffn_norm.weight", (hidden,), "vector")
    yield from _moe(config, layer, f"{prefix}.ffn")


def _hyper(config: ModelConfig, prefix: str) -> Iterator[Expected]:
    mix = (2 + config.hc_mult) * config.hc_mult
    yield Expected(f"{prefix}_fn", (mix, config.hc_mult * config.hidden_size), "float")
    yield Expected(f"{prefix}_base", (mix,), "vector")
    yield Expected(f"{prefix}_scale", (3,), "vector")


def _head(config: ModelConfig, prefix: str) -> Iterator[Expected]:
    streams = config.hc_mult
    yield Expected(f"{prefix}_fn", (streams, streams * config.hidden_size), "float")
    yield Expected(f"{prefix}_base", (streams,), "vector")
    yield Expected(f"{prefix}_scale", (1,), "vector")


def _attention(config: ModelConfig, layer: LayerConfig, prefix: str) -> Iterator[Expected]:
    hidden, heads, width = config.hidden_size, config.num_attention_heads, config.head_dim
    rank, out = config.q_lora_rank, config.o_groups * config.o_lora_rank
    yield Expected(f"{prefix}.wq_a.weight", (rank, hidden), "matrix")
    yield Expected(f"{prefix}.q_norm.weight", (rank,), "vector")
    yield Expected(f"{prefix}.wq_b.weight", (heads * width, rank), "matrix")
    yield Expected(f"{prefix}.wkv.weight", (width, hidden), "matrix")
    yield Expected(f"{prefix}.kv_norm.weight", (width,), "vector")
    yield Expected(f"{prefix}.attn_sink", (heads,), "vector")
    yield Expected(f"{prefix}.wo_a.weight", (out, heads * width // config.o_groups), "matrix")
    yield Expected(f"{prefix}.wo_b.weight", (hidden, out), "matrix")
    if layer.ratio:
        yield from _compressor(config, layer, f"{prefix}.compressor", width)
    if layer.has_indexer:
        index_heads, index = config.index_n_heads, config.index_head_dim
        yield Expected(f"{prefix}.indexer.wq_b.weight", (index_heads * index, rank), "matrix")
        yield Expected(f"{prefix}.indexer.weights_proj.weight", (index_heads, hidden), "matrix")
        yield from _compressor(config, layer, f"{prefix}.indexer.compressor", index)


def _compressor(config: ModelConfig, layer: LayerConfig, prefix: str, width: int) -> Iterator[Expected]:
    """Overlapping windows (CSA) have channels for the previous and for the current group (spec section 3.5)."""
    channels = width * (2 if layer.kind == "csa" else 1)
    yield Expected(f"{prefix}.wkv.weight", (channels, config.hidden_size), "matrix")
    yield Expected(f"{prefix}.wgate.weight", (channels, config.hidden_size), "matrix")
    yield Expected(f"{prefix}.ape", (layer.ratio, channels), "vector")
    yield Expected(f"{prefix}.norm.weight", (width,), "vector")


def _moe(config: ModelConfig, layer: LayerConfig, prefix: str) -> Iterator[Expected]:
    hidden, inner = config.hidden_size, config.moe_intermediate_size
    yield Expected(f"{prefix}.gate.weight", (config.n_routed_experts, hidden), "float")
    if layer.hashed:
        yield Expected(f"{prefix}.gate.tid2eid", (config.vocab_size, config.num_experts_per_tok), "table")
    else:
        yield Expected(f"{prefix}.gate.bias", (config.n_routed_experts,), "vector")
    shapes = {"w1": (inner, hidden), "w3": (inner, hidden), "w2": (hidden, inner)}
    for matrix, shape in shapes.items():
        yield Expected(f"{prefix}.experts.{matrix}", shape, "experts")
    if config.n_shared_experts:
        for matrix, shape in shapes.items():
            yield Expected(f"{prefix}.shared_experts.{matrix}.weight", shape, "matrix")
