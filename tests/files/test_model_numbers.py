"""Nonsense model numbers (case H13): refused naming the key and the allowed range, from GGUF and from config.json."""

from __future__ import annotations

import json
import math
import time
from pathlib import Path
from typing import Any

import pytest
from tests.tiny import TINY, official_config, weights, write_safetensors
from tests.weights import models

from finback.errors import ModelFileError, UnsupportedModelError
from finback.weights.checkpoint import open_checkpoint

# ---- GGUF -------------------------------------------------------------------------------------------------------

GGUF_NUMBERS: list[tuple[str, str, Any]] = [
    *(("attention.head_count", "u32", n) for n in (0, 2**31, 2**32 - 1)),
    *(("attention.head_count_kv", "u32", n) for n in (0, 2, 3)),
    *(("block_count", "u32", n) for n in (0, 2**31, 2**32 - 1)),
    ("block_count", "i32", -1),
    ("block_count", "u64", 2**64 - 1),
    ("expert_count", "u32", 0),
    ("expert_count", "u32", 2**31),
    ("expert_used_count", "u32", 0),
    ("expert_used_count", "u32", 9),
    ("expert_shared_count", "u32", 2),
    ("expert_feed_forward_length", "u32", 0),
    ("expert_gating_func", "u32", 2),
    ("expert_group_count", "u32", 4),
    ("expert_weights_scale", "f32", 0.0),
    ("expert_weights_scale", "f32", math.inf),
    ("embedding_length", "u32", 0),
    ("embedding_length", "u32", 2**31),
    ("vocab_size", "u32", 0),
    ("vocab_size", "u32", 2**32 - 1),
    ("attention.compress_ratios", "[i32]", [0, 0, -4, 8, 4, 8]),
    ("attention.compress_ratios", "[u32]", [0, 0, 65537, 8, 4, 8]),
    ("attention.compress_ratios", "[u32]", [0, 0, 4]),
    ("attention.sliding_window", "u32", 0),
    ("attention.sliding_window", "u32", 2**31),
    ("attention.key_length", "u32", 0),
    ("attention.value_length", "u32", 64),
    ("attention.q_lora_rank", "u32", 0),
    ("attention.output_lora_rank", "u32", 0),
    ("attention.output_group_count", "u32", 0),
    ("attention.output_group_count", "u32", 3),
    ("rope.dimension_count", "u32", 0),
    ("rope.dimension_count", "u32", 7),
    ("rope.dimension_count", "u32", 34),
    *(("attention.layer_norm_rms_epsilon", "f32", x) for x in (math.nan, 0.0, -0.5, math.inf, 1.0)),
    *(("hyper_connection.epsilon", "f32", x) for x in (math.nan, 0.0)),
    *(("hyper_connection.count", "u32", n) for n in (0, 9, 2**31)),
    *(("hyper_connection.sinkhorn_iterations", "u32", n) for n in (0, 1001, 2**32 - 1)),
    ("attention.indexer.head_count", "u32", 0),
    ("attention.indexer.key_length", "u32", 48),
    ("attention.indexer.key_length", "u32", 4),
    ("attention.indexer.top_k", "u32", 0),
    ("hash_layer_count", "u32", 2**31),
    ("context_length", "u32", 0),
    ("context_length", "u32", 2**20 + 1),
    ("context_length", "u64", 2**40),
    ("rope.freq_base", "f32", 0.0),
    ("rope.freq_base", "f32", math.nan),
    ("attention.compress_rope_freq_base", "f32", -1.0),
    ("rope.scaling.factor", "f32", 0.0),
    ("rope.scaling.type", "str", "linear"),
    ("rope.scaling.original_context_length", "u32", 0),
    ("rope.scaling.yarn_beta_fast", "f32", 0.5),
    ("swiglu_clamp_exp", "[f32]", [10.0, 10.0, 7.0, 10.0, 10.0, 10.0]),
    ("swiglu_clamp_exp", "f32", -0.5),
    ("nextn_predict_layers", "u32", 2**31),
]
REQUIRED = sorted(
    key for key in models.gguf_metadata(TINY)
    if not key.endswith(("nextn_predict_layers", "value_length", "expert_gating_func", "vocab_size", "clamp_shexp",
                         "yarn_beta_fast", "yarn_beta_slow"))
)  # fmt: skip


def refusal(path: Path) -> str:
    """The one sentence a bad file gets, within the general limits of a bad file."""
    start = time.monotonic()
    with pytest.raises(ModelFileError) as caught:
        open_checkpoint(path)
    assert time.monotonic() - start < 5
    message = str(caught.value)
    assert len(message) < 400
    assert caught.value.exit_code == 2
    return message


def gguf(tmp_path: Path, key: str, value: tuple[str, Any] | None) -> Path:
    """TINY's metadata but for one key. Only the embedding is written: numbers are checked before tensors."""

    def change(keys: dict[str, tuple[str, Any]], tensors: dict[str, models.Array]) -> None:
        embedding = tensors["token_embd.weight"]
        tensors.clear()
        tensors["token_embd.weight"] = embedding
        if value is None:
            keys.pop(key, None)
        else:
            keys[key] = value

    return models.write_gguf(tmp_path / "model.gguf", TINY, change=change)


@pytest.mark.parametrize(("key", "kind", "value"), GGUF_NUMBERS, ids=lambda v: str(v)[:24])
def test_gguf_numbers_are_refused_by_key(key: str, kind: str, value: Any, tmp_path: Path) -> None:
    message = refusal(gguf(tmp_path, f"deepseek4.{key}", (kind, value)))
    assert message.startswith(str(tmp_path / "model.gguf"))
    assert f"deepseek4.{key}" in message
    found = value if not isinstance(value, list) else next((v for v in value if not 0 <= v <= 65536), "")
    assert str(found) in message


@pytest.mark.parametrize("key", REQUIRED)
def test_gguf_keys_are_required(key: str, tmp_path: Path) -> None:
    message = refusal(gguf(tmp_path, key, None))
    assert key in message
    assert "missing" in message


def test_heads_that_do_not_fill_their_groups_name_both_numbers(tmp_path: Path) -> None:
    message = refusal(gguf(tmp_path, "deepseek4.attention.head_count", ("u32", 3)))
    assert (
        "deepseek4.attention.output_group_count is 2; allowed: divisors of the number of heads, 3" in message
    )


def test_gguf_without_architecture(tmp_path: Path) -> None:
    path = gguf(tmp_path, "general.name", ("str", "x"))
    data = path.read_bytes().replace(b"general.architecture", b"general.architecturx")
    path.write_bytes(data)
    assert "general.architecture" in refusal(path)


@pytest.mark.parametrize("name", ["llama", "deepseek2", "deepseek41", ""])
def test_other_architectures_are_refused_by_name(name: str, tmp_path: Path) -> None:
    path = gguf(tmp_path, "general.architecture", ("str", name))
    with pytest.raises(UnsupportedModelError, match=repr(name)):
        open_checkpoint(path)


def test_gguf_numbers_may_be_of_any_width(tmp_path: Path) -> None:
    """Array or single number, signed or unsigned; ratios may go on past the layers."""

    def change(keys: dict[str, tuple[str, Any]], tensors: dict[str, models.Array]) -> None:
        keys["deepseek4.block_count"] = ("i64", 6)
        keys["deepseek4.attention.head_count_kv"] = ("[i32]", [1] * 6)
        keys["deepseek4.attention.compress_ratios"] = ("[i64]", [0, 0, 4, 8, 4, 8, 0, 0, 0])
        keys["deepseek4.swiglu_clamp_exp"] = ("f32", TINY.swiglu_limit)
        del keys["deepseek4.swiglu_clamp_shexp"]
        del keys["deepseek4.vocab_size"]
        keys["deepseek4.attention.layer_norm_rms_epsilon"] = ("f64", 1e-6)

    opened = open_checkpoint(models.write_gguf(tmp_path / "model.gguf", TINY, change=change))
    assert opened.config.layers == TINY.layers
    assert opened.config.vocab_size == TINY.vocab_size
    assert opened.config.rms_norm_eps == 1e-6


def test_one_ratio_stands_for_all_layers(tmp_path: Path) -> None:
    def change(keys: dict[str, tuple[str, Any]], tensors: dict[str, models.Array]) -> None:
        keys["deepseek4.attention.compress_ratios"] = ("u32", 0)
        for name in [n for n in tensors if "compressor" in n or "indexer" in n]:
            del tensors[name]

    opened = open_checkpoint(models.write_gguf(tmp_path / "model.gguf", TINY, change=change))
    assert {layer.kind for layer in opened.config.layers} == {"window"}


def test_more_blocks_than_tensors_name_the_missing_tensor(tmp_path: Path) -> None:
    def change(keys: dict[str, tuple[str, Any]], tensors: dict[str, models.Array]) -> None:
        keys["deepseek4.block_count"] = ("u32", 1000)
        keys["deepseek4.attention.compress_ratios"] = ("[u32]", [0] * 1000)
        for name in [n for n in tensors if "compressor" in n or "indexer" in n]:
            del tensors[name]

    message = refusal(models.write_gguf(tmp_path / "model.gguf", TINY, change=change))
    assert "tensor 'blk.6." in message
    assert "missing" in message


# ---- config.json ------------------------------------------------------------------------------------------------

HF_NUMBERS: list[tuple[str, Any]] = [
    *(("num_attention_heads", n) for n in (0, -1, 2**40, 4.0, "4", True, [4], {})),
    *(("num_key_value_heads", n) for n in (0, 2, 4)),
    *(("num_hidden_layers", n) for n in (0, -6, 2**31, 2**32 - 1, 8)),
    ("n_routed_experts", 0),
    ("num_experts_per_tok", 9),
    ("num_experts_per_tok", 0),
    ("n_shared_experts", 3),
    ("hidden_size", 0),
    ("vocab_size", 0),
    ("vocab_size", 10**30),
    ("compress_ratios", [0, 0, -4, 8, 4, 8]),
    ("compress_ratios", [0, 0, 65537, 8, 4, 8]),
    ("compress_ratios", [0, 0, 4.5, 8, 4, 8]),
    ("compress_ratios", 4),
    ("compress_ratios", []),
    ("sliding_window", 0),
    ("qk_rope_head_dim", 7),
    ("qk_rope_head_dim", 34),
    ("qk_rope_head_dim", 0),
    *(("rms_norm_eps", x) for x in (math.nan, 0, 0.0, -1e-6, math.inf, "1e-6")),
    ("hc_eps", math.nan),
    ("hc_mult", 9),
    ("hc_mult", 0),
    ("hc_sinkhorn_iters", 0),
    ("o_groups", 3),
    ("index_head_dim", 24),
    ("index_topk", 0),
    ("max_position_embeddings", 0),
    ("max_position_embeddings", 2**31),
    ("routed_scaling_factor", math.nan),
    ("swiglu_limit", -1),
    ("rope_theta", 0),
    ("compress_rope_theta", math.nan),
    ("norm_topk_prob", 1),
    ("eos_token_id", 10**9),
    ("eos_token_id", "1"),
    ("eos_token_id", [1, -1]),
    ("bos_token_id", 5000),
    ("num_hash_layers", -1),
    ("scoring_func", "softmax"),
    ("topk_method", "greedy"),
    ("hidden_act", "gelu"),
    ("attention_bias", True),
    ("tie_word_embeddings", True),
    ("n_group", 8),
    ("rope_scaling", {"type": "linear", "factor": 2}),
    ("rope_scaling", {"type": "yarn"}),
    ("rope_scaling", 16),
    ("quantization_config", {"quant_method": "awq"}),
    ("quantization_config", {"quant_method": "fp8", "weight_block_size": [0, 128]}),
    ("model_type", "deepseek_v3"),
    ("model_type", "deepseek_v41"),
]
HF_REQUIRED = [
    key for key in official_config(TINY)
    if key not in ("architectures", "num_nextn_predict_layers", "bos_token_id", "pad_token_id", "eos_token_id",
                   "rope_scaling", "scoring_func", "topk_method", "hidden_act", "tie_word_embeddings",
                   "attention_bias", "torch_dtype")
]  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    write_safetensors(folder / "model.safetensors", weights(TINY))
    return folder


@pytest.mark.parametrize(("key", "value"), HF_NUMBERS, ids=lambda v: str(v)[:24])
def test_json_numbers_are_refused_by_key(key: str, value: Any, folder: Path) -> None:
    models.write_config(folder, official_config(TINY) | {key: value})
    message = refusal(folder)
    assert message.startswith(str(folder / "config.json"))
    assert key in message


@pytest.mark.parametrize("key", HF_REQUIRED)
def test_json_keys_are_required(key: str, folder: Path) -> None:
    config = official_config(TINY)
    del config[key]
    models.write_config(folder, config)
    message = refusal(folder)
    assert key in message
    assert "missing" in message


TRANSFORMERS_NUMBERS: list[tuple[str, Any]] = [
    ("layer_types", ["sliding_attention"] * 5),
    ("layer_types", ["sliding_attention"] * 5 + ["full_attention"]),
    ("layer_types", [1] * 6),
    ("mlp_layer_types", ["dense"] * 6),
    ("compress_rates", {"compressed_sparse_attention": 0}),
    ("compress_rates", {"heavily_compressed_attention": -8}),
    ("compress_rates", [4, 8]),
    ("partial_rotary_factor", 0),
    ("partial_rotary_factor", 1.5),
    ("partial_rotary_factor", 0.1),
    ("rope_parameters", {"main": {}, "compress": {}}),
    ("rope_parameters", {"main": {"rope_theta": 1e4}, "compress": {"rope_theta": 1e4, "rope_type": "llama3"}}),
    ("rope_parameters", {"main": {"rope_theta": 1e4}, "compress": {
        "rope_theta": 1e4, "rope_type": "yarn", "factor": 2, "original_max_position_embeddings": 256,
        "attention_factor": 1.3}}),
    ("mlp_bias", True),
]  # fmt: skip


@pytest.mark.parametrize(("key", "value"), TRANSFORMERS_NUMBERS, ids=lambda v: str(v)[:24])
def test_numbers_in_the_spelling_of_transformers(key: str, value: Any, folder: Path) -> None:
    models.write_config(folder, models.transformers_config(TINY) | {key: value})
    assert key in refusal(folder)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "not valid JSON"),
        ("[1, 2]", "a JSON object is expected"),
        ('{"model_type": "deepseek_v4",', "not valid JSON"),
        ('{"a": 1, "a": 2}', "gives key 'a' twice"),
        ("[" * 100_000, "not valid JSON"),
        ('{"a": ' * 50_000, "not valid JSON"),
        ('{"n": ' + "9" * 5000 + "}", "not valid JSON"),
        (" " * (2 << 20), "allowed are"),
    ],
    ids=range(8),
)
def test_broken_json_is_refused(text: str, message: str, folder: Path) -> None:
    (folder / "config.json").write_text(text)
    found = refusal(folder)
    assert message in found
    assert "config.json" in found


@pytest.mark.parametrize(
    ("values", "key"),
    [({"temperature": -1}, "temperature"), ({"temperature": "hot"}, "temperature"), ({"top_p": 1.5}, "top_p"),
     ({"top_p": math.nan}, "top_p"), ({"top_k": -5}, "top_k"), ({"top_k": 1.5}, "top_k"),
     ({"do_sample": "yes"}, "do_sample"), ({"eos_token_id": [1, 10**8]}, "eos_token_id")],
)  # fmt: skip
def test_sampling_defaults_are_checked(values: dict[str, Any], key: str, folder: Path) -> None:
    models.write_config(folder, official_config(TINY))
    sampling = folder / "generation_config.json"
    sampling.write_text(json.dumps(values))
    try:
        message = refusal(folder)
    finally:
        sampling.unlink()
    assert key in message


def test_sampling_defaults_are_read(folder: Path) -> None:
    models.write_config(folder, official_config(TINY))
    sampling = folder / "generation_config.json"
    given = {"temperature": 0.6, "top_p": 0.9, "top_k": 40, "do_sample": True, "eos_token_id": [1, 2, 7]}
    sampling.write_text(json.dumps(given))
    opened = open_checkpoint(folder)
    sampling.write_text(json.dumps(given | {"do_sample": False}))
    greedy = open_checkpoint(folder)
    sampling.unlink()
    assert (opened.generation.temperature, opened.generation.top_p, opened.generation.top_k) == (0.6, 0.9, 40)
    assert opened.config.eos_token_ids == (1, 2, 7)
    assert greedy.generation.temperature == 0.0


def test_rounding_off_lifts_the_power_of_two(folder: Path) -> None:
    """Only the Hadamard transform of the rounded indexer rows needs a power of two."""
    models.write_config(folder, official_config(TINY) | {"index_head_dim": 24})
    assert "cache_rounding=False" in refusal(folder)
    with pytest.raises(ModelFileError, match=r"tensor .* has shape"):
        open_checkpoint(folder, cache_rounding=False)
