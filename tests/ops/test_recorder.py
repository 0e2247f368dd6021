"""Recording: the plan of whole models survives a replay that checks every read, and refusals name what is
wrong."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from finback import native
from finback.config import ModelConfig
from finback.errors import UnsupportedModelError
from finback.kv.layout import plan_layout
from finback.models import deepseek_v4
from finback.ops.native import _record
from finback.ops.native_weights import NativeMatrix, NativeStack, NativeTable, NativeVector
from finback.ops.plan import Placing
from finback.ops.recorder import Recorder
from finback.ops.tape import Limits, Tape, Tensor
from tests.golden import layers
from tests.golden import weights as golden_weights
from tests.tiny import TINY

NOTHING = cast(Any, None)  # recording looks at shapes and formats only


class Shapes:
    """Weights without bytes, with the shapes that a configuration asks for; `formats` by ending of the
    name."""

    def __init__(self, shapes: dict[str, tuple[int, ...]], formats: dict[str, str] | None = None) -> None:
        self.shapes, self.formats = shapes, formats or {}

    def _format(self, name: str, default: str) -> native.Format:
        return native.Format[next((f for end, f in self.formats.items() if name.endswith(end)), default)]

    def matrix(self, name: str) -> NativeMatrix:
        rows, cols = self.shapes[name]
        plain = name.endswith("_fn") or ".gate." in name
        return NativeMatrix(name, rows, cols, self._format(name, "F32" if plain else "Q8_0"), NOTHING)

    def rows(self, name: str) -> NativeMatrix:
        return self.matrix(name)

    def vector(self, name: str) -> NativeVector:
        return NativeVector(name, np.zeros(self.shapes[name], np.float32))

    def experts(self, prefix: str, matrix: str) -> NativeStack:
        name = f"{prefix}.{matrix}"
        rows, cols = self.shapes[f"{prefix}.0.{matrix}.weight"]
        count = sum(key.startswith(f"{prefix}.") and key.endswith(f".{matrix}.weight") for key in self.shapes)
        return NativeStack(name, rows, cols, count, self._format(name, "Q8_0"), NOTHING)

    def table(self, name: str) -> NativeTable:
        return NativeTable(name, np.zeros(self.shapes[name], np.int32))


def shapes_of(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    return {name: tuple(t.shape) for name, t in golden_weights(config, 0).items()}


SOME = Limits(16, 4, 512, 2)


def record(
    config: ModelConfig = TINY,
    limits: Limits = SOME,
    formats: dict[str, str] | None = None,
    shapes: dict[str, tuple[int, ...]] | None = None,
) -> tuple[Tape, dict[str, Tensor]]:
    layout = plan_layout(config, cache_rounding=True, max_draft=3)
    recorder = Recorder(config, layout, limits, "model.gguf")
    source = cast(Any, Shapes(shapes or shapes_of(config), formats))
    results = _record(recorder, deepseek_v4, deepseek_v4.load_weights(config, source))
    return recorder.tape, results


class Arena:
    """Memory whose every byte knows which value wrote it last."""

    def __init__(self, tape: Tape, placing: Placing) -> None:
        self.tape, self.placing = tape, placing
        self.owner = np.full(placing.size, -1, np.int64)

    def span(self, tensor: Tensor) -> slice:
        at = self.placing.offsets[tensor.number]
        return slice(at, at + self.tape.size_of(tensor))

    def holds(self, tensor: Tensor) -> bool:
        return bool((self.owner[self.span(tensor)] == tensor.number).all())

    def run(self, entry: str) -> None:
        for i in self.tape.entries[entry]:
            node = self.tape.nodes[i]
            for tensor in node.writes:
                self.owner[self.span(tensor)] = tensor.number
            # After the writes: an output over an input would have destroyed what the operation still reads.
            for tensor in node.reads:
                assert self.holds(tensor), f"{entry} {i} {node.op} reads a value that is gone"
            for tensor in node.writes:
                assert self.holds(tensor), f"{entry} {i} {node.op} writes two values to one place"


@pytest.mark.parametrize(
    "config",
    [
        TINY,
        replace(TINY, layers=layers((0,), 0, 0), mtp_layers=()),
        replace(TINY, layers=layers((4, 8, 4), 0, 3), hc_mult=1, mtp_layers=layers((0,), 3, 0)),
    ],
)
@pytest.mark.parametrize("limits", [Limits(1, 1, 1, 1), Limits(16, 4, 512, 2), Limits(5, 9, 4096, 7)])
def test_every_read_finds_its_value_in_any_order_of_entries(config: ModelConfig, limits: Limits) -> None:
    tape, results = record(config, limits)
    arena = Arena(tape, tape.plan())
    others = [entry for entry in tape.entries if entry != "main"]
    order = ["main", *others, *reversed(others), *others, "main", *reversed(others)]
    for entry in order:
        arena.run(entry)
        assert arena.holds(results[entry])


@settings(deadline=None, max_examples=60)
@given(st.randoms(use_true_random=False), st.integers(1, 60))
def test_random_programs(rng: random.Random, n: int) -> None:
    tape = Tape(Limits(4, 2, 64, 1))
    values: list[Tensor] = []
    for i in range(n):
        reads = rng.sample(values, min(len(values), rng.randrange(4)))
        writes = [
            tape.tensor(rng.choice(["step", "logits"]), rng.randrange(1, 4), rng.randrange(1, 99))
            for _ in range(rng.randrange(1, 4))
        ]
        writes += [tape.scratch(rng.randrange(0, 999))] * 1
        tape.add(f"op{i}", reads, writes, lambda program, at: None)
        values = [*values, *writes[:-1]][-8:]
        if rng.random() < 0.1:
            tape.pin(writes[0])
        if rng.random() < 0.1 and i < n - 1:
            tape.finish_entry(f"entry{i}", [writes[0]])
            values = list(tape._pinned)
    tape.finish_entry("last", [])
    arena = Arena(tape, tape.plan())
    for entry in tape.entries:
        arena.run(entry)


def ops_of(tape: Tape, entry: str) -> list[str]:
    return [tape.nodes[i].op for i in tape.entries[entry]]


def test_an_input_is_packed_once_for_all_matrices_that_read_it() -> None:
    config = replace(TINY, layers=layers((4,), 0, 0), mtp_layers=())
    tape, _ = record(config)
    # x: projections, then router (F32) and experts; qr; o; z; head
    packs = [node for node in tape.nodes[slice(*_bounds(tape, "main"))] if node.op == "pack"]
    assert len(packs) == len({(node.reads, node.writes[0].row_bytes) for node in packs})
    assert len(packs) == 7
    assert ops_of(tape, "head") == ["take_rows", "hyper_head", "pack", "linear"]


def _bounds(tape: Tape, entry: str) -> tuple[int, int]:
    return tape.entries[entry].start, tape.entries[entry].stop


def test_matrices_of_different_encodings_on_one_input() -> None:
    config = replace(TINY, layers=layers((4,), 0, 0), mtp_layers=())
    tape, _ = record(config, formats={"wkv.weight": "BF16", "wgate.weight": "FP8_E4M3"})
    first = [node for node in tape.nodes if node.op == "linear"][:3]
    assert [len(node.writes) for node in first] == [
        2,
        3,
        2,
    ]  # Q8_0: wq_a, weights_proj; BF16: three wkv; FP8: two wgate
    assert len({node.reads for node in first}) == 3


FLASH_WIDTHS = {
    "vocab_size": 129280,
    "hidden_size": 4096,
    "num_attention_heads": 64,
    "head_dim": 512,
    "qk_rope_head_dim": 64,
    "q_lora_rank": 1024,
    "o_lora_rank": 1024,
    "o_groups": 8,
    "sliding_window": 128,
    "index_n_heads": 64,
    "index_head_dim": 128,
    "index_topk": 512,
    "moe_intermediate_size": 2048,
}


def test_v4_flash_wastes_little() -> None:
    """Within 2 % of the most bytes that live at once, which no placing can beat."""
    config = replace(
        TINY, **cast(Any, FLASH_WIDTHS), layers=layers((0, 0, *(4, 128) * 6), 0, 0), mtp_layers=()
    )
    tape, _ = record(config, Limits(256, 64, 32768, 8), shapes=_flash_shapes(config))
    lives = tape.lifetimes()
    moments: Sequence[int] = range(len(tape.nodes))
    worst = max(sum(life.size for life in lives if life.born <= now <= life.dies) for now in moments)
    assert tape.plan().size <= 1.02 * worst


def _flash_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Shapes of TINY's tensors with each width replaced by Flash's: by name of the number, through marked
    sizes."""
    c, small = config, replace(TINY, layers=config.layers, mtp_layers=())
    n, d, h = c.hc_mult, c.hidden_size, c.num_attention_heads * c.head_dim
    found = {}
    for name, shape in shapes_of(small).items():
        ending = name.split(".")[-2 if name.endswith(".weight") else -1]
        stream, layer = c.head_dim, None
        if name.startswith("layers."):
            layer = c.layers[int(name.split(".")[1])]
        if ".indexer." in name:
            stream = c.index_head_dim
        pooled = stream * (2 if layer and layer.kind == "csa" else 1)
        compressor = "compressor" in name
        ready = {
            "embed": (c.vocab_size, d),
            "head": (c.vocab_size, d),
            "wq_a": (c.q_lora_rank, d),
            "q_norm": (c.q_lora_rank,),
            "wq_b": (c.index_n_heads * c.index_head_dim if ".indexer." in name else h, c.q_lora_rank),
            "wkv": (pooled if compressor else c.head_dim, d),
            "wgate": (pooled, d),
            "ape": (layer.ratio if layer else 0, pooled),
            "kv_norm": (c.head_dim,),
            "attn_sink": (c.num_attention_heads,),
            "wo_a": (c.o_groups * c.o_lora_rank, h // c.o_groups),
            "wo_b": (d, c.o_groups * c.o_lora_rank),
            "weights_proj": (c.index_n_heads, d),
            "w1": (c.moe_intermediate_size, d),
            "w3": (c.moe_intermediate_size, d),
            "w2": (d, c.moe_intermediate_size),
            "gate": (c.n_routed_experts, d),
            "attn_norm": (d,),
            "ffn_norm": (d,),
            "norm": (stream,) if compressor else (d,),
        }
        if ending.endswith("_fn"):
            found[name] = (shape[0], n * d)
        else:
            found[name] = ready.get(ending, shape)
    return found


# ---- refusals
# -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "shape", "problem"),
    [
        ("layers.0.attn.wq_a.weight", (32, 63), "is \\[32, 63\\]; the configuration asks for \\[32, 64\\]"),
        ("layers.3.attn.attn_sink", (5,), "has 5 values"),
        ("hc_head_fn", (4, 128), "hc_head_fn is"),
        ("layers.1.ffn.gate.tid2eid", (300, 3), "tid2eid is \\[300, 3\\]"),
        ("layers.2.attn.compressor.ape", (8, 64), "ape has 512 values"),
        ("layers.4.ffn.shared_experts.w2.weight", (64, 32), "shared_experts.w2.weight is"),
        ("norm.weight", (65,), "norm.weight has 65"),
        ("embed.weight", (299, 64), "embed.weight is"),
    ],
)
def test_a_tensor_of_the_wrong_shape_is_refused_by_name(
    name: str, shape: tuple[int, ...], problem: str
) -> None:
    with pytest.raises(UnsupportedModelError, match=problem) as refused:
        record(shapes=shapes_of(TINY) | {name: shape})
    assert "model.gguf" in str(refused.value)


def test_hyper_connections_that_are_quantised_are_refused_by_name() -> None:
    with pytest.raises(UnsupportedModelError, match=r"layers\.0\.hc_attn_fn is stored as Q8_0"):
        record(formats={"hc_attn_fn": "Q8_0"})


def test_gate_and_up_of_different_encodings_are_refused() -> None:
    with pytest.raises(UnsupportedModelError, match="gate and up must read the same encoding"):
        record(formats={".experts.w3": "BF16"})
