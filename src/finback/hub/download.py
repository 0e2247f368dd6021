"""Downloads from the Hugging Face hub: resumed, checked, and in place only when they are right.

Owns the transfer of bytes. The hub's own library tells what there is, with which hash, and speaks HTTP; it checks sizes
only, so the bytes go through here: a file gets its final name when its hash is the one that the hub states. Refuses to
begin what the disk cannot hold, to go on after an answer that cannot get better, and to write outside the cache.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from finback.errors import FinbackError, RequestError, shown, shown_size
from finback.hub.cache import cache_root, repo_folder
from finback.hub.names import HubName, choose, is_safe

if TYPE_CHECKING:
    import httpx2

TRIES = 5
"""Attempts without a new byte before giving up."""

LONGEST_WAIT_S = 300.0
SPARE_BYTES = 256 << 20
"""What must stay free on the disk."""

_CHUNK = 1 << 20
_TIMEOUT_S = 20.0


class DownloadError(FinbackError):
    """Something cannot be downloaded. What arrived is kept where that helps."""


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """A file of a repository: its name, bytes, and its hash as the hub states it: sha256 of large files, the hash git
    gives small ones; None if it states none."""

    name: str
    size: int
    sha256: str | None
    git: str | None

    @property
    def blob(self) -> str:
        """The name of its bytes in the cache."""
        return self.sha256 or self.git or hashlib.sha256(self.name.encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class Remote:
    """A repository at a commit."""

    repo: str
    revision: str
    commit: str
    files: tuple[RemoteFile, ...]


OnBytes = Callable[[str, int, int], None]
"""Called with the name of a file, bytes of it that are here, and all."""


def look_up(repo: str, revision: str = "main") -> Remote:
    """What a repository holds. DownloadError in one sentence if that cannot be found out."""
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError, OfflineModeIsEnabled

    try:
        info = HfApi(library_name="finback").model_info(
            repo, revision=revision, files_metadata=True, timeout=_TIMEOUT_S
        )
    except OfflineModeIsEnabled:
        raise DownloadError("HF_HUB_OFFLINE forbids downloads; unset it to pull") from None
    except HfHubHTTPError as error:
        raise _refused(error, repo, revision) from None
    except _transport_errors() as error:
        raise _unreachable(error) from None
    except ValueError as error:
        raise DownloadError(f"the hub's answer about {repo} is not understood ({error}); try again later") from None
    files = []
    for entry in info.siblings or []:
        if is_safe(entry.rfilename) and entry.size is not None:
            sha256 = None if entry.lfs is None else entry.lfs.sha256
            files.append(RemoteFile(entry.rfilename, entry.size, sha256, entry.blob_id))
    if not info.sha or not all(c in "0123456789abcdef" for c in info.sha):
        raise DownloadError(f"the hub states no commit for {repo}; try again later")
    return Remote(repo, revision, info.sha, tuple(files))


def pull(
    name: HubName,
    patterns: Sequence[str] = (),
    *,
    revision: str = "main",
    on_bytes: OnBytes,
    on_notice: Callable[[str], None],
    remote: Remote | None = None,
) -> Path:
    """Download the files that a name and patterns stand for; the folder they lie in.

    on_notice: gets a sentence when a transfer has to begin again, waits, or cannot be checked. KeyboardInterrupt keeps
    what has arrived.
    """
    remote = remote or look_up(name.repo, revision)
    wanted = set(choose(name, [file.name for file in remote.files], patterns))
    files = [file for file in remote.files if file.name in wanted]
    folder = repo_folder(name.repo)
    place = folder / "snapshots" / remote.commit
    _check_disk(folder, files)
    for file in sorted(files, key=lambda file: file.size):
        blob = folder / "blobs" / file.blob
        if not blob.exists():
            blob.parent.mkdir(parents=True, exist_ok=True)
            with _only_one(blob) as partial:
                _fetch(remote, file, partial, on_bytes, on_notice)
                partial.replace(blob)
        _link(place / file.name, blob)
        on_bytes(file.name, file.size, file.size)
    reference = folder / "refs" / revision
    reference.parent.mkdir(parents=True, exist_ok=True)
    reference.write_text(remote.commit, encoding="utf-8")
    return place


def _check_disk(folder: Path, files: Sequence[RemoteFile]) -> None:
    """Whether what is missing fits the disk."""
    missing = 0
    for file in files:
        blob = folder / "blobs" / file.blob
        if not blob.exists():
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
    with open(partial, "ab") as held:
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise DownloadError(f"another process downloads {partial.name} just now; wait for it") from None
        yield partial


def _link(path: Path, blob: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.is_symlink() or path.exists():
        path.unlink()
    path.symlink_to(os.path.relpath(blob, path.parent))


# ---- one file


def _fetch(
    remote: Remote, file: RemoteFile, partial: Path, on_bytes: OnBytes, on_notice: Callable[[str], None]
) -> None:
    """All bytes of a file into `partial`, checked."""
    tries = 0
    while True:
        have = partial.stat().st_size
        if have > file.size:
            on_notice(f"{file.name}: more bytes are here than it has; it begins again")
            os.truncate(partial, 0)
            continue
        try:
            if have < file.size or file.size == 0:
                _transfer(remote, file, partial, have, on_bytes, on_notice)
            break
        except _TryAgainError as again:
            tries = 0 if partial.stat().st_size > have else tries + 1
            if tries >= TRIES:
                raise DownloadError(
                    f"{file.name}: {again.why}, {TRIES} times in a row; the same command goes on from "
                    f"{shown_size(partial.stat().st_size)}"
                ) from None
            wait = again.wait if again.wait is not None else min(0.25 * 4.0**tries, 30.0)
            on_notice(f"{file.name}: {again.why}; it goes on in {wait:.2g} s")
            time.sleep(wait)
    _check_hash(file, partial, on_notice)


class _TryAgainError(Exception):
    """The transfer stopped and may be tried again."""

    def __init__(self, why: str, wait: float | None = None) -> None:
        super().__init__(why)
        self.why, self.wait = why, wait


def _transfer(
    remote: Remote,
    file: RemoteFile,
    partial: Path,
    have: int,
    on_bytes: OnBytes,
    on_notice: Callable[[str], None],
) -> None:
    """One request for the bytes that are missing."""
    from huggingface_hub import hf_hub_url
    from huggingface_hub.utils import build_hf_headers, get_session

    url = hf_hub_url(remote.repo, file.name, revision=remote.commit)
    headers = build_hf_headers(library_name="finback") | {"Accept-Encoding": "identity"}
    if have:
        headers["Range"] = f"bytes={have}-"
    try:
        with get_session().stream("GET", url, headers=headers, follow_redirects=True, timeout=_TIMEOUT_S) as answer:
            if have and answer.status_code == 200:
                on_notice(f"{file.name}: the server does not resume; it begins again")
                os.truncate(partial, 0)
                have = 0
            _check_answer(answer, file, have)
            with open(partial, "r+b") as out:
                out.seek(have)
                _write(answer, out, file, have, on_bytes)
    except _transport_errors() as error:
        raise _TryAgainError(f"the connection broke ({type(error).__name__})") from None


def _check_answer(answer: httpx2.Response, file: RemoteFile, have: int) -> None:
    """Whether an answer brings the bytes that were asked for. _TryAgainError if a later one may, DownloadError if
    none will."""
    status = answer.status_code
    if status in (408, 429) or status >= 500:
        text = answer.headers.get("Retry-After", "")
        wait = min(float(text), LONGEST_WAIT_S) if text.isdigit() else None
        raise _TryAgainError(f"the server answers {status}", wait)
    if status not in (200, 206):
        raise DownloadError(f"{file.name}: the server answers {status}; look at the name, or set HF_TOKEN for access")
    kind = answer.headers.get("Content-Type", "")
    if kind.startswith("text/html") and not file.name.endswith((".html", ".htm")):
        raise DownloadError(f"{file.name}: the server sends a web page instead; a proxy may want to be logged in to")
    length = answer.headers.get("Content-Length", "")
    if length.isdigit() and int(length) != file.size - have:
        raise DownloadError(
            f"{file.name}: the server announces {length} bytes where {file.size - have} are missing; try again later"
        )
    if status == 206:
        begins = answer.headers.get("Content-Range", "").removeprefix("bytes ").partition("-")[0]
        if begins != str(have):
            raise DownloadError(f"{file.name}: the server sends bytes from {shown(begins)} on instead of {have}")


def _write(answer: httpx2.Response, out: BinaryIO, file: RemoteFile, have: int, on_bytes: OnBytes) -> None:
    for piece in answer.iter_bytes():  # as it comes: what is here is kept when the connection breaks
        if have + len(piece) > file.size:
            raise DownloadError(f"{file.name}: the server sends more than its {file.size} bytes; try again later")
        out.write(piece)
        have += len(piece)
        on_bytes(file.name, have, file.size)
    if have < file.size:
        raise _TryAgainError("the connection ended early")


def _check_hash(file: RemoteFile, partial: Path, on_notice: Callable[[str], None]) -> None:
    """A file whose bytes are not those the hub states is put aside under another name."""
    if file.sha256 is None and file.git is None:
        on_notice(f"{file.name}: the hub states no hash for it, so it was not checked")
        return
    if file.sha256 is not None:
        digest, expected = hashlib.sha256(), file.sha256
    else:
        assert file.git is not None
        digest, expected = hashlib.sha1(f"blob {file.size}\0".encode(), usedforsecurity=False), file.git
    with open(partial, "rb") as bytes_here:
        while piece := bytes_here.read(_CHUNK):
            digest.update(piece)
    if digest.hexdigest() != expected:
        aside = partial.with_name(partial.name.removesuffix(".incomplete") + ".damaged")
        partial.replace(aside)
        raise DownloadError(
            f"{file.name}: what arrived has the hash {digest.hexdigest()[:12]}… instead of {expected[:12]}…; "
            f"it was put aside as {aside.name}, the same command downloads it anew"
        )


# ---- errors


def _transport_errors() -> tuple[type[Exception], ...]:
    """What the HTTP library raises when a connection cannot be had or breaks."""
    import httpx2

    return (httpx2.TransportError, OSError)


def _unreachable(error: Exception) -> DownloadError:
    from huggingface_hub.constants import ENDPOINT

    return DownloadError(
        f"{ENDPOINT} cannot be reached ({type(error).__name__}); "
        f"models that were downloaded work without it, see finback list"
    )


def _refused(error: Any, repo: str, revision: str) -> FinbackError:
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError, RevisionNotFoundError

    if isinstance(error, GatedRepoError):
        return DownloadError(f"{repo} wants its terms accepted; do that on its page, then set HF_TOKEN")
    if isinstance(error, RepositoryNotFoundError):
        return RequestError(f"the hub has no model {repo}, or not for you; look at the name, or set HF_TOKEN")
    if isinstance(error, RevisionNotFoundError):
        return RequestError(f"{repo} has no revision {shown(revision)}; leave --revision out for its newest")
    status = getattr(getattr(error, "response", None), "status_code", "an error")
    return DownloadError(f"the hub answers {status} about {repo}; try again later")
