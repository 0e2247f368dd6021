"""Wrong use of the binding raises; none of it crashes. And the stub says what the module has."""

from __future__ import annotations

import ast
import os
from pathlib import Path

import numpy as np
import pytest

import finback
from finback import _native, native
from finback.errors import ModelFileError, PlatformError, RequestError
from tests.ops.small import LAYOUT, Small, chain, matrix
from tests.tiny import VOCAB

I32 = np.int32


# ---- matrices
# -------------------------------------------------------------------------------------------------------


def test_a_matrix_must_lie_in_its_source() -> None:
    buffer = native.Buffer(4096)
    native.Matrix(native.Format.F32, 16, 64, buffer, 0)
    for rows, cols, offset in (
        (16, 65, 0),
        (17, 64, 0),
        (16, 64, 1),
        (16, 64, -1),
        (1, 1, 1 << 62),
        (2**31 - 1, 2**31 - 1, 0),
    ):
        with pytest.raises(ValueError, match="leave their source"):
            native.Matrix(native.Format.F32, rows, cols, buffer, offset)
    for rows, cols in ((0, 64), (16, 0), (-1, 64), (2**31, 1)):
        with pytest.raises(ValueError, match="rows and cols"):
            native.Matrix(native.Format.F32, rows, cols, buffer, 0)
    with pytest.raises(ValueError, match="multiple of the format's block"):
        native.Matrix(native.Format.Q4_K, 1, 255, buffer, 0)
    with pytest.raises(ValueError, match="scale plane"):
        native.Matrix(native.Format.FP8_E4M3, 16, 64, buffer, 0)
    with pytest.raises(ValueError, match="scales of 8 bytes at 4090"):
        native.Matrix(native.Format.FP8_E4M3, 16, 64, buffer, 0, buffer, 4090, native.ScaleKind.F32, 8, 64)


def test_experts_must_lie_in_their_files() -> None:
    source = [native.Buffer(4096)]
    good = np.array([0, 0], I32), np.array([0, 2048], np.int64)
    assert len(native.MatrixStack(native.Format.F32, 8, 64, source, *good)) == 2
    for files, offsets in (([0, 1], [0, 0]), ([-1, 0], [0, 0]), ([0, 0], [0, 2049]), ([0, 0], [0])):
        with pytest.raises(ValueError):
            native.MatrixStack(
                native.Format.F32, 8, 64, source, np.array(files, I32), np.array(offsets, np.int64)
            )


# ---- values and programs
# --------------------------------------------------------------------------------------------


def test_values_must_lie_in_the_arena() -> None:
    small = Small()
    table = matrix(np.zeros((VOCAB, 64)))
    for offset, row_bytes in (
        (-64, 256),
        (1 << 22, 256),
        ((1 << 22) - 256, 256),
        (32, 256),
        (0, 250),
        (0, 192),
        (0, -256),
        (0, 0),
    ):
        with pytest.raises(ValueError):
            small.program.add_embed(native.Value(offset, row_bytes, 1, 64), table)
    for parts, width in ((1, 63), (1, 1 << 60), (2, 64), (0, 64), (-1, 64)):
        with pytest.raises(ValueError):
            small.program.add_embed(native.Value(0, 256, parts, width), table)


def test_shapes_must_fit_each_other() -> None:
    small = Small()
    x, y = small.value(64), small.value(64)
    with pytest.raises(ValueError, match="vector has the wrong length"):
        small.program.add_norm(x, y, np.ones(63, np.float32), 1e-6)
    with pytest.raises(ValueError, match="no such encoding"):
        small.program.add_pack(small.value(48), y, native.Encoding.A8x32, 1, False)
    with pytest.raises(ValueError, match="does not read this encoding"):
        small.program.add_linear(x, native.Encoding.BF16, [matrix(np.zeros((64, 64)))], [y], False)
    table = np.full((VOCAB, 2), 8, I32)
    with pytest.raises(ValueError, match="names an expert that does not exist"):
        small.program.add_route(small.value(8), small.value(4), None, table, 8, 2, 1.0, True)
    with pytest.raises(ValueError, match="fewer rows than the vocabulary"):
        small.program.add_embed(x, matrix(np.zeros((VOCAB - 1, 64))))
    with pytest.raises(ValueError, match="no such layer"):
        small.program.add_qkv_finish(x, y, x, y, x, np.ones(32, np.float32), 99, 2, 32, 4, 1e-6)


def test_what_a_program_borrows_stays_alive() -> None:
    small = Small()
    out = chain(small, 3)
    batch = small.batch([4])
    native.run(small.program, batch)
    first = small.read(out, 1)
    junk = [native.Buffer(1 << 16) for _ in range(50)]  # would land where freed matrices were
    for buffer in junk:
        buffer.view()[:] = 255
    native.run(small.program, batch)
    assert np.array_equal(small.read(out, 1), first)


# ---- batches and sequences
# ------------------------------------------------------------------------------------------


def test_batches_are_checked_when_they_are_filled() -> None:
    small = Small()
    batch = native.Batch(4, 2, VOCAB)
    for ids in ([VOCAB], [-1], [0, 1, 2, 3, 4], []):
        with pytest.raises(ValueError):
            batch.add(small.state.handle, 0, np.array(ids, I32))
    for position in (-1, 2**31, 2**62):
        with pytest.raises(ValueError, match="position"):
            batch.add(small.state.handle, position, np.array([1], I32))
    batch.add(small.state.handle, 0, np.array([1, 2], I32))
    with pytest.raises(ValueError, match="one run of positions"):
        batch.add(small.state.handle, 2, np.array([3], I32))
    for rows in ([2], [-1], [1, 0], [0, 0], [0, 1, 2]):
        with pytest.raises(ValueError):
            batch.want_logits(np.array(rows, I32))
    assert batch.rows == 2


def test_runs_are_checked_before_they_start() -> None:
    small = Small()
    chain(small, 1)
    with pytest.raises(ValueError, match="empty"):
        native.run(small.program, native.Batch(4, 2, VOCAB))
    with pytest.raises(ValueError, match="beyond the engine's context"):
        native.run(small.program, small.batch([1], 1024))
    other = Small()
    other.state.handle.keep_pages(1)
    with pytest.raises(ValueError, match="lacks pages"):
        native.run(small.program, other.batch([1], 900))
    large = native.Batch(100, 4, VOCAB)
    large.add(small.state.handle, 0, np.zeros(9, I32))
    with pytest.raises(ValueError, match="more rows than"):
        native.run(small.program, large)
    wide = native.Batch(4, 4, VOCAB + 1)
    wide.add(small.state.handle, 0, np.array([VOCAB], I32))
    with pytest.raises(ValueError, match="another vocabulary"):
        native.run(small.program, wide)


def test_a_frontier_or_page_must_lie_in_its_buffer() -> None:
    short = native.Buffer(4096)
    with pytest.raises(ValueError, match="frontier does not lie"):
        native.Sequence(LAYOUT.handle, short, 0)
    sequence = native.Sequence(LAYOUT.handle, native.Buffer(LAYOUT.frontier_bytes), 0)
    with pytest.raises(ValueError, match="page does not lie"):
        sequence.add_page(short, 0)
    with pytest.raises(ValueError, match="fewer pages"):
        sequence.keep_pages(1)


# ---- files, levels, memory
# ------------------------------------------------------------------------------------------


def test_what_cannot_be_mapped_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    os.mkfifo(tmp_path / "pipe")
    for name, problem in (
        ("missing", "No such file"),
        ("empty", "is empty"),
        ("pipe", "not a regular file"),
        (".", "not a regular"),
    ):
        with pytest.raises(ModelFileError, match=problem):
            native.map_file(str(tmp_path / name))


def test_reads_stay_inside_the_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"0123456789")
    mapped = native.map_file(str(tmp_path / "file"))
    assert mapped.read(3, 4) == b"3456"
    for offset, size in ((9, 2), (-1, 2), (0, -1), (11, 0), (2**62, 2**62)):
        with pytest.raises(ValueError):
            mapped.read(offset, size)


def test_levels_are_chosen_and_refused_by_name() -> None:
    names = [level.name for level in native.levels()]
    assert names[0] == "scalar"
    assert native.select_level("scalar") == "scalar"
    assert native.select_level(None) == [level.name for level in native.levels() if level.supported][-1]
    with pytest.raises(RequestError, match="isa is 'mmx'; levels of this build are scalar"):
        native.select_level("mmx")
    for level in native.levels():
        if not level.supported:
            with pytest.raises(PlatformError, match="lacks"):
                native.select_level(level.name)
    rows = native.kernel_functions("scalar")
    assert {"op": "linear", "format": "Q8_0", "level": "scalar"}.items() <= next(
        row for row in rows if (row["op"], row["format"]) == ("linear", "Q8_0")
    ).items()
    assert all(row["function"].startswith("0x") for row in rows)
    best = native.kernel_functions(native.select_level(None))
    if best[0]["level"] != "scalar":  # addresses of one process: no level runs another's scalar code
        assert not {row["function"] for row in rows} & {row["function"] for row in best}


def test_buffers_are_zero_aligned_and_counted() -> None:
    before = native.buffer_bytes()
    buffers = [native.Buffer(n) for n in (1, 4096, 5000, (2 << 20) - 1, 2 << 20, (5 << 20) + 1)]
    assert native.buffer_bytes() - before == sum(native.buffer_size(b.size) for b in buffers)
    for buffer in buffers:
        assert buffer.size % 4096 == 0
        view = buffer.view()
        assert not view.any()
        assert view.ctypes.data % (2 << 20 if buffer.size >= 2 << 20 else 4096) == 0
    del buffers, buffer, view
    assert native.buffer_bytes() == before


def test_a_view_keeps_its_buffer_alive() -> None:
    view = native.Buffer(1 << 20).view()
    view[:] = 3
    assert int(view.sum()) == 3 << 20


def test_the_stub_names_what_the_module_has() -> None:
    tree = ast.parse((Path(finback.__file__).parent / "_native.pyi").read_text())
    stub: dict[str, set[str]] = {}
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            stub[node.name] = {f.name for f in node.body if isinstance(f, ast.FunctionDef)}
        elif isinstance(node, ast.FunctionDef):
            stub[node.name] = set()
    tests_only = {"kernels", "pack", "linear", "resident_copy", "decode_row"}
    public = {name for name in vars(_native) if not name.startswith("_")} - tests_only
    assert public == stub.keys()
    for name, methods in stub.items():
        member = getattr(_native, name)
        if isinstance(member, type) and methods:
            own = {m for m in vars(member) if not m.startswith("_") or m in ("__init__", "__len__")}
            assert own - {"__init__"} == methods - {"__init__"}, name


def test_there_is_one_door_to_the_native_module() -> None:
    package = Path(finback.__file__).parent
    doors = set()
    for file in package.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            names = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                names = [f"{node.module}", *(f"{node.module}.{alias.name}" for alias in node.names)]
            if any(name.startswith("finback._native") for name in names):
                doors.add(file.relative_to(package).as_posix())
    assert doors == {"native.py"}
