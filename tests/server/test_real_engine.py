"""The server above the real engine with the embedded model: tool choice is enforced, agents' prefixes are kept, and
requests do not disturb each other. Cases D13, D15, D19."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from typing import Any, cast

import pytest

import finback
from finback.tools.scripted import ScriptedEngine
from tests.server.running import TOOL, Running, chat, running

OTHER = {"type": "function", "function": {"name": "wait", "parameters": {"type": "object", "properties": {}}}}


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with running(cast(ScriptedEngine, finback.load(context=2048))) as found:
        yield found


def asked(server: Running, *messages: Any, **more: Any) -> Any:
    answer = server.post("/v1/chat/completions", chat(*messages, **more))
    assert answer.status_code == 200, answer.text
    return answer.json()


@pytest.mark.parametrize("thinking", [True, False])
@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "look_up"}}])
def test_a_call_that_has_to_be_made(server: Running, thinking: bool, choice: Any) -> None:
    mode = {"type": "enabled", "budget_tokens": 10} if thinking else {"type": "disabled"}
    names = set()
    for seed in range(4):
        body = {"tools": [OTHER, TOOL], "tool_choice": choice, "temperature": 1.5, "seed": seed, "max_tokens": 300}
        whole = asked(server, "Hi", thinking=mode, **body)["choices"][0]
        for call in whole["message"].get("tool_calls", ()) if whole["finish_reason"] == "tool_calls" else ():
            names.add(call["function"]["name"])
            arguments = json.loads(call["function"]["arguments"])
            if call["function"]["name"] == "look_up":
                assert isinstance(arguments["place"], str)
                assert isinstance(arguments.get("days", 1), int)
    assert names
    if choice != "required":
        assert names == {"look_up"}


def test_no_call_where_none_may_be(server: Running) -> None:
    """The model would call: this is what it was trained on."""
    for seed in range(4):
        body = {"tools": [TOOL], "tool_choice": "none", "temperature": 1, "seed": seed, "max_tokens": 80}
        message = asked(server, "What is the weather in Oslo?", thinking={"type": "disabled"}, **body)["choices"][0]
        assert "tool_calls" not in message["message"]
        assert "DSML" not in (message["message"]["content"] or "")


def test_a_loop_of_an_agent(server: Running) -> None:
    """Each turn computes what is new."""
    messages: list[Any] = [{"role": "system", "content": "Rules. " * 100}, {"role": "user", "content": "Go"}]
    body = {"tools": [TOOL], "tool_choice": "required", "parallel_tool_calls": False, "max_tokens": 200}
    for turn in range(4):
        found = asked(server, *messages, thinking={"type": "disabled"}, seed=turn, **body)
        usage, choice = found["usage"], found["choices"][0]
        if choice["finish_reason"] != "tool_calls":
            continue  # it talked until its limit
        if turn and len(messages) > 2:
            assert usage["prompt_tokens"] - usage["prompt_tokens_details"]["cached_tokens"] < 100
        call = choice["message"]["tool_calls"][0]
        call["function"]["arguments"] = json.dumps(json.loads(call["function"]["arguments"]), indent=3)
        messages += [choice["message"], {"role": "tool", "tool_call_id": call["id"], "content": f"result {turn}"}]
    assert len(messages) > 3


def test_temperature_and_seed(server: Running) -> None:
    def said(**more: Any) -> list[str]:
        found = asked(server, "Tell me a story.", thinking={"type": "disabled"}, max_tokens=30, **more)
        return [choice["message"]["content"] for choice in found["choices"]]

    assert said(temperature=0) == said(temperature=0) == said(temperature=1e-6, seed=1) == said(top_k=1, temperature=2)
    assert said(temperature=1, seed=7) == said(temperature=1, seed=7) != said(temperature=1, seed=8)
    assert len(set(said(temperature=1, seed=7, n=4))) > 1


def test_requests_do_not_disturb_each_other(server: Running) -> None:
    words = ["zebra", "violin", "copper", "island", "pepper", "rocket", "winter"]
    found: dict[str, Any] = {}

    def ask(word: str, text: str) -> None:
        found[word] = server.post("/v1/chat/completions", chat(text, thinking={"type": "disabled"}, temperature=0))

    threads = [threading.Thread(target=ask, args=(w, f"Repeat after me: {w} {w}")) for w in words]
    threads.append(threading.Thread(target=ask, args=("long", "too long " * 5000)))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (found["long"].status_code, found["long"].json()["error"]["code"]) == (400, "context_length_exceeded")
    for word in words:
        said = found[word].json()["choices"][0]["message"]["content"]
        assert not any(other in said for other in words if other != word)


def test_filling_in_and_scoring(server: Running) -> None:
    body = {"prompt": "def add(a, b):\n    ", "suffix": "\n    return c", "max_tokens": 5}
    assert server.post("/v1/completions", body).status_code == 200
    ids = server.post("/tokenize", {"content": "Once upon a time there was a fox"}).json()["tokens"]
    scored = {"prompt": [ids], "max_tokens": 1, "logprobs": 1, "echo": True, "temperature": 0}
    logprobs = server.post("/v1/completions", scored).json()["choices"][0]["logprobs"]
    assert logprobs["token_logprobs"][0] is None
    assert all(-50 < value <= 0 for value in logprobs["token_logprobs"][1:])
    assert len(logprobs["tokens"]) == len(ids) + 1


def test_more_tokens_than_memory_holds_are_cut_down() -> None:
    with running(cast(ScriptedEngine, finback.load(context=32768, memory="70MiB", prefix_cache=0))) as small:
        found = small.post("/v1/chat/completions", chat(max_tokens=32000, thinking={"type": "disabled"}))
        assert found.status_code == 200, found.text
