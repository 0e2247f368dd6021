"""`make test-isa`: kernel_digest on every kind of processor, and whether all of them print the same hashes.

    this machine                every level it can run
    x86-64 without AVX          scalar; the others are refused by name of what is missing   (qemu-user)
    x86-64 with AVX2 only       scalar, avx2; avx512 is refused                             (qemu-user)
    AVX-512                     avx512: natively where the processor has it, else made of AVX2 (SIMDe)
    aarch64                     scalar, neon (qemu-user)
    aarch64 without dot product neon is refused (qemu-user)

Owns the builds of native/digest in build/isa and the comparison, which tests/exact/test_digest.py shares. Refuses to
leave a processor out: a tool that is missing is named with its Debian package, and the run fails.
"""

from __future__ import annotations

import platform
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
BUILD = ROOT / "build" / "isa"
SYMBOLS = ROOT / "native" / "check_symbols.sh"
SIMDE = Path("/usr/include/simde/x86/avx512.h")
HOST = platform.machine()
HEADINGS = ("op", "format", "layout", "shape", "seed")

Key = tuple[str, ...]
Digest = dict[Key, str]


# ---- digests


def parse(text: str) -> Digest:
    """Lines of kernel_digest: (op, format, layout, shape, seed) -> hash."""
    digest: Digest = {}
    for line in text.splitlines():
        *key, value = line.split()
        assert len(key) == len(HEADINGS), line
        assert tuple(key) not in digest, line
        digest[tuple(key)] = value
    return digest


def named(key: Key) -> str:
    return ", ".join(f"{heading} {value}" for heading, value in zip(HEADINGS, key, strict=True))


def difference(truth: Digest, other: Digest) -> str | None:
    """The first line that is not the same, in words; None when all are."""
    for key in truth:
        if other.get(key) != truth[key]:
            return f"{named(key)}: {other.get(key, 'no line')} instead of {truth[key]}"
    extra = [key for key in other if key not in truth]
    return f"{named(extra[0])}: a line too many" if extra else None


def layouts_differ(digest: Digest) -> str | None:
    """The first product whose tiles do not give the bits of its rows; None when all do."""
    for (op, format, layout, shape, seed), value in digest.items():
        if (op, layout) == ("linear", "tiles") and digest[op, format, "rows", shape, seed] != value:
            return f"{named((op, format, layout, shape, seed))}: not the bits of its rows"
    return None


# ---- builds and processors


@dataclass(frozen=True)
class Build:
    name: str
    processor: str  # as in platform.machine()
    emulate: bool = False  # AVX-512 made of AVX2

    @property
    def compiler(self) -> str:
        return "g++" if self.processor == HOST else f"{self.processor}-linux-gnu-g++"

    def missing(self) -> list[str]:
        package = "g++" if self.processor == HOST else f"g++-{self.processor.replace('_', '-')}-linux-gnu"
        found = [] if shutil.which(self.compiler) else [f"{self.compiler} (package {package})"]
        if self.emulate and not SIMDE.exists():
            found.append(f"{SIMDE} (package libsimde-dev)")
        return found

    def make(self) -> Path:
        """Builds kernel_digest and returns it."""
        folder = BUILD / self.name
        cmake = Path(sys.executable).parent / "cmake"
        options = [f"-DCMAKE_CXX_COMPILER={self.compiler}", f"-DFINBACK_EMULATE={'ON' if self.emulate else 'OFF'}"]
        if self.processor != HOST:
            options += ["-DCMAKE_SYSTEM_NAME=Linux", f"-DCMAKE_SYSTEM_PROCESSOR={self.processor}"]
        commands: list[list[str | Path]] = [
            [cmake, "-S", ROOT / "native" / "digest", "-B", folder, "-DCMAKE_BUILD_TYPE=Release", *options],
            [cmake, "--build", folder, "--parallel", "2"],
        ]
        for command in commands:
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode or "warning:" in done.stderr:
                raise SystemExit(f"{' '.join(map(str, command))} failed:\n{done.stdout}{done.stderr}")
        units = sorted(folder.rglob("isa_*.o"))
        assert units, folder
        symbols = subprocess.run(["sh", SYMBOLS, *units], capture_output=True, text=True, check=False)
        if symbols.returncode:
            raise SystemExit(symbols.stdout + symbols.stderr)
        return folder / "kernel_digest"


@dataclass(frozen=True)
class Processor:
    name: str
    build: Build
    cpu: str | None  # a model of qemu-user; None: this machine
    runs: tuple[str, ...]
    refuses: tuple[tuple[str, str], ...] = ()  # level, and a feature the sentence must name

    @property
    def emulator(self) -> str:
        return f"qemu-{self.build.processor}"

    def missing(self) -> list[str]:
        found = [] if self.cpu is None or shutil.which(self.emulator) else [f"{self.emulator} (package qemu-user)"]
        return found + self.build.missing()

    def run(self, program: Path, argument: str) -> subprocess.CompletedProcess[str]:
        prefix = [] if self.cpu is None else [self.emulator, "-cpu", self.cpu]
        return subprocess.run([*prefix, program, argument], capture_output=True, text=True, check=False)


def usable(program: Path) -> list[str]:
    """Levels this machine can run."""
    listed = subprocess.run([program, "--list"], capture_output=True, text=True, check=True).stdout
    return [line.split()[0] for line in listed.splitlines() if line.endswith(" usable")]


def processors(here: list[str]) -> list[Processor]:
    x86, arm, emulated = Build("x86_64", "x86_64"), Build("aarch64", "aarch64"), Build("avx512", "x86_64", emulate=True)
    found = [
        Processor("this machine", Build(HOST, HOST), None, tuple(here)),
        Processor("x86-64 without AVX", x86, "Nehalem", ("scalar",), (("avx2", "AVX2"), ("avx512", "AVX512F"))),
        Processor("x86-64 with AVX2", x86, "Haswell", ("scalar", "avx2"), (("avx512", "AVX512F"),)),
        Processor("aarch64", arm, "max", ("scalar", "neon")),
        Processor("aarch64 without dot product", arm, "cortex-a57", (), (("neon", "asimddp"),)),
    ]
    if "avx512" not in here and HOST == "x86_64":
        found.append(Processor("AVX-512 made of AVX2", emulated, None, ("avx512",)))
    return found


def check(processor: Processor, program: Path, truth: Digest) -> list[str]:
    """Runs what the processor must run and refuse; a row of the table for each. Exits at the first difference."""
    rows = []
    for level in processor.runs:
        done = processor.run(program, level)
        if done.returncode:
            raise SystemExit(f"{processor.name}, {level}: exit status {done.returncode}\n{done.stderr}")
        digest = parse(done.stdout)
        found = difference(truth, digest) or layouts_differ(digest)
        if found:
            raise SystemExit(f"{processor.name}, {level} differs: {found}")
        rows.append(f"{processor.name:<28} {level:<8} {len(digest):>6} hashes, all the same")
    for level, feature in processor.refuses:
        done = processor.run(program, level)
        sentence = f"isa='{level}' cannot run on this machine, which lacks: "
        if done.returncode != 2 or sentence not in done.stderr or feature not in done.stderr:
            raise SystemExit(f"{processor.name} must refuse {level} for lack of {feature}, but said:\n{done.stderr}")
        rows.append(f"{processor.name:<28} {level:<8} refused")
    return rows


def main() -> None:
    program = Build(HOST, HOST).make()
    machines = processors(usable(program))
    missing = sorted({tool for machine in machines for tool in machine.missing()})
    if missing:
        raise SystemExit("make test-isa needs " + ", ".join(missing) + "; install the packages with apt-get")
    truth = parse(machines[0].run(program, "scalar").stdout)
    for machine in machines:
        for row in check(machine, machine.build.make(), truth):
            print(row, flush=True)


if __name__ == "__main__":
    main()
