"""Case H19: downloads that break, lie and stall, from a hub of one's own. A file has its name only when its hash is
right."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import finback.hub.pull as pull_module
from finback.config import ModelConfig
from finback.errors import DownloadError, RequestError
from finback.hub.cache import removal
from finback.hub.names import HubName
from finback.hub.remote import Remote, RemoteFile, look_up
from tests.hub.server import COMMIT, Hub, serving
from tests.tiny import TINY, write_folder

BIG = bytes(range(256)) * 12_000


@pytest.fixture
def hub() -> Iterator[Hub]:
    with serving(Hub({"model.gguf": BIG, "README.md": b"read me"})) as running:
        yield running


class Here:
    """A cache, and commands that use it."""

    def __init__(self, folder: Path, url: str) -> None:
        self.folder = folder
        self.env = {k: v for k, v in os.environ.items() if not k.startswith("HF_")}
        self.env |= {"HF_HOME": str(folder), "HF_ENDPOINT": url, "no_proxy": "*", "HF_HUB_DISABLE_TELEMETRY": "1"}

    def run(self, *args: str, **env: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "finback.cli.main", *args]
        return subprocess.run(command, capture_output=True, text=True, timeout=120, env=self.env | env, check=False)

    @property
    def repo(self) -> Path:
        return self.folder / "hub" / "models--org--name"

    def file(self, name: str) -> Path:
        return self.repo / "snapshots" / COMMIT / name

    def names(self) -> set[str]:
        return {p.name for p in (self.repo / "blobs").glob("*")} if self.repo.exists() else set()


def pulled(here: Here, hub: Hub, notice: str = "") -> None:
    """A pull that ends well."""
    done = here.run("pull", "org/name")
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == str(here.file("").parent / COMMIT) or done.stdout.strip().endswith(COMMIT)
    assert here.file("model.gguf").read_bytes() == hub.files["model.gguf"]
    assert here.file("model.gguf").is_symlink()
    assert not any(name.endswith((".incomplete", ".damaged")) for name in here.names())
    assert (here.repo / "refs" / "main").read_text() == COMMIT
    assert notice in done.stderr
    assert notice or not done.stderr


def test_a_download_and_nothing_twice(tmp_path: Path, hub: Hub) -> None:
    here = Here(tmp_path, hub.url)
    pulled(here, hub)
    before = len(hub.requests)
    pulled(here, hub)
    assert [path for path, _ in hub.requests[before:]] == ["/api/models/org/name/revision/main"]


@pytest.mark.parametrize(
    ("faults", "notice"),
    [
        (["drop"], "the connection broke"),
        (["drop", "drop", "drop"], "it goes on in"),
        (["429", "429"], "the server answers 429; it goes on in 0 s"),
        (["503"], "the server answers 503"),
        (["drop", "ignore range"], "the server does not resume; it begins again"),
    ],
)
def test_faults_that_pass(tmp_path: Path, hub: Hub, faults: list[str], notice: str) -> None:
    hub.faults["model.gguf"] = list(faults)
    pulled(Here(tmp_path, hub.url), hub, notice)
    ranges = [asked for path, asked in hub.requests if path.endswith("model.gguf")]
    assert len(ranges) == len(faults) + (1 if "ignore range" not in faults else 0)
    if faults[0] == "drop":
        assert ranges[1] is not None, "it did not resume"


@pytest.mark.parametrize(
    ("fault", "said", "requests"),
    [
        ("flip", "instead of", 1),
        ("html", "the server sends a web page instead", 1),
        ("404", "the server answers 404", 1),
        ("length", f"the server announces {len(BIG) + 7} bytes where {len(BIG)} are missing", 1),
    ],
)
def test_faults_that_do_not(tmp_path: Path, hub: Hub, fault: str, said: str, requests: int) -> None:
    hub.faults["model.gguf"] = [fault]
    here = Here(tmp_path, hub.url)
    done = here.run("pull", "org/name")
    assert done.returncode == 1
    assert said in done.stderr
    assert done.stderr.count("\n") == 1
    assert "Traceback" not in done.stderr
    assert not here.file("model.gguf").exists()
    assert sum(path.endswith("model.gguf") for path, _ in hub.requests) == requests
    if fault == "flip":
        (damaged,) = here.names()
        assert damaged.endswith(".damaged")
        shutil.rmtree(here.repo)
    pulled(here, hub)


def test_a_process_that_was_killed_goes_on_where_it_was(tmp_path: Path, hub: Hub) -> None:
    here = Here(tmp_path, hub.url)
    pulled(here, hub)
    (blob,) = (here.repo / "blobs").iterdir()
    here.file("model.gguf").unlink()
    blob.rename(blob.with_name(blob.name + ".incomplete"))
    os.truncate(blob.with_name(blob.name + ".incomplete"), 1_000_000)
    hub.requests.clear()
    pulled(here, hub)
    assert (f"/org/name/resolve/{COMMIT}/model.gguf", "bytes=1000000-") in hub.requests


def test_small_files_have_gits_hash_and_some_have_none(tmp_path: Path) -> None:
    files = {"config.json": b"{}", "model.safetensors": b"x" * 1000, "tokenizer.json": b"[]"}
    with serving(Hub(files, unhashed=frozenset({"tokenizer.json"}))) as hub:
        here = Here(tmp_path, hub.url)
        done = here.run("pull", "org/name")
        assert done.returncode == 0
        assert "tokenizer.json: the hub states no hash for it, so it was not checked" in done.stderr
        assert {name: here.file(name).read_bytes() for name in files} == files
        hub.faults["config.json"] = ["flip"]
        shutil.rmtree(here.repo)
        done = here.run("pull", "org/name")
        assert done.returncode == 1
        assert "config.json: what arrived has the hash" in done.stderr


def test_nobody_there(tmp_path: Path, hub: Hub) -> None:
    here = Here(tmp_path, "http://127.0.0.1:9")
    for command in (("pull", "org/name"), ("run", "-m", "org/name", "-p", "x")):
        done = here.run(*command)
        assert done.returncode in (1, 2)
        assert done.stderr.count("\n") == 1, done.stderr
    assert "cannot be reached" in here.run("pull", "org/name").stderr
    assert "HF_HUB_OFFLINE forbids downloads" in here.run("pull", "org/name", HF_HUB_OFFLINE="1").stderr
    there = Here(tmp_path, hub.url)
    assert "the hub has no model org/other" in there.run("pull", "org/other").stderr
    assert "is no name of a model" in there.run("pull", "../x").stderr
    assert "give patterns with org/name alone" in there.run("pull", "org/name:Q4", "*.gguf").stderr


def test_a_disk_that_is_full(tmp_path: Path, hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pull_module.shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(10**9, 10**9, 10**6))
    monkeypatch.setattr(pull_module, "repo_folder", lambda _: tmp_path / "models--org--name")
    remote = Remote("org/name", "main", COMMIT, (RemoteFile("m.gguf", 5 * 10**9, "a" * 64, None),))
    with pytest.raises(DownloadError, match=r"4.7 GiB are to be downloaded to .*, which has 976.6 KiB free"):
        pull_module.pull(HubName("org/name"), on_bytes=lambda *_: None, on_notice=print, remote=remote)


def test_a_disk_that_fills_up_on_the_way(tmp_path: Path, hub: Hub) -> None:
    here = Here(tmp_path, hub.url)
    limited = "import resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, 1_000_000)); "
    limited += "import signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN); "
    limited += "sys.argv = ['finback', 'pull', 'org/name']; from finback.cli.main import main; main()"
    done = subprocess.run([sys.executable, "-c", limited], capture_output=True, text=True, timeout=60, env=here.env)
    assert done.returncode == 1
    assert "cannot be written (File too large); make room" in done.stderr
    assert done.stderr.count("\n") == 1, "it was tried again"
    pulled(here, hub)
    assert hub.requests[-1][1] == "bytes=1000000-", "what had arrived was kept"


def test_a_cache_that_may_not_be_written(tmp_path: Path, hub: Hub) -> None:
    (tmp_path / "hub").write_text("a file where the cache should be")
    done = Here(tmp_path, hub.url).run("pull", "org/name")
    assert done.returncode == 1
    assert "cannot be written (Not a directory)" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("status", [429, 500, 503, 408])
def test_a_listing_that_has_to_wait(tmp_path: Path, hub: Hub, status: int) -> None:
    hub.listings = [status, status]
    pulled(Here(tmp_path, hub.url), hub, f"org/name: the hub answers {status}; it goes on in 0 s")


def test_a_listing_that_never_comes(tmp_path: Path, hub: Hub) -> None:
    hub.listings = [429] * 5
    done = Here(tmp_path, hub.url).run("pull", "org/name")
    assert done.returncode == 1
    assert "org/name: the hub answers 429, 5 times in a row; try again later" in done.stderr
    assert len(hub.requests) == 5


def _odd_listings() -> list[object]:
    def entry(**fields: object) -> dict[str, object]:
        good = {"rfilename": "model.gguf", "size": 5, "blobId": "0" * 40}
        return {"id": "org/name", "sha": COMMIT, "siblings": [good | fields]}

    def large(**fields: object) -> dict[str, object]:
        return entry(lfs={"sha256": "a" * 64, "size": 5, "pointerSize": 1} | fields)

    shapes: list[object] = [b"<html>", b"", b"\xff\xfe", b"[]", b"5", b"null", b'"x"', b"{}", b"[" * 100_000]
    shapes += [{"id": "org/name", "sha": sha, "siblings": []} for sha in (None, "", "../../x", "0" * 39, "G" * 40, 5)]
    shapes += [{"id": "org/name", "sha": COMMIT, "siblings": odd} for odd in (5, "x", [5], [None], {"a": 1}, [{}])]
    shapes += [entry(size=size) for size in (-1, 1.5, "5", True, [1])]
    shapes += [entry(blobId=odd) for odd in ("../../../evil", "0" * 39, 5, "A" * 40)]
    shapes += [large(sha256=odd) for odd in ("../../../evil", "a" * 63, 5, None, "/etc/passwd")]
    shapes += [entry(lfs=5), entry(lfs="x"), entry(lfs={"size": 1}), entry(rfilename=5), entry(rfilename=None)]
    return shapes


def test_listings_that_make_no_sense(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", hub.url)
    refused = 0
    for odd in _odd_listings():
        hub.listings = [odd]
        try:
            assert not look_up("org/name", on_notice=lambda _: None).files, odd  # an entry without a name is no file
        except DownloadError as error:
            refused += "is not understood" in str(error)
    assert refused == len(_odd_listings()) - 2


@pytest.mark.parametrize(
    "revision", ["../../x", "..", "/etc/x", "a/../b", "a//b", "", ".", "-x", "a\nb", "x" * 300, "a/.", "a\\b"]
)
def test_revisions_that_lead_out(tmp_path: Path, hub: Hub, revision: str) -> None:
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(RequestError, match="--revision is"):
        pull_module.pull(HubName("org/name"), revision=revision, on_bytes=lambda *_: None, on_notice=print)
    assert sorted(tmp_path.rglob("*")) == before
    assert not hub.requests


def test_a_revision_by_its_name_and_by_its_commit(tmp_path: Path, hub: Hub) -> None:
    here = Here(tmp_path, hub.url)
    for revision in ("refs/pr/1", "v1.0", COMMIT):
        assert here.run("pull", "org/name", "--revision", revision).returncode == 0
    refs = here.repo / "refs"
    assert {p.relative_to(refs).as_posix() for p in refs.rglob("*") if p.is_file()} == {"refs/pr/1", "v1.0"}
    assert json.loads(here.run("list", "--json").stdout)[0]["name"] == "org/name", "it needs no ref of main"


def test_a_blob_that_was_cut_is_not_taken(tmp_path: Path, hub: Hub) -> None:
    here = Here(tmp_path, hub.url)
    pulled(here, hub)
    (blob,) = (here.repo / "blobs").iterdir()
    os.truncate(blob, 10)
    pulled(here, hub)


def test_two_at_once(tmp_path: Path, hub: Hub) -> None:
    """One downloads, the other says so; a lock that came after the rename is seen to be worth nothing."""
    blob = tmp_path / "blob"
    with pull_module._only_one(blob) as partial:
        with pytest.raises(DownloadError, match="another process downloads"), pull_module._only_one(blob):
            pass
        partial.write_bytes(b"x")
        partial.replace(blob)
        with pull_module._only_one(blob) as second:
            assert second.stat().st_size == 0
    assert blob.read_bytes() == b"x"
    assert [p.name for p in tmp_path.iterdir()] == ["blob"]


def test_names_that_lead_out_are_not_taken(tmp_path: Path) -> None:
    with serving(Hub({"../../evil.gguf": b"evil", "model.gguf": b"good"})) as hub:
        here = Here(tmp_path, hub.url)
        done = here.run("pull", "org/name", "*")
        assert done.returncode == 0
        assert [p.name for p in tmp_path.rglob("*.gguf")] == ["model.gguf"]


# ---- models that are there


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    config: ModelConfig = TINY
    folder = write_folder(tmp_path_factory.mktemp("model") / "tiny", config)
    return {p.name: p.read_bytes() for p in folder.iterdir()}


def test_pull_run_list_rm(tmp_path: Path, model: dict[str, bytes]) -> None:
    with serving(Hub(model, small=frozenset(n for n in model if n.endswith(".json")))) as hub:
        here = Here(tmp_path, hub.url)
        assert "finback pull org/name downloads it" in here.run("run", "-m", "org/name", "-p", "x").stderr
        assert "no models in" in here.run("list").stdout
        assert here.run("pull", "org/name").returncode == 0
    # The server is gone: what was downloaded works.
    done = here.run("run", "-m", "org/name", "--raw", "-p", "abc", "--max-tokens", "2", "--temp", "0")
    assert (done.returncode, done.stderr) == (0, "")
    listed = json.loads(here.run("list", "--json").stdout)
    assert [(m["name"], m["problem"]) for m in listed] == [("org/name", None)]
    assert listed[0]["bytes"] == sum(map(len, model.values()))
    assert "org/name" in here.run("list").stdout
    asked = here.run("rm", "org/name")
    assert asked.returncode == 2
    assert "give -y" in asked.stderr
    assert here.run("rm", "org/name", "-y").returncode == 0
    assert not here.repo.exists()
    assert "is not among the models that were downloaded" in here.run("rm", "org/name", "-y").stderr


def test_one_file_of_several(tmp_path: Path) -> None:
    same = b"GGUF" + b"\0" * 100
    files = {"m-Q2_K.gguf": same, "m-Q4_K.gguf": b"other", "copy-Q2_K.gguf": same}
    with serving(Hub(files)) as hub:
        here = Here(tmp_path, hub.url)
        assert here.run("pull", "org/name", "*.gguf").returncode == 0
    refused = here.run("inspect", "-m", "org/name").stderr
    assert "holds 3 models; name one" in refused
    assert "is cut" in (said := here.run("inspect", "-m", "org/name:Q4_K").stderr) or "GGUF" in said
    assert here.run("list").stdout.count("org/name/") == 3
    assert here.run("rm", "org/name/m-Q2_K.gguf", "-y").returncode == 0
    assert here.file("copy-Q2_K.gguf").read_bytes() == same, "the bytes that another name needs stay"
    assert here.run("rm", "org/name/copy-Q2_K.gguf", "-y").returncode == 0
    assert len(here.names()) == 1
    assert here.run("rm", "org/name/m-Q4_K.gguf", "-y").returncode == 0
    assert not here.repo.exists()


def test_what_was_downloaded_stays_when_the_hub_moves_on(tmp_path: Path) -> None:
    with serving(Hub({"m-Q2_K.gguf": b"GGUF two", "m-Q4_K.gguf": b"GGUF four"})) as hub:
        here = Here(tmp_path, hub.url)
        assert here.run("pull", "org/name:Q2_K").returncode == 0
        hub.commit, hub.files["m-Q4_K.gguf"] = "f" * 40, b"GGUF four, better"
        assert here.run("pull", "org/name:Q4_K").returncode == 0
    listed = {m["name"]: m["path"] for m in json.loads(here.run("list", "--json").stdout)}
    assert set(listed) == {"org/name", "org/name/m-Q2_K.gguf"}
    assert listed["org/name/m-Q2_K.gguf"] == str(here.file("m-Q2_K.gguf"))
    for name in (*listed, "org/name:Q2_K", "org/name:Q4_K"):
        assert "pull" not in here.run("inspect", "-m", name).stderr, "it is here, though no model"
    assert here.run("rm", "org/name:Q2_K", "-y").returncode == 0
    assert [m["name"] for m in json.loads(here.run("list", "--json").stdout)] == ["org/name"]


# ---- removing, in caches that other tools made


def _repo(cache: Path, name: str, links: dict[str, Path]) -> Path:
    """A repository whose snapshot has links to places."""
    folder = cache / f"models--{name.replace('/', '--')}"
    (folder / "blobs").mkdir(parents=True, exist_ok=True)
    for file, target in links.items():
        path = folder / "snapshots" / COMMIT / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.symlink_to(os.path.relpath(target, path.parent))
    return folder


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("finback.hub.cache.cache_root", lambda: tmp_path / "hub")
    return tmp_path / "hub"


def test_rm_takes_no_byte_of_a_shared_store(tmp_path: Path, cache: Path) -> None:
    store = tmp_path / "store"
    store.mkdir()
    (store / "abc").write_bytes(b"GGUF shared")
    ours = _repo(cache, "org/a", {"m-Q2_K.gguf": store / "abc", "m-Q4_K.gguf": store / "abc"})
    theirs = _repo(cache, "org/b", {"m.gguf": store / "abc"})
    (ours / "blobs").rmdir()
    (ours / "blobs").symlink_to(store)
    what = removal("org/a/m-Q2_K.gguf")
    assert (what.blobs, what.size) == ((), 0)
    what.carry_out()
    assert not (ours / "snapshots" / COMMIT / "m-Q2_K.gguf").is_symlink()
    removal("org/a").carry_out()
    assert not ours.exists()
    assert (theirs / "snapshots" / COMMIT / "m.gguf").read_bytes() == b"GGUF shared"


def test_rm_of_what_another_repository_leads_to(cache: Path) -> None:
    ours = _repo(cache, "org/a", {})
    (ours / "blobs" / "abc").write_bytes(b"GGUF ours")
    _repo(cache, "org/a", {"m.gguf": ours / "blobs" / "abc"})
    theirs = _repo(cache, "org/b", {"copy.gguf": ours / "blobs" / "abc"})
    with pytest.raises(RequestError, match="org/b leads to files of org/a; remove that first"):
        removal("org/a")
    removal("org/a/m.gguf").carry_out()
    assert (theirs / "snapshots" / COMMIT / "copy.gguf").read_bytes() == b"GGUF ours"
    removal("org/b").carry_out()
    assert (ours / "blobs" / "abc").exists(), "the bytes of org/b's link are not its own"


def test_rm_of_links_that_lead_anywhere(tmp_path: Path, cache: Path) -> None:
    mine = tmp_path / "my-only-copy.gguf"
    mine.write_bytes(b"GGUF")
    _repo(cache, "org/a", {"m.gguf": mine})
    removal("org/a/m.gguf").carry_out()
    assert mine.exists()
    (tmp_path / "elsewhere").mkdir()
    (cache / "models--org--c").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(RequestError, match="is a link to another place"):
        removal("org/c")


def test_rm_of_files_that_are_no_links(cache: Path) -> None:
    """Where links cannot be had, the hub's library copies."""
    place = cache / "models--org--a" / "snapshots" / COMMIT
    place.mkdir(parents=True)
    for name in ("m-Q2_K.gguf", "m-Q4_K.gguf"):
        (place / name).write_bytes(b"GGUF" * 10)
    what = removal("org/a:Q2_K")
    assert what.size == 40
    what.carry_out()
    assert [p.name for p in place.iterdir()] == ["m-Q4_K.gguf"]


def test_the_hubs_library_is_imported_only_when_needed() -> None:
    code = "import sys, finback; finback.load().close(); print('huggingface_hub' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60).stdout == "False\n"
