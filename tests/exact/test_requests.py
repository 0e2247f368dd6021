"""The promise on requests: tokens and logits of each alone are those it has among any neighbours, with any chunks and
threads, from any kept prefix, and in any fork. Byte for byte."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import pytest

import finback
from finback import Sampling
from tests.engine.spy import Draws, drawn_logits

CONTEXT = 2048


@dataclass(frozen=True)
class Asked:
    """A request: token ids and how its answers are drawn."""

    ids: tuple[int, ...]
    sampling: Sampling


def words(engine: finback.Engine, seed: int, n: int) -> list[int]:
    dice = random.Random(seed)
    return [dice.randrange(3, engine.config.vocab_size) for _ in range(n)]


def asked(engine: finback.Engine) -> list[Asked]:
    """Prompts that share prefixes which end on, before and behind the borders of compressed groups (4, 128), drawn in
    every way."""
    stem = words(engine, 1, 700)
    kinds: list[dict[str, Any]] = [
        {"temperature": 0.0},
        {"temperature": 1.0, "seed": 5},
        {"temperature": 1.3, "top_p": 0.9, "top_k": 40, "seed": 6},
        {"temperature": 0.8, "min_p": 0.05, "repetition_penalty": 1.2, "presence_penalty": 0.5, "seed": 7},
        {"temperature": 1.0, "seed": 8, "n": 3, "frequency_penalty": 0.7, "logit_bias": {17: 3.0, 90: -5.0}},
        {"temperature": 0.0, "logprobs": 3, "min_tokens": 9},
    ]
    lengths = [5, 127, 128, 129, 131, 255, 256, 257, 384, 511, 512, 515, 641]
    found = []
    for i, length in enumerate(lengths):
        tail = words(engine, 100 + i, 1 + i % 9)
        sampling = Sampling(max_tokens=10 + i, ignore_eos=True, **kinds[i % len(kinds)])
        found.append(Asked((*stem[:length], *tail), sampling))
    # What the model copies, drafts get right.
    copied = [{"role": "user", "content": "Copy this text: 3201 2033 5179 2931 9117 8364 8737 7219"}]
    found.append(Asked(tuple(engine.encode(copied)), Sampling(temperature=0.0, max_tokens=120, ignore_eos=True)))
    return found


def answers(engine: finback.Engine, requests: list[Asked]) -> list[tuple[tuple[int, ...], ...]]:
    """All at once."""
    running = [engine.submit(list(request.ids), request.sampling) for request in requests]
    whole = [request.result() for request in running]
    return [(answer.token_ids, *(other.token_ids for other in answer.others)) for answer in whole]


@pytest.fixture(scope="module")
def truth() -> tuple[list[Asked], list[tuple[tuple[int, ...], ...]], Draws]:
    """Each alone, one thread, nothing kept between them."""
    with drawn_logits() as seen, finback.load(context=CONTEXT, threads=1, prefix_cache=0) as engine:
        requests = asked(engine)
        found = [answers(engine, [request])[0] for request in requests]
    assert len(seen) == sum(len(tokens) for request in found for tokens in request)
    return requests, found, seen


@pytest.mark.parametrize(
    ("threads", "chunk", "batch"), [(1, 256, 64), (2, 64, 64), (3, 37, 5), (2, 256, 16), (5, 128, 3)]
)
def test_neighbours_chunks_and_threads(
    truth: tuple[list[Asked], list[tuple[tuple[int, ...], ...]], Draws], threads: int, chunk: int, batch: int
) -> None:
    requests, expected, logits = truth
    order = list(range(len(requests)))
    random.Random(chunk).shuffle(order)
    options: dict[str, Any] = {"threads": threads, "prefill_chunk": chunk, "max_batch": batch, "max_stall": 0.01}
    with drawn_logits() as seen, finback.load(context=CONTEXT, prefix_cache=0, **options) as engine:
        found = answers(engine, [requests[i] for i in order])
        steps = engine.stats().last_steps
    assert [expected[i] for i in order] == found
    assert seen == logits
    most = max(step.sequences for step in steps if step.kind == "decode")
    assert most >= min(batch, 3), "the requests did not run together: this test shows nothing"


@pytest.mark.parametrize("threads", [1, 2])
def test_kept_prefixes(truth: tuple[list[Asked], list[tuple[tuple[int, ...], ...]], Draws], threads: int) -> None:
    """Twice the same requests, and the second time almost nothing is computed."""
    requests, expected, logits = truth
    with drawn_logits() as seen, finback.load(context=CONTEXT, threads=threads) as engine:
        assert answers(engine, requests) == expected
        first = engine.stats()
        for request in requests:
            running = engine.submit(list(request.ids), request.sampling)
            answer = running.result()
            assert answer.usage.cached_tokens == len(request.ids) - 1
        # And from the middle of what is kept: everything shares a stem with something longer.
        assert answers(engine, requests[::-1]) == expected[::-1]
        second = engine.stats()
    assert seen == logits
    assert first.prefix is not None
    assert second.prefix is not None
    assert second.prefix.hits >= first.prefix.hits + 2 * len(requests)
    assert second.rows["prefill"] - first.rows["prefill"] == 2 * len(requests)


def test_prefixes_of_other_requests(
    truth: tuple[list[Asked], list[tuple[tuple[int, ...], ...]], Draws],
) -> None:
    """A checkpoint of one request starts another: at borders of groups, between them, and after taking rows back."""
    requests, expected, logits = truth
    reused = []
    with finback.load(context=CONTEXT, threads=2) as engine:
        for request in requests:
            for cut in (4, 7, 128, 129, 130, 256, 300):
                if cut < len(request.ids):
                    engine.prefill(list(request.ids[:cut]))
        with drawn_logits() as seen:
            for request, tokens in zip(requests, expected, strict=True):
                running = engine.submit(list(request.ids), request.sampling)
                answer = running.result()
                reused.append(answer.usage.cached_tokens)
                assert (answer.token_ids, *(other.token_ids for other in answer.others)) == tokens
    assert seen == logits
    assert {128, 129, 130, 256} & set(reused), reused
    assert len(set(reused)) >= 6


def test_cancelled_and_started_again(
    truth: tuple[list[Asked], list[tuple[tuple[int, ...], ...]], Draws],
) -> None:
    """Requests that are dropped in the middle leave prefixes behind, and no trace in anybody's answer."""
    requests, expected, logits = truth
    with drawn_logits() as seen, finback.load(context=CONTEXT, threads=2, prefill_chunk=48) as engine:
        for i, request in enumerate(requests):
            running = engine.submit(list(request.ids), request.sampling)
            for count, _ in enumerate(running):
                if count == i:
                    running.cancel()
        assert answers(engine, requests) == expected
    assert {key: seen[key] for key in logits} == logits


@pytest.mark.parametrize(("mode", "kept"), [("lookup", 0), ("mtp", 0), ("auto", None)])
def test_speculation(
    truth: tuple[list[Asked], list[tuple[tuple[int, ...], ...]], Draws],
    mode: str,
    kept: int | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Drafts are right or taken back, and nobody can tell. Every draw is made from the logits of plain decoding. The
    gate stays open, whatever drafts cost on the machine of the day."""
    from finback.engine.speculate import Gate

    monkeypatch.setattr(Gate, "open", property(lambda self: True))
    requests, expected, logits = truth
    options: dict[str, Any] = {"speculation": mode, "prefix_cache": kept, "threads": 2, "prefill_chunk": 100}
    with drawn_logits() as seen, finback.load(context=CONTEXT, **options) as engine:
        for lane in ("alone", "together"):
            found = [answers(engine, [request])[0] for request in requests] if lane == "alone" else None
            found = found or answers(engine, requests)
            assert found == expected
        stats = engine.stats()
    assert seen == logits
    assert stats.drafted > stats.accepted > 0, "no draft was right, or none was wrong: this test shows nothing"


def test_drafts_right_and_wrong_at_every_border_of_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    """A drafter that knows the answer and lies in every way: 0 to 3 right drafts, then wrong ones, at every place of
    the groups of 4 and of 128."""
    from finback.engine.speculate import Gate, Speculation
    from finback.kv.sequence import SequenceState

    with finback.load(context=CONTEXT, threads=1, prefix_cache=0) as plain, drawn_logits() as logits:
        stem = words(plain, 9, 100)
        option = Sampling(temperature=1.0, seed=3, max_tokens=300, ignore_eos=True)
        expected = plain.generate(stem, option).token_ids
    said = 0
    taken_back: set[int] = set()
    rewind = SequenceState.rewind

    def propose(self: Speculation, most: int) -> list[int]:
        right = (said // 5 + said) % 4
        coming = [*expected[said + 1 : said + 1 + right], *(t + 1 for t in expected[said + 1 + right :])]
        return coming[:most]

    def extend(self: Speculation, tokens: list[int]) -> None:
        nonlocal said
        said += len(tokens)

    def noted(self: SequenceState, length: int) -> None:
        taken_back.update(range(length, self.length))
        rewind(self, length)

    monkeypatch.setattr(Speculation, "propose", propose)
    monkeypatch.setattr(Speculation, "extend", extend)
    monkeypatch.setattr(Gate, "judge", lambda *_: None)
    monkeypatch.setattr(SequenceState, "rewind", noted)
    said = -1  # the first token is drawn from the prompt
    with (
        drawn_logits() as seen,
        finback.load(context=CONTEXT, threads=1, prefix_cache=0, speculation="lookup") as engine,
    ):
        assert engine.generate(stem, option).token_ids == expected
        stats = engine.stats()
    assert seen == logits
    assert stats.accepted > 100
    assert stats.drafted - stats.accepted > 100
    assert {t % 4 for t in taken_back} == {0, 1, 2, 3}
    assert len({t % 128 for t in taken_back} & {126, 127, 0, 1}) >= 2, sorted(taken_back)
