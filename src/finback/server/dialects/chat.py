"""OpenAI chat completions, `POST /v1/chat/completions`.

Owns the translation: a body to a request, events to chunks, an outcome to a `chat.completion`. Source: the API's
reference, DeepSeek's additions (`reasoning_content`, cache counts) and what clients were seen to send.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from finback.errors import RequestError
from finback.server.answer import (
    Answer,
    AnswerEvent,
    Begun,
    CallArguments,
    CallBegun,
    CallEnded,
    Done,
    Ended,
    Failed,
    Outcome,
    Said,
    Thought,
    Token,
    Tokens,
)
from finback.server.ask import Ask, Chat, Choice, Defaults, RefusedError, Stamp
from finback.server.dialects import openai
from finback.server.fields import Fields
from finback.server.wire import COMMENT, sse
from finback.text.messages import messages_from_json, tools_from_json, wants_continuation
from finback.text.render import END_THINK, THINK

PING = COMMENT


@dataclass(frozen=True, slots=True)
class Style:
    """How the answer is told. usage: whether a stream ends with it."""

    usage: bool = False


def read(body: object, defaults: Defaults) -> tuple[Ask, Style]:
    """A request from a body. Raises RefusedError, naming the field."""
    fields = Fields(body)
    think, effort, budget = openai.thinking(fields, defaults)
    reply, form = openai.form(fields, fields.inner("response_format"), "json_schema")
    sampling = openai.sampling(
        fields,
        max_tokens=openai.max_tokens(fields, "max_completion_tokens", "max_tokens"),
        thinking_budget=budget,
        logprobs=openai.logprobs(fields),
        **form,
    )
    stream, options = fields.boolean("stream"), fields.inner("stream_options")
    style = Style(usage=options is not None and options.boolean("include_usage"))
    chat = _conversation(fields, think, effort, reply)
    _refuse_the_rest(fields)
    ask = Ask(
        fields.string("model") or "", chat, sampling, stream, openai.priority(fields), ignored=fields.unknown()
    )
    return ask, style


def _conversation(fields: Fields, think: bool, effort: str | int | None, reply: Any) -> Chat:
    raw, tools = fields.items("messages"), fields.items("tools") or ()
    if raw is None:
        raise fields.missing("messages")
    try:
        messages = messages_from_json([_with_reasoning(message) for message in raw], thinking=think)
        definitions = tools_from_json(tools)
        goes_on = wants_continuation(raw)
    except RequestError as error:
        raise openai.refusal_of(error) from None
    if fields.boolean("continue_final_message") and not goes_on:
        if fields.boolean("add_generation_prompt"):
            raise fields.refuse("add_generation_prompt", "leave it out where the last message is continued")
        if raw[-1].get("role") != "assistant":
            raise fields.refuse("continue_final_message", "the last message is not the assistant's")
        goes_on = True
    fields.known("add_generation_prompt")
    names = [definition.name for definition in definitions]
    return Chat(
        tuple(messages),
        tuple(definitions),
        choice(fields, names),
        fields.boolean("parallel_tool_calls", True),
        think,
        effort,
        reply,
        goes_on,
    )


def _with_reasoning(message: object) -> Any:
    """A message whose thinking stands in its content, as some clients replay it, with the two apart."""
    if not isinstance(message, Mapping) or message.get("role") != "assistant":
        return message
    content, apart = message.get("content"), message.get("reasoning_content") or message.get("reasoning")
    if apart or not isinstance(content, str) or not content.startswith(THINK) or END_THINK not in content:
        return message
    thought, _, said = content.removeprefix(THINK).partition(END_THINK)
    return {**message, "reasoning_content": thought, "content": said}


def choice(fields: Fields, names: Sequence[str]) -> Choice:
    """Which tools may be called, from `tool_choice`; in the shapes of chat and of responses."""
    value = fields.value("tool_choice")
    if value is None or value == "auto":
        return Choice()
    if value == "none":
        return Choice("none")
    if value == "required":
        wanted: list[str] = []
    elif isinstance(value, Mapping):
        wanted = _chosen(fields, fields.within(value, "tool_choice"))
    else:
        raise fields.refuse("tool_choice", "give none, auto, required, or an object that names a function")
    if not names:
        raise fields.refuse("tool_choice", "tools are missing; declare them, or leave it out")
    for name in wanted:
        if name not in names:
            raise RefusedError(f"tool_choice names {name}, which is not among the tools", field="tool_choice")
    return Choice("required", tuple(wanted))


def _chosen(fields: Fields, value: Fields) -> list[str]:
    kind = value.one_of("type", ("function", "custom", "allowed_tools"))
    if kind == "allowed_tools":
        allowed = value.inner("allowed_tools") or value
        if allowed.one_of("mode", ("auto", "required")) != "required":
            raise fields.refuse("tool_choice", "allowed tools are enforced in mode required only")
        tools = allowed.items("tools") or ()
        return [name for i, tool in enumerate(tools) for name in _chosen(fields, allowed.within(tool, f"tools[{i}]"))]
    inner = value.inner(kind or "function") or value
    return [inner.needed("name")]


def _refuse_the_rest(fields: Fields) -> None:
    fields.known(*openai.NOTHING_TO_DO)
    fields.cannot("store", False, why="answers of this endpoint are not stored")
    fields.cannot("modalities", ["text"], why="answers are text")
    fields.cannot("audio", why="answers are text")
    fields.cannot("web_search_options", why="nothing is fetched from the web")
    fields.cannot("functions", [], why="functions are declared in tools")
    fields.cannot("function_call", "none", why="it is called tool_choice now")


# ---- the answer at once


def whole(style: Style, stamp: Stamp, outcome: Outcome) -> dict[str, Any]:
    """The body of an answer."""
    choices = [
        {
            "index": index,
            "message": _message(answer),
            "logprobs": _logprobs(answer.tokens),
            "finish_reason": openai.FINISH[answer.reason],
            "stop_reason": openai.stop_reason(answer),
        }
        for index, answer in enumerate(outcome.answers)
    ]
    return {**_head(stamp, "chat.completion"), "choices": choices, "usage": openai.usage_body(outcome.usage)}


def _head(stamp: Stamp, kind: str) -> dict[str, Any]:
    return {"id": f"chatcmpl-{stamp.id}", "object": kind, "created": int(stamp.created), "model": stamp.model}


def _message(answer: Answer) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": answer.content, "refusal": None}
    if answer.reasoning:
        message["reasoning_content"] = answer.reasoning
    if answer.calls:
        message["content"] = answer.content or None
        message["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in answer.calls
        ]
    return message


def _logprobs(tokens: Sequence[Token]) -> dict[str, Any] | None:
    return {"content": openai.logprob_items(tokens), "refusal": None} if tokens else None


# ---- the answer as it comes


class Stream:
    """Events to server-sent events of one answer."""

    def __init__(self, style: Style, stamp: Stamp) -> None:
        self._style, self._head = style, _head(stamp, "chat.completion.chunk")
        self._begun: set[int] = set()
        self._tokens: dict[int, list[Token]] = {}

    def write(self, event: AnswerEvent) -> list[bytes]:
        """What an event makes of the stream."""
        match event:
            case Begun() | CallEnded():
                return []
            case Tokens(answer, tokens):
                self._tokens.setdefault(answer, []).extend(tokens)
                return []
            case Thought(answer, text):
                return self._delta(answer, {"reasoning_content": text})
            case Said(answer, text):
                return self._delta(answer, {"content": text})
            case CallBegun(answer, call, id, name):
                function = {"name": name, "arguments": ""}
                return self._call(answer, {"index": call, "id": id, "type": "function", "function": function})
            case CallArguments(answer, call, text):
                return self._call(answer, {"index": call, "function": {"arguments": text}})
            case Ended(answer, reason, stop):
                ended = Answer(reason=reason, stop=stop)
                return self._delta(answer, {}, openai.FINISH[reason], openai.stop_reason(ended))
            case Done(usage):
                last = {**self._head, "choices": [], "usage": openai.usage_body(usage)}
                return [*([sse(last)] if self._style.usage else []), sse("[DONE]")]
            case Failed(refusal):
                return [sse(openai.error_body(refusal)), sse("[DONE]")]

    def _call(self, answer: int, call: dict[str, Any]) -> list[bytes]:
        return self._delta(answer, {"tool_calls": [call]})

    def _delta(
        self, answer: int, delta: dict[str, Any], finish: str | None = None, stop: str | None = None
    ) -> list[bytes]:
        chunks = []
        if answer not in self._begun:
            self._begun.add(answer)
            chunks.append(self._chunk(answer, {"role": "assistant", "content": ""}, None, None))
        chunks.append(self._chunk(answer, delta, finish, stop))
        return chunks

    def _chunk(self, answer: int, delta: dict[str, Any], finish: str | None, stop: str | None) -> bytes:
        choice: dict[str, Any] = {"index": answer, "delta": delta, "logprobs": None, "finish_reason": finish}
        if "role" not in delta:
            choice["logprobs"] = _logprobs(self._tokens.pop(answer, ()))
        if finish is not None:
            choice["stop_reason"] = stop
        return sse({**self._head, "choices": [choice]})
