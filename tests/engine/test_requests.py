"""Requests: many at once, from threads and event loops, cancelled, refused and failing, each on its own."""

from __future__ import annotations

import asyncio
import gc
import json
import multiprocessing
import statistics
import struct
import threading
import time
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import finback
from finback import Sampling
from finback.engine.lanes import MOST_MARKS, checkpoint_lengths
from finback.errors import EngineStateError, MemoryBudgetError, NumericError, RequestError
from tests.tiny import write_folder

STORY = [{"role": "user", "content": "Tell me a story about a fox and a silver bell."}]


@pytest.fixture
def own() -> Iterator[finback.Engine]:
    """An engine of the test's own."""
    with finback.load(context=1024, threads=2) as engine:
        yield engine


def settle(engine: finback.Engine) -> None:
    """Wait until nothing runs and the pages were counted over."""
    deadline = time.monotonic() + 60
    while (stats := engine.stats()).running or stats.reading or stats.waiting:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    time.sleep(0.3)  # the loop counts the pages over after 0.2 s without work


# ---- reading an answer


def test_a_request_is_read_in_a_thread_and_on_event_loops(engine: finback.Engine) -> None:
    expected = engine.generate(STORY, Sampling(seed=3, max_tokens=40))

    async def read() -> tuple[list[int], str]:
        tokens: list[int] = []
        text = ""
        async for event in engine.submit(STORY, Sampling(seed=3, max_tokens=40)):
            tokens += event.token_ids
            text += event.text
        return tokens, text

    async def several() -> list[tuple[list[int], str]]:
        return await asyncio.gather(*(read() for _ in range(4)))

    found: list[Any] = []
    threads = [threading.Thread(target=lambda: found.extend(asyncio.run(several()))) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [(list(expected.token_ids), expected.text)] * 12


def test_the_event_loop_is_not_blocked(engine: finback.Engine) -> None:
    async def run() -> int:
        turns = 0

        async def count() -> None:
            nonlocal turns
            while True:
                await asyncio.sleep(0)
                turns += 1

        task = asyncio.create_task(count())
        answer = await engine.submit(STORY, Sampling(seed=1, max_tokens=50, ignore_eos=True)).result_async()
        task.cancel()
        return turns if len(answer.token_ids) == 50 else 0

    assert asyncio.run(run()) > 50


def test_a_reader_whose_loop_is_gone_harms_nobody(own: finback.Engine) -> None:
    async def leave() -> Any:
        request = own.submit(STORY, Sampling(max_tokens=300, ignore_eos=True))
        async for _ in request:
            break
        return request

    request = asyncio.run(leave())
    assert request.cancelled
    assert own.generate(STORY, Sampling(seed=1, max_tokens=3)).usage.completion_tokens == 3
    settle(own)


def test_progress_of_long_prompts_comes_as_events(own: finback.Engine) -> None:
    request = own.submit(list(range(3, 103)) * 7, Sampling(max_tokens=2))
    done = [event.progress for event in request if event.progress is not None]
    assert done == [(256, 700), (512, 700), (700, 700)]


def test_many_answers_of_one_prompt(engine: finback.Engine) -> None:
    """Case D19: with n, answers differ, the first is that of n = 1, and each is its own."""
    one = engine.generate(STORY, Sampling(seed=7, max_tokens=64))
    four = engine.generate(STORY, Sampling(seed=7, max_tokens=64, n=4))
    assert four.token_ids == one.token_ids
    texts = {four.text, *(other.text for other in four.others)}
    assert len(four.others) == 3
    assert len(texts) > 1
    assert four.usage.completion_tokens == sum(len(a.token_ids) for a in (four, *four.others))
    again = engine.generate(STORY, Sampling(seed=7, max_tokens=64, n=4))
    assert [a.token_ids for a in again.others] == [a.token_ids for a in four.others]


def test_temperatures_and_seeds(engine: finback.Engine) -> None:
    """Case D19."""

    def said(**options: Any) -> tuple[int, ...]:
        return engine.generate(STORY, Sampling(max_tokens=64, **options)).token_ids

    greedy = said(temperature=0)
    assert said(temperature=0) == greedy
    assert said(temperature=1e-6, seed=3) == greedy
    assert said(temperature=2, top_k=1, seed=3) == greedy
    assert said(temperature=1, top_p=0, seed=3) == greedy
    assert said(temperature=1.0, seed=7) == said(temperature=1.0, seed=7) == said(temperature=1.0, seed=7, top_p=1)
    assert said(temperature=1.0, seed=7) != said(temperature=1.0, seed=8)


def test_logprobs_of_prompt_and_answer(engine: finback.Engine) -> None:
    ids = engine.encode(STORY)
    answer = engine.generate(ids, Sampling(temperature=0, max_tokens=5, logprobs=3, prompt_logprobs=2))
    logits = engine.logits([*ids, *answer.token_ids])
    whole = [*ids, *answer.token_ids]
    for t, found in enumerate([*answer.prompt_logprobs, *answer.logprobs]):
        if t == 0:
            assert found is None
            continue
        assert found.token == whole[t]
        assert np.float32(found.logprob) == engine.log_probs(logits[t - 1], [whole[t]])[0]
        likeliest = sorted(range(len(logits[t - 1])), key=lambda i: (-logits[t - 1][i], i))
        assert [i for i, _ in found.top] == likeliest[: len(found.top)]
    assert len(answer.prompt_logprobs) == len(ids)
    assert answer.usage.cached_tokens == 0
    json.dumps([(t.token, t.logprob, t.top) for t in answer.logprobs], allow_nan=False)


# ---- one request does not disturb another


def test_one_too_long_among_eight(own: finback.Engine) -> None:
    """Case D15: seven correct answers, one clean refusal, nothing of one in another."""
    secrets = ["Oslo", "Paris", "Rome", "Madrid", "Berlin", "Vienna", "Lisbon"]
    asked = [[{"role": "user", "content": f"Repeat the word {secret}."}] for secret in secrets]
    alone = [own.generate(prompt, Sampling(temperature=0, max_tokens=30)).text for prompt in asked]
    running = [own.submit(prompt, Sampling(temperature=0, max_tokens=30)) for prompt in asked[:4]]
    with pytest.raises(RequestError, match="no room for an answer in a context of 1024"):
        own.submit("long " * 3000)
    running += [own.submit(prompt, Sampling(temperature=0, max_tokens=30)) for prompt in asked[4:]]
    together = [request.result().text for request in running]
    assert together == alone
    for i, text in enumerate(together):
        assert not [secret for j, secret in enumerate(secrets) if j != i and secret in text]


def test_a_broken_row_fails_its_request_alone(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "bad")
    file = folder / "model.safetensors"
    raw = bytearray(file.read_bytes())
    (size,) = struct.unpack_from("<Q", raw)
    start = json.loads(raw[8 : 8 + size])["embed.weight"]["data_offsets"][0] + 8 + size + 4 * 64 * 77
    raw[start : start + 4] = struct.pack("<f", float("nan"))
    file.write_bytes(raw)
    with finback.load(folder, threads=1, context=256) as engine:
        good = engine.generate([5, 6, 7], Sampling(temperature=0, max_tokens=8, ignore_eos=True, logit_bias={77: -100}))
        options = Sampling(temperature=0, max_tokens=8, ignore_eos=True, logit_bias={77: -100})
        neighbours = [engine.submit([5, 6, 7], options) for _ in range(3)]
        bad = engine.submit([5, 77, 6], options)
        with pytest.raises(NumericError):
            bad.result()
        assert [request.result().token_ids for request in neighbours] == [good.token_ids] * 3
        settle(engine)


# ---- limits


def test_answers_end_at_the_limit_asked_or_possible(own: finback.Engine) -> None:
    """Case D07: no limit is up to the context, a huge one is clamped to it, nonsense is refused."""
    ids = list(range(3, 503))
    room = 1024 - len(ids)
    for limit in (None, 10**9):
        answer = own.generate(ids, Sampling(seed=1, ignore_eos=True, max_tokens=limit))
        assert (answer.usage.completion_tokens, answer.finish_reason) == (room, "length")
    assert own.generate(ids, Sampling(seed=1, ignore_eos=True, max_tokens=5)).usage.completion_tokens == 5
    for nonsense in (0, -1, 1.5, "10"):
        with pytest.raises(RequestError, match="max_tokens is"):
            Sampling(max_tokens=nonsense)  # type: ignore[arg-type]


@pytest.mark.parametrize("context", [1, 2, 15, 16, 17, 127, 128, 129, 1023, 1024, 1025, 4096])
def test_odd_context_sizes(context: int) -> None:
    """Case E09."""
    with finback.load(context=context, threads=1) as engine:
        if context == 1:
            with pytest.raises(RequestError, match="no room for an answer in a context of 1"):
                engine.generate([5])
            return
        answer = engine.generate([5], Sampling(temperature=0, ignore_eos=True, max_tokens=min(context - 1, 140)))
        assert len(answer.token_ids) == min(context - 1, 140)


@pytest.mark.parametrize("context", [0, -1, 2**31, 2**40, "8k", True, 1.0])
def test_contexts_that_are_none(context: Any) -> None:
    with pytest.raises(RequestError, match="context is"):
        finback.load(context=context)


def test_memory_grows_with_the_context() -> None:
    planned = []
    for context in (2, 64, 1024, 16384, 65536 // 4):
        with finback.load(context=context, threads=1) as engine:
            planned.append(sum(size for name, size in engine.memory().items() if name != "budget"))
    assert planned == sorted(planned)


def test_what_can_never_fit_is_refused_with_the_numbers() -> None:
    with finback.load(context=4096, threads=1, memory="100GiB", prefix_cache=0) as engine:
        base = sum(size for name, size in engine.memory().items() if name != "budget")
        room = engine._model.promised_bytes(10, 1500, 1)
    with finback.load(context=4096, threads=1, memory=base + room, prefix_cache=0) as engine:
        with pytest.raises(MemoryBudgetError, match=r"can grow to 4096 tokens in 1 answer, which need") as refused:
            engine.submit([5] * 10, Sampling(max_tokens=4086))
        assert refused.value.budget == base + room
        few = engine.generate([5] * 10, Sampling(max_tokens=20, ignore_eos=True))
        assert len(few.token_ids) == 20
        open_end = engine.generate([5] * 10, Sampling(ignore_eos=True, temperature=0))
        assert open_end.finish_reason == "length"
        assert 20 < len(open_end.token_ids) < 4086, "as far as the memory reaches"
        # What fits one by one waits its turn instead of failing.
        limit = len(open_end.token_ids)
        running = [engine.submit([7, i], Sampling(max_tokens=limit // 2, ignore_eos=True)) for i in range(3, 9)]
        assert [len(request.result().token_ids) for request in running] == [limit // 2] * 6
        settle(engine)


# ---- cancelling


def test_cancelling_while_reading_waiting_and_drawing(own: finback.Engine) -> None:
    reading = own.submit(list(range(3, 203)) * 5, Sampling(max_tokens=20))
    reading.cancel()
    events = list(reading)
    assert events[-1].finish_reason == "cancelled"
    drawing = own.submit(STORY, Sampling(max_tokens=500, ignore_eos=True))
    seen = 0
    for event in drawing:
        seen += len(event.token_ids)
        if seen == 3:
            drawing.cancel()
            drawing.cancel()
    assert event.finish_reason == "cancelled"
    assert event.usage is not None
    assert 3 <= event.usage.completion_tokens < 500
    settle(own)
    again = own.generate(STORY, Sampling(max_tokens=5))
    assert again.usage.cached_tokens == again.usage.prompt_tokens - 1, "what was computed is kept"


def test_leaving_a_stream_cancels_it(own: finback.Engine) -> None:
    events = own.stream(STORY, Sampling(max_tokens=800, ignore_eos=True))
    next(events)
    events.close()
    settle(own)
    assert own.stats().drawn < 400


def test_closing_ends_what_runs_with_an_error() -> None:
    engine = finback.load(context=1024, threads=1)
    running = [engine.submit(STORY, Sampling(max_tokens=900, ignore_eos=True)) for _ in range(3)]
    next(iter(running[0]))
    engine.close()
    for request in running[1:]:
        with pytest.raises(EngineStateError, match="closed before this request was answered"):
            request.result()
    with pytest.raises(EngineStateError, match="closed"):
        engine.submit(STORY)
    engine.close()


def test_an_engine_nobody_holds_lets_its_thread_go() -> None:
    engine = finback.load(context=256, threads=1)
    engine.generate(STORY, Sampling(max_tokens=2))
    thread, gone = engine._loop._thread, weakref.ref(engine)
    del engine
    gc.collect()
    assert gone() is None
    thread.join(10)
    assert not thread.is_alive()


def _in_child(engine: finback.Engine, answer: Any) -> None:
    try:
        engine.submit([5, 6])
    except EngineStateError as error:
        answer.put(str(error))


def test_a_forked_child_is_told_to_load_again(own: finback.Engine) -> None:
    own.generate(STORY, Sampling(max_tokens=2))
    context = multiprocessing.get_context("fork")
    answer = context.Queue()
    child = context.Process(target=_in_child, args=(own, answer))
    child.start()
    assert "load after fork" in answer.get(timeout=30)
    child.join()


# ---- prefixes


def turns(*texts: str) -> list[dict[str, str]]:
    return [{"role": ("user", "assistant")[i % 2], "content": text} for i, text in enumerate(texts)]


def test_regenerating_and_editing_reuse_what_comes_before_the_change(own: finback.Engine) -> None:
    system = {"role": "system", "content": "You are a storyteller. " * 8}
    talk = [system, *turns("Tell me of a fox.", "There was a fox.", "And then?", "It slept.", "Where?")]
    first = own.generate(talk, Sampling(max_tokens=8))
    assert first.usage.cached_tokens == 0
    assert "nothing kept" in first.usage.cache
    regenerated = own.generate(talk, Sampling(max_tokens=8, seed=9))
    assert regenerated.usage.cached_tokens == regenerated.usage.prompt_tokens - 1
    # An edit of the message in the middle: all before that message is there.
    edited = [dict(message) for message in talk]
    edited[3]["content"] = "And what came next?"
    before = len(own.encode(talk[:3])) - len(own.encode([*talk[:2], {"role": "user", "content": ""}])) + 1
    marks = own._encode(talk, False, None, ()).marks
    answer = own.generate(edited, Sampling(max_tokens=8))
    differs = next(i for i, (a, b) in enumerate(zip(own.encode(talk), own.encode(edited), strict=False)) if a != b)
    assert answer.usage.cached_tokens >= max(mark for mark in marks if mark <= differs), (before, answer.usage)
    assert "differs" in answer.usage.cache


def test_the_next_turn_starts_from_the_answer(own: finback.Engine) -> None:
    talk = turns("Tell me of a fox and a silver bell.")
    first = own.generate(talk, Sampling(temperature=0))
    assert first.finish_reason == "stop"
    talk += [{"role": "assistant", "content": first.text}, {"role": "user", "content": "And then?"}]
    second = own.generate(talk, Sampling(max_tokens=5))
    assert second.usage.cached_tokens >= first.usage.prompt_tokens + first.usage.completion_tokens - 1


def test_a_warm_turn_is_much_cheaper_than_a_cold_one() -> None:
    """Case F03: the first token of a follow-up of 40 tokens after 3,000, in rows computed and in time."""
    with finback.load(context=8192, threads=2) as engine:
        cold, warm, rows = [], [], []
        for i in range(5):
            prompt = [3 + (7 * t + i) % 900 for t in range(4000)]
            cold.append(engine.generate(prompt, Sampling(max_tokens=1)).timings.prefill_s)
            before = engine.stats().rows["prefill"]
            warm.append(engine.generate(prompt + [5] * 40, Sampling(max_tokens=1)).timings.prefill_s)
            rows.append(engine.stats().rows["prefill"] - before)
        assert rows == [41] * 5 or max(rows) <= 41
        assert statistics.median(warm) <= 0.1 * statistics.median(cold)


def test_a_small_cache_is_kept_small() -> None:
    with finback.load(context=2048, threads=1, prefix_cache="2MiB") as engine:
        for i in range(30):
            engine.generate([3 + (i * 31 + t) % 500 for t in range(300)], Sampling(max_tokens=3))
        stats = engine.stats()
        assert stats.prefix is not None
        assert stats.prefix.evictions > 0
        assert engine._prefix.nbytes <= 2 << 20
        settle(engine)


def test_marks_are_thinned_out_in_long_conversations() -> None:
    assert checkpoint_lengths(range(100), [1, 20, 50, 98], 0) == [1, 20, 50]
    assert checkpoint_lengths(range(100), [1, 20, 50, 98], 20) == [50]
    assert checkpoint_lengths(range(5000), [], 0) == [2048, 4096]
    assert checkpoint_lengths(range(5000), [], 2048) == [4096]
    marks = list(range(1, 20000, 40))
    kept = checkpoint_lengths(range(20000), marks, 0)
    assert len(kept) <= 20000 // 512 + MOST_MARKS + 10
    assert kept[0] == 1
    assert kept[-1] == max(mark for mark in marks if mark < 19999)


# ---- numbers


def test_stats_tell_what_happened(own: finback.Engine) -> None:
    before = own.stats()
    assert (before.running, before.drawn, before.steps["decode"]) == (0, 0, 0)
    running = [own.submit(STORY, Sampling(seed=i, max_tokens=30, ignore_eos=True)) for i in range(4)]
    for request in running:
        request.result()
    settle(own)
    stats = own.stats()
    assert stats.drawn == 120
    assert stats.rows["decode"] == 4 * 29
    assert (stats.waiting, stats.reading, stats.running) == (0, 0, 0)
    assert stats.memory == own.memory()
    assert stats.memory.get("promised", 0) == 0
    assert sum(step.rows for step in stats.last_steps) == stats.rows["prefill"] + stats.rows["decode"]


def test_settings_are_checked() -> None:
    for name, value in (
        ("prefill_share", 0.0), ("prefill_share", True), ("max_stall", -1), ("max_batch", 0), ("max_batch", 300),
        ("prefix_cache", "much"), ("prefix_cache", -5),
    ):  # fmt: skip
        with pytest.raises(RequestError, match=name):
            finback.load(**{name: value})
    with finback.load(threads=1) as engine:
        for priority in (101, -101, 1.5, True, "high"):
            with pytest.raises(RequestError, match="priority is"):
                engine.submit(STORY, priority=priority)  # type: ignore[arg-type]


def test_several_engines_take_turns() -> None:
    """They share the pool of threads; each answers as if it were alone, and none waits for the end of the other."""
    with finback.load(context=512, threads=2) as one, finback.load(context=512, threads=1, prefill_chunk=20) as two:
        options = [Sampling(seed=i, max_tokens=60, ignore_eos=True) for i in range(4)]
        alone = [one.generate(STORY, option).token_ids for option in options]
        running = [engine.submit(STORY, option) for option in options for engine in (one, two)]
        found = [request.result().token_ids for request in running]
        assert found == [tokens for tokens in alone for _ in range(2)]
        spans = [[step.begun for step in engine.stats().last_steps][-60:] for engine in (one, two)]
        assert spans[0][0] < spans[1][-1]
        assert spans[1][0] < spans[0][-1]
