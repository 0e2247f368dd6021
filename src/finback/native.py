"""The one door to the native core: what `finback._native` offers, and the sentences for what can go wrong
in it.

Owns turning native results into errors of finback's hierarchy, and stopping runs before the interpreter
goes away. Refuses, in one sentence with the remedy, to go on without the extension: there is no slower
substitute for it. No other module imports `finback._native`.
"""

from __future__ import annotations

import atexit
import mmap
import os
import threading
from collections.abc import Iterable
from collections.abc import Sequence as List
from dataclasses import dataclass

import numpy as np

from finback.errors import (
    EngineStateError,
    MemoryBudgetError,
    ModelFileError,
    NumericError,
    PlatformError,
    RequestError,
    shown,
)

try:
    from finback import _native
except ImportError as error:
    raise PlatformError(
        f"finback's native core cannot be loaded ({error}); in a source tree run `make build`, "
        f"otherwise install finback again with pip for this Python"
    ) from None

from finback._native import (
    Batch,
    BenchExperts,
    BenchProducts,
    Buffer,
    DirectFile,
    Encoding,
    FileMap,
    Format,
    KvLayout,
    LayerLayout,
    Matrix,
    MatrixStack,
    Program,
    RowShape,
    Sampler,
    ScaleKind,
    Sequence,
    StreamLayout,
    Value,
    attend_scratch_bytes,
    buffer_bytes,
    cache_row_bytes,
    compress_scratch_bytes,
    counter_random,
    encoding_of,
    experts_scratch_bytes,
    index_scratch_bytes,
    packed_bytes,
    pool_owner,
    pool_workers,
    resident_bytes,
    resident_matrix,
    resident_stack,
    set_spin_limit,
    spin_limit,
    why_no_kernel,
)

__all__ = [
    "Batch",
    "BenchExperts",
    "BenchProducts",
    "Buffer",
    "DirectFile",
    "Encoding",
    "FileMap",
    "Format",
    "KvLayout",
    "LayerLayout",
    "Level",
    "Matrix",
    "MatrixStack",
    "Program",
    "RowShape",
    "Sampler",
    "ScaleKind",
    "Sequence",
    "StreamLayout",
    "Timed",
    "Value",
    "Window",
    "Windows",
    "allocate",
    "attend_scratch_bytes",
    "buffer_bytes",
    "buffer_size",
    "cache_row_bytes",
    "compress_scratch_bytes",
    "counter_random",
    "encoding_of",
    "experts_scratch_bytes",
    "forked",
    "index_scratch_bytes",
    "kernel_functions",
    "levels",
    "lock_memory",
    "make_resident",
    "map_file",
    "packed_bytes",
    "pool_owner",
    "pool_workers",
    "resident_bytes",
    "resident_matrix",
    "resident_stack",
    "run",
    "select_level",
    "set_spin_limit",
    "spin_limit",
    "start_program",
    "threads_refused",
    "why_no_kernel",
    "window_bytes",
]

Window = tuple[float, float, bool]
"""A window of timed work: seconds, the amount of work done in it, whether the system disturbed it."""

Windows = list[Window]

Timed = tuple[Windows, Windows, int]
"""Windows of some work, in matrices or layers; those of plain reading between them, in bytes; and the digest of what
the work computed: the same for results that are the same to the bit."""

# A thread that is inside a run when the interpreter is finalised would abort the process
# (native/bind/program.cc).
atexit.register(_native.close_runs)


# ---- instruction sets
# -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Level:
    """An instruction-set level of this build, and what this machine lacks for it (empty when supported)."""

    name: str
    supported: bool
    missing: str


def levels() -> list[Level]:
    """All levels of this build, lowest first."""
    return [Level(*level) for level in _native.levels()]


def select_level(isa: str | None) -> str:
    """The name of the level to use: the one asked for, or the best this machine supports.

    RequestError for a name this build does not have; PlatformError for one this machine cannot run, with
    what it lacks.
    """
    known = levels()
    if isa is None or isa == "auto":
        return [level.name for level in known if level.supported][-1]
    for level in known:
        if level.name != isa:
            continue
        if level.supported:
            return isa
        raise PlatformError(
            f"isa is {isa!r}, which this machine cannot run: it lacks {level.missing}; leave isa unset"
        )
    names = ", ".join(level.name for level in known)
    raise RequestError(f"isa is {shown(isa)}; levels of this build are {names}, or leave it unset")


def kernel_functions(level: str) -> list[dict[str, str]]:
    """What serves each operation and format at a level, as rows with the keys op, format, level and
    function."""
    return [
        {"op": op, "format": format, "level": name, "function": f"{address:#x}" if address else "none"}
        for name, op, format, address in _native.kernel_table()
        if name == level
    ]


# ---- memory
# ---------------------------------------------------------------------------------------------------------


def buffer_size(size: int) -> int:
    """Bytes that a buffer of `size` bytes really takes: whole pages of the system. What the ledger is
    charged."""
    return -(-size // mmap.PAGESIZE) * mmap.PAGESIZE


def allocate(size: int, purpose: str) -> Buffer:
    """Zeroed memory. MemoryBudgetError naming the purpose if the system refuses it, whatever the budget
    says."""
    try:
        return Buffer(size)
    except MemoryError:
        raise MemoryBudgetError(
            f"the system refuses {size} bytes for {purpose}; close other programs or lower context=",
            needed=size,
            budget=size,
        ) from None


def map_file(path: str) -> FileMap:
    """A read-only mapping of a whole file. ModelFileError if it cannot be had."""
    try:
        return FileMap(path)
    except OSError as error:
        raise ModelFileError(path, f"{error}; give a readable model file") from None


def lock_memory(owners: Iterable[FileMap | Buffer]) -> str | None:
    """Keep the bytes of files and buffers in memory until they are closed: all, or none and the reason why not."""
    locked: list[FileMap | Buffer] = []
    for owner in owners:
        if error := _native.lock_memory(owner, True):
            for other in locked:
                _native.lock_memory(other, False)
            return os.strerror(error)
        locked.append(owner)
    return None


# ---- programs
# -------------------------------------------------------------------------------------------------------


def window_bytes(source: Matrix | MatrixStack) -> int:
    """Bytes of the window that each thread needs to copy matrices past the page cache."""
    return int(_native.window_bytes(source))


def make_resident(
    isa: str,
    threads: int,
    source: Matrix | MatrixStack,
    numbers: List[int],
    to: Buffer,
    offsets: List[int],
    *,
    readers: Iterable[DirectFile] = (),
    windows: Iterable[Buffer] = (),
) -> int | None:
    """Copies matrices `numbers` of a stack (or a matrix, number 0) to their places in a buffer, laid out for the
    kernels, on all threads.

    readers: of the files they lie in, to read past the page cache through `windows`, one a thread; () reads where
    they are mapped.

    Returns the first that holds a weight which is not finite, or None. PlatformError if the system refuses the
    threads, EngineStateError in a forked child of a process that has used them, EOFError if a file was cut.
    """
    places = np.array(numbers, np.int32), np.array(offsets, np.int64)
    try:
        bad = _native.make_resident(isa, threads, source, places[0], to, places[1], list(readers), list(windows))
    except OSError as error:
        raise threads_refused(threads, error) from None
    if bad is None:
        raise forked()
    return None if bad < 0 else bad


def start_program(
    isa: str,
    threads: int,
    *,
    max_rows: int,
    max_logit_rows: int,
    max_context: int,
    vocab: int,
    arena: Buffer,
    layout: KvLayout,
) -> Program:
    """An empty program over an arena. Starts the threads it will run on: PlatformError if the system
    refuses them."""
    try:
        return Program(isa, threads, max_rows, max_logit_rows, max_context, vocab, arena, layout)
    except OSError as error:
        raise threads_refused(threads, error) from None


def threads_refused(threads: int, error: OSError) -> PlatformError:
    """The error of a system that does not give a program its threads."""
    return PlatformError(
        f"the system refuses {threads} threads ({error}); use fewer threads= or raise the limit (ulimit -u)"
    )


def run(program: Program, batch: Batch) -> None:
    """Replays a program over a batch, without the GIL.

    Ctrl-C raises KeyboardInterrupt if this is Python's main thread; the cache rows of the batch are
    undefined then.

    Raises:
        ModelFileError: a mapped file was cut or written to since it was loaded. Nothing was computed.
        NumericError: rows hold values that are not finite; `rows` lists them, all other rows are good.
        EngineStateError: this is a forked child of the process that loaded the model, or the interpreter is
        going away.
    """
    changed = program.changed_file()
    if changed is not None:
        raise ModelFileError(*changed)
    result, bad_rows = program.run(batch, threading.get_ident() == threading.main_thread().ident)
    if result is _native.RunResult.OK:
        return
    if result is _native.RunResult.FORKED:
        raise forked()
    if result is _native.RunResult.INTERRUPTED:
        raise EngineStateError(
            "the interpreter is shutting down; finish threads that use an engine before the program ends"
        )
    row = bad_rows[0]
    raise NumericError(
        f"row {row} of the step, at position {batch.position_of(row)}, holds a value that is not finite; "
        f"check the model's weights",
        rows=tuple(bad_rows),
    )


def forked() -> EngineStateError:
    """The error of a model that is used in a forked child of the process that loaded it."""
    return EngineStateError(
        "this process was forked from the one that loaded the model, and threads do not survive a fork; "
        "load after fork"
    )
