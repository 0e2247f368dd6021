"""What request bodies may look like, and which field a refusal names."""

from __future__ import annotations

import math

import pytest

from finback.errors import RequestError
from finback.text.messages import (
    AssistantMessage,
    ReminderMessage,
    SystemMessage,
    ToolCall,
    ToolDefinition,
    ToolMessage,
    UserMessage,
    messages_from_json,
    tools_from_json,
    wants_continuation,
)


def called(call):
    return {"role": "assistant", "tool_calls": [call]}


def read(*messages, thinking=True):
    return messages_from_json(list(messages), thinking=thinking)


def test_shapes_that_real_clients_send():
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}, "index": 0}
    as_object = {"function": {"name": "f", "arguments": {"b": 1.0, "a": "é"}}}
    assert read(
        {"role": "developer", "content": "d", "extra": 1},
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "input_text", "text": "b"}]},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "r"},
        {"role": "assistant", "content": [{"type": "output_text", "text": "o"}], "tool_calls": None},
        {"role": "assistant", "tool_calls": [as_object], "reasoning": "why"},
        {"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}], "tool_calls": []},
        {"role": "user", "content": []},
        {"role": "latest_reminder", "content": "l"},
    ) == [
        SystemMessage("d"),
        UserMessage("a\n\nb"),
        AssistantMessage("", "", (ToolCall("c1", "f", "{}"),)),
        ToolMessage("r", "c1"),
        AssistantMessage("o", ""),
        AssistantMessage("", "why", (ToolCall("", "f", '{"b": 1.0, "a": "é"}'),)),
        AssistantMessage("no", ""),
        UserMessage(""),
        ReminderMessage("l"),
    ]  # fmt: skip


def test_reasoning_is_filled_in_thinking_mode_and_dropped_outside():
    bare = {"role": "assistant", "content": "a"}
    kept = {**bare, "reasoning_content": "r"}
    assert [m.reasoning for m in read(bare, kept, thinking=True)] == ["", "r"]
    assert [m.reasoning for m in read(bare, kept, thinking=False)] == [None, None]


TEXT = {"type": "text", "text": "a"}
IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}


@pytest.mark.parametrize(
    ("message", "match"),
    [
        (5, r"messages\[1\] is 5"),
        ({"content": "x"}, r"messages\[1\].role is None; give one of system, developer, user"),
        ({"role": "function", "content": "x"}, r"messages\[1\].role is 'function'"),
        ({"role": ["user"], "content": "x"}, r"messages\[1\].role is"),
        ({"role": "user"}, r"messages\[1\].content is None"),
        ({"role": "user", "content": {"text": "x"}}, r"messages\[1\].content is"),
        ({"role": "user", "content": ["x"]}, r"messages\[1\].content\[0\] is 'x'"),
        ({"role": "user", "content": [TEXT, IMAGE]}, r"messages\[1\].content\[1\].type is 'image_url'"),
        ({"role": "user", "content": [{"type": "text"}]}, r"messages\[1\].content\[0\].text is None"),
        ({"role": "assistant", "content": None}, r"messages\[1\].content is None"),
        ({"role": "assistant", "content": "", "tool_calls": "f"}, r"messages\[1\].tool_calls is 'f'"),
        ({"role": "assistant", "tool_calls": [None]}, r"messages\[1\].tool_calls\[0\] is None"),
        (called({"id": "c"}), r"messages\[1\].tool_calls\[0\].function is None"),
        (called({"function": {"name": ""}}), r"tool_calls\[0\].function.name is ''"),
        (called({"function": {"name": "f"}}), r"tool_calls\[0\].function.arguments is None"),
        (called({"id": 5, "function": {"name": "f", "arguments": ""}}), r"tool_calls\[0\].id is 5"),
        (called({"function": {"name": "f", "arguments": {"x": math.nan}}}), r"nan has no JSON form"),
        ({"role": "assistant", "content": "", "reasoning_content": 5}, r"\.reasoning_content is 5"),
        ({"role": "tool", "content": "x", "tool_call_id": 7}, r"messages\[1\].tool_call_id is 7"),
    ],
)  # fmt: skip
def test_bad_messages_are_refused_by_field(message, match):
    with pytest.raises(RequestError, match=match):
        read({"role": "user", "content": "fine"}, message)


def test_messages_must_be_a_list_with_something_in_it():
    for messages in ([], "hi", None, {"role": "user"}):
        with pytest.raises(RequestError, match=r"^messages is"):
            messages_from_json(messages, thinking=True)


def test_continuation_is_asked_for_on_the_last_assistant_message():
    user, open_turn = {"role": "user", "content": "u"}, {"role": "assistant", "content": "a", "prefix": True}
    assert wants_continuation([user, open_turn])
    assert not wants_continuation([user, {**open_turn, "prefix": False}])
    for messages in ([open_turn, user], [{**user, "prefix": True}]):
        with pytest.raises(RequestError, match=r"messages\[0\].prefix"):
            wants_continuation(messages)


def test_tools():
    function = {"name": "ns::f", "description": None, "parameters": None, "strict": True}
    declared = [{"type": "function", "function": function}]
    assert tools_from_json(declared) == [ToolDefinition("ns::f", None, {})]


@pytest.mark.parametrize(
    ("tools", "match"),
    [
        ("f", "tools is 'f'"),
        ([{"type": "web_search"}], r'tools\[0\] is .*"type": "function"'),
        ([{"type": "function"}], r"tools\[0\].function is None"),
        ([{"type": "function", "function": {"name": "a b"}}], r"tools\[0\].function.name is 'a b'"),
        ([{"type": "function", "function": {"name": "f", "description": 5}}], "function.description is 5"),
        ([{"type": "function", "function": {"name": "f", "parameters": []}}], r"function.parameters is \[\]"),
        ([{"type": "function", "function": {"name": "f"}}] * 2, r"tools\[1\].function.name is 'f' a second"),
    ],
)
def test_bad_tools_are_refused_by_field(tools, match):
    with pytest.raises(RequestError, match=match):
        tools_from_json(tools)


def test_a_schema_nested_too_deep_is_refused():
    schema: dict[str, object] = {}
    for _ in range(200):
        schema = {"items": schema}
    with pytest.raises(RequestError, match="parameters: nested deeper than 127 levels"):
        tools_from_json([{"type": "function", "function": {"name": "f", "parameters": schema}}])
