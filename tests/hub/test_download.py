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

from finback.config import ModelConfig
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
    import finback.hub.download as download
    from finback.hub.names import HubName

    monkeypatch.setattr(download.shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(10**9, 10**9, 10**6))
    monkeypatch.setattr(download, "repo_folder", lambda _: tmp_path / "models--org--name")
    remote = download.Remote("org/name", "main", COMMIT, (download.RemoteFile("m.gguf", 5 * 10**9, "a" * 64, None),))
    with pytest.raises(download.DownloadError, match=r"4.7 GiB are to be downloaded to .*, which has 976.6 KiB free"):
        download.pull(HubName("org/name"), on_bytes=lambda *_: None, on_notice=print, remote=remote)


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


def test_the_hubs_library_is_imported_only_when_needed() -> None:
    code = "import sys, finback; finback.load().close(); print('huggingface_hub' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60).stdout == "False\n"
