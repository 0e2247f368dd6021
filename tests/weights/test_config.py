"""A configuration checks itself, and survives being written down and read back in either spelling."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from finback.config import GenerationDefaults, LayerConfig, ModelConfig, RopeConfig
from finback.errors import ConfigError, FinbackError
from finback.tools.metadata import hf_config
from finback.tools.synth import synth_config
from finback.weights.hf_config import config_from_hf, generation_from_hf
from tests.tiny import TINY, official_config
from tests.weights.models import transformers_config

PATH = Path("model/config.json")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("vocab_size", 0), ("hidden_size", -1), ("num_attention_heads", True), ("head_dim", 1), ("head_dim", 8.0),
        ("qk_rope_head_dim", 9), ("qk_rope_head_dim", 64), ("o_groups", 3), ("hc_mult", 9),
        ("hc_sinkhorn_iters", 1001), ("index_head_dim", 24), ("index_head_dim", 4), ("num_experts_per_tok", 9),
        ("n_shared_experts", 2), ("sliding_window", 0), ("rms_norm_eps", 0.0), ("rms_norm_eps", math.nan),
        ("hc_eps", -1.0), ("routed_scaling_factor", math.inf), ("swiglu_limit", -1.0),
        ("max_position_embeddings", 1 << 21), ("bos_token_id", TINY.vocab_size), ("pad_token_id", -1),
        ("layers", ()), ("layers", TINY.layers[1:]), ("mtp_layers", TINY.layers[:1]),
    ],
)  # fmt: skip
def test_a_configuration_refuses_nonsense(field: str, value: Any) -> None:
    with pytest.raises(ConfigError) as caught:
        replace(TINY, **{field: value})
    assert caught.value.field in (field, "num_hidden_layers")
    assert caught.value.allowed
    assert f"{caught.value.field} is" in str(caught.value)


def test_parts_of_a_configuration_refuse_nonsense() -> None:
    for make in (
        lambda: RopeConfig(0.0),
        lambda: RopeConfig(1e4, factor=0.5),
        lambda: RopeConfig(1e4, factor=16, original_context=0),
        lambda: RopeConfig(1e4, factor=16, beta_fast=1, beta_slow=32),
        lambda: LayerConfig(0, "window", 4, False),
        lambda: LayerConfig(0, "csa", 0, False),
        lambda: LayerConfig(0, "hca", 65537, False),
        lambda: LayerConfig(0, "hca", -1, False),
        lambda: GenerationDefaults(temperature=-1),
        lambda: GenerationDefaults(top_p=math.nan),
        lambda: GenerationDefaults(top_k=-1),
    ):
        with pytest.raises(ConfigError):
            make()


def test_an_unused_indexer_may_have_any_width() -> None:
    window = tuple(replace(layer, kind="window", ratio=0) for layer in TINY.layers)
    assert replace(TINY, layers=window, index_head_dim=24).index_head_dim == 24


@pytest.mark.parametrize("config", [TINY, *(synth_config(arch) for arch in ("v4-flash", "v4-pro", "v4-tiny"))])
def test_config_json_comes_back(config: ModelConfig) -> None:
    raw = json.loads(json.dumps(hf_config(config)))
    assert config_from_hf(raw, PATH, drafts=len(config.mtp_layers)) == config


def test_both_spellings_say_the_same() -> None:
    published = config_from_hf(official_config(TINY), PATH, drafts=0)
    assert config_from_hf(transformers_config(TINY), PATH, drafts=0) == published
    flat = transformers_config(TINY) | {"rope_parameters": transformers_config(TINY)["rope_parameters"]["compress"]}
    assert config_from_hf(flat, PATH, drafts=0) == published


def test_rates_decide_nothing_but_the_rate() -> None:
    """An explicit kind of layer holds whatever its rate: transformers lets both be chosen."""
    raw = transformers_config(TINY)
    raw["compress_rates"] = {"compressed_sparse_attention": 8, "heavily_compressed_attention": 4}
    config = config_from_hf(raw, PATH, drafts=0)
    assert [(layer.kind, layer.ratio) for layer in config.layers[2:4]] == [("csa", 8), ("hca", 4)]


def test_ratios_past_the_layers_belong_to_the_draft_blocks() -> None:
    """0731 has three, whatever num_nextn_predict_layers says (spec section 12)."""
    raw = official_config(TINY) | {"compress_ratios": [0, 0, 4, 8, 4, 8, 0, 4, 0], "num_nextn_predict_layers": 1}
    config = config_from_hf(raw, PATH, drafts=2)
    assert [(layer.index, layer.kind, layer.ratio) for layer in config.mtp_layers] == [
        (6, "window", 0),
        (7, "csa", 4),
    ]
    assert config_from_hf(raw, PATH, drafts=0).mtp_layers == ()


def outcome(call: Callable[[], object]) -> str:
    """What a reader says: a refusal, or nothing. Any other exception goes on."""
    try:
        call()
    except FinbackError as error:
        return str(error)
    return ""


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@settings(max_examples=300, deadline=None)
@given(
    key=st.sampled_from(sorted({*official_config(TINY), *transformers_config(TINY), "quantization_config"})),
    value=JSON,
    transformers=st.booleans(),
)
def test_any_value_is_read_or_refused_in_a_sentence(key: str, value: Any, transformers: bool) -> None:
    raw = (transformers_config if transformers else official_config)(TINY) | {key: value}
    said = outcome(lambda: config_from_hf(raw, PATH, drafts=1))
    assert len(said) < 400
    assert said == "" or said.startswith("model/config.json: ")


@settings(max_examples=100, deadline=None)
@given(value=st.dictionaries(st.sampled_from(["temperature", "top_p", "top_k", "do_sample"]), JSON))
def test_any_sampling_default_is_read_or_refused(value: dict[str, Any]) -> None:
    said = outcome(lambda: generation_from_hf(value, PATH))
    assert said == "" or said.startswith("model/config.json: ")
