"""config.json and generation_config.json of a Hugging Face folder -> `ModelConfig`, `GenerationDefaults`.

Owns both spellings of a V4 configuration (spec section 1.1): the published one with `compress_ratios` and flat rope
fields, and the one transformers writes with `layer_types`, `mlp_layer_types` and nested `rope_parameters`. Refuses,
naming file and key: other architectures, missing keys, and every switch whose value would change the arithmetic in a
way finback does not run. Ranges are `finback.config`'s.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from finback.config import (
    GenerationDefaults,
    LayerConfig,
    LayerKind,
    ModelConfig,
    RopeConfig,
    check_integer,
    check_real,
)
from finback.errors import ConfigError, ModelFileError, UnsupportedModelError, shown

CSA_RATIO: Final = (
    4  # the published configurations give ratios only; the overlapped kind is the one of ratio 4
)

_KINDS: Final[Mapping[str, LayerKind]] = {
    "sliding_attention": "window",
    "compressed_sparse_attention": "csa",
    "heavily_compressed_attention": "hca",
}
_INTEGERS: Final = (
    "vocab_size", "hidden_size", "num_attention_heads", "head_dim", "q_lora_rank", "o_lora_rank", "o_groups",
    "sliding_window", "index_n_heads", "index_head_dim", "index_topk", "n_routed_experts", "num_experts_per_tok",
    "n_shared_experts", "moe_intermediate_size", "hc_mult", "hc_sinkhorn_iters", "max_position_embeddings",
)  # fmt: skip
_REALS: Final = ("routed_scaling_factor", "swiglu_limit", "hc_eps", "rms_norm_eps")

# Switches that finback runs with one value only. A missing key means that value: transformers leaves some out.
_FIXED: Final[Mapping[str, tuple[object, ...]]] = {
    "scoring_func": ("sqrtsoftplus",),
    "topk_method": ("noaux_tc",),
    "hidden_act": ("silu",),
    "attention_bias": (False,),
    "mlp_bias": (False,),
    "tie_word_embeddings": (False,),
    "n_group": (None, 0, 1),
    "topk_group": (None, 0, 1),
}


def config_from_hf(
    raw: Mapping[str, object], path: Path, *, drafts: int, cache_rounding: bool = True
) -> ModelConfig:
    """The model that config.json at `path` describes, with `drafts` MTP blocks.

    `drafts` is counted by the caller from tensor names: `num_nextn_predict_layers` is not always right (spec
    section 12, point 13). Raises UnsupportedModelError for another architecture or an unsupported switch, and
    ModelFileError naming the key, the value and the allowed range.
    """
    reader = _Reader(raw, path)
    reader.check_architecture()
    try:
        return _build(reader, drafts, cache_rounding)
    except ConfigError as error:
        raise reader.refuse(error) from None


def generation_from_hf(raw: Mapping[str, object], path: Path) -> GenerationDefaults:
    """The sampling defaults that generation_config.json at `path` holds; ModelFileError naming a bad key."""
    reader = _Reader(raw, path)
    temperature = reader.optional_real("temperature")
    if reader.optional_bool("do_sample") is False:
        temperature = 0.0
    top_k = raw.get("top_k")
    try:
        if top_k is not None and (isinstance(top_k, bool) or not isinstance(top_k, int)):
            raise ConfigError("top_k", top_k, "whole numbers")
        return GenerationDefaults(
            temperature, reader.optional_real("top_p"), top_k, reader.optional_real("repetition_penalty")
        )
    except ConfigError as error:
        raise reader.refuse(error) from None


def token_ids(raw: Mapping[str, object], key: str, path: Path) -> tuple[int, ...]:
    """The token ids at `key`: none, one, or a list, in file order. ModelFileError for anything else."""
    value = raw.get(key)
    listed = value if isinstance(value, list) else [] if value is None else [value]
    try:
        return tuple(check_integer("token_id", item, key) for item in listed)
    except ConfigError as error:
        raise ModelFileError(path, f"{error}") from None


def _build(reader: _Reader, drafts: int, cache_rounding: bool) -> ModelConfig:
    raw, path = reader.raw, reader.path
    reader.check_fixed()
    check_integer("num_key_value_heads", reader.required("num_key_value_heads"))
    integers = {key: check_integer(key, reader.required(key)) for key in _INTEGERS}
    reals = {key: check_real(key, reader.required(key)) for key in _REALS}
    layers = _layers(reader)
    rotary = _rotary_width(reader, integers["head_dim"])
    rope, compress_rope = _ropes(reader)
    norm = reader.required("norm_topk_prob")
    if not isinstance(norm, bool):
        raise ConfigError("norm_topk_prob", norm, "true or false")
    count = len(layers)
    pads, begins = token_ids(raw, "pad_token_id", path), token_ids(raw, "bos_token_id", path)
    numbers: dict[str, Any] = {**integers, **reals}
    return ModelConfig(
        **numbers,
        qk_rope_head_dim=rotary,
        norm_topk_prob=norm,
        rope=rope,
        compress_rope=compress_rope,
        layers=layers,
        mtp_layers=tuple(_draft_layer(reader, count + i) for i in range(drafts)),
        cache_rounding=cache_rounding,
        bos_token_id=begins[0] if begins else None,
        eos_token_ids=token_ids(raw, "eos_token_id", path),
        pad_token_id=pads[0] if pads else None,
    )


# ---- layers -----------------------------------------------------------------------------------------------------


def _layers(reader: _Reader) -> tuple[LayerConfig, ...]:
    count = check_integer("num_hidden_layers", reader.required("num_hidden_layers"))
    kinds = (
        _published_kinds(reader, count) if "compress_ratios" in reader.raw else _listed_kinds(reader, count)
    )
    hashed = _hashed(reader, count)
    return tuple(LayerConfig(i, kind, ratio, hashed[i]) for i, (kind, ratio) in enumerate(kinds))


def layer_of_ratio(index: int, ratio: object, *, hashed: bool) -> LayerConfig:
    """A layer as the published configurations and GGUF describe it, by its compression ratio alone."""
    checked = check_integer("compress_ratio", ratio, "compress_ratios")
    kind: LayerKind = "window" if checked == 0 else "csa" if checked == CSA_RATIO else "hca"
    return LayerConfig(index, kind, checked, hashed)


def _published_kinds(reader: _Reader, count: int) -> list[tuple[LayerKind, int]]:
    """`compress_ratios` may be longer than the stack: draft blocks follow at its end (spec section 12)."""
    ratios = reader.sequence("compress_ratios", count)
    layers = [layer_of_ratio(i, ratio, hashed=False) for i, ratio in enumerate(ratios[:count])]
    return [(layer.kind, layer.ratio) for layer in layers]


def _listed_kinds(reader: _Reader, count: int) -> list[tuple[LayerKind, int]]:
    """`layer_types` with a rate per type; transformers fixes 4 and 128 where `compress_rates` is missing."""
    if "layer_types" not in reader.raw:
        raise ModelFileError(
            reader.path, "compress_ratios is missing; add one ratio per layer, or layer_types"
        )
    rates: dict[str, object] = {"compressed_sparse_attention": 4, "heavily_compressed_attention": 128}
    found = reader.raw.get("compress_rates")
    if found is not None:
        rates |= reader.mapping("compress_rates")
    kinds: list[tuple[LayerKind, int]] = []
    for name in reader.sequence("layer_types", count)[:count]:
        kind = _KINDS.get(name) if isinstance(name, str) else None
        if kind is None:
            raise ConfigError("layer_types", name, ", ".join(_KINDS))
        rate = 0
        if kind != "window":
            rate = check_integer("compress_ratio", rates[str(name)], f"compress_rates.{name}")
            if rate == 0:
                raise ConfigError(f"compress_rates.{name}", 0, "numbers from 1 up")
        kinds.append((kind, rate))
    return kinds


def _hashed(reader: _Reader, count: int) -> list[bool]:
    """Which layers route by token id: the first `num_hash_layers`, or those that `mlp_layer_types` calls so."""
    if "mlp_layer_types" not in reader.raw:
        first = check_integer("num_hash_layers", reader.required("num_hash_layers"))
        return [i < first for i in range(count)]
    types = reader.sequence("mlp_layer_types", count)[:count]
    for name in types:
        if name not in ("hash_moe", "moe"):
            raise ConfigError("mlp_layer_types", name, "hash_moe, moe")
    return [name == "hash_moe" for name in types]


def _draft_layer(reader: _Reader, index: int) -> LayerConfig:
    """A draft block; transformers' spelling has no ratio for it, and every published one has 0."""
    ratios = reader.raw.get("compress_ratios")
    ratio = ratios[index] if isinstance(ratios, list) and index < len(ratios) else 0
    return layer_of_ratio(index, ratio, hashed=False)


# ---- rotary -----------------------------------------------------------------------------------------------------


def _rotary_width(reader: _Reader, head_dim: int) -> int:
    """Rotated channels of a head: given, or as transformers has it, a fraction of the head."""
    if "qk_rope_head_dim" in reader.raw:
        return check_integer("qk_rope_head_dim", reader.raw["qk_rope_head_dim"])
    holder, key = reader.raw, "partial_rotary_factor"
    if holder.get(key) is None and isinstance(nested := reader.raw.get("rope_parameters"), Mapping):
        main = nested.get("main")
        holder = main if isinstance(main, Mapping) else holder
    fraction = holder.get(key)
    if fraction is None:
        raise ModelFileError(reader.path, "qk_rope_head_dim is missing; allowed: even numbers up to head_dim")
    if isinstance(fraction, bool) or not isinstance(fraction, (int, float)) or not 0 < fraction <= 1:
        raise ConfigError(key, fraction, "numbers above 0 and up to 1")
    width = int(head_dim * fraction)
    if width < 2 or width % 2:
        raise ConfigError(
            key, fraction, f"fractions of head_dim, {head_dim}, that are even numbers of channels"
        )
    return width


def _ropes(reader: _Reader) -> tuple[RopeConfig, RopeConfig]:
    """Rotary frequencies of window-only and of compressed layers (spec section 3.4)."""
    raw = reader.raw
    nested = reader.mapping("rope_parameters") if raw.get("rope_parameters") is not None else {}
    if "main" in nested and "compress" in nested:
        return tuple(  # type: ignore[return-value]
            _rope(reader, reader.mapping(key, nested, "rope_parameters."), None, f"rope_parameters.{key}")
            for key in ("main", "compress")
        )
    scaling_key = "rope_parameters" if nested else "rope_scaling"
    scaling = nested or (reader.mapping("rope_scaling") if raw.get("rope_scaling") is not None else {})
    main = RopeConfig(check_real("theta", reader.required("rope_theta"), "rope_theta"))
    theta = check_real("theta", reader.required("compress_rope_theta"), "compress_rope_theta")
    return main, _rope(reader, scaling, theta, scaling_key)


def _rope(reader: _Reader, scaling: Mapping[str, object], theta: float | None, where: str) -> RopeConfig:
    """One family; `theta` is None where `scaling` holds it as `rope_theta`."""

    def real(key: str, limit: str) -> float:
        return check_real(limit, reader.required(key, scaling, f"{where}."), f"{where}.{key}")

    theta = real("rope_theta", "theta") if theta is None else theta
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    if kind in ("default", None):
        return RopeConfig(theta)
    if kind != "yarn":
        raise UnsupportedModelError(
            reader.path, f"{where}.type is {shown(kind)}; finback runs yarn and default"
        )
    for key in ("attention_factor", "mscale"):
        if scaling.get(key) not in (None, 1, 1.0):
            problem = f"{where}.{key} is {shown(scaling[key])}; V4 rotates without a magnitude factor (1.0)"
            raise UnsupportedModelError(reader.path, problem)
    length = "original_max_position_embeddings"
    return RopeConfig(
        theta,
        factor=real("factor", "factor"),
        original_context=check_integer(
            "original_context", reader.required(length, scaling, f"{where}."), f"{where}.{length}"
        ),
        beta_fast=real("beta_fast", "beta_fast") if scaling.get("beta_fast") is not None else 32.0,
        beta_slow=real("beta_slow", "beta_slow") if scaling.get("beta_slow") is not None else 1.0,
    )


# ---- access -----------------------------------------------------------------------------------------------------


class _Reader:
    """A JSON object with its file's name: typed access that refuses in the file's own words."""

    def __init__(self, raw: Mapping[str, object], path: Path) -> None:
        self.raw, self.path = raw, path

    def refuse(self, error: ConfigError) -> ModelFileError:
        return ModelFileError(self.path, str(error))

    def required(self, key: str, holder: Mapping[str, object] | None = None, where: str = "") -> object:
        source = self.raw if holder is None else holder
        if source.get(key) is None:
            raise ModelFileError(
                self.path, f"{where}{key} is missing; a deepseek_v4 configuration must have it"
            )
        return source[key]

    def mapping(
        self, key: str, holder: Mapping[str, object] | None = None, where: str = ""
    ) -> Mapping[str, object]:
        value = self.required(key, holder, where)
        if not isinstance(value, Mapping):
            raise ConfigError(where + key, value, "an object")
        return value

    def sequence(self, key: str, length: int) -> Sequence[object]:
        """A list of at least `length` elements."""
        value = self.required(key)
        if not isinstance(value, list):
            raise ConfigError(key, value, "a list with one entry per layer")
        if len(value) < length:
            problem = (
                f"{key} has {len(value)} entries; the {length} layers of num_hidden_layers need one each"
            )
            raise ModelFileError(self.path, problem)
        return value

    def optional_real(self, key: str) -> float | None:
        value = self.raw.get(key)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise ModelFileError(self.path, f"{key} is {shown(value)}; allowed: a number")
        return float(value)

    def optional_bool(self, key: str) -> bool | None:
        value = self.raw.get(key)
        if value is not None and not isinstance(value, bool):
            raise ModelFileError(self.path, f"{key} is {shown(value)}; allowed: true or false")
        return value

    def check_architecture(self) -> None:
        found = self.raw.get("model_type")
        if found == "deepseek_v4":
            return
        if found == "deepseek_v41":
            problem = (
                "model_type is 'deepseek_v41': V4.1 is another architecture, which finback does not run yet"
            )
            raise UnsupportedModelError(self.path, problem)
        if found is None:
            raise ModelFileError(self.path, "model_type is missing; finback runs 'deepseek_v4'")
        raise UnsupportedModelError(self.path, f"model_type is {shown(found)}; finback runs 'deepseek_v4'")

    def check_fixed(self) -> None:
        for key, allowed in _FIXED.items():
            if key in self.raw and self.raw[key] not in allowed:
                problem = f"{key} is {shown(self.raw[key])}; finback runs V4 with {shown(allowed[-1])}"
                raise UnsupportedModelError(self.path, problem)
