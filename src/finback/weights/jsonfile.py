"""Reads one small JSON object from a file that nobody vouches for.

Owns the limits of the files beside a model's tensors (config.json and the like). Refuses, naming the file: anything
but a regular file, too many bytes, bad UTF-8 or JSON, nesting without end, a key given twice, and a value that is
not an object. NaN and Infinity come through as floats: whoever reads the number names the key.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Final

from finback.errors import ModelFileError, shown
from finback.formats.entry import open_regular

MOST_BYTES: Final = 1 << 20  # a config.json has 2 KB


def read_object(path: Path) -> dict[str, object]:
    """The JSON object in the file at `path`; ModelFileError naming the file and what is wrong."""
    with open_regular(path) as (descriptor, size):
        if size > MOST_BYTES:
            raise ModelFileError(path, f"has {size} bytes; allowed are {MOST_BYTES}")
        raw = os.pread(descriptor, MOST_BYTES, 0)

    def unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
        found = dict(pairs)
        if len(found) != len(pairs):
            names = [key for key, _ in pairs]
            twice = next(key for key in names if names.count(key) > 1)
            raise ModelFileError(path, f"gives key {shown(twice)} twice; remove one")
        return found

    try:
        value = json.loads(raw.decode("utf-8"), object_pairs_hook=unique)
    except (ValueError, RecursionError) as error:
        raise ModelFileError(path, f"is not valid JSON: {error}") from None
    if not isinstance(value, dict):
        raise ModelFileError(path, f"holds {shown(value)}; a JSON object is expected")
    return value
