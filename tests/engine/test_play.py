"""The engine under random use: submit, cancel, leave, rewind, close, with too little memory. After every quiet moment
all pages are accounted for, and no request has gone without an end."""

from __future__ import annotations

import contextlib
import random
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import finback
from finback import Sampling
from finback.errors import MemoryBudgetError
from tests.tiny import VOCAB, write_folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_folder(tmp_path_factory.mktemp("play") / "tiny")


@pytest.fixture(scope="module")
def room(folder: Path) -> int:
    """Bytes for the model and about nine sequences of 200 tokens."""
    with finback.load(folder, context=512, threads=1, prefill_chunk=32) as engine:
        fixed = sum(size for name, size in engine.memory().items() if name != "budget")
        return fixed + 9 * engine._model.promised_bytes(200, 0, 1)


def quiet(engine: finback.Engine) -> None:
    deadline = time.monotonic() + 60
    while (stats := engine.stats()).running or stats.reading or stats.waiting:
        assert time.monotonic() < deadline, "a request without an end"
        time.sleep(0.002)


def check(engine: finback.Engine, sessions: list[finback.Session]) -> None:
    """Nothing is held but by the cache and by sessions, and the ledger agrees."""
    pool, prefix = engine._model.pool, engine._prefix
    pool.check(engine._ledger.table)
    held = {*prefix.checkpoints()}
    for session in sessions:
        held |= {session._state, *(copy for _, copy in session._checkpoints)}
    assert pool.holders == held
    assert engine.memory().get("promised", 0) == 0


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 2**32))
def test_random_use(folder: Path, room: int, seed: int) -> None:
    dice = random.Random(seed)
    stems = [[dice.randrange(3, VOCAB) for _ in range(n)] for n in (40, 90, 128, 150)]
    truth: dict[tuple[int, ...], tuple[int, ...]] = {}
    with finback.load(folder, context=512, threads=1, prefill_chunk=32, memory=room) as engine:
        sessions: list[finback.Session] = []
        running = []
        for _ in range(60):
            move = dice.randrange(12)
            if move < 5:
                prompt = [*dice.choice(stems)[: dice.randint(1, 150)], *([9] * dice.randint(1, 4))]
                options = Sampling(
                    temperature=0,
                    max_tokens=dice.randint(1, 20),
                    ignore_eos=True,
                    n=dice.choice([1, 1, 1, 2]),
                    presence_penalty=0.5,
                )
                running.append((prompt, options, engine.submit(prompt, options, priority=dice.randint(-3, 3))))
            elif move == 5 and running:
                dice.choice(running)[2].cancel()
            elif move == 6 and running:
                _, _, request = running.pop(dice.randrange(len(running)))
                for _ in request:  # left after the first event
                    break
            elif move in (7, 8) and running:
                prompt, _, request = running.pop(0)
                answer = request.result()
                if answer.finish_reason == "length":
                    known = truth.setdefault(tuple(prompt), answer.token_ids)
                    n = min(len(known), len(answer.token_ids))
                    assert known[:n] == answer.token_ids[:n], "the same prompt got another answer"
                    truth[tuple(prompt)] = max(known, answer.token_ids, key=len)
            elif move == 9 and len(sessions) < 3:
                with contextlib.suppress(MemoryBudgetError):  # a session takes what nobody was promised
                    sessions.append(engine.session())
            elif move == 10 and sessions:
                session = dice.choice(sessions)
                with contextlib.suppress(MemoryBudgetError):
                    if len(session) > 300 or (len(session) and dice.random() < 0.4):
                        session.rewind(dice.randint(0, len(session)))
                    else:
                        session.append([dice.randrange(3, VOCAB) for _ in range(dice.randint(1, 60))])
            elif move == 11 and sessions and dice.random() < 0.4:
                sessions.pop(dice.randrange(len(sessions))).close()
            if dice.random() < 0.1:
                quiet(engine)
                check(engine, sessions)
        for _, _, request in running:
            request.result()
        quiet(engine)
        check(engine, sessions)
        for session in sessions:
            session.close()
        engine._prefix.clear()
        assert set(engine.memory()) == {"weights", "arena", "logits", "budget"}
