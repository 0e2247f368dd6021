"""The disk tier: a restart goes on where the last process ended; nothing of other weights, damaged or half written is
used."""

from __future__ import annotations

import multiprocessing
import os
import random
import shutil
import signal
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import finback
from finback import Sampling
from finback.errors import RequestError
from finback.kv.snapshot import SnapshotError, read
from finback.kv.store import SAVE_SPACING, Store
from finback.weights.fingerprint import weights_hash
from tests.engine.spy import drawn_logits
from tests.tiny import write_folder

GREEDY = Sampling(temperature=0, max_tokens=12, ignore_eos=True)


def prompt(seed: int, n: int) -> list[int]:
    dice = random.Random(seed)
    return [dice.randrange(3, 250) for _ in range(n)]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_folder(tmp_path_factory.mktemp("disk") / "tiny")


def load(model: Path | None, kv: Path, **options: Any) -> finback.Engine:
    return finback.load(model, **{"threads": 1, "context": 4096, "kv_dir": kv} | options)


def files(kv: Path) -> list[Path]:
    return sorted(p for p in kv.rglob("*") if p.suffix in (".checkpoint", ".segment"))


def test_a_restart_computes_almost_nothing_and_changes_no_bit(model: Path, tmp_path: Path) -> None:
    ids, kv = prompt(1, 1700), tmp_path / "kv"
    with drawn_logits() as first, load(model, kv) as engine:
        cold = engine.generate(ids, GREEDY)
        turn = [*ids, *cold.token_ids, 7, 8, 9]
    assert {stat.S_IMODE(p.stat().st_mode) for p in files(kv)} == {0o600}
    with load(model, tmp_path / "none") as plain, drawn_logits() as second:
        expected = plain.generate(turn, GREEDY)
    with load(model, kv, threads=2) as engine, drawn_logits() as seen:
        again, following = engine.generate(ids, GREEDY), engine.generate(turn, GREEDY)
        stats = engine.stats()
    assert again.usage.cached_tokens == len(ids) - 1
    assert following.usage.cached_tokens >= len(ids) + len(cold.token_ids) - 1
    assert (again.token_ids, following.token_ids) == (cold.token_ids, expected.token_ids)
    assert seen == first | second
    assert stats.disk is not None
    assert (stats.disk.restored >= 1, stats.disk.problems) == (True, 0)
    assert stats.rows["prefill"] < 10


def test_from_disk_and_then_many_ways(model: Path, tmp_path: Path) -> None:
    """Starts from disk on and beside the borders of groups, with drafts, in a batch."""
    kv, stem = tmp_path / "kv", prompt(2, 900)
    cuts = (255, 256, 257, 640, 897)
    with load(model, tmp_path / "none", context=2048) as plain:
        expected = [plain.generate([*stem[:cut], 9, 5], GREEDY).token_ids for cut in cuts]
    with load(model, kv, context=2048) as engine:
        for cut in cuts:
            engine.prefill(stem[:cut])
    for options in ({}, {"speculation": "lookup"}, {"threads": 2, "prefill_chunk": 33}):
        with load(model, kv, context=2048, **options) as engine:
            running = [engine.submit([*stem[:cut], 9, 5], GREEDY) for cut in cuts]
            found = [request.result() for request in running]
            assert [answer.token_ids for answer in found] == expected
            assert sum(answer.usage.cached_tokens for answer in found) > 1500


def test_other_weights_rounding_and_layouts_are_other_stores(model: Path, tmp_path: Path) -> None:
    """Case E01."""
    ids, kv = prompt(3, 600), tmp_path / "kv"
    with load(model, kv) as engine:
        engine.generate(ids, GREEDY)
        assert engine.generate(ids, GREEDY).usage.cached_tokens == 599
    other = write_folder(tmp_path / "other", seed=2)
    changed = tmp_path / "changed"
    shutil.copytree(model, changed)
    raw = bytearray((changed / "model.safetensors").read_bytes())
    raw[-8] ^= 1
    (changed / "model.safetensors").write_bytes(raw)
    for path, options in ((other, {}), (changed, {}), (model, {"cache_rounding": False})):
        with load(path, tmp_path / "cold", **options) as engine:
            cold = engine.generate(ids, GREEDY)
        with load(path, kv, **options) as engine:
            answer = engine.generate(ids, GREEDY)
        assert answer.usage.cached_tokens == 0
        assert answer.token_ids == cold.token_ids
    with load(model, kv) as engine:
        assert engine.generate(ids, GREEDY).usage.cached_tokens == 599


def test_damaged_cut_and_foreign_files_are_named_and_never_used(model: Path, tmp_path: Path) -> None:
    ids, kv = prompt(4, 2400), tmp_path / "kv"
    with load(model, kv) as engine:
        cold = engine.generate(ids, GREEDY)
    (folder,) = kv.iterdir()
    saved = tmp_path / "saved"
    shutil.copytree(folder, saved)
    dice = random.Random(0)
    reasons: set[str] = set()
    for trial in range(15):
        shutil.rmtree(folder)
        shutil.copytree(saved, folder)
        victim = dice.choice(files(kv))
        data = bytearray(victim.read_bytes())
        kind = trial % 5
        if kind == 0:
            data = data[: dice.randrange(len(data))]
        elif kind == 1:
            data[dice.randrange(len(data))] ^= 1 << dice.randrange(8)
        elif kind == 2:
            data += b"more"
        elif kind == 3:
            data = bytearray(dice.randbytes(len(data)))
        else:
            data = bytearray()
        victim.write_bytes(data)
        with load(model, kv) as engine:
            answer = engine.generate(ids, GREEDY)
            assert answer.token_ids == cold.token_ids
            assert engine._store is not None
            reasons |= {problem.split(" ", 1)[1][:12] for problem in engine._store.problems}
    assert len(reasons) >= 4, reasons


def test_every_flipped_bit_of_a_checkpoint_is_found(model: Path, tmp_path: Path) -> None:
    with load(model, tmp_path / "kv") as engine:
        engine.prefill(prompt(5, 100))
        identity = engine._store._identity
    path = next(p for p in files(tmp_path / "kv") if p.suffix == ".checkpoint")
    data = path.read_bytes()
    read(path, identity)
    dice = random.Random(1)
    places = [*range(0, 400, 3), *(dice.randrange(len(data)) for _ in range(60))]
    for at in places:
        changed = bytearray(data)
        changed[at] ^= 1 << dice.randrange(8)
        path.write_bytes(changed)
        with pytest.raises(SnapshotError):
            read(path, identity)


def test_a_state_that_leads_to_an_error_is_removed_and_the_prompt_computed(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Case E03, its second half."""
    from finback.errors import NumericError
    from finback.ops.native import NativeModel

    ids, kv = prompt(6, 500), tmp_path / "kv"
    with load(model, kv) as engine:
        cold = engine.generate(ids, GREEDY)
    real, failed = NativeModel.run, []

    def run(self: NativeModel, parts: Any, out: Any = None) -> Any:
        if not failed and parts[0].state.length > 400:
            failed.append(1)
            raise NumericError("injected", rows=(0,))
        return real(self, parts, out)

    monkeypatch.setattr(NativeModel, "run", run)
    with load(model, kv) as engine:
        answer = engine.generate(ids, GREEDY)
        assert failed
        assert answer.token_ids == cold.token_ids
        assert any("led to an error" in problem for problem in engine._store.problems)


def _talk(model: Path, kv: Path) -> None:
    """A process that is killed while it writes."""
    with load(model, kv) as engine:
        for i in range(100):
            engine.generate(prompt(100 + i, 300), GREEDY)
            engine._loop._keeper.save(True)


def test_killed_while_writing(model: Path, tmp_path: Path) -> None:
    """Case E03: whatever moment it is, the store is good afterwards."""
    kv, context = tmp_path / "kv", multiprocessing.get_context("spawn")
    dice, restored = random.Random(2), 0
    with load(model, tmp_path / "none") as plain:
        expected = plain.generate(prompt(100, 300), GREEDY).token_ids
    for _ in range(6):
        child = context.Process(target=_talk, args=(model, kv))
        child.start()
        deadline = time.monotonic() + 60
        while not files(kv) and time.monotonic() < deadline:
            time.sleep(0.01)
        time.sleep(dice.uniform(0, 0.25))
        assert child.pid is not None
        os.kill(child.pid, signal.SIGKILL)
        child.join()
        with load(model, kv) as engine:
            answer = engine.generate(prompt(100, 300), GREEDY)
            assert answer.token_ids == expected
            restored += answer.usage.cached_tokens > 0
        assert not list(kv.rglob("*.part"))
    assert restored >= 4


def test_bytes_written_are_bounded(tmp_path: Path) -> None:
    """Case E07: a conversation of many turns. Rows are written once; a save adds a frontier and at most a segment."""
    with finback.load(threads=2, context=16384, kv_dir=tmp_path / "kv") as engine:
        assert engine._loop is None
        ids: list[int] = []
        for turn in range(30):
            ids += prompt(turn, 100)
            ids += engine.generate(ids, Sampling(temperature=0, max_tokens=4, ignore_eos=True)).token_ids
            if turn % 3 == 0:
                engine._loop._keeper.save(False)
        stats = engine.stats().disk
        pool = engine._model.pool
        frontier = pool._frontier_size()
        saves = len(ids) // SAVE_SPACING + 1
        rows = len(ids) / pool.layout.page_span * pool.page_stride
        segment = 16 * pool.page_stride
        assert stats.written <= 1.1 * rows + saves * (frontier + 4 * SAVE_SPACING * 2 + segment)
        assert stats.entries <= 3


def test_the_space_is_kept(model: Path, tmp_path: Path) -> None:
    with load(model, tmp_path / "kv", kv_space="600KiB") as engine:
        for i in range(12):
            engine.generate(prompt(i, 700), GREEDY)
        engine._loop._keeper.save(True)
        assert engine.stats().disk.nbytes <= 600 << 10
    assert 0 < sum(p.stat().st_size for p in files(tmp_path / "kv")) <= 600 << 10


def test_a_second_process_only_reads(model: Path, tmp_path: Path) -> None:
    kv, ids = tmp_path / "kv", prompt(7, 500)
    with load(model, kv) as writer:
        writer.generate(ids, GREEDY)
        writer._loop._keeper.save(True)
        with load(model, kv) as reader:
            assert reader.generate(ids, GREEDY).usage.cached_tokens == 499
            reader.generate(prompt(8, 500), GREEDY)
            assert "another process writes" in reader._store.problems[0]
        assert writer.stats().disk.entries == len([p for p in files(kv) if p.suffix == ".checkpoint"])


def test_settings(model: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RequestError, match=r"kv_dir .*; choose a folder that can be written"):
        load(model, tmp_path / "file")
    with pytest.raises(RequestError, match="kv_dir keeps the prefix cache on disk, which is off here"):
        load(model, tmp_path / "kv", prefix_cache=0)
    with pytest.raises(RequestError, match="kv_space is 'much'"):
        load(model, tmp_path / "kv", kv_space="much")


def test_hashes_of_weights_are_remembered_while_files_stay_the_same(tmp_path: Path) -> None:
    file, cache = tmp_path / "w", tmp_path / "cache"
    file.write_bytes(b"one")
    first = weights_hash([file], cache)
    assert weights_hash([file], cache) == first
    time.sleep(0.01)
    file.write_bytes(b"two")
    second = weights_hash([file], cache)
    assert second != first
    (cache / "weights.json").write_text("{")
    assert weights_hash([file], cache) == second
    assert weights_hash([file, file], cache) != second


def test_a_damaged_index_is_made_anew(model: Path, tmp_path: Path) -> None:
    kv, ids = tmp_path / "kv", prompt(9, 300)
    with load(model, kv) as engine:
        engine.generate(ids, GREEDY)
    (index,) = kv.rglob("index.sqlite")
    index.write_bytes(b"nonsense" * 1000)
    with load(model, kv) as engine:
        assert engine.generate(ids, GREEDY).usage.cached_tokens == 299
        assert any("index was damaged" in problem for problem in engine._store.problems)


def test_leaving_without_closing_saves(tmp_path: Path) -> None:
    """A script that just ends: what it said is there the next time."""
    code = (
        "import sys, finback\n"
        "engine = finback.load(threads=1, context=1024, kv_dir=sys.argv[1])\n"
        "answer = engine.generate(list(range(3, 303)), finback.Sampling(temperature=0, max_tokens=3))\n"
        "print(answer.usage.cached_tokens)\n"
    )
    for expected in ("0", "299"):
        done = subprocess.run(
            [sys.executable, "-c", code, str(tmp_path / "kv")], capture_output=True, text=True, timeout=60, check=False
        )
        assert (done.stdout.strip(), done.stderr) == (expected, "")


def test_arrays_of_tokens_come_back(model: Path, tmp_path: Path) -> None:
    kv = tmp_path / "kv"
    with load(model, kv) as engine:
        engine.prefill(prompt(10, 400))
    with load(model, kv) as engine:
        assert any(np.array_equal(s.tokens, prompt(10, 400)) for s in engine._store._stored.values())


def test_sessions_are_saved_and_loaded(model: Path, tmp_path: Path) -> None:
    ids, file = prompt(11, 777), tmp_path / "state"
    with load(model, tmp_path / "kv") as engine, engine.session() as session:
        session.append(ids)
        session.rewind(700)
        session.append(ids[700:])
        session.save(file)
        expected = session.logits()
        session.append([5, 6])
        after = session.logits()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    with finback.load(model, threads=2, context=4096) as engine, engine.session() as session:
        session.append([9, 9, 9])
        session.load(file)
        assert session.tokens == tuple(ids)
        assert session.logits().tobytes() == expected.tobytes()
        session.append([5, 6])
        assert session.logits().tobytes() == after.tobytes()
        assert session.rewind(10) == "recomputed"
        session.load(file)
        with engine.session() as other:
            other.load(file)
            assert other.logits().tobytes() == expected.tobytes()
            with pytest.raises(RequestError, match="an empty session has no state"):
                engine.session().save(file)
            with pytest.raises(RequestError, match="No such file"):
                other.load(tmp_path / "nothing")
            with pytest.raises(RequestError, match="choose another place"):
                other.save(tmp_path / "no" / "folder")
    with finback.load(context=4096) as engine, engine.session() as session:
        with pytest.raises(RequestError, match="is of other weights"):
            session.load(file)
        assert len(session) == 0
    with finback.load(model, context=500) as engine, engine.session() as session:
        with pytest.raises(RequestError, match="777 tokens, more than the context of 500"):
            session.load(file)
        engine._model.pool.check(engine._ledger.table)


def test_a_request_waits_for_memory_that_a_state_being_written_holds(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with load(model, tmp_path / "none") as probe:
        base = sum(size for name, size in probe.memory().items() if name != "budget")
        room = probe._model.promised_bytes(1700, 12, 1)
    begun, go, save = threading.Event(), threading.Event(), Store.save

    def slow(self: Store, *args: Any) -> None:
        begun.set()
        assert go.wait(30)
        save(self, *args)

    monkeypatch.setattr(Store, "save", slow)
    with load(model, tmp_path / "kv", memory=base + room, prefix_cache="1GiB") as engine:
        engine.generate(prompt(1, 1700), GREEDY)
        assert begun.wait(30), "an engine with nothing to do writes"
        request = engine.submit(prompt(2, 1700), GREEDY)
        deadline = time.monotonic() + 30
        while engine.stats().waiting == 0:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        go.set()
        assert len(request.result().token_ids) == 12
        assert engine.stats().prefix.evictions > 0


def test_an_engine_that_is_never_idle_writes_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """kill -9 then loses half a minute at most."""
    monkeypatch.setattr("finback.engine.keeper.SAVE_EVERY_S", 0.05)
    with finback.load(context=4096, kv_dir=tmp_path) as engine:
        running = engine.submit("Once", finback.Sampling(max_tokens=4000, ignore_eos=True, seed=1))
        engine.generate([5 + i % 900 for i in range(2000)], finback.Sampling(max_tokens=2, ignore_eos=True))
        for event in running:
            stats = engine.stats()
            assert stats.disk is not None
            if stats.disk.written:
                assert event.finish_reason is None, "it was written only when nothing was running"
                break
        else:
            pytest.fail("nothing was written")
