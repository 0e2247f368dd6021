"""An answer that has to call a tool calls one: declared names, required parameters, values that fit their schemas.

Drawn at temperature 1.2 from a model that knows nothing of tools: whatever is right is the grammar's doing.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import jsonschema
import pytest

import finback
from finback.engine.engine import Engine
from finback.text.messages import ToolDefinition
from finback.text.parse import CallArguments, CallBegun, CallEnded, OutputParser
from finback.text.tool_grammar import tool_grammar

OPENED = "\n\n<｜DSML｜tool_calls>\n"

SCHEMAS: dict[str, dict[str, Any]] = {
    "plain": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    "numbers": {
        "type": "object",
        "properties": {"a": {"type": "integer", "minimum": 0, "maximum": 99}, "b": {"type": "boolean"}},
        "required": ["a", "b"],
    },
    "words": {
        "type": "object",
        "properties": {"unit": {"type": "string", "enum": ["c", "f"]}, "mode": {"const": "a"}, "n": {"enum": [1, "2"]}},
        "required": ["unit", "mode", "n"],
    },
    "nested": {
        "type": "object",
        "properties": {
            "filter": {
                "type": "object",
                "properties": {"tags": {"type": "array", "items": {"enum": ["x", "y"]}, "minItems": 1, "maxItems": 3}},
                "required": ["tags"],
                "additionalProperties": False,
            }
        },
        "required": ["filter"],
    },
    "choices": {
        "type": "object",
        "properties": {"when": {"anyOf": [{"type": "null"}, {"type": "integer"}]}, "who": {"type": ["string", "null"]}},
        "required": ["when", "who"],
    },
    "reference": {
        "type": "object",
        "$defs": {"point": {"type": "array", "items": {"type": "integer"}, "minItems": 2, "maxItems": 2}},
        "properties": {"at": {"$ref": "#/$defs/point"}},
        "required": ["at"],
    },
    "described": {
        "type": "object",
        "properties": {"title": {"type": "integer", "description": "d", "title": "T", "default": 5, "examples": [1]}},
        "required": ["title"],
    },
    "nothing": {"type": "object", "properties": {}, "additionalProperties": False},
    "backslash": {"type": "object", "properties": {"a 'b\\c": {"type": "boolean"}}, "required": ["a 'b\\c"]},
}  # fmt: skip
TOOLS = [ToolDefinition(name, "does it", schema) for name, schema in SCHEMAS.items()]


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    with finback.load(context=2048) as opened:
        yield opened


def calls_of(text: str, opened: str = "") -> tuple[list[tuple[str, Mapping[str, Any]]], bool]:
    """The calls in an answer, and whether all are whole."""
    parser = OutputParser(thinking=False, tools=set(SCHEMAS))
    pieces = [*parser.feed(opened + text), *parser.finish("length")]
    names = [piece.name for piece in pieces if isinstance(piece, CallBegun)]
    found = [""] * len(names)
    for piece in pieces:
        if isinstance(piece, CallArguments):
            found[piece.index] += piece.text
    ended = sum(isinstance(piece, CallEnded) for piece in pieces)
    calls = [(name, json.loads(text)) for name, text in zip(names[:ended], found[:ended], strict=True)]
    return calls, ended == len(names)


@pytest.mark.parametrize("tool", TOOLS, ids=lambda tool: tool.name)
def test_values_fit_their_schemas(engine: Engine, tool: ToolDefinition) -> None:
    dsml = engine.tokenizer.control_id("｜DSML｜")
    grammar = tool_grammar([tool], dsml=dsml, opened=True, many=False)
    finished = 0
    sampling = finback.Sampling(calls=grammar, temperature=1.2, seed=5, max_tokens=300, n=6)
    whole = engine.generate("Call it" + OPENED, sampling)
    for answer in (whole, *whole.others):
        if answer.finish_reason != "stop":
            continue
        finished += 1
        ((name, arguments),), _ = calls_of(answer.text, OPENED)
        assert name == tool.name
        jsonschema.validate(arguments, SCHEMAS[tool.name])
    assert finished >= 3, "most of them are short"


def test_one_of_several_once_or_more(engine: Engine) -> None:
    dsml = engine.tokenizer.control_id("｜DSML｜")
    tools = [tool for tool in TOOLS if tool.name in ("numbers", "nothing", "words")]
    counts, names = set(), set()
    for many in (False, True):
        grammar = tool_grammar(tools, dsml=dsml, opened=False, many=many)
        whole = engine.generate("Go", finback.Sampling(calls=grammar, temperature=9, seed=1, max_tokens=400, n=16))
        for answer in (whole, *whole.others):
            if answer.finish_reason == "stop":
                calls, all_whole = calls_of(answer.text)
                assert all_whole
                assert answer.text.startswith(OPENED)
                assert len(calls) >= 1
                assert many or len(calls) == 1
                counts.add(len(calls))
                names |= {name for name, _ in calls}
    assert len(names) == 3
    assert max(counts) > 1


def test_a_tool_without_declared_parameters_takes_any(engine: Engine) -> None:
    tool = ToolDefinition("plain", None, {})
    grammar = tool_grammar([tool], dsml=engine.tokenizer.control_id("｜DSML｜"), opened=True, many=False)
    sampling = finback.Sampling(calls=grammar, temperature=1.5, seed=2, max_tokens=200, n=12)
    whole = engine.generate("Go" + OPENED, sampling)
    answers = [calls_of(a.text, OPENED)[0] for a in (whole, *whole.others) if a.finish_reason == "stop"]
    assert any(arguments for ((_, arguments),) in answers)


def test_after_thinking(engine: Engine) -> None:
    grammar = tool_grammar(TOOLS[:2], dsml=engine.tokenizer.control_id("｜DSML｜"), opened=False, many=False)
    sampling = finback.Sampling(calls=grammar, temperature=1, seed=3, max_tokens=300, thinking_budget=5)
    text = engine.submit([{"role": "user", "content": "Hi"}], sampling, thinking=True).result().text
    assert text.partition("</think>")[2].startswith(OPENED)


def test_what_is_too_deep_or_not_supported(engine: Engine) -> None:
    deep: dict[str, Any] = {"type": "object"}
    for _ in range(200):
        deep = {"type": "object", "properties": {"a": deep}}
    with pytest.raises(finback.RequestError, match="tools: the parameters of f are nested more than 64 levels deep"):
        tool_grammar([ToolDefinition("f", None, deep)], dsml=1, opened=True, many=True)
    quote = {"type": "object", "properties": {'a "b': {"type": "boolean"}}}
    with pytest.raises(finback.RequestError, match="which a call cannot name; rename it"):
        tool_grammar([ToolDefinition("f", None, quote)], dsml=1, opened=True, many=True)
    odd = {"type": "object", "properties": {"a": {"type": "array", "items": {"type": "integer"}, "uniqueItems": True}}}
    grammar = tool_grammar([ToolDefinition("f", None, odd)], dsml=4075, opened=True, many=True)
    with pytest.raises(finback.RequestError, match="uniqueItems"):
        engine.submit("x", finback.Sampling(calls=grammar))
