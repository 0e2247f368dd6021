"""What ends an answer: stop strings after thinking only, and what it was is told."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import finback
from finback.engine.engine import Engine
from finback.engine.writer import Writer


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    with finback.load(context=256) as opened:
        yield opened


def told(writer: Writer, ids: list[int]) -> str:
    return "".join(writer.write(token) for token in ids if not writer.stopped) + writer.finish()


def test_stop_strings_begin_after_thinking(engine: Engine) -> None:
    tokenizer = engine.tokenizer
    close = tokenizer.control_id("</think>")
    ids = [*tokenizer.encode("the fox thinks"), close, *tokenizer.encode("a fox said")]
    assert told(Writer(tokenizer, ("fox",), 0, close), ids) == "the fox thinks</think>a "
    assert told(Writer(tokenizer, ("fox",), 0), ids) == "the "
    assert told(Writer(tokenizer, ("thinks</think>a",), 0, close), ids) == "the fox thinks</think>a fox said"


def test_events_say_what_ended_an_answer(engine: Engine) -> None:
    plain = finback.Sampling(temperature=0, max_tokens=12)
    whole = engine.generate("Once upon a time", plain)
    assert [e.stop for e in engine.submit("Once upon a time", plain)][-1] is None
    word = whole.text[4:9]
    *_, last = engine.submit("Once upon a time", finback.Sampling(temperature=0, max_tokens=12, stop=["zzz", word]))
    assert (last.finish_reason, last.stop) == ("stop", word)
    token = whole.token_ids[3]
    ids = finback.Sampling(temperature=0, max_tokens=12, stop_token_ids=[token], logprobs=1)
    *events, last = engine.submit("Once upon a time", ids)
    assert (last.finish_reason, last.stop, last.token_ids) == ("stop", None, ())
    assert last.end is not None
    assert (last.end.token, last.end.rank) == (token, 1)
    assert all(event.end is None for event in events)


def test_a_prompt_that_is_encoded_already(engine: Engine) -> None:
    from finback.engine.engine import Encoded

    greedy = finback.Sampling(temperature=0, max_tokens=5)
    ids = engine.encode([{"role": "user", "content": "Hi"}])
    assert engine.generate(Encoded(ids, [3]), greedy).token_ids == engine.generate(ids, greedy).token_ids
    with pytest.raises(finback.RequestError, match="token"):
        engine.submit(Encoded([5, 10**7]))
