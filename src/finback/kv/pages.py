"""Memory of sequences: pages from one pool, a frontier for each, and copies of frontiers to come back to.

Owns which page belongs to whom, the length of a sequence and how far it can be taken back
(docs/architecture.md section 5). Refuses to allocate what the ledger does not grant, before anything
changes, and to guess: a rewind that the rings do not cover is an error that says what is possible. Rows
past a sequence's length stay where they are and are overwritten by the tokens that come next. Pages are not
shared between sequences.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from finback import native
from finback.errors import EngineStateError, MemoryBudgetError, RequestError
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


@dataclass(frozen=True, slots=True)
class Page:
    """A page: number `number` of a slab."""

    slab: Slab
    number: int


class PagePool:
    """Pages of one engine, in slabs; a slab with no page in use is given back."""

    def __init__(self, layout: Layout, account: Account) -> None:
        self.layout, self._account = layout, account
        self._stride = -(-layout.page_bytes // 64) * 64
        self._slab_pages = max(1, SLAB_BYTES // self._stride) if self._stride else 0
        self._slabs: list[Slab] = []

    @property
    def pages(self) -> int:
        """Pages in use."""
        return sum(slab.pages - len(slab.free) for slab in self._slabs)

    def take(self, n: int) -> list[Page]:
        """`n` pages, their content undefined; MemoryBudgetError, with nothing changed, if they do not fit."""
        missing = n - sum(len(slab.free) for slab in self._slabs)
        if missing > 0:
            self._grow(missing)
        taken: list[Page] = []
        for slab in self._slabs:
            while slab.free and len(taken) < n:
                taken.append(Page(slab, slab.free.pop()))
        return taken

    def _grow(self, missing: int) -> None:
        """At least `missing` more free pages, and as many as the pool has, or just `missing` if only they
        fit the budget."""
        count = max(missing, min(self._slab_pages, sum(slab.pages for slab in self._slabs)))
        size = native.buffer_size(count * self._stride)
        try:
            self._account.reserve("pages", size)
        except MemoryBudgetError:
            count, size = missing, native.buffer_size(missing * self._stride)
            self._account.reserve("pages", size)
        try:
            buffer = native.allocate(size, "pages")
        except BaseException:
            self._account.release("pages", size)
            raise
        self._slabs.append(Slab(buffer, count, list(range(count - 1, -1, -1))))

    def give(self, pages: list[Page]) -> None:
        """Take pages back."""
        for page in pages:
            page.slab.free.append(page.number)
        for slab in [slab for slab in self._slabs if len(slab.free) == slab.pages]:
            self._slabs.remove(slab)
            self._account.release("pages", slab.buffer.size)

    def attach(self, sequence: native.Sequence, page: Page) -> None:
        """Append a page to a native sequence."""
        sequence.add_page(page.slab.buffer, page.number * self._stride)


class FrontierCopy:
    """A copy of a frontier at a length: a point that a sequence can come back to. Release it when it is not
    needed."""

    def __init__(self, length: int, reach: int, buffer: native.Buffer, account: Account) -> None:
        self.length, self.reach = length, reach
        self._buffer: native.Buffer | None = buffer
        self._account = account

    @property
    def buffer(self) -> native.Buffer:
        """The bytes; EngineStateError after release()."""
        if self._buffer is None:
            raise EngineStateError("this checkpoint was released; compute the tokens again")
        return self._buffer

    def release(self) -> None:
        """Give the memory back. Releasing twice is fine."""
        if self._buffer is not None:
            self._account.release("checkpoints", self._buffer.size)
            self._buffer = None


class SequenceState:
    """What one sequence holds. `length` is the number of tokens computed; rows and rings beyond it mean
    nothing."""

    def __init__(self, pool: PagePool, account: Account) -> None:
        self._pool, self._account, self._layout = pool, account, pool.layout
        self._pages: list[Page] = []
        self._frontier: native.Buffer | None = _reserved_buffer(
            account, "frontiers", self._layout.frontier_bytes
        )
        self._handle = native.Sequence(self._layout.handle, self._frontier, 0)
        self.length = 0
        self._reach = 0  # the shortest length but 0 that the rings still cover

    @property
    def handle(self) -> native.Sequence:
        """What a batch takes. EngineStateError after close()."""
        self._check_open()
        return self._handle

    # ---- growing

    def reserve(self, length: int) -> None:
        """Pages for `length` tokens in all; MemoryBudgetError, with nothing changed, if they do not fit."""
        self._check_open()
        missing = self._layout.pages_for(length) - len(self._pages)
        if missing <= 0:
            return
        for page in self._pool.take(missing):
            self._pages.append(page)
            self._pool.attach(self._handle, page)

    def advance(self, n: int) -> None:
        """Count `n` tokens that a run has computed after the first `length`."""
        self.length += n
        self._reach = max(self._reach, self.length - self._layout.max_draft)

    def fill(self, length: int, isa: str, seed: int) -> None:
        """Become a sequence of `length` tokens that nobody computed, with random rows of the right kind in all
        places: for timing long contexts. MemoryBudgetError, with nothing changed, if they do not fit."""
        self.reserve(length)
        self._handle.fill(isa, length, seed)
        self.length, self._reach = length, max(0, length - self._layout.max_draft)

    # ---- going back

    def can_rewind(self, length: int) -> bool:
        """Whether `rewind(length)` would work: to 0, or to a length whose window and open groups the rings
        still hold."""
        return length == 0 or self._reach <= length <= self.length

    def rewind(self, length: int) -> None:
        """Forget the tokens after the first `length`. RequestError, saying what is possible, if the rings
        are too short."""
        self._check_open()
        if not self.can_rewind(length):
            raise RequestError(
                f"a sequence of {self.length} tokens cannot be taken back to {length} by its rings; "
                f"possible are {min(self._reach, self.length)} to {self.length}, 0, or a checkpoint"
            )
        self.length = length
        if length == 0:
            self._reach = 0

    def clear(self) -> None:
        """Forget all tokens. Pages stay, for the tokens that come next."""
        self.rewind(0)

    def checkpoint(self) -> FrontierCopy:
        """A copy of the frontier at the present length; MemoryBudgetError if it does not fit."""
        frontier = self._check_open()
        copy = _reserved_buffer(self._account, "checkpoints", self._layout.frontier_bytes)
        copy.view()[:] = frontier.view()
        return FrontierCopy(self.length, self._reach, copy, self._account)

    def restore(self, copy: FrontierCopy) -> None:
        """Come back to a checkpoint of this sequence. The compressed rows below its length must still be
        those of its tokens: nothing else may have been computed below that length since."""
        frontier = self._check_open()
        if self._layout.pages_for(copy.length) > len(self._pages):
            raise EngineStateError(
                f"a checkpoint at {copy.length} tokens belongs to a longer sequence than this one; "
                f"compute the tokens again"
            )
        frontier.view()[:] = copy.buffer.view()
        self.length, self._reach = copy.length, copy.reach

    # ---- end

    def close(self) -> None:
        """Give the memory back. Closing twice is fine."""
        if self._frontier is None:
            return
        self._handle.keep_pages(0)
        self._pool.give(self._pages)
        self._pages = []
        self._account.release("frontiers", self._frontier.size)
        del self._handle  # it borrows the frontier
        self._frontier = None

    def _check_open(self) -> native.Buffer:
        if self._frontier is None:
            raise EngineStateError("this sequence is closed; open another")
        return self._frontier


def _reserved_buffer(account: Account, name: str, size: int) -> native.Buffer:
    """A buffer that the account has granted."""
    size = native.buffer_size(size)
    account.reserve(name, size)
    try:
        return native.allocate(size, name)
    except BaseException:
        account.release(name, size)
        raise
