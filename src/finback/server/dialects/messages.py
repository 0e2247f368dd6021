"""Anthropic's Messages API, `POST /v1/messages` and what belongs to it.

Owns the translation: a body to a request, events to named server-sent events, an outcome to a `message`; counting
tokens, the list of models, errors. Source: the API's reference, the types of its SDKs and what clients were seen to
send. Refuses tools that run on Anthropic's servers or whose schema only Anthropic's models know.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Literal

from finback.engine.sampling import LARGEST_ID, Sampling
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
    Reason,
    Said,
    Thought,
    Tokens,
    Usage,
)
from finback.server.ask import Ask, Chat, Choice, Defaults, RefusedError, Stamp
from finback.server.dialects import blocks, openai
from finback.server.fields import Fields
from finback.server.wire import sse
from finback.text.jsonform import dump_json, load_json_object
from finback.text.messages import TOOL_NAME, AssistantMessage, ToolDefinition
from finback.text.stop import check_stops

PING = sse({"type": "ping"}, "ping")

NOTHING_TO_DO = (
    "metadata", "service_tier", "cache_control", "betas", "anthropic_beta", "anthropic_version", "inference_geo",
    "speed", "diagnostics", "user_profile_id", "workspace_id", "billing_policy", "fallbacks", "fallback_credit_token",
)  # fmt: skip
"""Fields that are taken and change nothing: who asks, how it is billed, where it runs, what is cached."""

STOP: Mapping[Reason, str] = {
    "stop": "end_turn",
    "stop_string": "stop_sequence",
    "length": "max_tokens",
    "tool_calls": "tool_use",
    "repetition": "end_turn",  # the API has no word for it; max_tokens would have clients ask for more of the same
    "cancelled": "end_turn",
}
_ERRORS = {
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
    529: "overloaded_error",
}
_RUN_THERE = ("web_search_", "web_fetch_", "code_execution_", "tool_search_", "mcp_toolset", "advisor_")
_KNOWN_THERE = ("bash_", "text_editor_", "computer_", "memory_", "browser_")


@dataclass(frozen=True, slots=True)
class Style:
    """How the answer is told: always the same here."""


# ---- reading


def read(body: object, defaults: Defaults, *, drop_billing_header: bool = True) -> tuple[Ask, Style]:
    """A request from a body. Raises RefusedError, naming the field.

    A body without `thinking` gets the server's default; at Anthropic's, too, it depends on the model. Thinking is told
    whatever its `display` is, since it comes back to the prompt only if the client has its text and sends it.
    drop_billing_header: see `blocks.system`.
    """
    fields = Fields(body)
    if not fields.has("max_tokens"):
        raise fields.missing("max_tokens")
    return _ask(fields, defaults, drop_billing_header), Style()


def read_count(body: object, defaults: Defaults, *, drop_billing_header: bool = True) -> Ask:
    """The request whose prompt is to be counted, from a body of `POST /v1/messages/count_tokens`: the same that `read`
    makes of it, but `max_tokens` may be missing."""
    return _ask(Fields(body), defaults, drop_billing_header)


def _ask(fields: Fields, defaults: Defaults, drop_billing_header: bool) -> Ask:
    config, form = fields.inner("output_config"), fields.inner("output_format")
    think, effort, budget = _thinking(fields, config, defaults)
    if config is not None and config.has("format"):
        if form is not None:
            raise fields.refuse("output_format", "output_config.format is given too; leave out one of them")
        form = config.inner("format")
    reply, more = openai.reply_form(form, None)
    sampling = _sampling(fields, budget, more)
    messages, withdrawn = blocks.conversation(fields, think)
    tools = tuple(tool for tool in _tools(fields) if tool.name not in withdrawn)
    choice, parallel_calls = _choice(fields, tools)
    last = messages[-1] if messages else None  # none where all were of the system, and passing
    chat = Chat(
        (*blocks.system(fields, drop_billing_header), *messages),
        tools,
        choice,
        parallel_calls,
        think,
        effort,
        reply,
        continue_last=isinstance(last, AssistantMessage) and last.content != "" and not last.tool_calls,
    )
    _refuse_the_rest(fields)
    stream, priority = fields.boolean("stream"), openai.priority(fields)
    return Ask(fields.string("model") or "", chat, sampling, stream, priority, ignored=fields.unknown())


def _thinking(
    fields: Fields, config: Fields | None, defaults: Defaults
) -> tuple[bool, str | int | None, int | None]:
    """Whether to think, how hard, and for how many tokens at most. An effort alone does not switch thinking on."""
    effort = None if config is None else config.value("effort")
    if config is not None and effort is not None and (not isinstance(effort, str | int) or isinstance(effort, bool)):
        raise config.refuse("effort", "give a word such as low, high or max")
    effort = defaults.effort if effort is None else effort
    think, budget = defaults.thinking and effort != "none", None
    if block := fields.inner("thinking"):
        block.known("display")
        kind = block.one_of("type", ("enabled", "disabled", "adaptive"))
        if kind is None:
            raise block.missing("type")
        think = kind != "disabled"
        budget = block.whole("budget_tokens", 0, LARGEST_ID)
    return think, None if effort == "none" else effort, budget if think else None


def _sampling(fields: Fields, budget: int | None, form: Mapping[str, Any]) -> Sampling:
    """The parameters. The API has few of them; the others go by the names that they have in the other dialects."""
    fields.cannot("stop", why="this API calls it stop_sequences")
    fields.cannot("n", 1, why="this API gives one answer")
    limit = openai.max_tokens(fields, "max_tokens")
    sampling = openai.sampling(fields, max_tokens=limit, thinking_budget=budget, **form)
    try:
        return replace(sampling, stop=check_stops(fields.strings("stop_sequences")))
    except RequestError as error:
        raise RefusedError(f"stop_sequences: {error}", field="stop_sequences") from None


def _refuse_the_rest(fields: Fields) -> None:
    fields.known(*NOTHING_TO_DO)
    fields.cannot("container", why="there are no containers here")
    fields.cannot("mcp_servers", [], why="no server is called from here, clients do that")
    fields.cannot("compaction", why="conversations are not shortened here")
    fields.cannot("thread", why="conversations are not stored here")
    context = fields.inner("context_management")
    for edit in blocks.objects(context, "edits") if context is not None else ():
        kind = edit.string("type")
        if kind is None or not kind.startswith("clear_thinking_"):
            raise edit.refuse("type", "conversations are not edited here; leave it out")
        if edit.value("keep") not in ("all", {"type": "all"}):
            raise edit.refuse("keep", 'thinking is not cleared here; give "all"')


# ---- tools


def _tools(fields: Fields) -> list[ToolDefinition]:
    """The tools. Those whose loading is deferred are declared at once: nothing here searches for them."""
    tools = [_tool(tool) for tool in blocks.objects(fields, "tools")]
    names = [tool.name for tool in tools]
    for index, name in enumerate(names):
        if name in names[:index]:
            path = f"tools[{index}].name"
            raise RefusedError(f"{path} is {name!r} a second time; rename one", field=path)
    return tools


def _tool(tool: Fields) -> ToolDefinition:
    kind = tool.string("type")
    if kind is not None and kind.startswith(_RUN_THERE):
        raise tool.refuse("type", "it runs on Anthropic's servers and cannot run here; leave it out")
    if kind is not None and kind.startswith(_KNOWN_THERE):
        raise tool.refuse("type", "its schema is built into Anthropic's models; declare it as custom with a schema")
    if kind not in (None, "custom"):
        raise tool.refuse("type", "give custom, or leave it out")
    tool.known(
        "cache_control", "defer_loading", "strict", "eager_input_streaming", "input_examples", "allowed_callers"
    )
    name, schema = tool.needed("name"), tool.value("input_schema")
    if not TOOL_NAME.fullmatch(name):
        raise tool.refuse("name", "use at most 128 of A-Z a-z 0-9 _ - . :")
    if not isinstance(schema, Mapping):
        raise tool.missing("input_schema") if schema is None else tool.refuse("input_schema", "give a JSON schema")
    try:
        dump_json(schema)
    except ValueError as error:
        path = tool.path("input_schema")
        raise RefusedError(f"{path}: {error}; send plain JSON", field=path) from None
    return ToolDefinition(name, tool.string("description"), schema)


def _choice(fields: Fields, tools: Sequence[ToolDefinition]) -> tuple[Choice, bool]:
    """Which tools are to be called, and whether more than once."""
    value = fields.inner("tool_choice")
    if value is None:
        return Choice(), True
    kind = value.one_of("type", ("auto", "any", "tool", "none"))
    parallel_calls = not value.boolean("disable_parallel_tool_use")
    if kind in ("any", "tool") and not tools:
        raise value.refuse("type", "there are no tools to call; declare them in tools")
    match kind:
        case "auto":
            return Choice(), parallel_calls
        case "none":
            return Choice("none"), parallel_calls
        case "any":
            return Choice("required"), parallel_calls
        case "tool":
            name = value.needed("name")
            if name not in (tool.name for tool in tools):
                raise value.refuse("name", "give the name of a tool in tools")
            return Choice("required", (name,)), parallel_calls
    raise value.missing("type")


# ---- the answer at once


def whole(style: Style, stamp: Stamp, outcome: Outcome) -> dict[str, Any]:
    """The body of an answer."""
    answer = outcome.answers[0] if outcome.answers else Answer()
    usage = {**_usage(outcome.usage), "service_tier": "standard"}
    return _message(stamp, _content(stamp, answer), STOP[answer.reason], answer.stop, usage)


def _message(
    stamp: Stamp, content: Sequence[object], reason: str | None, stop: str | None, usage: Mapping[str, object]
) -> dict[str, Any]:
    return {
        "id": f"msg_{stamp.id}",
        "type": "message",
        "role": "assistant",
        "model": stamp.model,
        "content": content,
        "stop_reason": reason,
        "stop_sequence": stop,
        "usage": usage,
    }


def _content(stamp: Stamp, answer: Answer) -> list[dict[str, Any]]:
    """The blocks, none of them empty. A call that was cut is left out unless its arguments are whole: half of them is
    nothing that a client may run."""
    content: list[dict[str, Any]] = []
    if answer.reasoning:
        content.append({"type": "thinking", "thinking": answer.reasoning, "signature": _signature(stamp)})
    if answer.content:
        content.append({"type": "text", "text": answer.content})
    for call in answer.calls:
        arguments = load_json_object(call.arguments)
        if arguments is not None:
            content.append({"type": "tool_use", "id": call.id, "name": call.name, "input": arguments})
    return content


def _signature(stamp: Stamp) -> str:
    """What stands for Anthropic's proof that the thinking is its model's; clients send back only thinking that has one,
    and nobody here looks at it."""
    return f"sig_{stamp.id}"


def _usage(usage: Usage) -> dict[str, Any]:
    return {
        "input_tokens": usage.prompt - usage.cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.cached,
        "output_tokens": usage.completion,
        "output_tokens_details": {"thinking_tokens": usage.reasoning},
    }


# ---- the answer as it comes

_EMPTY: Mapping[str, Mapping[str, object]] = {
    "thinking": {"type": "thinking", "thinking": "", "signature": ""},
    "text": {"type": "text", "text": ""},
}


class Stream:
    """Events to server-sent events of one message.

    One block is open at a time, and is closed before the next. A call that is cut was told as far as it went; its block
    is closed with what there is, and the stop reason says so.
    """

    def __init__(self, style: Style, stamp: Stamp) -> None:
        self._stamp = stamp
        self._blocks = 0
        self._open: Literal["thinking", "text", "tool_use"] | None = None
        self._ended = Ended(0, "stop")

    def write(self, event: AnswerEvent) -> list[bytes]:
        """What an event makes of the stream."""
        match event:
            case Begun(prompt_tokens):
                usage = {**_usage(Usage(prompt_tokens)), "service_tier": "standard"}
                return [_event("message_start", message=_message(self._stamp, [], None, None, usage))]
            case Thought(text=text):
                return self._text("thinking", "thinking_delta", text)
            case Said(text=text):
                return self._text("text", "text_delta", text)
            case CallBegun(id=id, name=name):
                block = {"type": "tool_use", "id": id, "name": name, "input": {}}
                return [*self._close(), self._begin("tool_use", block)]
            case CallArguments(text=text):
                return [self._delta({"type": "input_json_delta", "partial_json": text})] if text else []
            case CallEnded():
                return self._close()
            case Tokens():
                return []
            case Ended():
                self._ended = event
                return self._close()
            case Done(usage):
                delta = {"stop_reason": STOP[self._ended.reason], "stop_sequence": self._ended.stop}
                return [_event("message_delta", delta=delta, usage=_usage(usage)), _event("message_stop")]
            case Failed(refusal):
                return [sse(error_body(refusal), "error")]

    def _text(self, kind: Literal["thinking", "text"], delta: str, text: str) -> list[bytes]:
        if not text:
            return []
        begun = [] if self._open == kind else [*self._close(), self._begin(kind, _EMPTY[kind])]
        return [*begun, self._delta({"type": delta, kind: text})]

    def _begin(self, kind: Literal["thinking", "text", "tool_use"], block: Mapping[str, object]) -> bytes:
        self._open = kind
        return _event("content_block_start", index=self._blocks, content_block=block)

    def _delta(self, delta: Mapping[str, object]) -> bytes:
        return _event("content_block_delta", index=self._blocks, delta=delta)

    def _close(self) -> list[bytes]:
        if self._open is None:
            return []
        signed = {"type": "signature_delta", "signature": _signature(self._stamp)}
        closing = [self._delta(signed)] if self._open == "thinking" else []
        closing.append(_event("content_block_stop", index=self._blocks))
        self._open = None
        self._blocks += 1
        return closing


def _event(kind: str, **more: object) -> bytes:
    return sse({"type": kind, **more}, kind)


# ---- what is no message


def count_body(tokens: int) -> dict[str, Any]:
    """The answer of `POST /v1/messages/count_tokens`."""
    return {"input_tokens": tokens}


def error_body(refusal: RefusedError, request_id: str | None = None) -> dict[str, Any]:
    """The JSON of a refusal."""
    kind = _ERRORS.get(refusal.status, "invalid_request_error" if refusal.status < 500 else "api_error")
    return {"type": "error", "error": {"type": kind, "message": str(refusal)}, "request_id": request_id}


@dataclass(frozen=True, slots=True)
class Listed:
    """A model that can be named in a request. created: seconds since 1970. context: most tokens of a conversation."""

    id: str
    created: float
    context: int


def model_body(model: Listed) -> dict[str, Any]:
    """One model, for the SDKs of Anthropic and OpenAI alike: both ask the same address."""
    return {
        "id": model.id,
        "type": "model",
        "display_name": model.id,
        "created_at": datetime.fromtimestamp(int(model.created), UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "lifecycle": "active",
        "max_input_tokens": model.context,
        "max_tokens": model.context,
        "object": "model",
        "created": int(model.created),
        "owned_by": "finback",
    }


def models_body(models: Sequence[Listed]) -> dict[str, Any]:
    """All of them, on one page."""
    return {
        "data": [model_body(model) for model in models],
        "has_more": False,
        "first_id": models[0].id if models else None,
        "last_id": models[-1].id if models else None,
        "object": "list",
    }
