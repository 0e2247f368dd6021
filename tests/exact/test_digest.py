"""kernel_digest on this machine: on fixed inputs every function of every level has the bits of the scalar level.

The levels of other processors are compared by `make test-isa`. Owns no arithmetic and builds nothing; without a build
it fails and says how to make one.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from finback import native
from tests.isa import difference, layouts_differ, parse, usable
from tests.kernels.cases import kernels

BUILD = Path(__file__).parents[2] / "build"


@pytest.fixture(scope="module")
def program() -> Path:
    found = sorted(BUILD.glob("*/kernel_digest"))
    assert found, f"no {BUILD}/*/kernel_digest: build it with make driver"
    return found[0]


def output(program: Path, level: str) -> str:
    return subprocess.run([program, level], capture_output=True, text=True, check=True, timeout=240).stdout


@pytest.fixture(scope="module")
def truth(program: Path) -> str:
    return output(program, "scalar")


@pytest.mark.parametrize("level", [level.name for level in native.levels() if level.supported])
def test_every_level_has_the_bits_of_scalar(program: Path, truth: str, level: str) -> None:
    assert level in usable(program)
    digest = parse(output(program, level))
    assert difference(parse(truth), digest) is None
    assert layouts_differ(digest) is None


def test_levels_that_cannot_run_are_refused(program: Path) -> None:
    for level in native.levels():
        if not level.supported:
            done = subprocess.run([program, level.name], capture_output=True, text=True, check=False)
            assert (done.returncode, done.stdout) == (2, "")
            assert f"isa='{level.name}' cannot run on this machine, which lacks: {level.missing}" in done.stderr


def test_every_function_and_format_is_hashed(truth: str) -> None:
    keys = list(parse(truth))
    assert {key[0] for key in keys} == {*kernels.functions("scalar"), "pack", "linear", "decode_row", "make_resident"}
    formats = {format.name for format in native.Format}
    for op in ("linear", "decode_row", "make_resident"):
        assert {key[1] for key in keys if key[0] == op} == formats
    assert {key[1] for key in keys if key[0] == "pack"} == {encoding.name for encoding in native.Encoding}


def test_a_changed_hash_is_named(truth: str) -> None:
    whole = parse(truth)
    key = next(key for key in whole if key[:3] == ("linear", "Q8_0", "tiles"))
    assert difference(whole, whole | {key: "0" * 16}) == (
        f"op linear, format Q8_0, layout tiles, shape {key[3]}, seed {key[4]}: {'0' * 16} instead of {whole[key]}"
    )
    assert f"shape {key[3]}" in (layouts_differ(whole | {key: "0" * 16}) or "")
    assert "no line" in (difference(whole, {k: v for k, v in whole.items() if k != key}) or "")
