"""OpenAI chat completions as a pure translation. Cases B09, C05, C09, C15, D05, D07, D09 as far as JSON goes."""

from __future__ import annotations

import json
from typing import Any

import pytest

from finback.server.answer import Begun, CallArguments, CallBegun, Done, Ended, Failed, Said, Token, Tokens, outcome
from finback.server.ask import Ask, Chat, Choice, Defaults, RefusedError
from finback.server.dialects import chat
from finback.text.messages import AssistantMessage, SystemMessage, ToolMessage, UserMessage
from tests.server.streams import DONE, STAMP, spoken, sse_events

HI = {"role": "user", "content": "Hi"}
TOOL = {"type": "function", "function": {"name": "look_up", "parameters": {"type": "object"}}}


def read(**body: Any) -> Ask:
    return chat.read({"model": "m", "messages": [HI], **body}, Defaults())[0]


def conversation(**body: Any) -> Chat:
    prompt = read(**body).prompt
    assert isinstance(prompt, Chat)
    return prompt


def test_parameters_arrive() -> None:
    ask = read(
        temperature=0.5, top_p=0.9, top_k=40, min_p=0.1, seed=7, n=2, logit_bias={"5": -100}, presence_penalty=1,
        frequency_penalty=0.5, repetition_penalty=1.1, stop=["a", "b"], max_tokens=9, logprobs=True, top_logprobs=3,
        min_tokens=2, ignore_eos=True, stream=True, priority=-3,
    )  # fmt: skip
    p = ask.sampling
    assert (p.temperature, p.top_p, p.top_k, p.min_p, p.seed, p.n, p.max_tokens) == (0.5, 0.9, 40, 0.1, 7, 2, 9)
    assert (p.presence_penalty, p.frequency_penalty, p.repetition_penalty) == (1, 0.5, 1.1)
    assert (p.stop, p.logit_bias, p.logprobs, p.min_tokens, p.ignore_eos) == (("a", "b"), {5: -100.0}, 3, 2, True)
    assert (ask.model, ask.stream, ask.priority, ask.ignored) == ("m", True, -3, ())


def test_odd_numbers_that_have_a_meaning() -> None:
    assert read(seed=-1).sampling.seed is None
    assert read(seed=-2).sampling.seed == 2**64 - 2
    assert read(top_k=-1).sampling.top_k == 0
    assert read(max_tokens=3, max_completion_tokens=5).sampling.max_tokens == 5
    assert read(max_tokens=10**9).sampling.max_tokens == 10**9
    assert read(max_tokens=None, stop=None, temperature=None, tools=None, response_format=None).sampling.stop == ()
    assert read(logprobs=True).sampling.logprobs == 0
    assert read(logprobs=False).sampling.logprobs is None


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *[("max_tokens", bad) for bad in (0, -1, 1.5, "10", True, [])],
        *[("temperature", bad) for bad in (-1, "hot", 1000, True, float("nan"))],
        *[("stop", bad) for bad in ("", 5, ["a", ""], [1], {})],
        *[("n", bad) for bad in (0, 65, "2")],
        *[("messages", bad) for bad in ([], "Hi", None, 5, [5], [{}], [{"role": "king", "content": "x"}])],
        *[("tools", bad) for bad in ("x", [5], [{"type": "custom"}], [TOOL, TOOL])],
        *[("tool_choice", bad) for bad in ("maybe", 5, "required", {"type": "function", "function": {"name": "f"}})],
        *[("response_format", bad) for bad in ("json", {"type": "yaml"}, {"type": "json_schema"})],
        ("response_format", {"type": "json_schema", "json_schema": {"name": "x"}}),
        ("stream", "yes"), ("stream_options", True), ("seed", 1.5), ("logit_bias", [1]), ("logit_bias", {"x": 1}),
        ("top_logprobs", 21), ("top_logprobs", 3), ("store", True), ("functions", [{"name": "f"}]), ("audio", {}),
        ("modalities", ["audio"]), ("thinking", "on"), ("thinking", {"type": "maybe"}), ("reasoning_effort", 1.5),
        ("chat_template_kwargs", {"thinking": "yes"}), ("model", 5), ("web_search_options", {}),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named(field: str, value: object) -> None:
    with pytest.raises(RefusedError) as refused:
        read(**{field: value})
    assert refused.value.status == 400
    assert refused.value.field is not None
    assert refused.value.field.partition("[")[0].partition(".")[0] == field
    assert field in str(refused.value)
    body = chat.openai.error_body(refused.value)["error"]
    assert (body["type"], body["param"]) == ("invalid_request_error", refused.value.field)


@pytest.mark.parametrize("body", [[], "x", None, 5])
def test_a_body_that_is_no_object(body: object) -> None:
    with pytest.raises(RefusedError, match=r"the body is .*; give an object"):
        chat.read(body, Defaults())


def test_unknown_fields_are_told_by_path() -> None:
    ask = read(
        banana=1, thinking={"type": "enabled", "flavour": 2}, user="u", metadata={"a": 1}, store=False,
        stream_options={"include_usage": True},
    )  # fmt: skip
    assert ask.ignored == ("banana", "thinking.flavour")


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({}, (True, None)),
        ({"reasoning_effort": "low"}, (True, "low")),
        ({"reasoning_effort": "none"}, (False, None)),
        ({"thinking": {"type": "disabled"}}, (False, None)),
        ({"thinking": {"type": "disabled"}, "reasoning_effort": "max"}, (False, "max")),
        ({"thinking": {"type": "enabled", "budget_tokens": 5}}, (True, None)),
        ({"chat_template_kwargs": {"thinking": False}}, (False, None)),
        ({"chat_template_kwargs": {"enable_thinking": True, "reasoning_effort": "max"}}, (True, "max")),
        ({"enable_thinking": False}, (False, None)),
        ({"reasoning": {"effort": "high"}}, (True, "high")),
        ({"reasoning": {"enabled": False}}, (False, None)),
    ],
)
def test_ways_to_ask_for_thinking(body: dict[str, Any], expected: tuple[bool, str | None]) -> None:
    prompt = conversation(**body)
    assert (prompt.thinking, prompt.effort) == expected


def test_a_server_that_does_not_think_by_default() -> None:
    def thinks(**body: Any) -> object:
        prompt = chat.read({"messages": [HI], **body}, Defaults(thinking=False))[0].prompt
        assert isinstance(prompt, Chat)
        return prompt.thinking

    assert not thinks()
    prompt = chat.read({"messages": [HI]}, Defaults(thinking=False, effort="max"))[0].prompt
    assert isinstance(prompt, Chat)
    assert not prompt.thinking, "how long it would think does not switch it on"
    assert thinks(reasoning_effort="low")
    assert thinks(thinking={"type": "enabled"})


def test_shapes_of_messages() -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    prompt = conversation(
        messages=[
            {"role": "developer", "content": "rules", "extra": 1},
            {"role": "user", "content": parts, "name": "Ann"},
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "c1", "content": [{"type": "text", "text": "r"}]},
            {"role": "assistant", "content": "<think>hm</think>yes"},
            {"role": "assistant", "content": "use </think> like this"},
            {"role": "system", "content": "mid"},
            {"role": "user", "content": []},
        ]
    )
    system, user, called, result, thought, literal, middle, empty = prompt.messages
    assert (system, user) == (SystemMessage("rules"), UserMessage("a\n\nb"))
    assert isinstance(called, AssistantMessage)
    assert called.tool_calls[0].id == "c1"
    assert result == ToolMessage("r", "c1")
    assert thought == AssistantMessage("yes", "hm")
    assert literal == AssistantMessage("use </think> like this", "")
    assert (middle, empty) == (SystemMessage("mid"), UserMessage(""))


def test_an_image_is_refused_by_its_place() -> None:
    image = {"type": "image_url", "image_url": {"url": "data:"}}
    with pytest.raises(RefusedError) as refused:
        read(messages=[{"role": "user", "content": [image]}])
    assert refused.value.field == "messages[0].content[0].type"


def test_a_message_to_continue() -> None:
    begun = [HI, {"role": "assistant", "content": "Once"}]
    assert not conversation(messages=begun).continue_last
    assert conversation(messages=[HI, {**begun[1], "prefix": True}]).continue_last
    assert conversation(messages=begun, continue_final_message=True, add_generation_prompt=False).continue_last
    with pytest.raises(RefusedError, match="the last message is not the assistant's"):
        read(continue_final_message=True)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, Choice()),
        ("auto", Choice()),
        ("none", Choice("none")),
        ("required", Choice("required")),
        ({"type": "function", "function": {"name": "look_up"}}, Choice("required", ("look_up",))),
        ({"type": "function", "name": "look_up"}, Choice("required", ("look_up",))),
        (
            {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "look_up"}]},
            Choice("required", ("look_up",)),
        ),
    ],
)
def test_which_tools(value: object, expected: Choice) -> None:
    assert conversation(tools=[TOOL], tool_choice=value).choice == expected


def test_the_form_of_an_answer() -> None:
    schema = {"type": "object"}
    named = {"name": "s", "strict": True, "schema": schema}
    asked = read(response_format={"type": "json_schema", "json_schema": named})
    assert (asked.sampling.json_schema, asked.ignored) == (schema, ())
    assert conversation(response_format={"type": "json_object"}).reply is not None
    assert read(response_format={"type": "json_object"}).sampling.json_object
    assert read(response_format={"type": "text"}).sampling.json_schema is None
    assert read(guided_regex="a+").sampling.regex == "a+"
    assert read(structured_outputs={"json": schema}).sampling.json_schema == schema
    with pytest.raises(RefusedError, match="response_format and guided_regex are given") as refused:
        read(guided_regex="a+", response_format={"type": "json_object"})
    assert refused.value.field == "guided_regex"
    with pytest.raises(RefusedError, match=r"guided_json and structured_outputs\.json are given"):
        read(guided_json={}, structured_outputs={"json": {"type": "object"}})
    with pytest.raises(RefusedError, match="guided_regex is 5"):
        read(guided_regex=5)


# ---- answers

CALLS = [(f"call_{i:02}", "look_up", json.dumps({"i": i, "text": "é" * i})) for i in range(12)]


def told(events: list[Any], usage: bool = False) -> list[Any]:
    stream = chat.Stream(chat.Style(usage), STAMP)
    read = sse_events(line for event in events for line in stream.write(event))
    assert all(name is None for name, _ in read)
    return [data for _, data in read]


def test_a_whole_answer() -> None:
    body = chat.whole(chat.Style(), STAMP, outcome(spoken("Hel", "lo", thought="think")))
    assert list(body) == ["id", "object", "created", "model", "choices", "usage"]
    assert (body["id"], body["object"], body["created"], body["model"]) == (
        "chatcmpl-" + STAMP.id, "chat.completion", 1_700_000_000, "a-model",
    )  # fmt: skip
    assert body["choices"] == [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "Hello", "refusal": None, "reasoning_content": "think"},
            "logprobs": None,
            "finish_reason": "stop",
            "stop_reason": None,
        }
    ]
    assert body["usage"] == {
        "prompt_tokens": 20, "completion_tokens": 12, "total_tokens": 32,
        "prompt_tokens_details": {"cached_tokens": 16}, "completion_tokens_details": {"reasoning_tokens": 4},
        "prompt_cache_hit_tokens": 16, "prompt_cache_miss_tokens": 4,
    }  # fmt: skip


def test_twelve_calls_in_a_row() -> None:
    *chunks, last = told(spoken("Let me see.", calls=CALLS))
    assert last == "[DONE]"
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    assert [i for i, delta in enumerate(deltas) if "role" in delta] == [0]
    assert chunks[-1]["choices"][0]["finish_reason"] == "tool_calls"
    assert deltas[-1] == {}
    assert all(chunk["choices"][0]["finish_reason"] is None for chunk in chunks[:-1])
    calls = [delta["tool_calls"][0] for delta in deltas if "tool_calls" in delta]
    for index, (id, name, arguments) in enumerate(CALLS):
        first, *rest = [call for call in calls if call["index"] == index]
        function = {"name": name, "arguments": ""}
        assert first == {"index": index, "id": id, "type": "function", "function": function}
        assert all(set(call) == {"index", "function"} and set(call["function"]) == {"arguments"} for call in rest)
        assert "".join(call["function"]["arguments"] for call in rest) == arguments
    assert [call["index"] for call in calls] == sorted(call["index"] for call in calls)
    body = chat.whole(chat.Style(), STAMP, outcome(spoken("Let me see.", calls=CALLS)))
    message = body["choices"][0]["message"]
    assert [(c["id"], c["function"]["name"], c["function"]["arguments"]) for c in message["tool_calls"]] == CALLS
    assert chat.whole(chat.Style(), STAMP, outcome(spoken(calls=CALLS)))["choices"][0]["message"]["content"] is None


def test_usage_comes_once_and_when_asked() -> None:
    with_usage, without = told(spoken("x"), usage=True), told(spoken("x"))
    assert with_usage[:-2] == without[:-1]
    assert with_usage[-2]["choices"] == []
    assert with_usage[-2]["usage"] == chat.whole(chat.Style(), STAMP, outcome(spoken("x")))["usage"]
    assert not any("usage" in chunk for chunk in without[:-1])


@pytest.mark.parametrize(
    ("reason", "stop", "expected"),
    [
        ("length", None, ("length", None)),
        ("stop_string", "END", ("stop", "END")),
        ("repetition", None, ("stop", "repetition")),
        ("cancelled", None, ("stop", None)),
    ],
)
def test_why_it_ended(reason: Any, stop: str | None, expected: tuple[str, str | None]) -> None:
    events = [Begun(1), Said(0, "x"), Ended(0, reason, stop), DONE]
    choice = chat.whole(chat.Style(), STAMP, outcome(events))["choices"][0]
    streamed = told(events)[-2]["choices"][0]
    assert (choice["finish_reason"], choice["stop_reason"]) == expected
    assert (streamed["finish_reason"], streamed["stop_reason"]) == expected


def test_a_call_that_was_cut() -> None:
    events = [CallBegun(0, 0, "c", "f"), CallArguments(0, 0, '{"a": "b'), Ended(0, "length"), DONE]
    assert told(events)[-2]["choices"][0]["finish_reason"] == "length"
    assert chat.whole(chat.Style(), STAMP, outcome(events))["choices"][0]["finish_reason"] == "length"


def test_logprobs_go_with_their_text() -> None:
    a, b = Token(5, "A", b"A", -0.5, (Token(5, "A", b"A", -0.5),)), Token(6, "\ufffd", b"\xc3", -1.0)
    events = [Tokens(0, (a,)), Said(0, "A"), Tokens(0, (b,)), Ended(0, "length"), DONE]
    shown = [c["choices"][0] for c in told(events)[:-1]]
    item = {"token": "A", "logprob": -0.5, "bytes": [65]}
    first = {"content": [{**item, "top_logprobs": [item]}], "refusal": None}
    assert [c["logprobs"] for c in shown[:2]] == [None, first]
    assert shown[2]["logprobs"]["content"][0]["bytes"] == [0xC3]
    content = chat.whole(chat.Style(), STAMP, outcome(events))["choices"][0]["logprobs"]["content"]
    assert content == shown[1]["logprobs"]["content"] + shown[2]["logprobs"]["content"]


def test_several_answers_in_one_stream() -> None:
    events = [Said(1, "b"), Said(0, "a"), Ended(1, "stop"), Said(0, "a"), Ended(0, "stop"), DONE]
    chunks = [c["choices"][0] for c in told(events)[:-1]]
    assert [c["index"] for c in chunks if "role" in c["delta"]] == [1, 0]
    texts = ["".join(c["delta"].get("content", "") for c in chunks if c["index"] == i) for i in (0, 1)]
    assert texts == ["aa", "b"]
    assert [c["message"]["content"] for c in chat.whole(chat.Style(), STAMP, outcome(events))["choices"]] == texts


def test_a_failure_on_the_way() -> None:
    refusal = RefusedError("the model file was cut; pull it again", status=500)
    *_, error, last = told([Begun(1), Said(0, "x"), Failed(refusal)])
    assert (error["error"]["type"], last) == ("server_error", "[DONE]")
    with pytest.raises(RefusedError):
        outcome([Said(0, "x"), Failed(refusal)])
    assert told([Done(DONE.usage)]) == ["[DONE]"]


def test_text_that_no_utf8_has() -> None:
    (_, chunk, *_) = told([Said(0, "a\ud800b"), Ended(0, "stop"), DONE])
    assert chunk["choices"][0]["delta"]["content"] == "a\ufffdb"
