"""Thousands of damaged model files: each opens or is refused in a sentence. Nothing else: no other exception, no
signal, no large allocation, no long wait."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.tiny import TINY, write_folder
from tests.weights import models

pytestmark = pytest.mark.slow

CHILD = """
import random, resource, shutil, sys, time
from pathlib import Path
from finback.engine.load import open_tokenizer
from finback.errors import FinbackError
from finback.weights.checkpoint import open_checkpoint

kind, good, work, seed, rounds = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]), int(sys.argv[4]), int(sys.argv[5])
rng = random.Random(seed)
target = good if good.is_file() else good / kind
original = target.read_bytes()
place = work if good.is_file() else work / kind
head = min(len(original), 6000)
NUMBERS = [0, 1, 255, 2**31 - 1, 2**31, 2**32 - 1, 2**62, 2**63 - 1, 2**64 - 1]
opened = 0

def mutate():
    data = bytearray(original)
    for _ in range(rng.choice((1, 1, 1, 2, 5))):
        at, how = rng.randrange(min(head, len(data))), rng.randrange(6)
        if how == 0:
            data[at] ^= 1 << rng.randrange(8)
        elif how == 1:
            data[at] = rng.randrange(256)
        elif how == 2:
            size = rng.choice((4, 8))
            data[at : at + size] = rng.choice(NUMBERS).to_bytes(8, "little")[:size]
        elif how == 3:
            del data[at : at + rng.randrange(1, 40)]
        elif how == 4:
            data[at:at] = data[max(0, at - rng.randrange(60)) : at]
        else:
            del data[rng.randrange(len(data)) :]
        if not data:
            data = bytearray(b"G")
    return bytes(data)

base = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
for round in range(rounds):
    data = mutate()
    place.write_bytes(data)
    begun = time.process_time()
    try:
        checkpoint = open_checkpoint(work)
        open_tokenizer(checkpoint)
        opened += 1
    except FinbackError as error:
        assert 10 < len(str(error)) < 400, (round, str(error))
    assert time.process_time() - begun < 5, round
grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - base
assert grown < 200 * 1024, grown
print("opened", opened, "of", rounds)
"""


def fuzz(kind: str, good: Path, work: Path, rounds: int) -> None:
    for seed in (1, 2):
        done = subprocess.run(
            [sys.executable, "-c", CHILD, kind, str(good), str(work), str(seed), str(rounds)],
            capture_output=True,
            text=True,
            timeout=3000,
        )
        assert done.returncode == 0, f"{kind}, seed {seed}: {done.stderr[-3000:]}"
        assert done.stdout.startswith("opened")


def test_gguf(tmp_path: Path) -> None:
    good = models.write_gguf(tmp_path / "good.gguf", TINY)
    fuzz("gguf", good, tmp_path / "work.gguf", 4000)


def test_a_gguf_with_a_vocabulary(tmp_path: Path) -> None:
    from finback.tools.synth import synth

    synth(tmp_path / "good.gguf", "v4-tiny", layers=2, experts=2, vocab=320)
    fuzz("gguf", tmp_path / "good.gguf", tmp_path / "work.gguf", 1500)


@pytest.mark.parametrize("kind", ["model.safetensors", "config.json", "tokenizer.json"])
def test_folder(kind: str, tmp_path: Path) -> None:
    good = write_folder(tmp_path / "good", TINY)
    work = write_folder(tmp_path / "work", TINY)
    fuzz(kind, good, work, 2500)
