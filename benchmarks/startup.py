"""What it costs to begin: opening large models, the first token of a cold process, memory of two processes on one file.

    python benchmarks/startup.py [--rounds 7] [--out FILE.json] [--skip-large]

- gguf: opening a V4-Flash GGUF of 43 layers and 256 experts (`finback synth --alias`: full depth, shared bytes),
without the
  tokenizer; milliseconds of `open_checkpoint`.
- folder: opening the published V4-Flash folder's 69,187 tensors in 46 shards (synth arch v4-flash-small: real names,
tiny
  tensors).
- cold: a new process from exec to the first token of the embedded model; and the time of its Python imports.
- pss: summed proportional set size of two processes on one mapped model, over that of one.
Medians, smallest and largest of the rounds; nothing here is asserted.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from finback import native
from finback.config import ARITHMETIC_VERSION
from finback.tools.synth import synth
from finback.weights.checkpoint import open_checkpoint

HOLD = """
import sys, finback
with finback.load(sys.argv[1], context=128) as engine:
    engine.logits(list(range(3, 100)))
    print("ready", flush=True)
    sys.stdin.read()
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--skip-large", action="store_true", help="leave out the GGUF that needs 8 GB of disk")
    args = parser.parse_args()
    record: dict[str, object] = {
        "machine": f"{platform.machine()}, {os.cpu_count()} processors",
        "level": native.select_level(None),
        "arithmetic_version": ARITHMETIC_VERSION,
        "rounds": args.rounds,
    }
    with tempfile.TemporaryDirectory() as folder:
        if not args.skip_large:
            path = Path(folder) / "flash.gguf"
            synth(path, "v4-flash", vocab=4096, alias=True, drafts=0)
            claims = open_checkpoint(path)
            record["gguf_claims_gb"] = sum(t.nbytes for t in claims.stored()) / 1e9
            record["open_gguf_ms"] = spread(lambda: timed(lambda: open_checkpoint(path)), args.rounds)
            path.unlink()
        place = Path(folder) / "flash"
        synth(place, "v4-flash-small", shards=46)
        record["folder_tensors"] = len(open_checkpoint(place).stored())
        record["open_folder_ms"] = spread(lambda: timed(lambda: open_checkpoint(place)), args.rounds)
        record["cold_first_token_ms"] = spread(cold, args.rounds)
        record["python_imports_ms"] = spread(imports, args.rounds)
        mapped = Path(folder) / "mapped.gguf"
        synth(mapped, "v4-tiny", layers=5, experts=128, vocab=4096, experts_format="F32", dense_format="F32")
        record["pss_two_over_one"] = pss(mapped)
    print(json.dumps(record, indent=2))
    if args.out:
        args.out.write_text(json.dumps(record, indent=2) + "\n")


def spread(measure: Callable[[], float], rounds: int) -> dict[str, float]:
    """Median, least and greatest of `rounds` measurements."""
    values = [measure() for _ in range(rounds)]
    return {"median": statistics.median(values), "min": min(values), "max": max(values)}


def timed(work: Callable[[], object]) -> float:
    """Milliseconds of one call."""
    begun = time.perf_counter()
    work()
    return (time.perf_counter() - begun) * 1e3


def cold() -> float:
    """Milliseconds of a whole process that answers with one token."""
    command = [sys.executable, "-m", "finback.cli.main", "run", "-p", "hi", "--max-tokens", "1"]
    return timed(lambda: subprocess.run(command, check=True, capture_output=True))


def imports() -> float:
    """Milliseconds of all imports of such a process, by -X importtime (self times added up)."""
    command = [sys.executable, "-X", "importtime", "-m", "finback.cli.main", "run", "-p", "hi", "--max-tokens", "1"]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return sum(int(us) for us in re.findall(r"^import time:\s+(\d+) \|", done.stderr, re.M)) / 1e3


def pss(path: Path) -> float:
    """Summed PSS of two processes that have read the whole model, over the PSS of one alone."""

    def hold() -> subprocess.Popen[str]:
        child = subprocess.Popen(
            [sys.executable, "-c", HOLD, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        return child

    def size(child: subprocess.Popen[str]) -> int:
        text = Path(f"/proc/{child.pid}/smaps_rollup").read_text(encoding="ascii")
        return int(re.findall(r"^Pss:\s+(\d+) kB", text, re.M)[0])

    one = hold()
    alone = size(one)
    two = hold()
    both = size(one) + size(two)
    for child in (one, two):
        child.communicate()
    return both / alone


if __name__ == "__main__":
    main()
