"""What one sequence holds: a list of shared pages and a frontier of its own; and checkpoints to come back to.

Owns the length of a sequence, how far it can be taken back, and when a shared page is copied before it is written
(docs/kv.md). Refuses to guess: a rewind that the rings do not cover is an error that says what is possible. Rows past
a sequence's length mean nothing and are overwritten by the tokens that come next.
"""

from __future__ import annotations

from finback import native
from finback.errors import EngineStateError, RequestError
from finback.kv.pages import Page, PagePool, Promise


class Checkpoint:
    """A copy of a frontier, with the pages below it: a point that any sequence of the pool can come back to. Serves
    every length from `reach` to `length`, because rings hold a few rows more than the window. Release it when it is
    not needed."""

    def __init__(self, pool: PagePool, length: int, reach: int, frontier: native.Buffer, pages: list[Page]) -> None:
        self.length, self.reach, self.pages = length, reach, pages
        self.pool, self._frontier = pool, frontier
        self.nbytes = frontier.size
        self._leases, self._released = 0, False
        pool.holders.add(self)

    @property
    def leased(self) -> bool:
        """Whether it stays although it may have been released."""
        return self._leases > 0

    @property
    def frontier(self) -> native.Buffer:
        """The bytes; EngineStateError after release()."""
        if self._released and not self._leases:
            raise EngineStateError("this checkpoint was released; compute the tokens again")
        return self._frontier

    @property
    def charged(self) -> tuple[str, int]:
        """The ledger entry of its frontier, and bytes in it."""
        return ("checkpoints", self.nbytes)

    def release(self) -> None:
        """Give the memory back, as soon as no lease holds it. Releasing twice is fine."""
        with self.pool.lock:
            if not self._released:
                self._released = True
                self._free()

    def _free(self) -> None:
        if self._leases or not self._released:
            return
        self.pool.holders.discard(self)
        self.pool.account.release("checkpoints", self.nbytes)
        del self._frontier
        pages, self.pages = self.pages, []
        self.pool.give(pages)


class Lease:
    """A checkpoint that stays whole while it is written to disk, and charged, though its owner may release it
    meanwhile."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        """Under the pool's lock."""
        self.checkpoint, self._ended = checkpoint, False
        checkpoint._leases += 1

    def release(self) -> None:
        """Let go of it. Releasing twice is fine."""
        with self.checkpoint.pool.lock:
            if not self._ended:
                self._ended = True
                self.checkpoint._leases -= 1
                self.checkpoint._free()


class SequenceState:
    """What one sequence holds. `length` is the number of tokens computed."""

    def __init__(self, pool: PagePool, promise: Promise | None = None) -> None:
        """An empty one, its memory out of the promise if there is one. MemoryBudgetError if its frontier does not
        fit."""
        self._pool, self._layout, self._promise = pool, pool.layout, promise
        self._limit = 0 if promise is None else promise.pages - 1  # pages that the promise is for
        self.pages: list[Page] = []
        with pool.lock:
            self._frontier: native.Buffer | None = pool.frontier("frontiers", promise)
            pool.holders.add(self)
        self._handle = native.Sequence(self._layout.handle, self._frontier, 0)
        self.length = 0
        self._reach = 0  # the shortest length but 0 that the rings still cover

    @property
    def handle(self) -> native.Sequence:
        """What a batch takes. EngineStateError after close()."""
        self._check_open()
        return self._handle

    @property
    def charged(self) -> tuple[str, int]:
        """The ledger entry of its frontier, and bytes in it."""
        return ("frontiers", 0 if self._frontier is None else self._frontier.size)

    # ---- growing

    def reserve(self, length: int) -> None:
        """Pages for `length` tokens in all, each one that the next tokens write into its own to write.
        MemoryBudgetError, with nothing changed, if they do not fit."""
        self._check_open()
        if length <= self.length or not self._layout.page_bytes:
            return
        span = self._layout.page_span
        first, end = self.length // span, self._layout.pages_for(length)
        with self._pool.lock:
            replaced = [i for i in range(first, min(end, len(self.pages))) if not self._may_write(i)]
            missing = end - len(self.pages)
            if not replaced and missing <= 0:
                return
            taken = self._pool.take(len(replaced) + max(0, missing), self._promise)
            for page in taken:
                page.writer = self
            for i in replaced:
                new, old = taken.pop(), self.pages[i]
                if i * span < self.length:
                    self._pool.copy(old, new)
                self.pages[i] = new
                self._pool.give([old])
            self._attach(replaced[0] if replaced else len(self.pages), [*self.pages, *taken])

    def _may_write(self, index: int) -> bool:
        """Whether rows behind the sequence's length may be written into a page it holds: it is the only holder, or
        the writer, and the others rely on earlier tokens only. A page whose writer has gone takes the next."""
        page = self.pages[index]
        if page.refs == 1:
            page.writer, page.sealed = self, 0
            return True
        behind = max(0, self.length - index * self._layout.page_span) >= page.sealed
        if page.writer is None and behind:
            page.writer = self
        return page.writer is self and behind

    def _attach(self, start: int, pages: list[Page]) -> None:
        """Make `pages` the sequence's; the first `start` are attached already."""
        self._handle.keep_pages(start)
        for page in pages[start:]:
            self._pool.attach(self._handle, page)
        self.pages = pages

    def advance(self, n: int) -> None:
        """Count `n` tokens that a run has computed after the first `length`."""
        self.length += n
        self._reach = max(self._reach, self.length - self._layout.max_draft)

    def fill(self, length: int, isa: str, seed: int) -> None:
        """Become a sequence of `length` tokens that nobody computed, with random rows of the right kind in all
        places: for timing long contexts. MemoryBudgetError, with all tokens forgotten, if they do not fit."""
        self.clear()
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
        are too short. Going to 0 is clear()."""
        self._check_open()
        if not self.can_rewind(length):
            raise RequestError(
                f"a sequence of {self.length} tokens cannot be taken back to {length} by its rings; "
                f"possible are {min(self._reach, self.length)} to {self.length}, 0, or a checkpoint"
            )
        if length == 0:
            self.clear()
        self.length = length

    def clear(self) -> None:
        """Forget all tokens. Its own pages stay, for the tokens that come next; those that others hold too are given
        back. MemoryBudgetError, after that, if the promise cannot set aside others for them."""
        self._check_open()
        self.length = self._reach = 0
        with self._pool.lock:
            own = next((i for i, page in enumerate(self.pages) if page.refs > 1), len(self.pages))
            self._keep_pages(own)
            self._cover(0)

    # ---- sharing

    def checkpoint(self) -> Checkpoint:
        """A copy of the frontier at the present length, with the pages below it; MemoryBudgetError, with nothing
        changed, if it does not fit."""
        frontier = self._check_open()
        with self._pool.lock:
            self._cover(self.length)
            copy = self._pool.frontier("checkpoints")
            copy.view()[:] = frontier.view()
            pages = self._seal()
            self._pool.share(pages)
            return Checkpoint(self._pool, self.length, self._reach, copy, pages)

    def into_checkpoint(self) -> Checkpoint:
        """Close the sequence and leave its state as a checkpoint, without a copy."""
        frontier = self._check_open()
        with self._pool.lock:
            pages = self._seal()
            self._pool.account.move("frontiers", "checkpoints", frontier.size)
            self._keep_pages(len(pages))
            self._let_go()
            return Checkpoint(self._pool, self.length, self._reach, frontier, pages)

    def fork(self, promise: Promise | None = None) -> SequenceState:
        """An equal sequence: pages shared, frontier copied. MemoryBudgetError, with nothing changed, if that does not
        fit. promise: for what the other does not share, from the last page that is not full on."""
        frontier = self._check_open()
        with self._pool.lock:
            self._cover(self.length)
            other = SequenceState(self._pool, promise)
            assert other._frontier is not None
            other._frontier.view()[:] = frontier.view()
            pages = self._seal()
            self._pool.share(pages)
            other._attach(0, pages)
            other.length, other._reach = self.length, self._reach
            if self._layout.page_bytes:
                other._limit += self.length // self._layout.page_span
            return other

    def restore(self, checkpoint: Checkpoint, length: int | None = None) -> None:
        """Become the state at a checkpoint of the same pool, or at a shorter `length` that it still serves. What the
        sequence held is given back. MemoryBudgetError, after that, if others hold so much of it that the promise
        cannot be made whole again."""
        frontier = self._check_open()
        wanted = checkpoint.length if length is None else length
        if not (checkpoint.reach <= wanted <= checkpoint.length):
            raise RequestError(
                f"a checkpoint at {checkpoint.length} tokens serves lengths from {checkpoint.reach} on, not {wanted}"
            )
        with self._pool.lock:
            frontier.view()[:] = checkpoint.frontier.view()
            pages = checkpoint.pages[: self._layout.pages_for(wanted)]
            self._pool.share(pages)
            held = self.pages
            self._forget_writing()
            self._attach(0, list(pages))
            self._pool.give(held)
            self.length, self._reach = wanted, checkpoint.reach
            self._cover(0)  # pages that came along need not be set aside

    def _seal(self) -> list[Page]:
        """The pages of the present length. Somebody else will rely on what is in them up to that length."""
        span = self._layout.page_span
        pages = self.pages[: self._layout.pages_for(self.length)]
        for i, page in enumerate(pages):
            if page.refs == 1:
                page.writer = self
                page.sealed = 0
            page.sealed = max(page.sealed, min(span, self.length - i * span))
        return pages

    def _cover(self, sealed: int) -> None:
        """Bring the promise to what may still be taken up to its limit: pages that are not there, and copies of those
        in which others rely on rows that a rewind would write again; `sealed` tokens more are about to be relied on."""
        if self._promise is None or not self._layout.page_bytes:
            return
        span, low = self._layout.page_span, min(self._reach, self.length)
        copies = 0
        for i in range(low // span, len(self.pages)):
            page, behind = self.pages[i], max(low, i * span)
            own = page.refs == 1 or (page.writer is self and page.sealed <= behind - i * span)
            copies += not own or sealed > behind
        self._promise.cover(max(0, self._limit - len(self.pages)) + copies)

    # ---- end

    def close(self) -> None:
        """Give the memory back. Closing twice is fine."""
        if self._frontier is None:
            return
        with self._pool.lock:
            self._pool.account.release("frontiers", self._frontier.size)
            pages = self.pages
            self._let_go()
            self._pool.give(pages)

    def _keep_pages(self, n: int) -> None:
        """Give back all pages but the first `n`."""
        surplus = self.pages[n:]
        for page in surplus:
            if page.writer is self:
                page.writer = None
        self._attach(n, self.pages[:n])
        self._pool.give(surplus)

    def _let_go(self) -> None:
        """Be closed; who takes the pages sees to them."""
        self._pool.holders.discard(self)
        self._forget_writing()
        self._handle.keep_pages(0)
        self.pages = []
        del self._handle  # it borrows the frontier
        self._frontier = None

    def _forget_writing(self) -> None:
        for page in self.pages:
            if page.writer is self:
                page.writer = None

    def _check_open(self) -> native.Buffer:
        if self._frontier is None:
            raise EngineStateError("this sequence is closed; open another")
        return self._frontier
