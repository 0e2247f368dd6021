"""What a model is and how an engine is asked to run it: frozen records that check themselves.

Owns the names of every architectural number (docs/architecture.md, spec sections 1.1 and 7), their allowed ranges
(`INTEGERS`, `REALS`) and the relations between them. Refuses files: readers in `weights/` turn config.json or GGUF
metadata into keyword arguments; this module says whether they make sense, and a reader adds the file and its own
spelling of the field to what it says. Imports nothing heavy.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal, localcontext
from types import MappingProxyType
from typing import Final, Literal

from finback.errors import ConfigError

ARITHMETIC_VERSION = 1
"""Version of docs/exactness.md that the kernels implement; part of every saved state and benchmark record."""

LayerKind = Literal["window", "csa", "hca"]

INTEGERS: Final[Mapping[str, tuple[int, int]]] = MappingProxyType(
    {
        # Lowest and highest value. The highest are far above any known model and low enough that a product of
        # two of them, or a list of that length, cannot hurt.
        "vocab_size": (1, 1 << 22),
        "hidden_size": (1, 1 << 16),
        "num_hidden_layers": (1, 1024),
        "num_attention_heads": (1, 1024),
        "num_key_value_heads": (1, 1),  # K and V are one row, shared by all heads
        "head_dim": (2, 4096),
        "qk_rope_head_dim": (2, 4096),
        "q_lora_rank": (1, 1 << 16),
        "o_lora_rank": (1, 1 << 16),
        "o_groups": (1, 1024),
        "sliding_window": (1, 1 << 16),
        "compress_ratio": (0, 1 << 16),  # 0: a window-only layer
        "index_n_heads": (1, 1024),
        "index_head_dim": (2, 4096),
        "index_topk": (1, 1 << 16),
        "n_routed_experts": (1, 4096),
        "num_experts_per_tok": (1, 64),
        "n_shared_experts": (0, 1),
        "moe_intermediate_size": (1, 1 << 17),
        "num_hash_layers": (0, 1024),
        "hc_mult": (1, 8),
        "hc_sinkhorn_iters": (1, 1000),
        "max_position_embeddings": (1, 1 << 20),  # the range of our sine and cosine, docs/exactness.md section 8
        "original_context": (1, 1 << 31),
        "token_id": (0, (1 << 22) - 1),
    }
)

REALS: Final[Mapping[str, tuple[float, float]]] = MappingProxyType(
    {
        # Lowest and highest value, both allowed; never NaN or infinite.
        "routed_scaling_factor": (1e-6, 1e6),
        "swiglu_limit": (0.0, 1e6),  # 0: no clamp (docs/exactness.md section 13)
        "hc_eps": (1e-30, 0.1),
        "rms_norm_eps": (1e-30, 0.1),
        "theta": (1.001, 1e12),
        "factor": (1.0, 1e6),
        "beta_fast": (1e-3, 1e6),
        "beta_slow": (1e-3, 1e6),
    }
)


def check_integer(limit: str, value: object, field: str | None = None) -> int:
    """`value` as an int within `INTEGERS[limit]`; ConfigError naming `field` (default: `limit`) otherwise."""
    low, high = INTEGERS[limit]
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        allowed = str(low) if low == high else f"whole numbers from {low} to {high}"
        raise ConfigError(field or limit, value, allowed)
    return value


def check_real(limit: str, value: object, field: str | None = None) -> float:
    """`value` as a finite float within `REALS[limit]`; ConfigError naming `field` (default: `limit`) otherwise."""
    low, high = REALS[limit]
    number = value if isinstance(value, (int, float)) and not isinstance(value, bool) else math.nan
    if not low <= number <= high:  # NaN compares false
        raise ConfigError(field or limit, value, f"numbers from {low:g} to {high:g}")
    return float(number)


@dataclass(frozen=True, slots=True)
class RopeConfig:
    """Rotary frequencies of one family of layers; `factor` None means no YaRN (spec section 3.4)."""

    theta: float
    factor: float | None = None
    original_context: int = 65536
    beta_fast: float = 32.0
    beta_slow: float = 1.0

    def __post_init__(self) -> None:
        check_real("theta", self.theta)
        if self.factor is None:
            return
        check_real("factor", self.factor)
        check_integer("original_context", self.original_context)
        check_real("beta_fast", self.beta_fast)
        check_real("beta_slow", self.beta_slow)
        if self.beta_fast < self.beta_slow:
            raise ConfigError("beta_fast", self.beta_fast, f"not below beta_slow ({self.beta_slow:g})")

    def frequencies(self, channels: int) -> list[float]:
        """Frequencies of the `channels // 2` pairs, each the f64 nearest to a 50-digit decimal result.

        Decimal arithmetic is the same everywhere; the C library's pow and log are not (docs/exactness.md section 8).
        """
        pairs = channels // 2
        with localcontext() as ctx:
            ctx.prec = 50
            theta, n = Decimal(self.theta), Decimal(channels)
            base = [theta ** (Decimal(-2 * i) / n) for i in range(pairs)]
            if self.factor is None:
                return [float(f) for f in base]
            low, high = self._yarn_range(theta, n, channels)
            width = max(Decimal(high - low), Decimal("0.001"))
            ramp = [min(max((Decimal(i) - low) / width, Decimal(0)), Decimal(1)) for i in range(pairs)]
            factor = Decimal(self.factor)
            return [float(f / factor * r + f * (1 - r)) for f, r in zip(base, ramp, strict=True)]

    def _yarn_range(self, theta: Decimal, n: Decimal, channels: int) -> tuple[int, int]:
        """First and last pair of the ramp between kept and interpolated frequencies."""
        two_pi = Decimal("6.2831853071795864769252867665590057683943387987502")
        length = Decimal(self.original_context)

        def pair(rotations: float) -> Decimal:
            return n * (length / (Decimal(rotations) * two_pi)).ln() / (2 * theta.ln())

        low = int(pair(self.beta_fast).to_integral_value("ROUND_FLOOR"))
        high = int(pair(self.beta_slow).to_integral_value("ROUND_CEILING"))
        return max(low, 0), min(high, channels - 1)


@dataclass(frozen=True, slots=True)
class LayerConfig:
    """One block of the stack, the MTP block included (its `index` follows the last layer's)."""

    index: int
    kind: LayerKind
    ratio: int  # tokens per compressed row; 0 for window-only layers
    hashed: bool  # routed by the table of token ids

    def __post_init__(self) -> None:
        check_integer("compress_ratio", self.ratio, "compress_ratios")
        if (self.kind == "window") != (self.ratio == 0):
            raise ConfigError("compress_ratios", self.ratio, f"0 for window-only layers, above 0 for {self.kind}")

    @property
    def has_indexer(self) -> bool:
        return self.kind == "csa"


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Architecture of a DeepSeek-V4 model; names follow the official config.json (spec section 1.1)."""

    vocab_size: int
    hidden_size: int
    num_attention_heads: int
    head_dim: int
    qk_rope_head_dim: int
    q_lora_rank: int
    o_lora_rank: int
    o_groups: int
    sliding_window: int
    index_n_heads: int
    index_head_dim: int
    index_topk: int
    n_routed_experts: int
    num_experts_per_tok: int
    n_shared_experts: int
    moe_intermediate_size: int
    norm_topk_prob: bool
    routed_scaling_factor: float
    swiglu_limit: float
    hc_mult: int
    hc_sinkhorn_iters: int
    hc_eps: float
    rms_norm_eps: float
    rope: RopeConfig
    compress_rope: RopeConfig
    max_position_embeddings: int
    layers: tuple[LayerConfig, ...]
    mtp_layers: tuple[LayerConfig, ...]
    cache_rounding: bool  # what the checkpoint was trained with
    bos_token_id: int | None = None
    eos_token_ids: tuple[int, ...] = ()
    pad_token_id: int | None = None

    @property
    def num_hidden_layers(self) -> int:
        return len(self.layers)

    def __post_init__(self) -> None:
        for field in INTEGERS:
            if hasattr(self, field):
                check_integer(field, getattr(self, field))
        for field in REALS:
            if hasattr(self, field):
                check_real(field, getattr(self, field))
        self._check_attention()
        self._check_tokens()
        for index, layer in enumerate((*self.layers, *self.mtp_layers)):
            if layer.index != index:
                stack = "layers" if index < len(self.layers) else "mtp_layers"
                raise ConfigError(stack, layer.index, f"index {index} at that place of the stack")
        if self.num_experts_per_tok > self.n_routed_experts:
            allowed = f"from 1 to the number of routed experts, {self.n_routed_experts}"
            raise ConfigError("num_experts_per_tok", self.num_experts_per_tok, allowed)

    def _check_attention(self) -> None:
        """Head and rotary widths against each other (spec sections 3.3 to 3.6)."""
        rope, index = self.qk_rope_head_dim, self.index_head_dim
        if rope % 2 or rope > self.head_dim:
            allowed = f"even numbers from 2 to the head width, {self.head_dim}"
            raise ConfigError("qk_rope_head_dim", rope, allowed)
        if self.num_attention_heads % self.o_groups:
            allowed = f"divisors of the number of heads, {self.num_attention_heads}"
            raise ConfigError("o_groups", self.o_groups, allowed)
        if not any(layer.has_indexer for layer in (*self.layers, *self.mtp_layers)):
            return
        if index < rope:
            raise ConfigError("index_head_dim", index, f"from the rotary width, {rope}, up")
        if self.cache_rounding and index & (index - 1):
            allowed = "powers of two (its Hadamard transform needs one); or open with cache_rounding=False"
            raise ConfigError("index_head_dim", index, allowed)

    def _check_tokens(self) -> None:
        """Special tokens must be rows of the embedding."""
        named = [("bos_token_id", self.bos_token_id), ("pad_token_id", self.pad_token_id)]
        named += [("eos_token_id", token) for token in self.eos_token_ids]
        for field, token in named:
            if token is not None and not 0 <= token < self.vocab_size:
                raise ConfigError(field, token, f"ids of the vocabulary, 0 to {self.vocab_size - 1}")


@dataclass(frozen=True, slots=True)
class GenerationDefaults:
    """What a checkpoint asks to be sampled with (generation_config.json); None where it says nothing."""

    temperature: float | None = None  # 0 when the file says do_sample false
    top_p: float | None = None
    top_k: int | None = None
    repetition_penalty: float | None = None

    def __post_init__(self) -> None:
        limits = (
            ("temperature", self.temperature, 0.0, 100.0),
            ("top_p", self.top_p, 0.0, 1.0),
            ("repetition_penalty", self.repetition_penalty, 0.01, 100.0),
        )
        for field, value, low, high in limits:
            if value is not None and not low <= value <= high:
                raise ConfigError(field, value, f"numbers from {low:g} to {high:g}")
        if self.top_k is not None and not 0 <= self.top_k <= 1 << 22:
            raise ConfigError("top_k", self.top_k, f"whole numbers from 0 to {1 << 22}")
