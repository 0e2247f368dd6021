"""The types of the GGUF metadata keys that finback relies on.

Owns the table and the comparison, made when a file is opened: scores stored as bytes are refused then, not
read as floats later. Refuses to check values. A key that is not listed may have any type. Source:
architecture spec, section 7 (the prefix `deepseek4.` and its names); the keys GGUF writers agree on.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from finback.formats.metadata import FLOATS, INTEGERS, Stored, ValueType

# What a key may be, in the words of `word_of`. Integers may have any width and sign, floats any width.
INT: Final = ("int",)
FLOAT: Final = ("float",)
BOOL: Final = ("bool",)
STR: Final = ("str",)
INTS: Final = ("[int]",)
FLOATS_ARRAY: Final = ("[float]",)
STRS: Final = ("[str]",)
INT_PER_BLOCK: Final = ("int", "[int]")  # one for all blocks, or one each
FLOAT_PER_BLOCK: Final = ("float", "[float]")


def _spread(table: Mapping[tuple[str, ...], str]) -> Mapping[str, tuple[str, ...]]:
    return MappingProxyType({key: wanted for wanted, keys in table.items() for key in keys.split()})


_EXACT: Final = _spread(
    {
        STR: """general.architecture general.name general.type general.basename general.description
            general.author general.version general.finetune general.size_label general.license
            general.organization tokenizer.ggml.model tokenizer.ggml.pre tokenizer.chat_template
            tokenizer.huggingface.json""",
        INT: """general.alignment general.file_type general.quantization_version
            split.no split.count split.tensors.count tokenizer.ggml.token_type_count""",
        STRS: """general.tags general.languages tokenizer.chat_templates
            tokenizer.ggml.tokens tokenizer.ggml.merges tokenizer.ggml.added_tokens""",
        FLOATS_ARRAY: "tokenizer.ggml.scores",
        INTS: "tokenizer.ggml.token_type tokenizer.ggml.precompiled_charsmap",
        BOOL: """tokenizer.ggml.add_bos_token tokenizer.ggml.add_eos_token tokenizer.ggml.add_sep_token
            tokenizer.ggml.add_space_prefix tokenizer.ggml.remove_extra_whitespaces""",
    }
)

# After the architecture and its dot.
_OF_MODEL: Final = _spread(
    {
        INT: """block_count context_length embedding_length vocab_size hash_layer_count nextn_predict_layers
            leading_dense_block_count expert_count expert_used_count expert_shared_count
            expert_feed_forward_length expert_gating_func expert_group_count expert_group_used_count
            rope.dimension_count rope.scaling.original_context_length
            hyper_connection.count hyper_connection.sinkhorn_iterations
            attention.key_length attention.value_length attention.q_lora_rank attention.kv_lora_rank
            attention.output_lora_rank attention.output_group_count
            attention.indexer.head_count attention.indexer.key_length attention.indexer.top_k""",
        INT_PER_BLOCK: """feed_forward_length attention.head_count attention.head_count_kv
            attention.sliding_window attention.compress_ratios""",
        FLOAT: """rope.freq_base rope.scaling.factor rope.scaling.yarn_beta_fast rope.scaling.yarn_beta_slow
            attention.layer_norm_epsilon attention.layer_norm_rms_epsilon attention.compress_rope_freq_base
            expert_weights_scale hyper_connection.epsilon""",
        FLOAT_PER_BLOCK: "swiglu_clamp_exp swiglu_clamp_shexp",
        BOOL: "expert_weights_norm",
        STR: "rope.scaling.type",
    }
)


def wanted_types(key: str) -> tuple[str, ...] | None:
    """The words a key may match, None where any type is allowed."""
    exact = _EXACT.get(key)
    if exact is not None:
        return exact
    if key.startswith("tokenizer.ggml.") and key.endswith("_token_id"):
        return INT
    return _OF_MODEL.get(key.partition(".")[2])


def word_of(stored: Stored) -> str:
    """The family of a type, `int`, `float`, `bool`, `str` or `array`; in brackets for an array of it."""
    if stored.type in INTEGERS:
        family = "int"
    elif stored.type in FLOATS:
        family = "float"
    else:
        family = ValueType(stored.type).label
    return family if stored.length is None else f"[{family}]"
