"""Answers of OpenAI responses, told. Cases C05, C09, C17, D05, D09 as far as JSON goes."""

from __future__ import annotations

import json
from typing import Any

import pytest

from finback.server.answer import (
    AnswerEvent,
    Begun,
    CallArguments,
    CallBegun,
    CallEnded,
    Done,
    Ended,
    Failed,
    Said,
    Thought,
    Token,
    Tokens,
    outcome,
)
from finback.server.ask import Defaults, RefusedError
from finback.server.dialects import openai, responses
from tests.server.streams import DONE, STAMP, spoken, sse_events

TOOL = {"type": "function", "name": "look_up", "description": "Looks.", "parameters": {"type": "object"}}
PATCH = {"type": "custom", "name": "apply_patch", "description": "Patches."}
CRM = {"type": "namespace", "name": "crm", "description": "Customers.", "tools": [{**TOOL, "strict": True}, PATCH]}
CALLS = [(f"call_{i:02}", "look_up", json.dumps({"i": i, "text": "é" * i})) for i in range(12)]


def style_of(**body: Any) -> responses.Style:
    return responses.read({"model": "m", "input": "Hi", **body}, Defaults())[1]


def whole(events: list[AnswerEvent], style: responses.Style | None = None) -> dict[str, Any]:
    return responses.whole(style or style_of(), STAMP, outcome(events))


def told(events: list[AnswerEvent], style: responses.Style | None = None) -> list[dict[str, Any]]:
    """The events of a stream, which are numbered and named by their type; the last holds the answer at once."""
    style = style or style_of()
    stream = responses.Stream(style, STAMP)
    found = sse_events(chunk for event in events for chunk in stream.write(event))
    assert [data["sequence_number"] for _, data in found] == list(range(len(found)))
    assert all(name == data["type"] for name, data in found)
    shown = [data for _, data in found]
    if isinstance(events[-1], Done):
        assert shown[-1]["response"] == json.loads(json.dumps(whole(events, style)))
        done = [event["item"] for event in shown if event["type"] == "response.output_item.done"]
        assert done == shown[-1]["response"]["output"]
    return shown


def joined(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The items that a reader of all but the last event puts together; each event in its place, no item in another."""
    items: list[dict[str, Any]] = []
    opened: dict[str, Any] | None = None
    for event in events:
        kind = event["type"].removeprefix("response.")
        if kind == "output_item.added":
            assert opened is None
            assert event["item"]["status"] == "in_progress"
            opened = event["item"]
            items.append(opened)
            assert event["output_index"] == len(items) - 1
        elif "output_index" in event:
            assert opened is not None
            assert event["output_index"] == len(items) - 1
            if kind == "output_item.done":
                rest = {key: event["item"][key] for key in event["item"] if key not in ("status", "phase")}
                assert {key: opened[key] for key in rest} == rest
                opened.update(event["item"])
                opened = None
                continue
            assert event["item_id"] == opened["id"]
            if kind == "content_part.added":
                assert event["part"]["text"] == ""
                opened["content"].append(event["part"])
            elif kind == "content_part.done":
                assert event["part"] == opened["content"][event["content_index"]]
            elif kind.startswith(("output_text", "reasoning_text")):
                part = opened["content"][event["content_index"]]
                _more(part, "text", event)
                if kind == "output_text.delta":
                    part["logprobs"].extend(event["logprobs"])
            else:
                _more(opened, "input" if kind.startswith("custom") else "arguments", event)
    assert opened is None
    return items


def _more(owner: dict[str, Any], key: str, event: dict[str, Any]) -> None:
    if "delta" in event:
        assert event["delta"] != ""
        owner[key] += event["delta"]
    else:
        assert event["type"].endswith(".done")
        assert event[key] == owner[key]


def test_a_whole_answer() -> None:
    body = whole(spoken("Hel", "lo", thought="think"), style_of(temperature=0.5, instructions="x", tools=[TOOL]))
    assert (body["id"], body["object"], body["created_at"], body["completed_at"], body["status"], body["model"]) == (
        "resp_" + STAMP.id, "response", 1_700_000_000, 1_700_000_002, "completed", "a-model",
    )  # fmt: skip
    text = {"type": "output_text", "text": "Hello", "annotations": [], "logprobs": []}
    assert body["output"] == [
        {
            "id": "rs_" + STAMP.id, "type": "reasoning", "status": "completed", "summary": [],
            "content": [{"type": "reasoning_text", "text": "think"}], "encrypted_content": None,
        },
        {
            "id": "msg_" + STAMP.id, "type": "message", "status": "completed", "role": "assistant",
            "content": [text], "phase": "final_answer",
        },
    ]  # fmt: skip
    assert body["usage"] == {
        "input_tokens": 20, "input_tokens_details": {"cached_tokens": 16, "cache_write_tokens": 0},
        "output_tokens": 12, "output_tokens_details": {"reasoning_tokens": 4}, "total_tokens": 32,
    }  # fmt: skip
    echo = {
        "background": False, "error": None, "incomplete_details": None, "instructions": "x", "temperature": 0.5,
        "top_p": None, "max_output_tokens": None, "max_tool_calls": None, "metadata": {}, "parallel_tool_calls": True,
        "previous_response_id": None, "store": True, "truncation": "disabled", "tool_choice": "auto",
        "tools": [{**TOOL, "strict": None}], "text": {"format": {"type": "text"}, "verbosity": "medium"},
        "reasoning": {"effort": None, "summary": None}, "service_tier": "default", "top_logprobs": 0, "user": None,
        "stop_reason": None,
    }  # fmt: skip
    assert {key: body[key] for key in echo} == echo


def test_the_order_of_events() -> None:
    events = told(spoken("Hel", "lo", thought="think", calls=[("c1", "look_up", '{"a": 1}')]), style_of(tools=[TOOL]))
    assert [event["type"].removeprefix("response.") for event in events] == [
        "created", "in_progress",
        "output_item.added", "content_part.added", "reasoning_text.delta", "reasoning_text.delta",
        "reasoning_text.done", "content_part.done", "output_item.done",
        "output_item.added", "content_part.added", "output_text.delta", "output_text.delta",
        "output_text.done", "content_part.done", "output_item.done",
        "output_item.added", "function_call_arguments.delta", "function_call_arguments.delta",
        "function_call_arguments.done", "output_item.done",
        "completed",
    ]  # fmt: skip
    for event in events[:2]:
        body = event["response"]
        assert (body["status"], body["output"], body["usage"], body["completed_at"]) == ("in_progress", [], None, None)
    added = [event["item"] for event in events if event["type"] == "response.output_item.added"]
    assert added[1] == {
        "id": "msg_" + STAMP.id, "type": "message", "status": "in_progress", "role": "assistant", "content": [],
    }  # fmt: skip
    assert joined(events) == events[-1]["response"]["output"]
    assert events[-1]["response"]["output"][1]["phase"] == "commentary"


def test_the_first_events_do_not_wait() -> None:
    stream = responses.Stream(style_of(), STAMP)
    assert [name for name, _ in sse_events(stream.write(Begun(20)))] == ["response.created", "response.in_progress"]
    assert stream.write(Said(0, "")) == []


def test_twelve_calls_in_a_row() -> None:
    events = told(spoken("Let me see.", calls=CALLS), style_of(tools=[TOOL]))
    items = joined(events)
    assert items == events[-1]["response"]["output"]
    assert [(item["call_id"], item["name"], item["arguments"]) for item in items[1:]] == CALLS
    assert {item["status"] for item in items} == {"completed"}
    assert len({item["id"] for item in items}) == 13
    assert all(item["id"].startswith("fc_") and "namespace" not in item for item in items[1:])


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ('{"input": "*** Begin\\n\\"é\\" \\\\ \\u00e9"}', '*** Begin\n"é" \\ é'),
        ('{"input":"a","input":"b"}', "a"),
        ('{"input":""}', ""),
        ('{"patch": "a"}', '{"patch": "a"}'),
        ('{"input": 5}', '{"input": 5}'),
    ],
)
def test_a_call_of_a_tool_that_takes_text(arguments: str, text: str) -> None:
    style = style_of(tools=[PATCH])
    for pieces in ([arguments], list(arguments), [arguments[:15], arguments[15:]]):
        told_so = [CallArguments(0, 0, piece) for piece in pieces]
        call = [CallBegun(0, 0, "c1", "apply_patch"), *told_so, CallEnded(0, 0)]
        events = told([*call, Ended(0, "tool_calls"), DONE], style)
        (item,) = joined(events)
        assert item == {
            "id": f"ctc_{STAMP.id}_0", "type": "custom_tool_call", "status": "completed", "call_id": "c1",
            "name": "apply_patch", "input": text,
        }  # fmt: skip
        assert [event["type"] for event in events][-3] == "response.custom_tool_call_input.done"


def test_a_tool_of_a_namespace_goes_by_its_own_name() -> None:
    calls = [("c1", "crm::look_up", "{}"), ("c2", "crm::apply_patch", '{"input":"x"}'), ("c3", "erp::look_up", "{}")]
    function, custom, unknown = joined(told(spoken(calls=calls), style_of(tools=[CRM])))
    assert (function["type"], function["namespace"], function["name"]) == ("function_call", "crm", "look_up")
    assert (custom["type"], custom["namespace"], custom["name"]) == ("custom_tool_call", "crm", "apply_patch")
    assert custom["input"] == "x"
    assert (unknown["type"], unknown["name"]) == ("function_call", "erp::look_up")
    assert "namespace" not in unknown


@pytest.mark.parametrize(
    ("reason", "stop", "status", "details", "stop_reason", "phase"),
    [
        ("stop", None, "completed", None, None, "final_answer"),
        ("length", None, "incomplete", {"reason": "max_output_tokens"}, None, None),
        ("stop_string", "END", "completed", None, "END", "final_answer"),
        ("repetition", None, "completed", None, "repetition", "final_answer"),
        ("cancelled", None, "incomplete", None, None, None),
    ],
)
def test_why_it_ended(reason: Any, stop: str | None, status: str, details: Any, stop_reason: Any, phase: Any) -> None:
    events = told([Begun(1), Thought(0, "a"), Said(0, "x"), Ended(0, reason, stop), DONE])
    assert events[-1]["type"] == f"response.{status}"
    body = events[-1]["response"]
    assert (body["status"], body["incomplete_details"], body["stop_reason"]) == (status, details, stop_reason)
    assert (body["completed_at"] is None) == (status == "incomplete")
    thinking, message = joined(events)
    assert (thinking["status"], message["status"], message.get("phase")) == ("completed", status, phase)


def test_answers_that_are_cut() -> None:
    events = told([CallBegun(0, 0, "c", "f"), CallArguments(0, 0, '{"a": "b'), Ended(0, "length"), DONE])
    (call,) = joined(events)
    assert (call["status"], call["arguments"], events[-1]["type"]) == ("incomplete", '{"a": "b', "response.incomplete")
    style = style_of(tools=[PATCH])
    begun = [Said(0, "x"), CallBegun(0, 0, "c", "apply_patch"), CallArguments(0, 0, '{"input":"b\\')]
    message, call = joined(told([*begun, Ended(0, "length"), DONE], style))
    assert (message["status"], message["phase"]) == ("completed", "commentary")
    assert (call["status"], call["input"]) == ("incomplete", "b")
    (thinking,) = joined(told([Thought(0, "hm"), Ended(0, "length"), DONE]))
    assert (thinking["type"], thinking["status"]) == ("reasoning", "incomplete")


def test_thinking_that_is_sealed() -> None:
    style = style_of(include=["reasoning.encrypted_content"])
    sealed = joined(told(spoken("x", thought="hm"), style))[0]
    assert sealed["encrypted_content"] == f"enc_{STAMP.id}"
    assert sealed["content"][0]["text"] == "hm"


def token(data: bytes) -> Token:
    return Token(5, data.decode("utf-8", "replace"), data, -0.5, (Token(5, "A", b"A", -0.5),))


def test_logprobs_go_with_their_text() -> None:
    thinking, end, ok, a, b, call = (
        token(data) for data in ("ok é.".encode(), b"</think>", b"ok", b" \xc3", b"\xa9.", b"<call>")
    )
    events = [
        Tokens(0, (thinking,)), Thought(0, "ok é."), Tokens(0, (end, ok)), Said(0, "ok"), Tokens(0, (a,)), Said(0, " "),
        Tokens(0, (b,)), Said(0, "é."), Tokens(0, (call,)), CallBegun(0, 0, "c", "f"), CallArguments(0, 0, "{}"),
        CallEnded(0, 0), Ended(0, "tool_calls"), DONE,
    ]  # fmt: skip
    shown = told(events, style_of(top_logprobs=1, include=["message.output_text.logprobs"]))
    assert joined(shown) == shown[-1]["response"]["output"]
    deltas = [event["logprobs"] for event in shown if event["type"] == "response.output_text.delta"]
    assert deltas == [openai.logprob_items([t]) for t in (ok, a, b)]
    assert shown[-1]["response"]["output"][1]["content"][0]["logprobs"] == openai.logprob_items([ok, a, b])
    assert shown[-1]["response"]["top_logprobs"] == 1


def test_a_character_of_several_tokens_has_all_their_logprobs() -> None:
    end, first, second = token(b"</think>"), token(b"\xc3"), token(b"\xa9")
    (message,) = joined(told([Tokens(0, (end, first, second)), Said(0, "é"), Ended(0, "stop"), DONE]))
    assert [item["bytes"] for item in message["content"][0]["logprobs"]] == [[0xC3], [0xA9]]


def test_a_stop_string_leaves_the_tokens_of_what_is_said() -> None:
    events = [Tokens(0, (token(b"x "), token(b"EN"), token(b"D"))), Said(0, "x"), Ended(0, "stop_string", "END"), DONE]
    (message,) = joined(told(events))
    assert [item["bytes"] for item in message["content"][0]["logprobs"]] == [[120, 32]]


@pytest.mark.parametrize(
    ("refusal", "code"),
    [
        (RefusedError("the model file was cut; pull it again", status=500), "server_error"),
        (RefusedError("too many wait; try later", status=429), "rate_limit_exceeded"),
        (RefusedError("the prompt is too long; shorten it", code="context_length_exceeded"), "context_length_exceeded"),
        (RefusedError("the grammar has a loop; write it without"), "invalid_prompt"),
    ],
)
def test_a_failure_on_the_way(refusal: RefusedError, code: str) -> None:
    *before, last = told([Begun(1), Thought(0, "hm"), Said(0, "x"), Failed(refusal)])
    assert before[-1]["type"] == "response.output_text.delta"
    assert (last["type"], last["response"]["status"]) == ("response.failed", "failed")
    assert last["response"]["error"] == {"code": code, "message": str(refusal)}
    assert [item["status"] for item in last["response"]["output"]] == ["completed", "incomplete"]
    at_once = told([Failed(refusal)])
    assert [event["type"].removeprefix("response.") for event in at_once] == ["created", "in_progress", "failed"]
    assert at_once[-1]["response"]["output"] == []


def test_an_answer_of_nothing() -> None:
    events = told([Begun(1), Ended(0, "stop"), DONE])
    assert [event["type"].removeprefix("response.") for event in events] == ["created", "in_progress", "completed"]
    assert events[-1]["response"]["output"] == []


def test_text_that_no_utf8_has() -> None:
    stream = responses.Stream(style_of(), STAMP)
    events = [Said(0, "a\ud800b"), Ended(0, "stop"), DONE]
    shown = [data for _, data in sse_events(chunk for event in events for chunk in stream.write(event))]
    assert [event["delta"] for event in shown if "delta" in event] == ["a\ufffdb"]
