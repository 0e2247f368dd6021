"""Detection of instruction-set levels, the sentence of a refusal, the check that keeps their objects apart.

Owns the mapping from processor words to missing features: the words are passed in, so every kind of processor
is tested on this one.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from tests.kernels.cases import kernels

from finback import _native

FMA, OSXSAVE, F16C, AVX2 = 1 << 12, 1 << 27, 1 << 29, 1 << 5
SYMBOLS = Path(__file__).parents[2] / "native" / "check_symbols.sh"


@pytest.mark.parametrize(
    ("ecx", "ebx", "xcr0", "missing"),
    [
        (FMA | OSXSAVE | F16C, AVX2, 7, ""),
        (FMA | OSXSAVE | F16C, 0, 7, "AVX2"),
        (OSXSAVE | F16C, AVX2, 7, "FMA"),
        (FMA | OSXSAVE, AVX2, 7, "F16C"),
        (FMA | OSXSAVE | F16C, AVX2, 3, "256-bit registers saved by the operating system"),
        (FMA | F16C, AVX2, 7, "256-bit registers saved by the operating system"),
        (0, 0, 0, "AVX2, FMA, F16C, 256-bit registers saved by the operating system"),
    ],
)
def test_missing_features_are_named(ecx: int, ebx: int, xcr0: int, missing: str) -> None:
    assert kernels.missing_for_avx2(ecx, ebx, xcr0) == missing


def test_levels_and_selection() -> None:
    levels = _native.levels()
    assert levels[0] == ("scalar", True, "")
    assert all(supported == (missing == "") for _, supported, missing in levels)
    best = [name for name, supported, _ in levels if supported][-1]
    assert kernels.select("") == kernels.select("auto") == best
    assert kernels.select("scalar") == "scalar"
    names = ", ".join(name for name, _, _ in levels)
    with pytest.raises(
        ValueError, match=f"^isa='avx512' is not a level of this build; levels here: {names}.$"
    ):
        kernels.select("avx512")


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
