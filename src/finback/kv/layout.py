"""What a sequence holds, in bytes: where every ring, open group and compressed row lies.

Owns the numbers that the native operations read (native/kv.h) and the formulas of docs/memory.md. Refuses
nothing: a configuration was checked before it came here. Sources: docs/architecture.md section 5,
docs/exactness.md sections 9, 10; spec section 4.

A row of d channels takes

    not rounded       4 d
    main, rounded     (d - r) + 8 ceil(ceil((d - r) / 64) / 8) + 2 r        r rotary channels; V4-Flash: 584
    index, rounded    ceil(d / 2) + ceil(d / 32)                            V4-Flash: 68

    frontier   per layer:  ring (window + max_draft) main_row
               compressed: (max_draft + 1) open 12 d         states of open groups; open: 2 for CSA, 1 for HCA
               CSA:        (max_draft + 1) 24 index_d
    page       per compressed layer, page_span / ratio rows: main_row each, and index_row each for CSA
    page_span  least common multiple of the ratios, doubled up to at least 128 tokens

every part rounded up to 64 bytes. Per token: page_bytes / page_span.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from finback import native
from finback.config import LayerConfig, ModelConfig

MAX_DRAFT = 3
"""Rows that a sequence can take back by setting a length: two drafts of the MTP block and the token that was
sampled."""

MIN_PAGE_SPAN = 128
"""Fewer tokens a page would cost more in bookkeeping than they save at the end of a sequence."""


def aligned(size: int) -> int:
    """`size` rounded up to a cache line of 64 bytes."""
    return -(-size // 64) * 64


@dataclass(frozen=True, slots=True)
class Row:
    """A cache row: `width` channels, the last `rotary` of them rotary ones (0: an indexer row)."""

    width: int
    rotary: int
    rounded: bool

    @property
    def nbytes(self) -> int:
        if not self.rounded:
            return 4 * self.width
        if self.rotary == 0:
            return -(-self.width // 2) + -(-self.width // 32)
        front = self.width - self.rotary
        scales = -(-front // 64)
        return front + 8 * -(-scales // 8) + 2 * self.rotary


@dataclass(frozen=True, slots=True)
class Stream:
    """Compressed rows of one kind in one layer (native/kv.h, StreamLayout)."""

    row: Row
    open: int
    slot_offset: int
    page_offset: int

    @property
    def slot_bytes(self) -> int:
        """One state of the open groups: maximum, sum and weighted sum of every channel, f32."""
        return self.open * 3 * self.row.width * 4


@dataclass(frozen=True, slots=True)
class LayerSpan:
    """Where one layer's share of frontier and page lies (native/kv.h, LayerLayout)."""

    ratio: int
    overlapped: bool
    ring: Row
    ring_offset: int
    main: Stream | None
    index: Stream | None


@dataclass(frozen=True, slots=True)
class Layout:
    """The layout of every sequence of an engine. Layers of the draft block follow the main ones."""

    layers: tuple[LayerSpan, ...]
    window: int
    max_draft: int
    page_span: int
    frontier_bytes: int
    page_bytes: int
    handle: native.KvLayout

    def bytes_per_token(self) -> float:
        """Bytes of compressed rows a token costs, on average over a page."""
        return self.page_bytes / self.page_span

    def pages_for(self, length: int) -> int:
        """Pages that hold the compressed rows of `length` tokens."""
        return -(-length // self.page_span) if self.page_bytes else 0

    def bytes_for(self, length: int) -> int:
        """Bytes of a whole sequence of `length` tokens: frontier and pages."""
        return self.frontier_bytes + self.pages_for(length) * self.page_bytes


class _Space:
    """Offsets handed out one after the other."""

    def __init__(self) -> None:
        self.size = 0

    def take(self, size: int) -> int:
        at = self.size
        self.size += aligned(size)
        return at


def page_span_of(ratios: Sequence[int]) -> int:
    """Tokens per page: a multiple of every ratio, and at least 128."""
    span = math.lcm(*ratios) if ratios else MIN_PAGE_SPAN
    return span * -(-MIN_PAGE_SPAN // span)


def plan_layout(config: ModelConfig, *, cache_rounding: bool, max_draft: int) -> Layout:
    """The layout for a model. `max_draft`: rows that can be taken back by setting a length."""
    layers = (*config.layers, *config.mtp_layers)
    span = page_span_of(sorted({layer.ratio for layer in layers if layer.ratio}))
    frontier, page = _Space(), _Space()
    spans = tuple(_layer(layer, config, cache_rounding, max_draft, span, frontier, page) for layer in layers)
    numbers = (
        config.sliding_window,
        config.sliding_window + max_draft,
        max_draft + 1,
        span,
        frontier.size,
        page.size,
    )
    handle = native.KvLayout([_native_layer(layer, span) for layer in spans], *numbers)
    return Layout(spans, config.sliding_window, max_draft, span, frontier.size, page.size, handle)


def _layer(
    layer: LayerConfig,
    config: ModelConfig,
    rounded: bool,
    max_draft: int,
    span: int,
    frontier: _Space,
    page: _Space,
) -> LayerSpan:
    row = Row(config.head_dim, config.qk_rope_head_dim, rounded)
    overlapped = layer.kind == "csa"
    ring_offset = frontier.take((config.sliding_window + max_draft) * row.nbytes)

    def stream(row: Row) -> Stream:
        made = Stream(row, 2 if overlapped else 1, frontier.size, page.take(span // layer.ratio * row.nbytes))
        frontier.take((max_draft + 1) * made.slot_bytes)
        return made

    main = stream(row) if layer.ratio else None
    index = stream(Row(config.index_head_dim, 0, rounded)) if layer.has_indexer else None
    return LayerSpan(layer.ratio, overlapped, row, ring_offset, main, index)


def _native_layer(layer: LayerSpan, span: int) -> native.LayerLayout:
    return native.LayerLayout(
        ratio=layer.ratio,
        overlapped=layer.overlapped,
        ring_offset=layer.ring_offset,
        ring_row_bytes=layer.ring.nbytes,
        ring_shape=_native_row(layer.ring),
        rows_per_page=span // layer.ratio if layer.ratio else 0,
        main=_native_stream(layer.main),
        index=_native_stream(layer.index),
    )


def _native_stream(stream: Stream | None) -> native.StreamLayout | None:
    if stream is None:
        return None
    return native.StreamLayout(
        open=stream.open,
        slot_offset=stream.slot_offset,
        slot_bytes=stream.slot_bytes,
        page_offset=stream.page_offset,
        row_bytes=stream.row.nbytes,
        shape=_native_row(stream.row),
    )


def _native_row(row: Row) -> native.RowShape:
    return native.RowShape(row.width, row.rotary, row.rounded)
