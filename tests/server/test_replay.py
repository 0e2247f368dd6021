"""Case D13: an agent's loop keeps its own past. A turn that called tools comes back in whatever spelling, and is
written as it was drawn."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from finback.server.replay import Replay, Turn
from finback.text.messages import AssistantMessage, ToolCall
from tests.server.running import CALL4, TOOL, Running, chat, running

SYSTEM = {"role": "system", "content": "Rules of the house. " * 400}


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with running() as found:
        yield found


def other_spelling(arguments: str) -> str:
    """The same arguments as another program writes them."""
    return json.dumps(json.loads(arguments), indent=2)


@pytest.mark.parametrize("separator", ["\n\n", "\n", " ", "\n\n\n"])
@pytest.mark.parametrize("thinking", [True, False])
@pytest.mark.parametrize("replayed", ["as it was", "without thinking", "without content"])
def test_the_past_is_not_computed_again(server: Running, separator: str, thinking: bool, replayed: str) -> None:
    user = f"Weather? {separator!r} {thinking} {replayed}"
    mode = {"type": "enabled" if thinking else "disabled"}
    content = "" if replayed == "without content" else "I look."
    said = ("let me think</think>" if thinking else "") + content + separator + CALL4.lstrip("\n")
    server.engine.say(said, "Rain.")
    first = server.post("/v1/chat/completions", chat(SYSTEM, user, tools=[TOOL], thinking=mode)).json()
    message = first["choices"][0]["message"]
    assert first["choices"][0]["finish_reason"] == "tool_calls"
    (call,) = message["tool_calls"]
    call["function"]["arguments"] = other_spelling(call["function"]["arguments"])
    if replayed == "without thinking":
        message.pop("reasoning_content", None)
    if replayed == "without content":
        message["content"] = None
    result = {"role": "tool", "tool_call_id": call["id"], "content": "rain, 4 degrees"}
    body = chat(SYSTEM, user, message, result, tools=[TOOL], thinking=mode)
    usage = server.post("/v1/chat/completions", body).json()["usage"]
    new = usage["prompt_tokens"] - usage["prompt_tokens_details"]["cached_tokens"]
    result_tokens = server.post("/tokenize", {"content": "<tool_result>rain, 4 degrees</tool_result>"}).json()["count"]
    assert new <= result_tokens + 64
    assert usage["prompt_tokens"] > 2000


def test_anthropic_and_responses_replay_too(server: Running) -> None:
    tool = {"name": "look_up", "input_schema": TOOL["function"]["parameters"]}  # type: ignore[index]
    system = SYSTEM["content"] + "(anthropic)"
    server.engine.say("hm</think>I look.\n" + CALL4, "Rain.")
    thinking = {"type": "enabled", "budget_tokens": 1024}
    body = {"max_tokens": 400, "system": system, "tools": [tool], "thinking": thinking}
    first = server.post("/v1/messages", {**body, "messages": [{"role": "user", "content": "Weather?"}]}).json()
    assert first["stop_reason"] == "tool_use"
    use = first["content"][-1]
    result = {"type": "tool_result", "tool_use_id": use["id"], "content": "rain"}
    messages = [
        {"role": "user", "content": "Weather?"},
        {"role": "assistant", "content": first["content"]},
        {"role": "user", "content": [result]},
    ]
    usage = server.post("/v1/messages", {**body, "messages": messages}).json()["usage"]
    assert usage["input_tokens"] < 80 < usage["cache_read_input_tokens"]


def test_what_was_changed_is_written_anew(server: Running) -> None:
    runner = server.service.served.runner
    assert runner is not None
    server.engine.say("I look." + CALL4)
    first = server.post("/v1/chat/completions", chat("Changed?", tools=[TOOL])).json()["choices"][0]["message"]
    before = runner.replay.reused

    def prompt(**change: Any) -> str:
        call = {**first["tool_calls"][0], **change.pop("call", {})}
        turn = {**first, "tool_calls": [call], **change}
        result = {"role": "tool", "tool_call_id": call["id"], "content": "r"}
        body = chat("Changed?", turn, result, tools=[TOOL], thinking={"type": "disabled"})
        return str(server.post("/apply-template", body).json()["prompt"])

    assert "Oslo" in prompt()
    assert runner.replay.reused == before + 1
    changed = {"name": "look_up", "arguments": '{"place": "Rome", "days": 2}'}
    assert "Rome" in prompt(call={"function": changed})
    assert "I lied." in prompt(content="I lied.")
    assert "Oslo" in prompt(call={"id": "call_of_somebody_else"})
    one = {"name": "look_up", "arguments": '{"place": "Oslo", "days": true}'}
    assert "true" in prompt(call={"function": one})
    assert runner.replay.reused == before + 1, "none of these is the turn that was kept"


# ---- the store of turns


def turn(number: int, size: int = 10) -> Turn:
    return Turn(((f"call_{number:04}", "f", "{}"),), "said", None, tuple(range(size)))


def message(number: int) -> AssistantMessage:
    return AssistantMessage(" said\n", None, (ToolCall(f"call_{number:04}", "f", "{ }"),))


def test_the_budget_of_turns() -> None:
    replay = Replay(20_000)
    for number in range(100):
        replay.keep(turn(number))
        assert replay.nbytes <= 20_000
    assert replay.splice(message(99)).sampled is not None
    assert replay.splice(message(0)).sampled is None
    assert 5 < len(replay) < 100
    replay.keep(turn(200, size=100_000))
    assert replay.nbytes <= 20_000


def test_turns_survive_restarts_and_damage(tmp_path: Path) -> None:
    file = tmp_path / "replay"
    first = Replay(1 << 20, file)
    for number in range(20):
        first.keep(turn(number))
    assert file.stat().st_mode & 0o777 == 0o600
    assert Replay(1 << 20, file).splice(message(7)).sampled is not None
    whole = file.read_bytes()
    for cut in (0, 1, 7, 8, 100, len(whole) - 1):
        file.write_bytes(whole[:cut])
        again = Replay(1 << 20, file)
        again.keep(turn(77))
        assert Replay(1 << 20, file).splice(message(77)).sampled is not None
    for at in range(0, len(whole), 97):
        file.write_bytes(whole[:at] + bytes([whole[at] ^ 255]) + whole[at + 1 :])
        again = Replay(1 << 20, file)
        assert len(again) < 20
        assert again.splice(message(0)).sampled is not None or at < 200
    file.write_bytes(os.urandom(5000))
    assert len(Replay(1 << 20, file)) == 0


def test_a_file_of_old_turns_is_written_anew(tmp_path: Path) -> None:
    file = tmp_path / "replay"
    small = Replay(5_000, file)
    for number in range(500):
        small.keep(turn(number))
    before = file.stat().st_size
    assert len(Replay(5_000, file)) == len(small)
    assert file.stat().st_size < before / 5
