"""Texts that were encoded before have the same ids, within a budget; tokens drawn before are written as they were."""

from __future__ import annotations

import pytest

import finback
from finback.text.messages import AssistantMessage, ToolCall, UserMessage
from finback.text.prompt import Control, Prompt, Sampled, Text
from finback.text.render import render
from finback.text.token_cache import TokenCache
from finback.text.tokenizer import Tokenizer


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    with finback.load(context=64) as engine:
        return engine.tokenizer


def test_the_same_ids(tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = ["Once upon a time there was a little fox. " * 3, "short", "x" * 50, "Once"]
    prompt = Prompt(tuple(s for text in (*texts, texts[0]) for s in (Text(text), Control("<｜User｜>"))), (1, 3))
    cache = TokenCache(1 << 20)
    expected = tokenizer.encode_prompt(prompt)
    assert tokenizer.encode_prompt(prompt, cache) == expected
    encoded: list[str] = []
    monkeypatch.setattr(
        Tokenizer, "_encode_texts", lambda self, texts: encoded.extend(texts) or [[7] for _ in texts]
    )
    ids = tokenizer.encode_prompt(prompt, cache).ids
    assert encoded == ["short", "Once"], "long texts are remembered"
    assert len(ids) < len(expected.ids)


def test_the_budget_holds() -> None:
    cache = TokenCache(10_000)
    texts = [f"{i:04}" * 100 for i in range(100)]
    for text in texts:
        cache.keep({text: list(range(100))})
        assert cache.nbytes <= 10_000
        assert cache.find([texts[0]]), "what is used stays"
    assert set(cache.find(texts)) >= {texts[0], texts[-1]}
    assert len(cache.find(texts)) < 20
    cache.keep({"y" * 100_000: [1]})
    assert cache.nbytes <= 10_000
    cache.clear()
    assert (cache.nbytes, cache.find(texts)) == (0, {})


def test_drawn_tokens_are_written_as_they_were(tokenizer: Tokenizer) -> None:
    drawn = Sampled((11, 12, 13), "drawn")
    calls = (ToolCall("c", "f", "{}"),)
    turn = AssistantMessage("said", "thought", calls, drawn)
    messages = [UserMessage("a"), turn, UserMessage("b")]
    from finback.text.messages import ToolDefinition

    kept = render(messages, tools=[ToolDefinition("f")], thinking=True)
    assert drawn in kept.segments
    assert "said" not in kept.text
    assert [11, 12, 13] in [tokenizer.encode_prompt(kept).ids[i : i + 3] for i in range(500)]
    assert drawn not in render(messages, thinking=True).segments, "without tools earlier thinking goes"
    plain = AssistantMessage("said", None, calls, drawn)
    chat = render([UserMessage("a"), plain, UserMessage("b")], thinking=False)
    assert chat.segments[chat.segments.index(drawn) - 1] == Control("</think>")
    opened = render([UserMessage("a"), plain], thinking=False, continue_last=True)
    assert drawn not in opened.segments
