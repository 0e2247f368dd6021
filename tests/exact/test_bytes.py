"""The promise of docs/exactness.md on whole models: the same logit bytes for any chunking, threads, instruction set and
stored format, with cache rounding on and off."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import finback
from finback import native
from finback.tools.synth import synth

LEVELS = [level.name for level in native.levels() if level.supported]
BEST = LEVELS[-1]
TOKENS = 301  # crosses two HCA groups of 128, 75 CSA groups and the window of 128


def ids(n: int, vocab: int) -> list[int]:
    return [int(x) for x in np.random.default_rng(5).integers(3, vocab, n)]


def logits(
    model: str | Path | None,
    n: int,
    *,
    chunks: list[int] | None = None,
    rows: list[int] | None = None,
    threads: int = 1,
    isa: str = BEST,
    rounding: bool = True,
    prefill_chunk: int = 256,
    weights: str = "mapped",
) -> bytes:
    with finback.load(
        model,
        threads=threads,
        isa=isa,
        cache_rounding=rounding,
        context=n,
        prefill_chunk=prefill_chunk,
        weights=weights,
    ) as engine:
        found = engine.logits(ids(n, engine.config.vocab_size), chunks=chunks, rows=rows)
    assert found.dtype == np.float32
    assert np.isfinite(found).all()
    assert len(np.unique(found)) > 1000
    return found.tobytes()


@pytest.fixture(scope="module")
def truth() -> dict[bool, bytes]:
    """One step over the whole prompt, one thread, the scalar kernels."""
    return {r: logits(None, TOKENS, isa="scalar", rounding=r, prefill_chunk=TOKENS) for r in (True, False)}


def ragged(n: int) -> list[int]:
    sizes: list[int] = []
    for size in itertools.cycle([5, 1, 126, 2, 3, 1, 127, 4]):
        sizes.append(min(size, n - sum(sizes)))
        if sum(sizes) == n:
            return sizes
    raise AssertionError


@pytest.mark.parametrize("rounding", [True, False])
@pytest.mark.parametrize(
    "chunks", [[1] * TOKENS, [128, 128, 45], ragged(TOKENS), [3] * 100 + [1]], ids=["ones", "128s", "ragged", "threes"]
)
def test_any_chunking(truth: dict[bool, bytes], chunks: list[int], rounding: bool) -> None:
    assert logits(None, TOKENS, chunks=chunks, rounding=rounding, threads=2) == truth[rounding]


@pytest.mark.parametrize("rounding", [True, False])
@pytest.mark.parametrize("threads", [1, 2, 3, 5])
def test_any_number_of_threads(truth: dict[bool, bytes], threads: int, rounding: bool) -> None:
    assert logits(None, TOKENS, threads=threads, rounding=rounding) == truth[rounding]
    assert logits(None, TOKENS, threads=threads, rounding=rounding, weights="resident") == truth[rounding]
    assert native.pool_workers() >= threads - 1  # a step waits for every worker of its team, so each took part


@pytest.mark.parametrize("isa", LEVELS)
def test_any_level(truth: dict[bool, bytes], isa: str) -> None:
    for weights in ("mapped", "resident"):
        assert logits(None, TOKENS, isa=isa, threads=2, chunks=ragged(TOKENS), weights=weights) == truth[True]


def test_rounding_is_a_setting_of_the_model_not_of_the_machine(truth: dict[bool, bytes]) -> None:
    assert truth[True] != truth[False]


def test_rows_are_the_same_rows(truth: dict[bool, bytes]) -> None:
    width = len(truth[True]) // TOKENS
    rows = [300, 0, 127, 128, 128, -2]
    wanted = b"".join(truth[True][(r % TOKENS) * width : (r % TOKENS + 1) * width] for r in rows)
    assert logits(None, TOKENS, rows=rows) == wanted


def test_a_later_token_changes_no_earlier_row() -> None:
    tokens = ids(200, 4096)
    changed = [*tokens[:150], (tokens[150] + 1) % 4096, *tokens[151:]]
    with finback.load(context=256) as engine:
        before, after = engine.logits(tokens), engine.logits(changed)
    assert before[:150].tobytes() == after[:150].tobytes()
    assert (before[150:] != after[150:]).any(axis=1).all()


FORMATS = [
    ("MXFP4", "Q8_0"),
    ("Q4_0", "Q4_0"),
    ("Q4_K", "Q6_K"),
    ("Q6_K", "Q4_K"),
    ("IQ2_XXS", "Q2_K"),  # with Q8_0, the mix of published q2 files
    ("Q3_K", "IQ4_NL"),
    ("IQ3_XXS", "IQ4_XS"),
    ("IQ1_M", "Q5_K"),
    ("F16", "F16"),
    ("BF16", "BF16"),
    ("F32", "F32"),
    ("folder", "folder"),  # FP8 with 128x128 scales and MXFP4 with a scale plane, as published
]


@pytest.fixture(scope="module", params=FORMATS, ids=["-".join(pair) for pair in FORMATS])
def stored_model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    experts, dense = request.param
    folder = tmp_path_factory.mktemp("formats")
    if experts == "folder":
        synth(folder / "model", "v4-tiny", layers=4, experts=4, vocab=512, seed=7)
        yield folder / "model"
    else:
        path = folder / "model.gguf"
        synth(path, "v4-tiny", layers=4, experts=4, vocab=512, experts_format=experts, dense_format=dense, seed=7)
        yield path


def test_every_stored_format(stored_model: Path) -> None:
    n = 140
    truth = logits(stored_model, n, isa="scalar", prefill_chunk=n)
    for isa in LEVELS:
        for weights in ("mapped", "resident"):
            got = logits(stored_model, n, isa=isa, threads=2, chunks=ragged(n), weights=weights)
            assert got == truth, (isa, weights)
