"""The prefix cache: what earlier requests left, by their tokens, for later ones to start from.

Owns a radix tree over token ids whose nodes may hold a checkpoint, the search for the longest usable one, and the
choice of what goes when memory is short (docs/kv.md). Refuses to hold rows of its own: pages are shared with whoever
made them. Called under the pool's lock, from the engine's thread and from whoever needs memory.
"""

from __future__ import annotations

import heapq
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from finback.kv.pages import Page, PagePool
from finback.kv.sequence import Checkpoint, Lease, SequenceState

Ids = npt.NDArray[np.int32]

HALF_LIFE_S = 24 * 3600.0
"""After this time a use counts half: a prompt that is used every morning outlives one that was used once today."""

REMEMBERED_TOKENS = 1 << 18
"""Tokens of branches that lost their last checkpoint: kept, without any rows, to say that a prefix was evicted."""


@dataclass(eq=False, slots=True)
class Node:
    """The end of an edge of tokens. `end`: tokens from the root. `evicted`: had a checkpoint that is gone."""

    edge: Ids
    end: int
    parent: Node | None
    children: dict[int, Node] = field(default_factory=dict)
    checkpoint: Checkpoint | None = None
    heat: float = 0.0
    used: float = 0.0
    evicted: bool = False


@dataclass(frozen=True, slots=True)
class Found:
    """What is kept of a prompt: the checkpoint to start from and the length to start at (None, 0: from nothing), one
    sentence that says why not further, and the index of the first token that differs from what is kept, or None."""

    checkpoint: Checkpoint | None
    length: int
    reason: str
    diverged: int | None
    node: Node | None = None


@dataclass(frozen=True, slots=True)
class PrefixStats:
    """Checkpoints kept, their bytes with all pages they hold, and what came of them: finds that were used and those
    that found nothing, tokens not computed again, checkpoints evicted."""

    entries: int
    nbytes: int
    hits: int
    misses: int
    tokens_reused: int
    evictions: int


class PrefixCache:
    """The tree."""

    def __init__(
        self, pool: PagePool, *, clock: Callable[[], float], seconds_per_token: Callable[[], float]
    ) -> None:
        """seconds_per_token: what computing a token of a prompt takes, as measured."""
        self._pool, self._clock, self._seconds_per_token = pool, clock, seconds_per_token
        self._root = Node(np.zeros(0, np.int32), 0, None)
        self._kept: dict[Node, None] = {}
        self._holds: Counter[Page] = Counter()
        self._frontier_bytes = 0
        self._forgotten: OrderedDict[Node, None] = OrderedDict()  # leaves without a checkpoint, oldest first
        self._forgotten_tokens = 0
        self._hits = self._misses = self._reused = self._evictions = 0
        pool.reclaim = self.evict

    @property
    def nbytes(self) -> int:
        """Bytes of the copies, and of every page that one of them holds."""
        return self._frontier_bytes + len(self._holds) * self._pool.page_stride

    # ---- looking

    def find(self, tokens: Sequence[int], limit: int) -> Found:
        """The longest usable beginning of `tokens`, at most `limit` of them."""
        ids = np.asarray(tokens, np.int32)
        with self._pool.lock:
            node, below, matched = self._walk(ids)
            best, length = self._best(node, below, min(matched, limit))
            differs = matched < len(ids) and (below is not None or bool(node.children))
            diverged = matched if differs else None
            checkpoint = None if best is None else best.checkpoint
            return Found(checkpoint, length, self._reason(node, matched, length, limit, diverged), diverged, best)

    def _walk(self, ids: Ids) -> tuple[Node, Node | None, int]:
        """The last node whose tokens all match, the child in whose edge the match ends, and how many tokens match."""
        node, at = self._root, 0
        while at < len(ids):
            child = node.children.get(int(ids[at]))
            if child is None:
                break
            same = common(child.edge, ids[at:])
            at += same
            if same < len(child.edge):
                return node, child, at
            node = child
        return node, None, at

    def _best(self, node: Node, below: Node | None, most: int) -> tuple[Node | None, int]:
        """The node whose checkpoint serves the greatest length up to `most`: one on the way, or one that lies so
        little behind the last common token that its rings still hold what was there."""
        best, length = None, 0
        if below is not None:
            best, length = self._behind(below, most)
        here: Node | None = node
        while here is not None and length < min(here.end, most):
            end = min(here.end, most)
            checkpoint = here.checkpoint
            if checkpoint is not None and checkpoint.reach <= end:
                return here, end
            found, served = self._behind(here, end)
            if found is not None:
                return found, served
            here = here.parent
        return best, length

    def _behind(self, node: Node, end: int) -> tuple[Node | None, int]:
        """The node of a checkpoint behind token `end`, at `node` or below, that serves it."""
        for candidate in self._near(node, end):
            assert candidate.checkpoint is not None
            if candidate.checkpoint.reach <= end:
                return candidate, end
        return None, 0

    def _near(self, node: Node, most: int) -> Iterator[Node]:
        """Nodes below whose checkpoints may reach back to `most`."""
        furthest = most + self._pool.layout.max_draft
        stack = [node]
        while stack:
            here = stack.pop()
            if here.checkpoint is not None and most < here.end <= furthest:
                yield here
            if here.end <= furthest:
                stack += here.children.values()

    def _reason(self, node: Node, matched: int, length: int, limit: int, diverged: int | None) -> str:
        if matched == 0:
            return "nothing kept begins like this prompt"
        words = [f"{length} tokens were kept" if length else "no state was kept of its beginning"]
        lost: Node | None = node
        while lost is not None and lost.end > length:
            if lost.evicted and lost.checkpoint is None:
                words.append(f"the state at token {lost.end} was evicted")
                break
            lost = lost.parent
        if diverged is not None:
            words.append(f"it differs from what is kept from token {diverged} on")
        elif matched > limit and length == limit:
            words.append("all of it was computed before")
        return "; ".join(words)

    def has(self, tokens: Sequence[int]) -> bool:
        """Whether exactly this state is kept."""
        return self.find(tokens, len(tokens)).length == len(tokens)

    def use(self, found: Found) -> None:
        """A request starts from what was found, or from nothing."""
        with self._pool.lock:
            if found.node is None:
                self._misses += 1
                return
            self._hits += 1
            self._reused += found.length
            self._warm(found.node)

    def begin(self, tokens: Sequence[int], state: SequenceState) -> Found:
        """Bring an empty sequence as far into a prompt as possible, at least one token before its end. In one piece:
        what was found cannot be evicted for another thread before it is used. MemoryBudgetError as of `restore`."""
        with self._pool.lock:
            found = self.find(tokens, len(tokens) - 1)
            self.use(found)
            if found.checkpoint is not None:
                state.restore(found.checkpoint, found.length)
            return found

    def _warm(self, node: Node) -> None:
        now = self._clock()
        node.heat, node.used = self._heat(node, now) + 1.0, now

    @staticmethod
    def _heat(node: Node, now: float) -> float:
        return node.heat * float(0.5 ** ((now - node.used) / HALF_LIFE_S))

    # ---- keeping

    def insert(self, tokens: Sequence[int] | Ids, checkpoint: Checkpoint) -> None:
        """Keep the state after `tokens`. The checkpoint is the cache's from now on; where one is there already, that
        one stays and the new one is released."""
        ids = np.asarray(tokens, np.int32)
        assert len(ids) == checkpoint.length
        with self._pool.lock:
            node = self._node_at(ids)
            if node.checkpoint is not None:
                checkpoint.release()
            else:
                node.checkpoint, node.evicted = checkpoint, False
                node.heat = 0.0
                self._kept[node] = None
                self._holds.update(checkpoint.pages)
                self._frontier_bytes += checkpoint.nbytes
            self._warm(node)

    def _node_at(self, ids: Ids) -> Node:
        """The node of these tokens, made if there is none."""
        node, below, at = self._walk(ids)
        if below is not None:
            node = self._split(below, at - node.end)
        if at < len(ids):
            edge = ids[at:].copy()
            leaf = Node(edge, len(ids), node)
            node.children[int(edge[0])] = leaf
            self._recall(node)
            return leaf
        self._recall(node)
        return node

    def _split(self, node: Node, at: int) -> Node:
        """A node in the middle of an edge, `at` tokens into it."""
        parent = node.parent
        assert parent is not None
        if node in self._forgotten:
            self._forgotten_tokens -= at
        middle = Node(node.edge[:at].copy(), node.end - len(node.edge) + at, parent)
        parent.children[int(middle.edge[0])] = middle
        node.edge, node.parent = node.edge[at:].copy(), middle
        middle.children[int(node.edge[0])] = node
        return middle

    def _recall(self, node: Node) -> None:
        if node in self._forgotten:
            del self._forgotten[node]
            self._forgotten_tokens -= len(node.edge)

    # ---- letting go

    def evict(self, size: int) -> int:
        """Free at least `size` bytes, if there are as many, those first whose bytes save least: seconds of computing
        from the next kept state above, times heat, over the bytes that go. Bytes of pages that others hold do not
        count. Returns what was freed."""
        with self._pool.lock:
            now, cost = self._clock(), self._seconds_per_token()
            kept = [node for node in self._kept if node.checkpoint is not None and not node.checkpoint.leased]
            order = [(self._score(node, now, cost), i, node) for i, node in enumerate(kept)]
            heapq.heapify(order)
            freed = 0
            while order and freed < size:
                _, i, node = heapq.heappop(order)
                score = self._score(node, now, cost)  # what went before may have made it worth more
                if order and score > order[0][0]:
                    heapq.heappush(order, (score, i, node))
                    continue
                freed += self._drop(node)
                self._evictions += 1
            return freed

    def _score(self, node: Node, now: float, cost: float) -> float:
        above = node.parent
        while above is not None and above.checkpoint is None:
            above = above.parent
        saved = (node.end - (0 if above is None else above.end)) * cost
        return saved * self._heat(node, now) / self._freed_by(node)

    def _freed_by(self, node: Node) -> int:
        """Bytes that go with a checkpoint. Pages that nobody else holds are the last ones it has: who shares a page
        shares those before it."""
        checkpoint = node.checkpoint
        assert checkpoint is not None
        own = 0
        for page in reversed(checkpoint.pages):
            if page.refs > 1:
                break
            own += 1
        return checkpoint.nbytes + own * self._pool.page_stride

    def _drop(self, node: Node) -> int:
        """Release a node's checkpoint; bytes freed."""
        checkpoint, freed = node.checkpoint, self._freed_by(node)
        assert checkpoint is not None
        node.checkpoint, node.evicted = None, True
        del self._kept[node]
        for page in checkpoint.pages:
            self._holds[page] -= 1
            if not self._holds[page]:
                del self._holds[page]
        self._frontier_bytes -= checkpoint.nbytes
        checkpoint.release()
        self._forget(node)
        return freed

    def _forget(self, node: Node) -> None:
        """A node that may have become a leaf without a checkpoint is remembered for a while, then cut off."""
        if not node.children and node.checkpoint is None and node is not self._root:
            self._forgotten[node] = None
            self._forgotten_tokens += len(node.edge)
        while self._forgotten_tokens > REMEMBERED_TOKENS:
            oldest, _ = self._forgotten.popitem(last=False)
            self._forgotten_tokens -= len(oldest.edge)
            parent = oldest.parent
            assert parent is not None
            del parent.children[int(oldest.edge[0])]
            if parent is self._root or parent.checkpoint is not None:
                continue
            if not parent.children:
                self._forgotten[parent] = None
                self._forgotten_tokens += len(parent.edge)
            elif len(parent.children) == 1 and not parent.evicted:
                self._join(parent)

    def _join(self, node: Node) -> None:
        """Make one edge of two: nothing branches off at `node` any more."""
        (child,) = node.children.values()
        parent = node.parent
        assert parent is not None
        if child in self._forgotten:
            self._forgotten_tokens += len(node.edge)
        child.edge, child.parent = np.concatenate([node.edge, child.edge]), parent
        parent.children[int(child.edge[0])] = child

    def clear(self) -> None:
        """Let go of everything."""
        with self._pool.lock:
            for node in list(self._kept):
                self._drop(node)
            self._root.children.clear()
            self._forgotten.clear()
            self._forgotten_tokens = 0

    def forget(self, tokens: Sequence[int]) -> None:
        """Let go of the state after exactly these tokens."""
        with self._pool.lock:
            node = self._exactly(tokens)
            if node is not None and node.checkpoint is not None:
                self._drop(node)

    def _exactly(self, tokens: Sequence[int] | Ids) -> Node | None:
        """The node of these tokens."""
        node, below, matched = self._walk(np.asarray(tokens, np.int32))
        return node if below is None and matched == len(tokens) else None

    # ---- looking in

    def lease(self, tokens: Sequence[int] | Ids) -> Lease | None:
        """The state after exactly these tokens, None if it is gone; release it soon, because meanwhile its memory is
        nobody else's."""
        with self._pool.lock:
            node = self._exactly(tokens)
            return None if node is None or node.checkpoint is None else Lease(node.checkpoint)

    def worth_saving(self, *, closing: bool) -> list[Ids]:
        """The tokens of states that a restart should find: the ends of what was said, and beginnings that several
        used; when the engine closes, also the state before each end, where an answer is drawn again. Longest first."""
        with self._pool.lock:
            now = self._clock()
            found: dict[Node, None] = {}
            inner = {above for node in self._kept for above in self._ancestors(node)}
            for node in self._kept:
                if node not in inner:
                    found[node] = None
                    before = next((above for above in self._ancestors(node) if above.checkpoint is not None), None)
                    if closing and before is not None:
                        found[before] = None
                elif self._heat(node, now) >= 2.0:
                    found[node] = None
            return [self._tokens(node) for node in sorted(found, key=lambda node: -node.end)]

    @staticmethod
    def _ancestors(node: Node) -> Iterator[Node]:
        above = node.parent
        while above is not None:
            yield above
            above = above.parent

    @staticmethod
    def _tokens(node: Node) -> Ids:
        edges = []
        here: Node | None = node
        while here is not None:
            edges.append(here.edge)
            here = here.parent
        return np.concatenate(edges[::-1])

    def checkpoints(self) -> list[Checkpoint]:
        """All that are kept."""
        return [node.checkpoint for node in self._kept if node.checkpoint is not None]

    def stats(self) -> PrefixStats:
        """Counts since it was made."""
        with self._pool.lock:
            return PrefixStats(
                len(self._kept), self.nbytes, self._hits, self._misses, self._reused, self._evictions
            )


def common(a: Ids, b: Ids) -> int:
    """How many first tokens are the same."""
    n = min(len(a), len(b))
    different = np.flatnonzero(a[:n] != b[:n])
    return int(different[0]) if len(different) else n
