"""The disk tier: what conversations left, across restarts.

Owns a folder of snapshots for one identity: which are there, which are worth their bytes, and one writer at a time. The
index is SQLite and can be made anew from the files. Refuses to use what it cannot check: such files are named in
`problems` and deleted by the writer. Writing happens in a thread of its own; docs/kv.md says when and how much.
"""

from __future__ import annotations

import fcntl
import hashlib
import logging
import os
import sqlite3
import threading
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np
import numpy.typing as npt

from finback import native
from finback.errors import RequestError
from finback.kv.pages import PagePool
from finback.kv.prefix import HALF_LIFE_S, Ids, common
from finback.kv.sequence import Checkpoint
from finback.kv.snapshot import (
    SEGMENT_PAGES,
    Header,
    SnapshotError,
    fits,
    into_pool,
    page_bytes,
    read,
    read_header,
    segment_names,
    write,
)

_log = logging.getLogger("finback.kv")

SAVE_SPACING = 1024
"""New tokens of a conversation before it is written again while the engine runs; at the end all is written."""

LEAST_SAVED = 64
"""Shorter ones are computed faster than they are found."""


@dataclass(eq=False, slots=True)
class Stored:
    """A checkpoint on disk."""

    name: str
    tokens: Ids
    reach: int
    segments: tuple[str, ...]
    size: int
    heat: float
    used: float

    @property
    def length(self) -> int:
        return len(self.tokens)


@dataclass(frozen=True, slots=True)
class StoreStats:
    """Checkpoints on disk, bytes of all files, bytes written since it was opened, states restored, and files that were
    not used."""

    entries: int
    nbytes: int
    written: int
    restored: int
    problems: int


class Store:
    """The folder of one identity."""

    def __init__(self, folder: Path, identity: str, pool: PagePool, space: int) -> None:
        """space: most bytes of files. RequestError if the folder cannot be had. Where another process writes here, this
        one only reads."""
        self._folder, self._identity, self._pool, self._space = folder / identity[:32], identity, pool, space
        self._lock = threading.RLock()
        self.problems: list[str] = []
        self._stored: dict[str, Stored] = {}
        self._segments: dict[str, int] = {}
        self.written = self.restored = 0
        try:
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._guard: IO[bytes] = open(self._folder / "lock", "ab", opener=_private)  # noqa: SIM115
        except OSError as error:
            raise RequestError(f"kv_dir {folder}: {error.strerror}; choose a folder that can be written") from None
        self.writes = True
        try:
            fcntl.flock(self._guard, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self.writes = False
            self._report("another process writes to this store; this one only reads it")
        self._database = self._open_index()
        self._read_folder()

    def _report(self, problem: str) -> None:
        """Nothing is lost but time: the owner is told, and what was to be found is computed."""
        self.problems.append(problem)
        _log.warning("%s", problem)

    # ---- what is there

    def _open_index(self) -> sqlite3.Connection | None:
        """The index; a damaged one is made anew. None where another process writes."""
        if not self.writes:
            return None
        path = self._folder / "index.sqlite"
        for _ in range(2):
            try:
                database = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
                database.execute("PRAGMA journal_mode=WAL")
                database.execute("CREATE TABLE IF NOT EXISTS uses (name TEXT PRIMARY KEY, heat REAL, used REAL)")
                path.chmod(0o600)
                return database
            except sqlite3.DatabaseError:
                self._report("the index was damaged and is made anew")
                for suffix in ("", "-wal", "-shm"):
                    path.with_name(path.name + suffix).unlink(missing_ok=True)
        return None

    def _read_folder(self) -> None:
        """Look at every file: headers are small. What the index says of uses is added."""
        for left in self._folder.glob(".*.part"):
            if self.writes:
                left.unlink(missing_ok=True)
        for path in self._folder.glob("*.segment"):
            self._segments[path.stem] = path.stat().st_size
        uses = {}
        if self._database is not None:
            with suppress(sqlite3.DatabaseError):
                uses = {name: (heat, used) for name, heat, used in self._database.execute("SELECT * FROM uses")}
        for path in sorted(self._folder.glob("*.checkpoint")):
            try:
                header = read_header(path, self._identity)
                if not fits(header, self._pool.layout, self._pool, self._frontier_size()):
                    raise SnapshotError(f"{path.name} has other sizes than this model")
                if any(name not in self._segments for name in header.segments):
                    raise SnapshotError(f"{path.name} needs a segment that is gone")
                tokens = _tokens_of(path, header)
            except SnapshotError as error:
                self._discard(path, error)
                continue
            heat, used = uses.get(path.stem, (1.0, path.stat().st_mtime))
            self._stored[path.stem] = Stored(
                path.stem, tokens, header.reach, header.segments, path.stat().st_size, float(heat), float(used)
            )
        if self.writes:
            self._drop_segments()

    def _frontier_size(self) -> int:
        return native.buffer_size(self._pool.layout.frontier_bytes)

    def _discard(self, path: Path, error: Exception) -> None:
        """A file that cannot be used is named, and removed if this process writes."""
        self._report(str(error))
        if self.writes:
            path.unlink(missing_ok=True)

    # ---- finding

    def find(self, tokens: Sequence[int] | Ids, limit: int) -> tuple[Stored | None, int]:
        """The checkpoint that serves the longest beginning of `tokens`, at most `limit` of them, and how many."""
        ids = np.asarray(tokens, np.int32)
        best, length = None, 0
        with self._lock:
            for stored in self._stored.values():
                most = min(stored.length, limit)
                if most <= length:
                    continue
                served = min(common(stored.tokens, ids), most)
                if served > length and served >= stored.reach:
                    best, length = stored, served
        return best, length

    def restore(self, stored: Stored) -> Checkpoint | None:
        """Its state in memory; None, and the file is discarded, if it turns out not to be what it says.
        MemoryBudgetError if there is no room."""
        path = self._folder / f"{stored.name}.checkpoint"
        try:
            contents = read(path, self._identity)
            if not np.array_equal(contents.tokens, stored.tokens):
                raise SnapshotError(f"{path.name} has other tokens than its index says")
            span = self._pool.layout.page_span
            names = segment_names(self._identity, stored.tokens, span)[: len(stored.segments)]
            if tuple(names) != stored.segments:
                raise SnapshotError(f"{path.name} names segments of another text")
            pages = [page for name in names for page in self._segment(name)]
        except SnapshotError as error:
            with self._lock:
                self._discard(path, error)
                self._stored.pop(stored.name, None)
            return None
        size = self._pool.page_stride
        pages += [contents.pages[i * size : (i + 1) * size] for i in range(contents.header.pages)]
        checkpoint = into_pool(self._pool, contents.header, pages, contents.frontier)
        with self._lock:
            self.restored += 1
            now = time.time()
            stored.heat, stored.used = _heat(stored, now) + 1.0, now
            self._note(stored)
        return checkpoint

    def _segment(self, name: str) -> list[memoryview]:
        path = self._folder / f"{name}.segment"
        contents = read(path, self._identity)
        header = contents.header
        if (header.kind, header.pages, header.page_bytes) != ("segment", SEGMENT_PAGES, self._pool.page_stride):
            raise SnapshotError(f"{path.name} has other sizes than this model")
        size = header.page_bytes
        return [contents.pages[i * size : (i + 1) * size] for i in range(SEGMENT_PAGES)]

    # ---- saving

    def wants(self, tokens: Sequence[int] | Ids, *, closing: bool) -> bool:
        """Whether a state after `tokens` should be written: enough of it is new."""
        if not self.writes or len(tokens) < LEAST_SAVED:
            return False
        known = self.find(tokens, len(tokens))[1]
        return len(tokens) - known >= (1 if closing else SAVE_SPACING)

    def save(self, tokens: Sequence[int] | Ids, checkpoint: Checkpoint) -> None:
        """Write a state: segments that are not there, then the checkpoint. What no longer fits `space` goes, least
        worth first. A disk that is full is a problem that is named, not an error."""
        ids = np.asarray(tokens, np.int32)
        pool = self._pool
        names = segment_names(self._identity, ids, pool.layout.page_span) if pool.page_stride else []
        own = checkpoint.pages[len(names) * SEGMENT_PAGES :]
        header = Header(
            "checkpoint",
            self._identity,
            len(ids),
            checkpoint.reach,
            len(own),
            pool.page_stride,
            checkpoint.frontier.size,
            tuple(names),
        )
        try:
            for i, name in enumerate(names):
                if name not in self._segments:
                    pages = checkpoint.pages[i * SEGMENT_PAGES : (i + 1) * SEGMENT_PAGES]
                    kind = Header("segment", self._identity, 0, 0, SEGMENT_PAGES, pool.page_stride, 0, ())
                    size = write(self._folder / f"{name}.segment", kind, page_bytes(pool, pages))
                    with self._lock:
                        self._segments[name] = size
                        self.written += size
            name = _name_of(self._identity, ids)
            payload = [ids.astype("<i4").tobytes(), *page_bytes(pool, own), checkpoint.frontier.view().data]
            size = write(self._folder / f"{name}.checkpoint", header, payload)
        except OSError as error:
            self._report(f"a state could not be written: {error.strerror}")
            return
        with self._lock:
            now = time.time()
            self._stored[name] = Stored(name, ids, checkpoint.reach, tuple(names), size, 1.0, now)
            self.written += size
            self._note(self._stored[name])
            self._drop_passed(self._stored[name])
            self._shrink()

    def _drop_passed(self, newest: Stored) -> None:
        """Earlier states of the same conversation that nobody used go, but the last one."""
        passed = [
            stored
            for stored in self._stored.values()
            if stored.length < newest.length
            and stored.heat <= 1.0
            and common(stored.tokens, newest.tokens) == stored.length
        ]
        for stored in sorted(passed, key=lambda stored: stored.length)[:-1]:
            self._remove(stored)
        self._drop_segments()

    def _shrink(self) -> None:
        """Bring the files under `space`."""
        now = time.time()
        while self._stored and self.nbytes > self._space:
            worst = min(self._stored.values(), key=lambda s: s.length * _heat(s, now) / s.size)
            self._remove(worst)
            self._drop_segments()

    def _remove(self, stored: Stored) -> None:
        del self._stored[stored.name]
        (self._folder / f"{stored.name}.checkpoint").unlink(missing_ok=True)
        if self._database is not None:
            with suppress(sqlite3.DatabaseError):
                self._database.execute("DELETE FROM uses WHERE name = ?", (stored.name,))

    def _drop_segments(self) -> None:
        """Segments that no checkpoint names."""
        needed = Counter(name for stored in self._stored.values() for name in stored.segments)
        for name in [name for name in self._segments if name not in needed]:
            del self._segments[name]
            (self._folder / f"{name}.segment").unlink(missing_ok=True)

    def _note(self, stored: Stored) -> None:
        if self._database is not None:
            with suppress(sqlite3.DatabaseError):
                self._database.execute(
                    "INSERT OR REPLACE INTO uses VALUES (?, ?, ?)", (stored.name, stored.heat, stored.used)
                )

    def forget(self, name: str) -> None:
        """A state that led to an error is not used again."""
        with self._lock:
            stored = self._stored.get(name)
            if stored is not None and self.writes:
                self._report(f"{name[:12]}… led to an error and was removed")
                self._remove(stored)
                self._drop_segments()
            elif stored is not None:
                del self._stored[name]

    # ---- looking in, and the end

    @property
    def nbytes(self) -> int:
        """Bytes of all files."""
        return sum(s.size for s in self._stored.values()) + sum(self._segments.values())

    def stats(self) -> StoreStats:
        """Counts since it was opened."""
        with self._lock:
            return StoreStats(len(self._stored), self.nbytes, self.written, self.restored, len(self.problems))

    def close(self) -> None:
        """Let another process write."""
        if self._database is not None:
            self._database.close()
        self._guard.close()


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _heat(stored: Stored, now: float) -> float:
    return stored.heat * float(0.5 ** (max(0.0, now - stored.used) / HALF_LIFE_S))


def _name_of(identity: str, ids: npt.NDArray[np.int32]) -> str:
    return hashlib.sha256(b"checkpoint" + identity.encode() + ids.astype("<i4").tobytes()).hexdigest()


def _tokens_of(path: Path, header: Header) -> Ids:
    """The tokens of a checkpoint, without reading the rest of it."""
    with open(path, "rb") as file:
        file.seek(-(32 + header.payload), os.SEEK_END)
        return np.frombuffer(file.read(4 * header.length), "<i4").astype(np.int32)
