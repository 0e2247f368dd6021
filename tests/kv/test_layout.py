"""The layout's bytes: the documented formulas, the native core's own sizes, and disjoint regions for any
shape."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from finback import native
from finback.config import ModelConfig, RopeConfig
from finback.kv.layout import Layout, Row, aligned, page_span_of, plan_layout
from tests.golden import layers
from tests.tiny import TINY

FLASH = replace(
    TINY,
    head_dim=512,
    qk_rope_head_dim=64,
    sliding_window=128,
    index_head_dim=128,
    layers=layers((0, 0, *(4, 128) * 20, 4), 0, 3),
    mtp_layers=layers((0,), 43, 0),
)


def test_rows_of_v4_flash() -> None:
    assert Row(512, 64, True).nbytes == 584
    assert Row(128, 0, True).nbytes == 68
    assert Row(512, 64, False).nbytes == 2048


def test_v4_flash_costs_what_the_documentation_says() -> None:
    layout = plan_layout(FLASH, cache_rounding=True, max_draft=0)
    assert layout.page_span == 128
    assert layout.bytes_per_token() == pytest.approx(21 * (584 + 68) / 4 + 20 * 584 / 128, rel=0.01)
    window = 44 * aligned(128 * 584)
    slots = 21 * (2 * 12 * 512 + 24 * 128) + 20 * 12 * 512
    assert layout.frontier_bytes == window + slots
    assert layout.bytes_for(129) == layout.frontier_bytes + 2 * layout.page_bytes


@given(st.integers(1, 700), st.integers(0, 90), st.booleans())
def test_rows_are_as_long_as_the_kernels_make_them(width: int, pairs: int, rounded: bool) -> None:
    rotary = min(2 * pairs, width // 2 * 2)
    if rotary == 0 and rounded:
        width += width % 2  # two FP4 codes share a byte
    row = Row(width, rotary, rounded)
    assert row.nbytes == native.cache_row_bytes(native.RowShape(width, rotary, rounded))


@pytest.mark.parametrize(
    ("ratios", "span"),
    [((), 128), ((4, 8), 128), ((4, 128), 128), ((3,), 129), ((12, 8), 144), ((127, 4), 508), ((300,), 300)],
)
def test_page_span_is_a_multiple_of_every_ratio(ratios: tuple[int, ...], span: int) -> None:
    assert page_span_of(ratios) == span


def regions(layout: Layout) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """Spans in frontier and page."""
    frontier, page = [], []
    for layer in layout.layers:
        frontier.append((layer.ring_offset, (layout.window + layout.max_draft) * layer.ring.nbytes))
        for stream in (layer.main, layer.index):
            if stream:
                frontier.append((stream.slot_offset, (layout.max_draft + 1) * stream.slot_bytes))
                page.append((stream.page_offset, layout.page_span // layer.ratio * stream.row.nbytes))
    return frontier, page


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.sampled_from([0, 4, 8, 128]), min_size=1, max_size=6),
    st.integers(1, 40),
    st.integers(0, 5),
    st.booleans(),
)
def test_regions_are_disjoint_aligned_and_inside(
    ratios: list[int], window: int, max_draft: int, rounded: bool
) -> None:
    config: ModelConfig = replace(
        TINY,
        sliding_window=window,
        layers=layers(tuple(ratios), 0, 0),
        mtp_layers=(),
        rope=RopeConfig(10000.0),
    )
    layout = plan_layout(config, cache_rounding=rounded, max_draft=max_draft)
    for spans, total in zip(regions(layout), (layout.frontier_bytes, layout.page_bytes), strict=True):
        end = 0
        for offset, size in sorted(spans):
            assert offset >= end
            assert offset % 64 == 0
            end = offset + size
        assert end <= total


def test_a_model_without_compressed_layers_needs_no_pages() -> None:
    config = replace(TINY, layers=layers((0, 0), 0, 0), mtp_layers=())
    layout = plan_layout(config, cache_rounding=True, max_draft=2)
    assert (layout.page_bytes, layout.pages_for(1000), layout.bytes_per_token()) == (0, 0, 0)
