"""The memory budget: every large allocation is an entry here before it is made.

Owns the arithmetic of `--memory`: parsing sizes, the default, entries by name, and the refusal with the
numbers. Refuses to allocate or to free: those who reserve do that. docs/memory.md lists the entries.
"""

from __future__ import annotations

import re
import threading
from dataclasses import dataclass
from pathlib import Path

from finback import machine
from finback.errors import MemoryBudgetError, RequestError, shown, shown_size

_UNITS = {"": 1, "B": 1} | {
    f"{letter}{suffix}": base ** (power + 1)
    for power, letter in enumerate("KMGT")
    for suffix, base in (("IB", 1024), ("B", 1000))
}

_SHARE = 0.9  # of what the process may use: the rest is for Python, the tokenizer and the operating system

_LARGEST = 2**60


def parse_size(text: str, name: str = "memory") -> int:
    """Bytes of a size such as "4GiB" (2^30), "16GB" (10^9), "512MiB" or "1000000". RequestError naming
    `name`."""
    match = re.fullmatch(r"(\d{1,18})(\.\d{1,18})?\s*([KMGT]?I?B|)", text.strip(), re.IGNORECASE | re.ASCII)
    unit = _UNITS.get(match[3].upper()) if match else None
    if match is None or unit is None:
        raise RequestError(
            f"{name} is {shown(text)}; give a size such as 16GiB, 16GB, 512MiB or a number of bytes"
        )
    digits = match[2][1:] if match[2] else ""
    return _checked(int(match[1] + digits) * unit // 10 ** len(digits), text, name)


def _checked(size: int, given: object, name: str) -> int:
    if not 1 <= size <= _LARGEST:
        raise RequestError(f"{name} is {shown(given)}; it must be from 1 byte to 2^60 bytes")
    return size


@dataclass(frozen=True, slots=True)
class Budget:
    """A number of bytes, and why it is that number."""

    bytes: int
    reason: str


def default_budget(root: Path = machine.ROOT) -> Budget:
    """90 % of RAM, or of the tightest memory limit of the process's control groups if that is less."""
    total, limit = machine.total_memory(root), machine.memory_limit(root)
    if limit is not None and limit.value < total:
        size = int(limit.value)
        return Budget(int(size * _SHARE), f"90 % of the {shown_size(size)} in {limit.source}")
    return Budget(int(total * _SHARE), f"90 % of {shown_size(total)} of RAM")


def budget_from(memory: str | int | None) -> int:
    """The budget in bytes: a size, a number of bytes, or None for the default. RequestError naming
    `memory`."""
    return default_budget().bytes if memory is None else size_from(memory, "memory")


def size_from(size: str | int, name: str) -> int:
    """Bytes of a size given as text or as a number. RequestError naming `name`."""
    if isinstance(size, str):
        return parse_size(size, name)
    if isinstance(size, bool) or not isinstance(size, int):
        raise RequestError(f"{name} is {shown(size)}; give a size such as 16GiB, or a whole number of bytes")
    return _checked(size, size, name)


class Ledger:
    """What of the budget is promised to whom. Safe to use from several threads."""

    def __init__(self, budget: int) -> None:
        self.budget = budget
        self._entries: dict[str, int] = {}
        self._lock = threading.Lock()

    @property
    def in_use(self) -> int:
        """Bytes of all entries."""
        with self._lock:
            return sum(self._entries.values())

    @property
    def available(self) -> int:
        """Bytes that can still be reserved."""
        return self.budget - self.in_use

    def reserve(
        self, name: str, size: int, remedy: str = "raise memory= or load with a smaller context="
    ) -> None:
        """Add `size` bytes to the entry `name`, before allocating them.

        MemoryBudgetError, with nothing changed, if they do not fit; `remedy` says what to change.
        """
        if size < 0:
            raise ValueError("a reservation cannot be negative")
        with self._lock:
            used = sum(self._entries.values())
            if used + size > self.budget:
                raise self._refusal(name, size, used, remedy)
            self._entries[name] = self._entries.get(name, 0) + size

    def _refusal(self, name: str, size: int, used: int, remedy: str) -> MemoryBudgetError:
        largest = sorted(self._entries.items(), key=lambda entry: -entry[1])[:4]
        rows = ", ".join(f"{entry} {shown_size(held)}" for entry, held in largest)
        return MemoryBudgetError(
            f"{name} needs {shown_size(size)}, but {shown_size(max(0, self.budget - used))} of the memory "
            f"budget of {shown_size(self.budget)} is free ({rows or 'nothing else in use'}); {remedy}",
            needed=used + size,
            budget=self.budget,
        )

    def release(self, name: str, size: int) -> None:
        """Take `size` bytes back from an entry; ValueError if it does not hold as many."""
        with self._lock:
            held = self._entries.get(name, 0)
            if not 0 <= size <= held:
                raise ValueError(f"ledger entry {name} holds {held} bytes, not {size}")
            self._entries[name] = held - size
            if not self._entries[name]:
                del self._entries[name]

    def move(self, source: str, target: str, size: int) -> None:
        """Make `size` bytes of the entry `source` ones of `target`, without a moment in which another thread could
        reserve them; ValueError if `source` does not hold as many."""
        with self._lock:
            held = self._entries.get(source, 0)
            if not 0 <= size <= held:
                raise ValueError(f"ledger entry {source} holds {held} bytes, not {size}")
            for name, left in ((source, held - size), (target, self._entries.get(target, 0) + size)):
                self._entries[name] = left
                if not left:
                    del self._entries[name]

    def table(self) -> dict[str, int]:
        """Bytes by entry, and the budget as "budget"."""
        with self._lock:
            return {**self._entries, "budget": self.budget}
