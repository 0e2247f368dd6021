"""What tells the weights of a model from all others: a hash of every byte of its files.

Owns the hash and its cache. Hashing reads everything, so a file whose path, size, time and inode are those of last time
is not read again. Refuses to guess: a file that changed is hashed anew.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from finback.errors import ModelFileError
from finback.settings import cache_folder

REMEMBERED = 512


def weights_hash(paths: Sequence[str | os.PathLike[str]], cache: Path | None = None) -> str:
    """A hash of the files' bytes, in order; about a second for each gigabyte that was not hashed before.
    ModelFileError if one cannot be read. `cache` is where hashes are remembered."""
    memory = (cache or cache_folder()) / "weights.json"
    known: dict[str, str] = {}
    with suppress(OSError, ValueError):
        found = json.loads(memory.read_text(encoding="utf-8"))
        known = {str(k): str(v) for k, v in found.items()} if isinstance(found, dict) else {}
    hashes, changed = [], False
    for path in paths:
        try:
            place = os.path.realpath(path)
            status = os.stat(place)
            key = f"{place}:{status.st_size}:{status.st_mtime_ns}:{status.st_ino}"
            if key not in known:
                with open(place, "rb") as file:
                    known[key] = hashlib.file_digest(file, "sha256").hexdigest()
                changed = True
        except OSError as error:
            raise ModelFileError(path, f"{error.strerror}; give a readable model file") from None
        hashes.append(known[key])
    if changed:
        _remember(memory, dict(list(known.items())[-REMEMBERED:]))
    return hashlib.sha256("".join(hashes).encode()).hexdigest()


def _remember(memory: Path, known: dict[str, str]) -> None:
    """Without a place for it, the hash is made again next time."""
    with suppress(OSError):
        memory.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        temporary = memory.with_name(f".{memory.name}.{os.getpid()}")
        temporary.write_text(json.dumps(known), encoding="utf-8")
        temporary.replace(memory)
