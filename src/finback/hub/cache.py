"""Models in the cache of the Hugging Face hub, which other tools share.

Owns reading and removing: which files of a repository are here, which model a name means, what a file takes on disk.
Refuses to download (`hub/pull.py` does), and to remove a byte that lies outside the repository's own folder or that
another repository leads to. The layout is the hub's: blobs named by their hash, snapshots of links to them by commit,
refs that name a commit.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from finback.errors import RequestError, shown
from finback.hub.names import choose, gguf_models, is_hash, parse_name


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


def snapshots(folder: Path) -> list[Path]:
    """The snapshots in the folder of a repository: that of main first, then the newest."""
    main = ""
    with suppress(OSError, UnicodeDecodeError):
        main = (folder / "refs" / "main").read_text(encoding="utf-8").strip()
    places = [place for place in folder.glob("snapshots/*") if is_hash(place.name, 40) and place.is_dir()]
    return sorted(places, key=lambda place: (place.name != main, -place.stat().st_mtime, place.name))


def files_of(place: Path) -> list[str]:
    """The files of a snapshot that are really here, as the repository names them."""
    found = []
    for folder, _, names in os.walk(place):
        for name in names:
            path = Path(folder) / name
            if path.is_file():  # not a link to a blob that is gone
                found.append(path.relative_to(place).as_posix())
    return sorted(found)


def resolve(name: str) -> Path | None:
    """The path of a model in the cache by its name; None if the name cannot be one of the hub. RequestError, with the
    command that downloads it, if it is not here. What only an older snapshot has counts: the hub moves on, what was
    downloaded stays."""
    hub_name = parse_name(name)
    if hub_name is None:
        return None
    first: RequestError | None = None
    for place in snapshots(repo_folder(hub_name.repo)):
        try:
            files = choose(hub_name, files_of(place))
        except RequestError as error:
            first = first or error
            continue
        models = gguf_models(files)
        return place / next(iter(models)) if models else place
    if first is None:
        raise RequestError(
            f"{name} is no file here, and {hub_name.repo} is not among the models that were downloaded; "
            f"finback pull {name} downloads it"
        )
    raise RequestError(f"of the downloaded files, {first}; finback list shows them, finback pull downloads more")


# ---- all that is there


def kept_models() -> Iterator[Kept]:
    """Every model in the cache, by repository; of one that several snapshots have, what its name stands for."""
    root = cache_root()
    for folder in sorted(root.glob("models--*--*")) if root.is_dir() else []:
        repo = folder.name.removeprefix("models--").replace("--", "/", 1)
        if parse_name(repo) is None:
            continue
        seen: set[str] = set()
        for number, place in enumerate(snapshots(folder)):
            for kept in _kept_in(place, repo, only=number == 0):
                if kept.name not in seen:
                    seen.add(kept.name)
                    yield kept


def _kept_in(place: Path, repo: str, *, only: bool) -> Iterator[Kept]:
    """The models of a snapshot. only: whether the repository's name alone may stand for one of it."""
    files = files_of(place)
    models = gguf_models(files)
    for first, parts in models.items():
        name = repo if only and len(models) == 1 and len(parts) == len(files) else f"{repo}/{first}"
        yield _kept(name, place / first, [place / part for part in parts])
    if "config.json" in files and any(file.endswith(".safetensors") for file in files):
        yield _kept(repo, place, [place / file for file in files if not file.endswith(".gguf")])


def _kept(name: str, path: Path, files: list[Path]) -> Kept:
    sizes = [file.stat() for file in files]
    return Kept(name, path, tuple(files), sum(s.st_size for s in sizes), max(s.st_mtime for s in sizes))


# ---- removing


@dataclass(frozen=True, slots=True)
class Removal:
    """What removing a model takes away: names in snapshots, blobs that nothing else leads to, and their bytes. whole:
    the folder of the repository goes with them. used: other repositories lead into that folder."""

    folder: Path
    names: tuple[Path, ...]
    blobs: tuple[Path, ...]
    size: int
    whole: bool
    used: bool

    def carry_out(self) -> None:
        """Remove it. RequestError if the disk does not let go."""
        try:
            if self.whole:
                shutil.rmtree(self.folder)
                return
            for path in (*self.names, *self.blobs):
                path.unlink(missing_ok=True)
            if not self.used and not any(files_of(place) for place in snapshots(self.folder)):
                shutil.rmtree(self.folder)
        except OSError as error:
            raise RequestError(
                f"{error.filename} cannot be removed ({error.strerror}); look at who may write there"
            ) from None


def removal(name: str) -> Removal:
    """What removing a model, or one file of a repository, takes away. RequestError if nothing of that name is here, or
    if its bytes are not its own."""
    hub_name = parse_name(name)
    folder = None if hub_name is None else repo_folder(hub_name.repo)
    if hub_name is None or folder is None or not folder.is_dir():
        raise RequestError(f"{name} is not among the models that were downloaded; finback list shows them")
    if folder.is_symlink():
        raise RequestError(f"{shown(folder.name)} in the cache is a link to another place; remove it there")
    whole = hub_name.file is None and hub_name.tag is None
    names: list[Path] = []
    for place in snapshots(folder):
        files = files_of(place)
        with suppress(RequestError):  # a snapshot without it
            names += [place / file for file in (files if whole else choose(hub_name, files))]
    if not names and not whole:
        raise RequestError(f"{name} is not among the files that were downloaded; finback list shows them")
    blobs = _own_blobs(folder) if whole else {path.resolve() for path in names} & _own_blobs(folder)
    used = _used_by_others(folder)
    if whole and used:
        raise RequestError(f"{next(iter(used.values()))} leads to files of {hub_name.repo}; remove that first")
    gone = set(names)
    still = [place / file for place in snapshots(folder) for file in files_of(place)]
    freed = sorted(blobs - used.keys() - {path.resolve() for path in still if path not in gone})
    plain = [path for path in names if not path.is_symlink()]
    size = sum(path.stat().st_size for path in (*freed, *plain))
    return Removal(folder, tuple(names), tuple(freed), size, whole, bool(used))


def _own_blobs(folder: Path) -> set[Path]:
    """The blobs that really lie in a repository's folder: not those of a store that `blobs` is a link to."""
    blobs, inside = folder / "blobs", folder.resolve()
    return {
        path.resolve() for path in blobs.glob("*") if path.is_file() and path.resolve().is_relative_to(inside)
    }


def _used_by_others(folder: Path) -> dict[Path, str]:
    """Files in a repository's folder that other repositories of the cache lead to, and which does."""
    inside = folder.resolve()
    found: dict[Path, str] = {}
    for other in cache_root().glob("*--*--*"):
        if other.name == folder.name or not other.is_dir():
            continue
        for parent in ("snapshots", "blobs"):
            for path in (other / parent).rglob("*"):
                if path.is_symlink() and path.resolve().is_relative_to(inside):
                    found[path.resolve()] = other.name.partition("--")[2].replace("--", "/", 1)
    return found
