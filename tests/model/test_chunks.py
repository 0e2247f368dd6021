"""What a row may depend on: its own sequence's earlier tokens and nothing else. Cases A05 and A07 on the
eager ops.

Canonical arithmetic is compared as bytes, the oracle within rounding. Several sequences of one batch are one
step: each must come out as it does alone. """

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from finback.config import ModelConfig
from finback.reference.arithmetic import Arithmetic
from finback.reference.canonical import Canonical
from finback.reference.oracle import Oracle
from tests.golden import GOLDEN, prompt, weights
from tests.model.run import Model, pieces_of, run, same_bits, worst
from tests.tiny import TINY, with_ratios

LENGTH = 143
SIZES = [1, 2, 3, 4, 7, 8, 15, 16, 17, 64, 143]
ANSWER = 20


def tiny(arithmetic: Arithmetic, config: ModelConfig = TINY) -> Model:
    return Model.of(config, arithmetic, weights(config))


def answers(
    model: Model, ids: np.ndarray, sizes: list[int], answer: int = ANSWER
) -> tuple[np.ndarray, np.ndarray]:
    """The prompt prefilled in chunks of each size, then a greedy answer: last prompt logits [S, V], tokens
    [S, answer].

    All sizes run as sequences of one batch, so steps mix long chunks, short ones and single tokens.
    """
    sequences = [model.sequence() for _ in sizes]
    chunks = [pieces_of(len(ids), size) for size in sizes]
    known: list[list[int]] = [ids.tolist() for _ in sizes]
    done, first = [0] * len(sizes), [np.empty(0)] * len(sizes)
    while min(len(k) for k in known) < len(ids) + answer:
        busy = [i for i in range(len(sizes)) if len(known[i]) < len(ids) + answer]
        counts = [chunks[i].pop(0) if chunks[i] else 1 for i in busy]
        pieces = [
            (sequences[i], done[i], np.array(known[i][done[i] : done[i] + n]))
            for i, n in zip(busy, counts, strict=True)
        ]
        logits, _ = model.step(pieces, list(np.cumsum(counts) - 1))
        for i, n, row in zip(busy, counts, logits, strict=True):
            done[i] += n
            if done[i] >= len(ids):
                known[i].append(int(row.argmax()))
            if done[i] == len(ids):
                first[i] = row
    return np.array(first), np.array(known)[:, len(ids) :]


def test_prefill_split_changes_nothing_in_float64() -> None:
    """A05: every chunk size against one chunk."""
    logits, tokens = answers(tiny(Oracle()), prompt(LENGTH, TINY.vocab_size), SIZES)
    assert worst(logits, logits[-1]) < 1e-10
    assert (tokens == tokens[-1]).all()


def test_prefill_split_changes_no_bit() -> None:
    """A05 with canonical arithmetic: the same bytes for every size, the oracle's tokens, its logits to 1e-4
    relative."""
    ids, sizes = prompt(27, TINY.vocab_size), [1, 3, 8, 17, 27]
    logits, tokens = answers(tiny(Canonical()), ids, sizes, answer=4)
    for row, answer in zip(logits, tokens, strict=True):
        assert same_bits(row, logits[-1])
        assert (answer == tokens[-1]).all()
    expected, oracle_tokens = answers(tiny(Oracle()), ids, [len(ids)], answer=4)
    assert worst(logits[-1], expected[0]) < 1e-4 * np.abs(expected[0]).max()
    assert (tokens[-1] == oracle_tokens[0]).all()


@pytest.mark.parametrize(
    ("config", "chunks"),
    [
        (replace(TINY, cache_rounding=False), [1, 2, 3, 5, 20]),
        # Groups of 128: edges at 127, 129 and 130, one chunk longer than several windows.
        (replace(with_ratios(GOLDEN, (128, 4), 1), cache_rounding=True), [1, 2, 3, 121, 2, 1, 16]),
    ],
    ids=["exact-cache", "rounded-cache"],
)
def test_chunks_give_the_same_bytes_in_every_row(config: ModelConfig, chunks: list[int]) -> None:
    model = tiny(Canonical(), config)
    ids = prompt(sum(chunks), config.vocab_size)
    whole, parts = run(model, ids), run(model, ids, chunks)
    assert same_bits(parts.logits, whole.logits)
    assert same_bits(parts.streams, whole.streams)


def test_a_batch_gives_each_sequence_its_own_bytes() -> None:
    model = tiny(Canonical())
    prompts = [prompt(n, TINY.vocab_size, seed) for seed, n in enumerate((9, 1, 20))]
    alone = [run(model, ids).logits for ids in prompts]
    sequences = [model.sequence() for _ in prompts]
    together, _ = model.step([(s, 0, ids) for s, ids in zip(sequences, prompts, strict=True)])
    assert same_bits(together, np.concatenate(alone))


LAYER_TYPES = {
    "all": TINY,
    "window": with_ratios(TINY, (0, 0), 1),
    "csa": with_ratios(TINY, (4, 4), 0, index_topk=4),
    "hca": with_ratios(TINY, (8, 8), 0),
    "csa-exact-cache": with_ratios(TINY, (4, 4), 0, index_topk=4, cache_rounding=False),
}


@pytest.mark.parametrize("arithmetic", [Oracle(), Canonical()], ids=["oracle", "canonical"])
@pytest.mark.parametrize("name", LAYER_TYPES)
def test_no_row_sees_the_future(name: str, arithmetic: Arithmetic) -> None:
    """A07: changing token 40 of 64 leaves the streams of rows 0..39 as they are, and does change row 40.

    Bit-identical where the order of every sum is fixed. The real numbers' sums are NumPy's, whose order depends on how
    many rows an expert has: 5e-15 was seen on a processor with AVX-512, nothing on one without.
    """
    model = tiny(arithmetic, LAYER_TYPES[name])
    ids = prompt(64, TINY.vocab_size)
    changed = ids.copy()
    changed[40] = (changed[40] + 1) % TINY.vocab_size
    before, after = run(model, ids).streams, run(model, changed).streams
    if isinstance(arithmetic, Canonical):
        assert same_bits(before[:40], after[:40])
    assert worst(before[:40], after[:40]) < 1e-12
    assert worst(before[40], after[40]) > 0.01


@pytest.mark.parametrize("position", [41, 43, 47])
def test_later_rows_do_see_the_change(position: int) -> None:
    """The other half of A07: rows inside and after the changed token's group depend on it in every layer
    type."""
    for config in LAYER_TYPES.values():
        model = tiny(Oracle(), config)
        ids = prompt(64, TINY.vocab_size)
        changed = ids.copy()
        changed[40] = (changed[40] + 1) % TINY.vocab_size
        before, after = run(model, ids).streams, run(model, changed).streams
        assert worst(before[position], after[position]) > 1e-6


def test_logits_only_of_the_rows_asked_for() -> None:
    model = tiny(Canonical())
    ids = prompt(12, TINY.vocab_size)
    whole = run(model, ids).logits
    some, streams = model.step([(model.sequence(), 0, ids)], [3, 11])
    assert same_bits(some, whole[[3, 11]])
    assert len(streams) == 12
