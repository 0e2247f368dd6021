"""Sizes, the default budget, and the ledger's refusals."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from finback.errors import MemoryBudgetError, RequestError
from finback.weights.ledger import Ledger, budget_from, default_budget, parse_size, shown_size


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("4GiB", 4 << 30),
        ("16GB", 16 * 10**9),
        ("512MiB", 512 << 20),
        ("1.5 GiB", 3 << 29),
        ("0.1kb", 100),
        ("1TiB", 1 << 40),
        ("123", 123),
        (" 7b ", 7),
    ],
)
def test_sizes(text: str, expected: int) -> None:
    assert parse_size(text) == expected
    assert budget_from(text) == expected


@pytest.mark.parametrize(
    "value",
    [
        "",
        "GiB",
        "16G",
        "-1GiB",
        "1e9",
        "0x10",
        "nan",
        "inf",
        "1,5GiB",
        "1 GiB 2",
        "٣GB",
        "0",
        "0.1b",
        "9" * 30,
        "2000000TiB",
    ],
)
def test_sizes_that_are_none_are_refused_by_name(value: str) -> None:
    with pytest.raises(RequestError, match="memory is"):
        budget_from(value)


@pytest.mark.parametrize("value", [0, -5, True, 2**61, 1.5, b"4GiB"])
def test_numbers_that_are_no_budget(value: object) -> None:
    with pytest.raises(RequestError, match="memory is"):
        budget_from(value)  # type: ignore[arg-type]


def test_the_default_follows_ram_and_control_groups(tmp_path: Path) -> None:
    def write(name: str, text: str) -> None:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)

    write("proc/meminfo", "MemTotal:       10485760 kB\nMemFree: 1 kB\n")
    assert default_budget(tmp_path).bytes == 9 << 30
    assert "10.0 GiB of RAM" in default_budget(tmp_path).reason
    write("proc/self/cgroup", "0::/job\n")
    write("proc/self/mountinfo", "30 25 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n")
    write("sys/fs/cgroup/job/memory.max", f"{5 << 30}\n")
    assert default_budget(tmp_path).bytes == int((5 << 30) * 0.9)
    assert "/sys/fs/cgroup/job/memory.max" in default_budget(tmp_path).reason


def test_entries_add_up_and_are_given_back() -> None:
    ledger = Ledger(100)
    ledger.reserve("pages", 30)
    ledger.reserve("arena", 50)
    ledger.reserve("pages", 20)
    assert ledger.table() == {"pages": 50, "arena": 50, "budget": 100}
    assert (ledger.in_use, ledger.available) == (100, 0)
    ledger.release("arena", 50)
    assert ledger.table() == {"pages": 50, "budget": 100}


def test_a_refusal_has_the_numbers_and_changes_nothing() -> None:
    ledger = Ledger(4 << 30)
    ledger.reserve("weights", 3 << 30)
    with pytest.raises(MemoryBudgetError) as refused:
        ledger.reserve("pages", 2 << 30)
    error = refused.value
    assert (error.needed, error.budget) == (5 << 30, 4 << 30)
    for part in ("pages needs 2.0 GiB", "1.0 GiB", "4.0 GiB", "weights 3.0 GiB", "memory="):
        assert part in str(error)
    assert ledger.table() == {"weights": 3 << 30, "budget": 4 << 30}


def test_giving_back_more_than_there_is_is_a_defect() -> None:
    ledger = Ledger(10)
    ledger.reserve("pages", 5)
    with pytest.raises(ValueError, match="holds 5 bytes, not 6"):
        ledger.release("pages", 6)
    with pytest.raises(ValueError, match="holds 0 bytes"):
        ledger.release("arena", 1)


def test_what_is_moved_is_never_free_in_between() -> None:
    ledger = Ledger(10)
    ledger.reserve("promised", 6)
    ledger.reserve("weights", 4)
    ledger.move("promised", "pages", 5)
    assert ledger.table() == {"promised": 1, "weights": 4, "pages": 5, "budget": 10}
    with pytest.raises(ValueError, match="promised holds 1 bytes, not 2"):
        ledger.move("promised", "pages", 2)
    ledger.move("promised", "pages", 1)
    ledger.move("promised", "frontiers", 0)
    assert ledger.table() == {"weights": 4, "pages": 6, "budget": 10}


def test_many_threads_never_pass_the_budget() -> None:
    ledger = Ledger(1000)
    granted: list[int] = []

    def work() -> None:
        for _ in range(300):
            try:
                ledger.reserve("pages", 7)
            except MemoryBudgetError:
                continue
            granted.append(7)

    workers = [threading.Thread(target=work) for _ in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert sum(granted) == ledger.in_use == 1000 // 7 * 7


def test_shown_sizes() -> None:
    assert [shown_size(n) for n in (5, 2048, 3 << 29)] == ["5 bytes", "2.0 KiB", "1.5 GiB"]
