"""Shared pages, by random play against a model of what every holder must read: nobody's rows change under them,
references and the ledger add up after every move, promises are kept whatever others take."""

from __future__ import annotations

import gc
import random
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from finback import native
from finback.errors import EngineStateError, MemoryBudgetError
from finback.kv.layout import MAX_DRAFT, plan_layout
from finback.kv.pages import PagePool, Promise
from finback.kv.sequence import Checkpoint, SequenceState
from finback.weights.ledger import Ledger
from tests.tiny import TINY

LAYOUT = plan_layout(TINY, cache_rounding=True, max_draft=MAX_DRAFT)
SPAN = LAYOUT.page_span
FRONTIER = native.buffer_size(LAYOUT.frontier_bytes)
PAGE = native.buffer_size(LAYOUT.page_bytes)


class Play:
    """A pool, its holders, and what each must read: one mark for every token, written where a row of it would lie."""

    def __init__(self, budget: int) -> None:
        self.ledger = Ledger(budget)
        self.pool = PagePool(LAYOUT, self.ledger)
        self.pool.reclaim = self.reclaim
        self.mark = 0
        self.sequences: dict[SequenceState, list[int]] = {}
        self.promises: dict[SequenceState, tuple[Promise, int]] = {}
        self.checkpoints: dict[Checkpoint, list[int]] = {}

    def reclaim(self, size: int) -> int:
        before = self.ledger.in_use
        free = self.pool._free
        if self.checkpoints:
            checkpoint = next(iter(self.checkpoints))
            del self.checkpoints[checkpoint]
            checkpoint.release()
        return before - self.ledger.in_use + (self.pool._free - free) * PAGE

    def place(self, holder: SequenceState | Checkpoint, token: int) -> np.ndarray:
        page = holder.pages[token // SPAN]
        start = page.number * self.pool.page_stride
        rows = page.slab.buffer.view()[start : start + self.pool.page_stride].view(np.int32)
        return rows[token % SPAN : token % SPAN + 1]

    def write(self, sequence: SequenceState, n: int) -> None:
        tokens = self.sequences[sequence]
        sequence.reserve(len(tokens) + n)
        for token in range(len(tokens), len(tokens) + n):
            self.mark += 1
            self.place(sequence, token)[0] = self.mark
            self.slots(sequence)[token % (MAX_DRAFT + 1)] = self.mark
            tokens.append(self.mark)
        sequence.advance(n)

    @staticmethod
    def slots(holder: SequenceState | Checkpoint) -> np.ndarray:
        """Slots of the frontier, as open groups have them: one for each token that can be taken back, and one more."""
        frontier = holder.frontier if isinstance(holder, Checkpoint) else holder._frontier
        assert frontier is not None
        return frontier.view()[: 4 * (MAX_DRAFT + 1)].view(np.int32)

    def check(self) -> None:
        assert self.pool.holders == {*self.sequences, *self.checkpoints}
        self.pool.check(self.ledger.table)
        for holder, tokens in [*self.sequences.items(), *self.checkpoints.items()]:
            assert [int(self.place(holder, t)[0]) for t in range(len(tokens))] == tokens
            assert holder.length == len(tokens)
            if tokens:
                assert self.slots(holder)[(len(tokens) - 1) % (MAX_DRAFT + 1)] == tokens[-1]

    def new(self, length: int | None = None) -> SequenceState:
        promise = None if length is None else self.pool.promise(length)
        try:
            sequence = SequenceState(self.pool, promise)
        except MemoryBudgetError:
            assert promise is None, "a promise was broken"
            raise
        self.sequences[sequence] = []
        if promise is not None and length is not None:
            self.promises[sequence] = (promise, length)
        return sequence

    def write_promised(self, sequence: SequenceState, n: int) -> None:
        try:
            self.write(sequence, n)
        except MemoryBudgetError as error:
            raise AssertionError("a promise was broken") from error

    def or_else_drop(self, sequence: SequenceState, act: Callable[[], None]) -> None:
        """Go back. Who is told that his promise cannot be made whole again gives up."""
        try:
            act()
        except MemoryBudgetError:
            assert sequence in self.promises, "going back takes nothing"
            self.check()
            self.drop(sequence)
            raise

    def drop(self, sequence: SequenceState) -> None:
        del self.sequences[sequence]
        sequence.close()
        if sequence in self.promises:
            self.promises.pop(sequence)[0].release()


def turn(play: Play, dice: random.Random) -> None:
    """One random move. Pages below a promise's limit may not be refused, whatever happened before."""
    sequence = dice.choice(list(play.sequences)) if play.sequences else None
    checkpoint = dice.choice(list(play.checkpoints)) if play.checkpoints else None
    move = dice.randrange(12)
    if move == 0 or sequence is None:
        play.new(dice.choice([None, 40, 3 * SPAN, 5 * SPAN + 7]))
    elif move in (1, 2, 3):
        n = dice.choice([1, 3, 17, SPAN, 2 * SPAN - 1])
        if sequence in play.promises:
            n = min(n, play.promises[sequence][1] - sequence.length)
        play.write_promised(sequence, n) if sequence in play.promises else play.write(sequence, n)
    elif move == 4 and sequence.length:
        copy = sequence.checkpoint()
        play.checkpoints[copy] = list(play.sequences[sequence])
    elif move == 5 and checkpoint is not None:
        length = dice.randint(max(0, checkpoint.reach), checkpoint.length)
        if sequence not in play.promises or length <= play.promises[sequence][1]:
            play.sequences[sequence] = play.checkpoints[checkpoint][:length]
            play.or_else_drop(sequence, lambda: sequence.restore(checkpoint, length))
    elif move in (6, 7):
        length = dice.choice([0, *range(max(0, sequence.length - MAX_DRAFT), sequence.length + 1)])
        if sequence.can_rewind(length):
            del play.sequences[sequence][length:]
            play.or_else_drop(sequence, lambda: sequence.rewind(length))
    elif move == 8:
        limit = dice.choice([None, sequence.length + 3, sequence.length + 2 * SPAN])
        promise = None if limit is None else play.pool.promise(limit - sequence.length // SPAN * SPAN)
        try:
            other = sequence.fork(promise)
        except MemoryBudgetError:
            if promise is not None:
                promise.release()
            raise
        play.sequences[other] = list(play.sequences[sequence])
        if promise is not None and limit is not None:
            play.promises[other] = (promise, limit)
    elif move == 9 and sequence.length:
        tokens = play.sequences.pop(sequence)
        play.checkpoints[sequence.into_checkpoint()] = tokens
        if sequence in play.promises:
            play.promises.pop(sequence)[0].release()
    elif move == 10 and dice.random() < 0.5:
        play.drop(sequence)
    elif checkpoint is not None:
        del play.checkpoints[checkpoint]
        checkpoint.release()


def keep_all_promises(play: Play) -> None:
    """Somebody takes all there is; then every promised sequence grows to its limit."""
    greedy = None
    try:
        greedy = play.new()
        while True:
            play.write(greedy, SPAN)
    except MemoryBudgetError:
        pass
    play.check()
    for sequence, (_, limit) in list(play.promises.items()):
        play.write_promised(sequence, limit - sequence.length)
        play.check()
    if greedy is not None:
        play.drop(greedy)


@pytest.mark.parametrize("room", [9, 25, 400])
@settings(max_examples=12, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_random_play(room: int, seed: int) -> None:
    gc.collect()  # what other tests left
    before = native.buffer_bytes()
    play, dice = Play(room * PAGE + max(2, room // 4) * FRONTIER), random.Random(seed)
    for _ in range(80):
        try:
            turn(play, dice)
        except MemoryBudgetError:
            assert room < 400, "there was room"
        play.check()
    if room < 400:
        keep_all_promises(play)
    for sequence in list(play.sequences):
        play.drop(sequence)
    for checkpoint in play.checkpoints:
        checkpoint.release()
    play.sequences.clear()
    play.checkpoints.clear()
    play.check()
    assert play.ledger.table() == {"budget": play.ledger.budget}
    assert native.buffer_bytes() == before


def test_going_on_after_a_checkpoint_copies_nothing_and_starting_from_it_copies_one_page() -> None:
    play = Play(1 << 30)
    first = play.new()
    play.write(first, SPAN + 10)
    checkpoint = first.checkpoint()
    play.checkpoints[checkpoint] = list(play.sequences[first])
    pages = list(first.pages)
    play.write(first, 20)
    assert first.pages == pages
    second, third = play.new(), play.new()
    for other in (second, third):
        other.restore(checkpoint)
        play.sequences[other] = list(play.checkpoints[checkpoint])
        play.write(other, 5)
        assert other.pages[0] is pages[0]
        assert other.pages[1] is not pages[1]
    play.check()
    assert play.pool.pages == 4


def test_the_next_turn_writes_where_the_last_one_ended() -> None:
    """The usual case: nobody writes behind a kept state any more, so the first that starts from it copies nothing."""
    play = Play(1 << 30)
    first = play.new()
    play.write(first, SPAN + 10)
    tokens = play.sequences.pop(first)
    kept = first.into_checkpoint()
    play.checkpoints[kept] = tokens
    second, third = play.new(), play.new()
    for other in (second, third):
        other.restore(kept)
        play.sequences[other] = list(tokens)
    play.write(second, 3)
    play.write(third, 3)
    play.check()
    assert second.pages[1] is kept.pages[1]
    assert third.pages[1] is not kept.pages[1]


def test_a_promise_holds_though_others_take_all_there_is() -> None:
    play = Play(3 * FRONTIER + 12 * PAGE)
    promised = play.new(4 * SPAN)
    greedy = play.new()
    with pytest.raises(MemoryBudgetError):
        [play.write(greedy, SPAN) for _ in range(1000)]
    play.check()
    play.write(promised, 4 * SPAN)
    play.check()
    with pytest.raises(MemoryBudgetError, match="promised needs"):
        play.pool.promise(8 * SPAN)
    play.check()


def test_what_a_prefix_brings_along_is_not_set_aside_twice() -> None:
    play = Play(1 << 30)
    first = play.new()
    play.write(first, 10 * SPAN + 5)
    kept = first.checkpoint()
    play.checkpoints[kept] = list(play.sequences[first])
    promise = play.pool.promise(11 * SPAN)
    assert promise.pages == 12
    second = SequenceState(play.pool, promise)
    second.restore(kept)
    assert promise.pages == 2, "the page in use may have to be copied, and one more"
    second.close()
    promise.release()
    play.check()


def test_a_page_that_is_nobody_elses_any_more_is_written_without_a_copy() -> None:
    play = Play(1 << 30)
    first = play.new()
    play.write(first, 40)
    gone = first.checkpoint()
    (page,) = first.pages
    gone.release()
    first.rewind(38)
    del play.sequences[first][38:]
    play.checkpoints[first.checkpoint()] = list(play.sequences[first])
    play.write(first, 5)
    assert first.pages == [page]
    play.check()


def test_rows_made_up_for_timing_leave_those_of_others_alone() -> None:
    play = Play(1 << 30)
    first = play.new()
    play.write(first, 3 * SPAN)
    play.checkpoints[first.checkpoint()] = list(play.sequences.pop(first))
    first.fill(2 * SPAN, "scalar", 1)
    assert first.length == 2 * SPAN
    first.close()
    play.check()


@pytest.mark.parametrize("fault", ["refs", "free", "ledger", "lost"])
def test_the_check_finds_what_does_not_add_up(fault: str) -> None:
    play = Play(1 << 30)
    sequence = play.new()
    play.write(sequence, 3 * SPAN)
    play.pool.check(play.ledger.table)
    if fault == "refs":
        sequence.pages[1].refs += 1
    elif fault == "free":
        sequence.pages[0].slab.free.append(sequence.pages[0].number)
    elif fault == "ledger":
        play.ledger.reserve("pages", 4096)
    else:
        sequence.pages.pop()
    with pytest.raises(EngineStateError, match=r"does not add up.*defect of finback"):
        play.pool.check(play.ledger.table)
