"""What the documents say is true: README commands run as written and print what is printed there; named functions
exist."""

from __future__ import annotations

import importlib
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", README, re.S | re.M)


def commands() -> list[tuple[str, str]]:
    """(command, what it must print) of every console block, in order."""
    found = []
    for block in blocks("console"):
        for part in re.split(r"^\$ ", block, flags=re.M)[1:]:
            command, _, output = part.partition("\n")
            found.append((command, output))
    return found


def test_readme_commands(tmp_path: Path) -> None:
    assert len(commands()) >= 6
    env = os.environ | {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    for command, expected in commands():
        done = subprocess.run(
            ["bash", "-o", "pipefail", "-c", command],
            cwd=tmp_path,
            env=env,
            capture_output=True,
            text=True,
            timeout=120,
        )
        said = done.stdout + done.stderr + (f"[exit code {done.returncode}]\n" if done.returncode else "")
        assert said == expected, command


def test_readme_python() -> None:
    (code,), (expected,) = blocks("python"), blocks("text")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.stderr == ""
    assert done.stdout == expected


def test_readme_lists_every_command() -> None:
    from finback.cli.main import COMMANDS

    assert set(re.findall(r"^\| `finback (\w+)` \|", README, re.M)) == set(COMMANDS)


def named(document: str) -> list[str]:
    return sorted(set(re.findall(r"`(finback(?:\.\w+)+)`", (ROOT / "docs" / document).read_text(encoding="utf-8"))))


PAGES = ("request.md", "kv.md", "speculation.md", "structured.md")


@pytest.mark.parametrize("name", sorted({name for page in PAGES for name in named(page)}))
def test_functions_that_documents_name_exist(name: str) -> None:
    parts = name.split(".")
    for split in range(len(parts), 0, -1):
        try:
            value = importlib.import_module(".".join(parts[:split]))
        except ModuleNotFoundError:
            continue
        for part in parts[split:]:
            value = getattr(value, part)
        return
    raise AssertionError(name)


def test_links_of_the_documents_lead_somewhere() -> None:
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")]
    for page in pages:
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_every_operation_has_its_heading() -> None:
    from finback.ops.base import Ops

    text = (ROOT / "docs" / "ops.md").read_text(encoding="utf-8")
    methods = [n for n in vars(Ops) if not n.startswith("_") and callable(getattr(Ops, n)) and n != "config"]
    missing = [name for name in methods if f"`{name}`" not in text]
    assert not missing
