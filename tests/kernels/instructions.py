"""`python -m tests.kernels.instructions`: counts the instructions of the main kernels and writes instructions.json.

    compiler    the one that built the program, as it names itself
    counts      instructions of one call of each kernel, on the fixed inputs of native/count/main.cc

Counted by callgrind at the AVX2 level: valgrind knows no AVX-512. test_instructions.py compares. Run it after a change
that is meant to change a count, with the compiler that CI has, and commit the table with the change. Owns the run of
callgrind; builds nothing.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
TABLE = Path(__file__).with_name("instructions.json")
LEVEL = "avx2"


@dataclass(frozen=True)
class Counts:
    compiler: str
    counts: dict[str, int]


class CannotCountError(Exception):
    """What is missing, and the remedy."""


def read_table() -> Counts:
    """The committed counts."""
    return Counts(**json.loads(TABLE.read_text(encoding="utf-8")))


def count() -> Counts:
    """Runs kernel_count under callgrind, which writes a file whenever `counted` returns and counts nothing outside."""
    valgrind = shutil.which("valgrind")
    if valgrind is None:
        raise CannotCountError("counting instructions needs valgrind; install the Debian package valgrind")
    programs = sorted((ROOT / "build").glob("*/kernel_count"))
    if not programs:
        raise CannotCountError(f"no {ROOT}/build/*/kernel_count: build it with make driver")
    counted = "finback::count::counted(finback::count::*"
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out"
        done = subprocess.run(
            [valgrind, "--tool=callgrind", f"--toggle-collect={counted}", f"--dump-after={counted}",
             f"--callgrind-out-file={out}", programs[0], LEVEL],
            capture_output=True, text=True, check=False, timeout=240,
        )  # fmt: skip
        if done.returncode:
            raise CannotCountError(f"{programs[0]} under callgrind: exit status {done.returncode}: {done.stderr.strip()}")
        compiler, *names = done.stdout.splitlines()
        totals = [_total(Path(f"{out}.{i + 1}")) for i in range(len(names))]
    return Counts(compiler, dict(zip(names, totals, strict=True)))


def _total(file: Path) -> int:
    """Instructions of one file of callgrind."""
    match = re.search(r"^totals: (\d+)", file.read_text(encoding="utf-8"), re.M)
    assert match, file
    return int(match[1])


def main() -> None:
    found = count()
    TABLE.write_text(json.dumps(asdict(found), indent=2) + "\n", encoding="utf-8")
    width = max(map(len, found.counts))
    for name, instructions in found.counts.items():
        print(f"{name:<{width}}  {instructions:>12,}")


if __name__ == "__main__":
    main()
