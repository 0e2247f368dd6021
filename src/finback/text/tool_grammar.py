"""Calls of tools as a grammar: what a model may write when it has to call one.

Owns the language of a block of calls (docs/text.md has the format): declared names only, parameters of the schema in
its order, those that are required, strings as they are and everything else as JSON that fits its schema. Refuses
schemas that are too deep to be compiled, and names that the format cannot write, naming the tool. The grammar is in
Lark's notation as llguidance reads it, where `<[7]>` is the token 7.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from finback.errors import RequestError, shown
from finback.text.messages import ToolDefinition

MAX_DEPTH = 64
"""Levels of a parameter's schema inside each other."""

_SAYS_NOTHING = ("title", "description", "default", "examples", "$comment", "deprecated", "readOnly", "writeOnly")
_TEXT = r"/(?s:.*)<\//"  # up to the "</" of the closing tag: what comes then is a token that no text has


def tool_grammar(tools: Sequence[ToolDefinition], *, dsml: int, opened: bool, many: bool) -> str:
    """The grammar of one block of calls, in Lark's notation.

    tools: those that may be called, at least one. dsml: the id of the token in its tags. opened: the prompt has opened
    the block. many: more than one call may be made. RequestError naming the tool whose schema is too deep.
    """
    tag = f"<[{dsml}]>"
    head = "" if opened else f'"\\n\\n<" {tag} "tool_calls>\\n" '
    rules = [f'start: {head}call{"+" if many else ""} "</" {tag} "tool_calls>"']
    rules.append("call: " + " | ".join(f"call_{i}" for i in range(len(tools))))
    for i, tool in enumerate(tools):
        rules += _call(i, tool, tag)
    rules.append(f"TEXT: {_TEXT}")
    return "\n".join(rules) + "\n"


def _call(number: int, tool: ToolDefinition, tag: str) -> list[str]:
    """The rules of a call of one tool."""
    schema = tool.parameters if isinstance(tool.parameters, Mapping) else {}
    properties = schema.get("properties")
    begin, end = _literal(f'invoke name="{tool.name}">\n'), f'"</" {tag} "invoke>\\n"'
    if not isinstance(properties, Mapping) or not properties:
        free = properties is None and schema.get("additionalProperties") is not False
        inside = f"any_{number}*" if free else ""
        rules = [f'call_{number}: "<" {tag} {begin} {inside} {end}']
        return rules + (_anything(number, tag) if free else [])
    required = schema.get("required")
    needed = set(required) if isinstance(required, list | tuple) else set()
    shared = {key: schema[key] for key in ("$defs", "definitions") if key in schema}
    parts, rules = [], []
    for i, (name, kind) in enumerate(properties.items()):
        if '"' in name or "\n" in name:
            raise RequestError(f"tools: {tool.name} has a parameter {shown(name)}, which a call cannot name; rename it")
        parts.append(f"parameter_{number}_{i}" + ("" if name in needed else "?"))
        ways = _parameter(str(name), kind, shared, tag, tool.name)
        rules.append(f"parameter_{number}_{i}: " + " | ".join(ways))
    return [f'call_{number}: "<" {tag} {begin} {" ".join(parts)} {end}', *rules]


def _anything(number: int, tag: str) -> list[str]:
    """The rules of a parameter of any name, of a tool that declares none."""
    close = f'{tag} "parameter>\\n"'
    return [
        f'any_{number}: "<" {tag} "parameter name=\\"" NAME_{number} "\\" string=\\"true\\">" TEXT {close}'
        f' | "<" {tag} "parameter name=\\"" NAME_{number} "\\" string=\\"false\\">" %json {{}} "</" {close}',
        f"NAME_{number}: /[A-Za-z_][A-Za-z0-9_-]{{0,63}}/",
    ]


def _parameter(name: str, kind: Any, shared: Mapping[str, Any], tag: str, tool: str) -> list[str]:
    """The ways to write a parameter: a string as it is, everything else as JSON."""
    text, rest = _split(kind)
    ways = []
    if text is not None:
        begin = f'"<" {tag} {_opening(name, is_string=True)}'
        close = f'{tag} "parameter>\\n"'
        if text:
            ways += [f'{begin} {_literal(value)} "</" {close}' for value in text]
        else:
            ways.append(f"{begin} TEXT {close}")
    if rest is not None:
        source = json.dumps({**_bare(rest, tool), **{k: _bare(v, tool) for k, v in shared.items()}})
        begin = f'"<" {tag} {_opening(name, is_string=False)}'
        ways.append(f'{begin} %json {source} "</" {tag} "parameter>\\n"')
    return ways


def _split(kind: Any) -> tuple[list[str] | None, Mapping[str, Any] | None]:
    """What of a schema is strings, and what is not: the strings it may be ([] is any, None is none), and the schema of
    the rest."""
    if not isinstance(kind, Mapping):
        return [], {"type": ["number", "boolean", "null", "object", "array"]}
    for word in ("const", "enum"):
        if word in kind:
            values = [kind["const"]] if word == "const" else list(kind["enum"])
            texts = [value for value in values if isinstance(value, str)]
            others = [value for value in values if not isinstance(value, str)]
            return texts or None, {"enum": others} if others else None
    types = kind.get("type")
    if types == "string":
        return [], None
    if isinstance(types, list | tuple) and "string" in types:
        others = [name for name in types if name != "string"]
        return [], {**kind, "type": others} if others else None
    for word in ("anyOf", "oneOf"):
        if types is None and isinstance(kind.get(word), list | tuple):
            return _split_choices(kind, word)
    if types is None and not any(key in kind for key in ("$ref", "allOf", "properties", "items", "not", "if")):
        return [], {**kind, "type": ["number", "boolean", "null", "object", "array"]}
    return None, kind


def _split_choices(kind: Mapping[str, Any], word: str) -> tuple[list[str] | None, Mapping[str, Any] | None]:
    texts: list[str] = []
    anything, others = False, []
    for choice in kind[word]:
        text, rest = _split(choice)
        if text is not None:
            texts += text
            anything = anything or not text
        if rest is not None:
            others.append(rest)
    rest_of_all = {**kind, word: others} if others else None
    return ([] if anything else texts or None), rest_of_all


def _bare(schema: Any, tool: str, depth: int = 0) -> Any:
    """A schema without what says nothing of the value."""
    if depth > 2 * MAX_DEPTH:  # an object and what is in it are two levels of JSON
        raise RequestError(
            f"tools: the parameters of {tool} are nested more than {MAX_DEPTH} levels deep; flatten them"
        )
    if isinstance(schema, Mapping):
        # Properties may have such names: there the value is a schema, not a text.
        return {
            key: _bare(value, tool, depth + 1)
            for key, value in schema.items()
            if key not in _SAYS_NOTHING or isinstance(value, Mapping)
        }
    if isinstance(schema, list | tuple):
        return [_bare(value, tool, depth + 1) for value in schema]
    return schema


def _opening(name: str, *, is_string: bool) -> str:
    return _literal(f'parameter name="{name}" string="{str(is_string).lower()}">')


def _literal(text: str) -> str:
    """A text as Lark writes it."""
    return json.dumps(text, ensure_ascii=False)
