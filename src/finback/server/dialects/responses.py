"""OpenAI responses, `POST /v1/responses`.

Owns the translation of a body to a request; `responses_input.py` reads its items and tools, `responses_output.py` tells
the answer. Refuses what would need a store of its own here: who answers a request with `previous_response_id` brings
the items of the earlier one. Source: the API's reference, the types of its SDK and what clients were seen to send.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from finback.engine.sampling import LARGEST_ID, MAX_LOGPROBS, Sampling
from finback.errors import shown
from finback.server.ask import Ask, Chat, Defaults, RefusedError
from finback.server.dialects import openai
from finback.server.dialects.chat import choice
from finback.server.dialects.responses_input import Conversation, Tools, items_of
from finback.server.dialects.responses_output import Stream, Style, output_items, whole
from finback.server.fields import Fields
from finback.server.wire import COMMENT
from finback.text.messages import Message
from finback.text.render import JsonReply

__all__ = ["PING", "Stream", "Style", "items_of", "output_items", "previous_of", "read", "whole"]

PING = COMMENT
LOGPROBS, SEALED = "message.output_text.logprobs", "reasoning.encrypted_content"
"""What `include` may name that an answer here can have."""


def previous_of(body: object) -> str | None:
    """The id of the answer that a request goes on from. Raises RefusedError if it is none."""
    return Fields(body).string("previous_response_id") or None


def read(body: object, defaults: Defaults, earlier: Sequence[Mapping[str, Any]] = ()) -> tuple[Ask, Style]:
    """A request from a body. earlier: the items, of input and output, that `previous_response_id` stands for. Raises
    RefusedError, naming the field."""
    fields = Fields(body)
    think, effort, budget = openai.thinking(fields, defaults)
    reply, form, text = _form(fields)
    include = fields.strings("include")
    fields.cannot("n", 1, why="a request has one answer")
    sampling = openai.sampling(
        fields,
        max_tokens=openai.max_tokens(fields, "max_output_tokens"),
        thinking_budget=budget,
        logprobs=_logprobs(fields, include),
        **form,
    )
    stream, tools = fields.boolean("stream"), Tools(fields)
    previous = fields.string("previous_response_id") or None
    chat = Chat(
        tuple(_messages(fields, earlier, previous, think)),
        tuple(tools.definitions),
        choice(fields, list(tools.named)),
        fields.boolean("parallel_tool_calls", True),
        think,
        effort,
        reply,
    )
    echo = _echo(fields, sampling, chat) | {"text": text, "tools": tools.echo}
    style = Style(echo, tools.named, SEALED in include, previous, fields.boolean("store", True))
    _refuse_the_rest(fields)
    useless = [f"include[{i}]" for i, name in enumerate(include) if name not in (LOGPROBS, SEALED)]
    model, priority = fields.string("model") or "", openai.priority(fields)
    ignored = (*fields.unknown(), *tools.ignored, *useless)
    ask = Ask(model, chat, sampling, stream, priority, ignored)
    return ask, style


def _form(fields: Fields) -> tuple[JsonReply | None, dict[str, Any], dict[str, Any]]:
    """The form of the answer: for the prompt, as sampling parameters, and as the answer repeats it."""
    block = fields.inner("text")
    inner = None if block is None else block.inner("format")
    reply, form = openai.form(fields, inner, None)
    verbosity = None if block is None else block.one_of("verbosity", ("low", "medium", "high"))
    shape = {"type": "text"} if block is None or inner is None else dict(block.value("format"))
    return reply, form, {"format": shape, "verbosity": verbosity or "medium"}


def _logprobs(fields: Fields, include: Sequence[str]) -> int | None:
    """How many of the likeliest tokens are reported with each. Either way to ask is enough."""
    top = fields.whole("top_logprobs", 0, MAX_LOGPROBS)
    return (top or 0) if LOGPROBS in include else top or None


def _messages(
    fields: Fields, earlier: Sequence[Mapping[str, Any]], previous: str | None, think: bool
) -> list[Message]:
    if previous is not None and not earlier:
        raise RefusedError(
            f"previous_response_id is {shown(previous)}, which is not kept; send its items in input",
            field="previous_response_id",
            code="previous_response_not_found",
        )
    value = fields.value("input")
    if value is not None and not isinstance(value, str | list | tuple):
        raise fields.refuse("input", "give a string or a list of items")
    items = [{"role": "user", "content": value}] if isinstance(value, str) else value
    if not items and not earlier:
        raise fields.missing("input") if items is None else fields.refuse("input", "give at least one item")
    conversation = Conversation(think)
    if instructions := fields.string("instructions"):
        conversation.instruct(instructions)
    for index, item in enumerate(earlier):
        conversation.take(Fields(item, f"previous_response_id[{index}]"))
    for index, item in enumerate(items or ()):
        conversation.take(Fields(item, "input" if isinstance(value, str) else f"input[{index}]"))
    return conversation.messages()


def _echo(fields: Fields, sampling: Sampling, chat: Chat) -> dict[str, Any]:
    """What the answer repeats of the request."""
    metadata, reasoning = fields.value("metadata"), fields.value("reasoning") or {}
    if metadata is not None and not isinstance(metadata, Mapping):
        raise fields.refuse("metadata", "give an object")
    return {
        "instructions": fields.string("instructions"),
        "max_output_tokens": sampling.max_tokens,
        "max_tool_calls": fields.whole("max_tool_calls", 0, LARGEST_ID),
        "metadata": metadata or {},
        "parallel_tool_calls": chat.parallel_calls,
        "prompt_cache_key": fields.string("prompt_cache_key"),
        "reasoning": {"effort": chat.effort if chat.thinking else "none", "summary": reasoning.get("summary")},
        "safety_identifier": fields.string("safety_identifier"),
        "service_tier": "default",
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "presence_penalty": sampling.presence_penalty,
        "frequency_penalty": sampling.frequency_penalty,
        "tool_choice": _flat(fields.value("tool_choice")),
        "top_logprobs": sampling.logprobs or 0,
        "truncation": fields.one_of("truncation", ("disabled", "auto")) or "disabled",
        "user": fields.string("user"),
    }


def _flat(value: Any) -> Any:
    """A choice of a tool in this endpoint's shape, if it came in that of chat."""
    if not isinstance(value, Mapping):
        return value or "auto"
    inner = value.get(value.get("type"))
    return {"type": value["type"], **inner} if isinstance(inner, Mapping) else dict(value)


def _refuse_the_rest(fields: Fields) -> None:
    fields.known(*openai.NOTHING_TO_DO, "client_metadata", "prompt_cache_options")
    if options := fields.inner("stream_options"):
        options.known("include_obfuscation", "include_usage")  # usage is in the last event, asked for or not
    fields.cannot("background", False, why="answers are given while the client waits")
    fields.cannot("conversation", why="conversations are not kept; previous_response_id goes on from an answer")
    fields.cannot("prompt", why="prompts are not kept")
    fields.cannot("context_management", [], why="nothing is compacted")
    fields.cannot("moderation", why="nothing is moderated")
    fields.cannot("messages", why="it is called input here")
    fields.cannot("response_format", why="it is called text.format here")
