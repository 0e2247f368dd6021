"""The prompt format, byte for byte, against the published encoder, and cases that people met: B01, B03, B05, B07."""

from __future__ import annotations

import json

import pytest
from deepseek_recipe import ChatCompletionRequest, ConversionOptions, DeepseekV4Encoding
from deepseek_recipe import Tokenizer as RecipeTokenizer

from finback.errors import RequestError
from finback.text.dialects import EFFORT_WORDS, V4_0731, V4_PREVIEW, find_dialect
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
from finback.text.prompt import Control
from finback.text.render import render
from finback.text.tokenizer import Tokenizer
from tests.text.support import TINY_PATH, published, published_path, random_case, tiny, tokenizer_json

BOS, EOS = "<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>"
ORACLE = DeepseekV4Encoding()


def control_spans(prompt) -> list[tuple[int, int]]:
    """Where the control tokens of a prompt lie in its text."""
    spans, position = [], 0
    for segment in prompt.segments:
        value = segment.content if isinstance(segment, Control) else segment.value
        if isinstance(segment, Control):
            spans.append((position, position + len(value)))
        position += len(value)
    return spans


def test_random_conversations_render_as_the_published_encoder_renders_them():
    for seed in range(4000):
        case = random_case(seed)
        theirs = ORACLE.render_conversation(case.theirs)
        ours = render(case.messages, **case.arguments)
        assert ours.text == theirs.prompt, f"seed {seed}"
        assert control_spans(ours) == theirs.special_ranges, f"seed {seed}"


@pytest.mark.parametrize("vocabulary", ["published", "tiny"])
def test_random_conversations_encode_as_the_published_encoder_encodes_them(vocabulary):
    path, ours = (published_path(), published()) if vocabulary == "published" else (TINY_PATH, tiny())
    oracle = ORACLE.with_tokenizer(RecipeTokenizer.from_file(str(path)))
    for seed in range(600):
        case = random_case(seed)
        encoded = ours.encode_prompt(render(case.messages, **case.arguments))
        assert encoded.ids == oracle.encode(case.theirs), f"seed {seed}"


@pytest.mark.parametrize("thinking", [True, False])
def test_request_bodies_render_as_the_published_server_renders_them(thinking):
    tools = [
        {"type": "function", "function": {"name": "bare"}},
        {
            "type": "function",
            "function": {"name": "look_up", "description": "é", "parameters": {"type": "object"}},
        },
    ]
    call = {"id": "c2", "type": "function", "function": {"name": "look_up", "arguments": '{"place": "Oslo"}'}}
    other = {"id": "c1", "type": "function", "function": {"name": "bare", "arguments": "{}"}}
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": ""}, {"type": "text", "text": "b"}]
    history = [
        {"role": "system", "content": parts},
        {"role": "user", "content": parts, "name": "ignored"},
        {"role": "assistant", "content": None, "reasoning_content": "r", "tool_calls": [call, other]},
        {"role": "tool", "tool_call_id": "c2", "content": parts},
        {"role": "tool", "tool_call_id": "c1", "content": "B"},
        {"role": "assistant", "content": "no reasoning recorded"},
        {"role": "latest_reminder", "content": "LR"},
        {"role": "user", "content": []},
    ]
    continued = [{"role": "user", "content": "u"}, {"role": "assistant", "content": "and", "prefix": True}]
    mode = {"thinking": {"type": "enabled" if thinking else "disabled"}}
    requests = [(continued, [])]  # the published server continues a message only where no tools are about
    for messages in (history, history[:2], history[2:6]):
        requests += [(messages, []), (messages, tools)]
    for messages, declared in requests:
        body = {"model": "DeepSeek-V4-Pro", "messages": messages, **mode}
        if declared:
            body["tools"] = declared
        conversation = ChatCompletionRequest(body).convert(ConversionOptions()).conversation
        ours = render(
            messages_from_json(messages, thinking=thinking),
            tools=tools_from_json(declared),
            thinking=thinking,
            continue_last=wants_continuation(messages),
        )
        assert ours.text == ORACLE.render_conversation(conversation).prompt


def test_chat_and_thinking_mode_of_a_short_conversation():
    messages = [
        SystemMessage("Be brief."), UserMessage(" Hi \n"), AssistantMessage("Hello"), UserMessage("Again"),
    ]  # fmt: skip
    head = f"{BOS}Be brief.<｜User｜> Hi \n<｜Assistant｜></think>Hello{EOS}<｜User｜>Again<｜Assistant｜>"
    assert render(messages, thinking=False).text == head + "</think>"
    assert render(messages, thinking=True, effort="low").text == head + "<think>"


@pytest.mark.parametrize(
    ("answered", "expected"),
    [
        (["c2", "c1"], "<tool_result>r-c1</tool_result>\n\n<tool_result>r-c2</tool_result>\n\nGo on"),
        (["c1"], "<tool_result>r-c1</tool_result>\n\nGo on"),
        ([], "Go on"),
    ],
)
def test_results_are_folded_into_the_next_user_turn_in_call_order(answered, expected):
    calls = (ToolCall("c1", "f", "{}"), ToolCall("c2", "f", "{}"))
    results = [ToolMessage(f"r-{call_id}", call_id) for call_id in answered]
    messages = [UserMessage("u"), AssistantMessage("", None, calls), *results, UserMessage("Go on")]
    text = render(messages, thinking=False).text
    assert text.endswith(f"{EOS}<｜User｜>{expected}<｜Assistant｜></think>")


def test_three_results_in_reverse_order():
    calls = tuple(ToolCall(f"c{n}", "f", "{}") for n in (1, 2, 3))
    results = [ToolMessage(f"r{n}", f"c{n}") for n in (3, 2, 1)]
    text = render([UserMessage("u"), AssistantMessage("", None, calls), *results], thinking=False).text
    assert text.index("r1") < text.index("r2") < text.index("r3")


def test_a_closing_tag_in_old_content_stays_content():
    messages = [UserMessage("u"), AssistantMessage("use </think> like this"), UserMessage("ok")]
    prompt = render(messages, thinking=True, effort="low")
    assert "<｜Assistant｜></think>use </think> like this" in prompt.text
    assert [s.content for s in prompt.segments if isinstance(s, Control)].count("</think>") == 1


def test_effort_words_of_the_0731_dialect():
    texts = {word: render([UserMessage("x")], effort=word).text for word in EFFORT_WORDS}
    assert texts["minimal"] == texts["low"] == f"{BOS}<｜User｜>x<｜Assistant｜><think>"
    assert texts["medium"] == texts["high"] == texts["xhigh"]
    assert texts["high"].startswith(f"{BOS}Reasoning Effort: Absolute maximum with no shortcuts permitted.\n")
    assert texts["max"] == texts["ultra"]
    assert texts["max"].startswith(f"{BOS}Reasoning Effort: Beyond maximum — exhaustive")
    assert render([UserMessage("x")]).text == texts["high"]


def test_only_max_adds_a_text_in_the_preview_dialect():
    def head(effort):
        return render([UserMessage("x")], effort=effort, dialect=V4_PREVIEW).text.split("<｜User｜>")[0]

    assert {head(effort) for effort in (None, "minimal", "low", "medium", "high", "xhigh")} == {BOS}
    assert head("max") == BOS + V4_0731.effort_texts["high"]


def test_effort_none_turns_thinking_off_and_other_words_do_not_turn_it_on():
    off = f"{BOS}<｜User｜>x<｜Assistant｜></think>"
    assert render([UserMessage("x")], thinking=True, effort="none").text == off
    assert render([UserMessage("x")], thinking=False, effort="max").text == off


@pytest.mark.parametrize("effort", [0, 1, 50, 100, 101, -1, True, "banana", "", "HIGH"])
@pytest.mark.parametrize("thinking", [True, False])
def test_other_efforts_are_refused_by_name(effort, thinking):
    with pytest.raises(RequestError, match=r"^effort is .*knows none, minimal, low, medium, high"):
        render([UserMessage("x")], thinking=thinking, effort=effort)


def test_marks_are_message_starts_and_the_last_token():
    old = [SystemMessage("s"), UserMessage("u"), AssistantMessage("a"), ReminderMessage("r")]
    prompt = render([*old, UserMessage("v")], effort="low")
    opened = "".join(prompt.segments[mark].content for mark in prompt.marks)
    assert opened == "<｜User｜><｜Assistant｜><｜latest_reminder｜><｜User｜><｜Assistant｜><think>"


def test_tokens_before_a_mark_are_a_prefix_of_all_tokens():
    for seed in range(100):
        case = random_case(seed)
        prompt = render(case.messages, **case.arguments)
        encoded = tiny().encode_prompt(prompt)
        assert encoded.marks[-1] == len(encoded.ids) - 1
        for mark in prompt.marks:
            before = tiny().encode_segments(prompt.segments[:mark])
            assert len(before) in encoded.marks
            assert encoded.ids[: len(before)] == before


def test_a_longer_conversation_keeps_the_tokens_before_the_shared_mark():
    tools = [ToolDefinition("f")]
    first = [UserMessage("u"), AssistantMessage("a", "r"), UserMessage("v")]
    longer = [*first, AssistantMessage("b", "q"), UserMessage("w")]
    short, long = (tiny().encode_prompt(render(m, tools=tools)).ids for m in (first, longer))
    assert long[: len(short)] == short


def test_continuing_needs_an_assistant_message():
    for messages in ([], [UserMessage("x")], [AssistantMessage("x"), UserMessage("y")]):
        with pytest.raises(RequestError, match="continue_last"):
            render(messages, continue_last=True)


def test_requiring_a_call_needs_tools_and_no_thinking():
    for arguments in ({"thinking": True, "tools": [ToolDefinition("f")]}, {"thinking": False}):
        with pytest.raises(RequestError, match="require_call"):
            render([UserMessage("x")], require_call=True, **arguments)


def test_a_schema_that_is_no_json_is_refused_by_tool_name():
    with pytest.raises(RequestError, match="tool 'f' cannot be written as JSON: nan"):
        render([UserMessage("x")], tools=[ToolDefinition("f", None, {"maximum": float("nan")})])


def test_a_vocabulary_without_the_format_s_tokens_is_refused_by_name():
    source = tokenizer_json()
    kept = [t for t in source["added_tokens"] if t["id"] < 3]
    n_base = len(source["model"]["vocab"])
    assert all(t["id"] < n_base for t in kept)
    source["added_tokens"] = kept
    bare = Tokenizer.from_bytes(json.dumps(source).encode())
    with pytest.raises(RequestError, match="<｜User｜>"):
        bare.encode_prompt(render([UserMessage("x")]))


def test_unknown_dialects_are_refused_with_the_known_ones():
    assert find_dialect("v4-preview") is V4_PREVIEW
    with pytest.raises(RequestError, match=r"v5.*v4-0731, v4-preview"):
        find_dialect("v5")
