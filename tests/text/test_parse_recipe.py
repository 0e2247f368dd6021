"""The parser against DeepSeek's own on valid answers: both spellings, any cut, the same reasoning, content and calls.

The answers are written twice: by this file, which shares nothing with the parser, and by finback's renderer. Where the
two parsers differ on purpose, DIFFERENCES says so and why.
"""

from __future__ import annotations

import itertools
import json
import re
from dataclasses import dataclass
from typing import Any

import deepseek_recipe as recipe
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from finback.text.messages import AssistantMessage, ToolCall, ToolDefinition, UserMessage
from finback.text.render import render
from tests.text.test_parse import CALL4, WANTED, D, block, invoke, parameter, parsed

TOOLS = ("look_up", "ns::run.it", "a-b")


@dataclass
class Theirs:
    """What deepseek-recipe finds. arguments: as JSON text, which of odd calls is none."""

    reasoning: str
    content: str
    names: list[str]
    arguments: list[str]

    @property
    def calls(self) -> list[Any]:
        return [json.loads(text) for text in self.arguments]


def theirs(pieces: list[str] | str, *, thinking: bool = True, finish: str = "Stop") -> Theirs:
    """The deltas of their chat completion stream, joined."""
    model = "DeepSeek-V4.1-Flash"  # their parser reads both spellings under either model
    request = recipe.ChatCompletionRequest({"model": model, "messages": [{"role": "user", "content": "x"}]})
    generator = recipe.ChatCompletionRequest.chunk_generator(request.convert(recipe.ConversionOptions()), "id", model)
    stage = recipe.ThinkingInitialStage.ReasoningStart if thinking else None
    processor = recipe.StreamProcessor(generator, recipe.ParsingOptions(thinking_initial_stage=stage))
    chunks = processor.push(recipe.InferenceChunk.ready())
    for piece in [pieces] if isinstance(pieces, str) else pieces:
        chunks += processor.push(recipe.InferenceChunk.text(piece))
    chunks += processor.push(recipe.InferenceChunk.finish(getattr(recipe.InferenceFinishReason, finish)))
    found = Theirs("", "", [], [])
    for chunk in chunks + processor.finish():
        for choice in json.loads(chunk.to_json())["choices"]:
            delta = choice["delta"]
            found.reasoning += delta.get("reasoning_content") or ""
            found.content += delta.get("content") or ""
            for call in delta.get("tool_calls") or ():
                if call["index"] == len(found.names):
                    found.names.append(call["function"]["name"])
                    found.arguments.append("")
                found.arguments[call["index"]] += call["function"].get("arguments") or ""
    return found


# ---- valid answers

FRAGMENTS = st.sampled_from([
    "<", ">", "</", '"', "'", "\\", "\n", "\n\n", " ", "&lt;", "｜", "DSML", "<b>", "</parameter>",
    '<parameter name="x">', "</invoke>", "2>&1", "{", "}", "é", "🦊", "中文", "a", "word", "\t", "\r\n", "\u2028",
    "\x00", "`", "</tool_calls>", "<think>", "</thin", "<|DSML|", "x < y",
])  # fmt: skip
MARKUP = st.sampled_from([f"<{D}", f'<{D} invoke name="q">', f"<{D}tool_calls>", "</think>", D])
PROSE = st.lists(FRAGMENTS, max_size=8).map("".join)
RAW = st.lists(FRAGMENTS | MARKUP | st.text(max_size=4), max_size=8).map("".join)
ENDS_A_VALUE = re.compile(rf"</{D}|</parameter\s*>\s*<{D}")
"""What no string of the format can hold: a closing tag, and what finback takes for one."""
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner | PROSE, max_size=3) | st.dictionaries(PROSE, inner | PROSE, max_size=3),
    max_leaves=5,
)
PARAMETERS = st.dictionaries(
    st.text("abc_$>é.-", min_size=1, max_size=5),
    VALUES | RAW.filter(lambda text: not ENDS_A_VALUE.search(text)),
    max_size=4,
)


@dataclass
class Said:
    thinking: bool
    reasoning: str
    content: str
    calls: list[tuple[str, dict[str, Any]]]


SAID = st.builds(Said, st.booleans(), PROSE, PROSE, st.lists(st.tuples(st.sampled_from(TOOLS), PARAMETERS), max_size=5))


def written(said: Said, *, v41: bool, indent: int | None) -> str:
    """The answer as a model that keeps to the format writes it."""
    text = f"{said.reasoning}</think>{said.content}" if said.thinking else said.content
    if said.calls:
        text += "\n\n" + block(
            *(
                invoke(
                    name,
                    *(
                        parameter(key, value, "true", v41)
                        if isinstance(value, str)
                        else parameter(key, json.dumps(value, ensure_ascii=False, indent=indent), "false", v41)
                        for key, value in parameters.items()
                    ),
                    v41=v41,
                )
                for name, parameters in said.calls
            ),
            v41=v41,
        )
    return text


def cut(text: str, sizes: list[int]) -> list[str]:
    """Pieces of these sizes, over and over."""
    pieces, at = [], 0
    for size in itertools.cycle(sizes):
        if at >= len(text):
            break
        pieces.append(text[at : at + size])
        at += size
    return pieces


def check(said: Said, text: str, sizes: list[int]) -> None:
    """Both find what was said; DeepSeek's without some newlines, which DIFFERENCES explains."""
    whole = parsed(cut(text, sizes), thinking=said.thinking, tools=TOOLS)
    expected = [arguments for _, arguments in said.calls]
    blank = said.calls and not said.content.strip()
    assert whole.names == [name for name, _ in said.calls]
    assert whole.calls == expected
    assert whole.ended == list(range(len(said.calls)))
    assert whole.reasoning == (said.reasoning if said.thinking else "")
    assert whole.content == ("" if blank else said.content)
    other = theirs(cut(text, sizes), thinking=said.thinking)
    assert (other.names, other.calls) == (whole.names, whole.calls)
    assert other.reasoning.strip("\n") == whole.reasoning.strip("\n")
    assert ("" if blank else other.content.strip("\n")) == whole.content.strip("\n")


SIZES = st.lists(st.integers(1, 9), min_size=1, max_size=4)


@settings(max_examples=220, deadline=None, derandomize=True)
@given(SAID, st.booleans(), st.sampled_from([None, 1]), SIZES)
def test_both_find_what_was_said(said: Said, v41: bool, indent: int | None, sizes: list[int]) -> None:
    check(said, written(said, v41=v41, indent=indent), sizes)


@settings(max_examples=90, deadline=None, derandomize=True)
@given(SAID, SIZES)
def test_both_find_what_the_renderer_writes(said: Said, sizes: list[int]) -> None:
    calls = tuple(
        ToolCall(f"call_{i:02}", name, json.dumps(parameters)) for i, (name, parameters) in enumerate(said.calls)
    )
    said.calls = [(name, json.loads(json.dumps(parameters), parse_int=held)) for name, parameters in said.calls]
    message = AssistantMessage(said.content, said.reasoning if said.thinking else None, calls)
    tools = [ToolDefinition(name, None, {"type": "object"}) for name in TOOLS]
    prompt = render([UserMessage("x"), message], tools=tools, thinking=said.thinking).text
    opening = "<think>" if said.thinking else "</think>"
    text = prompt.split("<｜Assistant｜>")[1].removesuffix("<｜end▁of▁sentence｜>").removeprefix(opening)
    check(said, text, sizes)


def held(digits: str) -> int | float:
    """As the format holds an integer: beyond 64 bits as a double."""
    return int(digits) if -(2**63) <= int(digits) < 2**64 else float(digits)


# ---- odd answers

ONE = block(invoke("look_up", parameter("place", "x")))
OPEN_PLACE = f'<{D}parameter name="place" string="true">'

Found = tuple[str, str, list[object]]
"""Reasoning, content, arguments of the calls; as JSON text where they are not JSON."""

DIFFERENCES: dict[str, tuple[str, Found, Found]] = {
    # Nothing is trimmed: a turn that is sent back must be the tokens that were sampled, or its cache is lost.
    "newlines at the edges": (
        "\n\nR\n\n</think>\n\nC\n",
        ("\n\nR\n\n", "\n\nC\n", []),
        ("R", "C\n", []),
    ),
    # The same: the format puts one blank line before a block, and only that is no content.
    "newlines before a block": (
        "R</think>C\n\n\n\n" + CALL4,
        ("R", "C\n\n", [WANTED]),
        ("R", "C", [WANTED]),
    ),
    # Blanks alone are no content: clients send them back, and other servers refuse them.
    "blanks before a block": (
        "R</think> \n\n" + CALL4,
        ("R", "", [WANTED]),
        ("R", " ", [WANTED]),
    ),
    # What is only talked about is text, and what follows it is not lost.
    "a mention": (
        f"R</think>Use <{D}tool_calls> so.",
        ("R", f"Use <{D}tool_calls> so.", []),
        ("R", "Use ", []),
    ),
    "a mention in thinking": (
        f"Use <{D}tool_calls> so.</think>C",
        (f"Use <{D}tool_calls> so.", "C", []),
        ("Use ", "", []),
    ),
    "a mention of an invoke": (
        f'</think>Use <{D}invoke name="look_up"> so.',
        ("", f'Use <{D}invoke name="look_up"> so.', []),
        ("", "Use ", [""]),
    ),
    "a quoted block in thinking": (
        f"Like\n{ONE}\nso.</think>Done.",
        (f"Like\n{ONE}\nso.", "Done.", []),
        ("Like", "", [{"place": "x"}]),
    ),
    "a block without calls": (
        f"</think>C {block()} D",
        ("", "C  D", []),
        ("", "C ", []),
    ),
    # No tool has the name that the prompt's template of a call has.
    "the prompt's template": (
        "</think>" + block(invoke("$TOOL_NAME")),
        ("", block(invoke("$TOOL_NAME")), []),
        ("", "", [{}]),
    ),
    # Arguments are JSON whatever was written.
    "no JSON": (
        "</think>" + block(invoke("look_up", parameter("days", "not json", "false"))),
        ("", "", [{"days": "not json"}]),
        ("", "", ['{"days": not json}']),
    ),
    "JSON that not every reader takes": (
        "</think>" + block(invoke("look_up", parameter("days", "1e999", "false"))),
        ("", "", [{"days": "1e999"}]),
        ("", "", [{"days": float("inf")}]),
    ),
    "tags without the token": (
        "</think>" + block(invoke("look_up", '<parameter name="on">true</parameter>\n')),
        ("", "", [{"on": True}]),
        ("", "", [f'{{"on">true</parameter>\n</{D}invoke>\n</{D}tool_calls>']),
    ),
    "an opening tag without the token": (
        "</think>" + block(invoke("look_up", f'<parameter name="on">true</{D}parameter>\n')),
        ("", "", [{"on": True}]),
        ("", "", [f'{{"on">true</{D}parameter>\n</{D}invoke>\n</{D}tool_calls>']),
    ),
    "a closing tag without the token": (
        "</think>" + block(invoke("look_up", f"{OPEN_PLACE}x</parameter>\n")),
        ("", "", [{"place": "x"}]),
        ("", "", [{"place": "x</parameter>\n"}]),
    ),
    "a space in a name": (
        "</think>" + block(invoke("look_up", parameter("my place", "x"))),
        ("", "", [{"my place": "x"}]),
        ("", "", ['{"my: "x"}']),
    ),
    "a body of JSON": (
        "</think>" + block(invoke("look_up", '{"place": "x"}\n')),
        ("", "", [{"place": "x"}]),
        ("", "", [{}]),
    ),
    # Spaces in a tag do not make it text.
    "spaces in tags": (
        f'</think><{D}tool_calls>\n<{D}invoke   name="look_up"  ></{D}invoke></{D}tool_calls>',
        ("", "", [{}]),
        ("", "", []),
    ),
    # A string ends with a closing tag; for them with any word behind the token.
    "no tag in a string": (
        "</think>" + block(invoke("look_up", parameter("place", f"</{D}x>y"))),
        ("", "", [{"place": f"</{D}x>y"}]),
        ("", "", [{"place": ""}]),
    ),
    # An invoke that another replaces at once is none; they keep its name.
    "an invoke instead of another": (
        f'</think><{D}tool_calls>\n<{D}invoke name="a">\n' + invoke("b", parameter("place", "x")),
        ("", "", [{"place": "x"}]),
        ("", "", [{"place": "x"}]),
    ),
    # A call that the model left open is closed.
    "an open call": (
        f'</think><{D}tool_calls>\n<{D}invoke name="look_up">\n{OPEN_PLACE}x',
        ("", "", [{"place": "x"}]),
        ("", "", ['{"place": "x']),
    ),
}


def json_where_it_is(text: str) -> object:
    try:
        return json.loads(text)
    except ValueError:
        return text


@pytest.mark.parametrize(("text", "ours", "other"), DIFFERENCES.values(), ids=DIFFERENCES)
def test_where_they_differ_on_purpose(text: str, ours: Found, other: Found) -> None:
    """Should DeepSeek's parser change, this says so."""
    for pieces in ([text], list(text)):
        whole, found = parsed(pieces, tools=TOOLS), theirs(pieces)
        assert (whole.reasoning, whole.content, whole.calls) == ours
        assert (found.reasoning, found.content, [json_where_it_is(text) for text in found.arguments]) == other
        assert (ours, whole.names) != (other, found.names)


AGREED = {
    "text after a block": f"</think>C\n\n{ONE}\n\nmore {ONE}",
    "no outer tag": "</think>C\n\n" + invoke("look_up", parameter("place", "x")) + "more",
    "two openings": f"</think><{D}tool_calls>\n{ONE}",
    "only the invoke closed": "</think>" + block(invoke("look_up", f"{OPEN_PLACE}ls 2>&1")),
    "a closing tag without its end": "</think>" + block(invoke("look_up", f"{OPEN_PLACE}ls 2>&1</{D}parameter\n")),
    "a parameter not closed": "</think>" + block(invoke("look_up", f"{OPEN_PLACE}a\n" + parameter("note", "b"))),
    "a parameter twice": "</think>" + block(invoke("look_up", parameter("p", "a"), parameter("p", "b"))),
    "an undeclared tool": "</think>" + block(invoke("delete_all")),
    "a block at the end of thinking": f"R\n\n{ONE}\n</think>",
    "a block in a line of thinking": f"R {ONE}",
    "ASCII pipes": "</think>" + ONE.replace("｜", "|"),
    "think again": "R<think>x</think>b<think>c</think>d",
    "the end spelled out": "</think>C<｜end▁of▁sentence｜>",
}


@pytest.mark.parametrize("text", AGREED.values(), ids=AGREED)
def test_odd_answers_on_which_they_agree(text: str) -> None:
    for pieces in ([text], list(text)):
        ours, other = parsed(pieces, tools=TOOLS), theirs(pieces)
        assert (ours.reasoning, ours.content) == (other.reasoning, other.content)
        assert (ours.names, ours.calls) == (other.names, other.calls)
