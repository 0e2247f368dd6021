"""A million damaged snapshots: each is refused with a sentence, or is the file that was written."""

from __future__ import annotations

import random
import tempfile
from pathlib import Path

import numpy as np
import pytest

from finback.kv.layout import MAX_DRAFT, plan_layout
from finback.kv.pages import PagePool
from finback.kv.sequence import SequenceState
from finback.kv.snapshot import SnapshotError, identity_of, read, read_state, write_state
from finback.weights.ledger import Ledger
from tests.tiny import TINY

pytestmark = pytest.mark.slow

FILES = 1_000_000
IDENTITY = identity_of({"test": 1})


def mutated(data: bytes, dice: random.Random) -> bytes:
    """One of the ways in which files break, and in which somebody would break them."""
    kind, changed = dice.randrange(8), bytearray(data)
    at = dice.randrange(len(data)) if dice.random() < 0.5 else dice.randrange(min(600, len(data)))
    if kind == 0:
        del changed[at:]
    elif kind == 1:
        changed[at] ^= 1 << dice.randrange(8)
    elif kind == 2:
        changed[at : at + 4] = dice.randbytes(4)
    elif kind == 3:
        changed += dice.randbytes(dice.randrange(1, 50))
    elif kind == 4:  # a number of the header, another of as many digits
        text = changed[:600]
        digits = [i for i, c in enumerate(text) if 48 <= c <= 57]
        changed[dice.choice(digits)] = 48 + dice.randrange(10)
    elif kind == 5:
        changed[12:20] = dice.randbytes(8)
    elif kind == 6:
        length = dice.randrange(1, 64)
        changed[at : at + length] = changed[:length]
    else:
        other = dice.randrange(len(data))
        changed[at], changed[other] = changed[other], changed[at]
    return bytes(changed)


def test_a_million_damaged_files() -> None:
    ledger = Ledger(1 << 30)
    pool = PagePool(plan_layout(TINY, cache_rounding=True, max_draft=MAX_DRAFT), ledger)
    state = SequenceState(pool)
    state.reserve(40)
    state.advance(40)
    dice, refused, reasons = random.Random(0), 0, set()
    with tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as folder:
        path = Path(folder) / "state"
        write_state(path, IDENTITY, list(range(3, 43)), state.checkpoint())
        data = path.read_bytes()
        truth = read(path, IDENTITY)
        used = ledger.in_use
        for i in range(FILES):
            damaged = mutated(data, dice)
            path.write_bytes(damaged)
            try:
                found = read(path, IDENTITY)
            except SnapshotError as error:
                refused += 1
                reasons.add(str(error).split(";")[0][:40])
                continue
            assert damaged == data or bytes(found.pages) == bytes(truth.pages), i
            assert np.array_equal(found.tokens, truth.tokens), i
            tokens, checkpoint = read_state(path, IDENTITY, pool)
            assert len(tokens) == 40
            checkpoint.release()
        assert ledger.in_use == used
    assert refused > 0.85 * FILES  # some changes change nothing
    assert len(reasons) >= 6, reasons
