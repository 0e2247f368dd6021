"""Timing of steps and starts: sequences that were made up behave like computed ones, memory is what docs/memory.md
says, records hold what they promise."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import finback
from finback import native
from finback.config import ModelConfig
from finback.errors import FinbackError, RequestError
from finback.kv.layout import MAX_DRAFT
from finback.tools import bench_steps as bench
from finback.tools.bench_startup import bench_startup
from finback.tools.synth import synth


@pytest.fixture(scope="module")
def engine() -> Iterator[finback.Engine]:
    with finback.load(threads=2, context=4096) as engine:
        yield engine


def documented_bytes(config: ModelConfig, length: int) -> int:
    """docs/memory.md, written out."""
    d, r, window = config.head_dim, config.qk_rope_head_dim, config.sliding_window

    def part(size: int) -> int:
        return -(-size // 64) * 64

    if config.cache_rounding:
        main = (d - r) + 8 * math.ceil(math.ceil((d - r) / 64) / 8) + 2 * r
        index = math.ceil(config.index_head_dim / 2) + math.ceil(config.index_head_dim / 32)
    else:
        main, index = 4 * d, 4 * config.index_head_dim
    layers = (*config.layers, *config.mtp_layers)
    span = math.lcm(*(layer.ratio for layer in layers if layer.ratio))
    span *= -(-128 // span)
    frontier = page = 0
    for layer in layers:
        frontier += part((window + MAX_DRAFT) * main)
        if layer.ratio:
            groups = 2 if layer.kind == "csa" else 1
            frontier += part((MAX_DRAFT + 1) * groups * 12 * d)
            page += part(span // layer.ratio * main)
        if layer.kind == "csa":
            frontier += part((MAX_DRAFT + 1) * 24 * config.index_head_dim)
            page += part(span // layer.ratio * index)
    return frontier + -(-length // span) * page


@pytest.mark.parametrize("depth", [1000, 30000, 262144])
def test_memory_follows_the_documented_formula(depth: int) -> None:
    with finback.load(context=depth + 64, threads=1) as engine:
        loaded = native.buffer_bytes()
        with engine.session() as session:
            session.fill(bench.random_ids(engine, depth))
            held = native.buffer_bytes() - loaded
            expected = documented_bytes(engine.config, depth)
            assert 0.97 < held / expected < 1.03
            memory = engine.memory()
            assert memory["pages"] + memory["frontiers"] == held
            row = bench.memory_of(engine, depth, held)
            assert row["formula"] == expected
        assert native.buffer_bytes() == loaded


def test_what_follows_a_made_up_context_is_sound(engine: finback.Engine) -> None:
    ids = bench.random_ids(engine, 700)
    for depth in (1, 3, 127, 128, 129, 600):
        with engine.session() as session:
            session.fill(ids[:depth])
            assert session.tokens == tuple(ids[:depth])
            one_by_one = [session.append_logits([token])[0] for token in ids[depth : depth + 6]]
        with engine.session() as session:
            session.fill(ids[:depth])
            together = session.append_logits(ids[depth : depth + 6])
        assert np.isfinite(together).all()
        assert np.stack(one_by_one).tobytes() == together.tobytes()


def test_a_made_up_context_is_the_same_at_every_level_and_for_its_seed() -> None:
    ids: list[int] = []
    seen: dict[tuple[str, int], bytes] = {}
    for level in [level.name for level in native.levels() if level.supported]:
        with finback.load(isa=level, context=1024) as engine:
            ids = bench.random_ids(engine, 500)
            for seed in (0, 1):
                with engine.session() as session:
                    session.fill(ids, seed=seed)
                    session.append([7])
                    seen[level, seed] = session.logits().tobytes()
    assert len({logits for (_, seed), logits in seen.items() if seed == 0}) == 1
    assert len(set(seen.values())) == 2


def test_a_filled_session_rewinds_and_recovers(engine: finback.Engine) -> None:
    ids = bench.random_ids(engine, 300)
    with engine.session() as session:
        session.fill(ids)
        session.append(ids[:4])
        after = session.logits()
        assert session.rewind(302) == "length"
        session.append(ids[2:4])
        assert session.logits().tobytes() == after.tobytes()
        with pytest.raises(RequestError, match="this session has 304 tokens"):
            session.fill(ids)
    with engine.session() as session:
        session.fill([])
        assert len(session) == 0
        session.append([1, 2])
        with pytest.raises(RequestError, match="this session has 2 tokens"):
            session.fill(ids)


def test_pages_are_checked_before_they_are_filled() -> None:
    from tests.ops.small import Small

    small = Small()
    level = native.select_level(None)
    small.state.handle.keep_pages(1)
    for length, message in ((900, "lacks pages"), (0, "out of range"), (-1, "out of range"), (2**40, "out of range")):
        with pytest.raises(ValueError, match=message):
            small.state.handle.fill(level, length, 0)
    with pytest.raises(ValueError, match="mmx"):
        small.state.handle.fill("mmx", 1, 0)


def test_eager_models_cannot_make_contexts_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FINBACK_EAGER", "1")
    with finback.load(context=64) as engine, engine.session() as session, pytest.raises(RequestError, match="EAGER"):
        session.fill([1, 2, 3])


def test_draw_is_what_an_answer_begins_with(engine: finback.Engine) -> None:
    ids = engine.encode("Once upon a time")
    answer = engine.generate(ids, finback.Sampling(temperature=0, max_tokens=1))
    with engine.session() as session:
        session.append(ids)
        assert engine.draw(session, finback.Sampling(temperature=0)) == answer.token_ids[0]
        assert len(session) == len(ids)


def test_decode_rows(engine: finback.Engine) -> None:
    record = bench.bench_decode(engine, [0, 40], tokens=2, repeats=3, weights="auto")
    assert record["kind"] == "decode"
    assert record["model"]["weights_bytes"] > 0
    for row, depth in zip(record["rows"], (0, 40), strict=True):
        assert {"depth": depth, "tokens": 2, "threads": 2}.items() <= row.items()
        low, high = row["tokens_per_s_spread"]
        assert 0 < low <= row["tokens_per_s"] <= high
        assert row["ms_per_token"] == pytest.approx(1e3 / row["tokens_per_s"], rel=1e-3)
        assert row["memory"]["held"] >= row["memory"]["formula"] > 0


def test_prefill_rows(engine: finback.Engine) -> None:
    done: list[tuple[int, int]] = []
    record = bench.bench_prefill(
        engine, [3, 9], [0, 20], repeats=2, weights="auto", on_done=lambda *at: done.append(at)
    )
    assert [(row["size"], row["depth"]) for row in record["rows"]] == [(3, 0), (9, 0), (3, 20), (9, 20)]
    assert all(row["tokens_per_s"] > 0 for row in record["rows"])
    assert done[0] == (0, 8)
    assert done[-1] == (8, 8)


def test_depths_beyond_the_context_are_refused(engine: finback.Engine) -> None:
    fits = 4096 - bench.context_for([0], 6)
    for depth in (fits + 1, -1):
        with pytest.raises(RequestError, match=f"depth is {depth}.*from 0 to {fits} in a context of 4096"):
            bench.bench_decode(engine, [depth], tokens=2, repeats=3, weights="auto")
    with pytest.raises(RequestError, match="depth is 4090"):
        bench.bench_prefill(engine, [64], [4090], repeats=1, weights="auto")


def test_startup(tmp_path: Path) -> None:
    synth(tmp_path / "m.gguf", "v4-tiny", layers=2, experts=2, vocab=320)
    record = bench_startup(str(tmp_path / "m.gguf"), repeats=1)
    times = {row["what"]: row["ms"] for row in record["rows"]}
    assert set(times) == {"open the files", "first token of a new process", "Python imports of that process"}
    assert all(ms > 0 for ms in times.values())
    assert record["model"]["name"] == "m.gguf"
    assert 0.5 < record["pss_two_over_one"] < 2.5
    with pytest.raises(FinbackError, match=r"none\.gguf"):
        bench_startup(str(tmp_path / "none.gguf"), repeats=1)
