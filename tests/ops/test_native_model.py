"""The native model against the canonical reference, byte for byte: chunks, threads, rewinds, drafts,
shifted files."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from finback import native
from finback.errors import ConfigError, EngineStateError, MemoryBudgetError, ModelFileError, NumericError
from finback.models import deepseek_v4
from finback.ops.native import NativeModel
from finback.ops.step import Part
from finback.reference.canonical import Canonical
from finback.weights.checkpoint import open_checkpoint
from finback.weights.ledger import Ledger
from tests.model.run import Model
from tests.tiny import TINY, weights, write_folder

IDS = [int(i) for i in np.random.default_rng(1).integers(3, 250, 70)]
LEVELS = [level.name for level in native.levels() if level.supported]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_folder(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="module")
def truth() -> tuple[np.ndarray, np.ndarray]:
    """Logits of the main stack and of the draft block (fed with the tokens that follow)."""
    model = Model.of(TINY, Canonical(), weights(TINY, 0))
    sequence = model.sequence()
    logits, streams = model.step([(sequence, 0, np.array(IDS[:-1]))])
    return logits, model.draft(sequence, 0, np.array(IDS[1:]), streams)


def load(
    folder: Path, ledger: Ledger | None = None, isa: str = LEVELS[-1], threads: int = 1, **changes: int
) -> NativeModel:
    numbers = {"context": 4096, "max_rows": 32, "max_logit_rows": 5} | changes
    return NativeModel(
        open_checkpoint(folder),
        ledger or Ledger(1 << 30),
        deepseek_v4,
        isa=isa,
        threads=threads,
        cache_rounding=True,
        **numbers,
    )


@pytest.fixture
def model(folder: Path) -> Iterator[NativeModel]:
    loaded = load(folder)
    yield loaded
    loaded.close()


def logits(model: NativeModel, cuts: list[int]) -> np.ndarray:
    state = model.new_sequence()
    state.reserve(cuts[-1])
    parts = [
        model.run([Part(state, IDS[a:b], range(b - a))]) for a, b in zip([0, *cuts], cuts, strict=False) if b > a
    ]
    state.close()
    return np.concatenate(parts)


@pytest.mark.parametrize("isa", LEVELS)
@pytest.mark.parametrize(
    ("threads", "cuts"), [(1, [32, 64, 69]), (2, [1, 2, 3, 20, 47, 69]), (3, [31, 32, 33, 60, 69])]
)
def test_bits_of_the_reference(
    folder: Path, truth: tuple[np.ndarray, np.ndarray], isa: str, threads: int, cuts: list[int]
) -> None:
    model = load(folder, isa=isa, threads=threads)
    assert np.array_equal(logits(model, cuts), truth[0])
    model.close()


def test_logits_beyond_the_limit_of_one_replay(
    model: NativeModel, truth: tuple[np.ndarray, np.ndarray]
) -> None:
    state = model.new_sequence()
    state.reserve(32)
    rows = [0, 1, 2, 5, 8, 9, 11, 20, 21, 22, 23, 31]  # three replays of five
    assert np.array_equal(model.run([Part(state, IDS[:32], rows)]), truth[0][rows])
    state.close()


def test_no_logits_wanted(model: NativeModel, truth: tuple[np.ndarray, np.ndarray]) -> None:
    state = model.new_sequence()
    state.reserve(33)
    assert model.run([Part(state, IDS[:32])]).shape == (0, TINY.vocab_size)
    assert np.array_equal(model.run([Part(state, IDS[32:33], [0])]), truth[0][32:33])
    state.close()


def test_drafts_read_the_streams_of_the_run_before(
    model: NativeModel, truth: tuple[np.ndarray, np.ndarray]
) -> None:
    state = model.new_sequence()
    state.reserve(69)
    for a, b in ((0, 30), (30, 31), (31, 60), (60, 69)):
        model.run([Part(state, IDS[a:b], [b - a - 1])])
        rows = list(range(0, b - a, 7))
        assert np.array_equal(model.draft([Part(state, IDS[a + 1 : b + 1], rows)]), truth[1][a:b][rows])
    state.close()


def test_going_back_and_on_gives_the_same_bits(
    model: NativeModel, truth: tuple[np.ndarray, np.ndarray]
) -> None:
    state = model.new_sequence()
    state.reserve(69)
    model.run([Part(state, IDS[:30])])
    copy = state.checkpoint()
    model.run([Part(state, [7, 8, 9, 10, 11, 12])])  # another continuation, past what the rings can take back
    state.restore(copy)
    state.reserve(69)
    model.run([Part(state, [*IDS[30:40], 99, 98, 97])])
    state.rewind(40)
    rest = np.concatenate(
        [model.run([Part(state, IDS[40:50], range(10))]), model.run([Part(state, IDS[50:69], range(19))])]
    )
    assert np.array_equal(rest, truth[0][40:])
    state.clear()
    state.reserve(20)
    assert np.array_equal(model.run([Part(state, IDS[:20], range(20))]), truth[0][:20])
    copy.release()
    state.close()


def test_sequences_do_not_disturb_each_other(
    model: NativeModel, truth: tuple[np.ndarray, np.ndarray]
) -> None:
    states = [model.new_sequence() for _ in range(3)]
    found: list[list[np.ndarray]] = [[], [], []]
    for state in states:
        state.reserve(60)
    for start in range(0, 60, 12):
        for i, state in enumerate(states):
            found[i].append(model.run([Part(state, IDS[start : start + 12], range(12))]))
    for parts in found:
        assert np.array_equal(np.concatenate(parts), truth[0][:60])
    for state in states:
        state.close()


@pytest.mark.parametrize("shift", [1, 2, 3])
def test_a_file_whose_tensors_start_anywhere(
    folder: Path, tmp_path: Path, truth: tuple[np.ndarray, np.ndarray], shift: int
) -> None:
    """safetensors aligns nothing: the header's length decides where f32 weights start."""
    moved = tmp_path / "moved"
    moved.mkdir()
    for file in folder.iterdir():
        (moved / file.name).write_bytes(file.read_bytes())
    raw = (folder / "model.safetensors").read_bytes()
    (size,) = struct.unpack_from("<Q", raw)
    header = json.dumps(json.loads(raw[8 : 8 + size])).encode()
    header += b" " * ((-len(header) % 4) + shift)
    (moved / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + raw[8 + size :])
    for isa in LEVELS:
        model = load(moved, isa=isa)
        assert np.array_equal(logits(model, [32, 64, 69]), truth[0])
        model.close()


# ---- memory
# ---------------------------------------------------------------------------------------------------------


def test_memory_grows_with_the_context_and_small_contexts_work(folder: Path) -> None:
    """Case E09."""
    needed = []
    for context in (1, 2, 15, 16, 17, 127, 128, 129, 1023, 1024, 1025, 4096, 65536):
        ledger = Ledger(1 << 30)
        model = load(folder, ledger, context=context, max_rows=min(8, context))
        state = model.new_sequence()
        state.reserve(context)
        needed.append(ledger.in_use)
        n = min(8, context)
        assert np.isfinite(model.run([Part(state, IDS[:n], [n - 1])])).all()
        state.close()
        model.close()
        assert ledger.table() == {"budget": 1 << 30}
    assert needed == sorted(needed)


@pytest.mark.parametrize("budget", [100, 30_000, 300_000])
def test_a_budget_that_is_too_small_is_refused_and_nothing_stays(folder: Path, budget: int) -> None:
    ledger, before = Ledger(budget), native.buffer_bytes()
    with pytest.raises(MemoryBudgetError, match="needs"):
        load(folder, ledger)
    assert ledger.in_use == 0
    assert native.buffer_bytes() == before


def test_the_listing_covers_the_arena(model: NativeModel) -> None:
    listed = model.program_listing()
    assert {row.entry for row in listed} == {"main", "head", "mtp"}
    assert max(row.offset + row.nbytes for row in listed) <= model.arena_bytes
    embed = listed[2]
    assert (embed.op, embed.rows, embed.shape) == ("embed", 32, (4, 64))


# ---- refusals
# -------------------------------------------------------------------------------------------------------


def test_a_row_that_is_not_finite_is_named(tmp_path: Path) -> None:
    bad = write_folder(tmp_path / "bad")
    file = bad / "model.safetensors"
    raw = bytearray(file.read_bytes())
    (size,) = struct.unpack_from("<Q", raw)
    start = json.loads(raw[8 : 8 + size])["embed.weight"]["data_offsets"][0] + 8 + size + 4 * 64 * 77
    raw[start : start + 4] = struct.pack("<f", float("nan"))
    file.write_bytes(raw)
    model = load(bad)
    state = model.new_sequence()
    state.reserve(20)
    model.run([Part(state, [5, 6, 7])])
    with pytest.raises(NumericError, match="row 2 of the step, at position 5") as refused:
        model.run([Part(state, [1, 2, 77, 3], [0])])
    assert refused.value.rows[0] == 2
    assert state.length == 3
    state.clear()
    others = [model.new_sequence(), model.new_sequence()]
    for other in others:
        other.reserve(20)
    out = np.zeros((3, TINY.vocab_size), np.float32)
    parts = [Part(others[0], IDS[:4], [3]), Part(state, [1, 77], [1]), Part(others[1], IDS[:5], [4])]
    with pytest.raises(NumericError) as refused:
        model.run(parts, out)
    assert set(refused.value.rows) == {5}, "neighbours of a bad row are good"
    assert [other.length for other in (*others, state)] == [4, 5, 0]
    alone = model.new_sequence()
    alone.reserve(5)
    truth = model.run([Part(alone, IDS[:5], [3, 4])])
    assert out[0].tobytes() == truth[0].tobytes()
    assert out[2].tobytes() == truth[1].tobytes()
    for other in (*others, alone):
        other.close()
    state.close()
    model.close()


def test_an_expert_that_does_not_exist(tmp_path: Path) -> None:
    bad = write_folder(tmp_path / "bad")
    file = bad / "model.safetensors"
    raw = bytearray(file.read_bytes())
    (size,) = struct.unpack_from("<Q", raw)
    start = json.loads(raw[8 : 8 + size])["layers.1.ffn.gate.tid2eid"]["data_offsets"][0] + 8 + size
    raw[start + 8 * 5 : start + 8 * 6] = struct.pack("<q", 8)
    file.write_bytes(raw)
    with pytest.raises(ModelFileError, match=r"layers\.1\.ffn\.gate\.tid2eid names expert 8 in entry 5"):
        load(bad)


def test_rounding_that_the_widths_do_not_allow_is_refused(folder: Path) -> None:
    checkpoint = open_checkpoint(folder)
    checkpoint.config = replace(checkpoint.config, index_head_dim=48, cache_rounding=False)
    with pytest.raises(ConfigError, match="index_head_dim is 48"):
        NativeModel(
            checkpoint,
            Ledger(1 << 30),
            deepseek_v4,
            isa="scalar",
            threads=1,
            context=64,
            max_rows=4,
            max_logit_rows=1,
            cache_rounding=True,
        )


def test_a_closed_model_says_so(folder: Path) -> None:
    model = load(folder)
    state = model.new_sequence()
    model.close()
    model.close()
    with pytest.raises(EngineStateError, match="closed"):
        model.run([Part(state, [1])])
    with pytest.raises(EngineStateError, match="closed"):
        model.new_sequence()


# ---- files that change (case H03)
# -----------------------------------------------------------------------------------


def test_a_file_that_shrinks_after_it_was_mapped_is_an_error_not_a_signal(tmp_path: Path) -> None:
    own = write_folder(tmp_path / "own")
    file = own / "model.safetensors"
    whole = file.read_bytes()
    model = load(own)
    state = model.new_sequence()
    state.reserve(10)
    model.run([Part(state, [1, 2])])
    for size in (len(whole) - 1, 4096, 0):
        with file.open("r+b") as handle:
            handle.truncate(size)
        with pytest.raises(ModelFileError, match=f"has been cut from {len(whole)} to {size} bytes"):
            model.run([Part(state, [3], [0])])
    with file.open("r+b") as handle:
        handle.write(whole)
    with pytest.raises(ModelFileError, match="has been written to"):
        model.run([Part(state, [3], [0])])
    state.close()
    model.close()


def test_a_file_that_is_replaced_by_renaming_does_not_matter(
    tmp_path: Path, truth: tuple[np.ndarray, np.ndarray]
) -> None:
    own = write_folder(tmp_path / "own")
    model = load(own)
    (own / "new").write_bytes(b"something else")
    (own / "new").rename(own / "model.safetensors")
    assert np.array_equal(logits(model, [32]), truth[0][:32])
    model.close()
