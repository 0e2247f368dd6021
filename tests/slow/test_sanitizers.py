"""The C++ tests of the operations, and the kernels and operations from Python, under address and undefined-behaviour
sanitizers. Builds its own tree; nothing may be found."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sanitize")
    cmake = shutil.which("cmake", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    assert cmake, "cmake is missing; run make build"
    flags = ["-DFINBACK_SANITIZE=ON", "-DFINBACK_TESTS=ON", f"-DPython_EXECUTABLE={sys.executable}"]
    subprocess.run([cmake, "-S", ROOT, "-B", folder, "-G", "Ninja", *flags], check=True, capture_output=True)
    subprocess.run([cmake, "--build", folder, "-t", "finback_tests", "_native"], check=True, capture_output=True)
    return folder


def test_the_native_driver_is_clean(build: Path) -> None:
    done = subprocess.run([build / "finback_tests"], capture_output=True, text=True, timeout=3000)
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
    assert "runtime error" not in done.stderr


def test_kernels_and_operations_from_python_are_clean(build: Path, tmp_path: Path) -> None:
    package = tmp_path / "finback"
    package.mkdir()
    for entry in (ROOT / "src" / "finback").iterdir():
        if not entry.name.startswith("_native"):
            (package / entry.name).symlink_to(entry)
    (package / "_native.pyi").symlink_to(ROOT / "src" / "finback" / "_native.pyi")
    (extension,) = build.glob("_native*.so")
    shutil.copy(extension, package)
    asan = subprocess.run(["g++", "-print-file-name=libasan.so"], capture_output=True, text=True, check=True)
    ubsan = subprocess.run(["g++", "-print-file-name=libubsan.so"], capture_output=True, text=True, check=True)
    # The base interpreter, so that the environment's editable install does not come before our package.
    python = Path(sys.base_prefix) / "bin" / "python3"
    env = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(tmp_path), sysconfig.get_paths()["purelib"]]),
        "LD_PRELOAD": f"{asan.stdout.strip()} {ubsan.stdout.strip()}",
        "ASAN_OPTIONS": "detect_leaks=0",  # Python itself never frees everything
        "UBSAN_OPTIONS": "halt_on_error=1",
    }
    tests = ["tests/kernels", "tests/ops", "tests/kv", "tests/core/test_binding.py", "tests/engine/test_session.py"]
    done = subprocess.run(
        [
            python,
            "-m",
            "pytest",
            "-q",
            "-x",
            "--timeout",
            "3000",
            "--deselect",
            "tests/ops/test_native_driver.py",
            "--ignore",
            "tests/kernels/test_instructions.py",  # runs a program of its own, under callgrind
            *tests,
        ],
        cwd=ROOT,
        env=env,
        capture_output=True,
        text=True,
        timeout=3400,
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
    assert "AddressSanitizer" not in done.stderr
