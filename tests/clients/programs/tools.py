"""The tools of the programs beside this one. They run in the working folder."""

from __future__ import annotations

import subprocess
from pathlib import Path


def read(path: str) -> str:
    """Read a file."""
    return Path(path).read_text(encoding="utf-8")


def write(path: str, content: str) -> str:
    """Write a file."""
    Path(path).write_text(content, encoding="utf-8")
    return "written"


def run(command: str, seconds: int) -> str:
    """Run a command for some seconds at most."""
    done = subprocess.run(command, shell=True, timeout=seconds, capture_output=True, text=True, check=True)
    return done.stdout or "no output"


ALL = {"read": read, "write": write, "run": run}
