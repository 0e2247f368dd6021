"""What a model is and how an engine is asked to run it: frozen records that check themselves.

Owns the names of every architectural number (docs/architecture.md, spec sections 1.1 and 7) and their allowed ranges.
Refuses files: readers in `weights/` turn config.json or GGUF metadata into keyword arguments and this module says
whether they make sense. Imports nothing heavy.
"""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal, localcontext
from typing import Literal

ARITHMETIC_VERSION = 1
"""Version of docs/exactness.md that the kernels implement; part of every saved state and benchmark record."""

LayerKind = Literal["window", "csa", "hca"]


@dataclass(frozen=True, slots=True)
class RopeConfig:
    """Rotary frequencies of one family of layers; `factor` None means no YaRN (spec section 3.4)."""

    theta: float
    factor: float | None = None
    original_context: int = 65536
    beta_fast: float = 32.0
    beta_slow: float = 1.0

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
