"""Which files make up one GGUF model: a single file, a folder, or the parts NAME-00001-of-00005.gguf.

Owns the naming rule and finding the parts, and the checks that the parts found belong together. Refuses to
guess: a missing part, a part under another part's name or a part of another model ends the opening with its
name. Part names are matched in lower case, as every writer makes them; `.GGUF` is refused with the name to
use.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

from finback.errors import ModelFileError, shown
from finback.formats import limits
from finback.formats.entry import reason_of

_PART: Final = re.compile(
    r"(?P<stem>.+)-(?P<number>[0-9]{5})-of-(?P<total>[0-9]{5})\.gguf", re.IGNORECASE | re.DOTALL
)


class PartName(NamedTuple):
    """The name of one part of a split model."""

    stem: str
    number: int  # from 1
    total: int

    @classmethod
    def parse(cls, name: str) -> PartName | None:
        """The parts of such a file name, None for any other name."""
        match = _PART.fullmatch(name)
        return cls(match["stem"], int(match["number"]), int(match["total"])) if match else None

    def sibling(self, number: int) -> str:
        """The file name of another part."""
        return f"{self.stem}-{number:05d}-of-{self.total:05d}.gguf"


def find_parts(path: Path) -> list[Path]:
    """All files of the model that `path` (a file, any part, or a folder) belongs to, in order.

    Raises ModelFileError for a folder without or with several models, and for missing or misnamed parts.
    """
    if os.path.isdir(path):  # unlike Path.is_dir, false for any path that cannot be looked at
        path = _only_model(path)
    part = PartName.parse(path.name)
    if part is None:
        return [path]
    if not 1 <= part.number <= part.total <= limits.GGUF_PARTS:
        raise ModelFileError(
            path,
            f"is named part {part.number} of {part.total}; parts go from 1 to at most {limits.GGUF_PARTS}",
        )
    names = [part.sibling(number) for number in range(1, part.total + 1)]
    present = set(_listing(path.parent))
    missing = [name for name in names if name not in present]
    if missing:
        _refuse_missing(path, missing, present)
    return [path.parent / name for name in names]


def _only_model(folder: Path) -> Path:
    """The one model in a folder: its single file or one of its parts."""
    names = sorted(name for name in _listing(folder) if name.lower().endswith(".gguf"))
    models: dict[tuple[str, int], str] = {}
    for name in names:
        part = PartName.parse(name)
        models.setdefault((name, 1) if part is None else (part.stem, part.total), name)
    if not models:
        raise ModelFileError(folder, "holds no .gguf file")
    if len(models) > 1:
        raise ModelFileError(
            folder, f"holds {len(models)} GGUF models, name one: {_some(list(models.values()))}"
        )
    return folder / next(iter(models.values()))


def _refuse_missing(path: Path, missing: Sequence[str], present: set[str]) -> None:
    """Raises for the parts that are not there, or there under a name in another case."""
    lower = {name.lower(): name for name in present}
    for name in missing:
        found = lower.get(name.lower())
        if found is not None:
            raise ModelFileError(path, f"part {shown(found)} is misnamed: rename it to {shown(name)}")
    number = f"{len(missing)} parts are" if len(missing) > 1 else "a part is"
    raise ModelFileError(
        path, f"{number} missing beside it: {_some(missing)}; download again what is missing"
    )


def _listing(folder: Path) -> list[str]:
    try:
        return [entry.name for entry in folder.iterdir()]
    except OSError as error:
        raise ModelFileError(folder, f"cannot be listed: {reason_of(error)}") from None


def _some(names: Sequence[str], most: int = 3) -> str:
    """The first few of many names."""
    text = ", ".join(shown(name, 60) for name in names[:most])
    return text if len(names) <= most else f"{text} and {len(names) - most} more"
