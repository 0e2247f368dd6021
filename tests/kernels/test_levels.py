"""Detection of instruction-set levels, the sentence of a refusal, the check that keeps their objects apart.

Owns the mapping from processor words to missing features: the words are passed in, so every kind of processor
is tested on this one.
"""

from __future__ import annotations

import platform
import subprocess
from pathlib import Path

import pytest
from tests.kernels.cases import kernels

from finback import _native

FMA, OSXSAVE, F16C = 1 << 12, 1 << 27, 1 << 29  # leaf 1, ecx
AVX2, F, DQ, BW, VL = 1 << 5, 1 << 16, 1 << 17, 1 << 30, 1 << 31  # leaf 7, ebx
VNNI = 1 << 11  # leaf 7, ecx
YMM, ZMM = 7, 0xE7  # XCR0: registers the system saves
DOTPROD = 1 << 20
NEON = 1 << 1 | 1 << 7 | 1 << 8 | 1 << 12 | DOTPROD  # AT_HWCAP
SYMBOLS = Path(__file__).parents[2] / "native" / "check_symbols.sh"
BIG = {"leaf1_ecx": FMA | OSXSAVE | F16C, "leaf7_ebx": AVX2 | F | DQ | BW | VL, "leaf7_ecx": VNNI, "xcr0": ZMM}


@pytest.mark.parametrize(
    ("ecx", "ebx", "xcr0", "missing"),
    [
        (FMA | OSXSAVE | F16C, AVX2, YMM, ""),
        (FMA | OSXSAVE | F16C, 0, YMM, "AVX2"),
        (OSXSAVE | F16C, AVX2, YMM, "FMA"),
        (FMA | OSXSAVE, AVX2, YMM, "F16C"),
        (FMA | OSXSAVE | F16C, AVX2, 3, "256-bit registers saved by the operating system"),
        (FMA | F16C, AVX2, 0, "256-bit registers saved by the operating system"),
        (0, 0, 0, "AVX2, FMA, F16C, 256-bit registers saved by the operating system"),
    ],
)
def test_missing_features_of_avx2_are_named(ecx: int, ebx: int, xcr0: int, missing: str) -> None:
    assert kernels.missing_for("avx2", leaf1_ecx=ecx, leaf7_ebx=ebx, xcr0=xcr0) == missing


@pytest.mark.parametrize(
    ("changed", "missing"),
    [
        ({}, ""),
        ({"leaf7_ebx": AVX2 | DQ | BW | VL}, "AVX512F"),
        ({"leaf7_ebx": AVX2 | F | BW | VL}, "AVX512DQ"),
        ({"leaf7_ebx": AVX2 | F | DQ | VL}, "AVX512BW"),
        ({"leaf7_ebx": AVX2 | F | DQ | BW}, "AVX512VL"),
        ({"leaf7_ecx": 0}, "AVX512_VNNI"),
        ({"leaf7_ebx": F | DQ | BW | VL}, "AVX2"),
        ({"xcr0": YMM}, "512-bit registers saved by the operating system"),
        ({"xcr0": ZMM & ~0x20}, "512-bit registers saved by the operating system"),
        ({"xcr0": ZMM & ~2}, "512-bit registers saved by the operating system"),
    ],
)
def test_missing_features_of_avx512_are_named(changed: dict[str, int], missing: str) -> None:
    assert kernels.missing_for("avx512", **(BIG | changed)) == missing


def test_missing_features_of_neon_are_named() -> None:
    assert kernels.missing_for("neon", hwcap=NEON) == ""
    assert kernels.missing_for("neon", hwcap=NEON & ~DOTPROD) == "asimddp"
    assert kernels.missing_for("neon") == "asimd, crc32, atomics, asimdrdm, asimddp"
    assert kernels.missing_for("scalar") == ""


def test_levels_and_selection() -> None:
    levels = _native.levels()
    assert levels[0] == ("scalar", True, "")
    assert [name for name, _, _ in levels] == (
        ["scalar", "avx2", "avx512"] if platform.machine() == "x86_64" else ["scalar", "neon"]
    )
    assert all(supported == (missing == "") for _, supported, missing in levels)
    best = [name for name, supported, _ in levels if supported][-1]
    assert kernels.select("") == kernels.select("auto") == best
    names = ", ".join(name for name, _, _ in levels)
    for name, supported, missing in levels:
        if supported:
            assert kernels.select(name) == name
            continue
        with pytest.raises(ValueError, match=f"^isa='{name}' cannot run on this machine, which lacks: {missing};"):
            kernels.select(name)
    with pytest.raises(ValueError, match=f"^isa='sve2' is not a level of this build; levels here: {names}.$"):
        kernels.select("sve2")


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("namespace { int f() { return 1; } } int g() { return f(); }", ""),
        ("inline int f() { return 1; } int (*g())() { return f; }", "weak symbols"),
        ("template <class T> T f(T x) { return x; } int (*g())(int) { return f<int>; }", "weak symbols"),
        ("inline int value = 3; int* g() { return &value; }", "weak symbols"),
        (
            "#include <string>\nstd::string g(const char* s) { return std::string(s) + s; }",
            "references to the C++ library",
        ),
        ("int f(); static int value = f(); int g() { return value; }", "constructors at load"),
    ],
)
def test_symbol_check(tmp_path: Path, source: str, found: str) -> None:
    (tmp_path / "unit.cc").write_text(source)
    subprocess.run(["c++", "-std=c++20", "-c", "unit.cc", "-o", "unit.o"], cwd=tmp_path, check=True)
    result = subprocess.run(
        ["sh", SYMBOLS, "unit.o"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert result.returncode == (1 if found else 0), result.stdout + result.stderr
    assert found in result.stdout
