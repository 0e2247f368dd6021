"""What it costs to begin: opening a model's files, the first token of a new process, two processes on one file.

Owns the child processes, each of which is waited for. The files are in the page cache after the first round: what is
measured is work, not the disk. Refuses nothing of its own; what a child cannot do is its error, passed on.
"""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from finback import native
from finback.errors import FinbackError
from finback.settings import forced_isa
from finback.tools.record import Record, Row, measured, new_record, rounded
from finback.weights.checkpoint import open_checkpoint

# Reads a model's every weight once, then waits: what stays in memory can be looked at.
_HOLD = """
import sys, finback
with finback.load(sys.argv[1] or None, context=128, weights="mapped") as engine:
    engine.logits(list(range(3, 100)))
    print("ready", flush=True)
    sys.stdin.read()
"""

OnDone = Callable[[int, int], None]


def bench_startup(
    model: str | None, *, repeats: int, on_done: OnDone = lambda done, total: None
) -> Record:
    """Milliseconds, medians of `repeats` rounds that interleave the measurements."""
    checkpoint = open_checkpoint(model)
    answer = ["-m", "finback.cli.main", "run", *(["-m", model] if model else []), "-p", "hi", "--max-tokens", "1"]
    measurements: dict[str, Callable[[], float]] = {
        "open the files": lambda: _milliseconds(lambda: open_checkpoint(model)),
        "first token of a new process": lambda: _milliseconds(lambda: _child(answer)),
        "Python imports of that process": lambda: _imports(answer),
    }
    times: dict[str, list[float]] = {what: [] for what in measurements}
    for i in range(repeats):
        on_done(i, repeats)
        for what, measure in measurements.items():
            times[what].append(measure())
    on_done(repeats, repeats)
    rows: list[Row] = [{"what": what} | measured("ms", values) for what, values in times.items()]
    opened = {
        "name": Path(checkpoint.paths[0]).name,
        "files": len(checkpoint.paths),
        "tensors": len(checkpoint.stored()),
        "tensor_bytes": checkpoint.nbytes,
    }
    level = native.select_level(forced_isa())
    return new_record(
        "startup", level, rows, model=opened, repeats=repeats, pss_two_over_one=_shared_memory(model)
    )


def _milliseconds(work: Callable[[], object]) -> float:
    begun = time.perf_counter()
    work()
    return (time.perf_counter() - begun) * 1e3


def _child(args: Sequence[str]) -> str:
    """stderr of a Python process that ended well. FinbackError with its last line if it did not."""
    done = subprocess.run([sys.executable, *args], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        raise FinbackError(f"a process that answers with one token failed: {lines[-1]}")
    return done.stderr


def _imports(args: Sequence[str]) -> float:
    """Milliseconds of all imports of such a process: the self times that -X importtime prints, added up."""
    said = _child(["-X", "importtime", *args])
    return sum(int(us) for us in re.findall(r"^import time:\s+(\d+) \|", said, re.MULTILINE)) / 1e3


def _shared_memory(model: str | None) -> float | None:
    """Proportional set size of two processes that have read the whole model, over that of one; None where the system
    does not tell. Weights are mapped for this and count once, so for large models it is near 1."""
    if not Path("/proc/self/smaps_rollup").exists():
        return None
    children: list[subprocess.Popen[str]] = []
    try:
        children.append(_holder(model))
        alone = _pss(children[0])
        children.append(_holder(model))
        return rounded(sum(_pss(child) for child in children) / alone)
    finally:
        for child in children:
            child.communicate()


def _holder(model: str | None) -> subprocess.Popen[str]:
    child = subprocess.Popen(
        [sys.executable, "-c", _HOLD, model or ""], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    if child.stdout.readline() != "ready\n":
        child.communicate()
        raise FinbackError("a process that reads the whole model failed; what it said is above")
    return child


def _pss(child: subprocess.Popen[str]) -> int:
    text = Path(f"/proc/{child.pid}/smaps_rollup").read_text(encoding="ascii")
    return int(re.findall(r"^Pss:\s+(\d+) kB", text, re.MULTILINE)[0])
