"""GGUF metadata of a `deepseek4` file -> `ModelConfig`, `GenerationDefaults` (spec section 7).

Owns the keys, in ds4's and llama.cpp's use of them, and finding out where the draft block lies. Refuses, naming file
and key: other architectures, missing keys, values out of range, and switches that finback runs with one value only.
Types and single ranges are checked by the getters of `formats.gguf`, relations by `finback.config`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, Final

import numpy as np

from finback.config import INTEGERS, REALS, GenerationDefaults, LayerConfig, ModelConfig, RopeConfig
from finback.errors import ConfigError, ModelFileError, UnsupportedModelError, shown
from finback.formats.gguf import GgufFile
from finback.formats.names import GgufNames
from finback.weights.hf_config import layer_of_ratio

ARCHITECTURE: Final = "deepseek4"

# Field of ModelConfig (or of INTEGERS) -> key below "deepseek4.".
INTEGER_KEYS: Final = {
    "hidden_size": "embedding_length",
    "num_attention_heads": "attention.head_count",
    "num_key_value_heads": "attention.head_count_kv",
    "head_dim": "attention.key_length",
    "qk_rope_head_dim": "rope.dimension_count",
    "q_lora_rank": "attention.q_lora_rank",
    "o_lora_rank": "attention.output_lora_rank",
    "o_groups": "attention.output_group_count",
    "sliding_window": "attention.sliding_window",
    "index_n_heads": "attention.indexer.head_count",
    "index_head_dim": "attention.indexer.key_length",
    "index_topk": "attention.indexer.top_k",
    "n_routed_experts": "expert_count",
    "num_experts_per_tok": "expert_used_count",
    "n_shared_experts": "expert_shared_count",
    "moe_intermediate_size": "expert_feed_forward_length",
    "hc_mult": "hyper_connection.count",
    "hc_sinkhorn_iters": "hyper_connection.sinkhorn_iterations",
    "max_position_embeddings": "context_length",
}
REAL_KEYS: Final = {
    "routed_scaling_factor": "expert_weights_scale",
    "hc_eps": "hyper_connection.epsilon",
    "rms_norm_eps": "attention.layer_norm_rms_epsilon",
}
OTHER_KEYS: Final = {
    "num_hidden_layers": "block_count",
    "vocab_size": "vocab_size",
    "num_hash_layers": "hash_layer_count",
    "compress_ratios": "attention.compress_ratios",
    "swiglu_limit": "swiglu_clamp_exp",
    "beta_fast": "rope.scaling.yarn_beta_fast",
    "bos_token_id": "tokenizer.ggml.bos_token_id",
    "eos_token_id": "tokenizer.ggml.eos_token_id",
    "pad_token_id": "tokenizer.ggml.padding_token_id",
}
SQRT_SOFTPLUS: Final = 4  # of expert_gating_func
GENERATION_KEYS: Final = {name: f"finback.sampling.{name}" for name in ("temperature", "top_p", "top_k")}

_NEXTN_TENSOR: Final = re.compile(r"blk\.(\d{1,4})\.nextn\.")
_DRAFT_TENSOR: Final = re.compile(r"mtp\.(\d{1,4})\.")


def config_from_gguf(file: GgufFile, *, cache_rounding: bool = True) -> tuple[ModelConfig, GgufNames]:
    """The model a GGUF file holds, and how it names its tensors.

    Raises UnsupportedModelError for another architecture or an unsupported switch, and ModelFileError naming the
    key, the value and the allowed range.
    """
    check_architecture(file)
    count, drafts, names = _blocks(file)
    _check_fixed(file)
    numbers: dict[str, Any] = {
        field: file.get_int(_key(key), *INTEGERS[field])
        for field, key in INTEGER_KEYS.items()
        if field != "num_key_value_heads"
    }
    file.get_ints(_key(INTEGER_KEYS["num_key_value_heads"]), *INTEGERS["num_key_value_heads"])
    numbers |= {field: _real(file, key, field) for field, key in REAL_KEYS.items()}
    rope, compress_rope = _ropes(file)
    try:
        return ModelConfig(
            **numbers,
            vocab_size=_vocabulary(file),
            swiglu_limit=_swiglu_limit(file),
            norm_topk_prob=file.get_bool(_key("expert_weights_norm")),
            rope=rope,
            compress_rope=compress_rope,
            layers=_layers(file, count),
            mtp_layers=tuple(_draft_layer(file, count + i) for i in range(drafts)),
            cache_rounding=cache_rounding,
            bos_token_id=_token(file, "bos"),
            eos_token_ids=tuple(t for t in (_token(file, "eos"),) if t is not None),
            pad_token_id=_token(file, "padding"),
        ), names
    except ConfigError as error:
        raise ModelFileError(file.paths[0], f"{_spelled(error.field)} is {shown(error.value)}; "
                             f"allowed: {error.allowed}") from None  # fmt: skip


def generation_from_gguf(file: GgufFile) -> GenerationDefaults:
    """Sampling defaults that finback wrote into the file; GGUF itself has no keys for them."""
    temperature, top_p, top_k = (GENERATION_KEYS[name] for name in ("temperature", "top_p", "top_k"))
    return GenerationDefaults(
        temperature=file.get_float(temperature, 0, 100) if temperature in file.metadata else None,
        top_p=file.get_float(top_p, 0, 1) if top_p in file.metadata else None,
        top_k=file.get_int(top_k, 0, 1 << 22) if top_k in file.metadata else None,
    )


def check_architecture(file: GgufFile) -> None:
    """Refuses by name whatever is not `deepseek4`."""
    found = file.get_str("general.architecture")
    if found == ARCHITECTURE:
        return
    problem = f"general.architecture is {shown(found)}; finback runs {ARCHITECTURE!r}"
    if found == "deepseek41":
        problem = "general.architecture is 'deepseek41': V4.1 is another architecture, which finback does not run yet"
    raise UnsupportedModelError(file.paths[0], problem)


def draft_blocks(names: Iterable[str]) -> int:
    """How many `mtp.N.` blocks a list of tensor names holds: one more than the highest N."""
    numbers = [int(match[1]) for name in names if (match := _DRAFT_TENSOR.match(name))]
    return max(numbers, default=-1) + 1


def _key(name: str) -> str:
    return f"{ARCHITECTURE}.{name}"


def _real(file: GgufFile, key: str, limit: str, *, default: float | None = None) -> float:
    return _shortest(file.get_float(_key(key), *REALS[limit], default=default))


def _shortest(value: float) -> float:
    """What was meant by a number that a GGUF file holds in 32 bits: 1e-06, not 9.999999974752427e-07."""
    single = np.float32(value)
    return float(str(single)) if single == value else value


def _spelled(field: str) -> str:
    """The file's own name of a field of the configuration."""
    key = (INTEGER_KEYS | REAL_KEYS | OTHER_KEYS).get(field)
    return field if key is None else key if key.startswith("tokenizer.") else _key(key)


def _blocks(file: GgufFile) -> tuple[int, int, GgufNames]:
    """Layers of the main model, draft blocks, and where the latter are.

    llama.cpp counts the draft block among `block_count` and gives it `nextn` tensors; ds4 calls it `mtp.0`, in the
    same file or in one of its own, and leaves `block_count` alone.
    """
    blocks = file.get_int(_key("block_count"), *INTEGERS["num_hidden_layers"])
    promised = file.get_int(_key("nextn_predict_layers"), 0, 16, default=0)
    following = {int(match[1]) for name in file.tensors if (match := _NEXTN_TENSOR.match(name))}
    if following:
        count, drafts = min(following), len(following)
        if (
            following != set(range(count, count + drafts))
            or count < 1
            or blocks not in (count, count + drafts)
        ):
            problem = f"nextn tensors are in blocks {shown(sorted(following))}; expected at the end of {blocks} blocks"
            raise ModelFileError(file.paths[0], f"{_key('block_count')} is {blocks}, but {problem}")
        return count, drafts, GgufNames(layers=count)
    if 0 < promised < blocks and f"blk.{blocks - 1}.attn_norm.weight" not in file.tensors:
        blocks -= promised  # counted, and left out of the file
    return blocks, draft_blocks(file.tensors), GgufNames()


def _check_fixed(file: GgufFile) -> None:
    """Switches whose other values are another model."""
    head = INTEGERS["head_dim"]
    width = file.get_int(_key("attention.key_length"), *head)
    values = file.get_int(_key("attention.value_length"), *head, default=width)
    if values != width:
        problem = (
            f"{_key('attention.value_length')} is {values}; V4 keeps keys and values in one row of {width}"
        )
        raise ModelFileError(file.paths[0], problem)
    gating = file.get_int(_key("expert_gating_func"), 0, 1 << 16, default=SQRT_SOFTPLUS)
    if gating != SQRT_SOFTPLUS:
        problem = f"{_key('expert_gating_func')} is {gating}; finback runs {SQRT_SOFTPLUS} (sqrt-softplus)"
        raise UnsupportedModelError(file.paths[0], problem)
    for name in ("expert_group_count", "expert_group_used_count"):
        groups = file.get_int(_key(name), 0, 1 << 16, default=0)
        if groups > 1:
            raise UnsupportedModelError(
                file.paths[0], f"{_key(name)} is {groups}; V4 routes without groups (0 or 1)"
            )


def _layers(file: GgufFile, count: int) -> tuple[LayerConfig, ...]:
    key = _key("attention.compress_ratios")
    ratios = file.get_ints(key, *INTEGERS["compress_ratio"])
    if file.metadata.label(key)[0] != "[":
        ratios = ratios * count  # a single number stands for all layers
    if len(ratios) < count:
        raise ModelFileError(
            file.paths[0], f"{key} has {len(ratios)} values; the {count} layers need one each"
        )
    hashed = file.get_int(_key("hash_layer_count"), *INTEGERS["num_hash_layers"])
    return tuple(layer_of_ratio(i, ratios[i], hashed=i < hashed) for i in range(count))


def _draft_layer(file: GgufFile, index: int) -> LayerConfig:
    ratios = file.get_ints(_key("attention.compress_ratios"), *INTEGERS["compress_ratio"])
    return layer_of_ratio(index, ratios[index] if index < len(ratios) else 0, hashed=False)


def _swiglu_limit(file: GgufFile) -> float:
    """One number per block in the file, one in the model: they must agree, routed and shared."""
    keys = [_key("swiglu_clamp_exp")]
    if _key("swiglu_clamp_shexp") in file.metadata:
        keys.append(_key("swiglu_clamp_shexp"))
    found = {_shortest(value) for key in keys for value in file.get_floats(key, *REALS["swiglu_limit"])}
    if len(found) != 1:
        problem = f"{' and '.join(keys)} hold {shown(sorted(found))}; finback runs one limit for all experts"
        raise UnsupportedModelError(file.paths[0], problem)
    return found.pop()


def _vocabulary(file: GgufFile) -> int:
    """`vocab_size`, which llama.cpp leaves out: then the rows of the embedding."""
    key = _key("vocab_size")
    if key in file.metadata:
        return file.get_int(key, *INTEGERS["vocab_size"])
    embedding = file.tensors.get("token_embd.weight")
    if embedding is None:
        raise ModelFileError(file.paths[0], f"both {key} and tensor 'token_embd.weight' are missing")
    return embedding.shape[0]


def _ropes(file: GgufFile) -> tuple[RopeConfig, RopeConfig]:
    """Window-only layers turn without YaRN, compressed ones with it (spec section 3.4)."""
    main = RopeConfig(_real(file, "rope.freq_base", "theta"))
    theta = _real(file, "attention.compress_rope_freq_base", "theta")
    kind = file.get_str(_key("rope.scaling.type"), default="none")
    if kind == "none":
        # A missing type beside a factor is a damaged file, not one without YaRN.
        present = [
            name for name in file.metadata if name.startswith(_key("rope.scaling.")) and name[-5:] != ".type"
        ]
        if present and _key("rope.scaling.type") not in file.metadata:
            raise ModelFileError(
                file.paths[0], f"{_key('rope.scaling.type')} is missing beside {shown(present[0])}"
            )
        return main, RopeConfig(theta)
    if kind != "yarn":
        problem = f"{_key('rope.scaling.type')} is {shown(kind)}; finback runs 'yarn' and 'none'"
        raise UnsupportedModelError(file.paths[0], problem)
    fast = _real(file, "rope.scaling.yarn_beta_fast", "beta_fast", default=32.0)
    slow = _real(file, "rope.scaling.yarn_beta_slow", "beta_slow", default=1.0)
    length = file.get_int(_key("rope.scaling.original_context_length"), *INTEGERS["original_context"])
    factor = _real(file, "rope.scaling.factor", "factor")
    try:
        return main, RopeConfig(theta, factor, length, fast, slow)
    except ConfigError as error:
        problem = f"{_spelled(error.field)} is {shown(error.value)}; allowed: {error.allowed}"
        raise ModelFileError(file.paths[0], problem) from None


def _token(file: GgufFile, name: str) -> int | None:
    key = f"tokenizer.ggml.{name}_token_id"
    return file.get_int(key, *INTEGERS["token_id"]) if key in file.metadata else None
