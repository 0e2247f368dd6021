"""How fast weights are multiplied: every format, shape, number of rows, number of threads and layout asked for.

Owns what a measurement is made of (random weights of `Plan.bytes`, copied until no cache holds them), the order, and
what the windows of native/bench/clock.h become: medians over the windows in which no thread lost its core, or over all
of them when fewer than three are left. Reading plain memory is timed between the windows of the kernel, by the same
threads, so that `share` means something on a busy machine. Refuses unknown formats, layouts and shapes that do not fit
a format; a layout without a kernel is a row of `skipped`, with the reason.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from finback import native
from finback.errors import MemoryBudgetError, RequestError, shown
from finback.formats.blocks import row_bytes
from finback.tools.random_bytes import E2M1_STD, E4M3_STD, RandomBytes
from finback.tools.record import Record, Row, measured, new_record, rounded
from finback.weights.ledger import Ledger, budget_from

LAYOUTS: Final = ("mapped", "resident")
"""mapped: as files store it, in small pages, like a mapped file in memory. resident: made for the kernels at load."""

DEFAULT_SHAPES: Final = ((2048, 4096),)
EXPERT_ROWS: Final = 12
"""Rows each expert of V4-Flash gets when 512 tokens choose 6 of 256."""

LEAST_BYTES: Final = 16 << 20
_CHOSEN: Final = 6
LEAST_CLEAN: Final = 3
"""Undisturbed windows without which all windows count."""

_PLANES: Final = {"FP8_E4M3": ((128, 128), E4M3_STD), "MXFP4_PAIRS": ((1, 32), E2M1_STD)}

OnRow = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class Plan:
    """What to measure: every combination. `experts`: networks of so many experts instead of single matrices; a shape
    is then that of gate and up, and `rows` are those of each expert."""

    formats: tuple[str, ...]
    shapes: tuple[tuple[int, int], ...]
    rows: tuple[int, ...]
    threads: tuple[int, ...]
    layouts: tuple[str, ...]
    isa: str
    seconds: float
    bytes: int
    experts: int | None = None

    def check(self) -> None:
        """RequestError for what cannot be measured."""
        for format in self.formats:
            if format not in native.Format.__members__:
                known = ", ".join(native.Format.__members__)
                raise RequestError(f"format is {shown(format)}; formats with kernels are {known}")
            for rows, cols in self.shapes:
                row_bytes(format, cols)
                if self.experts is not None:
                    row_bytes(format, rows)  # down reads what gate and up write
        for layout in self.layouts:
            if layout not in LAYOUTS:
                raise RequestError(f"layout is {shown(layout)}; it must be {' or '.join(LAYOUTS)}")
        for name, values, most in (("rows", self.rows, 4096), ("threads", self.threads, 1024)):
            for value in values:
                if not 1 <= value <= most:
                    raise RequestError(f"{name} is {value}; it must be from 1 to {most}")
        if self.bytes < LEAST_BYTES:
            raise RequestError(f"{self.bytes} bytes of weights fit the caches; measure at least {LEAST_BYTES}")


def parse_shape(text: str) -> tuple[int, int]:
    """"2048x4096": rows and columns."""
    match = re.fullmatch(r"([1-9]\d{0,6})x([1-9]\d{0,6})", text)
    if match is None:
        raise RequestError(f"shape is {shown(text)}; give ROWSxCOLS, such as 2048x4096")
    return int(match[1]), int(match[2])


def bench_kernels(plan: Plan, on_row: OnRow = lambda done, total: None) -> Record:
    """A record of every combination of the plan. `on_row(done, total)` is called after each."""
    plan.check()
    rows: list[Row] = []
    skipped: list[Row] = []
    cases = [(format, layout) for format in plan.formats for layout in plan.layouts]
    each = len(plan.shapes) * len(plan.rows) * len(plan.threads)
    ledger = Ledger(budget_from(None))
    # Weights and what is read beside them; a resident copy may be twice as wide as the file.
    ledger.reserve("weights", 3 * plan.bytes, "measure with fewer --bytes")
    memory = native.allocate(plan.bytes, "reading")
    memory.view()[:] = 1  # pages that nobody wrote are all the same one, and in the cache
    for format, layout in cases:
        reason = native.why_no_kernel(plan.isa, native.Format[format], layout == "resident")
        if reason:
            skipped.append({"format": format, "layout": layout, "reason": reason})
            on_row(len(rows) + len(skipped) * each, len(cases) * each)
            continue
        for shape in plan.shapes:
            try:
                weights = _weights(plan, format, shape, layout == "resident", memory)
            except MemoryError:
                raise MemoryBudgetError(
                    f"the system refuses {plan.bytes} bytes for the weights, whatever the budget says; "
                    f"measure with fewer --bytes",
                    needed=plan.bytes,
                    budget=ledger.budget,
                ) from None
            head: Row = {"format": format, "layout": layout, "shape": list(shape)}
            if plan.experts is not None:
                head["experts"] = plan.experts
            for n in plan.rows:
                for threads in plan.threads:
                    rows.append(_row({**head, "rows": n, "threads": threads}, weights))
                    on_row(len(rows) + len(skipped) * each, len(cases) * each)
    return new_record("kernels", plan.isa, rows, skipped=skipped, bytes=plan.bytes, seconds=plan.seconds)


@dataclass(frozen=True, slots=True)
class _Weights:
    """Weights in memory. A unit of work, a matrix or a layer of experts, is `unit_bytes` of a file and `count` weights;
    `time(rows, threads)` measures it."""

    unit_bytes: int
    count: int
    time: Callable[[int, int], native.Timed]


def _weights(plan: Plan, format: str, shape: tuple[int, int], resident: bool, memory: native.Buffer) -> _Weights:
    up, count = random_matrix(format, *shape), math.prod(shape)
    if plan.experts is None:
        products = native.BenchProducts(plan.isa, up, plan.bytes, resident)
        return _Weights(
            products.unit_bytes,
            count,
            lambda rows, threads: products.time(rows, threads, plan.seconds, memory),
        )
    experts, down = plan.experts, random_matrix(format, *reversed(shape))
    layers = native.BenchExperts(plan.isa, up, down, experts, plan.bytes, resident)
    return _Weights(
        layers.unit_bytes,
        3 * experts * count,
        lambda rows, threads: layers.time(chosen_experts(experts, rows), rows, threads, plan.seconds, memory),
    )


def chosen_experts(experts: int, rows: int) -> int:
    """How many experts a token chooses so that each gets exactly `rows` tokens: six, or the next fewer that fit."""
    return next(n for n in range(min(_CHOSEN, experts), 0, -1) if experts * rows % n == 0)


def random_matrix(format: str, rows: int, cols: int) -> native.Matrix:
    """A matrix of random valid weights that keep values near 1."""
    random, std = RandomBytes(0), 1 / math.sqrt(cols)
    data = native.allocate(rows * row_bytes(format, cols), "a matrix")
    view, at = data.view(), 0
    for piece in random.matrix(format, format, rows, cols, std):
        view[at : at + len(piece)] = piece
        at += len(piece)
    kind = native.Format[format]
    if format not in _PLANES:
        return native.Matrix(kind, rows, cols, data, 0)
    block, code_std = _PLANES[format]
    count = -(-rows // block[0]) * -(-cols // block[1])
    scales = native.allocate(count, "scales")
    scales.view()[:count] = random.scales("scales", count, std, code_std)
    return native.Matrix(kind, rows, cols, data, 0, scales, 0, native.ScaleKind.E8M0, *block)


# ---- from windows to a row


def _row(head: Row, weights: _Weights) -> Row:
    rows, threads = head["rows"], head["threads"]
    try:
        work, reads, digest = weights.time(rows, threads)
    except OSError as error:
        raise native.threads_refused(threads, error) from None
    pairs = clean(work, reads)
    speeds = [units * weights.unit_bytes / seconds / 1e9 for (seconds, units, _), _ in pairs]
    read = [size / seconds / 1e9 for _, (seconds, size, _) in pairs]
    shares = [speed / limit for speed, limit in zip(speeds, read, strict=True)]
    row = head | measured("gbps", speeds) | measured("read_gbps", read) | measured("share", shares)
    row["share"] = rounded(row["gbps"] / row["read_gbps"])
    rate = row["gbps"] * 1e9 / weights.unit_bytes * weights.count
    return row | {
        "weights_per_s": rounded(rate),
        # each of the rows meets all weights; of experts, those of one expert meet its weights
        "gflops": rounded(2 * rows * rate / 1e9),
        "digest": f"{digest:016x}",
        "windows": len(work),
        "disturbed": sum(a[2] or b[2] for a, b in zip(work, reads, strict=True)),
    }


def clean(work: native.Windows, reads: native.Windows) -> list[tuple[native.Window, native.Window]]:
    """Each window of work with that of reading which followed it and saw the same machine: those that nothing
    disturbed, if there are enough of them to say something; else all."""
    pairs = list(zip(work, reads, strict=True))
    good = [pair for pair in pairs if not (pair[0][2] or pair[1][2])]
    return good if len(good) >= LEAST_CLEAN else pairs
