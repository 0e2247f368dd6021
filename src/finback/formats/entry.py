"""What every container boils down to: a list of files, and where in them each tensor's bytes lie.

Owns `TensorEntry`, `ModelFiles`, opening a regular file and reading a tensor's bytes, with every failure of
the operating system turned into a `ModelFileError`. Reads with `pread`, never through a mapping: a file that
shrinks after it was opened gives an error, not a bus error. Refuses to decode.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from finback.errors import ModelFileError, shown

Bytes = npt.NDArray[np.uint8]

READ_STEP = 1 << 30  # the kernel cuts one read off at 2 GiB


class TensorEntry(NamedTuple):
    """One tensor of a model: what it is and where its bytes are."""

    name: str
    dtype: str  # a key of `formats.blocks.FORMATS`
    shape: tuple[int, ...]  # row-major, [out, in] for a matrix: GGUF's own order reversed
    file: int  # index into `ModelFiles.paths`
    offset: int  # of the first byte, from the start of that file
    nbytes: int


@dataclass(slots=True)
class ModelFiles:
    """The files of one model and the tensors in them, in file order. Everything in it has been checked."""

    paths: list[Path]
    tensors: dict[str, TensorEntry]


@contextmanager
def open_regular(path: Path) -> Iterator[tuple[int, int]]:
    """Opens a regular file for reading and gives (descriptor, size in bytes); closes it on leaving.

    Raises ModelFileError if the path is missing, unreadable, or anything but a regular file.
    """
    try:
        # Without O_NONBLOCK, opening a named pipe would wait for a writer that never comes.
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except (OSError, ValueError) as error:
        raise ModelFileError(path, f"cannot be opened: {reason_of(error)}") from None
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise ModelFileError(path, "is not a regular file")
        yield descriptor, status.st_size
    except OSError as error:
        raise ModelFileError(path, f"cannot be read: {reason_of(error)}") from None
    finally:
        os.close(descriptor)


def read_tensor(files: ModelFiles, entry: TensorEntry) -> Bytes:
    """The bytes of one tensor, uint8 [entry.nbytes], read into memory of their own.

    Raises ModelFileError when the file has become shorter than it was when it was opened.
    """
    path = files.paths[entry.file]
    out = np.empty(entry.nbytes, np.uint8)
    view = out.data
    with open_regular(path) as (descriptor, size):
        done = 0
        while done < entry.nbytes:
            count = os.preadv(descriptor, [view[done : done + READ_STEP]], entry.offset + done)
            if count == 0:
                raise ModelFileError(
                    path,
                    f"has become shorter: tensor {shown(entry.name)} needs {entry.nbytes} bytes at "
                    f"{entry.offset}, {done} are left of a file of {size}; was it replaced while in use?",
                )
            done += count
    return out


def reason_of(error: OSError | ValueError) -> str:
    """Why the operating system refused, without the path (the message names it already)."""
    return (error.strerror or str(error)) if isinstance(error, OSError) else str(error)
