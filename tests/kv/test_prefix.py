"""The prefix cache: the longest usable beginning, against a list of all that is kept; what goes first; sentences."""

from __future__ import annotations

import random
import threading
from collections.abc import Sequence

import numpy as np
import pytest

from finback.errors import EngineStateError
from finback.kv.layout import MAX_DRAFT, plan_layout
from finback.kv.pages import PagePool
from finback.kv.prefix import HALF_LIFE_S, REMEMBERED_TOKENS, Found, PrefixCache, common
from finback.kv.sequence import SequenceState
from finback.weights.ledger import Ledger
from tests.tiny import TINY

LAYOUT = plan_layout(TINY, cache_rounding=True, max_draft=MAX_DRAFT)


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


class Cache:
    """A prefix cache over a pool of its own."""

    def __init__(self, budget: int = 1 << 30) -> None:
        self.ledger, self.clock = Ledger(budget), Clock()
        self.pool = PagePool(LAYOUT, self.ledger)
        self.prefix = PrefixCache(self.pool, clock=self.clock, seconds_per_token=lambda: 0.01)

    def compute(self, tokens: Sequence[int], keep_at: Sequence[int] = ()) -> int:
        """As the engine does: start from what is kept, leave checkpoints, and the end. Returns tokens reused."""
        state = SequenceState(self.pool)
        found = self.prefix.begin(tokens, state)
        for stop in [*(k for k in keep_at if k > found.length), len(tokens)]:
            state.reserve(stop)
            state.advance(stop - state.length)
            if stop < len(tokens) and not self.prefix.has(tokens[:stop]):
                self.prefix.insert(tokens[:stop], state.checkpoint())
        self.prefix.insert(tokens, state.into_checkpoint())
        return found.length

    def check(self) -> None:
        self.pool.check(self.ledger.table)
        assert self.pool.holders == set(self.prefix.checkpoints())
        pages = {page for checkpoint in self.prefix.checkpoints() for page in checkpoint.pages}
        frontiers = sum(checkpoint.nbytes for checkpoint in self.prefix.checkpoints())
        assert self.prefix.nbytes == frontiers + len(pages) * self.pool.page_stride


def test_against_a_list_of_everything_kept() -> None:
    """Random prompts over two tokens and few lengths, so that they share, extend and cut each other in every way."""
    dice = random.Random(3)
    for _ in range(25):
        cache, kept = Cache(), {}
        for _ in range(40):
            tokens = [dice.randrange(2) for _ in range(dice.randrange(2, 30))]
            limit = len(tokens) - 1
            best = 0
            for other, reach in kept.items():
                same = common(np.array(other, np.int32), np.array(tokens, np.int32))
                served = min(same, len(other), limit)
                if served >= reach:
                    best = max(best, served)
            found = cache.prefix.find(tokens, limit)
            assert found.length == best, found
            if found.checkpoint is not None:
                assert found.checkpoint.reach <= best <= found.checkpoint.length
            cache.compute(tokens)
            for checkpoint in cache.prefix.checkpoints():
                assert checkpoint.length - checkpoint.reach <= MAX_DRAFT
            node = next(n for n in cache.prefix._kept if n.end == len(tokens) and _tokens(n) == tokens)
            kept[tuple(tokens)] = node.checkpoint.reach
            if dice.random() < 0.2:
                cache.prefix.evict(1)
                alive = {tuple(_tokens(n)) for n in cache.prefix._kept}
                kept = {tokens: reach for tokens, reach in kept.items() if tokens in alive}
            cache.check()


def _tokens(node: object) -> list[int]:
    found: list[int] = []
    while node is not None:
        found = [*node.edge.tolist(), *found]  # type: ignore[attr-defined]
        node = node.parent  # type: ignore[attr-defined]
    return found


def test_an_exact_repeat_costs_one_token_and_an_extension_what_is_new() -> None:
    cache = Cache()
    tokens = list(range(3, 400))
    assert cache.compute(tokens) == 0
    assert cache.compute(tokens) == len(tokens) - 1
    assert cache.compute([*tokens, 7, 8, 9]) == len(tokens)
    for back in range(1, MAX_DRAFT + 1):
        assert cache.compute([*tokens[:-back], 500, 501]) == len(tokens) - back
    assert cache.compute([*tokens[:-10], 500, 501]) == 0
    cache.check()


def test_reasons_are_sentences_that_name_the_token() -> None:
    cache = Cache()
    tokens = list(range(3, 1003))
    cache.compute(tokens, keep_at=(200, 600))
    find = cache.prefix.find
    assert find([9, 9, 9], 2).reason == "nothing kept begins like this prompt"
    assert find(tokens, 999).reason == "999 tokens were kept; all of it was computed before"
    assert find([*tokens[:700], 5, 5], 701).reason == (
        "600 tokens were kept; it differs from what is kept from token 700 on"
    )
    assert find([*tokens[:100], 5, 5], 101).reason == (
        "no state was kept of its beginning; it differs from what is kept from token 100 on"
    )
    assert find([*tokens, 5], 1000).reason == "1000 tokens were kept"
    cache.prefix._drop(next(n for n in cache.prefix._kept if n.end == 600))
    assert find([*tokens[:700], 5, 5], 701).reason == (
        "200 tokens were kept; the state at token 600 was evicted; it differs from what is kept from token 700 on"
    )
    assert find([*tokens[:700], 5, 5], 701).diverged == 700


def test_a_prefix_that_many_use_outlives_long_ones_used_once() -> None:
    """Case E05: 500 tokens used 16 times in a week, ten prompts of 90,000 used once, room for half."""
    cache = Cache(1 << 40)
    dice = random.Random(0)
    short = [dice.randrange(3, 300) for _ in range(500)]
    for i in range(16):
        cache.clock.now = i * 7 * 24 * 3600 / 16
        cache.compute([*short, 100 + i], keep_at=(500,))
        if i in (1, 3, 5, 7, 8, 9, 11, 13, 14, 15):
            cache.compute([dice.randrange(3, 300) for _ in range(90_000)])
    cache.prefix.evict(cache.prefix.nbytes // 2)
    assert cache.prefix.find([*short, 7], 500).length == 500
    assert cache.prefix.stats().evictions >= 4
    cache.check()


def test_a_tiny_request_never_displaces_a_large_live_prefix() -> None:
    cache = Cache()
    large = list(range(3, 250)) * 50
    cache.compute(large)
    for i in range(20):
        cache.clock.now += 60
        cache.compute([5, 6, i])
        cache.prefix.evict(1)
        assert cache.prefix.find([*large, 1], len(large)).length == len(large)
    cache.check()


def test_evicting_frees_what_it_says_and_in_the_end_everything() -> None:
    cache = Cache()
    stem = list(range(3, 900))
    for i in range(8):
        cache.compute([*stem, *[i + 3] * (50 * i + 1)], keep_at=(100, 300, 897))
    while cache.prefix.nbytes:
        before = cache.prefix.nbytes
        freed = cache.prefix.evict(1)
        assert freed == before - cache.prefix.nbytes > 0
        cache.check()
    assert cache.prefix.evict(1) == 0
    assert cache.ledger.table() == {"budget": 1 << 30}
    assert "evicted" in cache.prefix.find([*stem, 4], 897).reason


def test_memory_that_is_asked_for_comes_out_of_the_cache() -> None:
    cache = Cache(40 * LAYOUT.frontier_bytes)
    for i in range(200):
        cache.compute([3 + i % 200, i // 200 + 3, *range(3, 200)])
    assert 0 < cache.prefix.stats().entries < 60
    assert cache.prefix.stats().evictions > 100
    state = SequenceState(cache.pool)
    state.reserve(4000)
    state.close()
    cache.check()


def test_branches_without_states_are_forgotten_after_a_while() -> None:
    cache = Cache()
    size = REMEMBERED_TOKENS // 4
    for i in range(12):
        cache.compute([i + 3, *([7] * size)])
        cache.prefix.evict(1 << 30)
    cache.check()
    assert cache.prefix._forgotten_tokens <= REMEMBERED_TOKENS
    assert len(cache.prefix._root.children) <= 4
    assert "evicted" in cache.prefix.find([14, *([7] * size)], size).reason
    assert cache.prefix.find([3, *([7] * size)], size).reason == "nothing kept begins like this prompt"


def test_places_where_branches_once_were_are_forgotten_with_them() -> None:
    cache, stem = Cache(), list(range(3, 253))
    cache.compute(stem)
    for at in range(1, 200):
        cache.compute([*stem[:at], 2, *([7] * (REMEMBERED_TOKENS // 8))])
        cache.prefix.forget([*stem[:at], 2, *([7] * (REMEMBERED_TOKENS // 8))])
        cache.check()
    node, nodes = next(iter(cache.prefix._kept)), 0
    assert _tokens(node) == stem
    while node.parent is not None:
        node, nodes = node.parent, nodes + 1
    assert nodes <= 10
    assert cache.prefix._forgotten_tokens == sum(len(node.edge) for node in cache.prefix._forgotten)


def test_a_state_that_is_being_written_stays_and_is_charged() -> None:
    cache = Cache()
    cache.compute(list(range(3, 400)))
    cache.compute(list(range(4, 400)))
    lease = cache.prefix.lease(list(range(3, 400)))
    assert lease is not None
    assert cache.prefix.lease(list(range(3, 399))) is None
    cache.prefix.evict(1 << 30)
    assert cache.prefix.checkpoints() == [lease.checkpoint]
    cache.check()
    cache.prefix.clear()
    assert cache.ledger.table()["checkpoints"] == lease.checkpoint.nbytes
    assert cache.pool.holders == {lease.checkpoint}
    cache.pool.check(cache.ledger.table)
    assert lease.checkpoint.frontier.size == lease.checkpoint.nbytes
    lease.release()
    lease.release()
    assert cache.ledger.table() == {"budget": 1 << 30}
    with pytest.raises(EngineStateError, match="released"):
        SequenceState(cache.pool).restore(lease.checkpoint)


def test_what_was_found_is_there_when_it_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another thread wants all memory between finding a state and starting from it: it has to wait."""
    cache, use = Cache(), PrefixCache.use
    cache.compute(list(range(3, 400)))
    other = threading.Thread(target=cache.prefix.evict, args=(1 << 40,))

    def use_late(self: PrefixCache, found: Found) -> None:
        use(self, found)
        other.start()
        other.join(0.2)

    monkeypatch.setattr(PrefixCache, "use", use_late)
    assert cache.compute(list(range(3, 500))) == 397
    other.join()


def test_heat_halves() -> None:
    cache = Cache()
    cache.compute([3, 4, 5])
    (node,) = cache.prefix._kept
    assert cache.prefix._heat(node, HALF_LIFE_S) == pytest.approx(0.5)


def test_clearing_gives_all_back() -> None:
    cache = Cache()
    for i in range(5):
        cache.compute([3, 4, *[i] * 300], keep_at=(2,))
    cache.prefix.clear()
    assert cache.ledger.table() == {"budget": 1 << 30}
    assert cache.prefix.find([3, 4, 5], 2).reason == "nothing kept begins like this prompt"


def test_long_prompts_are_compared_quickly() -> None:
    """Counted in Python's own steps, not in seconds: a prompt of 200,000 tokens takes as many as one of 20."""
    import sys

    def steps(n: int) -> int:
        cache = Cache()
        tokens = list(range(n))
        cache.compute(tokens)
        count = 0

        def trace(frame: object, event: str, arg: object) -> object:
            nonlocal count
            count += 1
            return trace

        sys.settrace(trace)
        try:
            cache.prefix.find(tokens, n - 1)
        finally:
            sys.settrace(None)
        return count

    assert steps(200_000) <= steps(20) + 5
