"""What a conversation is made of, and how the OpenAI JSON shape of it is read.

Owns the message types the renderer takes and the checks at the door: every refusal names the field by its
path (`messages[2].content[1].type`). Refuses images and other parts this text model cannot see, and roles it
does not know. Accepts what real clients send: parts or a string, null content beside calls, `developer` for
`system`, unknown extra keys, a call without its result or a result without its call.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from finback.errors import RequestError, shown
from finback.text.jsonform import dump_json
from finback.text.prompt import Sampled

ROLES = ("system", "developer", "user", "assistant", "tool", "latest_reminder")
TEXT_PARTS = ("text", "input_text", "output_text")  # the last two: parts of a Responses answer, replayed
PART_SEPARATOR = "\n\n"  # the published conversion joins text parts by a blank line
TOOL_NAME = re.compile(r"[A-Za-z0-9_:.-]{1,128}")  # namespaced tools are `ns::tool`


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call the model made. `arguments` is the JSON text of an object; other text is kept as it is."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class ToolDefinition:
    """A declared function. `parameters` is its JSON schema."""

    name: str
    description: str | None = None
    parameters: object = None


@dataclass(frozen=True, slots=True)
class SystemMessage:
    """Instructions, wherever they stand in the conversation."""

    content: str


@dataclass(frozen=True, slots=True)
class UserMessage:
    """What the user said."""

    content: str


@dataclass(frozen=True, slots=True)
class AssistantMessage:
    """A turn of the model. `reasoning` is None when the turn was made without thinking. sampled: the tokens it was
    drawn as, from after the token that opened or closed thinking to before the end of the turn, if they are known."""

    content: str
    reasoning: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    sampled: Sampled | None = None


@dataclass(frozen=True, slots=True)
class ToolMessage:
    """The result of one call; `call_id` is the id of the call, or None."""

    content: str
    call_id: str | None = None


@dataclass(frozen=True, slots=True)
class ReminderMessage:
    """Extra instructions placed late in the conversation (role `latest_reminder`)."""

    content: str


Message: TypeAlias = SystemMessage | UserMessage | AssistantMessage | ToolMessage | ReminderMessage


def messages_from_json(messages: Sequence[Mapping[str, object]], *, thinking: bool) -> list[Message]:
    """The messages of a request body in the OpenAI Chat shape.

    thinking: whether this request is in thinking mode. As in the published conversion, a turn without
        recorded reasoning then counts as one with empty reasoning, and outside thinking mode reasoning is
        dropped.
    Raises RequestError naming the field.
    """
    if not isinstance(messages, Sequence) or isinstance(messages, str | bytes):
        raise RequestError(f"messages is {shown(messages)}; give a list of messages")
    if not messages:
        raise RequestError("messages is empty; give at least one message")
    return [_message(m, f"messages[{i}]", thinking) for i, m in enumerate(messages)]


def wants_continuation(messages: Sequence[Mapping[str, object]]) -> bool:
    """Whether the last message asks to be continued (`"prefix": true`), for `render(continue_last=...)`.

    Raises RequestError when another message asks for it.
    """
    for index, message in enumerate(messages):
        if message.get("prefix") is True:
            if index != len(messages) - 1 or message.get("role") != "assistant":
                raise RequestError(f"messages[{index}].prefix: only a last assistant message is continued")
            return True
    return False


def tools_from_json(tools: Sequence[Mapping[str, object]]) -> list[ToolDefinition]:
    """The `tools` of a request body in the OpenAI Chat shape. Raises RequestError naming the field."""
    if not isinstance(tools, Sequence) or isinstance(tools, str | bytes):
        raise RequestError(f"tools is {shown(tools)}; give a list of tools")
    definitions = [_tool(tool, f"tools[{index}]") for index, tool in enumerate(tools)]
    names = [definition.name for definition in definitions]
    for index, name in enumerate(names):
        if name in names[:index]:
            raise RequestError(f"tools[{index}].function.name is {shown(name)} a second time; rename one")
    return definitions


def _message(message: object, where: str, thinking: bool) -> Message:
    if not isinstance(message, Mapping):
        raise RequestError(f"{where} is {shown(message)}; give an object with role and content")
    role = message.get("role")
    if role in ("system", "developer"):
        return SystemMessage(_content(message, where))
    if role == "user":
        return UserMessage(_content(message, where))
    if role == "assistant":
        return _assistant(message, where, thinking)
    if role == "tool":
        return ToolMessage(_content(message, where), _optional_string(message, "tool_call_id", where))
    if role == "latest_reminder":
        return ReminderMessage(_content(message, where))
    raise RequestError(f"{where}.role is {shown(role)}; give one of {', '.join(ROLES)}")


def _assistant(message: Mapping[str, object], where: str, thinking: bool) -> AssistantMessage:
    raw_calls = message.get("tool_calls")
    if raw_calls is None:
        raw_calls = []
    if not isinstance(raw_calls, list | tuple):
        raise RequestError(f"{where}.tool_calls is {shown(raw_calls)}; give a list of calls")
    calls = tuple(_call(call, f"{where}.tool_calls[{index}]") for index, call in enumerate(raw_calls))
    reasoning = _optional_string(message, "reasoning_content", where)
    if reasoning is None:  # the name other servers and their clients use
        reasoning = _optional_string(message, "reasoning", where)
    if message.get("content") is None and (calls or reasoning):
        content = ""
    else:
        content = _content(message, where)
    return AssistantMessage(content, (reasoning or "") if thinking else None, calls)


def _content(message: Mapping[str, object], where: str) -> str:
    content = message.get("content")
    if isinstance(content, str):
        return content
    if not isinstance(content, list | tuple):
        raise RequestError(f"{where}.content is {shown(content)}; give a string or a list of text parts")
    return PART_SEPARATOR.join(_part(part, f"{where}.content[{i}]") for i, part in enumerate(content))


def _part(part: object, where: str) -> str:
    if not isinstance(part, Mapping):
        raise RequestError(f'{where} is {shown(part)}; give an object like {{"type": "text", "text": "…"}}')
    kind = part.get("type")
    field = "refusal" if kind == "refusal" else "text"  # a replayed refusal is the text the model said
    if field == "text" and kind not in TEXT_PARTS:
        raise RequestError(f"{where}.type is {shown(kind)}; this model reads text only, send text parts")
    text = part.get(field)
    if not isinstance(text, str):
        raise RequestError(f"{where}.{field} is {shown(text)}; give a string")
    return text


def _call(call: object, where: str) -> ToolCall:
    if not isinstance(call, Mapping):
        raise RequestError(f"{where} is {shown(call)}; give an object with id and function")
    function = call.get("function")
    if not isinstance(function, Mapping):
        raise RequestError(f"{where}.function is {shown(function)}; give an object with name and arguments")
    name, arguments = function.get("name"), function.get("arguments")
    if not isinstance(name, str) or not name:
        raise RequestError(f"{where}.function.name is {shown(name)}; give the name of the called tool")
    if isinstance(arguments, Mapping):  # Ollama's shape
        arguments = _spell(arguments, f"{where}.function.arguments")
    if not isinstance(arguments, str):
        raise RequestError(f"{where}.function.arguments is {shown(arguments)}; give JSON text or an object")
    return ToolCall(_optional_string(call, "id", where) or "", name, arguments)


def _tool(tool: object, where: str) -> ToolDefinition:
    if not isinstance(tool, Mapping) or tool.get("type") != "function":
        raise RequestError(f'{where} is {shown(tool)}; give an object with "type": "function"')
    function = tool.get("function")
    if not isinstance(function, Mapping):
        raise RequestError(f"{where}.function is {shown(function)}; give an object with a name")
    name = function.get("name")
    if not isinstance(name, str) or not TOOL_NAME.fullmatch(name):
        raise RequestError(f"{where}.function.name is {shown(name)}; use at most 128 of A-Z a-z 0-9 _ - . :")
    parameters = function.get("parameters")
    if parameters is None:
        parameters = {}
    if not isinstance(parameters, Mapping):
        raise RequestError(f"{where}.function.parameters is {shown(parameters)}; give a JSON schema object")
    _spell(parameters, f"{where}.function.parameters")
    return ToolDefinition(name, _optional_string(function, "description", f"{where}.function"), parameters)


def _optional_string(owner: Mapping[str, object], key: str, where: str) -> str | None:
    value = owner.get(key)
    if value is not None and not isinstance(value, str):
        raise RequestError(f"{where}.{key} is {shown(value)}; give a string")
    return value


def _spell(value: object, where: str) -> str:
    try:
        return dump_json(value)
    except ValueError as error:
        raise RequestError(f"{where}: {error}; send plain JSON") from None
