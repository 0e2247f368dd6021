"""The bytes of one file, from the hub into a partial file, and the check of their hash.

Owns the transfer: resumed where it stopped, begun again where a server does not resume. The hub's own library checks
sizes only, so the bytes go through here. Refuses to go on after an answer that cannot get better, and to take a byte
more than the file has.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from finback.errors import DownloadError, shown, shown_size
from finback.hub.remote import (
    TIMEOUT_S,
    OnNotice,
    Remote,
    RemoteFile,
    TryAgainError,
    asked_wait,
    is_passing,
    patiently,
    transport_errors,
)

if TYPE_CHECKING:
    import httpx2

OnBytes = Callable[[str, int, int], None]
"""Called with the name of a file, bytes of it that are here, and all."""

_CHUNK = 1 << 20


def fetch(remote: Remote, file: RemoteFile, partial: Path, on_bytes: OnBytes, on_notice: OnNotice) -> None:
    """All bytes of a file into `partial`, on the disk and checked. What is there already is gone on from.

    Raises DownloadError; OSError of `partial` if the disk does not take it.
    """
    if _size(partial) > file.size:
        on_notice(f"{file.name}: more bytes are here than it has; it begins again")
        os.truncate(partial, 0)
    if _size(partial) < file.size:
        patiently(
            lambda: _transfer(remote, file, partial, on_bytes, on_notice),
            file.name,
            on_notice,
            reached=lambda: _size(partial),
            hint=lambda: f"the same command goes on from {shown_size(_size(partial))}",
        )
    _check_hash(file, partial, on_notice)
    with open(partial, "rb") as written:
        os.fsync(written)  # the name that follows must not be there without its bytes


def _size(partial: Path) -> int:
    return partial.stat().st_size


def _transfer(remote: Remote, file: RemoteFile, partial: Path, on_bytes: OnBytes, on_notice: OnNotice) -> None:
    """One request for the bytes that are missing."""
    from huggingface_hub import hf_hub_url
    from huggingface_hub.utils import build_hf_headers, get_session

    have = _size(partial)
    url = hf_hub_url(remote.repo, file.name, revision=remote.commit)
    headers = build_hf_headers(library_name="finback") | {"Accept-Encoding": "identity"}
    if have:
        headers["Range"] = f"bytes={have}-"
    try:
        with get_session().stream("GET", url, headers=headers, follow_redirects=True, timeout=TIMEOUT_S) as answer:
            if have and answer.status_code == 200:
                on_notice(f"{file.name}: the server does not resume; it begins again")
                os.truncate(partial, 0)
                have = 0
            _check_answer(answer, file, have)
            with open(partial, "r+b") as out:
                out.seek(have)
                _write(answer, out, file, have, on_bytes)
    except transport_errors() as error:
        raise TryAgainError(f"the connection broke ({type(error).__name__})") from None


def _check_answer(answer: httpx2.Response, file: RemoteFile, have: int) -> None:
    """Whether an answer brings the bytes that were asked for. TryAgainError if a later one may, DownloadError if none
    will."""
    status = answer.status_code
    if is_passing(status):
        raise TryAgainError(f"the server answers {status}", asked_wait(answer.headers))
    if status not in (200, 206):
        raise DownloadError(f"{file.name}: the server answers {status}; look at the name, or set HF_TOKEN for access")
    kind = answer.headers.get("Content-Type", "")
    if kind.startswith("text/html") and not file.name.endswith((".html", ".htm")):
        raise DownloadError(f"{file.name}: the server sends a web page instead; a proxy may want to be logged in to")
    length = answer.headers.get("Content-Length", "")
    plain = answer.headers.get("Content-Encoding", "identity") == "identity"  # else it counts packed bytes
    if plain and length.isdigit() and int(length) != file.size - have:
        raise DownloadError(
            f"{file.name}: the server announces {length} bytes where {file.size - have} are missing; try again later"
        )
    if status == 206:
        begins = answer.headers.get("Content-Range", "").removeprefix("bytes ").partition("-")[0]
        if begins != str(have):
            raise DownloadError(
                f"{file.name}: the server sends bytes from {shown(begins)} on instead of {have}; try again later"
            )


def _write(answer: httpx2.Response, out: BinaryIO, file: RemoteFile, have: int, on_bytes: OnBytes) -> None:
    for piece in answer.iter_bytes():  # as it comes: what is here is kept when the connection breaks
        if have + len(piece) > file.size:
            raise DownloadError(f"{file.name}: the server sends more than its {file.size} bytes; try again later")
        out.write(piece)
        have += len(piece)
        on_bytes(file.name, have, file.size)
    if have < file.size:
        raise TryAgainError("the connection ended early")


def _check_hash(file: RemoteFile, partial: Path, on_notice: OnNotice) -> None:
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
