"""Negative controls: each mistake an implementer could make moves the logits by orders of magnitude more than
the bound.

Each is made on purpose, in the configuration, the weights or one op, and compared with transformers' logits;
spec section 11.2 has the first fourteen. So agreement in test_transformers.py pins every one of these details
down. """

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from finback.config import LayerConfig, ModelConfig
from finback.ops.base import Expert, Hyper, Mix, Rotary, Routing, RowKind, Selection
from finback.ops.eager import Array, EagerOps, Stack
from finback.reference import norm_rope
from finback.reference.matrix import Matrix
from finback.reference.oracle import Oracle
from tests.golden import prompt, weights
from tests.model.fixtures import CASES, LENGTH, read
from tests.model.run import Model, run, worst

LOUD = 0.3
"""Every mistake below moves some logit (standard deviation 1.2) by more than this; the tests' bound is
1e-5."""

CONFIG: dict[str, Callable[[ModelConfig], ModelConfig]] = {
    "one Sinkhorn iteration": lambda c: replace(c, hc_sinkhorn_iters=1),
    "window shorter by one": lambda c: replace(c, sliding_window=c.sliding_window - 1),
    "window longer by one": lambda c: replace(c, sliding_window=c.sliding_window + 1),
    "top-k ignored": lambda c: replace(c, index_topk=1000),
    "no YaRN": lambda c: replace(c, compress_rope=replace(c.compress_rope, factor=None)),
    "YaRN on window layers": lambda c: replace(c, rope=replace(c.compress_rope, theta=c.rope.theta)),
    "compressed layers with theta 10000": lambda c: replace(
        c, compress_rope=replace(c.compress_rope, theta=1e4)
    ),
    "clamp off": lambda c: replace(c, swiglu_limit=0.0),
    "route scale 1": lambda c: replace(c, routed_scaling_factor=1.0),
    "router weights not normalised": lambda c: replace(c, norm_topk_prob=False),
    "shared expert left out": lambda c: replace(c, n_shared_experts=0),
}


def halves_swapped(t: np.ndarray) -> np.ndarray:
    return np.concatenate([t[len(t) // 2 :], t[: len(t) // 2]])


WEIGHTS: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "sink dropped": (".attn_sink", lambda t: np.full_like(t, -1e9)),
    "position bias zero": (".ape", np.zeros_like),
    "router bias zero": (".gate.bias", np.zeros_like),
    "CSA halves swapped in the values": ("layers.2.attn.compressor.wkv.weight", halves_swapped),
    "CSA halves swapped in the gates": ("layers.4.attn.compressor.wgate.weight", halves_swapped),
    "gate and up exchanged": (".w1.weight", lambda t: np.roll(t, 1, axis=0)),
}


class TransposedComb(EagerOps):
    def hyper_out(self, streams: Array, y: Array, mix: Mix[Array]) -> Array:
        n = streams.shape[1]
        post, comb = mix.value[:, :n], mix.value[:, n:].reshape(-1, n, n)
        turned = np.concatenate([post, np.swapaxes(comb, 1, 2).reshape(len(post), -1)], axis=1)
        return super().hyper_out(streams, y, Mix(turned))


class HashedByScore(EagerOps):
    def route(
        self, layer: LayerConfig, x: Array, gate: Matrix, bias: Array | None, table: Stack | None
    ) -> Routing[Array]:
        return super().route(layer, x, gate, np.zeros(gate.rows) if bias is None else bias, None)


class BiasInWeights(EagerOps):
    def route(
        self, layer: LayerConfig, x: Array, gate: Matrix, bias: Array | None, table: Stack | None
    ) -> Routing[Array]:
        routing = super().route(layer, x, gate, bias, table).value.copy()
        if bias is not None:
            routing["weights"] += bias[routing["ids"]]
        return Routing(routing)


class ClampAfterProduct(EagerOps):
    def experts(
        self, x: Array, routing: Routing[Array], routed: Expert[Stack], shared: Expert[Matrix] | None
    ) -> Array:
        limit = self.config.swiglu_limit
        self.config = replace(self.config, swiglu_limit=0.0)
        y = super().experts(x, routing, routed, shared)
        self.config = replace(self.config, swiglu_limit=limit)
        return np.clip(y, -limit, limit)


class NoHeadNorm(EagerOps):
    def qkv_finish(
        self, layer: LayerConfig, q: Array, kv: Array, kv_norm: Array, rotary: Rotary[Array]
    ) -> tuple[Array, Array]:
        heads = q.reshape(len(q), self.config.num_attention_heads, -1)
        turned = norm_rope.rotate(self.arithmetic, heads, rotary.value).reshape(q.shape)
        return turned, super().qkv_finish(layer, q, kv, kv_norm, rotary)[1]


class OtherRotation(EagerOps):
    """`attend` sees another rotation table than the queries did."""

    def other(self, rotary: Rotary[Array]) -> Array:
        raise NotImplementedError

    def attend(
        self,
        layer: LayerConfig,
        q: Array,
        kv: Array,
        sink: Array,
        rotary: Rotary[Array],
        selection: Selection[Array] | None,
    ) -> Array:
        return super().attend(layer, q, kv, sink, Rotary(self.other(rotary), rotary.rope), selection)


class NoInverseRotation(OtherRotation):
    def other(self, rotary: Rotary[Array]) -> Array:
        still = np.zeros_like(rotary.value)
        still[:, 0] = 1
        return still


class ForwardRotation(OtherRotation):
    def other(self, rotary: Rotary[Array]) -> Array:
        return rotary.value * np.array([[1.0], [-1.0]])


class RotatedAtLastToken(EagerOps):
    def _compressed(self, kind: RowKind, pooled: Array, norm: Array, rope: Any, first: int) -> Array:
        ratio = {"main": 3, "index": 3}[kind]
        return super()._compressed(kind, pooled, norm, rope, first + ratio)


class NoCompressedNorm(EagerOps):
    def _compressed(self, kind: RowKind, pooled: Array, norm: Array, rope: Any, first: int) -> Array:
        return super()._compressed(kind, pooled, np.ones_like(norm), rope, first)


class PostWithoutFactor(EagerOps):
    def hyper_in(self, streams: Array, w: Hyper[Matrix, Array], norm: Array) -> tuple[Array, Mix[Array]]:
        x, mix = super().hyper_in(streams, w, norm)
        n = streams.shape[1]
        value = mix.value.copy()
        value[:, :n] /= 2  # post without its factor 2
        return x, Mix(value)


OPS: dict[str, type[EagerOps]] = {
    "comb un-transposed": TransposedComb,
    "hash routing replaced by top-k": HashedByScore,
    "bias weighs": BiasInWeights,
    "clamp after the product": ClampAfterProduct,
    "no per-head norm of queries": NoHeadNorm,
    "no inverse rotation": NoInverseRotation,
    "output rotated forward": ForwardRotation,
    "compressed rows rotated at the last token": RotatedAtLastToken,
    "no norm of compressed rows": NoCompressedNorm,
    "post without its factor": PostWithoutFactor,
}


def distance(config: ModelConfig, tensors: dict[str, Any], ops: type[EagerOps] = EagerOps) -> float:
    """Greatest difference of the mutated model's logits from transformers'."""
    ids = prompt(LENGTH["golden"], config.vocab_size)
    return worst(run(Model.of(config, Oracle(), tensors, ops), ids).logits, read("golden").logits)


@pytest.fixture(scope="module")
def tensors() -> dict[str, Any]:
    return dict(weights(CASES["golden"].config))


def test_without_a_mistake(tensors: dict[str, Any]) -> None:
    assert distance(CASES["golden"].config, tensors) < 1e-5


@pytest.mark.parametrize("mistake", CONFIG)
def test_mistake_in_a_number(mistake: str, tensors: dict[str, Any]) -> None:
    assert distance(CONFIG[mistake](CASES["golden"].config), tensors) > LOUD


@pytest.mark.parametrize("mistake", WEIGHTS)
def test_mistake_in_a_tensor(mistake: str, tensors: dict[str, Any]) -> None:
    ending, change = WEIGHTS[mistake]
    changed = {name: change(t) if name.endswith(ending) else t for name, t in tensors.items()}
    assert distance(CASES["golden"].config, changed) > LOUD


@pytest.mark.parametrize("mistake", OPS)
def test_mistake_in_an_operation(mistake: str, tensors: dict[str, Any]) -> None:
    assert distance(CASES["golden"].config, tensors, OPS[mistake]) > LOUD
