"""Environment variables, all of them, and what they and the machine say about threads.

The only reader of the environment: each variable is listed with its meaning, its default and the reason it
exists, and `finback doctor` prints the list. Owns the default number of threads. Refuses a value it does
not understand, naming the variable, rather than going on without it; an explicit argument always wins over
a variable.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from finback import machine
from finback.errors import RequestError, shown

MAX_THREADS = 1024

Environment = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Setting:
    """An environment variable: its meaning, what holds without it, why it exists, and its value now (None:
    not set). secret: its value is never shown."""

    name: str
    meaning: str
    default: str
    reason: str
    value: str | None = None
    secret: bool = False


_SETTINGS = (
    Setting(
        "FINBACK_ISA",
        "instruction-set level of the kernels: scalar, avx2, avx512, neon",
        "the best level of this CPU",
        "to compare levels, or to avoid one, without changing a program",
    ),
    Setting(
        "FINBACK_THREADS",
        f"threads of a step, 1 to {MAX_THREADS}",
        "by CPU quota, affinity mask and physical cores",
        "for machines that are shared by agreement rather than by a quota",
    ),
    Setting(
        "FINBACK_EAGER",
        "1: run a model's operations one at a time on NumPy",
        "0: as one recorded native program",
        "to look at any value in between; slow",
    ),
    Setting(
        "XDG_CACHE_HOME",
        "folder of caches; finback uses the folder finback in it",
        "~/.cache",
        "the desktop standard; a faster or larger disk may be elsewhere",
    ),
    Setting(
        "FINBACK_API_KEY",
        "keys that finback serve wants, with commas between",
        "none is needed",
        "a command line can be read by every program of the machine",
        secret=True,
    ),
    Setting(
        "XDG_STATE_HOME",
        "folder of histories; finback uses the folder finback in it",
        "~/.local/state",
        "the desktop standard",
    ),
)


def all_settings(environment: Environment | None = None) -> list[Setting]:
    """Every variable finback reads, with its present value."""
    env = os.environ if environment is None else environment
    return [replace(s, value="set" if s.secret and s.name in env else env.get(s.name)) for s in _SETTINGS]


def _value(name: str, environment: Environment | None) -> str | None:
    """The value of a variable; one that is empty counts as not set."""
    env = os.environ if environment is None else environment
    return env.get(name, "").strip() or None


def forced_isa(environment: Environment | None = None) -> str | None:
    """The level asked for by FINBACK_ISA, unchecked: native.select_level knows the levels of this build."""
    return _value("FINBACK_ISA", environment)


def eager(environment: Environment | None = None) -> bool:
    """Whether FINBACK_EAGER asks for the NumPy backend. RequestError unless it is 0 or 1."""
    value = _value("FINBACK_EAGER", environment) or "0"
    if value not in ("0", "1"):
        raise RequestError(f"FINBACK_EAGER is {shown(value)}; set it to 1 or 0, or unset it")
    return value == "1"


def cache_folder(environment: Environment | None = None) -> Path:
    """Where caches go. A relative XDG_CACHE_HOME is ignored, as its standard says."""
    base = Path(_value("XDG_CACHE_HOME", environment) or "")
    return (base if base.is_absolute() else Path.home() / ".cache") / "finback"


def state_folder(environment: Environment | None = None) -> Path:
    """Where histories go. A relative XDG_STATE_HOME is ignored, as its standard says."""
    base = Path(_value("XDG_STATE_HOME", environment) or "")
    return (base if base.is_absolute() else Path.home() / ".local" / "state") / "finback"


# ---- threads
# --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ThreadChoice:
    """A number of threads, and why it is that number, for people."""

    count: int
    reason: str


def choose_threads(allowed: int, cores: int, online: int | None, quota: machine.Limit | None) -> ThreadChoice:
    """The default number of threads, from numbers alone.

    Args:
        allowed: logical CPUs in the affinity mask. cores: physical cores behind them. Two threads of a core
        share its arithmetic units and gain nothing here. online: logical CPUs of the machine, if known;
        only for the reason. quota: CPUs' worth of time. It is rounded down: threads beyond it spend the
        quota waiting for each other, and
            then all of them are stopped for the rest of the period.
    """
    if quota is not None and quota.value < cores:
        count = max(1, int(quota.value))
        how = "rounded down" if quota.value >= 1 else "at least one thread"
        return ThreadChoice(count, f"CPU quota of {quota.value:g} in {quota.source}, {how}")
    what = f"{cores} physical core" + ("s" if cores != 1 else "")
    if online is not None and allowed < online:
        return ThreadChoice(cores, f"{what} in the affinity mask of {allowed} of {online} logical CPUs")
    if cores < allowed:
        return ThreadChoice(cores, f"{what} with {allowed} logical CPUs")
    return ThreadChoice(cores, what)


def usable_cpus(root: Path = machine.ROOT, allowed: Collection[int] | None = None) -> int:
    """CPUs that this process can keep busy all the time: the affinity mask, or a CPU quota rounded down.

    A step on more threads than that must not spin while it waits: it would spend the quota on waiting.
    """
    cpus = len(machine.allowed_cpus() if allowed is None else allowed)
    quota = machine.cpu_quota(root)
    return cpus if quota is None else max(1, min(cpus, int(quota.value)))


def default_threads(
    environment: Environment | None = None,
    root: Path = machine.ROOT,
    allowed: Collection[int] | None = None,
) -> ThreadChoice:
    """How many threads to use when nobody says: FINBACK_THREADS, else what this process may use.

    `root` and `allowed` (the affinity mask) replace the real machine in tests. RequestError for a
    FINBACK_THREADS that is not a whole number from 1 to 1024.
    """
    value = _value("FINBACK_THREADS", environment)
    if value is not None:
        if not (value.isascii() and value.isdigit() and 1 <= int(value) <= MAX_THREADS):
            raise RequestError(
                f"FINBACK_THREADS is {shown(value)}; set it to a number from 1 to {MAX_THREADS}, or unset it"
            )
        return ThreadChoice(int(value), "FINBACK_THREADS")
    cpus = machine.allowed_cpus() if allowed is None else allowed
    cores = machine.physical_cores(cpus, root)
    return choose_threads(len(cpus), cores, machine.online_cpus(root), machine.cpu_quota(root))
