"""Where weights lie: copies made past the page cache are the same bytes, and what the system does not allow is said.

Case E11.
"""

from __future__ import annotations

import ctypes
import os
import resource
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import finback
from finback import native
from finback.formats.blocks import FORMATS
from finback.tools.random_bytes import RandomBytes
from finback.weights.checkpoint import EMBEDDED

FORMAT_NAMES = ("Q8_0", "Q2_K", "Q4_K", "IQ1_S", "BF16", "F32")


class Stored:
    """A matrix at an odd place of a file that ends with it."""

    def __init__(self, folder: Path, format: str, rows: int, cols: int) -> None:
        self.format, self.rows, self.cols = native.Format[format], rows, cols
        pieces = [piece.ravel() for piece in RandomBytes(rows).matrix("m", format, rows, cols, 0.5)]
        self.data = np.concatenate(pieces).reshape(rows, -1)
        self.offset = 32 * 5
        self.path = folder / f"{format}-{rows}.bin"
        self.path.write_bytes(b"\x55" * self.offset + self.data.tobytes())
        self.map = native.map_file(str(self.path))
        self.handle = native.Matrix(self.format, rows, cols, self.map, self.offset)

    def copied(self, threads: int, readers: list[native.DirectFile]) -> tuple[bytes, int | None]:
        to = native.allocate(native.resident_bytes(self.format, self.rows, self.cols), "a test")
        windows = [native.allocate(native.window_bytes(self.handle), "a test") for _ in range(threads)]
        bad = native.make_resident(
            "scalar", threads, self.handle, [0], to, [0], readers=readers, windows=windows if readers else []
        )
        return bytes(to.view()), bad


@pytest.mark.parametrize("format", FORMAT_NAMES)
def test_direct_copies_are_the_same_bytes(format: str, tmp_path: Path) -> None:
    block = FORMATS[format].block
    for rows, cols in ((1, block), (17, 3 * block), (1000, max(block, 256) * 20)):
        m = Stored(tmp_path, format, rows, cols)
        expected = m.copied(1, [])
        for threads in (1, 3):
            assert m.copied(threads, [native.DirectFile(m.map)]) == expected


def test_large_matrices_take_several_windows(tmp_path: Path) -> None:
    m = Stored(tmp_path, "Q8_0", 4099, 2048)
    assert m.data.nbytes > 2 * native.window_bytes(m.handle)
    assert m.copied(2, [native.DirectFile(m.map)]) == m.copied(1, [])


def test_what_is_not_a_number_is_found(tmp_path: Path) -> None:
    m = Stored(tmp_path, "Q8_0", 40, 64)
    data = bytearray(m.path.read_bytes())
    data[m.offset + 30 * m.data.shape[1] : m.offset + 30 * m.data.shape[1] + 2] = np.float16(np.inf).tobytes()
    with open(m.path, "r+b") as file:
        file.write(data)
    assert m.copied(1, [native.DirectFile(m.map)])[1] == 0


def test_a_file_that_was_cut(tmp_path: Path) -> None:
    m = Stored(tmp_path, "Q8_0", 1000, 2048)
    os.truncate(m.path, 100_000)
    with pytest.raises(EOFError, match="was cut"):
        m.copied(2, [native.DirectFile(m.map)])


def test_reading_falls_back(tmp_path: Path) -> None:
    """No descriptor is left for the direct reads: ordinary ones do, and the reason is known."""
    m = Stored(tmp_path, "Q8_0", 50, 64)
    expected = m.copied(1, [])
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    top = max(int(name) for name in os.listdir("/proc/self/fd"))
    taken = [os.dup(0) for _ in range(top + 2)]  # no number below the limit is free
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(taken) + 1, hard))
        reader = native.DirectFile(m.map)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for fd in taken:
            os.close(fd)
    assert os.strerror(reader.buffered) == "Too many open files"
    assert m.copied(1, [reader]) == expected


def _takes_direct_reads(path: Path) -> bool:
    try:
        os.close(os.open(path, os.O_RDONLY | os.O_DIRECT))
    except OSError:
        return False
    return True


def test_engines_answer_alike(tmp_path: Path) -> None:
    shared = Path("/dev/shm") / f"finback-test-{os.getpid()}.gguf"
    shared.write_bytes(EMBEDDED.read_bytes())
    try:
        answers = set()
        for path, weights in ((None, "mapped"), (EMBEDDED, "direct"), (shared, "direct")):
            with finback.load(path, weights=weights, context=256, threads=2) as engine:
                answers.add(engine.logits(list(range(3, 60))).tobytes())
                assert bool(engine.notes) == (path is not None and not _takes_direct_reads(path))
                assert engine.memory()["weights"] > 0
        assert len(answers) == 1
    finally:
        shared.unlink()


# ---- pinning

_MAY_NOT_LOCK = """
import ctypes, resource
class Header(ctypes.Structure):
    _fields_ = [("version", ctypes.c_uint32), ("pid", ctypes.c_int)]
libc, data = ctypes.CDLL(None, use_errno=True), (ctypes.c_uint32 * 6)()
header = Header(0x20080522, 0)
assert libc.capget(ctypes.byref(header), data) == 0
data[0] &= ~(1 << 14)  # CAP_IPC_LOCK, effective
assert libc.capset(ctypes.byref(header), data) == 0
resource.setrlimit(resource.RLIMIT_MEMLOCK, (LIMIT, LIMIT))
"""


@pytest.mark.parametrize("weights", ["mapped", "resident"])
@pytest.mark.parametrize("limit", [0, 65536])
def test_pinning_that_is_not_allowed(weights: str, limit: int) -> None:
    """The answer comes, and one sentence names the limit and how to raise it."""
    code = _MAY_NOT_LOCK.replace("(LIMIT, LIMIT)", f"({limit}, {limit})")
    code += f"import sys; sys.argv = 'finback run -p Once --max-tokens 4 --pin --weights {weights}'.split()\n"
    code += "from finback.cli.main import main; main()\n"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()
    assert done.stderr.count("\n") == 1
    may = "64.0 KiB" if limit else "0 bytes"
    assert f"this process may lock {may} (" in done.stderr
    assert "raise the limit with ulimit -l" in done.stderr


def _locked() -> int:
    status = Path("/proc/self/status").read_text()
    return int(next(line.split()[1] for line in status.splitlines() if line.startswith("VmLck:"))) * 1024


def test_pinning_that_is_allowed() -> None:
    libc = ctypes.CDLL(None)
    assert libc.munlockall() == 0
    size = 32 << 20
    if resource.getrlimit(resource.RLIMIT_MEMLOCK)[0] < size and os.geteuid() != 0:
        with finback.load(pin=True, context=64) as engine:
            assert len(engine.notes) == 1
        return
    for weights in ("mapped", "resident"):
        with finback.load(pin=True, weights=weights, context=64) as engine:
            assert engine.notes == ()
            assert _locked() >= 8 << 20
        del engine
    with pytest.raises(finback.RequestError, match="pin is 'yes'"):
        finback.load(pin="yes")  # type: ignore[arg-type]


def test_all_or_nothing(tmp_path: Path) -> None:
    """What was locked is let go again when the rest may not be."""
    code = _MAY_NOT_LOCK.replace("(LIMIT, LIMIT)", "(1 << 20, 1 << 20)") + (
        "from finback import native\n"
        "from pathlib import Path\n"
        "small, large = native.allocate(1 << 19, 'a test'), native.allocate(1 << 21, 'a test')\n"
        "status = lambda: Path('/proc/self/status').read_text().splitlines()\n"
        "locked = lambda: next(line.split()[1] for line in status() if 'VmLck' in line)\n"
        "print(native.lock_memory([small]), locked(), native.lock_memory([large, small]), locked())\n"
        "print(native.lock_memory([small, large]), locked())\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "None 512 Cannot allocate memory 512\nCannot allocate memory 0\n"
