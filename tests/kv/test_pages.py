"""Sequences and their memory: exact accounting, refusals that change nothing, how far a rewind reaches."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from finback import native
from finback.errors import EngineStateError, MemoryBudgetError, RequestError
from finback.kv.layout import plan_layout
from finback.kv.pages import PagePool
from finback.kv.sequence import SequenceState
from finback.weights.ledger import Ledger
from tests.tiny import TINY

LAYOUT = plan_layout(TINY, cache_rounding=True, max_draft=3)


def make(budget: int = 1 << 30) -> tuple[Ledger, PagePool]:
    ledger = Ledger(budget)
    return ledger, PagePool(LAYOUT, ledger)


def test_the_ledger_counts_the_bytes_that_are_held() -> None:
    before = native.buffer_bytes()
    ledger, pool = make()
    states = [SequenceState(pool) for _ in range(3)]
    for i, state in enumerate(states):
        state.reserve(1000 * (i + 1))
    copy = states[0].checkpoint()
    assert native.buffer_bytes() - before == ledger.in_use > 0
    copy.release()
    for state in states:
        state.close()
    del copy, state, states
    assert ledger.table() == {"budget": 1 << 30}
    assert native.buffer_bytes() == before


def test_pages_are_used_again() -> None:
    ledger, pool = make()
    keep = SequenceState(pool)
    keep.reserve(1)
    for _ in range(20):
        state = SequenceState(pool)
        state.reserve(5000)
        state.close()
    assert pool.pages == 1
    assert ledger.table()["pages"] <= native.buffer_size(64 * LAYOUT.page_bytes)


def test_a_reservation_that_does_not_fit_changes_nothing() -> None:
    ledger, pool = make(LAYOUT.frontier_bytes + 20 * LAYOUT.page_bytes + 8192)
    state = SequenceState(pool)
    state.reserve(10 * LAYOUT.page_span)
    before = ledger.table()
    with pytest.raises(MemoryBudgetError, match="pages needs"):
        state.reserve(1000 * LAYOUT.page_span)
    assert ledger.table() == before
    assert (state.handle.pages, pool.pages) == (10, 10)
    state.reserve(18 * LAYOUT.page_span)  # a doubling would not fit, eight pages do
    assert state.handle.pages == 18


def test_a_sequence_without_room_for_its_frontier_is_refused() -> None:
    _ledger, pool = make(100)
    with pytest.raises(MemoryBudgetError, match="frontiers needs"):
        SequenceState(pool)


def test_pages_of_two_sequences_never_overlap() -> None:
    ledger, pool = make()
    pages = pool.take(40)
    places = {(id(page.slab), page.number) for page in pages}
    assert len(places) == 40
    pool.give(pages[::2])
    again = pool.take(30)
    assert len({(id(p.slab), p.number) for p in again} & {(id(p.slab), p.number) for p in pages[1::2]}) == 0
    pool.give(again)
    pool.give(pages[1::2])
    assert ledger.in_use == 0


# ---- going back
# -----------------------------------------------------------------------------------------------------


def test_a_rewind_reaches_max_draft_rows_and_no_further() -> None:
    _ledger, pool = make()
    state = SequenceState(pool)
    state.advance(100)
    assert [n for n in range(101) if state.can_rewind(n)] == [0, 97, 98, 99, 100]
    state.rewind(98)
    assert [n for n in range(101) if state.can_rewind(n)] == [0, 97, 98]
    state.advance(1)
    assert [n for n in range(101) if state.can_rewind(n)] == [0, 97, 98, 99]
    with pytest.raises(RequestError, match=r"99 tokens cannot be taken back to 50 .* 97 to 99"):
        state.rewind(50)
    assert state.length == 99
    state.clear()
    state.advance(2)
    assert [n for n in range(3) if state.can_rewind(n)] == [0, 1, 2]


@settings(deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["advance", "rewind"]), st.integers(0, 9)), max_size=40))
def test_what_can_be_reached_is_what_the_rings_hold(steps: list[tuple[str, int]]) -> None:
    """Against a model of a ring: slot p mod 4 remembers which computation of position p wrote it last."""
    _ledger, pool = make()
    state = SequenceState(pool)
    slots: dict[int, int] = {}
    for kind, n in steps:
        if kind == "advance":
            for p in range(state.length, state.length + n):
                slots[p % 4] = p
            state.advance(n)
        else:
            reachable = [p + 1 for p in slots.values() if p < state.length]
            allowed = [length for length in range(state.length + 1) if state.can_rewind(length)]
            assert set(allowed) <= {0, state.length, *reachable}
            state.rewind(allowed[n % len(allowed)])
    state.close()


def test_a_checkpoint_brings_the_frontier_back() -> None:
    _ledger, pool = make()
    state = SequenceState(pool)
    state.reserve(300)
    state.advance(128)
    frontier = state._check_open().view()
    frontier[:] = np.arange(frontier.size, dtype=np.uint8)
    copy = state.checkpoint()
    frontier[:] = 7
    state.advance(100)
    state.restore(copy)
    assert np.array_equal(frontier, np.arange(frontier.size, dtype=np.uint8))
    assert state.length == 128
    assert [n for n in range(229) if state.can_rewind(n)] == [0, 125, 126, 127, 128]
    copy.release()
    copy.release()
    with pytest.raises(EngineStateError, match="released"):
        state.restore(copy)


def test_any_sequence_comes_back_to_a_checkpoint() -> None:
    ledger, pool = make()
    long, short = SequenceState(pool), SequenceState(pool)
    long.reserve(300)
    long.advance(300)
    copy = long.checkpoint()
    long.close()
    short.restore(copy)
    assert (short.length, short.handle.pages, pool.shared) == (300, 3, 3)
    short.restore(copy, 297)
    assert short.length == 297
    with pytest.raises(RequestError, match="serves lengths from 297 on, not 296"):
        short.restore(copy, 296)
    copy.release()
    copy.release()
    with pytest.raises(EngineStateError, match="released"):
        short.restore(copy)
    short.close()
    assert ledger.table() == {"budget": 1 << 30}


def test_a_closed_sequence_says_so() -> None:
    _ledger, pool = make()
    state = SequenceState(pool)
    state.close()
    state.close()
    for use in (lambda: state.reserve(1), state.clear, state.checkpoint, lambda: state.handle):
        with pytest.raises(EngineStateError, match="closed"):
            use()
