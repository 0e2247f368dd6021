"""The vocabulary a model file is written in: about fifteen operations over rows of a step.

Owns the protocol and its handles; every backend (recorder, NumPy, later MLX and CUDA) implements it, and nothing about
a model is written twice. Refuses data-dependent control flow: a model file sees shapes that are known at load (widths)
and one symbolic length, T, the rows of the step. The arithmetic of each operation is fixed by docs/exactness.md, its
meaning by docs/ops.md.

Shapes: T rows in the step, D hidden, N hyper-connection streams, H heads, d head width, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, Literal, Protocol, TypeVar

from finback.config import LayerConfig, ModelConfig, RopeConfig

T = TypeVar("T")  # a value: rows of the step
M = TypeVar("M")  # a matrix [out, in] in its stored format
V = TypeVar("V")  # a vector or small table of f32
E = TypeVar("E")  # a stack of expert matrices, or a table of expert ids

RowKind = Literal["main", "index"]
"""Which append-only rows of a layer: compressed KV, or the indexer's keys."""


@dataclass(frozen=True, slots=True)
class Hyper(Generic[M, V]):
    """Weights of one hyper-connection: `fn` [(2 + N) N, N D] (head: [N, N D]), `scale` [3] (head: [1]), `base`."""

    fn: M
    scale: V
    base: V


@dataclass(frozen=True, slots=True)
class Expert(Generic[M]):
    """A gated network: gate `w1` and up `w3` [I, D], down `w2` [D, I]."""

    w1: M
    w3: M
    w2: M


@dataclass(frozen=True, slots=True)
class Mix(Generic[T]):
    """What `hyper_in` leaves for `hyper_out`: post [T, N] and comb [T, N, N], in one value [T, N + N N]."""

    value: T


@dataclass(frozen=True, slots=True)
class Rotary(Generic[T]):
    """Cos and sin of the rows' positions, [T, 2, pairs], and the frequencies they came from."""

    value: T
    rope: RopeConfig


@dataclass(frozen=True, slots=True)
class Selection(Generic[T]):
    """Compressed rows chosen for each row of the step, ascending: ids [T, index_topk] and their count [T]."""

    value: T


@dataclass(frozen=True, slots=True)
class Routing(Generic[T]):
    """Chosen experts ascending [T, k] and their weights [T, k]."""

    value: T


class Ops(Protocol[T, M, V, E]):
    """The operations. Inputs are never modified; each call gives new values; two say that they write the cache."""

    config: ModelConfig

    def embed(self, table: M, streams: int) -> T:
        """Rows of the embedding for the step's token ids, repeated to [T, streams, D] (streams 1: [T, D])."""

    def hyper_in(self, streams: T, w: Hyper[M, V], norm: V) -> tuple[T, Mix[T]]:
        """Mix the streams [T, N, D] down to one normalised row [T, D] (spec 3.2); also what `hyper_out` needs."""

    def hyper_out(self, streams: T, y: T, mix: Mix[T]) -> T:
        """Write y [T, D] back: S'[k] = post[k] y + sum_j comb[j, k] S[j], [T, N, D]."""

    def norm(self, x: T, w: V) -> T:
        """RMS norm over the last axis with weight; works on [T, D] and on every stream of [T, N, D]."""

    def linear(self, x: T, matrices: Sequence[M]) -> list[T]:
        """One or many matrices on the same input; the input is packed once per encoding they need."""

    def grouped_linear(self, x: T, matrix: M, groups: int) -> T:
        """Block-diagonal product: group g of x with rows g R .. (g+1) R of the matrix, [T, groups R]."""

    def rotary(self, rope: RopeConfig) -> Rotary[T]:
        """Rotation table of the rows' positions."""

    def qkv_finish(self, layer: LayerConfig, q: T, kv: T, kv_norm: V, rotary: Rotary[T]) -> tuple[T, T]:
        """Queries [T, H d]: norm per head, rotation. The step's window rows [T, d]: norm, rotation, cache rounding."""

    def compress(
        self, layer: LayerConfig, kind: RowKind, kv: T, gate: T, ape: V, norm: V, rotary: Rotary[T]
    ) -> None:
        """Writes the cache: adds the step's rows to the open groups, appends a row for each group that closes
        (spec 3.5)."""

    def index_select(self, layer: LayerConfig, q: T, weights: T, rotary: Rotary[T]) -> Selection[T]:
        """Queries [T, Hi di] against the layer's index rows: the visible rows to attend (spec 3.6)."""

    def attend(
        self,
        layer: LayerConfig,
        q: T,
        kv: T,
        sink: V,
        rotary: Rotary[T],
        selection: Selection[T] | None,
    ) -> T:
        """Joint attention over selected compressed rows and window rows, inverse rotation; [T, H d]. Writes the cache:
        at its end the step's window rows enter the ring."""

    def route(self, layer: LayerConfig, x: T, gate: M, bias: V | None, table: E | None) -> Routing[T]:
        """Expert choice and weights: by score plus bias, or by the table of token ids (spec 3.7)."""

    def experts(self, x: T, routing: Routing[T], routed: Expert[E], shared: Expert[M] | None) -> T:
        """Sum of the chosen experts and the shared one, [T, D]."""

    def take_rows(self, streams: T) -> T:
        """The rows whose logits were asked for, [R, N, D]."""

    def mtp_in(self, embedded: T, streams: T) -> T:
        """Input of the MTP block: X[j] = embedded + streams[j], [T, N, D]."""

    def head(self, streams: T, w: Hyper[M, V], norm: V, matrix: M) -> T:
        """Collapse the streams, norm, logits [R, V]."""
