"""What each container calls a tensor: official names of spec section 6 to and from every other spelling.

Owns one table of suffixes in four columns and the `Spelling`s built on it: official, saved by transformers,
transformers' modules in memory, and GGUF (spec sections 6 and 7) with two places for the draft block. Pure
functions on strings: official -> spelled -> official is the identity. Refuses to guess: a name outside the
tables spells to None. Shapes, formats and files are the business of `weights/`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, Literal, NamedTuple, Protocol, TypeAlias


class Spelled(NamedTuple):
    """A stored tensor, and which part of it is meant where it holds more than one official tensor."""

    name: str
    expert: int | None = None  # index into the first axis of a stack of experts
    half: Literal[0, 1] | None = None  # of two matrices fused into one


Row: TypeAlias = tuple[str, str, str, str]

# Official, saved by transformers (its own mapping back to official leaves some names over), transformers in
# memory, GGUF. Below the model.
_ROOT: Final[Sequence[Row]] = [
    ("embed.weight", "embed_tokens.weight", "embed_tokens.weight", "token_embd.weight"),
    ("norm.weight", "norm.weight", "norm.weight", "output_norm.weight"),
    ("head.weight", "head.weight", "lm_head.weight", "output.weight"),
    ("hc_head_fn", "hc_head.hc_fn", "hc_head.hc_fn", "output_hc_fn.weight"),
    ("hc_head_base", "hc_head.hc_base", "hc_head.hc_base", "output_hc_base.weight"),
    ("hc_head_scale", "hc_head.hc_scale", "hc_head.hc_scale", "output_hc_scale.weight"),
]

# Official, transformers in memory, GGUF. Below a block; transformers saves these under the official names.
_BLOCK: Final[Sequence[tuple[str, str, str]]] = [
    ("attn_norm.weight", "input_layernorm.weight", "attn_norm.weight"),
    ("ffn_norm.weight", "post_attention_layernorm.weight", "ffn_norm.weight"),
    ("hc_attn_fn", "attn_hc.fn", "hc_attn_fn.weight"),
    ("hc_attn_base", "attn_hc.base", "hc_attn_base.weight"),
    ("hc_attn_scale", "attn_hc.scale", "hc_attn_scale.weight"),
    ("hc_ffn_fn", "ffn_hc.fn", "hc_ffn_fn.weight"),
    ("hc_ffn_base", "ffn_hc.base", "hc_ffn_base.weight"),
    ("hc_ffn_scale", "ffn_hc.scale", "hc_ffn_scale.weight"),
    ("attn.attn_sink", "self_attn.sinks", "attn_sinks.weight"),
    ("attn.wq_a.weight", "self_attn.q_a_proj.weight", "attn_q_a.weight"),
    ("attn.q_norm.weight", "self_attn.q_a_norm.weight", "attn_q_a_norm.weight"),
    ("attn.wq_b.weight", "self_attn.q_b_proj.weight", "attn_q_b.weight"),
    ("attn.wkv.weight", "self_attn.kv_proj.weight", "attn_kv.weight"),
    ("attn.kv_norm.weight", "self_attn.kv_norm.weight", "attn_kv_a_norm.weight"),
    ("attn.wo_a.weight", "self_attn.o_a_proj.weight", "attn_output_a.weight"),
    ("attn.wo_b.weight", "self_attn.o_b_proj.weight", "attn_output_b.weight"),
    ("attn.compressor.wkv.weight", "self_attn.compressor.kv_proj.weight", "attn_compressor_kv.weight"),
    ("attn.compressor.wgate.weight", "self_attn.compressor.gate_proj.weight", "attn_compressor_gate.weight"),
    ("attn.compressor.ape", "self_attn.compressor.position_bias", "attn_compressor_ape.weight"),
    ("attn.compressor.norm.weight", "self_attn.compressor.kv_norm.weight", "attn_compressor_norm.weight"),
    ("attn.indexer.wq_b.weight", "self_attn.compressor.indexer.q_b_proj.weight", "indexer.attn_q_b.weight"),
    (
        "attn.indexer.weights_proj.weight",
        "self_attn.compressor.indexer.scorer.weights_proj.weight",
        "indexer.proj.weight",
    ),
    (
        "attn.indexer.compressor.wkv.weight",
        "self_attn.compressor.indexer.kv_proj.weight",
        "indexer_compressor_kv.weight",
    ),
    (
        "attn.indexer.compressor.wgate.weight",
        "self_attn.compressor.indexer.gate_proj.weight",
        "indexer_compressor_gate.weight",
    ),
    (
        "attn.indexer.compressor.ape",
        "self_attn.compressor.indexer.position_bias",
        "indexer_compressor_ape.weight",
    ),
    (
        "attn.indexer.compressor.norm.weight",
        "self_attn.compressor.indexer.kv_norm.weight",
        "indexer_compressor_norm.weight",
    ),
    ("ffn.gate.weight", "mlp.gate.weight", "ffn_gate_inp.weight"),
    ("ffn.gate.bias", "mlp.gate.e_score_correction_bias", "exp_probs_b.bias"),
    ("ffn.gate.tid2eid", "mlp.gate.tid2eid", "ffn_gate_tid2eid.weight"),
    ("ffn.shared_experts.w1.weight", "mlp.shared_experts.gate_proj.weight", "ffn_gate_shexp.weight"),
    ("ffn.shared_experts.w2.weight", "mlp.shared_experts.down_proj.weight", "ffn_down_shexp.weight"),
    ("ffn.shared_experts.w3.weight", "mlp.shared_experts.up_proj.weight", "ffn_up_shexp.weight"),
]

# Beside the block inside `mtp.N`: official, GGUF as ds4 writes it, GGUF as llama.cpp writes it.
_DRAFT: Final[Sequence[tuple[str, str, str]]] = [
    ("enorm.weight", "enorm.weight", "nextn.enorm.weight"),
    ("hnorm.weight", "hnorm.weight", "nextn.hnorm.weight"),
    ("norm.weight", "norm.weight", "nextn.shared_head_norm.weight"),
    ("hc_head_fn", "hc_head_fn.weight", "nextn.hc_head_fn.weight"),
    ("hc_head_base", "hc_head_base.weight", "nextn.hc_head_base.weight"),
    ("hc_head_scale", "hc_head_scale.weight", "nextn.hc_head_scale.weight"),
]
_PROJECTIONS: Final = ("e_proj.weight", "h_proj.weight")  # llama.cpp fuses them, embedding half first

_GGUF_EXPERTS: Final[Mapping[str, str]] = MappingProxyType(
    {"w1": "ffn_gate_exps.weight", "w2": "ffn_down_exps.weight", "w3": "ffn_up_exps.weight"}
)
_GGUF_MATRICES: Final = {stored: matrix for matrix, stored in _GGUF_EXPERTS.items()}

_BLOCK_NAME: Final = re.compile(r"(layers|mtp)\.(0|[1-9]\d{0,8})\.(.+)", re.DOTALL)
_STORED_BLOCK: Final = re.compile(r"(blk|mtp)\.(0|[1-9]\d{0,8})\.(.+)", re.DOTALL)
_EXPERT: Final = re.compile(r"ffn\.experts\.(0|[1-9]\d{0,8})\.(w[123])\.(weight|scale)")


class Spelling(Protocol):
    """One way of writing names."""

    def spell(self, official: str) -> Spelled | None:
        """How this spelling writes an official name; None for a name that is not of this family."""

    def official(self, stored: Spelled) -> str | None:
        """The official name of a stored tensor, or of a part of one; None if the name is foreign."""


@dataclass(frozen=True, slots=True)
class FolderNames:
    """Names in safetensors: as published, or as transformers saves them back (`saved`), after `prefix`."""

    layout: Literal["official", "saved"] = "official"
    prefix: str = ""  # "model." in some folders

    def spell(self, official: str) -> Spelled | None:
        match = _BLOCK_NAME.fullmatch(official)
        if match is None:
            name = _ROOTS[self.layout].get(official)
            return None if name is None else Spelled(self.prefix + name)
        place, rest = official[: match.start(3)], match[3]
        suffix = _SAVED.get(rest, rest) if self.layout == "saved" else rest
        return Spelled(self.prefix + place + suffix) if _is_official(match[1], rest) else None

    def official(self, stored: Spelled) -> str | None:
        if not stored.name.startswith(self.prefix) or stored.expert is not None:
            return None
        name = stored.name[len(self.prefix) :]
        match = _BLOCK_NAME.fullmatch(name)
        if match is None:
            return _ROOTS_BACK[self.layout].get(name)
        rest = _SAVED_BACK.get(match[3], match[3]) if self.layout == "saved" else match[3]
        return name[: match.start(3)] + rest if _is_official(match[1], rest) else None


@dataclass(frozen=True, slots=True)
class ModuleNames:
    """transformers' modules in memory, as its state_dict lists them; it has no draft block, `mtp.N` is ours."""

    prefix: str = "model."

    def spell(self, official: str) -> Spelled | None:
        match = _BLOCK_NAME.fullmatch(official)
        if match is None:
            name = _ROOTS["modules"].get(official)
            # The output layer lies outside the module that the prefix stands for.
            return None if name is None else Spelled(name if name == "lm_head.weight" else self.prefix + name)
        place, rest = self.prefix + official[: match.start(3)], match[3]
        if (expert := _EXPERT.fullmatch(rest)) is not None:
            name = f"{place}mlp.experts.{'down_proj' if expert[2] == 'w2' else 'gate_up_proj'}{_SCALE[expert[3]]}"
            return Spelled(name, int(expert[1]), _HALVES[expert[2]])
        weight, scaled = _weight_of(rest)
        if not _is_official(match[1], rest):
            return None
        suffix = _MODULES.get(weight, weight)
        return Spelled(place + suffix + ("_scale_inv" if scaled else ""))

    def official(self, stored: Spelled) -> str | None:
        if stored.name == "lm_head.weight":
            return "head.weight"
        if not stored.name.startswith(self.prefix):
            return None
        name = stored.name[len(self.prefix) :]
        match = _BLOCK_NAME.fullmatch(name)
        if match is None:
            return _ROOTS_BACK["modules"].get(name)
        place, rest = name[: match.start(3)], match[3]
        weight = rest.removesuffix("_scale_inv")
        scaled = weight != rest
        if stored.expert is not None:
            matrix = _FUSED_BACK.get((weight, stored.half))
            kind = "scale" if scaled else "weight"
            return None if matrix is None else f"{place}ffn.experts.{stored.expert}.{matrix}.{kind}"
        suffix = _MODULES_BACK.get(weight, weight)
        if scaled:
            suffix = suffix.removesuffix("weight") + "scale"
        return place + suffix if _is_official(match[1], suffix) else None


@dataclass(frozen=True, slots=True)
class GgufNames:
    """GGUF as ds4 and llama.cpp share it. `layers` is None where the draft block is called `mtp.N`, as ds4 does,
    and the number of layers where it follows them as one more `blk.N` with `nextn` tensors, as in llama.cpp."""

    layers: int | None = None

    def spell(self, official: str) -> Spelled | None:
        match = _BLOCK_NAME.fullmatch(official)
        if match is None:
            name = _GGUF_ROOT.get(official)
            return None if name is None else Spelled(name)
        draft, index, rest = match[1] == "mtp", int(match[2]), match[3]
        place = f"blk.{index + (self.layers or 0) * draft}."
        if draft and self.layers is None:
            place = f"mtp.{index}."
        if (expert := _EXPERT.fullmatch(rest)) is not None:  # GGUF has no scale planes
            return None if expert[3] == "scale" else Spelled(place + _GGUF_EXPERTS[expert[2]], int(expert[1]))
        if draft and self.layers is not None and rest in _PROJECTIONS:
            return Spelled(place + "nextn.eh_proj.weight", half=0 if rest == _PROJECTIONS[0] else 1)
        suffix = _GGUF_BLOCK.get(rest)
        if suffix is None and draft:
            suffix = (_DS4 if self.layers is None else _NEXTN).get(rest)
        return None if suffix is None else Spelled(place + suffix)

    def official(self, stored: Spelled) -> str | None:
        match = _STORED_BLOCK.fullmatch(stored.name)
        if match is None:
            return _GGUF_ROOT_BACK.get(stored.name)
        index, rest = int(match[2]), match[3]
        if self.layers is None:
            draft = match[1] == "mtp"
        elif match[1] == "mtp":
            return None
        else:
            draft = index >= self.layers
            index -= self.layers * draft
        place = f"{'mtp' if draft else 'layers'}.{index}."
        if stored.expert is not None:
            matrix = _GGUF_MATRICES.get(rest)
            return None if matrix is None else f"{place}ffn.experts.{stored.expert}.{matrix}.weight"
        if stored.half is not None:
            fused = draft and self.layers is not None and rest == "nextn.eh_proj.weight"
            return place + _PROJECTIONS[stored.half] if fused else None
        suffix = _GGUF_BLOCK_BACK.get(rest)
        if suffix is None and draft:
            suffix = (_DS4_BACK if self.layers is None else _NEXTN_BACK).get(rest)
        return None if suffix is None else place + suffix


def _weight_of(rest: str) -> tuple[str, bool]:
    """The weight that a block suffix is or scales, and whether it is the scale plane."""
    return (rest[: -len("scale")] + "weight", True) if rest.endswith(".scale") else (rest, False)


def _is_official(stack: str | None, rest: str) -> bool:
    """Whether `rest` may follow `layers.N.` or `mtp.N.` in an official name."""
    if _EXPERT.fullmatch(rest) is not None:
        return True
    weight, scaled = _weight_of(rest)
    if scaled and weight not in _SCALED:
        return False
    return weight in _MODULES or (stack == "mtp" and weight in _DS4)


def _back(table: Mapping[str, str]) -> Mapping[str, str]:
    return {stored: official for official, stored in table.items()}


_SCALE: Final = {"weight": "", "scale": "_scale_inv"}
_HALVES: Final[Mapping[str, Literal[0, 1] | None]] = {"w1": 0, "w3": 1, "w2": None}
_FUSED_BACK: Final = {
    ("mlp.experts.gate_up_proj", 0): "w1",
    ("mlp.experts.gate_up_proj", 1): "w3",
    ("mlp.experts.down_proj", None): "w2",
}
_LAYOUTS: Final = ("official", "saved", "modules")
_ROOTS: Final = {layout: {row[0]: row[i] for row in _ROOT} for i, layout in enumerate(_LAYOUTS)}
_ROOTS_BACK: Final = {layout: _back(table) for layout, table in _ROOTS.items()}
# The one name of a block that transformers does not turn back: it takes `.kv_norm` for a compressor's.
_SAVED: Final = {"attn.kv_norm.weight": "attn.norm.weight"}
_SAVED_BACK: Final = _back(_SAVED)
_MODULES: Final = {row[0]: row[1] for row in _BLOCK}
_MODULES_BACK: Final = _back(_MODULES)
_GGUF_ROOT: Final = {row[0]: row[3] for row in _ROOT}
_GGUF_ROOT_BACK: Final = _back(_GGUF_ROOT)
_GGUF_BLOCK: Final = {row[0]: row[2] for row in _BLOCK}
_GGUF_BLOCK_BACK: Final = _back(_GGUF_BLOCK)
_DS4: Final = {row[0]: row[1] for row in _DRAFT} | {name: name for name in _PROJECTIONS}
_DS4_BACK: Final = _back(_DS4)
_NEXTN: Final = {row[0]: row[2] for row in _DRAFT}
_NEXTN_BACK: Final = _back(_NEXTN)
_SCALED: Final = frozenset(
    name for name in (*_GGUF_BLOCK, *_PROJECTIONS) if name.endswith(".weight") and "norm" not in name
)


# ---- names we recognise and do not run --------------------------------------------------------------------------

_DSPARK: Final = re.compile(r"mtp\.\d+\.(main_proj|main_norm|markov_head|confidence_head)\.")
_VISION: Final = re.compile(
    r"vision\.|aligner\.|image_(start|end|newline)$|v\.|mm\.|layers\.\d+\.ffn\.gate\.bias_vl$"
)


def is_dspark(name: str) -> bool:
    """Whether an official name belongs only to DSpark stages (spec 3.9), which draft in another way than MTP."""
    return _DSPARK.match(name) is not None


def is_vision(name: str) -> bool:
    """Whether a name is part of the picture encoder of a Vision variant (spec 1.1)."""
    return _VISION.match(name) is not None
