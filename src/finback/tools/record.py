"""What every benchmark record holds, whatever was timed: where it was measured, with which code, and rows.

Owns the head of a record, the statistics (median and quartiles), which fields of a row name it and which are
measured, and reading a record back. Refuses files that are no record. Knows nothing of what is timed.
"""

from __future__ import annotations

import datetime
import json
import os
import platform
import statistics
import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final

from finback import __version__, machine
from finback.config import ARITHMETIC_VERSION
from finback.errors import RequestError, shown

Record = dict[str, Any]
Row = dict[str, Any]

KEYS: Final[dict[str, tuple[str, ...]]] = {
    "kernels": ("format", "layout", "shape", "experts", "rows", "threads"),
    "decode": ("depth", "tokens", "threads"),
    "prefill": ("size", "depth", "threads"),
    "startup": ("what",),
    "versus": ("runner", "what", "size", "threads"),
    "serving": ("what", "mode", "streams", "prompt", "new", "share", "stall", "threads"),
}
"""The fields that name a row, by the kind of its record. Rows of two records with the same name are compared."""

MEASURES: Final[dict[str, tuple[str, ...]]] = {
    "kernels": ("gbps", "read_gbps", "share"),
    "decode": ("tokens_per_s",),
    "prefill": ("tokens_per_s",),
    "startup": ("ms",),
    "versus": ("tokens_per_s",),
    "serving": ("tokens_per_s", "short_first_s", "first_token_s"),
}
"""The measured fields, each with its quartiles in the field NAME_spread."""

LESS_IS_BETTER: Final = frozenset({"ms", "short_first_s", "first_token_s"})

_FOLDER: Final = Path(__file__).parent


def new_record(kind: str, level: str, rows: Sequence[Row], **more: Any) -> Record:
    """A record of `rows` measured just now at an instruction-set level; `more` joins the head."""
    return {
        "kind": kind,
        "machine": describe_machine(),
        "version": __version__,
        "commit": _COMMIT,
        "level": level,
        "arithmetic_version": ARITHMETIC_VERSION,
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        **more,
        "rows": list(rows),
    }


def describe_machine() -> dict[str, Any]:
    """The processor, how much of it this process may use, RAM, and the system."""
    return {
        "cpu": machine.cpu_name() or platform.machine(),
        "cpus": len(machine.allowed_cpus()),
        "cores": machine.physical_cores(machine.allowed_cpus()),
        "memory_gib": round(machine.total_memory() / 2**30, 1),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
    }


def commit(folder: Path = _FOLDER) -> str | None:
    """The commit of the checkout that this code is part of, with "+changes" if files differ from it; None if the code
    is not in a checkout (an installed package in somebody else's repository is not)."""

    def git(*args: str) -> str | None:
        try:
            done = subprocess.run(["git", "-C", str(folder), *args], capture_output=True, text=True, check=False)
        except OSError:  # no git
            return None
        return done.stdout.strip() if done.returncode == 0 else None

    if git("ls-files", "--error-unmatch", "record.py") is None:
        return None
    name = git("rev-parse", "--short=12", "HEAD")
    if name is None:
        return None
    return f"{name}+changes" if git("status", "--porcelain", "--untracked-files=no") else name


_COMMIT: Final = commit()  # when this code was loaded: what is in the checkout later was not measured


# ---- statistics


def measured(name: str, values: Iterable[float]) -> Row:
    """The fields of a measure: NAME is the median of `values`, NAME_spread their quartiles."""
    low, median, high = quartiles(values)
    return {name: rounded(median), f"{name}_spread": [rounded(low), rounded(high)]}


def quartiles(values: Iterable[float]) -> tuple[float, float, float]:
    """First quartile, median and third quartile of at least one value."""
    items = sorted(values)
    if len(items) == 1:
        return items[0], items[0], items[0]
    low, median, high = statistics.quantiles(items, n=4, method="inclusive")
    return low, median, high


def rounded(value: float) -> float:
    """Five digits: more would be noise."""
    return float(f"{value:.5g}")


# ---- names and files


def key_of(kind: str, row: Row) -> tuple[Any, ...]:
    """What names a row among those of its kind."""
    return tuple(tuple(v) if isinstance(v := row.get(field), list) else v for field in KEYS[kind])


def label_of(kind: str, row: Row) -> str:
    """The same for people: "MXFP4 resident 2048x4096, 1 row, 2 threads"."""
    words = []
    for field in KEYS[kind]:
        value = row.get(field)
        if value is None:
            continue
        if field == "shape":
            words.append("x".join(map(str, value)))
        elif field in ("format", "layout", "what", "runner"):
            words.append(str(value))
        elif field in ("depth", "size"):
            words.append(f"{field} {value}")
        else:
            words.append(f"{value} {field if value != 1 else field.removesuffix('s')}")
    return " ".join(words)


def read_record(path: str | os.PathLike[str]) -> Record:
    """A record from a file. RequestError, naming the file, for anything else."""
    name = os.fspath(path)
    try:
        record = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise RequestError(f"{name}: {error.strerror}; give a file that finback bench --json wrote") from None
    except ValueError:
        raise RequestError(f"{name} is not JSON; give a file that finback bench --json wrote") from None
    kind = record.get("kind") if isinstance(record, dict) else None
    if kind not in KEYS or not isinstance(record.get("rows"), list):
        raise RequestError(f"{name} is no benchmark record (kind {shown(kind)}); known are {', '.join(KEYS)}")
    if not all(isinstance(row, dict) for row in record["rows"]):
        raise RequestError(f"{name} has rows that are no objects; give a file that finback bench --json wrote")
    return dict(record)
