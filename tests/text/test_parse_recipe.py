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
from hypothesis import given, settings
from hypothesis import strategies as st

from finback.text.messages import AssistantMessage, ToolCall, ToolDefinition, UserMessage
from finback.text.render import render
from tests.text.test_parse import D, block, invoke, parameter, parsed

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
    "<", ">", "</", "\"", "'", "\\", "\n", "\n\n", " ", "&lt;", "｜", "DSML", "<b>", "</parameter>",
    "<parameter name=\"x\">",
    "</invoke>", "2>&1", "{", "}", "é", "🦊", "中文", "a", "word", "\t", "\r\n", "\u2028", "\x00", "`", "</tool_calls>",
    "<think>", "</thin", "<|DSML|", "x < y",
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
    assert other.reasoning == whole.reasoning.strip("\n")
    assert other.content.strip("\n") == said.content.strip("\n")


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
    # A number that only a double holds is spelled as one.
    said.calls = [
        (
            name,
            json.loads(json.dumps(parameters), parse_int=lambda t: int(t) if -(2**63) <= int(t) < 2**64 else float(t)),
        )
        for name, parameters in said.calls
    ]
    message = AssistantMessage(said.content, said.reasoning if said.thinking else None, calls)
    tools = [ToolDefinition(name, None, {"type": "object"}) for name in TOOLS]
    prompt = render([UserMessage("x"), message], tools=tools, thinking=said.thinking).text
    text = (
        prompt.split("<｜Assistant｜>")[1]
        .removesuffix("<｜end▁of▁sentence｜>")
        .removeprefix("<think>" if said.thinking else "</think>")
    )
    check(said, text, sizes)
