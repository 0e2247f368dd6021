"""Instruction counts of the main kernels at the AVX2 level stay within 5 % of the committed table.

A count says what a clock on a busy machine cannot: that a kernel does more work than it did. Another compiler than the
table's makes other code: that is said, and 25 % are allowed. Owns the limits; instructions.py counts.
"""

from __future__ import annotations

import pytest
from tests.kernels.instructions import LEVEL, CannotCountError, Counts, count, read_table

from finback import native

SAME, OTHER = 0.05, 0.25
REMEDY = "python -m tests.kernels.instructions rewrites the table, if that is meant"

HERE = next((level for level in native.levels() if level.name == LEVEL), None)
pytestmark = pytest.mark.skipif(HERE is None or not HERE.supported, reason=f"this processor has no {LEVEL}")


@pytest.fixture(scope="module")
def counted() -> Counts:
    try:
        return count()
    except CannotCountError as error:
        pytest.fail(str(error))


def differences(table: Counts, found: Counts) -> list[str]:
    """Kernels whose count is out of bounds, one sentence each."""
    limit = SAME if found.compiler == table.compiler else OTHER
    said = []
    for name in table.counts.keys() | found.counts.keys():
        if name not in table.counts or name not in found.counts:
            said.append(f"{name}: only in {'the table' if name in table.counts else 'the program'}; {REMEDY}")
            continue
        was, now = table.counts[name], found.counts[name]
        if abs(now / was - 1) > limit:
            said.append(f"{name}: {now:,} instructions, {now / was - 1:+.1%} from {was:,}; {REMEDY}")
    return sorted(said)


def test_counts_are_those_of_the_table(counted: Counts, capsys: pytest.CaptureFixture[str]) -> None:
    table = read_table()
    if counted.compiler != table.compiler:
        with capsys.disabled():
            print(f"\n{counted.compiler}, the table by {table.compiler}: {OTHER:.0%} allowed instead of {SAME:.0%}")
    assert not differences(table, counted)


def test_every_kernel_was_counted(counted: Counts) -> None:
    formats = ("Q8_0", "MXFP4", "Q4_K", "FP8_E4M3", "IQ2_XXS")
    products = {
        f"linear {format} {layout} {n}"
        for format in formats
        for layout in ("rows", "tiles")
        for n in (1, 16)
        if (format, layout) != ("FP8_E4M3", "tiles")
    }
    sampling = {f"sample {how}" for how in ("greedy", "all", "top_k top_p")}
    assert set(counted.counts) == products | sampling | {"attend", "index_scores", "hyper_mix"}
    # One call and nothing around it: a product of 64 x 2048 weights takes tens of thousands of vector instructions.
    assert all(1_000 < n < 50_000_000 for n in counted.counts.values())


def test_limits() -> None:
    table = Counts("gcc 1", {"a": 1000, "b": 1000})
    assert not differences(table, Counts("gcc 1", {"a": 1049, "b": 951}))
    assert not differences(table, Counts("gcc 2", {"a": 1249, "b": 751}))
    for compiler, change in (("gcc 1", 1051), ("gcc 1", 949), ("gcc 2", 1251), ("gcc 2", 749)):
        (said,) = differences(table, Counts(compiler, {"a": 1000, "b": change}))
        assert said.startswith(f"b: {change:,} instructions")
    (said,) = differences(table, Counts("gcc 1", {"a": 1000}))
    assert said.startswith("b: only in the table")
