"""How a model of the hub is named: org/name, org/name:TAG, org/name/FILE.

Owns the spelling and the choice of files that it stands for. Refuses to guess among several models of a repository,
and names that could lead out of a folder.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import TypeGuard

from finback.errors import RequestError, shown
from finback.formats.split import PartName

_WORD = r"[A-Za-z0-9][A-Za-z0-9._-]{0,95}"
_NAME = re.compile(rf"(?P<repo>{_WORD}/{_WORD})(?::(?P<tag>[A-Za-z0-9._-]{{1,64}})|/(?P<file>[^:\\]{{1,512}}))?")

_REVISION = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/+@-]{0,199}")

SMALL = (".json", ".jinja", ".txt", ".model")
"""Files beside the weights of a folder: configuration and tokenizer."""


@dataclass(frozen=True, slots=True)
class HubName:
    """A repository, and what of it is meant: a tag of GGUF files, one file, or nothing in particular."""

    repo: str
    tag: str | None = None
    file: str | None = None

    def __str__(self) -> str:
        return self.repo + (f":{self.tag}" if self.tag else f"/{self.file}" if self.file else "")


def parse_name(name: str) -> HubName | None:
    """The parts of a name of the hub; None for what cannot be one, such as a path."""
    match = _NAME.fullmatch(name)
    if match is None or ".." in name or "--" in name or match["repo"].endswith((".gguf", ".safetensors")):
        return None
    if match["file"] is not None and not is_safe(match["file"]):
        return None
    return HubName(match["repo"], match["tag"], match["file"])


def is_safe(file: str) -> bool:
    """Whether a file name of a repository stays inside a folder, and a terminal can show it."""
    parts = file.split("/")
    return file.isprintable() and "\\" not in file and not any(part in ("", ".", "..") for part in parts)


def is_hash(text: object, digits: int) -> TypeGuard[str]:
    """Whether a text is a hash: so many hexadecimal digits."""
    return isinstance(text, str) and len(text) == digits and all(c in "0123456789abcdef" for c in text)


def check_revision(revision: str) -> None:
    """RequestError if a revision cannot be a branch, a tag or a commit, such as one that leads out of a folder."""
    if not _REVISION.fullmatch(revision) or ".." in revision or not is_safe(revision):
        raise RequestError(f"--revision is {shown(revision)}; give a branch, a tag or a commit, such as main")


def gguf_models(files: Iterable[str]) -> dict[str, list[str]]:
    """GGUF models among files: the first or only file of each, and all its files, in order."""
    models: dict[str, list[str]] = {}
    for file in sorted(files):
        path = PurePosixPath(file)
        if path.suffix.lower() != ".gguf":
            continue
        part = PartName.parse(path.name)
        first = file if part is None else str(path.with_name(part.sibling(1)))
        models.setdefault(first, []).append(file)
    return models


def has_tag(file: str, tag: str) -> bool:
    """Whether a file name carries a tag such as Q4_K_M between its separators, as a word of its own."""
    return re.search(rf"(?:^|[-./_]){re.escape(tag)}(?:$|[-./])", file, re.IGNORECASE) is not None


def choose(name: HubName, files: Sequence[str], patterns: Sequence[str] = ()) -> list[str]:
    """The files of a repository that a name and patterns stand for. RequestError, listing what there is, if that is
    nothing, or several models and none was named."""
    files = [file for file in files if is_safe(file)]
    if name.file is not None:
        models = gguf_models(files)
        found = next((parts for parts in models.values() if name.file in parts), [])
        found = found or [file for file in files if file == name.file]
        return found or _refuse(name, files, f"has no file {shown(name.file)}")
    if patterns:
        found = [file for file in files if any(_matches(file, pattern) for pattern in patterns)]
        return found or _refuse(name, files, f"has no file like {', '.join(patterns)}")
    models = gguf_models(files)
    if name.tag is not None:
        tagged = {first: parts for first, parts in models.items() if has_tag(first, name.tag)}
        if len(tagged) == 1:
            return next(iter(tagged.values()))
        what = "has no GGUF file" if not tagged else f"has {len(tagged)} GGUF models"
        return _refuse(name, list(tagged) or files, f"{what} tagged {name.tag}")
    tensors = [file for file in files if file.endswith(".safetensors") and "/" not in file]
    if tensors and "config.json" in files and not models:
        beside = [file for file in files if "/" not in file and file.endswith(SMALL)]
        return sorted({*tensors, *beside})
    if len(models) == 1 and not tensors:
        return next(iter(models.values()))
    if not models:
        return _refuse(name, files, "holds no model: neither GGUF files nor config.json with .safetensors")
    return _refuse(name, files, f"holds {len(models) + bool(tensors)} models")


def _matches(file: str, pattern: str) -> bool:
    return fnmatch.fnmatchcase(file, pattern) or fnmatch.fnmatchcase(PurePosixPath(file).name, pattern)


def _refuse(name: HubName, files: Sequence[str], what: str) -> list[str]:
    models = list(gguf_models(files))
    several = " ".join(models[:6]) + (" ..." if len(models) > 6 else "")
    hint = f"name one: {several}" if models else "look at its page for what it has"
    raise RequestError(f"{name.repo} {what}; {hint}")
