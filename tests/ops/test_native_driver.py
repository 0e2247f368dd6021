"""The C++ tests of the operations: compressor slots, ring wrap, tiles, top-k, expert groups, several segments a step.

Runs `finback_tests` (native/tests), every build of it there is: the plain one, and one with sanitizers where somebody
made that. Owns no arithmetic and builds nothing; without any build it fails and says how to make one.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

BUILD = Path(__file__).parents[2] / "build"
NAMES = (
    "top", "linear", "rows", "hyper", "route", "qkv_finish", "compress", "index_select", "attend", "experts", "clamp",
)  # fmt: skip


def drivers() -> list[Path]:
    found = sorted(BUILD.glob("*/finback_tests"))
    assert found, f"no {BUILD}/*/finback_tests: build it with make driver"
    return found


def run(driver: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([driver, *arguments], capture_output=True, text=True, timeout=240)


@pytest.mark.parametrize("name", NAMES)
def test_native(name: str) -> None:
    for driver in drivers():
        result = run(driver, name)
        assert result.returncode == 0, f"{driver}: {result.stdout}{result.stderr}"
        assert f"ok   {name} scalar" in result.stdout


def test_no_test_is_left_out() -> None:
    for driver in drivers():
        assert run(driver, "--list").stdout.split() == list(NAMES)


def test_unknown_name_is_refused() -> None:
    for driver in drivers():
        result = run(driver, "no_such_operation")
        assert result.returncode == 2
        assert "no_such_operation" in result.stderr
