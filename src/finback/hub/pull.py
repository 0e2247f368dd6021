"""Downloading a model into the hub's cache: which files, whether they fit, and their names there.

Owns the order of a pull, small files first, and the way from a checked partial file to a name. Refuses to begin what
the disk cannot hold, to write outside the cache, and to name bytes before they are right.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from finback.errors import DownloadError, shown_size
from finback.hub.cache import cache_root, repo_folder
from finback.hub.names import HubName, check_revision, choose, is_hash
from finback.hub.remote import OnNotice, Remote, RemoteFile, look_up
from finback.hub.transfer import OnBytes, fetch

SPARE_BYTES = 256 << 20
"""What must stay free on the disk."""


def pull(
    name: HubName,
    patterns: Sequence[str] = (),
    *,
    revision: str = "main",
    on_bytes: OnBytes,
    on_notice: OnNotice,
    remote: Remote | None = None,
) -> Path:
    """Download the files that a name and patterns stand for; the folder they lie in.

    remote: what the repository holds, if that is known. KeyboardInterrupt keeps what has arrived.
    """
    check_revision(revision)
    remote = remote or look_up(name.repo, revision, on_notice)
    wanted = set(choose(name, [file.name for file in remote.files], patterns))
    files = [file for file in remote.files if file.name in wanted]
    folder = repo_folder(name.repo)
    place = folder / "snapshots" / remote.commit
    try:
        _check_disk(folder, files)
        for file in sorted(files, key=lambda file: file.size):
            blob = _blob(folder, file)
            if not _is_here(blob, file):
                blob.parent.mkdir(parents=True, exist_ok=True)
                with _only_one(blob) as partial:
                    if not _is_here(blob, file):  # another process may have been first
                        fetch(remote, file, partial, on_bytes, on_notice)
                        partial.replace(blob)
            _link(place / file.name, blob)
            on_bytes(file.name, file.size, file.size)
        _remember(folder, revision, remote.commit)
    except OSError as error:
        where = error.filename or folder
        raise DownloadError(
            f"{where} cannot be written ({error.strerror or error}); make room or choose another place with HF_HOME, "
            f"the same command goes on"
        ) from None
    return place


def _blob(folder: Path, file: RemoteFile) -> Path:
    """Where the bytes of a file lie, by their hash."""
    return folder / "blobs" / (file.sha256 or file.git or hashlib.sha256(file.name.encode()).hexdigest())


def _is_here(blob: Path, file: RemoteFile) -> bool:
    return blob.is_file() and blob.stat().st_size == file.size


def _check_disk(folder: Path, files: Sequence[RemoteFile]) -> None:
    """Whether what is missing fits the disk."""
    missing = 0
    for blob, file in {_blob(folder, file): file for file in files}.items():
        if not _is_here(blob, file):
            partial = _partial(blob)
            missing += file.size - (min(file.size, partial.stat().st_size) if partial.exists() else 0)
    root = cache_root()
    while not root.exists():
        root = root.parent
    free = shutil.disk_usage(root).free
    if missing and missing + SPARE_BYTES > free:
        raise DownloadError(
            f"{shown_size(missing)} are to be downloaded to {cache_root()}, which has {shown_size(free)} free; "
            f"make room, or set HF_HOME to a folder on another disk"
        )


def _partial(blob: Path) -> Path:
    return blob.with_name(blob.name + ".incomplete")


@contextmanager
def _only_one(blob: Path) -> Iterator[Path]:
    """The partial file of a blob, for one process at a time."""
    partial = _partial(blob)
    held = _locked(partial)
    try:
        yield partial
    finally:
        if partial.exists() and not partial.stat().st_size:
            partial.unlink()
        os.close(held)


def _locked(partial: Path) -> int:
    """A descriptor that holds the lock of a partial file, which is made if there is none. Between opening and locking,
    the process before may have given it its final name: then what is locked is no partial file any more."""
    while True:
        held = os.open(partial, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(held)
            raise DownloadError(f"another process downloads {partial.name} just now; wait for it") from None
        if partial.exists() and os.path.samestat(os.fstat(held), partial.stat()):
            return held
        os.close(held)


def _link(path: Path, blob: Path) -> None:
    """A name in a snapshot for bytes, in place of what had it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f".{path.name[:200]}.{os.getpid()}")
    fresh.unlink(missing_ok=True)
    fresh.symlink_to(os.path.relpath(blob, path.parent))
    fresh.replace(path)


def _remember(folder: Path, revision: str, commit: str) -> None:
    """Note which commit a branch or tag is; a commit needs no note."""
    if is_hash(revision, 40):
        return
    reference = folder / "refs" / revision
    reference.parent.mkdir(parents=True, exist_ok=True)
    fresh = reference.with_name(f".{reference.name[:200]}.{os.getpid()}")
    fresh.write_text(commit, encoding="utf-8")
    fresh.replace(reference)
