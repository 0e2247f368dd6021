"""What this machine is called and what it lets this process use: CPUs, CPU quota, memory.

Owns reading `/proc` and `/sys`: control groups of version 1 and 2 (nested ones count, the tightest wins),
the affinity mask, which logical CPUs share a core. Every function takes the root of the file system, so
that a test can build a machine out of files. Refuses to decide anything: settings.py chooses threads,
weights/ledger.py a budget. A file that is missing or unreadable sets no limit: that is how systems without
control groups look.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

ROOT = Path("/")


@dataclass(frozen=True, slots=True)
class Limit:
    """A limit and the file that sets it: CPUs (a fraction is possible) or bytes."""

    value: float
    source: str


# ---- control groups
# -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Mount:
    """A mounted hierarchy: the group that appears at `point`, and its controllers (none listed: version
    2)."""

    group: str
    point: str
    controllers: frozenset[str]
    version: int


def _read(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None


def _unescape(field: str) -> str:
    """Paths in mountinfo write blanks as octal numbers."""
    return re.sub(r"\\([0-7]{3})", lambda m: chr(int(m[1], 8)), field)


def _mounts(root: Path) -> Iterator[_Mount]:
    for line in (_read(root / "proc/self/mountinfo") or "").splitlines():
        before, separator, after = line.partition(" - ")
        fields, kind = before.split(), after.split()
        if not separator or len(fields) < 5 or len(kind) < 3 or kind[0] not in ("cgroup", "cgroup2"):
            continue
        version = 1 if kind[0] == "cgroup" else 2
        names = frozenset(kind[2].split(",")) if version == 1 else frozenset[str]()
        yield _Mount(_unescape(fields[3]), _unescape(fields[4]), names, version)


def _groups(root: Path, controller: str) -> Iterator[tuple[int, str]]:
    """(version, path) of the groups this process is in that can limit `controller`."""
    for line in (_read(root / "proc/self/cgroup") or "").splitlines():
        number, _, rest = line.partition(":")
        names, _, path = rest.partition(":")
        if number == "0" and not names:
            yield 2, path
        elif controller in names.split(","):
            yield 1, path


def _folders(root: Path, controller: str) -> Iterator[tuple[int, Path]]:
    """Folders of the process's groups, innermost first, up to the mount point.

    In a container the mount may show a group below the top (`_Mount.group`), and the process's path may
    start there, lie above it (".."), or not be visible at all; then the mount point itself is the innermost
    group we can see.
    """
    mounts = list(_mounts(root))
    for version, path in _groups(root, controller):
        for mount in mounts:
            if mount.version != version or (version == 1 and controller not in mount.controllers):
                continue
            below = PurePosixPath(path)
            if mount.group != "/":
                inside = below == PurePosixPath(mount.group) or PurePosixPath(mount.group) in below.parents
                below = below.relative_to(mount.group) if inside else PurePosixPath()
            parts = [part for part in below.parts if part != "/"]
            if ".." in parts:
                parts = []
            top = root / mount.point.lstrip("/")
            for depth in range(len(parts), -1, -1):
                yield version, top.joinpath(*parts[:depth])


def _number(text: str | None) -> float | None:
    """A number in the first word of a control file; None for "max", nothing, or anything else."""
    words = (text or "").split()
    return float(words[0]) if words and re.fullmatch(r"-?\d+", words[0]) else None


def _shown(path: Path, root: Path) -> str:
    return "/" + path.relative_to(root).as_posix()


def _tightest(limits: list[Limit]) -> Limit | None:
    return min(limits, key=lambda limit: limit.value, default=None)


def cpu_quota(root: Path = ROOT) -> Limit | None:
    """CPUs' worth of time that control groups allow, such as 7.65; None: no quota."""
    found = []
    for version, folder in _folders(root, "cpu"):
        if version == 2:
            source = folder / "cpu.max"
            words = (_read(source) or "").split()
            quota, period = (_number(words[0]), _number(words[1])) if len(words) == 2 else (None, None)
        else:
            source = folder / "cpu.cfs_quota_us"
            quota, period = _number(_read(source)), _number(_read(folder / "cpu.cfs_period_us"))
        if quota is not None and quota > 0 and period is not None and period > 0:
            found.append(Limit(quota / period, _shown(source, root)))
    return _tightest(found)


def memory_limit(root: Path = ROOT) -> Limit | None:
    """Bytes that control groups allow; None: no limit. `memory.high`, which slows a process down, counts
    too."""
    found = []
    for version, folder in _folders(root, "memory"):
        for name in ("memory.max", "memory.high") if version == 2 else ("memory.limit_in_bytes",):
            value = _number(_read(folder / name))
            if value is not None and 0 < value < 2**60:  # version 1 writes "no limit" as 2^63 less a page
                found.append(Limit(value, _shown(folder / name, root)))
    return _tightest(found)


# ---- the machine itself
# ---------------------------------------------------------------------------------------------


def total_memory(root: Path = ROOT) -> int:
    """Bytes of RAM."""
    match = re.search(r"^MemTotal:\s+(\d+) kB", _read(root / "proc/meminfo") or "", re.MULTILINE)
    if match:
        return int(match[1]) * 1024
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def cpu_name(root: Path = ROOT) -> str | None:
    """What the processor calls itself; None if it does not tell."""
    match = re.search(r"^model name\s*:\s*(.+)$", _read(root / "proc/cpuinfo") or "", re.MULTILINE)
    return match[1].strip() if match else None


def allowed_cpus() -> frozenset[int]:
    """Logical CPUs this process may run on: its affinity mask, CPU sets of control groups included."""
    if hasattr(os, "sched_getaffinity"):
        return frozenset(os.sched_getaffinity(0))
    return frozenset(range(os.cpu_count() or 1))


def online_cpus(root: Path = ROOT) -> int | None:
    """Logical CPUs of the machine; None if it does not tell."""
    text = (_read(root / "sys/devices/system/cpu/online") or "").strip()
    if not re.fullmatch(r"\d+(-\d+)?(,\d+(-\d+)?)*", text):
        return None
    ranges = [part.partition("-") for part in text.split(",")]
    return sum(int(last or first) - int(first) + 1 for first, _, last in ranges)


def physical_cores(cpus: Collection[int], root: Path = ROOT) -> int:
    """Cores behind these logical CPUs. CPUs that list the same siblings share one; one that lists none is
    its own."""
    cores = set()
    for cpu in cpus:
        topology = root / f"sys/devices/system/cpu/cpu{cpu}/topology"
        siblings = _read(topology / "core_cpus_list") or _read(topology / "thread_siblings_list")
        cores.add(siblings.strip() if siblings else f"cpu{cpu}")
    return len(cores)
