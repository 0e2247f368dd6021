"""What a repository of the hub holds, and what its answers mean.

Owns the hub's listing, checked before anything of it becomes a name on the disk, and the sentences for answers that
are no good. The hub's own library speaks to it. Refuses to trust: a commit, a hash, a name or a size that is not what
it must be ends the pull.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Any, TypeVar

from finback.errors import DownloadError, FinbackError, RequestError, shown
from finback.hub.names import is_hash, is_safe

TRIES = 5
"""Attempts without a new byte before giving up."""

LONGEST_WAIT_S = 300.0
TIMEOUT_S = 20.0

OnNotice = Callable[[str], None]
"""Called with a sentence when a transfer has to begin again, waits, or cannot be checked."""

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """A file of a repository: its name, bytes, and its hash as the hub states it: sha256 of large files, the hash git
    gives small ones; None if it states none."""

    name: str
    size: int
    sha256: str | None
    git: str | None


@dataclass(frozen=True, slots=True)
class Remote:
    """A repository at a commit."""

    repo: str
    revision: str
    commit: str
    files: tuple[RemoteFile, ...]


class TryAgainError(Exception):
    """What was tried did not work, and may later. wait: seconds that the server asks for, or None."""

    def __init__(self, why: str, wait: float | None = None) -> None:
        super().__init__(why)
        self.why, self.wait = why, wait


def patiently(
    attempt: Callable[[], _T], name: str, on_notice: OnNotice, *, reached: Callable[[], int], hint: Callable[[], str]
) -> _T:
    """Try until it works. reached: how far it came; TRIES without going further are enough. hint: what to do then."""
    tries = 0
    while True:
        before = reached()
        try:
            return attempt()
        except TryAgainError as again:
            tries = 0 if reached() > before else tries + 1
            if tries >= TRIES:
                raise DownloadError(f"{name}: {again.why}, {TRIES} times in a row; {hint()}") from None
            wait = again.wait if again.wait is not None else min(0.25 * 4.0**tries, 30.0)
            on_notice(f"{name}: {again.why}; it goes on in {wait:.2g} s")
            time.sleep(wait)


def is_passing(status: int) -> bool:
    """Whether a status of HTTP may be another one later."""
    return status in (408, 425, 429) or status >= 500


def asked_wait(headers: Any) -> float | None:
    """The seconds a server asks to wait, as a number or as a date; None if it does not."""
    text = headers.get("Retry-After", "").strip()
    if text.isascii() and text.isdigit():
        return min(float(text), LONGEST_WAIT_S)
    try:
        return min(max(0.0, parsedate_to_datetime(text).timestamp() - time.time()), LONGEST_WAIT_S)
    except ValueError:
        return None


def transport_errors() -> tuple[type[Exception], ...]:
    """What the HTTP library raises when a connection cannot be had, breaks, or speaks no HTTP."""
    import httpx2

    return (httpx2.HTTPError, httpx2.StreamError, httpx2.InvalidURL)


def look_up(repo: str, revision: str = "main", on_notice: OnNotice = print) -> Remote:
    """What a repository holds. DownloadError or RequestError in one sentence if that cannot be found out."""
    return patiently(
        lambda: _listing(repo, revision), repo, on_notice, reached=lambda: 0, hint=lambda: "try again later"
    )


def _listing(repo: str, revision: str) -> Remote:
    import httpx2
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError, OfflineModeIsEnabled

    try:
        info = HfApi(library_name="finback").model_info(repo, revision=revision, files_metadata=True, timeout=TIMEOUT_S)
    except OfflineModeIsEnabled:
        raise DownloadError("HF_HUB_OFFLINE forbids downloads; unset it to pull") from None
    except HfHubHTTPError as error:
        raise _refused(error, repo, revision) from None
    except httpx2.ConnectError as error:
        raise _unreachable(error) from None
    except transport_errors() as error:
        raise TryAgainError(f"the connection broke ({type(error).__name__})") from None
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:  # of another shape
        raise _odd(repo, f"{type(error).__name__}: {error}") from None
    if not is_hash(info.sha, 40):
        raise _odd(repo, f"its commit is {shown(info.sha)}")
    return Remote(repo, revision, info.sha, tuple(_files(repo, info.siblings)))


def _files(repo: str, siblings: Any) -> list[RemoteFile]:
    """The files of a listing that can be had; names that lead out of a folder are passed over."""
    files = {}
    for entry in siblings or []:
        name, size = entry.rfilename, entry.size
        if not isinstance(name, str) or not is_safe(name) or size is None:
            continue
        # Of a large file git has a pointer only, so its hash there says nothing of the bytes.
        sha256, git = (None, entry.blob_id) if entry.lfs is None else (entry.lfs.sha256, None)
        if isinstance(size, bool) or not isinstance(size, int) or size < 0:
            raise _odd(repo, f"the size of {shown(name)} is {shown(size)}")
        if not (is_hash(sha256, 64) if entry.lfs is not None else git is None or is_hash(git, 40)):
            raise _odd(repo, f"the hash of {shown(name)} is {shown(sha256 or git)}")
        files[name] = RemoteFile(name, size, sha256, git)
    return list(files.values())


def _odd(repo: str, what: str) -> DownloadError:
    return DownloadError(f"the hub's answer about {repo} is not understood ({what}); try again later")


def _unreachable(error: Exception) -> DownloadError:
    from huggingface_hub.constants import ENDPOINT

    return DownloadError(
        f"{ENDPOINT} cannot be reached ({type(error).__name__}); "
        f"models that were downloaded work without it, see finback list"
    )


def _refused(error: Any, repo: str, revision: str) -> FinbackError | TryAgainError:
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError, RevisionNotFoundError

    if isinstance(error, GatedRepoError):
        return DownloadError(f"{repo} wants its terms accepted; do that on its page, then set HF_TOKEN")
    if isinstance(error, RepositoryNotFoundError):
        return RequestError(f"the hub has no model {repo}, or not for you; look at the name, or set HF_TOKEN")
    if isinstance(error, RevisionNotFoundError):
        return RequestError(f"{repo} has no revision {shown(revision)}; leave --revision out for its newest")
    answer = getattr(error, "response", None)
    status = getattr(answer, "status_code", 0)
    if is_passing(status):
        return TryAgainError(f"the hub answers {status}", asked_wait(answer.headers if answer is not None else {}))
    return DownloadError(f"the hub answers {status or 'an error'} about {repo}; look at the name, or set HF_TOKEN")
