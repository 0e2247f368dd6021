"""Structured output: every finished answer fits, whatever the model would rather say; what cannot be, is refused by
name."""

from __future__ import annotations

import contextlib
import json
import re
import time
from typing import Any

import jsonschema
import pytest

import finback
from finback import Sampling
from finback.engine.choice import Choice
from finback.engine.grammar import KEPT_GRAMMARS, MAX_DEPTH
from finback.errors import RequestError
from tests.engine.schemas import SCHEMAS, B, arr, obj
from tests.engine.spy import drawn_logits

Checker = jsonschema.Draft202012Validator

ASK = [{"role": "user", "content": "Write this as JSON: name Anna, age 7, city Oslo"}]
CITY = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "city": {"enum": ["Oslo", "Rome"]}},
    "required": ["name", "city"],
    "additionalProperties": False,
}


def test_there_are_enough_schemas() -> None:
    assert len(SCHEMAS) >= 60


@pytest.mark.parametrize("name", SCHEMAS)
def test_every_finished_answer_fits_its_schema(engine: finback.Engine, name: str) -> None:
    schema = SCHEMAS[name]
    finished = 0
    running = [
        engine.submit(ASK, Sampling(json_schema=schema, temperature=1.2, seed=seed, max_tokens=150))
        for seed in range(3)
    ]
    for request in running:
        answer = request.result()
        if answer.finish_reason == "stop":
            finished += 1
            value = json.loads(answer.text)
            Checker(schema, format_checker=Checker.FORMAT_CHECKER).validate(value)
    assert finished or name in ("anything", "recursive tree", "recursive list", "number", "integer")


def test_any_object_regex_and_grammar(engine: finback.Engine) -> None:
    for seed in range(5):
        loose: dict[str, Any] = {"temperature": 1.5, "seed": seed, "max_tokens": 200}
        answer = engine.generate(ASK, Sampling(json_object=True, **loose))
        if answer.finish_reason == "stop":
            assert isinstance(json.loads(answer.text), dict)
        pattern = r"[a-f]{3}-\d{2,4}"
        assert re.fullmatch(pattern, engine.generate(ASK, Sampling(regex=pattern, **loose)).text)
        lark = 'start: greeting " " NAME "!"\ngreeting: "Hello" | "Bye"\nNAME: /[A-Z][a-z]{2,5}/'
        said = engine.generate(ASK, Sampling(grammar=lark, **loose)).text
        assert re.fullmatch(r"(Hello|Bye) [A-Z][a-z]{2,5}!", said)


def test_it_begins_after_thinking(engine: finback.Engine) -> None:
    answer = engine.generate(ASK, Sampling(temperature=0, json_schema=CITY, max_tokens=200), thinking=True)
    thoughts, _, text = answer.text.partition("</think>")
    assert thoughts
    assert json.loads(text) == {"name": "Anna", "city": "Oslo"}


def test_thinking_is_closed_by_its_budget_and_on_demand(engine: finback.Engine) -> None:
    question = [{"role": "user", "content": "What is the capital of Norway?"}]
    for budget in (0, 1, 5):
        answer = engine.generate(
            question, Sampling(temperature=0, thinking_budget=budget, max_tokens=60), thinking=True
        )
        end = engine.tokenizer.control_id("</think>")
        assert answer.token_ids.index(end) == budget
        assert answer.text.endswith("Oslo.")
    free = engine.generate(question, Sampling(temperature=0, thinking_budget=1000, max_tokens=60), thinking=True)
    assert free.text == engine.generate(question, Sampling(temperature=0, max_tokens=60), thinking=True).text
    request = engine.submit(question, Sampling(temperature=0, max_tokens=200), thinking=True)
    request.stop_thinking()
    assert request.result().text.find("</think>") < len("The question is about Norway")
    plain = engine.submit(question, Sampling(temperature=0, max_tokens=60))
    plain.stop_thinking()
    assert "</think>" not in plain.result().text


def test_what_is_forced_is_read_in_one_step_and_changes_nothing(
    engine: finback.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tokens without a choice are rows of one step; their logits and log-probabilities are those of one by one."""
    options = [Sampling(json_schema=CITY, temperature=t, seed=5, max_tokens=100, logprobs=2) for t in (0.0, 1.2)]
    with drawn_logits() as together:
        before = engine.stats().steps["decode"]
        expected = [engine.generate(ASK, option) for option in options]
        steps = engine.stats().steps["decode"] - before
    monkeypatch.setattr(Choice, "forced", property(lambda _: ()))
    with drawn_logits() as apart:
        found = [engine.generate(ASK, option) for option in options]
    assert [(a.token_ids, a.logprobs) for a in found] == [(a.token_ids, a.logprobs) for a in expected]
    assert apart == together
    assert steps < sum(len(a.token_ids) for a in expected) - 10


@pytest.mark.parametrize("speculation", ["lookup", "auto"])
def test_drafts_and_grammars_together(engine: finback.Engine, speculation: str) -> None:
    names = ("extraction", "tool call")
    options = [Sampling(json_schema=SCHEMAS[n], temperature=1.0, seed=3, max_tokens=80) for n in names]
    expected = [engine.generate(ASK, option).token_ids for option in options]
    with finback.load(context=1024, threads=1, speculation=speculation) as drafting:
        for _ in range(3):
            assert [drafting.generate(ASK, option).token_ids for option in options] == expected


def test_penalties_bias_and_n_with_a_grammar(engine: finback.Engine) -> None:
    loose: dict[str, Any] = {"temperature": 1.5, "presence_penalty": 1.0, "min_tokens": 4, "max_tokens": 120}
    options = Sampling(json_schema=CITY, n=3, seed=1, **loose)
    answer = engine.generate(ASK, options)
    for one in (answer, *answer.others):
        if one.finish_reason == "stop":
            jsonschema.validate(json.loads(one.text), CITY)


def test_blanks_do_not_fill_the_limit(engine: finback.Engine) -> None:
    """Case D17: a model that prefers blanks wherever they are allowed."""
    blanks = {i: 100.0 for i in range(engine.tokenizer.vocab_size) if engine.tokenizer.id_to_bytes(i).isspace()}
    for schema in (CITY, obj(a=B, b=arr(B, maxItems=2))):
        options = Sampling(json_schema=schema, temperature=0, logit_bias=blanks, max_tokens=300)
        answer = engine.generate(ASK, options)
        outside = re.sub(r'"(?:[^"\\]|\\.)*(?:"|$)', '""', answer.text, flags=re.DOTALL)
        assert max((len(run) for run in re.findall(r"\s+", outside)), default=0) <= 42
        if "a" in schema["properties"]:  # no string in it that blanks may fill
            assert answer.finish_reason == "stop"
            jsonschema.validate(json.loads(answer.text), schema)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"json_schema": {"type": "strin"}}, "json_schema is not understood: .*strin"),
        ({"json_schema": {"if": {}, "then": {}}}, r'json_schema is not understood: .* keys: \["if", "then"\]'),
        ({"json_schema": {"type": "object", "unevaluatedProperties": False}}, "unevaluatedProperties"),
        ({"json_schema": {"type": "array", "uniqueItems": True}}, "uniqueItems"),
        ({"json_schema": {"$ref": "http://example.com/x"}}, "json_schema is not understood"),
        ({"json_schema": {"$ref": "#/nowhere"}}, "json_schema is not understood"),
        ({"json_schema": "{"}, "json_schema is not JSON"),
        ({"json_schema": [1]}, r"json_schema is \[1\]; give an object"),
        ({"json_schema": {"a": {1, 2}}}, "json_schema cannot be written as JSON"),
        ({"regex": "(("}, "regex is not understood: .*unclosed|regex is not understood"),
        ({"regex": ""}, "regex is ''; give a string"),
        ({"grammar": "start: foo"}, 'grammar is not understood: .*unknown name: "foo"'),
        ({"grammar": 5}, "grammar is 5; give a string"),
        ({"json_object": 1}, "json_object is 1"),
        ({"json_object": True, "regex": "a"}, "json_object and regex are given"),
        ({"thinking_budget": -1}, "thinking_budget is -1"),
    ],
)
def test_what_cannot_be_is_refused_by_name(engine: finback.Engine, options: dict[str, Any], said: str) -> None:
    with pytest.raises(RequestError, match=said):
        engine.submit(ASK, Sampling(**options))


def deep(levels: int) -> Any:
    schema: Any = {"type": "integer"}
    for _ in range(levels):
        schema = {"type": "object", "properties": {"a": schema}}
    return schema


@pytest.mark.parametrize(
    "options",
    [
        {"grammar": "start: " + "(" * 60_000 + '"a"' + ")" * 60_000},
        {"regex": "(" * 60_000 + "a" + ")" * 60_000},
        {"json_schema": deep(20_000)},
        {"grammar": "\n".join(["start: r0", *(f"r{i}: r{i + 1}" for i in range(5000)), 'r5000: "a"'])},
        {"json_schema": {"anyOf": [{"const": i} for i in range(100_000)]}},
        {"json_schema": {"enum": [f"{i:07}" for i in range(1_000_000)]}},
        {"json_schema": {"type": "string", "minLength": 10**9}},
        {"json_schema": {"type": "array", "items": {"type": "integer"}, "maxItems": 10**9}},
        {"json_schema": "[" * 50_000_000},
        {"regex": "(a{1000}){1000}"},
        {"regex": "(((a{100}){100}){100}){100}"},
        {"json_schema": {"$defs": {f"d{i}": {"$ref": f"#/$defs/d{i + 1}"} for i in range(5000)}, "$ref": "#/$defs/d0"}},
        {"json_schema": {"type": "integer", "multipleOf": 1000003, "minimum": 0}},
    ],
    ids=range(13),
)
def test_huge_grammars_end_quickly(engine: finback.Engine, options: dict[str, Any]) -> None:
    """Case I01: refused, or answered; the engine lives. The time is a guard against hanging, not a measurement."""
    begun = time.monotonic()
    with contextlib.suppress(RequestError):
        engine.generate(ASK, Sampling(temperature=0, max_tokens=20, **options))
    assert time.monotonic() - begun < 20
    assert engine.generate(ASK, Sampling(temperature=0, max_tokens=2)).usage.completion_tokens == 2


@pytest.mark.parametrize(
    "lark",
    [
        'start: ("a"*)*', 'start: (""?)*', 'start: r\nr: r "a" | "a"', 'start: r\nr: r | "a"', "start: nowhere",
        "start: r\nr:", 'start: "a', 'start: "a"\nstart: "b"', 'start: "a\0b"', "start: start", "", " ", "\0",
        "start: /a*/", 'start: ("a"?)*', "start: /(a*)*b/",
    ],
)  # fmt: skip
def test_loops_inside_a_grammar(engine: finback.Engine, lark: str) -> None:
    """Case I03."""
    begun = time.monotonic()
    with contextlib.suppress(RequestError):
        engine.generate(ASK, Sampling(temperature=0, max_tokens=20, grammar=lark))
    assert time.monotonic() - begun < 20


def test_levels_are_counted() -> None:
    with finback.load(context=256, threads=1) as engine:
        engine.submit(ASK, Sampling(json_schema=deep(20), max_tokens=1)).result()
        with pytest.raises(RequestError, match=f"nested more than {MAX_DEPTH} levels deep"):
            engine.submit(ASK, Sampling(json_schema=deep(MAX_DEPTH), max_tokens=1))


def test_compiled_grammars_are_kept_and_charged() -> None:
    with finback.load(context=256, threads=1) as engine:
        for i in range(KEPT_GRAMMARS + 10):
            engine.generate(ASK, Sampling(regex=f"a{{{i + 1}}}", temperature=0, max_tokens=2))
        held = engine.memory()["grammars"]
        assert held == sum(size for size in map(engine._grammars._size, engine._grammars._kept))
        assert len(engine._grammars._kept) == KEPT_GRAMMARS
