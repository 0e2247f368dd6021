"""States of sequences as files: segments of pages that never change, and checkpoints that name the segments they need.

Owns the bytes on disk: header, payload, digest; writing so that a file is whole or not there; reading so that nothing
in a file is believed before it was checked. Refuses files of another identity, and says of each why. docs/kv.md has the
format.
"""

from __future__ import annotations

import hashlib
import json
import os
import struct
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from finback import native
from finback.errors import FinbackError, shown
from finback.kv.layout import Layout
from finback.kv.pages import Page, PagePool
from finback.kv.sequence import Checkpoint

MAGIC = b"finback-kv\0\0"
VERSION = 1

SEGMENT_PAGES = 16
"""Pages of a segment. Full segments are written once, whatever checkpoints need them."""

MAX_HEADER = 16 << 10
MAX_TOKENS = 1 << 21

_START = struct.Struct("<12sII")  # magic, version, bytes of the header
_DIGEST = 32


class SnapshotError(FinbackError):
    """A file of a store is cut, damaged or of another model; it is not used."""


@dataclass(frozen=True, slots=True)
class Header:
    """What a file says it holds. segments: names of the segments before its own pages (checkpoints)."""

    kind: str  # "segment" or "checkpoint"
    identity: str
    length: int  # tokens
    reach: int
    pages: int
    page_bytes: int
    frontier_bytes: int
    segments: tuple[str, ...]

    @property
    def payload(self) -> int:
        """Bytes after the header, without the digest."""
        return 4 * self.length + self.pages * self.page_bytes + self.frontier_bytes


def identity_of(parts: dict[str, Any]) -> str:
    """A hash of all that a state depends on: versions, weights, layout, rounding, tokenizer."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def segment_names(identity: str, tokens: npt.NDArray[np.int32], span: int) -> list[str]:
    """Names of the full segments of a text, each hashed with all before it."""
    names, before, size = [], identity, span * SEGMENT_PAGES
    for start in range(0, len(tokens) - size + 1, size):
        piece = tokens[start : start + size].astype("<i4").tobytes()
        before = hashlib.sha256(before.encode() + piece).hexdigest()
        names.append(before)
    return names


# ---- writing


def write(path: Path, header: Header, payload: Sequence[Any]) -> int:
    """A file, whole or not at all: under a temporary name first, with mode 0600, on the disk before it is renamed.
    Returns its bytes."""
    text = json.dumps(_as_json(header)).encode()
    temporary = path.with_name(f".{path.name}.part")
    with suppress(FileNotFoundError):
        temporary.unlink()
    digest, size = hashlib.sha256(), 0
    with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as out:
        for piece in (_START.pack(MAGIC, VERSION, len(text)), text, *payload):
            out.write(piece)
            digest.update(piece)
            size += memoryview(piece).nbytes
        out.write(digest.digest())
        out.flush()
        os.fsync(out.fileno())
    temporary.replace(path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
    return size + _DIGEST


def _as_json(header: Header) -> dict[str, Any]:
    return {name: getattr(header, name) for name in Header.__dataclass_fields__}


def page_bytes(pool: PagePool, pages: Sequence[Page]) -> list[memoryview]:
    """The bytes of pages, to be written."""
    found = []
    for page in pages:
        start = page.number * pool.page_stride
        found.append(page.slab.buffer.view()[start : start + pool.page_stride].data)
    return found


# ---- reading


def read_header(path: Path, identity: str) -> Header:
    """The header of a file, checked against the file's size. SnapshotError if it cannot be one of this identity."""
    try:
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            start = file.read(_START.size)
            if len(start) < _START.size:
                raise SnapshotError(f"{path.name} is cut")
            magic, version, length = _START.unpack(start)
            if magic != MAGIC or version != VERSION or length > MAX_HEADER:
                raise SnapshotError(f"{path.name} is no state of this version")
            header = _parse(path, file.read(length))
    except OSError as error:
        raise SnapshotError(f"{path.name}: {error.strerror}") from None
    if header.identity != identity:
        raise SnapshotError(f"{path.name} is of other weights, another tokenizer or other settings")
    if size != _START.size + length + header.payload + _DIGEST:
        raise SnapshotError(f"{path.name} has {size} bytes and says it has others; it is cut")
    return header


def _parse(path: Path, text: bytes) -> Header:
    try:
        raw = json.loads(text)
        if not isinstance(raw, dict) or set(raw) != set(Header.__dataclass_fields__):
            raise ValueError("fields")
        numbers = ("length", "reach", "pages", "page_bytes", "frontier_bytes")
        if not all(type(raw[name]) is int and 0 <= raw[name] < 1 << 40 for name in numbers):
            raise ValueError("numbers")
        if raw["length"] > MAX_TOKENS or raw["pages"] > MAX_TOKENS or raw["kind"] not in ("segment", "checkpoint"):
            raise ValueError("sizes")
        names = raw["segments"]
        if not isinstance(names, list) or not all(_is_name(name) for name in names) or not _is_name(raw["identity"]):
            raise ValueError("names")
        return Header(**raw | {"segments": tuple(names)})
    except (ValueError, RecursionError) as error:
        raise SnapshotError(f"{path.name} has a header that is none ({shown(str(error))})") from None


def _is_name(name: object) -> bool:
    return isinstance(name, str) and len(name) == 64 and all(c in "0123456789abcdef" for c in name)


@dataclass(frozen=True, slots=True)
class Contents:
    """A file's payload."""

    header: Header
    tokens: npt.NDArray[np.int32]
    pages: memoryview
    frontier: memoryview


def read(path: Path, identity: str) -> Contents:
    """A whole file, its digest checked. SnapshotError if it is not what was written."""
    header = read_header(path, identity)
    try:
        data = path.read_bytes()
    except OSError as error:
        raise SnapshotError(f"{path.name}: {error.strerror}") from None
    whole = memoryview(data)
    if whole[-_DIGEST:] != hashlib.sha256(whole[:-_DIGEST]).digest() or len(whole) < _DIGEST + header.payload:
        raise SnapshotError(f"{path.name} is damaged: its digest is another")
    body = whole[len(whole) - _DIGEST - header.payload : -_DIGEST]
    tokens = np.frombuffer(body[: 4 * header.length], "<i4").astype(np.int32)
    pages_end = 4 * header.length + header.pages * header.page_bytes
    return Contents(header, tokens, body[4 * header.length : pages_end], body[pages_end:])


def fits(header: Header, layout: Layout, pool: PagePool, frontier: int) -> bool:
    """Whether a checkpoint's numbers are those of this layout."""
    covered = len(header.segments) * SEGMENT_PAGES
    return (
        header.kind == "checkpoint"
        and header.length > 0
        and header.reach <= header.length
        and header.length - header.reach <= layout.max_draft
        and header.page_bytes == pool.page_stride
        and header.frontier_bytes == frontier
        and covered + header.pages == layout.pages_for(header.length)
    )


def into_pool(pool: PagePool, header: Header, pages: Sequence[memoryview], frontier: memoryview) -> Checkpoint:
    """A checkpoint of the pool from the bytes of all its pages. MemoryBudgetError if there is no room for it."""
    with pool.lock:
        buffer = pool.frontier("checkpoints")
        try:
            taken = pool.take(len(pages))
        except BaseException:
            pool.account.release("checkpoints", buffer.size)
            raise
        buffer.view()[: len(frontier)] = np.frombuffer(frontier, np.uint8)
        for page, data in zip(taken, pages, strict=True):
            start = page.number * pool.page_stride
            page.slab.buffer.view()[start : start + pool.page_stride] = np.frombuffer(data, np.uint8)
            page.sealed = pool.layout.page_span
        if taken:
            taken[-1].sealed = header.length - (len(taken) - 1) * pool.layout.page_span
        return Checkpoint(pool, header.length, header.reach, buffer, taken)


# ---- a state in one file


def write_state(path: Path, identity: str, tokens: Sequence[int], checkpoint: Checkpoint) -> None:
    """A whole state, all pages in it; the checkpoint is released."""
    pool = checkpoint.pool
    ids = np.asarray(tokens, "<i4")
    pages = checkpoint.pages
    header = Header(
        "checkpoint", identity, len(ids), checkpoint.reach, len(pages), pool.page_stride, checkpoint.nbytes, ()
    )
    try:
        write(path, header, [ids.tobytes(), *page_bytes(pool, pages), checkpoint.frontier.view().data])
    finally:
        checkpoint.release()


def read_state(path: Path, identity: str, pool: PagePool) -> tuple[list[int], Checkpoint]:
    """Its tokens and a checkpoint in the pool. SnapshotError if it is not one of this identity."""
    contents = read(path, identity)
    header, size = contents.header, pool.page_stride
    if header.segments or not fits(header, pool.layout, pool, native.buffer_size(pool.layout.frontier_bytes)):
        raise SnapshotError(f"{path.name} holds no whole state of this model")
    pages = [contents.pages[i * size : (i + 1) * size] for i in range(header.pages)]
    return contents.tokens.tolist(), into_pool(pool, header, pages, contents.frontier)
