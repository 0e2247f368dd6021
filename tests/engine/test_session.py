"""Sessions: a timeline extended, read and taken back, always with the bytes of a fresh computation."""

from __future__ import annotations

import os
import signal
import threading
import time

import numpy as np
import pytest

import finback
from finback.engine.session import CHECKPOINT_SPACING
from finback.errors import EngineStateError, MemoryBudgetError, RequestError


def tokens(n: int, seed: int = 3) -> list[int]:
    return [int(x) for x in np.random.default_rng(seed).integers(3, 4096, n)]


def test_appending_gives_the_logits_of_one_pass(engine: finback.Engine) -> None:
    ids = tokens(150)
    truth = engine.logits(ids)
    with engine.session() as session:
        session.append(ids[:37])
        assert session.logits().tobytes() == truth[36].tobytes()
        session.append([])
        for token in ids[37:60]:
            session.append([token])
        assert session.logits().tobytes() == truth[59].tobytes()
        assert session.append_logits(ids[60:]).tobytes() == truth[60:].tobytes()
        assert session.tokens == tuple(ids)
        assert len(session) == 150


@pytest.mark.parametrize("back", [0, 1, 2, 3, 4, 5, 8, 40, 127, 128, 129, 150, 299, 300])
def test_rewinds_of_every_length(engine: finback.Engine, back: int) -> None:
    ids, other = tokens(300), tokens(20, seed=4)
    keep = len(ids) - back
    with engine.session() as session:
        for start in range(0, 300, 7):
            session.append(ids[start : start + 7])
        how = session.rewind(keep)
        assert how == ("kept" if back == 0 else "length" if back <= 3 or keep == 0 else "recomputed")
        assert session.tokens == tuple(ids[:keep])
        if keep:
            assert session.logits().tobytes() == engine.logits(ids[:keep], rows=[-1]).tobytes()
        session.append(other)
        assert session.logits().tobytes() == engine.logits(ids[:keep] + other, rows=[-1]).tobytes()


def test_repeated_short_rewinds_over_group_borders(engine: finback.Engine) -> None:
    """As speculation does it: a few rows forward, some of them taken back, across 4- and 128-borders."""
    ids, rng = tokens(290), np.random.default_rng(1)
    with engine.session() as session:
        session.append(ids[:100])
        while len(session) < 280:
            at, accepted = len(session), int(rng.integers(0, 4))
            session.append(ids[at : at + accepted] + tokens(3 - accepted, seed=at))
            assert session.rewind(at + accepted) in ("length", "kept")
            session.append([ids[at + accepted]])
        session.rewind(280)
        assert session.tokens == tuple(ids[:280])
        assert session.logits().tobytes() == engine.logits(ids[:280], rows=[-1]).tobytes()


def test_long_rewinds_start_from_a_checkpoint() -> None:
    ids = tokens(2 * CHECKPOINT_SPACING + 500)
    with finback.load(context=8192) as engine, engine.session() as session:
        session.append(ids)
        assert engine.memory()["checkpoints"] > 0
        length = CHECKPOINT_SPACING + 700
        assert session.rewind(length) == "checkpoint"
        assert session.logits().tobytes() == engine.logits(ids[:length], rows=[-1]).tobytes()
        assert session.rewind(5) == "recomputed"
        assert session.logits().tobytes() == engine.logits(ids[:5], rows=[-1]).tobytes()
        session.close()
        assert set(engine.memory()) == {"weights", "arena", "logits", "budget"}


def test_an_interrupted_append_loses_nothing() -> None:
    ids = tokens(400)
    with finback.load(context=16384, threads=1, isa="scalar") as engine, engine.session() as session:
        session.append(ids)
        before = session.logits().tobytes()
        threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
        begun = time.monotonic()
        with pytest.raises(KeyboardInterrupt):
            session.append(tokens(15000, seed=8))
        assert time.monotonic() - begun < 5
        assert session.tokens == tuple(ids)
        assert session.logits().tobytes() == before
        session.append(ids[:9])
        assert session.logits().tobytes() == engine.logits(ids + ids[:9], rows=[-1]).tobytes()


def test_limits_are_refused_before_they_change_anything(engine: finback.Engine) -> None:
    with engine.session() as session:
        with pytest.raises(RequestError, match="no logits"):
            session.logits()
        session.append([5, 6, 7])
        with pytest.raises(RequestError, match="3 tokens and 4094 more exceed the context of 4096"):
            session.append([1] * 4094)
        for bad in (-1, 4, True, 1.0, "2"):
            with pytest.raises(RequestError, match="length is"):
                session.rewind(bad)  # type: ignore[arg-type]
        with pytest.raises(RequestError, match="token 1 is 9999"):
            session.append([1, 9999])
        assert session.tokens == (5, 6, 7)
        assert session.logits().tobytes() == engine.logits([5, 6, 7], rows=[-1]).tobytes()
    session.close()
    with pytest.raises(EngineStateError, match="session is closed"):
        session.append([1])


def test_a_session_that_outgrows_the_budget_keeps_what_it_has() -> None:
    with finback.load(context=1 << 20, prefill_chunk=64, threads=1) as probe:
        need = probe.memory()
    with finback.load(
        context=1 << 20, prefill_chunk=64, threads=1, memory=need["weights"] + need["arena"] + (4 << 20)
    ) as engine, engine.session() as session:
        session.append(tokens(300))
        with pytest.raises(MemoryBudgetError, match="pages needs") as refused:
            session.append(tokens(200_000))
        assert refused.value.needed > refused.value.budget
        assert len(session) == 300
        session.append([1])


def test_threads_may_share_an_engine(engine: finback.Engine) -> None:
    ids = tokens(60)
    truth = engine.logits(ids).tobytes()
    found: list[bytes] = []
    workers = [threading.Thread(target=lambda: found.append(engine.logits(ids).tobytes())) for _ in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert found == [truth] * 4
