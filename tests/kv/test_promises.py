"""Promises: pages below the limit are never refused, whatever the sequence itself and others did before; the memory for
them comes out of the prefix cache, as much of it as it takes, and out of one ledger that several threads use."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import pytest

from finback import native
from finback.errors import MemoryBudgetError
from finback.kv.layout import MAX_DRAFT
from finback.kv.pages import PagePool
from finback.kv.sequence import SequenceState
from finback.weights.ledger import Ledger
from tests.kv.test_prefix import Cache
from tests.kv.test_sharing import FRONTIER, LAYOUT, PAGE, SPAN, Play, keep_all_promises


def full_cache() -> Cache:
    """A budget of 20 frontiers, all of it in kept states."""
    cache = Cache(20 * FRONTIER)
    for i in range(60):
        cache.compute([3 + i] * (3 * SPAN))
    assert cache.ledger.available < 3 * FRONTIER
    assert cache.prefix.stats().entries > 6
    return cache


def large_promise(cache: Cache) -> None:
    cache.pool.promise(10 * FRONTIER // PAGE * SPAN).release()


def large_sequence(cache: Cache) -> None:
    state = SequenceState(cache.pool)
    state.reserve(10 * FRONTIER // PAGE * SPAN)
    state.close()


def large_sequence_beside_promises(cache: Cache) -> None:
    promise = cache.pool.promise(2 * SPAN)
    large_sequence(cache)
    promise.release()


@pytest.mark.parametrize("ask", [large_promise, large_sequence, large_sequence_beside_promises])
def test_one_request_takes_the_place_of_many_kept_states(ask: Callable[[Cache], None]) -> None:
    cache = full_cache()
    before = cache.prefix.stats()
    ask(cache)
    cache.check()
    after = cache.prefix.stats()
    assert after.evictions - before.evictions >= 4
    assert after.entries > 0, "no more went than had to"


def test_what_does_not_fit_an_empty_cache_is_refused_with_the_numbers() -> None:
    cache = full_cache()
    with pytest.raises(MemoryBudgetError, match="promised needs"):
        cache.pool.promise(40 * FRONTIER // PAGE * SPAN)
    cache.check()


def take_all(play: Play, sequence: SequenceState) -> None:
    """Let a sequence grow as far as there is memory."""
    with suppress(MemoryBudgetError):
        while True:
            play.write(sequence, SPAN)


def promised(limit: int) -> tuple[Play, SequenceState]:
    """A sequence with a promise, where there is room for twice as much as that."""
    play = Play(12 * FRONTIER + 3 * LAYOUT.pages_for(limit) * PAGE)
    return play, play.new(limit)


def test_checkpoints_and_rewinds_in_turn_never_use_a_promise_up() -> None:
    play, sequence = promised(4 * SPAN)
    play.write_promised(sequence, 10)
    for _ in range(6):
        play.checkpoints[sequence.checkpoint()] = list(play.sequences[sequence])
        sequence.rewind(sequence.length - 2)
        del play.sequences[sequence][-2:]
        play.write_promised(sequence, 3)
        play.check()
    assert play.pool.shared == 0, "each time the page was copied"
    keep_all_promises(play)


def test_a_promise_counts_what_a_checkpoint_brings_along_once() -> None:
    play, sequence = promised(4 * SPAN)
    first = play.new()
    play.write(first, 3 * SPAN)
    kept = first.checkpoint()
    play.checkpoints[kept] = list(play.sequences[first])
    for _ in range(3):
        sequence.restore(kept)
        play.sequences[sequence] = list(play.checkpoints[kept])
        assert play.promises[sequence][0].pages == 1 + 1 + 1, "one to come, one to rewind into, one to spare"
        play.check()
    sequence.clear()
    play.sequences[sequence] = []
    assert play.promises[sequence][0].pages == 4
    keep_all_promises(play)


def test_going_back_says_when_the_promise_cannot_be_made_whole() -> None:
    play, sequence = promised(8 * SPAN)
    first = play.new()
    play.write(first, 8 * SPAN)
    sequence.restore(first.checkpoint())
    take_all(play, first)
    with pytest.raises(MemoryBudgetError, match="promised needs"):
        sequence.clear()
    assert (sequence.length, sequence.handle.pages) == (0, 0)
    play.pool.check(play.ledger.table)


@pytest.mark.parametrize("length", [SPAN, SPAN + 1, SPAN + 40])
def test_a_promise_of_a_fork_is_for_what_it_does_not_share(length: int) -> None:
    play, first = promised(4 * SPAN)
    play.write(first, length)
    promise = play.pool.promise(4 * SPAN - SPAN)
    other = first.fork(promise)
    play.sequences[other], play.promises[other] = list(play.sequences[first]), (promise, 4 * SPAN)
    for sequence in (first, other):
        for back in (MAX_DRAFT, 1):
            play.checkpoints[sequence.checkpoint()] = list(play.sequences[sequence])
            sequence.rewind(sequence.length - back)
            del play.sequences[sequence][-back:]
            play.write_promised(sequence, back + 1)
            play.check()
    keep_all_promises(play)


def test_growing_beyond_the_limit_takes_what_is_free() -> None:
    play, sequence = promised(2 * SPAN)
    other = play.new(6 * SPAN)
    play.write(sequence, 5 * SPAN)
    play.check()
    with pytest.raises(MemoryBudgetError, match="pages needs"):
        play.write(sequence, 1000 * SPAN)
    play.check()
    play.write_promised(other, 6 * SPAN)


def test_a_budget_without_a_byte_to_spare_is_enough() -> None:
    play = Play(FRONTIER + (2 + 1 + 1) * PAGE)
    sequence = play.new(2 * SPAN)
    play.write(sequence, 4 * SPAN)
    play.check()


class Rivals(Ledger):
    """A ledger beside whose pool others wait for memory: what is given back is gone at once."""

    def release(self, name: str, size: int) -> None:
        super().release(name, size)
        self.take_all()

    def take_all(self) -> None:
        self.reserve("rivals", self.available)


def test_no_thread_gets_what_is_promised_while_it_is_taken() -> None:
    ledger = Rivals(4 * FRONTIER + 20 * PAGE)
    pool = PagePool(LAYOUT, ledger)
    promise = pool.promise(8 * SPAN)
    ledger.take_all()
    sequence = SequenceState(pool, promise)
    for length in range(SPAN, 8 * SPAN + 1, SPAN):
        sequence.reserve(length)
        sequence.advance(SPAN)
        pool.check(ledger.table)
    checkpoint = sequence.into_checkpoint()
    pool.check(ledger.table)
    checkpoint.release()
    promise.release()
    assert ledger.table() == {"rivals": ledger.budget, "budget": ledger.budget}


def test_a_system_that_refuses_memory_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second slab is refused: the first, taken for the same call, stands for the promise now."""
    play, sequence = promised(2 * SPAN)
    before, allocate, calls = play.ledger.in_use, native.allocate, []

    def refuse(size: int, purpose: str) -> native.Buffer:
        calls.append(size)
        if len(calls) == 2:
            raise MemoryBudgetError("the system refuses", needed=size, budget=size)
        return allocate(size, purpose)

    monkeypatch.setattr(native, "allocate", refuse)
    with pytest.raises(MemoryBudgetError, match="the system refuses"):
        sequence.reserve(4 * SPAN)
    assert len(calls) == 2
    assert play.ledger.in_use == before
    play.check()
    play.write_promised(sequence, 2 * SPAN)
    play.check()
