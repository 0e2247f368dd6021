"""Bodies of OpenAI responses, read. Cases B09, D07 as far as JSON goes."""

from __future__ import annotations

import json
from typing import Any

import pytest

from finback.server.answer import outcome
from finback.server.ask import Ask, Chat, Choice, Defaults, RefusedError
from finback.server.dialects import openai, responses
from finback.text.messages import AssistantMessage, Message, SystemMessage, ToolCall, ToolMessage, UserMessage
from tests.server.streams import STAMP, spoken

TOOL = {"type": "function", "name": "look_up", "description": "Looks.", "parameters": {"type": "object"}}
PATCH = {"type": "custom", "name": "apply_patch", "description": "Patches."}
CRM = {"type": "namespace", "name": "crm", "description": "Customers.", "tools": [{**TOOL, "strict": True}, PATCH]}


def read_all(**body: Any) -> tuple[Ask, responses.Style]:
    return responses.read({"model": "m", "input": "Hi", **body}, Defaults())


def read(**body: Any) -> Ask:
    return read_all(**body)[0]


def conversation(**body: Any) -> Chat:
    prompt = read(**body).prompt
    assert isinstance(prompt, Chat)
    return prompt


def messages(*items: Any, **body: Any) -> tuple[Message, ...]:
    return conversation(input=list(items), **body).messages


# ---- items


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": [{"type": "input_text", "text": text}]}


def said(*text: str) -> dict[str, Any]:
    parts = [{"type": "output_text", "text": t, "annotations": [], "logprobs": []} for t in text]
    return {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed", "content": parts}


def thought(*text: str) -> dict[str, Any]:
    parts = [{"type": "reasoning_text", "text": t} for t in text]
    return {"type": "reasoning", "id": "rs_1", "summary": [], "content": parts, "encrypted_content": "enc_1"}


def called(id: str, name: str = "look_up", arguments: str = "{}", **more: Any) -> dict[str, Any]:
    return {"type": "function_call", "id": "fc_" + id, "call_id": id, "name": name, "arguments": arguments, **more}


def result(id: str, output: Any = "r") -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": id, "output": output}


# ---- bodies


def test_parameters_arrive() -> None:
    ask, style = read_all(
        temperature=0.5, top_p=0.9, top_k=40, min_p=0.1, seed=7, logit_bias={"5": -100}, presence_penalty=1,
        stop=["a", "b"], max_output_tokens=9, top_logprobs=3, include=["message.output_text.logprobs"], stream=True,
        priority=-3, metadata={"a": "b"}, user="u", service_tier="auto", prompt_cache_key="k", safety_identifier="s",
        max_tool_calls=4, store=False, truncation="auto", stream_options={"include_obfuscation": False},
        reasoning={"effort": "low", "summary": "auto"}, text={"verbosity": "low"}, parallel_tool_calls=False,
        client_metadata={"x": "y"}, background=False, instructions="Be brief.",
    )  # fmt: skip
    p = ask.sampling
    assert (p.temperature, p.top_p, p.top_k, p.min_p, p.seed, p.max_tokens) == (0.5, 0.9, 40, 0.1, 7, 9)
    assert (p.stop, p.logit_bias, p.logprobs, p.presence_penalty, p.n) == (("a", "b"), {5: -100.0}, 3, 1, 1)
    assert (ask.model, ask.stream, ask.priority, ask.ignored) == ("m", True, -3, ())
    assert isinstance(ask.prompt, Chat)
    assert ask.prompt.messages == (SystemMessage("Be brief."), UserMessage("Hi"))
    assert (ask.prompt.thinking, ask.prompt.effort, ask.prompt.parallel_calls) == (True, "low", False)
    assert (style.store, style.previous, style.sealed) == (False, None, False)


def test_what_is_left_out() -> None:
    ask, style = read_all(max_output_tokens=None, tools=None, include=None, text=None, reasoning=None, stream=None)
    assert (ask.stream, ask.sampling.max_tokens, ask.sampling.logprobs, style.store) == (False, None, None, True)
    assert read(include=["message.output_text.logprobs"]).sampling.logprobs == 0
    assert read(top_logprobs=2).sampling.logprobs == 2
    assert read(top_logprobs=0).sampling.logprobs is None
    assert read(max_output_tokens=10**9).sampling.max_tokens == 10**9
    assert read_all(include=["reasoning.encrypted_content"])[1].sealed


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *[("max_output_tokens", bad) for bad in (0, -1, 1.5, "10", True)],
        *[("temperature", bad) for bad in (-1, "hot", 1000, True)],
        *[("input", bad) for bad in ([], None, 5, {}, [5], [{}], [{"role": "king", "content": "x"}])],
        *[("input[0].content", bad) for bad in (5, None, {"text": "x"})],
        ("input[0].content[0].type", [{"type": "input_image", "image_url": "data:"}]),
        ("input[0].content[0].text", [{"type": "input_text"}]),
        ("input[0].content[0]", ["x"]),
        *[("tools", bad) for bad in ("x", 5)],
        ("tools[0]", [5]), ("tools[0].type", [{"type": "magic", "name": "f"}]), ("tools[0].type", [{"name": "f"}]),
        ("tools[0].name", [{"type": "function", "function": {"name": "f"}}]),
        ("tools[0].name", [{**TOOL, "name": "a b"}]), ("tools[1].name", [TOOL, TOOL]),
        ("tools[0].parameters", [{**TOOL, "parameters": []}]),
        ("tools[0].parameters", [{**TOOL, "parameters": {"minimum": float("nan")}}]),
        ("tools[0].description", [{**TOOL, "description": 5}]),
        ("tools[0].tools", [{"type": "namespace", "name": "crm"}]),
        ("tools[0].tools[1].name", [{**CRM, "tools": [TOOL, TOOL]}]),
        ("tools[0].tools[0].type", [{**CRM, "tools": [CRM]}]),
        ("tools[0].format.type", [{**PATCH, "format": {"type": "yaml"}}]),
        ("tools[0].format.definition", [{**PATCH, "format": {"type": "grammar", "syntax": "lark"}}]),
        *[("tool_choice", bad) for bad in ("maybe", 5, "required", {"type": "function", "name": "f"})],
        ("tool_choice.type", {"type": "web_search"}),
        *[("text", bad) for bad in ("json", 5)], ("text.format.type", {"format": {"type": "yaml"}}),
        ("text.format.schema", {"format": {"type": "json_schema", "name": "x"}}),
        ("text.verbosity", {"verbosity": "loud"}), ("truncation", "sometimes"), ("include", [5]), ("metadata", "x"),
        ("reasoning", "high"), ("reasoning.effort", {"effort": 1.5}), ("top_logprobs", 21), ("stream", "yes"),
        ("store", "no"), ("background", True), ("n", 2), ("conversation", "conv_1"), ("prompt", {"id": "p"}),
        ("previous_response_id", "resp_1"), ("previous_response_id", 5), ("messages", []), ("instructions", ["x"]),
        ("response_format", {"type": "text"}), ("max_tool_calls", -1), ("model", 5), ("stream_options", True),
        ("context_management", [{"type": "compaction"}]), ("moderation", {"model": "m"}), ("parallel_tool_calls", 1),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named(field: str, value: object) -> None:
    top = field.partition("[")[0].partition(".")[0]
    body = [{"role": "user", "content": value}] if field.startswith("input[") else value
    with pytest.raises(RefusedError) as refused:
        read(**{top: body})
    assert refused.value.status == 400
    assert refused.value.field is not None
    assert refused.value.field.startswith(field)
    assert field in str(refused.value)
    error = openai.error_body(refused.value)["error"]
    assert (error["type"], error["param"]) == ("invalid_request_error", refused.value.field)


@pytest.mark.parametrize(
    ("field", "item"),
    [
        ("type", {"type": "item_reference", "id": "msg_1"}),
        ("type", {"type": "web_search_call", "id": "ws_1"}),
        ("type", {"type": "compaction", "encrypted_content": "x"}),
        ("type", {"type": 5}),
        ("call_id", {"type": "function_call", "name": "f", "arguments": "{}"}),
        ("name", {"type": "function_call", "call_id": "c", "arguments": "{}"}),
        ("arguments", {"type": "function_call", "call_id": "c", "name": "f"}),
        ("arguments", {"type": "function_call", "call_id": "c", "name": "f", "arguments": {}}),
        ("input", {"type": "custom_tool_call", "call_id": "c", "name": "f"}),
        ("output", {"type": "function_call_output", "call_id": "c"}),
        ("output", {"type": "function_call_output", "call_id": "c", "output": {"a": 1}}),
        ("output[0].type", result("c", [{"type": "input_image", "image_url": "data:"}])),
        ("call_id", {"type": "function_call_output", "output": "r"}),
        ("content", {"type": "reasoning", "content": "x"}),
        ("content[0].type", {"type": "reasoning", "content": [{"type": "encrypted", "text": "x"}]}),
        ("role", {"type": "message", "content": "x"}),
    ],
)
def test_items_that_are_refused(field: str, item: dict[str, Any]) -> None:
    with pytest.raises(RefusedError) as refused:
        messages(user("Hi"), item)
    assert (refused.value.status, refused.value.field) == (400, f"input[1].{field}")


@pytest.mark.parametrize("body", [[], "x", None, 5])
def test_a_body_that_is_no_object(body: object) -> None:
    with pytest.raises(RefusedError, match=r"the body is .*; give an object"):
        responses.read(body, Defaults())


def test_what_is_ignored_is_told_by_path() -> None:
    hosted = [{"type": t} for t in ("web_search_2025_08_26", "local_shell", "tool_search", "computer_use_preview")]
    ask, style = read_all(
        banana=1,
        reasoning={"effort": "low", "flavour": 2},
        text={"format": {"type": "text"}, "font": "serif"},
        include=["reasoning.encrypted_content", "web_search_call.action.sources"],
        tools=[hosted[0], TOOL, *hosted[1:]],
        tool_choice="required",
    )
    paths = {"banana", "reasoning.flavour", "text.font", "include[1]", "tools[0] (web_search_2025_08_26)"}
    paths |= {"tools[2] (local_shell)", "tools[3] (tool_search)", "tools[4] (computer_use_preview)"}
    assert set(ask.ignored) == paths
    assert len(ask.ignored) == len(paths)
    assert isinstance(ask.prompt, Chat)
    assert [tool.name for tool in ask.prompt.tools] == ["look_up"]
    assert style.echo["tools"] == [{**TOOL, "strict": None}]
    with pytest.raises(RefusedError, match="tools are missing"):
        read(tools=hosted, tool_choice="required")


def test_messages_in_all_their_shapes() -> None:
    assert messages(
        {"role": "developer", "content": "rules", "extra": 1},
        {"type": "message", "role": "user", "content": [*user("a")["content"], {"type": "text", "text": "b"}]},
        {"role": "assistant", "content": "c", "phase": "final_answer"},
        {"role": "system", "content": "mid"},
        {"role": "user", "content": []},
        {"type": "message", "role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]},
        instructions="first",
    ) == (
        SystemMessage("first"),
        SystemMessage("rules"),
        UserMessage("a\n\nb"),
        AssistantMessage("c", ""),
        SystemMessage("mid"),
        UserMessage(""),
        AssistantMessage("no", ""),
    )
    assert conversation(input="").messages == (UserMessage(""),)


def test_items_of_one_turn_are_one_message() -> None:
    calls = (ToolCall("c2", "look_up", '{"a": 1}'), ToolCall("c1", "crm::look_up", "{}"))
    items = [
        user("a"),
        thought("hm", "so"),
        said("Let me see.", "Wait."),
        called("c2", arguments='{"a": 1}'),
        called("c1", namespace="crm"),
        result("c1"),
        result("c2", [{"type": "input_text", "text": "x"}, {"type": "input_text", "text": "y"}]),
        thought("ah"),
        said("It is y."),
    ]
    assert messages(*items) == (
        UserMessage("a"),
        AssistantMessage("Let me see.\n\nWait.", "hm\nso", calls),
        ToolMessage("r", "c1"),
        ToolMessage("x\n\ny", "c2"),
        AssistantMessage("It is y.", "ah"),
    )
    plain = messages(*items, reasoning={"effort": "none"})
    assert [m.reasoning for m in plain if isinstance(m, AssistantMessage)] == [None, None]


def test_thinking_again_begins_a_turn_but_not_between_calls() -> None:
    assert messages(user("a"), said("b"), thought("c"), called("c1"), result("c1")) == (
        UserMessage("a"),
        AssistantMessage("b", ""),
        AssistantMessage("", "c", (ToolCall("c1", "look_up", "{}"),)),
        ToolMessage("r", "c1"),
    )
    items = [thought("a"), said("x"), called("c1"), thought("b"), called("c2"), result("c1"), result("c2")]
    (turn, *results) = messages(*items)
    assert turn == AssistantMessage("x", "a\nb", (ToolCall("c1", "look_up", "{}"), ToolCall("c2", "look_up", "{}")))
    assert len(results) == 2


@pytest.mark.parametrize(
    ("item", "reasoning"),
    [
        ({"summary": [{"type": "summary_text", "text": "s"}]}, "s"),
        ({"summary": [], "content": None, "encrypted_content": "enc_1"}, ""),
        ({"summary": [{"type": "summary_text", "text": "s"}], "content": [{"type": "text", "text": "t"}]}, "t"),
        ({"id": "rs_1"}, ""),
    ],
)
def test_what_reasoning_items_hold(item: dict[str, Any], reasoning: str) -> None:
    assert messages(user("a"), {"type": "reasoning", **item}, said("b"))[1] == AssistantMessage("b", reasoning)


def test_calls_of_tools_that_take_text() -> None:
    text = 'a "b"\n\\é'
    item = {"type": "custom_tool_call", "id": "ctc_1", "call_id": "c1", "name": "apply_patch", "input": text}
    turn, done = messages(item, {"type": "custom_tool_call_output", "call_id": "c1", "output": "ok"})
    assert isinstance(turn, AssistantMessage)
    assert json.loads(turn.tool_calls[0].arguments) == {"input": text}
    assert (turn.tool_calls[0].name, done) == ("apply_patch", ToolMessage("ok", "c1"))


def test_tools() -> None:
    grammar = {"type": "grammar", "syntax": "lark", "definition": 'start: "a"'}
    look_up, patch, in_crm, patch_in_crm = conversation(tools=[TOOL, {**PATCH, "format": grammar}, CRM]).tools
    assert (look_up.name, look_up.description, look_up.parameters) == ("look_up", "Looks.", {"type": "object"})
    assert isinstance(patch.parameters, dict)
    assert patch.parameters["required"] == ["input"]
    assert patch.parameters["properties"]["input"]["type"] == "string"
    assert grammar["definition"] in patch.parameters["properties"]["input"]["description"]
    assert (in_crm.name, in_crm.description) == ("crm::look_up", "Customers.\nLooks.")
    assert patch_in_crm.name == "crm::apply_patch"
    assert conversation(tools=[{"type": "function", "name": "f", "parameters": None}]).tools[0].parameters == {}


@pytest.mark.parametrize(
    ("value", "expected", "echo"),
    [
        (None, Choice(), "auto"),
        ("none", Choice("none"), "none"),
        ("required", Choice("required"), "required"),
        (
            {"type": "function", "name": "look_up"},
            Choice("required", ("look_up",)),
            {"type": "function", "name": "look_up"},
        ),
        (
            {"type": "function", "function": {"name": "crm::look_up"}},
            Choice("required", ("crm::look_up",)),
            {"type": "function", "name": "crm::look_up"},
        ),
        (
            {"type": "custom", "name": "apply_patch"},
            Choice("required", ("apply_patch",)),
            {"type": "custom", "name": "apply_patch"},
        ),
    ],
)
def test_which_tools(value: object, expected: Choice, echo: object) -> None:
    ask, style = read_all(tools=[TOOL, PATCH, CRM], tool_choice=value)
    assert isinstance(ask.prompt, Chat)
    assert (ask.prompt.choice, style.echo["tool_choice"]) == (expected, echo)


def test_the_form_of_an_answer() -> None:
    schema = {"type": "object"}
    form = {"type": "json_schema", "name": "s", "strict": True, "schema": schema}
    ask, style = read_all(text={"format": form, "verbosity": "low"})
    assert isinstance(ask.prompt, Chat)
    assert ask.prompt.reply is not None
    assert (ask.sampling.json_schema, ask.ignored) == (schema, ())
    assert style.echo["text"] == {"format": form, "verbosity": "low"}
    assert read(text={"format": {"type": "json_object"}}).sampling.json_object
    assert read(text={"format": {"type": "text"}}).sampling.json_schema is None
    assert read(guided_regex="a+").sampling.regex == "a+"


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({}, (True, None)),
        ({"reasoning": {"effort": "high", "generate_summary": "auto"}}, (True, "high")),
        ({"reasoning": {"effort": "none"}}, (False, None)),
        ({"reasoning": {"effort": 75}}, (True, 75)),
        ({"thinking": {"type": "disabled"}}, (False, None)),
        ({"chat_template_kwargs": {"thinking": False}}, (False, None)),
    ],
)
def test_ways_to_ask_for_thinking(body: dict[str, Any], expected: tuple[bool, str | None]) -> None:
    prompt = conversation(**body)
    assert (prompt.thinking, prompt.effort) == expected


# ---- going on from an answer


def test_an_answer_comes_back_as_it_was_given() -> None:
    body = {
        "model": "m",
        "instructions": "Be brief.",
        "input": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Ho"}, user("More")],
        "tools": [PATCH, CRM],
    }
    ask, style = responses.read(body, Defaults())
    calls = [("c1", "apply_patch", '{"input": "x"}'), ("c2", "crm::look_up", '{"a": 1}')]
    answer = outcome(spoken("Now.", thought="think", calls=calls))
    kept = [*responses.items_of(body), *responses.output_items(style, STAMP, answer)]
    assert [item["type"] for item in kept[:3]] == ["message"] * 3
    assert [item["content"][0]["type"] for item in kept[:3]] == ["input_text", "output_text", "input_text"]
    assert responses.items_of({"input": "Hi"}) == responses.items_of({"input": [user("Hi")]})
    assert responses.items_of({}) == []

    then = {"previous_response_id": "resp_1", "input": [result("c1"), result("c2")], "tools": [PATCH, CRM]}
    assert responses.previous_of(then) == "resp_1"
    assert responses.previous_of(body) is None
    later, told = responses.read(then, Defaults(), json.loads(json.dumps(kept)))
    assert isinstance(ask.prompt, Chat)
    assert isinstance(later.prompt, Chat)
    turn = AssistantMessage("Now.", "think", tuple(ToolCall(*call) for call in calls))
    assert later.prompt.messages == (
        *ask.prompt.messages[1:],
        turn,
        ToolMessage("r", "c1"),
        ToolMessage("r", "c2"),
    )
    assert (told.previous, later.ignored) == ("resp_1", ())
    assert responses.whole(told, STAMP, answer)["previous_response_id"] == "resp_1"
    assert responses.read({"previous_response_id": "resp_1"}, Defaults(), kept)[0].prompt


def test_an_answer_that_is_not_kept() -> None:
    with pytest.raises(RefusedError, match=r"previous_response_id is .*, which is not kept") as refused:
        read(previous_response_id="resp_1")
    assert refused.value.code == "previous_response_not_found"
