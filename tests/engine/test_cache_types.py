"""Cases A13 and A15: what the kind of cache and the level of kernels may change of an answer."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest

import finback
from finback import Sampling, native
from finback.errors import PlatformError

TEXT = (
    "Once upon a time there was a shy fox named Pip. He lived with his grandmother in a small den. It was a cold and "
    "misty morning. One evening, Pip was on the way to the beach when the sky grew dark. Rain poured down. "
)
LEVELS = {level.name: level.supported for level in native.levels()}

PERPLEXITY_BOUND = 0.01
"""Of rounded rows against rows in full precision, over 300 tokens: the model was trained with rounding, and differs by
under 0.1 % here."""


def perplexity(ids: list[int], rounding: bool) -> float:
    with finback.load(cache_rounding=rounding, threads=1, context=1024) as engine:
        logits = engine.logits(ids)
        assert np.isfinite(logits).all()
        losses = [engine.log_probs(logits[t], [ids[t + 1]])[0] for t in range(len(ids) - 1)]
    return float(np.exp(-np.mean(losses)))


def test_rounded_rows_cost_little() -> None:
    with finback.load(threads=1, context=1024) as engine:
        prompt = engine.encode(TEXT)
        greedy = engine.generate(prompt, Sampling(temperature=0, max_tokens=300, ignore_eos=True)).token_ids
    rounded, full = perplexity([*prompt, *greedy], True), perplexity([*prompt, *greedy], False)
    assert rounded != full
    assert abs(rounded / full - 1) < PERPLEXITY_BOUND


def test_every_level_says_the_same() -> None:
    said = {}
    for name, supported in LEVELS.items():
        if not supported:
            with pytest.raises(PlatformError, match=f"isa is '{name}', which this machine cannot run"):
                finback.load(isa=name)
            continue
        with finback.load(isa=name, threads=1, context=512) as engine:
            said[name] = engine.generate(TEXT, Sampling(temperature=0, max_tokens=50, ignore_eos=True)).token_ids
    assert len(said) >= 2
    assert len(set(said.values())) == 1


@pytest.mark.parametrize("name", [*LEVELS, "avx3"])
def test_a_level_from_outside_never_ends_in_a_signal(name: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "finback.cli.main", "run", "--raw", "-p", "a", "--max-tokens", "1"],
        env=os.environ | {"FINBACK_ISA": name},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == (0 if LEVELS.get(name) else 2)
    assert ("isa is" in done.stderr) == (not LEVELS.get(name))
    assert "Traceback" not in done.stderr
