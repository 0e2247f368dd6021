"""The spelling of JSON in prompts, against the published encoder."""

from __future__ import annotations

import json
import random

import pytest
from deepseek_recipe import AssistantMessage, Conversation, DeepseekV4Encoding
from deepseek_recipe import ToolCall as RecipeToolCall

from finback.text.jsonform import MAX_DEPTH, dump_json, load_json_object

ORACLE = DeepseekV4Encoding()


def oracle_value(number: str) -> str:
    """How the published encoder writes the number given as JSON text."""
    call = RecipeToolCall("c", "f", f'{{"a":{number}}}')
    conversation = Conversation([AssistantMessage("", None, [call], True)], reasoning_effort="low")
    prompt = ORACLE.render_conversation(conversation).prompt
    return prompt.split('name="a" string="false">')[1].split("<")[0]


def test_numbers_are_spelled_as_the_published_encoder_spells_them():
    rng = random.Random(2)
    edges = [
        "0", "-0", "-0.0", "1.0", "1E5", "1e16", "1e15", "9007199254740993.0", "5e-324", "1e-5", "1.25e-5",
        "-1e-5", "9.99e-6", "1e-9", "1e-10", "1e22", "18446744073709551615", "18446744073709551616",
        "-9223372036854775808", "-9223372036854775809", "1" * 300,
    ]  # fmt: skip
    drawn = [repr(rng.uniform(-1, 1) * 10.0 ** rng.randint(-12, 20)) for _ in range(500)]
    for number in [*edges, *drawn]:
        value = load_json_object(f'{{"a":{number}}}')
        assert value is not None
        assert dump_json(value["a"]) == oracle_value(number), number


def test_text_and_containers_are_spelled_like_pythons_json():
    value = {"é": ["\x00\x1f\x7f\u2028", {"b": [], "a": {}}, None, True], "": "\\\"/\b\f\n\r\t😀"}
    assert dump_json(value) == json.dumps(value, ensure_ascii=False)
    assert dump_json((1, 2)) == "[1, 2]"


@pytest.mark.parametrize(
    "text",
    [
        "", "x", "[]", "1", "null", '"a"', "{", '{"a":1}x', '{"a":01}', '{"a":NaN}', '{"a":-Infinity}',
        '{"a":1e999}', '{"a":"\\ud800"}', '{"\\udc00":1}', '{"a":"\n"}', "\ufeff{}",
        '{"a":' + "1" * 400 + "}", '{"a":' * 128 + "1" + "}" * 128, "[" * 100_000,
    ],
)  # fmt: skip
def test_what_is_not_one_json_object_is_told_apart(text):
    assert load_json_object(text) is None


def test_objects_are_read_to_the_depth_the_published_encoder_reads():
    assert load_json_object('{"a":' * MAX_DEPTH + "1" + "}" * MAX_DEPTH) is not None
    assert load_json_object(' {"a":1,"b":2,"a":3}\n') == {"a": 3, "b": 2}


@pytest.mark.parametrize("value", [float("nan"), float("inf"), {1: 2}, object(), b"x", {"a": {1, 2}}])
def test_what_has_no_json_form_is_refused(value):
    with pytest.raises(ValueError, match=r"no JSON form|is not a string"):
        dump_json(value)
