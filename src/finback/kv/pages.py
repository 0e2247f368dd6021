"""Pages of compressed rows: one pool, reference counts, and promises.

Owns which page belongs to whom, how many hold it, and the ledger's entries "pages" and "promised"
(docs/kv.md). Refuses to allocate what the ledger does not grant, before anything changes. Knows nothing of
tokens beyond how many of a page's others rely on; `kv/sequence.py` does.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from finback import native
from finback.errors import EngineStateError, MemoryBudgetError
from finback.kv.layout import Layout

SLAB_BYTES = 8 << 20
"""Pages are allocated in slabs. Each new one doubles what the pool holds, up to about this size: large
enough for 2 MB pages of the system, small enough not to hoard."""


class Account(Protocol):
    """Who grants memory: the ledger (weights/ledger.py)."""

    def reserve(self, name: str, size: int) -> None:
        """Promise `size` bytes to the entry `name`; MemoryBudgetError, with nothing changed, if they do not
        fit."""

    def release(self, name: str, size: int) -> None:
        """Take the promise back."""


@dataclass(eq=False, slots=True)
class Slab:
    """One buffer of pages."""

    buffer: native.Buffer
    pages: int
    free: list[int] = field(default_factory=list)  # numbers of pages in the buffer


@dataclass(eq=False, slots=True)
class Page:
    """A page: number `number` of a slab, held by `refs` sequences and checkpoints.

    writer: the sequence that may go on writing rows into it although others hold it. sealed: how many of its
    tokens the others rely on; the writer writes behind them only.
    """

    slab: Slab
    number: int
    refs: int = 1
    writer: object | None = None
    sealed: int = 0


class Holder(Protocol):
    """What holds pages and a frontier."""

    @property
    def pages(self) -> list[Page]:
        """In order."""

    @property
    def charged(self) -> tuple[str, int]:
        """The ledger entry of its frontier, and bytes in it."""


class Promise:
    """Memory set aside for one sequence: its frontier, and pages it has not taken yet."""

    def __init__(self, pool: PagePool, pages: int, frontier: int) -> None:
        self._pool, self.pages, self.frontier = pool, pages, frontier

    def keep(self, pages: int) -> None:
        """Give back what is more than `pages` pages."""
        with self._pool.lock:
            self._pool._owed -= max(0, self.pages - pages)
            self.pages = min(self.pages, pages)
            self._pool._trim()

    def release(self) -> None:
        """Give all of it back. Releasing twice is fine."""
        with self._pool.lock:
            self._pool._owed_frontiers -= self.frontier
            self.frontier = 0
            self.keep(0)


class PagePool:
    """Pages of one engine, in slabs; a slab that nobody needs is given back. `lock` guards the pool and all that
    hold its pages; it may be taken again by who has it."""

    def __init__(self, layout: Layout, account: Account) -> None:
        self.layout, self.account = layout, account
        self.lock = threading.RLock()
        self.reclaim: Callable[[int], int] | None = None
        """Called when the account refuses, with bytes that are missing; frees what it can spare (the prefix
        cache), and returns how much that was."""
        self.page_stride = -(-layout.page_bytes // 64) * 64
        self._slab_pages = max(1, SLAB_BYTES // self.page_stride) if self.page_stride else 0
        self.holders: set[Holder] = set()
        """Sequences and checkpoints that are open."""
        self._slabs: list[Slab] = []
        self._used = self._free = 0
        self._shared = 0
        # Promised pages that were not taken yet. Free pages of slabs stand for the first of them; the others are
        # bytes in the entry "promised", with those of promised frontiers.
        self._owed = self._owed_frontiers = self._promised = 0

    @property
    def pages(self) -> int:
        """Pages in use."""
        return self._used

    @property
    def shared(self) -> int:
        """Pages that more than one hold."""
        return self._shared

    # ---- taking and giving

    def take(self, n: int, promise: Promise | None = None) -> list[Page]:
        """`n` pages, their content undefined, out of the promise as far as it goes. MemoryBudgetError, with
        nothing changed, if they do not fit."""
        with self.lock:
            drawn = 0 if promise is None else min(n, promise.pages)
            have = min(n, self._free)
            self._owed -= drawn
            self._free -= have  # set aside: they stand for nobody's promise any more
            try:
                self._settle_reclaiming()
                while have < n:
                    self._grow(n - have)
                    more = min(n - have, self._free)
                    self._free -= more
                    have += more
                    self._settle_reclaiming()
            except BaseException:
                self._owed += drawn
                self._free += have
                self._settle()
                raise
            if promise is not None:
                promise.pages -= drawn
            self._used += n
            return [self._pop() for _ in range(n)]

    def _pop(self) -> Page:
        slab = next(slab for slab in self._slabs if slab.free)
        return Page(slab, slab.free.pop())

    def _grow(self, missing: int) -> None:
        """At least `missing` more free pages, and as many as the pool has, or just `missing` if only they
        fit the budget; or some that reclaim freed instead."""
        wanted = max(missing, min(self._slab_pages, self._used + self._free))
        for count in (wanted, missing):
            size = native.buffer_size(count * self.page_stride)
            try:
                self.account.reserve("pages", size)
                break
            except MemoryBudgetError:
                if count == missing and not self._reclaimed(size):
                    raise
        else:
            return  # the caller looks again at what is free now
        try:
            buffer = native.allocate(size, "pages")
        except BaseException:
            self.account.release("pages", size)
            raise
        self._slabs.append(Slab(buffer, count, list(range(count - 1, -1, -1))))
        self._free += count

    def _reclaimed(self, size: int) -> bool:
        return self.reclaim is not None and self.reclaim(size) > 0

    def share(self, pages: Iterable[Page]) -> None:
        """One more holder for each."""
        with self.lock:
            for page in pages:
                page.refs += 1
                self._shared += page.refs == 2

    def give(self, pages: Iterable[Page]) -> None:
        """One holder less for each; what nobody holds is free."""
        with self.lock:
            for page in pages:
                page.refs -= 1
                self._shared -= page.refs == 1
                if page.refs == 0:
                    page.slab.free.append(page.number)
                    self._free += 1
                    self._used -= 1
            self._trim()

    def _trim(self) -> None:
        """Give back slabs that no page is in use of, unless promises stand on them."""
        for slab in [slab for slab in self._slabs if len(slab.free) == slab.pages]:
            if self._free - slab.pages >= self._owed:
                self._slabs.remove(slab)
                self._free -= slab.pages
                self.account.release("pages", slab.buffer.size)
        self._settle()

    def copy(self, source: Page, target: Page) -> None:
        """The bytes of one page into another."""
        target.slab.buffer.view()[self._span(target)] = source.slab.buffer.view()[self._span(source)]

    def _span(self, page: Page) -> slice:
        start = page.number * self.page_stride
        return slice(start, start + self.page_stride)

    def attach(self, sequence: native.Sequence, page: Page) -> None:
        """Append a page to a native sequence."""
        sequence.add_page(page.slab.buffer, page.number * self.page_stride)

    # ---- promises

    def promised_bytes(self, length: int) -> int:
        """What a promise for a sequence of `length` tokens takes from the budget at most."""
        return self._frontier_size() + (self.layout.pages_for(length) + 1) * native.buffer_size(self.page_stride)

    def promise(self, length: int) -> Promise:
        """Set aside what a sequence of `length` tokens can need: a frontier, its pages, and one to copy a shared
        page into. MemoryBudgetError, with nothing changed, if it does not fit."""
        pages = self.layout.pages_for(length) + 1 if self.page_stride else 0
        with self.lock:
            self._owed += pages
            self._owed_frontiers += self._frontier_size()
            try:
                self._settle_reclaiming()
            except MemoryBudgetError:
                self._owed -= pages
                self._owed_frontiers -= self._frontier_size()
                self._settle()
                raise
            return Promise(self, pages, self._frontier_size())

    def _frontier_size(self) -> int:
        return native.buffer_size(self.layout.frontier_bytes)

    def _promise_target(self) -> int:
        return max(0, self._owed - self._free) * native.buffer_size(self.page_stride) + self._owed_frontiers

    def _settle(self) -> None:
        """Bring the entry "promised" to what is owed beyond the free pages."""
        target = self._promise_target()
        if target > self._promised:
            self.account.reserve("promised", target - self._promised)
        elif target < self._promised:
            self.account.release("promised", self._promised - target)
        self._promised = target

    def _settle_reclaiming(self) -> None:
        """The same, freeing what can be spared if it does not fit."""
        while True:
            try:
                self._settle()
                return
            except MemoryBudgetError:
                if not self._reclaimed(self._promise_target() - self._promised):
                    raise

    # ---- frontiers and their copies

    def frontier(self, name: str, promise: Promise | None = None) -> native.Buffer:
        """A frontier, charged to the entry `name`, out of the promise if that still has one."""
        size = self._frontier_size()
        with self.lock:
            drawn = 0 if promise is None else promise.frontier
            self._owed_frontiers -= drawn
            self._settle()
            try:
                while True:
                    try:
                        self.account.reserve(name, size)
                        break
                    except MemoryBudgetError:
                        if not self._reclaimed(size):
                            raise
                try:
                    buffer = native.allocate(size, name)
                except BaseException:
                    self.account.release(name, size)
                    raise
            except BaseException:
                self._owed_frontiers += drawn
                self._settle()
                raise
            if promise is not None:
                promise.frontier = 0
            return buffer

    # ---- integrity

    def check(self, held: Callable[[], Mapping[str, int]]) -> None:
        """Count everything over. `held` tells the bytes by entry of the ledger.
        EngineStateError naming the first fault: a page whose holders are not those it counts, a free list that is
        wrong, an entry that is not what is held."""
        with self.lock:
            found: Counter[Page] = Counter()
            charged: Counter[str] = Counter()
            for holder in self.holders:
                found.update(holder.pages)
                name, size = holder.charged
                charged[name] += size
            for page, count in found.items():
                if page.refs != count:
                    _fault(f"page {page.number} counts {page.refs} holders and has {count}")
            used: Counter[Slab] = Counter(page.slab for page in found)
            for slab in self._slabs:
                taken = {page.number for page in found if page.slab is slab}
                if sorted([*slab.free, *taken]) != list(range(slab.pages)) or used[slab] != len(taken):
                    _fault(f"{slab.pages - len(slab.free)} pages of a slab are in use and {len(taken)} are held")
            if (self._used, self._shared) != (len(found), sum(count > 1 for count in found.values())):
                _fault(f"{self._used} pages are in use, {self._shared} shared, and {len(found)} are held")
            if self._free != sum(len(slab.free) for slab in self._slabs):
                _fault(f"{self._free} pages are said to be free")
            charged["pages"] = sum(slab.buffer.size for slab in self._slabs)
            charged["promised"] = self._promised
            entries = held()
            for name in ("pages", "promised", "frontiers", "checkpoints"):
                if entries.get(name, 0) != charged[name]:
                    _fault(f"the ledger has {entries.get(name, 0)} bytes for {name}, and {charged[name]} are held")


def _fault(what: str) -> None:
    raise EngineStateError(f"the memory of sequences does not add up: {what}; this is a defect of finback, report it")
