"""Timing of kernels: what is refused, what a row holds, and that the timed products are those of the model."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from finback import _native, native
from finback.errors import RequestError
from finback.tools import bench_kernels as bench
from finback.tools.random_bytes import RandomBytes
from finback.tools.record import MEASURES, key_of, label_of

TINY = bench.Plan(
    formats=("Q8_0",),
    shapes=((64, 512),),
    rows=(1,),
    threads=(1,),
    layouts=("mapped",),
    isa=native.select_level(None),
    seconds=0.0,
    bytes=bench.LEAST_BYTES,
)


def test_every_combination_is_a_row_or_skipped_with_a_reason() -> None:
    formats = tuple(native.Format.__members__)
    calls: list[tuple[int, int]] = []
    plan = replace(TINY, formats=formats, layouts=bench.LAYOUTS, shapes=((40, 512),))
    record = bench.bench_kernels(plan, lambda done, total: calls.append((done, total)))
    measured = {key_of("kernels", row)[:2] for row in record["rows"]}
    skipped = {(row["format"], row["layout"]) for row in record["skipped"]}
    assert not measured & skipped
    assert measured | skipped == {(f, layout) for f in formats for layout in bench.LAYOUTS}
    assert {f for f, layout in measured if layout == "mapped"} == set(formats)
    assert all(plan.isa in row["reason"] and row["format"] in row["reason"] for row in record["skipped"])
    assert len(record["rows"]) == len(measured)
    assert calls[-1][0] == calls[-1][1]
    assert [c[0] for c in calls] == sorted(c[0] for c in calls)


def test_a_row_says_what_it_is_and_adds_up() -> None:
    record = bench.bench_kernels(replace(TINY, rows=(1, 3), formats=("MXFP4",)))
    assert record["kind"] == "kernels"
    assert record["level"] == TINY.isa
    assert record["machine"]["cpus"] >= 1
    for row, n in zip(record["rows"], (1, 3), strict=True):
        named = {"format": "MXFP4", "layout": "mapped", "shape": [64, 512], "rows": n, "threads": 1}
        assert named.items() <= row.items()
        assert row["windows"] >= 3
        assert 0 <= row["disturbed"] <= row["windows"]
        assert row["share"] == pytest.approx(row["gbps"] / row["read_gbps"], rel=1e-3)
        assert row["weights_per_s"] * 17 / 32 / 1e9 == pytest.approx(row["gbps"], rel=1e-3)
        assert row["gflops"] == pytest.approx(2 * n * row["weights_per_s"] / 1e9, rel=1e-3)
        for measure in MEASURES["kernels"]:
            low, high = row[f"{measure}_spread"]
            assert 0 < low <= high
        low, high = row["gbps_spread"]
        assert low <= row["gbps"] <= high
    assert label_of("kernels", record["rows"][1]) == "MXFP4 mapped 64x512 3 rows 1 thread"


@pytest.mark.parametrize(
    ("formats", "experts", "rows"),
    [(tuple(native.Format.__members__), None, (3,)), (("MXFP4", "FP8_E4M3", "Q4_K"), 2, (1, 3))],
)
def test_what_is_timed_is_the_same_to_the_bit_in_every_layout(
    formats: tuple[str, ...], experts: int | None, rows: tuple[int, ...]
) -> None:
    digests: dict[tuple[str, int], set[str]] = {}
    for threads, level in enumerate((level.name for level in native.levels() if level.supported), 1):
        plan = replace(TINY, isa=level, formats=formats, layouts=bench.LAYOUTS, threads=(threads,), rows=rows)
        for row in bench.bench_kernels(replace(plan, shapes=((256, 512),), experts=experts))["rows"]:
            digests.setdefault((row["format"], row["rows"]), set()).add(row["digest"])
    assert set(digests) == {(format, n) for format in formats for n in rows}
    assert all(len(found) == 1 for found in digests.values()), digests
    assert len({digest for found in digests.values() for digest in found}) == len(digests)


def test_stripes_and_threads_change_no_result() -> None:
    # 512 rows cut this matrix into two stripes for one thread, one row and more threads do not
    plan = replace(TINY, shapes=((1024, 512),), rows=(512,), threads=(1, 2, 3))
    assert len({row["digest"] for row in bench.bench_kernels(plan)["rows"]}) == 1


def test_the_digest_is_that_of_the_products() -> None:
    format, rows, cols = "Q8_0", 48, 512
    (row,) = bench.bench_kernels(replace(TINY, shapes=((rows, cols),)))["rows"]
    state, x = 1, np.empty(cols, np.float32)  # the generator of native/bench/walks.cc, seed 0
    for i in range(cols):
        state = (state * 6364136223846793005 + 1442695040888963407) % 2**64
        x[i] = np.float32(state >> 40) * np.float32(2**-23) - np.float32(1)
    packed, finite = _native.pack(TINY.isa, "A8x32", x)
    assert finite
    data = np.concatenate(list(RandomBytes(0).matrix(format, format, rows, cols, cols**-0.5)))
    y = _native.linear(TINY.isa, format, data, None, rows, cols, None, packed[None], 0, rows)
    digest = 0xCBF29CE484222325
    for byte in y.tobytes():
        digest = (digest ^ byte) * 0x100000001B3 % 2**64
    assert row["digest"] == f"{digest:016x}"


def test_file_bytes_count_scale_planes() -> None:
    up = bench.random_matrix("FP8_E4M3", 256, 512)
    products = native.BenchProducts(TINY.isa, up, 1, False)
    assert products.unit_bytes == 256 * 512 + 2 * 4
    pairs = bench.random_matrix("MXFP4_PAIRS", 16, 64)
    assert native.BenchProducts(TINY.isa, pairs, 1, False).unit_bytes == 16 * 32 + 16 * 2


@pytest.mark.parametrize(("experts", "rows"), [(4, 3), (1, 1), (5, 2)])
def test_experts(experts: int, rows: int) -> None:
    record = bench.bench_kernels(replace(TINY, experts=experts, rows=(rows,), threads=(2,), shapes=((256, 512),)))
    (row,) = record["rows"]
    assert row["experts"] == experts
    assert row["gflops"] == pytest.approx(2 * rows * row["weights_per_s"] / 1e9, rel=1e-3)
    assert row["weights_per_s"] * 34 / 32 / 1e9 == pytest.approx(row["gbps"], rel=1e-3)


def test_chosen_experts_give_every_expert_its_rows() -> None:
    assert bench.chosen_experts(32, 12) == 6
    assert bench.chosen_experts(256, 12) == 6
    assert bench.chosen_experts(8, 1) == 4
    assert bench.chosen_experts(1, 12) == 1
    assert bench.chosen_experts(7, 5) == 5


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"formats": ("Q9_9",)}, "format is 'Q9_9'; formats with kernels are F32"),
        ({"shapes": ((16, 100),)}, "no multiple of 32"),
        ({"shapes": ((100, 512),), "experts": 2}, "no multiple of 32"),
        ({"layouts": ("flat",)}, "layout is 'flat'; it must be mapped or resident"),
        ({"rows": (0,)}, "rows is 0; it must be from 1 to 4096"),
        ({"threads": (1025,)}, "threads is 1025"),
        ({"bytes": 1 << 20}, "fit the caches"),
    ],
)
def test_what_cannot_be_measured_is_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(RequestError, match=message):
        bench.bench_kernels(replace(TINY, **changes))  # type: ignore[arg-type]


@pytest.mark.parametrize("text", ["", "2048", "2048x", "0x64", "64*64", "-1x64", "64x64x64", "99999999x1"])
def test_shapes_are_rows_by_columns(text: str) -> None:
    assert bench.parse_shape("2048x4096") == (2048, 4096)
    with pytest.raises(RequestError, match="give ROWSxCOLS"):
        bench.parse_shape(text)


def test_undisturbed_windows_count_when_there_are_enough() -> None:
    read = [(1.0, 1, False)] * 5
    work = [(1.0, i, i in (1, 3)) for i in range(5)]
    assert [pair[0][1] for pair in bench.clean(work, read)] == [0, 2, 4]
    busy = [(1.0, i, i != 2) for i in range(5)]
    assert len(bench.clean(busy, read)) == 5
    assert len(bench.clean(read, busy)) == 5


def test_wrong_use_of_the_binding_raises() -> None:
    up = bench.random_matrix("Q8_0", 64, 64)
    memory = native.Buffer(16 << 20)
    products = native.BenchProducts(TINY.isa, up, 1, False)
    for rows, threads, seconds in ((0, 1, 0.0), (5000, 1, 0.0), (1, 0, 0.0), (1, 1, -1.0), (1, 1, float("nan"))):
        with pytest.raises(ValueError, match="must be"):
            products.time(rows, threads, seconds, memory)
    with pytest.raises(ValueError, match="too short"):
        products.time(1, 1, 0.0, native.Buffer(4096))
    with pytest.raises(ValueError, match="bytes must be"):
        native.BenchProducts(TINY.isa, up, 0, False)
    with pytest.raises(ValueError, match="down is"):
        native.BenchExperts(TINY.isa, up, bench.random_matrix("Q8_0", 64, 32), 2, 1, False)
    layers = native.BenchExperts(TINY.isa, up, up, 2, 1, False)
    with pytest.raises(ValueError, match="multiple of chosen"):
        layers.time(3, 1, 1, 0.0, memory)
