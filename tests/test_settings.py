"""Threads and limits by what a machine allows (case F01), on machines built out of files, and variables."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from finback import machine
from finback.errors import RequestError
from finback.settings import (
    all_settings,
    cache_folder,
    choose_threads,
    default_threads,
    eager,
    forced_isa,
    state_folder,
    usable_cpus,
)

V2 = "30 25 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw"
V1_CPU = "33 25 0:29 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct"
V1_MEMORY = "34 25 0:30 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory"


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def cores(root: Path, count: int, per_core: int = 1, split: bool = True) -> Path:
    """`count` logical CPUs, `per_core` a core; siblings lie `count / per_core` apart (split) or side by
    side."""
    apart = count // per_core
    files = {"sys/devices/system/cpu/online": f"0-{count - 1}\n"}
    for cpu in range(count):
        if split:
            siblings = [cpu % apart + i * apart for i in range(per_core)]
        else:
            siblings = [cpu // per_core * per_core + i for i in range(per_core)]
        name = f"sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list"
        files[name] = ",".join(map(str, siblings)) + "\n"
    return write(root, files)


def v2_group(root: Path, path: str, limits: dict[str, str], mount: str = V2) -> Path:
    files = {"proc/self/cgroup": f"0::{path}\n", "proc/self/mountinfo": mount + "\n"}
    return write(root, files | {f"sys/fs/cgroup/{name}": text for name, text in limits.items()})


def threads(root: Path, cpus: range | set[int]) -> int:
    return default_threads({}, root, set(cpus)).count


# ---- quotas
# ---------------------------------------------------------------------------------------------------------


def test_a_quota_of_7_65_of_96_cores_gives_7_and_says_why(tmp_path: Path) -> None:
    v2_group(cores(tmp_path, 96), "/a.slice/job", {"a.slice/job/cpu.max": "765000 100000\n"})
    choice = default_threads({}, tmp_path, range(96))
    assert choice.count == 7
    assert "7.65" in choice.reason
    assert "/sys/fs/cgroup/a.slice/job/cpu.max" in choice.reason


@pytest.mark.parametrize(
    ("quota", "expected"), [("50000", 1), ("100000", 1), ("300000", 3), ("399999", 3), ("max", 96)]
)
def test_quotas_are_rounded_down_but_never_to_zero(tmp_path: Path, quota: str, expected: int) -> None:
    v2_group(cores(tmp_path, 96), "/job", {"job/cpu.max": f"{quota} 100000\n"})
    assert threads(tmp_path, range(96)) == expected


def test_the_tightest_of_nested_groups_wins(tmp_path: Path) -> None:
    limits = {
        "a/b/c/cpu.max": "max 100000\n",
        "a/b/cpu.max": "1600000 100000\n",
        "a/cpu.max": "250000 50000\n",
    }
    v2_group(cores(tmp_path, 32), "/a/b/c", limits)
    assert threads(tmp_path, range(32)) == 5


@pytest.mark.parametrize(
    ("quota", "expected"), [("50000", 1), ("150000", 1), ("300000", 3), ("2000000", 8), ("max", 8)]
)
def test_cpus_that_can_be_kept_busy(tmp_path: Path, quota: str, expected: int) -> None:
    """Unlike threads, logical CPUs of one core count each: both can spin."""
    v2_group(cores(tmp_path, 8, per_core=2), "/job", {"job/cpu.max": f"{quota} 100000\n"})
    assert usable_cpus(tmp_path, range(8)) == expected
    assert usable_cpus(tmp_path, range(2)) == min(expected, 2)


def test_a_quota_above_the_cores_changes_nothing(tmp_path: Path) -> None:
    v2_group(cores(tmp_path, 4), "/job", {"job/cpu.max": "6400000 100000\n"})
    assert default_threads({}, tmp_path, range(4)).reason == "4 physical cores"


def test_version_1_and_its_parents(tmp_path: Path) -> None:
    write(
        cores(tmp_path, 64),
        {
            "proc/self/cgroup": "5:memory:/m\n4:cpu,cpuacct:/docker/abc\n0::/\n",
            "proc/self/mountinfo": V1_CPU + "\n",
            "sys/fs/cgroup/cpu,cpuacct/docker/abc/cpu.cfs_quota_us": "-1\n",
            "sys/fs/cgroup/cpu,cpuacct/docker/abc/cpu.cfs_period_us": "100000\n",
            "sys/fs/cgroup/cpu,cpuacct/docker/cpu.cfs_quota_us": "765000\n",
            "sys/fs/cgroup/cpu,cpuacct/docker/cpu.cfs_period_us": "100000\n",
        },
    )
    assert threads(tmp_path, range(64)) == 7


@pytest.mark.parametrize("path", ["/docker/abc", "/docker/abc/inner", "/", "/../other"])
def test_a_container_that_sees_only_its_own_group(tmp_path: Path, path: str) -> None:
    mount = "30 25 0:26 /docker/abc /sys/fs/cgroup ro - cgroup2 cgroup2 rw"
    v2_group(cores(tmp_path, 16), path, {"cpu.max": "200000 100000\n"}, mount)
    assert threads(tmp_path, range(16)) == 2


def test_both_versions_at_once(tmp_path: Path) -> None:
    write(
        cores(tmp_path, 16),
        {
            "proc/self/cgroup": "4:cpu,cpuacct:/x\n0::/y\n",
            "proc/self/mountinfo": f"{V1_CPU}\n31 25 0:26 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n",
            "sys/fs/cgroup/cpu,cpuacct/x/cpu.cfs_quota_us": "900000\n",
            "sys/fs/cgroup/cpu,cpuacct/x/cpu.cfs_period_us": "100000\n",
            "sys/fs/cgroup/unified/y/cpu.max": "450000 100000\n",
        },
    )
    assert threads(tmp_path, range(16)) == 4


@pytest.mark.parametrize("text", ["", "max", "garbage here", "100000 0", "-5 100000", "1e5 100000", "7 7 7"])
def test_control_files_that_say_nothing_set_no_limit(tmp_path: Path, text: str) -> None:
    v2_group(cores(tmp_path, 4), "/job", {"job/cpu.max": text})
    assert threads(tmp_path, range(4)) == 4


def test_mount_points_with_blanks(tmp_path: Path) -> None:
    mount = r"30 25 0:26 / /sys/fs/my\040cgroup rw - cgroup2 cgroup2 rw"
    write(v2_group(cores(tmp_path, 4), "/", {}, mount), {"sys/fs/my cgroup/cpu.max": "100000 100000"})
    assert threads(tmp_path, range(4)) == 1


# ---- masks and cores
# ------------------------------------------------------------------------------------------------


def test_a_mask_of_four_cores(tmp_path: Path) -> None:
    choice = default_threads({}, cores(tmp_path, 96), range(4))
    assert choice.count == 4
    assert "affinity mask of 4 of 96" in choice.reason


@pytest.mark.parametrize("split", [True, False])
def test_eight_logical_cpus_on_four_cores(tmp_path: Path, split: bool) -> None:
    assert threads(cores(tmp_path, 8, 2, split), range(8)) == 4


def test_one_sibling_of_each_core_is_a_core(tmp_path: Path) -> None:
    assert threads(cores(tmp_path, 8, 2), range(4)) == 4
    assert threads(cores(tmp_path, 8, 2), {0, 4}) == 1


def test_quota_and_mask_together(tmp_path: Path) -> None:
    v2_group(cores(tmp_path, 96, 2), "/job", {"job/cpu.max": "765000 100000\n"})
    assert threads(tmp_path, range(4)) == 4
    assert threads(tmp_path, range(48)) == 7


def test_a_machine_that_tells_nothing(tmp_path: Path) -> None:
    assert threads(tmp_path, range(6)) == 6


def test_the_choice_is_a_function_of_numbers() -> None:
    assert choose_threads(8, 4, 8, None).reason == "4 physical cores with 8 logical CPUs"
    assert (
        choose_threads(1, 1, 1, machine.Limit(0.5, "/x")).reason
        == "CPU quota of 0.5 in /x, at least one thread"
    )


def test_a_real_process_obeys_a_real_mask() -> None:
    one = min(os.sched_getaffinity(0))
    pinned = f"import os; os.sched_setaffinity(0, [{one}])"
    code = f"{pinned}; from finback.settings import default_threads; print(default_threads().count)"
    env = {k: v for k, v in os.environ.items() if k != "FINBACK_THREADS"}
    run = subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True, timeout=60
    )
    assert run.stdout == "1\n"


# ---- memory
# ---------------------------------------------------------------------------------------------------------


def test_memory_limits_of_both_versions(tmp_path: Path) -> None:
    limits = {"a/memory.max": "4294967296\n", "a/b/memory.max": "max\n", "a/b/memory.high": "3221225472\n"}
    found = machine.memory_limit(v2_group(tmp_path / "v2", "/a/b", limits))
    assert found == machine.Limit(3221225472, "/sys/fs/cgroup/a/b/memory.high")
    v1 = write(
        tmp_path / "v1",
        {
            "proc/self/cgroup": "5:memory:/m/n\n",
            "proc/self/mountinfo": V1_MEMORY,
            "sys/fs/cgroup/memory/m/n/memory.limit_in_bytes": "9223372036854771712\n",
            "sys/fs/cgroup/memory/m/memory.limit_in_bytes": "1073741824\n",
        },
    )
    assert machine.memory_limit(v1) == machine.Limit(
        1073741824, "/sys/fs/cgroup/memory/m/memory.limit_in_bytes"
    )
    assert machine.memory_limit(tmp_path / "nothing") is None


# ---- variables
# ------------------------------------------------------------------------------------------------------


def test_a_variable_beats_the_machine(tmp_path: Path) -> None:
    assert (
        default_threads({"FINBACK_THREADS": "3"}, cores(tmp_path, 16), range(16)).reason == "FINBACK_THREADS"
    )


@pytest.mark.parametrize("value", ["0", "-1", "1025", "two", "1.5", "٣", "999999999999"])
def test_a_wrong_thread_count_is_refused_by_name(value: str) -> None:
    with pytest.raises(RequestError, match="FINBACK_THREADS is"):
        default_threads({"FINBACK_THREADS": value})


def test_variables_and_their_defaults() -> None:
    assert forced_isa({}) is None
    assert forced_isa({"FINBACK_ISA": " avx2 "}) == "avx2"
    assert not eager({"FINBACK_EAGER": ""})
    assert eager({"FINBACK_EAGER": "1"})
    with pytest.raises(RequestError, match="FINBACK_EAGER is 'yes'"):
        eager({"FINBACK_EAGER": "yes"})
    assert cache_folder({"XDG_CACHE_HOME": "/disk"}) == Path("/disk/finback")
    assert cache_folder({"XDG_CACHE_HOME": "relative"}) == Path.home() / ".cache/finback"
    assert state_folder({"XDG_STATE_HOME": "/disk"}) == Path("/disk/finback")
    assert state_folder({"XDG_STATE_HOME": "relative"}) == Path.home() / ".local/state/finback"


def test_every_variable_is_listed_with_its_value() -> None:
    listed = {s.name: s.value for s in all_settings({"FINBACK_ISA": "scalar"})}
    assert listed == {
        "FINBACK_ISA": "scalar",
        "FINBACK_THREADS": None,
        "FINBACK_EAGER": None,
        "XDG_CACHE_HOME": None,
        "FINBACK_API_KEY": None,
        "XDG_STATE_HOME": None,
    }
    assert all(s.meaning and s.default and s.reason for s in all_settings())
    secret = {s.name: s.value for s in all_settings({"FINBACK_API_KEY": "hush"})}
    assert secret["FINBACK_API_KEY"] == "set"
