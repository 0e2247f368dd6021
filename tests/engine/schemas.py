"""JSON schemas of every kind that tools and people write: what answers are held to, and validated against."""

from __future__ import annotations

from typing import Any

S, N, I, B = {"type": "string"}, {"type": "number"}, {"type": "integer"}, {"type": "boolean"}


def obj(required: list[str] | None = None, more: Any = False, **properties: Any) -> dict[str, Any]:
    """An object with these properties, all of them required unless said otherwise."""
    names = list(properties) if required is None else required
    return {"type": "object", "properties": properties, "required": names, "additionalProperties": more}


def arr(items: Any, **limits: int) -> dict[str, Any]:
    return {"type": "array", "items": items, **limits}


def short(pattern: str) -> dict[str, Any]:
    return {"type": "string", "pattern": pattern}


TREE = {
    "$defs": {"node": obj(["name"], name=short("^[a-z]{1,5}$"), children=arr({"$ref": "#/$defs/node"}, maxItems=2))},
    "$ref": "#/$defs/node",
}
LIST = {
    "$defs": {"list": {"anyOf": [{"type": "null"}, obj(head=I, tail={"$ref": "#/$defs/list"})]}},
    "$ref": "#/$defs/list",
}
WORD = short("^[a-z]{1,8}$")

SCHEMAS: dict[str, Any] = {
    # scalars
    "string": {"type": "string", "maxLength": 20},
    "integer": I,
    "number": N,
    "boolean": B,
    "null": {"type": "null"},
    "types": {"type": ["boolean", "null"]},
    "types with a number": {"type": ["integer", "null"], "minimum": 0, "maximum": 9},
    "const string": {"const": "yes"},
    "const number": {"const": 42},
    "const object": {"const": {"a": [1, None, True]}},
    "enum of strings": {"enum": ["red", "green", "blue"]},
    "enum mixed": {"enum": ["red", 1, None, False, {"a": 1}]},
    "enum with prefixes": {"enum": ["a", "ab", "abc"]},
    # strings
    "minLength": {"type": "string", "minLength": 3, "maxLength": 6},
    "exact length": {"type": "string", "minLength": 4, "maxLength": 4},
    "pattern": short("^[A-Z]{2}[0-9]{3}$"),
    "pattern with choices": short("^(cat|dog)-(red|blue)$"),
    "pattern of a phone": short(r"^\(\d{3}\) \d{3}-\d{4}$"),
    "date": {"type": "string", "format": "date"},
    "time": {"type": "string", "format": "time"},
    "date-time": {"type": "string", "format": "date-time"},
    "email": {"type": "string", "format": "email", "maxLength": 30},
    "uuid": {"type": "string", "format": "uuid"},
    "ipv4": {"type": "string", "format": "ipv4"},
    # numbers
    "minimum": {"type": "integer", "minimum": 5, "maximum": 17},
    "negative": {"type": "integer", "minimum": -20, "maximum": -3},
    "exclusive": {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1},
    "multipleOf": {"type": "integer", "multipleOf": 5, "minimum": 0, "maximum": 100},
    # arrays
    "array": arr(I, maxItems=4),
    "array of two": arr(WORD, minItems=2, maxItems=2),
    "empty array": arr(I, maxItems=0),
    "array of arrays": arr(arr(B, maxItems=2), maxItems=2),
    "tuple": {"type": "array", "prefixItems": [WORD, I], "items": False, "minItems": 2},
    "array of enums": arr({"enum": ["n", "e", "s", "w"]}, minItems=1, maxItems=5),
    # objects
    "object": obj(name=WORD, age=I),
    "optional": obj(["a"], a=B, b=B, c=B),
    "nothing required": obj([], a=B, b=B),
    "empty": obj(),
    "nested": obj(a=obj(b=obj(c=obj(d=B)))),
    "additional": {"type": "object", "additionalProperties": I, "maxProperties": 3},
    "additional beside": obj(["a"], more=B, a=WORD) | {"maxProperties": 3},
    "object of arrays": obj(xs=arr(I, maxItems=3), ys=arr(WORD, maxItems=2)),
    "array of objects": arr(obj(x=I, y=I), minItems=1, maxItems=3),
    "names that need quotes": obj(**{"a b": B, 'say "hi"': B, "back\\slash": B}),
    "names in other scripts": obj(**{"имя": WORD, "名前": B, "🦊": B}),
    "enum in other scripts": {"enum": ["лиса", "狐", "🦊"]},
    "a long enum": {"enum": [f"value {i}" for i in range(200)]},
    "many properties": obj(**{f"p{i}": B for i in range(9)}),
    # combinations
    "anyOf": {"anyOf": [I, {"enum": ["none"]}]},
    "oneOf": {"oneOf": [obj(kind={"const": "a"}, x=I), obj(kind={"const": "b"}, y=WORD)]},
    "allOf": {"allOf": [obj([], more=True, a=B), {"required": ["a"]}, {"maxProperties": 1}]},
    "allOf of ranges": {"type": "integer", "allOf": [{"minimum": 3}, {"maximum": 8}]},
    "ref": {"$defs": {"w": WORD}, "type": "object", "properties": {"a": {"$ref": "#/$defs/w"}}, "required": ["a"]}
    | {"additionalProperties": False},
    "definitions": {"definitions": {"w": WORD}, **obj(a={"$ref": "#/definitions/w"})},
    "recursive tree": TREE,
    "recursive list": LIST,
    # as tools use it
    "tool call": obj(
        tool={"enum": ["search", "read"]},
        arguments=obj(["path"], path=short(r"^/[a-z/]{1,12}$"), lines=arr(I, maxItems=2)),
    ),
    "extraction": obj(
        people=arr(obj(name=WORD, born={"type": ["integer", "null"], "minimum": 1000, "maximum": 2100}), maxItems=2),
        confident=B,
    ),
    "classification": obj(label={"enum": ["spam", "ham"]}, score={"type": "number", "minimum": 0, "maximum": 1}),
    "anything": True,
    "descriptions": {"title": "T", "description": "D", "default": 1, "examples": [1], "type": "integer", "maximum": 99}
    | {"minimum": 0},
}
