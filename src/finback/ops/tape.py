"""What recording leaves: symbolic values, the operations over them, entry points, and the plan of the arena.

Owns the time line. Entry points (main, head, mtp) are recorded one after the other and share one arena: a
value is placed where nothing else lives between its writer and its last reader. Values that callers read
after a run live to the end of their entry; pinned ones (the final streams) to the end of the time line, so
that later entries can be replayed over them any number of times. Knows no operation (recorder.py) and no
memory (native.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from finback import native
from finback.kv.layout import aligned
from finback.ops.plan import Lifetime, Placing, place

Rows = Literal["step", "logits", "once"]
"""How many rows a value has: T of the step, R whose logits are wanted, or one (scratch)."""


@dataclass(frozen=True, slots=True, eq=False)
class Tensor:
    """A symbolic value: rows of `parts` parts of `width` f32, or of the integers or codes an operation
    leaves there."""

    number: int
    rows: Rows
    parts: int
    width: int
    row_bytes: int


Emit = Callable[[native.Program, Callable[[Tensor], native.Value]], None]


@dataclass(frozen=True, slots=True)
class Node:
    """One recorded operation: what it reads and writes (scratch included), and how to add it to a program."""

    op: str
    reads: tuple[Tensor, ...]
    writes: tuple[Tensor, ...]
    emit: Emit


def _emitted(program: native.Program, at: Callable[[Tensor], native.Value]) -> None:
    raise AssertionError("a tape emits its operations once")


@dataclass(frozen=True, slots=True)
class Limits:
    """What the programs are planned for."""

    max_rows: int
    max_logit_rows: int
    max_context: int
    threads: int


class Tape:
    """Operations in order, and who reads what last."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.nodes: list[Node] = []
        self._tensors: list[Tensor] = []
        self._entries: dict[str, range] = {}
        self._last_reader: dict[Tensor, int] = {}
        self._writer: dict[Tensor, int] = {}
        self._pinned: set[Tensor] = set()

    # ---- recording

    def tensor(self, rows: Rows, parts: int, width: int, row_bytes: int | None = None) -> Tensor:
        """A new value; its rows take `row_bytes`, or what parts * width f32 take, rounded up to 64."""
        tensor = Tensor(len(self._tensors), rows, parts, width, aligned(row_bytes or 4 * parts * width))
        self._tensors.append(tensor)
        return tensor

    def scratch(self, size: int) -> Tensor:
        """A region of `size` bytes for one operation."""
        return self.tensor("once", 1, 1, max(size, 1))

    def add(self, op: str, reads: Sequence[Tensor], writes: Sequence[Tensor], emit: Emit) -> None:
        """Record an operation."""
        at = len(self.nodes)
        self.nodes.append(Node(op, tuple(reads), tuple(writes), emit))
        for tensor in reads:
            self._last_reader[tensor] = at
        for tensor in writes:
            self._writer[tensor] = at

    def pin(self, tensor: Tensor) -> None:
        """Keep a value through all entries recorded from now on."""
        self._pinned.add(tensor)

    def finish_entry(self, name: str, results: Sequence[Tensor]) -> None:
        """Close the entry recorded since the last call. `results` stay readable until another entry runs."""
        start = max((entry.stop for entry in self._entries.values()), default=0)
        self._entries[name] = range(start, len(self.nodes))
        for tensor in results:
            self._last_reader[tensor] = len(self.nodes) - 1

    # ---- the result

    @property
    def entries(self) -> Mapping[str, range]:
        """Entry points and the numbers of their operations."""
        return self._entries

    def drop_emitters(self) -> None:
        """Forget how operations are added to programs, and with it the weights that those hold."""
        self.nodes = [replace(node, emit=_emitted) for node in self.nodes]

    def size_of(self, tensor: Tensor) -> int:
        """Bytes of a value at the most rows it can have."""
        rows = {"step": self.limits.max_rows, "logits": self.limits.max_logit_rows, "once": 1}[tensor.rows]
        return rows * tensor.row_bytes

    def lifetimes(self) -> list[Lifetime]:
        """One for each value, in the order of `Tensor.number`."""
        end = len(self.nodes)
        found = []
        for tensor in self._tensors:
            born = self._writer[tensor]
            dies = end if tensor in self._pinned else max(self._last_reader.get(tensor, born), born)
            found.append(Lifetime(self.size_of(tensor), born, dies))
        return found

    def plan(self) -> Placing:
        """Offsets by `Tensor.number`, and the arena's size."""
        return place(self.lifetimes())
