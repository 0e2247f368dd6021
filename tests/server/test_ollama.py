"""Ollama's chat and generate as pure translations, and what is said of models. Cases B09, D21 as far as JSON goes."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from finback.server.answer import (
    AnswerEvent,
    Begun,
    CallArguments,
    CallBegun,
    Ended,
    Failed,
    Said,
    Thought,
    Token,
    Tokens,
    outcome,
)
from finback.server.ask import Ask, Chat, Defaults, Raw, RefusedError
from finback.server.dialects import ollama, ollama_models
from finback.server.dialects.ollama import Style
from finback.text.messages import AssistantMessage, SystemMessage, ToolCall, ToolMessage, UserMessage
from finback.text.render import JsonReply
from tests.server.streams import DONE, STAMP, spoken

HI = {"role": "user", "content": "Hi"}
TOOL = {"type": "function", "function": {"name": "look_up", "parameters": {"type": "object"}}}
CREATED = "2023-11-14T22:13:20.250000Z"
CHAT, GENERATE = Style(generate=False), Style(generate=True)
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}


def read(**body: Any) -> Ask:
    return ollama.read_chat({"model": "m", "messages": [HI], **body}, Defaults())[0]


def conversation(**body: Any) -> Chat:
    prompt = read(**body).prompt
    assert isinstance(prompt, Chat)
    return prompt


def generate(**body: Any) -> Ask:
    return ollama.read_generate({"model": "m", "prompt": "Hi", **body}, Defaults())[0]


# ---- parameters


def test_options_arrive() -> None:
    options = {
        "temperature": 0.5, "top_p": 0.9, "top_k": 40, "min_p": 0.1, "seed": 7, "num_predict": 9, "stop": ["a", "b"],
        "repeat_penalty": 1.1, "presence_penalty": 1, "frequency_penalty": 0.5, "repeat_last_n": -1,
    }  # fmt: skip
    for ask in (read(options=options, logprobs=True, top_logprobs=3, stream=False), generate(options=options)):
        p = ask.sampling
        assert (p.temperature, p.top_p, p.top_k, p.min_p, p.seed, p.max_tokens) == (0.5, 0.9, 40, 0.1, 7, 9)
        assert (p.repetition_penalty, p.presence_penalty, p.frequency_penalty) == (1.1, 1, 0.5)
        assert (p.stop, p.n, ask.model, ask.ignored) == (("a", "b"), 1, "m", ())
    asked = read(logprobs=True, top_logprobs=3, stream=False)
    assert (asked.sampling.logprobs, asked.stream) == (3, False)
    assert (generate(logprobs=True).sampling.logprobs, generate().sampling.logprobs) == (0, None)


def test_a_stream_is_what_one_gets() -> None:
    assert (read().stream, read(stream=None).stream, generate().stream) == (True, True, True)
    assert not generate(stream=False).stream


def test_odd_numbers_that_have_a_meaning() -> None:
    def sampled(**options: Any) -> Any:
        return read(options=options).sampling

    assert [sampled(num_predict=n).max_tokens for n in (-2, -1, 0, 5.0, None)] == [None, None, None, 5, None]
    assert (sampled(seed=-1).seed, sampled(seed=0).seed, sampled(top_k=-1).top_k) == (None, 0, 0)
    assert sampled(stop="x").stop == ("x",)
    assert sampled(stop=[]).stop == ()
    assert read(options=None).sampling.repetition_penalty is None
    unpenalised = sampled(repeat_last_n=0, repeat_penalty=1.5, presence_penalty=1)
    assert (unpenalised.repetition_penalty, unpenalised.presence_penalty) == (1.0, 0.0)
    assert sampled(repeat_last_n=64, repeat_penalty=1.0).repetition_penalty == 1.0


def test_the_machine_is_the_servers_and_neutral_values_pass() -> None:
    taken = {
        "num_ctx": 4096, "num_keep": 5, "num_batch": 512, "num_gpu": 1, "num_thread": 8, "main_gpu": 0,
        "use_mmap": True, "use_mlock": False, "numa": False, "low_vram": False, "f16_kv": True, "mirostat": 0,
        "mirostat_tau": 5.0, "mirostat_eta": 0.1, "tfs_z": 1, "typical_p": 1.0, "penalize_newline": False,
        "repeat_last_n": 64,
    }  # fmt: skip
    assert read(options=taken, truncate=True, shift=False).ignored == ()
    assert read(options={"rope": 1, "num_ctx": 5}, banana=2).ignored == ("banana", "options.rope")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *[("model", bad) for bad in (None, "", 5)],
        *[("messages", bad) for bad in ("Hi", 5, {}, [5], [{}], [{"role": "king", "content": "x"}], [{"role": 5}])],
        *[("messages[0].content", [{"role": "user", "content": bad}]) for bad in (5, {}, True)],
        ("messages[0].images", [{**HI, "images": ["aGk="]}]),
        ("messages[0].thinking", [{"role": "assistant", "content": "x", "thinking": 5}]),
        ("messages[0].tool_calls", [{"role": "assistant", "tool_calls": "f"}]),
        ("messages[0].tool_calls[0].function", [{"role": "assistant", "tool_calls": [{"name": "f"}]}]),
        ("messages[0].tool_calls[0].function.name", [{"role": "assistant", "tool_calls": [{"function": {}}]}]),
        (
            "messages[0].tool_calls[0].function.arguments",
            [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": 5}}]}],
        ),
        ("messages[0].tool_name", [{"role": "tool", "content": "x", "tool_name": 5}]),
        *[("tools", bad) for bad in ("x", [5], [{"type": "custom"}], [TOOL, TOOL])],
        *[("format", bad) for bad in ("yaml", 5, True, [])],
        *[("think", bad) for bad in ("hard", 1, {}, "")],
        *[("keep_alive", bad) for bad in ("soon", "5 m", "5x", "", True, [], "m", 1e30, float("nan"), "1" * 65)],
        *[("stream", bad) for bad in ("yes", 1)],
        ("logprobs", 5), ("top_logprobs", 3), ("top_logprobs", 21), ("options", "x"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named(field: str, value: object) -> None:
    with pytest.raises(RefusedError) as refused:
        read(**{field.partition("[")[0]: value})
    assert refused.value.status == 400
    assert refused.value.field is not None
    assert refused.value.field.startswith(field)
    assert str(refused.value).startswith(field)
    assert ollama.error_body(refused.value) == {"error": str(refused.value)}


@pytest.mark.parametrize(
    ("option", "value"),
    [
        *[("num_predict", bad) for bad in (-3, 1.5, "10", True)],
        *[("temperature", bad) for bad in (-1, "hot", True, float("nan"))],
        *[("stop", bad) for bad in ("", 5, ["a", ""], [str(i) for i in range(17)])],
        *[("top_k", bad) for bad in (-2, "5")],
        ("top_p", 1.5), ("min_p", -0.1), ("seed", 1.5), ("repeat_penalty", 0), ("presence_penalty", 3),
        ("frequency_penalty", "x"), ("mirostat", 1), ("mirostat", 2.0), ("tfs_z", 0.5), ("typical_p", 0.7),
        ("repeat_last_n", -2),
    ],
)  # fmt: skip
def test_an_option_that_is_wrong_is_named(option: str, value: object) -> None:
    for ask in (read, generate):
        with pytest.raises(RefusedError) as refused:
            ask(options={option: value})
        assert (refused.value.status, refused.value.field) == (400, f"options.{option}")
        assert str(refused.value).startswith(f"options.{option} ")


@pytest.mark.parametrize("penalty", ["repeat_penalty", "presence_penalty", "frequency_penalty"])
def test_a_window_beside_a_penalty(penalty: str) -> None:
    for name, value in (("repeat_last_n", 64), ("penalize_newline", False)):
        with pytest.raises(RefusedError) as refused:
            read(options={penalty: 1.5, name: value})
        assert refused.value.field == f"options.{name}"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("images", ["aGk="]), ("template", "{{ .Prompt }}"), ("context", [1, 2]), ("width", 512), ("prompt", 5),
        ("suffix", ["x"]), ("system", 5), ("raw", "yes"), ("model", None), ("think", "hard"), ("format", "xml"),
    ],
)  # fmt: skip
def test_what_is_wrong_in_generate(field: str, value: object) -> None:
    with pytest.raises(RefusedError) as refused:
        generate(**{field: value})
    assert (refused.value.status, refused.value.field) == (400, field)


@pytest.mark.parametrize("body", [[], "x", None, 5])
def test_a_body_that_is_no_object(body: object) -> None:
    for read_body in (ollama.read_chat, ollama.read_generate):
        with pytest.raises(RefusedError, match=r"the body is .*; give an object"):
            read_body(body, Defaults())


@pytest.mark.parametrize(
    ("body", "defaults", "expected"),
    [
        ({}, Defaults(), (True, None)),
        ({}, Defaults(True, "max"), (True, "max")),
        ({}, Defaults(False, "max"), (False, "max")),
        ({}, Defaults(True, "none"), (False, None)),
        ({"think": None}, Defaults(False), (False, None)),
        ({"think": True}, Defaults(False, "low"), (True, "low")),
        ({"think": True}, Defaults(True, "none"), (True, None)),
        ({"think": False}, Defaults(), (False, None)),
        *[({"think": word}, Defaults(False, "max"), (True, word)) for word in ("low", "medium", "high", "max")],
    ],
)
def test_thinking(body: dict[str, Any], defaults: Defaults, expected: tuple[bool, object]) -> None:
    for ask, _ in (
        ollama.read_chat({"model": "m", "messages": [HI], **body}, defaults),
        ollama.read_generate({"model": "m", "prompt": "x", **body}, defaults),
    ):
        assert isinstance(ask.prompt, Chat)
        assert (ask.prompt.thinking, ask.prompt.effort) == expected


def test_the_form_of_an_answer() -> None:
    for ask in (read, generate):
        assert ask(format="json").sampling.json_object
        assert ask(format=SCHEMA).sampling.json_schema == SCHEMA
        for none in ("", None):
            p = ask(format=none).sampling
            assert (p.json_object, p.json_schema) == (False, None)
    assert conversation(format="json").reply == JsonReply()
    assert conversation(format=SCHEMA).reply == JsonReply(SCHEMA)
    assert conversation(format="").reply is None
    raw = generate(format=SCHEMA, raw=True)
    assert (raw.prompt, raw.sampling.json_schema) == (Raw("Hi"), SCHEMA)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, None), (0, 0), ("0", 0), ("0s", 0), (300, 300), (1.5, 1.5), ("5m", 300), ("1h30m", 5400),
        ("1.5h", 5400), ("500ms", 0.5), (".5s", 0.5), ("+2s", 2), ("10", 10), (-1, math.inf), ("-1", math.inf),
        ("-1m", math.inf), (-0.5, math.inf), ("24h", 86400), ("1m1s1ms", 61.001), ("3us", 3e-6), ("3µs", 3e-6),
    ],
)  # fmt: skip
def test_how_long_a_model_stays(value: object, expected: float | None) -> None:
    for read_body in (ollama.read_chat, ollama.read_generate):
        body = {"model": "m", "messages": [HI], "prompt": "x", "keep_alive": value}
        style = read_body(body, Defaults())[1]
        assert (style.keep_alive, style.load_only) == (pytest.approx(expected) if expected else expected, False)


@pytest.mark.parametrize(
    ("body", "keep_alive"),
    [({}, None), ({"messages": [], "prompt": ""}, None), ({"keep_alive": 0}, 0), ({"keep_alive": "1m"}, 60)],
)
def test_to_load_and_to_unload(body: dict[str, Any], keep_alive: float | None) -> None:
    ask, style = ollama.read_chat({"model": "m", **body}, Defaults())
    assert (ask.prompt, style) == (Raw("", only_read=True), Style(False, keep_alive, load_only=True))
    assert ask.ignored == (("prompt",) if "prompt" in body else ())
    ask, style = ollama.read_generate({"model": "m", "system": "s", **body}, Defaults())
    assert (ask.prompt, style) == (Raw("", only_read=True), Style(True, keep_alive, load_only=True))


# ---- messages


def test_shapes_of_messages() -> None:
    prompt = conversation(
        messages=[
            {"role": "System", "content": "rules", "extra": 1},
            {"role": "user", "content": "a", "images": None},
            {"role": "assistant", "content": "b", "thinking": "hm", "images": []},
            {"role": "user", "content": [{"type": "text", "text": "c"}]},
            {"role": "assistant"},
            {"role": "user"},
        ]
    )
    assert prompt.messages == (
        SystemMessage("rules"),
        UserMessage("a"),
        AssistantMessage("b", "hm"),
        UserMessage("c"),
        AssistantMessage("", ""),
        UserMessage(""),
    )
    assert not prompt.continue_last


def test_a_last_message_of_the_models_is_gone_on_with() -> None:
    begun = [HI, {"role": "assistant", "content": "Once"}]
    assert conversation(messages=begun).continue_last
    called = [HI, {"role": "assistant", "tool_calls": [{"function": {"name": "f"}}]}]
    assert not conversation(messages=called).continue_last


def turn(*calls: tuple[str, dict[str, Any]] | tuple[str, dict[str, Any], str]) -> dict[str, Any]:
    made = [
        {**({"id": rest[0]} if rest else {}), "function": {"name": name, "arguments": arguments}}
        for name, arguments, *rest in calls
    ]
    return {"role": "assistant", "content": "", "tool_calls": made}


def results(*messages: dict[str, Any]) -> list[tuple[str, str | None]]:
    prompt = conversation(messages=list(messages))
    return [(m.content, m.call_id) for m in prompt.messages if isinstance(m, ToolMessage)]


def test_calls_get_ids_that_sort_as_they_stand() -> None:
    first, second = turn(("f", {"b": 1, "a": "é"}), ("g", {})), turn(*[("f", {"i": i}) for i in range(120)])
    prompt = conversation(messages=[HI, first, second, {"role": "user", "content": "go"}])
    _, a, b, _ = prompt.messages
    assert isinstance(a, AssistantMessage)
    assert isinstance(b, AssistantMessage)
    assert a.tool_calls == (ToolCall("call_0000", "f", '{"b": 1, "a": "é"}'), ToolCall("call_0001", "g", "{}"))
    ids = [call.id for call in b.tool_calls]
    assert (len(set(ids)), sorted(ids)) == (120, ids)
    assert not set(ids) & {"call_0000", "call_0001"}


def test_results_find_their_calls() -> None:
    two = turn(("f", {}), ("g", {}))
    r1, r2 = {"role": "tool", "content": "1"}, {"role": "tool", "content": "2"}
    f, g = "call_0000", "call_0001"
    assert results(HI, two, r1, r2) == [("1", f), ("2", g)]
    assert results(HI, two, {**r1, "tool_name": "g"}, {**r2, "tool_name": "f"}) == [("1", g), ("2", f)]
    assert results(HI, two, {**r1, "name": "g"}, r2) == [("1", g), ("2", f)]
    assert results(HI, two, {**r1, "tool_name": "other"}) == [("1", f)]
    assert results(HI, turn(("f", {}), ("f", {})), {**r1, "tool_name": "f"}, {**r2, "tool_name": "f"}) == [
        ("1", f),
        ("2", g),
    ]
    named = turn(("f", {}, "z"), ("f", {}, "y"))
    assert results(HI, named, {**r1, "tool_call_id": "y"}, {**r2, "tool_call_id": "z"}) == [("1", g), ("2", f)]
    assert results(HI, r1) == [("1", None)]
    assert results(HI, two, r1, r2, r1)[2] == ("1", None)
    assert results(HI, two, r1, turn(("h", {})), r2) == [("1", f), ("2", "call_0002")]


def test_tools() -> None:
    untyped = {"function": {"name": "look_up", "description": "d", "parameters": {"type": "object"}}}
    (tool,) = conversation(tools=[untyped]).tools
    assert (tool.name, tool.description) == ("look_up", "d")
    assert conversation(tools=[TOOL]).tools[0].parameters == {"type": "object"}
    assert conversation(tools=None).tools == ()


def test_prompts_of_generate() -> None:
    asked = generate(system="Be brief.").prompt
    assert asked == Chat((SystemMessage("Be brief."), UserMessage("Hi")))
    assert generate(images=[], template="", context=[], system="", suffix="").prompt == Chat((UserMessage("Hi"),))
    assert generate(raw=True, think=False).prompt == Raw("Hi")
    assert generate(suffix="}").prompt == Raw("Hi", "}")
    assert generate(prompt="", suffix="}").prompt == Raw("", "}")
    for beside in ({"raw": True}, {"suffix": "}"}):
        for field, value in (("system", "x"), ("think", True), ("think", "low")):
            with pytest.raises(RefusedError) as refused:
                generate(**beside, **{field: value})
            assert refused.value.field == field


# ---- answers

CALLS = [(f"call_{i:02}", "look_up", json.dumps({"i": i, "text": "é" * i})) for i in range(12)]
END = {
    "done": True, "done_reason": "stop", "total_duration": 1_750_000_000, "load_duration": 0, "prompt_eval_count": 20,
    "prompt_eval_duration": 500_000_000, "eval_count": 12, "eval_duration": 1_000_000_000,
}  # fmt: skip


def told(style: Style, events: list[AnswerEvent]) -> list[dict[str, Any]]:
    """Each chunk is one whole line of JSON."""
    stream, lines = ollama.Stream(style, STAMP), []
    for event in events:
        for chunk in stream.write(event):
            assert chunk.endswith(b"\n")
            assert chunk.count(b"\n") == 1
            lines.append(json.loads(chunk))
    return lines


def joined(style: Style, lines: list[dict[str, Any]]) -> dict[str, Any]:
    """A stream put together to one object, as clients do it."""
    whole, pieces = dict(lines[-1]), [line if style.generate else line["message"] for line in lines]
    text = {name: "".join(piece.get(name, "") for piece in pieces) for name in ("content", "response", "thinking")}
    calls = [call for piece in pieces for call in piece.get("tool_calls", ())]
    logprobs = [item for line in lines for item in line.get("logprobs", ())]
    said: dict[str, Any] = {"response": text["response"]} if style.generate else {"content": text["content"]}
    said |= {"thinking": text["thinking"]} if text["thinking"] else {}
    said |= {"tool_calls": calls} if calls else {}
    whole |= said if style.generate else {"message": {"role": "assistant", **said}}
    return {**whole, **({"logprobs": logprobs} if logprobs else {})}


def both(style: Style, events: list[AnswerEvent]) -> dict[str, Any]:
    """The answer at once, which its stream is too."""
    lines = told(style, events)
    assert [line["done"] for line in lines] == [False] * (len(lines) - 1) + [True]
    whole = ollama.whole(style, STAMP, outcome(events))
    assert joined(style, lines) == whole
    return whole


def test_a_whole_chat() -> None:
    body = both(CHAT, spoken("Hel", "lo", thought="think"))
    assert list(body) == ["model", "created_at", "message", *END]
    message = {"role": "assistant", "content": "Hello", "thinking": "think"}
    assert body == {"model": "a-model", "created_at": CREATED, "message": message, **END}
    assert both(CHAT, spoken("x"))["message"] == {"role": "assistant", "content": "x"}


def test_a_whole_text() -> None:
    body = both(GENERATE, spoken("Hel", "lo", thought="think"))
    assert list(body) == ["model", "created_at", "response", "thinking", *END]
    assert body == {"model": "a-model", "created_at": CREATED, "response": "Hello", "thinking": "think", **END}
    assert "thinking" not in both(GENERATE, spoken("x"))


def test_lines_come_in_order() -> None:
    head = {"model": "a-model", "created_at": CREATED}
    *pieces, last = told(CHAT, spoken("Hel", "lo", thought="think"))
    assert [(p["message"].get("thinking"), p["message"]["content"]) for p in pieces] == [
        ("thi", ""), ("nk", ""), (None, "Hel"), (None, "lo"),
    ]  # fmt: skip
    assert all(set(p) == {"model", "created_at", "message", "done"} for p in pieces)
    assert last == {**head, "message": {"role": "assistant", "content": ""}, **END}
    *pieces, last = told(GENERATE, spoken("Hel", thought="think"))
    assert pieces[0] == {**head, "response": "", "thinking": "thi", "done": False}
    assert last == {**head, "response": "", **END}


def test_a_line_that_says_nothing() -> None:
    head = {"model": "a-model", "created_at": CREATED}
    said = {"message": {"role": "assistant", "content": ""}}
    stream = ollama.Stream(CHAT, STAMP)
    stream.write(Tokens(0, (Token(5, "A", b"A", -0.5),)))
    assert json.loads(stream.ping()) == {**head, **said, "done": False}
    assert "logprobs" in json.loads(stream.write(Said(0, "A"))[0])
    assert json.loads(ollama.Stream(GENERATE, STAMP).ping()) == {**head, "response": "", "done": False}
    assert stream.ping().endswith(b"\n")


def test_twelve_calls_in_a_row() -> None:
    message = both(CHAT, spoken("Let me see.", calls=CALLS))["message"]
    assert message["content"] == "Let me see."
    assert message["tool_calls"] == [
        {"id": id, "function": {"index": index, "name": name, "arguments": json.loads(arguments)}}
        for index, (id, name, arguments) in enumerate(CALLS)
    ]
    _, *lines, last = told(CHAT, spoken("Let me see.", calls=CALLS))
    assert [len(line["message"]["tool_calls"]) for line in lines] == [1] * 12
    assert last["done_reason"] == "stop"


def test_a_call_that_was_cut_is_not_told() -> None:
    begun: list[AnswerEvent] = [CallBegun(0, 1, "d", "f"), CallArguments(0, 1, '{"a": "b'), Ended(0, "length"), DONE]
    events = [*spoken(calls=CALLS[:1])[:-2], *begun]
    body = both(CHAT, events)
    assert [call["id"] for call in body["message"]["tool_calls"]] == ["call_00"]
    assert body["done_reason"] == "length"


@pytest.mark.parametrize(
    ("reason", "expected"),
    [
        ("stop", "stop"), ("stop_string", "stop"), ("length", "length"), ("tool_calls", "stop"),
        ("repetition", "stop"), ("cancelled", "stop"),
    ],
)  # fmt: skip
def test_why_it_ended(reason: Any, expected: str) -> None:
    events: list[AnswerEvent] = [Begun(1), Said(0, "x"), Ended(0, reason), DONE]
    assert both(CHAT, events)["done_reason"] == expected
    assert both(GENERATE, events)["done_reason"] == expected


def test_logprobs_go_with_their_text() -> None:
    top = (Token(5, "A", b"A", -0.5), Token(7, "B", b"B", -2.0))
    a, b, c = Token(5, "A", b"A", -0.5, top), Token(6, "\ufffd", b"\xc3", -1.0), Token(1, "", b"", -0.1)
    events: list[AnswerEvent] = [
        Tokens(0, (a,)), Thought(0, "A"), Tokens(0, (b,)), Tokens(0, (b,)), Said(0, "x"), Tokens(0, (c,)),
        Ended(0, "stop"), DONE,
    ]  # fmt: skip
    for style in (CHAT, GENERATE):
        first, second, last = told(style, events)
        assert first["logprobs"] == [
            {
                "token": "A",
                "logprob": -0.5,
                "bytes": [65],
                "top_logprobs": [
                    {"token": "A", "logprob": -0.5, "bytes": [65]},
                    {"token": "B", "logprob": -2.0, "bytes": [66]},
                ],
            }
        ]
        assert [item["bytes"] for item in second["logprobs"]] == [[0xC3], [0xC3]]
        assert [item["logprob"] for item in last["logprobs"]] == [-0.1]
        assert len(both(style, events)["logprobs"]) == 4
    assert not any("logprobs" in line for line in told(CHAT, spoken("x")))


def test_a_failure_on_the_way() -> None:
    refusal = RefusedError("the model file was cut; pull it again", status=500)
    *_, error = told(CHAT, [Begun(1), Said(0, "x"), Failed(refusal)])
    assert error == {"error": "the model file was cut; pull it again"}
    with pytest.raises(RefusedError):
        outcome([Said(0, "x"), Failed(refusal)])


def test_text_that_no_utf8_has() -> None:
    piece, _ = told(CHAT, [Said(0, "a\ud800b"), Ended(0, "stop"), DONE])
    assert piece["message"]["content"] == "a\ufffdb"


def test_loading_is_told() -> None:
    message = {"role": "assistant", "content": ""}
    assert ollama.loaded(CHAT, STAMP, unloaded=False) == {
        "model": "a-model", "created_at": CREATED, "message": message, "done": True, "done_reason": "load",
    }  # fmt: skip
    assert ollama.loaded(GENERATE, STAMP, unloaded=True) == {
        "model": "a-model", "created_at": CREATED, "response": "", "done": True, "done_reason": "unload",
    }  # fmt: skip


@pytest.mark.parametrize("name", ["embed", "embeddings", "pull", "push", "create", "copy", "delete", "blobs"])
def test_endpoints_that_are_not_here(name: str) -> None:
    refusal = ollama.not_here(name)
    assert refusal.status == 501
    assert str(refusal).startswith(f"/api/{name}: ")


# ---- models

MODEL = ollama_models.ServedModel(
    name="v4", digest="ab" * 32, size=160_000_000_000, parameters=284_900_000_000, quantization="FP4",
    format="safetensors", family="deepseek4", context_length=1_048_576, embedding_length=4096, modified=STAMP.created,
    memory=170_000_000_000, expires=STAMP.created + 300,
)  # fmt: skip
DETAILS = {
    "parent_model": "", "format": "safetensors", "family": "deepseek4", "families": ["deepseek4"],
    "parameter_size": "284.9B", "quantization_level": "FP4",
}  # fmt: skip


def test_models_that_there_are() -> None:
    assert ollama_models.tags([]) == {"models": []}
    assert ollama_models.tags([MODEL, MODEL])["models"][1] == {
        "name": "v4", "model": "v4", "modified_at": CREATED, "size": 160_000_000_000, "digest": "ab" * 32,
        "details": DETAILS,
    }  # fmt: skip


def test_models_in_memory() -> None:
    kept = ollama_models.ServedModel("k", "cd" * 32, 1, 999, "F32", "gguf", "f", 8, 4, 0.0, on_gpu=3, memory=5)
    first, second = ollama_models.ps([MODEL, kept])["models"]
    assert first == {
        "name": "v4", "model": "v4", "size": 170_000_000_000, "digest": "ab" * 32, "details": DETAILS,
        "expires_at": "2023-11-14T22:18:20.250000Z", "size_vram": 0, "context_length": 1_048_576,
    }  # fmt: skip
    assert (second["expires_at"], second["size"], second["size_vram"]) == ("2300-01-01T00:00:00Z", 5, 3)
    assert second["details"]["parameter_size"] == "999"


@pytest.mark.parametrize(
    ("number", "text"), [(0, "0"), (1500, "1.5K"), (7_000_000, "7.0M"), (1_600_000_000_000, "1600.0B")]
)
def test_how_many_parameters(number: int, text: str) -> None:
    made = ollama_models.ServedModel("k", "", 1, number, "F32", "gguf", "f", 8, 4, 0.0)
    assert ollama_models.tags([made])["models"][0]["details"]["parameter_size"] == text


def test_one_model() -> None:
    body = ollama_models.show(MODEL)
    assert body["model_info"]["general.architecture"] == "deepseek4"
    assert body["model_info"]["deepseek4.context_length"] == 1_048_576
    assert body["model_info"]["deepseek4.embedding_length"] == 4096
    assert body["model_info"]["general.parameter_count"] == 284_900_000_000
    assert (body["capabilities"], body["details"]) == (["completion", "tools", "thinking"], DETAILS)
    assert body["parameters"].split() == ["num_ctx", "1048576"]
    assert (body["modified_at"], ".Suffix" in body["template"]) == (CREATED, False)
    filled = ollama_models.ServedModel("k", "", 1, 2, "F32", "gguf", "f", 8, 4, 0.0, ("completion", "insert"))
    assert ".Suffix" in ollama_models.show(filled)["template"]


def test_which_model_is_asked_for() -> None:
    assert ollama_models.read_show({"model": "a", "name": "b"}) == "a"
    assert ollama_models.read_show({"name": "b", "verbose": True}) == "b"
    for body in ({}, {"model": ""}, {"model": 5}, {"name": 5}):
        with pytest.raises(RefusedError) as refused:
            ollama_models.read_show(body)
        assert refused.value.field in ("model", "name")


def test_the_version_is_one_that_clients_compare() -> None:
    body = ollama_models.version("0.1")
    assert [int(part) for part in body["version"].split(".")] >= [0, 6, 4]
    assert body["server"] == "finback 0.1"
