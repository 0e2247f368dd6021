"""Anthropic's Messages API as a pure translation. Cases B07, B09, C05, C09, D05, D07, D09, D11 as far as JSON goes."""

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
    Usage,
    outcome,
)
from finback.server.ask import Ask, Chat, Choice, Defaults, RefusedError, Stamp
from finback.server.dialects import messages
from finback.text.messages import AssistantMessage, SystemMessage, ToolCall, ToolDefinition, ToolMessage, UserMessage
from tests.server.streams import DONE, STAMP, spoken, sse_events

HI = {"role": "user", "content": "Hi"}
TOOL = {"name": "look_up", "input_schema": {"type": "object"}}
IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": ""}}
USE = {"type": "tool_use", "id": "c1", "name": "f", "input": {"é": [1, 2.5]}}


def text(said: str, **more: Any) -> dict[str, Any]:
    return {"type": "text", "text": said, **more}


def user(*content: Any) -> dict[str, Any]:
    return {"role": "user", "content": list(content)}


def assistant(*content: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": list(content)}


def result(content: Any, **more: Any) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": "c1", "content": content, **more}


def document(source: object, **more: Any) -> dict[str, Any]:
    return {"type": "document", "source": source, **more}


def change(kind: str, tool: object) -> dict[str, Any]:
    return {"role": "system", "content": [{"type": kind, "tool": tool, "cache_control": {"type": "ephemeral"}}]}


def read(defaults: Defaults | None = None, **body: Any) -> Ask:
    return messages.read({"model": "m", "max_tokens": 9, "messages": [HI], **body}, defaults or Defaults())[0]


def conversation(**body: Any) -> Chat:
    prompt = read(**body).prompt
    assert isinstance(prompt, Chat)
    return prompt


# ---- parameters


def test_parameters_arrive() -> None:
    ask = read(
        temperature=0.5, top_p=0.9, top_k=40, min_p=0.1, seed=7, stop_sequences=["a", "b"], max_tokens=32000,
        thinking={"type": "enabled", "budget_tokens": 1024, "display": "omitted"}, repetition_penalty=1.1, priority=-3,
        metadata={"user_id": "u"}, service_tier="auto", betas=["x"], inference_geo="eu", mcp_servers=[], container=None,
        cache_control={"type": "ephemeral"}, speed="standard", stream=True,
        context_management={"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
    )  # fmt: skip
    p = ask.sampling
    assert (p.temperature, p.top_p, p.top_k, p.min_p, p.seed, p.max_tokens) == (0.5, 0.9, 40, 0.1, 7, 32000)
    assert (p.stop, p.thinking_budget, p.repetition_penalty, p.n) == (("a", "b"), 1024, 1.1, 1)
    assert (ask.model, ask.stream, ask.priority, ask.ignored) == ("m", True, -3, ())
    assert read(top_k=-1, stop_sequences=None, tools=None, thinking=None, system=None).sampling.stop == ()


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *[("max_tokens", bad) for bad in (None, 0, -1, 1.5, "10", True, [])],
        *[("temperature", bad) for bad in (-1, "hot", 1000, True, float("nan"))],
        *[("stop_sequences", bad) for bad in ("", 5, ["a", ""], [1], {}, [str(i) for i in range(1000)])],
        *[("messages", bad) for bad in ([], "Hi", None, 5, [5], [{}], [{"role": "tool", "content": "x"}])],
        *[("messages", [{"role": role}]) for role in ("user", "assistant", "system")],
        *[("messages", [{"role": role, "content": 5}]) for role in ("user", "assistant", "system")],
        *[("system", bad) for bad in (5, {}, [5], ["x"], [IMAGE], [{"type": "text"}], [{"type": "text", "text": 5}])],
        *[("tools", bad) for bad in ("x", [5], [{}], [{"name": "f"}], [TOOL, TOOL], [{**TOOL, "name": "a b"}])],
        *[("tools", [{**TOOL, "input_schema": bad}]) for bad in ("x", [], {"x": float("inf")})],
        *[("tool_choice", bad) for bad in ("auto", {}, {"type": "maybe"}, {"type": "any"}, {"type": "tool"})],
        ("tool_choice", {"type": "tool", "name": "f"}),
        ("tool_choice", {"type": "any", "disable_parallel_tool_use": 0}),
        *[("thinking", bad) for bad in ("on", {}, {"type": "maybe"}, {"type": "enabled", "budget_tokens": -1})],
        *[("output_config", bad) for bad in ("x", {"effort": 1.5}, {"effort": True}, {"format": "json"})],
        *[("output_config", {"format": bad}) for bad in ({"type": "yaml"}, {"type": "json_schema"})],
        ("output_format", {"type": "json_schema", "schema": "x"}), ("stream", "yes"), ("seed", 1.5), ("model", 5),
        ("container", "c"), ("mcp_servers", [{"url": "x"}]), ("n", 2), ("stop", ["a"]), ("compaction", {"a": 1}),
        ("context_management", 5), ("context_management", {"edits": [{"type": "clear_tool_uses_20250919"}]}),
        ("context_management", {"edits": [{"type": "clear_thinking_20251015"}]}),
        ("context_management", {"edits": [{"type": "clear_thinking_20251015", "keep": {"type": "thinking_turns"}}]}),
        ("top_k", -2), ("thread", {"id": "t"}),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named(field: str, value: object) -> None:
    with pytest.raises(RefusedError) as refused:
        read(**{field: value})
    assert refused.value.status == 400
    assert refused.value.field is not None
    assert refused.value.field.partition("[")[0].partition(".")[0] == field
    assert str(refused.value).startswith(refused.value.field)
    body = messages.error_body(refused.value)
    error = {"type": "invalid_request_error", "message": str(refused.value)}
    assert body == {"type": "error", "error": error, "request_id": None}


@pytest.mark.parametrize("body", [[], "x", None, 5])
def test_a_body_that_is_no_object(body: object) -> None:
    with pytest.raises(RefusedError, match=r"the body is .*; give an object"):
        messages.read(body, Defaults())


def test_unknown_fields_are_told_by_path() -> None:
    ask = read(
        banana=1,
        thinking={"type": "enabled", "flavour": 2},
        messages=[user(text("a", colour="red", cache_control={"type": "ephemeral", "ttl": "1h"}))],
        tools=[{**TOOL, "type": "custom", "strict": True, "defer_loading": True, "shape": 1}],
    )
    assert sorted(ask.ignored) == ["banana", "messages[0].content[0].colour", "thinking.flavour", "tools[0].shape"]


# ---- thinking and form


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({}, (True, None, None)),
        ({"thinking": {"type": "disabled"}}, (False, None, None)),
        ({"thinking": {"type": "disabled", "budget_tokens": 5}}, (False, None, None)),
        ({"thinking": {"type": "disabled"}, "output_config": {"effort": "max"}}, (False, "max", None)),
        ({"thinking": {"type": "adaptive", "display": "omitted"}}, (True, None, None)),
        ({"thinking": {"type": "enabled", "budget_tokens": 5}}, (True, None, 5)),
        ({"output_config": {"effort": "low"}}, (True, "low", None)),
        ({"output_config": {"effort": "none"}}, (False, None, None)),
        ({"output_config": {"effort": 40}}, (True, 40, None)),
    ],
)  # fmt: skip
def test_ways_to_ask_for_thinking(body: dict[str, Any], expected: tuple[bool, str | int | None, int | None]) -> None:
    ask = read(**body)
    assert isinstance(ask.prompt, Chat)
    assert (ask.prompt.thinking, ask.prompt.effort, ask.sampling.thinking_budget) == expected


def test_a_server_that_does_not_think_by_default() -> None:
    def thinks(**body: Any) -> tuple[bool, object]:
        prompt = read(Defaults(thinking=False, effort="low"), **body).prompt
        assert isinstance(prompt, Chat)
        return prompt.thinking, prompt.effort

    assert thinks() == (False, "low")
    assert thinks(output_config={"effort": "max"}) == (False, "max")
    assert thinks(thinking={"type": "adaptive"}) == (True, "low")


def test_the_form_of_an_answer() -> None:
    form = {"type": "json_schema", "schema": {"type": "object"}}
    for body in ({"output_config": {"format": form}}, {"output_format": form}):
        ask = read(**body)
        assert (ask.sampling.json_schema, ask.ignored) == (form["schema"], ())
        assert isinstance(ask.prompt, Chat)
        assert ask.prompt.reply is not None
        assert ask.prompt.reply.schema == form["schema"]
    assert (read().sampling.json_schema, conversation().reply) == (None, None)
    with pytest.raises(RefusedError, match=r"output_format is .* leave out one of them"):
        read(output_config={"format": form}, output_format=form)


# ---- the conversation


def test_system_as_text_and_as_blocks() -> None:
    cached = {"type": "ephemeral"}
    assert conversation(system="rules").messages == (SystemMessage("rules"), UserMessage("Hi"))
    blocks = [text("a", cache_control=cached), text("b")]
    assert conversation(system=blocks).messages[0] == SystemMessage("a\n\nb")
    for nothing in ("", [], None):
        assert conversation(system=nothing).messages == (UserMessage("Hi"),)


def test_what_differs_from_session_to_session_is_dropped() -> None:
    header = "x-anthropic-billing-header: cc_version=2.1.332; cch=0a1b2;"
    body = {"max_tokens": 1, "messages": [HI], "system": [text(header), text("rules")]}

    def first(**more: Any) -> object:
        prompt = messages.read(body, Defaults(), **more)[0].prompt
        assert isinstance(prompt, Chat)
        return prompt.messages[0]

    assert first() == SystemMessage("rules")
    assert first(drop_billing_header=False) == SystemMessage(f"{header}\n\nrules")
    assert conversation(system=[text(header)]).messages == (UserMessage("Hi"),)
    assert conversation(system=[text("rules"), text(header)]).messages[0] == SystemMessage(f"rules\n\n{header}")
    assert conversation(system=header).messages[0] == SystemMessage(header)


def test_shapes_of_messages() -> None:
    thinking = {"type": "thinking", "thinking": "hm", "signature": "s"}
    found = conversation(
        messages=[
            user(text("a"), text("b")),
            assistant(thinking, {"type": "redacted_thinking", "data": "x"}, text("yes"), USE, text("then")),
            user(result([text("r1"), text("r2")], is_error=True), result("r3", tool_use_id="c2"), text("c"), text("d")),
            {"role": "system", "content": [text("mid", cache_control={"type": "ephemeral"})]},
            {"role": "assistant", "content": "use </think> like this"},
            {"role": "assistant", "content": "again"},
            user(text("first"), {"type": "tool_result", "tool_use_id": "c1"}, text("last")),
            user(),
            HI,
        ]
    ).messages
    assert found == (
        UserMessage("a\n\nb"),
        AssistantMessage("yes\n\nthen", "hm", (ToolCall("c1", "f", '{"é": [1, 2.5]}'),)),
        ToolMessage("r1\n\nr2", "c1"), ToolMessage("r3", "c2"), UserMessage("c\n\nd"),
        reminder("mid"),
        AssistantMessage("use </think> like this", ""), AssistantMessage("again", ""),
        UserMessage("first"), ToolMessage("", "c1"), UserMessage("last"),
        UserMessage(""),
        UserMessage("Hi"),
    )  # fmt: skip


def test_recorded_thinking_counts_only_where_the_answer_thinks() -> None:
    turns = [HI, assistant({"type": "thinking", "thinking": "hm", "signature": ""}, text("yes")), HI]
    assert conversation(messages=turns).messages[1] == AssistantMessage("yes", "hm")
    disabled = conversation(messages=turns, thinking={"type": "disabled"})
    assert disabled.messages[1] == AssistantMessage("yes", None)


def test_documents_and_search_results_are_text() -> None:
    words = {"type": "text", "media_type": "text/plain", "data": "words"}
    plain, named = document(words), document(words, title="T", context="C", citations={"enabled": False})
    parts = document({"type": "content", "content": [text("p"), text("q")]})
    found = {"type": "search_result", "title": "S", "source": "http://s", "content": [text("hit")]}
    reference = {"type": "tool_reference", "tool_name": "look_up"}
    chat = conversation(messages=[user(result([found, plain, reference]), plain, named, parts, text("q?"))])
    assert chat.messages == (
        ToolMessage("S\n\nhttp://s\n\nhit\n\nwords\n\nlook_up", "c1"),
        UserMessage("words\n\nT\n\nC\n\nwords\n\np\n\nq\n\nq?"),
    )


@pytest.mark.parametrize(
    ("message", "path"),
    [
        (user(text("a"), IMAGE), "content[1].type"),
        (user({"text": "x"}), "content[0].type"),
        (user("x"), "content[0]"),
        (user({"type": "text"}), "content[0].text"),
        (user(USE), "content[0].type"),
        (user(result([text("a"), IMAGE])), "content[0].content[1].type"),
        (user(result(5)), "content[0].content"),
        (user({"type": "tool_result", "content": "x"}), "content[0].tool_use_id"),
        (user(result("x", is_error="yes")), "content[0].is_error"),
        (user(document(IMAGE["source"])), "content[0].source.type"),
        (user(document({"type": "text"})), "content[0].source.data"),
        (user(document({"type": "content", "content": [IMAGE]})), "content[0].source.content[0].type"),
        (user({"type": "document"}), "content[0].source"),
        (user({"type": "document", "citations": {"enabled": True}}), "content[0].citations.enabled"),
        (user({"type": "search_result", "title": "T", "content": []}), "content[0].source"),
        (user({"type": "container_upload", "file_id": "f"}), "content[0].type"),
        (assistant(IMAGE), "content[0].type"),
        (assistant({"type": "server_tool_use", "id": "s", "name": "web_search", "input": {}}), "content[0].type"),
        (assistant({"type": "thinking", "signature": "s"}), "content[0].thinking"),
        (assistant({**USE, "input": "{}"}), "content[0].input"),
        (assistant({**USE, "input": {"a": float("nan")}}), "content[0].input"),
        (assistant({"type": "tool_use", "id": "c1", "name": "f"}), "content[0].input"),
        (assistant({**USE, "id": None}), "content[0].id"),
        (assistant({**USE, "name": ""}), "content[0].name"),
        ({"role": "system", "content": [IMAGE]}, "content[0].type"),
        ({"role": "system", "content": "x", "output_config": {"effort": "low"}}, "output_config"),
        ({"role": "system", "content": [{"type": "tool_removal"}]}, "content[0].tool"),
        (change("tool_addition", {"type": "tool_definition"}), "content[0].tool.type"),
        (change("tool_removal", {"type": "tool_reference"}), "content[0].tool.tool_name"),
        ({"role": "king", "content": "x"}, "role"),
    ],
)  # fmt: skip
def test_what_cannot_be_read_is_refused_by_its_place(message: dict[str, Any], path: str) -> None:
    with pytest.raises(RefusedError) as refused:
        read(messages=[HI, message])
    assert (refused.value.field, refused.value.status) == (f"messages[1].{path}", 400)
    assert str(refused.value).startswith(f"messages[1].{path}")


def reminder(text: str) -> UserMessage:
    """A message of the system among the others, which stays in its place."""
    return UserMessage(f"<system-reminder>\n{text}\n</system-reminder>")


def test_messages_of_the_system_that_pass() -> None:
    passing = {"role": "system", "content": "now", "clear_at": "next_user_message"}
    lasting = {"role": "system", "content": "always", "clear_at": "never"}
    assert conversation(messages=[HI, passing, lasting]).messages[1:] == (reminder("now"), reminder("always"))
    later = conversation(messages=[HI, passing, lasting, HI])
    assert later.messages == (UserMessage("Hi"), reminder("always"), UserMessage("Hi"))


@pytest.mark.parametrize(
    ("last", "expected"),
    [
        (HI, False),
        ({"role": "assistant", "content": "Once"}, True),
        (assistant(text("Once ")), True),
        (assistant({"type": "thinking", "thinking": "hm", "signature": "s"}, text("Once")), True),
        (assistant(text("Let me see."), USE), False),
        (assistant(), False),
        (assistant(text("")), False),
        ({"role": "system", "content": "x"}, False),
    ],
)
def test_a_begun_answer_is_continued(last: dict[str, Any], expected: bool) -> None:
    assert conversation(messages=[HI, last]).continue_last is expected
    assert not conversation(messages=[HI, last, HI]).continue_last


# ---- tools


def test_tools_arrive() -> None:
    described = {**TOOL, "type": "custom", "description": "d", "cache_control": {}, "defer_loading": True}
    other = {"name": "mcp__a__b", "input_schema": {}, "type": None}
    assert conversation(tools=[described, other]).tools == (
        ToolDefinition("look_up", "d", {"type": "object"}),
        ToolDefinition("mcp__a__b", None, {}),
    )


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        ("web_search_20250305", "cannot run here"),
        ("web_fetch_20260309", "cannot run here"),
        ("code_execution_20260521", "cannot run here"),
        ("tool_search_tool_bm25_20251119", "cannot run here"),
        ("mcp_toolset", "cannot run here"),
        ("bash_20250124", "declare it as custom"),
        ("text_editor_20250728", "declare it as custom"),
        ("computer_toolset_20260801", "declare it as custom"),
        ("memory_20250818", "declare it as custom"),
        ("function", "give custom"),
    ],
)
def test_tools_of_anthropic_are_refused(kind: str, why: str) -> None:
    with pytest.raises(RefusedError, match=why) as refused:
        read(tools=[TOOL, {"type": kind, "name": "x"}])
    assert refused.value.field == "tools[1].type"


def test_tools_that_the_system_withdraws() -> None:
    reference = {"type": "tool_reference", "name": "look_up"}
    removal, addition = change("tool_removal", reference), change("tool_addition", reference)
    tools = [TOOL, {**TOOL, "name": "f"}]
    chat = conversation(tools=tools, messages=[HI, change("tool_addition", {**reference, "name": "f"}), removal])
    assert [tool.name for tool in chat.tools] == ["f"]
    assert chat.messages == (UserMessage("Hi"),)
    assert len(conversation(tools=tools, messages=[HI, removal, addition]).tools) == 2
    with pytest.raises(RefusedError, match=r"tool_choice.name is 'look_up'; give the name of a tool"):
        read(tools=tools, messages=[HI, removal], tool_choice={"type": "tool", "name": "look_up"})


@pytest.mark.parametrize(
    ("value", "expected", "parallel"),
    [
        (None, Choice(), True),
        ({"type": "auto"}, Choice(), True),
        ({"type": "auto", "disable_parallel_tool_use": True}, Choice(), False),
        ({"type": "none"}, Choice("none"), True),
        ({"type": "any", "disable_parallel_tool_use": False}, Choice("required"), True),
        ({"type": "tool", "name": "look_up"}, Choice("required", ("look_up",)), True),
    ],
)
def test_which_tools(value: object, expected: Choice, parallel: bool) -> None:
    chat = conversation(tools=[TOOL], tool_choice=value)
    assert (chat.choice, chat.parallel_calls) == (expected, parallel)


# ---- counting, models, errors


def test_counting_reads_the_same_prompt() -> None:
    body = {
        "model": "m", "system": [text("s")], "tools": [TOOL], "thinking": {"type": "disabled"},
        "messages": [HI, assistant(USE), user(result("r"))],
    }  # fmt: skip
    counted = messages.read_count(body, Defaults())
    assert (counted.model, counted.prompt) == ("m", messages.read({**body, "max_tokens": 5}, Defaults())[0].prompt)
    assert messages.read_count({**body, "max_tokens": 5}, Defaults()).prompt == counted.prompt
    with pytest.raises(RefusedError, match="messages is missing"):
        messages.read_count({"model": "m"}, Defaults())
    assert messages.count_body(7) == {"input_tokens": 7}


def test_models_for_both_sdks() -> None:
    models = [messages.Listed("a", 1_700_000_000.9, 4096), messages.Listed("b", 0, 8)]
    body = messages.models_body(models)
    assert (body["has_more"], body["first_id"], body["last_id"], body["object"]) == (False, "a", "b", "list")
    assert body["data"] == [messages.model_body(model) for model in models]
    assert body["data"][0] == {
        "id": "a", "type": "model", "display_name": "a", "created_at": "2023-11-14T22:13:20Z", "lifecycle": "active",
        "max_input_tokens": 4096, "max_tokens": 4096,
        "object": "model", "created": 1_700_000_000, "owned_by": "finback",
    }  # fmt: skip
    assert messages.models_body([])["first_id"] is None


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, "invalid_request_error"), (401, "authentication_error"), (403, "permission_error"),
        (404, "not_found_error"), (413, "request_too_large"), (422, "invalid_request_error"), (429, "rate_limit_error"),
        (500, "api_error"), (501, "api_error"), (503, "overloaded_error"), (529, "overloaded_error"),
    ],
)  # fmt: skip
def test_errors(status: int, kind: str) -> None:
    body = messages.error_body(RefusedError("no", status=status, field="x", code="y"), "req_1")
    assert body == {"type": "error", "error": {"type": kind, "message": "no"}, "request_id": "req_1"}


# ---- answers

CALLS = [(f"call_{i:02}", "look_up", json.dumps({"i": i, "text": "é" * i})) for i in range(12)]


def told(events: list[AnswerEvent]) -> list[Any]:
    stream = messages.Stream(messages.Style(), STAMP)
    read = sse_events(line for event in events for line in stream.write(event))
    assert all(name == data["type"] for name, data in read)
    return [data for _, data in read]


def body_of(events: list[AnswerEvent]) -> dict[str, Any]:
    return messages.whole(messages.Style(), STAMP, outcome(events))


def joined(told: list[Any]) -> dict[str, Any]:
    """The message that a stream says, read by the letter: blocks one after the other, deltas only for the open one and
    of its kind, none empty, thinking signed just before it closes."""
    first, *between, changed, last = told
    assert (first["type"], changed["type"], last) == ("message_start", "message_delta", {"type": "message_stop"})
    message = first["message"]
    assert (message["content"], message["stop_reason"], message["stop_sequence"]) == ([], None, None)
    open_block: dict[str, Any] | None = None
    arguments = ""
    for event in between:
        if event["type"] == "content_block_start":
            assert open_block is None
            assert event["index"] == len(message["content"])
            open_block, arguments = dict(event["content_block"]), ""
            begun = {"thinking": {"thinking": "", "signature": ""}, "text": {"text": ""}, "tool_use": {"input": {}}}
            assert begun[open_block["type"]].items() <= open_block.items()
            message["content"].append(open_block)
            continue
        assert open_block is not None
        assert event["index"] == len(message["content"]) - 1
        if event["type"] == "content_block_stop":
            if open_block["type"] == "tool_use":
                open_block["input"] = json.loads(arguments)
            assert open_block.get("signature") != ""
            assert open_block.get("text") != ""
            open_block = None
            continue
        assert event["type"] == "content_block_delta"
        kind, delta = open_block["type"], event["delta"]
        assert open_block.get("signature", "") == ""
        match delta["type"]:
            case "text_delta" if kind == "text":
                open_block["text"] += delta["text"]
            case "thinking_delta" if kind == "thinking":
                open_block["thinking"] += delta["thinking"]
            case "signature_delta" if kind == "thinking":
                open_block["signature"] = delta["signature"]
            case "input_json_delta" if kind == "tool_use":
                arguments += delta["partial_json"]
            case _:
                raise AssertionError(event)
    assert open_block is None
    assert set(changed["delta"]) == {"stop_reason", "stop_sequence"}
    return {**message, **changed["delta"], "usage": {**message["usage"], **changed["usage"]}}


def test_a_whole_answer() -> None:
    body = body_of(spoken("Hel", "lo", thought="think", calls=CALLS[:1]))
    assert list(body) == ["id", "type", "role", "model", "content", "stop_reason", "stop_sequence", "usage"]
    assert (body["id"], body["type"], body["role"], body["model"]) == (
        "msg_" + STAMP.id, "message", "assistant", "a-model",
    )  # fmt: skip
    thinking, said, call = body["content"]
    assert thinking == {"type": "thinking", "thinking": "think", "signature": f"sig_{STAMP.id}"}
    assert said == {"type": "text", "text": "Hello"}
    assert call == {"type": "tool_use", "id": "call_00", "name": "look_up", "input": {"i": 0, "text": ""}}
    assert (body["stop_reason"], body["stop_sequence"]) == ("tool_use", None)
    assert body["usage"] == {
        "input_tokens": 4, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 16, "output_tokens": 12,
        "output_tokens_details": {"thinking_tokens": 4}, "service_tier": "standard",
    }  # fmt: skip


@pytest.mark.parametrize(
    "events",
    [
        spoken("Hel", "", "lo"),
        spoken("Hello", thought="think"),
        spoken(thought="think"),
        spoken("Let me see.", thought="think", calls=CALLS),
        spoken(calls=CALLS[:2]),
        spoken("x", calls=[("c", "f", "{}")]),
        spoken(),
        spoken(""),
    ],
)
def test_stream_and_whole_agree(events: list[AnswerEvent]) -> None:
    assert joined(told(events)) == body_of(events)


def test_the_order_of_events() -> None:
    events = told(spoken("a", "b", thought="thought", calls=[("c", "f", "{}")]))
    assert [(e["type"], e.get("index"), e.get("delta", {}).get("type")) for e in events] == [
        ("message_start", None, None),
        ("content_block_start", 0, None),
        ("content_block_delta", 0, "thinking_delta"),
        ("content_block_delta", 0, "thinking_delta"),
        ("content_block_delta", 0, "signature_delta"),
        ("content_block_stop", 0, None),
        ("content_block_start", 1, None),
        ("content_block_delta", 1, "text_delta"),
        ("content_block_delta", 1, "text_delta"),
        ("content_block_stop", 1, None),
        ("content_block_start", 2, None),
        ("content_block_delta", 2, "input_json_delta"),
        ("content_block_delta", 2, "input_json_delta"),
        ("content_block_stop", 2, None),
        ("message_delta", None, None),
        ("message_stop", None, None),
    ]


def test_a_call_is_closed_when_it_is_whole() -> None:
    stream = messages.Stream(messages.Style(), STAMP)
    for event in (Begun(1), CallBegun(0, 0, "c", "f"), CallArguments(0, 0, "{}")):
        stream.write(event)
    assert stream.write(CallArguments(0, 0, "")) == []
    assert sse_events(stream.write(CallEnded(0, 0))) == [
        ("content_block_stop", {"type": "content_block_stop", "index": 0})
    ]
    assert stream.write(Tokens(0, (Token(5, "A", b"A", -0.5),))) == []


def test_usage_of_a_stream() -> None:
    first, *_, changed, _ = told(spoken("x", thought="y"))
    assert first["message"]["usage"]["input_tokens"] == 20
    assert changed["usage"] == {
        "input_tokens": 4, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 16, "output_tokens": 12,
        "output_tokens_details": {"thinking_tokens": 4},
    }  # fmt: skip
    uncached = [Begun(7), Said(0, "x"), Ended(0, "stop"), Done(Usage(prompt=7, completion=1))]
    assert body_of(uncached)["usage"]["input_tokens"] == 7


@pytest.mark.parametrize(
    ("reason", "stop", "expected"),
    [
        ("stop", None, ("end_turn", None)),
        ("length", None, ("max_tokens", None)),
        ("stop_string", "END", ("stop_sequence", "END")),
        ("tool_calls", None, ("tool_use", None)),
        ("repetition", None, ("end_turn", None)),
        ("cancelled", None, ("end_turn", None)),
    ],
)
def test_why_it_ended(reason: Any, stop: str | None, expected: tuple[str, str | None]) -> None:
    events = [Begun(1), Said(0, "x"), Ended(0, reason, stop), DONE]
    body = body_of(events)
    assert (body["stop_reason"], body["stop_sequence"]) == expected
    assert told(events)[-2]["delta"] == {"stop_reason": expected[0], "stop_sequence": expected[1]}


@pytest.mark.parametrize("arguments", ["", "{", '{"a": "b', '{"a": "b"', '{"a": NaN}'])
def test_a_call_that_was_cut(arguments: str) -> None:
    whole_call = [CallBegun(0, 0, "c0", "f"), CallArguments(0, 0, "{}"), CallEnded(0, 0)]
    cut = [CallBegun(0, 1, "c1", "f"), CallArguments(0, 1, arguments), Ended(0, "length"), DONE]
    body = body_of([Begun(1), *whole_call, *cut])
    assert [block["id"] for block in body["content"]] == ["c0"]
    assert body["stop_reason"] == "max_tokens"
    *_, block_stop, changed, last = told([Begun(1), *whole_call, *cut])
    assert block_stop == {"type": "content_block_stop", "index": 1}
    assert (changed["delta"]["stop_reason"], last["type"]) == ("max_tokens", "message_stop")


def test_a_call_that_was_cut_after_its_arguments() -> None:
    events = [Begun(1), CallBegun(0, 0, "c", "f"), CallArguments(0, 0, '{"a": 1}'), Ended(0, "length"), DONE]
    body = body_of(events)
    assert body["content"] == [{"type": "tool_use", "id": "c", "name": "f", "input": {"a": 1}}]
    assert joined(told(events)) == body


def test_thinking_that_was_cut_is_signed() -> None:
    events = [Begun(1), Thought(0, "hm"), Ended(0, "length"), DONE]
    assert joined(told(events)) == body_of(events)
    assert body_of(events)["content"] == [{"type": "thinking", "thinking": "hm", "signature": f"sig_{STAMP.id}"}]


def test_an_answer_can_be_sent_back() -> None:
    body = body_of(spoken("Hello", thought="think", calls=CALLS[:1]))
    chat = conversation(messages=[HI, {"role": body["role"], "content": body["content"]}, user(result("r"))])
    call = ToolCall("call_00", "look_up", '{"i": 0, "text": ""}')
    assert chat.messages[1] == AssistantMessage("Hello", "think", (call,))


def test_a_failure_on_the_way() -> None:
    refusal = RefusedError("the model file was cut; pull it again", status=500)
    *_, error = told([Begun(1), Said(0, "x"), Failed(refusal)])
    assert error == messages.error_body(refusal)
    assert error["error"] == {"type": "api_error", "message": "the model file was cut; pull it again"}
    assert [event["type"] for event in told([Failed(refusal)])] == ["error"]
    with pytest.raises(RefusedError):
        body_of([Said(0, "x"), Failed(refusal)])


def test_streams_do_not_share_what_they_write() -> None:
    other = messages.Stream(messages.Style(), Stamp("ff", 0, "other"))
    other.write(Begun(1))
    other.write(Said(0, "left open"))
    events = spoken("x", thought="y")
    assert joined(told(events)) == body_of(events)


def test_ping() -> None:
    assert sse_events([messages.PING]) == [("ping", {"type": "ping"})]


def test_text_that_no_utf8_has() -> None:
    events = told([Begun(1), Said(0, "a\ud800b"), Ended(0, "stop"), DONE])
    assert events[2]["delta"] == {"type": "text_delta", "text": "a\ufffdb"}
