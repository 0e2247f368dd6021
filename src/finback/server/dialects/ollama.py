"""Ollama's own endpoints, `POST /api/chat` and `POST /api/generate`.

Owns the translation: a body to a request, events to lines of JSON, an outcome to one object. Source: the API's
reference and what clients were seen to send. Refuses options that cannot be honoured, and the endpoints that keep or
change models; what is said of models is in `ollama_models.py`.

What differs from Ollama. The context is the server's: `num_ctx` is taken and changes nothing, and a prompt that does
not fit is refused, never cut (`truncate`, `shift`). Penalties look at all tokens, so a `repeat_last_n` other than -1
(all) or 0 (no penalty) is refused beside a penalty. Whatever else says how to run a model on a machine is taken.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from finback.engine.sampling import LARGEST_ID, MAX_PENALTY, Sampling
from finback.errors import RequestError
from finback.server.answer import (
    Answer,
    AnswerEvent,
    Begun,
    Call,
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
    Timings,
    Token,
    Tokens,
    Usage,
)
from finback.server.ask import Ask, Chat, Defaults, Raw, RefusedError, Stamp
from finback.server.dialects import openai
from finback.server.dialects.ollama_models import date
from finback.server.fields import Fields
from finback.server.wire import line
from finback.text.messages import (
    AssistantMessage,
    Message,
    SystemMessage,
    ToolDefinition,
    UserMessage,
    messages_from_json,
    tools_from_json,
)
from finback.text.render import JsonReply

EFFORTS = ("low", "medium", "high", "max")

OF_THE_MACHINE = (
    "num_ctx", "num_keep", "num_batch", "num_gpu", "num_thread", "main_gpu", "use_mmap", "use_mlock", "numa",
    "low_vram", "f16_kv", "logits_all",
)  # fmt: skip
"""Options that say how a model is run, not what it answers."""

NOT_HERE: Mapping[str, str] = {
    "embed": "the model served makes no embeddings; ask a server that runs an embedding model",
    "embeddings": "the model served makes no embeddings; ask a server that runs an embedding model",
    "pull": "models are not fetched through the server; fetch them on its command line",
    "push": "models are not uploaded from here; upload them with their hub's own tool",
    "create": "models are not made here; start the server with the model you want",
    "copy": "models have no copies here; start the server with another name for it",
    "delete": "models are not deleted through the server; delete their files on its machine",
    "blobs": "files are not kept for clients; start the server with the model you want",
}
"""Endpoints under /api that do not exist here, and what to do instead."""

_DURATION = re.compile(r"([+-]?)((?:(?:\d+\.?\d*|\.\d+)(?:ns|us|µs|μs|ms|s|m|h))+|\d+\.?\d*)", re.ASCII)
_PART = re.compile(r"(\d+\.?\d*|\.\d+)(ns|us|µs|μs|ms|s|m|h|$)", re.ASCII)
_SECONDS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ms": 1e-3, "s": 1.0, "": 1.0, "m": 60.0, "h": 3600.0}
_NO_PROMPT = Raw("", only_read=True)


@dataclass(frozen=True, slots=True)
class Style:
    """How the answer is told. generate: in the shape of /api/generate, else of /api/chat. keep_alive: seconds that the
    model stays after the answer; inf is for ever, 0 not at all, None is the server's to say. load_only: nothing is
    answered, the model is loaded; with keep_alive 0 it is unloaded."""

    generate: bool
    keep_alive: float | None = None
    load_only: bool = False


# ---- reading


def read_chat(body: object, defaults: Defaults) -> tuple[Ask, Style]:
    """A request from a body of /api/chat. Raises RefusedError, naming the field."""
    fields = Fields(body)
    model, (think, effort) = fields.needed("model"), _thinking(fields, defaults)
    reply, form = _form(fields)
    sampling = _sampling(fields, form)
    messages, tools = _conversation(fields, think)
    # As in Ollama, a last message of the model's is gone on with.
    goes_on = bool(messages) and isinstance(messages[-1], AssistantMessage) and not messages[-1].tool_calls
    chat = Chat(messages, tools, thinking=think, effort=effort, reply=reply, continue_last=goes_on)
    return _asked(fields, Style(False, _keep_alive(fields), not messages), model, chat, sampling)


def read_generate(body: object, defaults: Defaults) -> tuple[Ask, Style]:
    """A request from a body of /api/generate. Raises RefusedError, naming the field."""
    fields = Fields(body)
    model, (think, effort) = fields.needed("model"), _thinking(fields, defaults)
    reply, form = _form(fields)
    sampling = _sampling(fields, form)
    text, suffix, system = (fields.string(name) or "" for name in ("prompt", "suffix", "system"))
    fields.cannot("images", [], why="this model reads text only")
    fields.cannot("template", "", why="the prompt's format is the model's own; use raw for another")
    fields.cannot("context", [], why="conversations are not kept as ids; send the messages to /api/chat")
    for name in ("width", "height", "steps"):
        fields.cannot(name, 0, why="answers are text")
    if fields.boolean("raw") or suffix:
        _refuse_beside_raw(fields, system)
        prompt: Chat | Raw = Raw(text, suffix or None)
    else:
        before = (SystemMessage(system),) if system else ()
        prompt = Chat((*before, UserMessage(text)), thinking=think, effort=effort, reply=reply)
    return _asked(fields, Style(True, _keep_alive(fields), not text and not suffix), model, prompt, sampling)


def _refuse_beside_raw(fields: Fields, system: str) -> None:
    why = "with raw or suffix the text is gone on with as it is; leave it out"
    if system:
        raise fields.refuse("system", why)
    if fields.value("think") not in (None, False):
        raise fields.refuse("think", why)


def _asked(
    fields: Fields, style: Style, model: str, prompt: Chat | Raw, sampling: Sampling
) -> tuple[Ask, Style]:
    stream = fields.boolean("stream", True)
    fields.known("truncate", "shift")  # what they would cut is refused, or ends with "length"
    asked = _NO_PROMPT if style.load_only else prompt
    return Ask(model, asked, sampling, stream, ignored=fields.unknown()), style


def _thinking(fields: Fields, defaults: Defaults) -> tuple[bool, str | int | None]:
    """Whether to think, and how hard."""
    value = fields.value("think")
    if isinstance(value, str):
        return True, fields.one_of("think", EFFORTS)
    effort = None if defaults.effort == "none" else defaults.effort
    if value is None:
        return defaults.thinking and defaults.effort != "none", effort
    if not isinstance(value, bool):
        raise fields.refuse("think", f"give true, false, or one of {', '.join(EFFORTS)}")
    return value, effort


def _form(fields: Fields) -> tuple[JsonReply | None, dict[str, Any]]:
    """What `format` asks of the answer: for the prompt, and as sampling parameters."""
    value = fields.value("format")
    if value is None or value == "":
        return None, {}
    if value == "json":
        return JsonReply(), {"json_object": True}
    if not isinstance(value, Mapping):
        raise fields.refuse("format", "give json, or a JSON schema object")
    return JsonReply(value), {"json_schema": value}


def _sampling(fields: Fields, form: Mapping[str, Any]) -> Sampling:
    options = fields.inner("options") or Fields({}, "options")
    limit = options.whole("num_predict", -2, LARGEST_ID)
    seed = options.whole("seed", -(2**63), 2**64 - 1)
    top_k = options.whole("top_k", -1, LARGEST_ID)
    repetition, presence, frequency = _penalties(options)
    options.cannot("mirostat", 0, 0.0, False, why="mirostat is no sampler here; use temperature and min_p")
    options.cannot("tfs_z", 1, 1.0, why="tail-free sampling is not done here; use min_p")
    options.cannot("typical_p", 1, 1.0, why="typical sampling is not done here; use min_p")
    options.known("mirostat_tau", "mirostat_eta", *OF_THE_MACHINE)
    try:
        return Sampling(
            temperature=options.number("temperature", 0, 100),
            top_k=0 if top_k == -1 else top_k,
            top_p=options.number("top_p", 0, 1),
            min_p=options.number("min_p", 0, 1),
            seed=None if seed in (None, -1) else seed % 2**64,
            repetition_penalty=repetition,
            presence_penalty=presence,
            frequency_penalty=frequency,
            max_tokens=limit if limit is not None and limit > 0 else None,  # -1, -2 and 0 are Ollama's "no limit"
            stop=options.strings("stop"),
            logprobs=openai.logprobs(fields),
            **form,
        )
    except RequestError as error:  # what is left to be wrong comes from the options
        raise openai.refusal_of(RequestError(f"options.{error}")) from None


def _penalties(options: Fields) -> tuple[float | None, float, float]:
    """The penalties of repetition, presence and frequency."""
    repetition = options.number("repeat_penalty", 0.01, 100)
    presence = options.number("presence_penalty", -MAX_PENALTY, MAX_PENALTY) or 0.0
    frequency = options.number("frequency_penalty", -MAX_PENALTY, MAX_PENALTY) or 0.0
    window = options.whole("repeat_last_n", -1, LARGEST_ID)
    options.known("penalize_newline")
    if window == 0:
        return 1.0, 0.0, 0.0
    if repetition not in (None, 1) or presence or frequency:
        options.cannot("penalize_newline", True, why="a line's end is penalised as any other token")
        if window not in (None, -1):
            raise options.refuse("repeat_last_n", "penalties look at all tokens; give -1, or leave it out")
    return repetition, presence, frequency


def _keep_alive(fields: Fields) -> float | None:
    """Seconds, or None."""
    value = fields.value("keep_alive")
    if value is None:
        return None
    seconds: float | None = None
    if isinstance(value, str) and len(value) <= 64 and (match := _DURATION.fullmatch(value)):
        seconds = sum(float(number) * _SECONDS[unit] for number, unit in _PART.findall(match[2]))
        seconds = -seconds if match[1] == "-" else seconds
    elif isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e18:
        seconds = float(value)
    if seconds is None:
        raise fields.refuse("keep_alive", "give seconds, or a duration such as 5m or 1h30m; -1 is for ever")
    return math.inf if seconds < 0 else seconds


# ---- messages


def _conversation(fields: Fields, think: bool) -> tuple[tuple[Message, ...], tuple[ToolDefinition, ...]]:
    raw, tools = fields.items("messages") or (), fields.items("tools") or ()
    calls = _Calls()
    messages = [_message(Fields(message, f"messages[{index}]"), calls) for index, message in enumerate(raw)]
    try:
        definitions = tools_from_json([_typed(tool) for tool in tools])
        return tuple(messages_from_json(messages, thinking=think) if messages else ()), tuple(definitions)
    except RequestError as error:
        raise openai.refusal_of(error) from None


def _typed(tool: Any) -> Any:
    """A tool with its type, which Ollama's clients may leave out."""
    return {**tool, "type": "function"} if isinstance(tool, Mapping) and tool.get("type") is None else tool


class _Calls:
    """The ids of calls, which Ollama's messages need not have: all get new ones, which sort as the calls stand.

    A result belongs to the call whose id it names, else to the first of its tool that has none yet, else to the first
    that has none.
    """

    def __init__(self) -> None:
        self._minted = 0
        self._open: list[tuple[str, str | None, str]] = []  # of the last turn with calls: id, the client's id, name

    def turn(self) -> None:
        """The next calls are another turn's."""
        self._open = []

    def mint(self, given: str | None, name: str) -> str:
        """The id of the next call."""
        id = f"call_{self._minted:04}"
        self._minted += 1
        self._open.append((id, given, name))
        return id

    def of_result(self, given: str | None, name: str | None) -> str | None:
        """The id of the call whose result this is, or None when there is none."""
        by_id = [call for call in self._open if given and call[1] == given]
        by_name = [call for call in self._open if call[2] == name]
        for call in [*by_id, *by_name, *self._open][:1]:
            self._open.remove(call)
            return call[0]
        return None


def _message(fields: Fields, calls: _Calls) -> dict[str, Any]:
    """A message in the shape that `messages_from_json` reads."""
    fields.cannot("images", [], why="this model reads text only")
    role, content = (fields.string("role") or "").lower(), fields.value("content")
    message: dict[str, Any] = {"role": role, "content": "" if content is None else content}
    if role == "assistant":
        message["reasoning_content"] = fields.string("thinking")
        made = fields.items("tool_calls") or ()
        if made:
            calls.turn()
        message["tool_calls"] = [
            _call_made(fields.within(call, f"tool_calls[{index}]"), calls) for index, call in enumerate(made)
        ]
    if role == "tool":
        name = fields.string("tool_name") or fields.string("name")
        message["tool_call_id"] = calls.of_result(fields.string("tool_call_id"), name)
    return message


def _call_made(fields: Fields, calls: _Calls) -> dict[str, Any]:
    function = fields.inner("function")
    if function is None:
        raise fields.missing("function")
    name, arguments = function.needed("name"), function.value("arguments")
    id = calls.mint(fields.string("id"), name)
    return {"id": id, "function": {"name": name, "arguments": {} if arguments is None else arguments}}


# ---- the answer at once


def whole(style: Style, stamp: Stamp, outcome: Outcome) -> dict[str, Any]:
    """The body of an answer."""
    answer = outcome.answers[0]
    return {**_told(style, stamp, answer), **_end(answer.reason, outcome.usage, outcome.timings)}


def loaded(style: Style, stamp: Stamp, unloaded: bool) -> dict[str, Any]:
    """The body of a request that only loads the model, or unloads it."""
    return {**_told(style, stamp, Answer()), "done": True, "done_reason": "unload" if unloaded else "load"}


def error_body(refusal: RefusedError) -> dict[str, Any]:
    """The JSON of a refusal."""
    return {"error": str(refusal)}


def not_here(name: str) -> RefusedError:
    """The refusal of an endpoint that does not exist here, one of NOT_HERE."""
    return RefusedError(f"/api/{name}: {NOT_HERE[name]}", status=501)


def _told(style: Style, stamp: Stamp, piece: Answer, first_call: int = 0) -> dict[str, Any]:
    """An answer or a piece of one; its calls are numbered from `first_call` on. A call that was cut is not told."""
    body: dict[str, Any] = {"model": stamp.model, "created_at": date(stamp.created)}
    text: dict[str, Any] = {"response": piece.content} if style.generate else {"content": piece.content}
    if piece.reasoning:
        text["thinking"] = piece.reasoning
    if calls := [_call(index, call) for index, call in enumerate(piece.calls, first_call) if call.whole]:
        text["tool_calls"] = calls
    body |= text if style.generate else {"message": {"role": "assistant", **text}}
    body["done"] = False
    if piece.tokens:
        body["logprobs"] = openai.logprob_items(piece.tokens)
    return body


def _call(index: int, call: Call) -> dict[str, Any]:
    function = {"index": index, "name": call.name, "arguments": json.loads(call.arguments)}
    return {"id": call.id, "function": function}


def _end(reason: Reason, usage: Usage, timings: Timings) -> dict[str, Any]:
    """What the last object says beyond its text. Ollama has no word for an answer that waits for results."""
    wait, prefill, decode = (round(s * 1e9) for s in (timings.queue_s, timings.prefill_s, timings.decode_s))
    return {
        "done": True,
        "done_reason": "length" if reason == "length" else "stop",
        "total_duration": wait + prefill + decode,
        "load_duration": 0,
        "prompt_eval_count": usage.prompt,
        "prompt_eval_duration": prefill,
        "eval_count": usage.completion,
        "eval_duration": decode,
    }


# ---- the answer as it comes


class Stream:
    """Events to lines of JSON of one answer."""

    def __init__(self, style: Style, stamp: Stamp) -> None:
        self._style, self._stamp = style, stamp
        self._tokens: list[Token] = []
        self._calls: dict[int, Call] = {}
        self._reason: Reason = "stop"

    def write(self, event: AnswerEvent) -> list[bytes]:
        """What an event makes of the stream."""
        match event:
            case Begun():
                return []
            case Tokens(tokens=tokens):
                self._tokens += tokens
            case Thought(text=text):
                return [line(self._piece(Answer(reasoning=text)))]
            case Said(text=text):
                return [line(self._piece(Answer(content=text)))]
            case CallBegun(call=index, id=id, name=name):
                self._calls[index] = Call(id, name)
            case CallArguments(call=index, text=text):
                self._calls[index].arguments += text
            case CallEnded(call=index):
                self._calls[index].whole = True
                return [line(self._piece(Answer(calls=[self._calls.pop(index)]), index))]
            case Ended(reason=reason):
                self._reason = reason
            case Done(usage, timings):
                return [line({**self._piece(Answer()), **_end(self._reason, usage, timings)})]
            case Failed(refusal):
                return [line(error_body(refusal))]
        return []

    def ping(self) -> bytes:
        """A line that says nothing: these streams have no comments."""
        return line(_told(self._style, self._stamp, Answer()))

    def _piece(self, piece: Answer, first_call: int = 0) -> dict[str, Any]:
        piece.tokens, self._tokens = self._tokens, []
        return _told(self._style, self._stamp, piece, first_call)
