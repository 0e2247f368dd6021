"""After warm-up the native loop asks for no memory: crossing pages, changing T and changing expert groups included.

A child process runs with an interposer (count_allocations.c) that counts every malloc, realloc, aligned allocation
and mmap of every thread. Counting is on for the one call `Program.run(batch)`: small Python objects come from pools
that Python already has, so a count of zero is exact, and a count above zero is somebody asking for memory.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

CHILD = """
import ctypes, sys
import numpy as np
import finback
from finback.tools.synth import synth

counter = ctypes.CDLL(None)
counter.counted_so_far.restype = ctypes.c_long

def step(model, state, ids, rows):
    batch, program = model._batch, model._programs["main"]
    state.reserve(state.length + len(ids))
    batch.clear()
    batch.add(state.handle, state.length, np.asarray(ids, np.int32))
    batch.want_logits(np.asarray(rows, np.int32))
    counter.count_from_here()
    program.run(batch, False)
    count = counter.counted_so_far()
    batch.clear()
    state.advance(len(ids))
    return count

# The counter itself must be able to count.
counter.count_from_here()
kept = bytearray(1 << 20)
assert counter.counted_so_far() > 0, "the interposer does not count"

random = np.random.default_rng(3)
for path, vocab in ((None, 4096), (sys.argv[1], 512)):
    for threads in (1, 2, 3):
        with finback.load(path, threads=threads, context=4096, prefill_chunk=256) as engine:
            model = engine._model
            state = model.new_sequence()
            draw = lambda n: [int(x) for x in random.integers(3, vocab, n)]
            step(model, state, draw(256), [255])  # warm-up
            step(model, state, draw(1), [0])
            for n in (1, 1, 2, 3, 17, 64, 256, 1, 200, 5, 128, 1, 1, 127, 1, 1, 1, 256, 1):
                rows = [] if n == 200 else [n - 1] if n != 17 else list(range(17))
                count = step(model, state, draw(n), rows)
                assert count == 0, (path, threads, n, state.length, count)
            crossed = state.length // 128
            while state.length < 128 * (crossed + 2) + 2:  # token by token over two pages
                assert step(model, state, draw(1), [0]) == 0, state.length
            state.close()
print("nothing was allocated")
"""


def test_the_loop_allocates_nothing(tmp_path: Path) -> None:
    library = tmp_path / "count.so"
    source = Path(__file__).parent / "count_allocations.c"
    subprocess.run([os.environ.get("CC", "cc"), "-shared", "-fPIC", "-O1", "-o", library, source], check=True)
    from finback.tools.synth import synth

    synth(tmp_path / "m.gguf", "v4-tiny", layers=5, experts=8, vocab=512, experts_format="MXFP4", seed=6)
    done = subprocess.run(
        [sys.executable, "-c", CHILD, str(tmp_path / "m.gguf")],
        env=os.environ | {"LD_PRELOAD": str(library)},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout == "nothing was allocated\n"
