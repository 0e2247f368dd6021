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
from typing import Protocol, TypeVar

from finback import native
from finback.errors import EngineStateError, MemoryBudgetError
from finback.kv.layout import Layout

T = TypeVar("T")

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

    def move(self, source: str, target: str, size: int) -> None:
        """Make `size` bytes of the entry `source` ones of `target`, in one piece: nobody else can have them in
        between."""


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
        self._released = False

    def cover(self, pages: int) -> None:
        """Hold `pages` pages at least, and one more at most, for the next page that has to be copied.
        MemoryBudgetError, with nothing changed, if they cannot be had. Nothing to do after release()."""
        with self._pool.lock:
            if not self._released:
                self._pool._owe(self, min(max(self.pages, pages), pages + 1), self.frontier)

    def release(self) -> None:
        """Give all of it back. Releasing twice is fine."""
        with self._pool.lock:
            self._pool._owe(self, 0, 0)
            self._released = True


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
        self._page_size = native.buffer_size(self.page_stride)  # bytes of a page that is a slab of its own
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
        nothing changed, if they do not fit; what is promised always does."""
        with self.lock:
            drawn = 0 if promise is None else min(n, promise.pages)
            try:
                self._granted(lambda: self._provide(n - drawn, drawn))
            except BaseException:
                self._trim()
                raise
            if promise is not None:
                promise.pages -= drawn
            self._owed -= drawn
            self._free -= n
            self._used += n
            self._settle()
            taken: list[Page] = []
            for slab in self._slabs:
                while slab.free and len(taken) < n:
                    taken.append(Page(slab, slab.free.pop()))
            return taken

    def _granted(self, attempt: Callable[[], T]) -> T:
        """What `attempt` gives. While the account refuses it, `reclaim` frees what is missing, and it is tried again
        from the beginning: pages that were freed may be enough. The only place where that is done."""
        while True:
            try:
                return attempt()
            except MemoryBudgetError as refusal:
                missing = refusal.needed - refusal.budget  # 0: the system refuses, whatever the budget says
                if missing <= 0 or self.reclaim is None or not self.reclaim(missing):
                    raise

    def _provide(self, own: int, drawn: int) -> None:
        """Free pages for `own` pages that nobody promised and `drawn` promised ones."""
        lacking = own - max(0, self._free - self._owed)  # promises stand on the other free pages
        if lacking > 0:
            self._grow(lacking, 0)
        lacking = own + drawn - self._free
        if lacking > 0:  # then these are bytes in the entry "promised"
            self._grow(lacking, self._owed + own - self._free)

    def _grow(self, missing: int, promised: int) -> None:
        """At least `missing` more free pages, and as many as the pool has, or just `missing` if only they fit the
        budget. promised: pages for which there are bytes in the entry "promised"."""
        wanted = max(missing, min(self._slab_pages, self._used + self._free))
        try:
            self._add_slab(wanted, promised)
        except MemoryBudgetError:
            if wanted == missing:
                raise
            self._add_slab(missing, promised)

    def _add_slab(self, count: int, promised: int) -> None:
        size = native.buffer_size(count * self.page_stride)
        moved = min(size, min(count, promised) * self._page_size)
        self.account.reserve("pages", size - moved)
        try:
            buffer = native.allocate(size, "pages")
        except BaseException:
            self.account.release("pages", size - moved)
            raise
        self.account.move("promised", "pages", moved)
        self._promised -= moved
        self._slabs.append(Slab(buffer, count, list(range(count - 1, -1, -1))))
        self._free += count

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
        return self._frontier_size() + (self.layout.pages_for(length) + 1) * self._page_size

    def promise(self, length: int) -> Promise:
        """Set aside what a sequence of `length` tokens can need: a frontier, its pages, and one to copy a shared
        page into. MemoryBudgetError, with nothing changed, if it does not fit."""
        with self.lock:
            promise = Promise(self, 0, 0)
            self._owe(promise, self.layout.pages_for(length) + 1 if self.page_stride else 0, self._frontier_size())
            return promise

    def _owe(self, promise: Promise, pages: int, frontier: int) -> None:
        """Make a promise one of so many pages and bytes of frontier."""
        more_pages, more_bytes = pages - promise.pages, frontier - promise.frontier

        def attempt() -> None:
            missing = self._entry(self._owed + more_pages, self._owed_frontiers + more_bytes) - self._promised
            if missing > 0:
                self.account.reserve("promised", missing)
                self._promised += missing

        self._granted(attempt)
        promise.pages, promise.frontier = pages, frontier
        self._owed += more_pages
        self._owed_frontiers += more_bytes
        self._trim()

    def _frontier_size(self) -> int:
        return native.buffer_size(self.layout.frontier_bytes)

    def _entry(self, pages: int, frontiers: int) -> int:
        """Bytes of the entry "promised" when so much is owed: free pages stand for the first of the pages."""
        return max(0, pages - self._free) * self._page_size + frontiers

    def _settle(self) -> None:
        """Give back what of the entry "promised" is more than what is owed. It is never less: who owes more reserves
        it first."""
        surplus = self._promised - self._entry(self._owed, self._owed_frontiers)
        if surplus > 0:
            self.account.release("promised", surplus)
            self._promised -= surplus

    # ---- what others need

    def reserve(self, name: str, size: int) -> None:
        """Reserve in the account for somebody else, with what the prefix cache can spare."""
        with self.lock:
            self._granted(lambda: self.account.reserve(name, size))

    def release(self, name: str, size: int) -> None:
        """Give it back."""
        self.account.release(name, size)

    # ---- frontiers and their copies

    def frontier(self, name: str, promise: Promise | None = None) -> native.Buffer:
        """A frontier, charged to the entry `name`, out of the promise if that still has one."""
        size = self._frontier_size()
        with self.lock:
            if promise is not None and promise.frontier:
                buffer = native.allocate(size, name)
                self.account.move("promised", name, size)
                self._promised -= size
                self._owed_frontiers -= size
                promise.frontier = 0
                return buffer
            self._granted(lambda: self.account.reserve(name, size))
            try:
                return native.allocate(size, name)
            except BaseException:
                self.account.release(name, size)
                raise

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
            taken: dict[Slab, list[int]] = {slab: [] for slab in self._slabs}
            for page in found:
                if page.slab not in taken:
                    _fault(f"page {page.number} is held and its slab was given back")
                taken[page.slab].append(page.number)
            for slab, numbers in taken.items():
                if sorted([*slab.free, *numbers]) != list(range(slab.pages)):
                    _fault(f"{slab.pages - len(slab.free)} pages of a slab are in use and {len(numbers)} are held")
            if (self._used, self._shared) != (len(found), sum(count > 1 for count in found.values())):
                _fault(f"{self._used} pages are in use, {self._shared} shared, and {len(found)} are held")
            if self._free != sum(len(slab.free) for slab in self._slabs):
                _fault(f"{self._free} pages are said to be free")
            charged["pages"] = sum(slab.buffer.size for slab in self._slabs)
            charged["promised"] = self._entry(self._owed, self._owed_frontiers)
            entries = held()
            for name in ("pages", "promised", "frontiers", "checkpoints"):
                if entries.get(name, 0) != charged[name]:
                    _fault(f"the ledger has {entries.get(name, 0)} bytes for {name}, and {charged[name]} are held")


def _fault(what: str) -> None:
    raise EngineStateError(f"the memory of sequences does not add up: {what}; this is a defect of finback, report it")
