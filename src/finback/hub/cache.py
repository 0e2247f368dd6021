"""Models in the cache of the Hugging Face hub, which other tools share.

Owns reading and removing: which files of a repository are here, which model a name means, what a file takes on disk.
Refuses to download; `hub/download.py` does. The layout is the hub's: blobs named by their hash, snapshots of links to
them by commit, refs that name a commit.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from finback.errors import RequestError
from finback.hub.names import HubName, choose, gguf_models, parse_name


@dataclass(frozen=True, slots=True)
class Kept:
    """A model in the cache: the name that -m takes, its files in the snapshot, bytes on disk, and when it came (seconds
    since 1970)."""

    name: str
    path: Path
    files: tuple[Path, ...]
    size: int
    modified: float


def cache_root() -> Path:
    """The folder of the cache, by HF_HUB_CACHE, HF_HOME or XDG_CACHE_HOME."""
    from huggingface_hub.constants import HF_HUB_CACHE

    return Path(HF_HUB_CACHE)


def repo_folder(repo: str) -> Path:
    """The folder of a repository in the cache."""
    return cache_root() / f"models--{repo.replace('/', '--')}"


def snapshot(repo: str, revision: str = "main") -> Path | None:
    """The snapshot of a revision, or None if it is not here."""
    folder = repo_folder(repo)
    commit = revision
    with suppress(OSError):
        commit = (folder / "refs" / revision).read_text(encoding="utf-8").strip()
    place = folder / "snapshots" / commit
    return place if place.is_dir() else None


def files_of(place: Path) -> list[str]:
    """The files of a snapshot that are really here, as the repository names them."""
    found = []
    for folder, _, names in os.walk(place):
        for name in names:
            path = Path(folder) / name
            if path.exists():  # not a link to a blob that is gone
                found.append(path.relative_to(place).as_posix())
    return sorted(found)


def resolve(name: str) -> Path | None:
    """The path of a model in the cache by its name; None if the name cannot be one of the hub. RequestError, with the
    command that downloads it, if it is not here."""
    hub_name = parse_name(name)
    if hub_name is None:
        return None
    place = snapshot(hub_name.repo)
    if place is None:
        raise RequestError(
            f"{name} is no file here, and {hub_name.repo} is not among the models that were downloaded; "
            f"finback pull {name} downloads it"
        )
    try:
        files = choose(hub_name, files_of(place))
    except RequestError as error:
        raise RequestError(
            f"of the downloaded files, {error}; finback list shows them, finback pull downloads more"
        ) from None
    models = gguf_models(files)
    return place / next(iter(models)) if models else place


# ---- all that is there


def kept_models() -> Iterator[Kept]:
    """Every model in the cache, by repository."""
    root = cache_root()
    for folder in sorted(root.glob("models--*--*")) if root.is_dir() else []:
        repo = folder.name.removeprefix("models--").replace("--", "/", 1)
        place = snapshot(repo)
        if place is None or parse_name(repo) is None:
            continue
        files = files_of(place)
        models = gguf_models(files)
        for first, parts in models.items():
            name = repo if len(models) == 1 and len(parts) == len(files) else f"{repo}/{first}"
            yield _kept(name, place / first, [place / part for part in parts])
        if "config.json" in files and any(file.endswith(".safetensors") for file in files):
            rest = [place / file for file in files if not file.endswith(".gguf")]
            yield _kept(repo, place, rest)


def _kept(name: str, path: Path, files: list[Path]) -> Kept:
    sizes = [file.stat() for file in files]
    return Kept(name, path, tuple(files), sum(s.st_size for s in sizes), max(s.st_mtime for s in sizes))


# ---- removing


def removable(name: str) -> tuple[list[Path], int]:
    """The links that removing a model removes, in all snapshots, and the bytes that go with them. RequestError if
    nothing of that name is here."""
    hub_name = parse_name(name)
    folder = None if hub_name is None else repo_folder(hub_name.repo)
    if hub_name is None or folder is None or not folder.is_dir():
        raise RequestError(f"{name} is not among the models that were downloaded; finback list shows them")
    links: list[Path] = []
    for place in sorted((folder / "snapshots").glob("*")):
        files = files_of(place)
        whole = hub_name.file is None and hub_name.tag is None
        with suppress(RequestError):  # a snapshot without it
            links += [place / file for file in (files if whole else choose(hub_name, files))]
    if not links and (hub_name.file is not None or hub_name.tag is not None):
        raise RequestError(f"{name} is not among the files that were downloaded; finback list shows them")
    return links, sum(blob.stat().st_size for blob in _freed(folder, links))


def remove(name: str) -> int:
    """Remove a model, or one file of a repository; bytes freed. What other files still need stays."""
    links, size = removable(name)
    hub_name = parse_name(name)
    assert hub_name is not None
    folder = repo_folder(hub_name.repo)
    if hub_name.file is None and hub_name.tag is None:
        shutil.rmtree(folder)
        return size
    freed = _freed(folder, links)
    for path in [*links, *freed]:
        path.unlink(missing_ok=True)
    if not any(files_of(place) for place in (folder / "snapshots").glob("*")):
        shutil.rmtree(folder)
    return size


def _freed(folder: Path, links: list[Path]) -> list[Path]:
    """The blobs that no other link leads to."""
    gone = {path.resolve() for path in links}
    for place in (folder / "snapshots").glob("*"):
        gone -= {(place / file).resolve() for file in files_of(place) if place / file not in links}
    return sorted(gone)


def where(name: HubName) -> Path:
    """The folder in which a repository lies, for messages."""
    return repo_folder(name.repo)
