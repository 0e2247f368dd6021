"""Names in every container: there and back for every tensor of a model, and the spellings of the specification."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.tiny import TINY
from tests.tiny import weights as tiny_weights
from tests.weights.models import GGUF, MODULES, NEXTN, renamed

from finback.formats.names import FolderNames, GgufNames, ModuleNames, Spelled, Spelling, is_dspark, is_vision

NAMES = sorted(tiny_weights(TINY))
SCALED = [
    name[: -len("weight")] + "scale"
    for name in NAMES
    if name.endswith((".wq_a.weight", ".w1.weight", "_proj.weight"))
]
SPELLINGS: list[Spelling] = [
    FolderNames(), FolderNames(prefix="model."), FolderNames("saved"), FolderNames("saved", "model."),
    ModuleNames(), ModuleNames(""), GgufNames(), GgufNames(layers=len(TINY.layers)),
]  # fmt: skip


def planes(spelling: Spelling) -> Iterator[str]:
    yield from NAMES
    if not isinstance(spelling, GgufNames):
        yield from SCALED


@pytest.mark.parametrize("spelling", SPELLINGS, ids=repr)
def test_every_name_comes_back(spelling: Spelling) -> None:
    seen = set()
    for name in planes(spelling):
        spelled = spelling.spell(name)
        assert spelled is not None, name
        assert spelled not in seen, f"{name} shares {spelled}"
        seen.add(spelled)
        assert spelling.official(spelled) == name


@pytest.mark.parametrize("spelling", SPELLINGS, ids=repr)
@pytest.mark.parametrize(
    "name",
    ["", "layers", "layers.0", "layers.00.attn_norm.weight", "layers.-1.attn_norm.weight", "layers.0.attn.wq_c.weight",
     "layers.0.ffn.experts.01.w1.weight", "layers.0.ffn.experts.0.w4.weight", "layers.0.attn_norm.scale",
     "embed.scale", "layers.0.enorm.weight", "layers.0.e_proj.weight", "mtp.0.main_proj.weight", "vision.norm.weight",
     "layers.0.attn_norm.weight\n"],
)  # fmt: skip
def test_foreign_names_spell_to_nothing(spelling: Spelling, name: str) -> None:
    assert spelling.spell(name) is None
    assert spelling.official(Spelled(name)) is None


def test_modules_are_those_of_the_specification() -> None:
    for name in NAMES:
        if ".experts." in name or name.startswith("mtp."):
            continue
        assert ModuleNames().spell(name) == Spelled(renamed(name, MODULES))
    names = ModuleNames()
    fused = "model.layers.3.mlp.experts.gate_up_proj"
    assert names.spell("layers.3.ffn.experts.7.w1.weight") == Spelled(fused, 7, 0)
    assert names.spell("layers.3.ffn.experts.7.w3.weight") == Spelled(fused, 7, 1)
    assert names.spell("layers.3.ffn.experts.7.w2.weight") == Spelled(
        "model.layers.3.mlp.experts.down_proj", 7
    )
    assert names.spell("layers.3.attn.wq_a.scale") == Spelled(
        "model.layers.3.self_attn.q_a_proj.weight_scale_inv"
    )


def test_gguf_names_are_those_of_the_specification() -> None:
    layers = len(TINY.layers)
    nextn = [(pattern, replacement.format(n=layers)) for pattern, replacement in NEXTN]
    for name in NAMES:
        if ".experts." in name:
            continue
        stored = renamed(name, GGUF)
        assert GgufNames().spell(name) == Spelled(stored)
        if "_proj" not in name or not name.startswith("mtp."):
            assert GgufNames(layers).spell(name) == Spelled(renamed(stored, nextn))
    assert GgufNames(6).spell("mtp.0.e_proj.weight") == Spelled("blk.6.nextn.eh_proj.weight", half=0)
    assert GgufNames(6).spell("mtp.0.h_proj.weight") == Spelled("blk.6.nextn.eh_proj.weight", half=1)
    assert GgufNames().spell("layers.1.ffn.experts.5.w2.weight") == Spelled("blk.1.ffn_down_exps.weight", 5)


def test_saved_names_are_those_of_the_specification() -> None:
    saved = FolderNames("saved")
    assert saved.spell("embed.weight") == Spelled("embed_tokens.weight")
    assert saved.spell("hc_head_fn") == Spelled("hc_head.hc_fn")
    assert saved.spell("layers.2.attn.kv_norm.weight") == Spelled("layers.2.attn.norm.weight")
    other = [n for n in NAMES if not n.startswith(("embed", "hc_head")) and ".kv_norm" not in n]
    assert all(saved.spell(name) == Spelled(name) for name in other)


def test_draft_stages_and_pictures_are_recognised() -> None:
    assert is_dspark("mtp.0.main_proj.weight")
    assert is_dspark("mtp.2.markov_head.markov_w1.weight")
    assert is_dspark("mtp.2.confidence_head.proj.weight")
    assert is_vision("vision.blocks.0.attn.wo.bias")
    assert is_vision("layers.4.ffn.gate.bias_vl")
    assert is_vision("image_newline")
    assert not any(is_dspark(name) or is_vision(name) for name in NAMES)
