"""What OpenAI's responses read: items of a conversation to messages, declared tools to functions.

Owns the items' shapes, the turn that several items make, and the names under which tools are declared. Refuses items
of tools that no answer of this server calls, pictures, and references to items that it does not have.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from finback.errors import shown
from finback.server.ask import RefusedError
from finback.server.fields import Fields
from finback.text.jsonform import dump_json
from finback.text.messages import (
    PART_SEPARATOR,
    TEXT_PARTS,
    TOOL_NAME,
    AssistantMessage,
    Message,
    SystemMessage,
    ToolCall,
    ToolDefinition,
    ToolMessage,
    UserMessage,
)

ROLES = ("user", "assistant", "system", "developer")
REASONING_SEPARATOR = "\n"  # the published conversion joins pieces of thinking by a line's end
REASONING_PARTS = ("reasoning_text", "summary_text", "text")
NAMESPACE = "::"  # between the name of a namespace and that of a tool in it, as the model is told
FREEFORM = "input"  # the one parameter of a tool that takes text
HOSTED = (
    "web_search", "file_search", "image_generation", "code_interpreter", "computer", "local_shell", "shell",
    "apply_patch", "tool_search", "mcp", "programmatic_tool_calling",
)  # fmt: skip
"""Tools that the service behind the API runs itself, or that have items of their own; later versions of one begin with
its name. Clients send them unasked."""


# ---- items


def items_of(body: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The input of a request that `read` took, as a list of items of one shape; to be kept for a later request."""
    value = body.get("input")
    items = [{"role": "user", "content": value}] if isinstance(value, str) else value or []
    return [_kept(item) for item in items]


def _kept(item: Mapping[str, Any]) -> dict[str, Any]:
    if item.get("type") not in (None, "message"):
        return dict(item)
    content = item["content"]
    if isinstance(content, str):
        kind = "output_text" if item["role"] == "assistant" else "input_text"
        content = [{"type": kind, "text": content}]
    return {**item, "type": "message", "content": content}


@dataclass(slots=True)
class _Turn:
    """A turn of the model in the making."""

    reasoning: list[str]
    content: list[str]
    calls: list[ToolCall]


class Conversation:
    """Items to messages. A turn of the model may stand in several items: its thinking, what it said, its calls. It is
    over with a result, with what another says, and when the model thinks again after it said something.

    thinking: whether this request is in thinking mode; as in chat, a turn without recorded thinking then counts as one
    with empty thinking, and outside that mode thinking is dropped.
    """

    def __init__(self, thinking: bool) -> None:
        self._thinking = thinking
        self._messages: list[Message] = []
        self._turn: _Turn | None = None

    def instruct(self, text: str) -> None:
        """Instructions that stand outside the items."""
        self._say(SystemMessage(text))

    def take(self, item: Fields) -> None:
        """The next item. Raises RefusedError, naming the field."""
        match item.string("type"):
            case None | "message":
                self._message(item)
            case "reasoning":
                self._think(item)
            case "function_call":
                arguments = item.string("arguments")
                if arguments is None:
                    raise item.missing("arguments")
                self._call(item, arguments)
            case "custom_tool_call":
                self._call(item, dump_json({FREEFORM: _text(item, "input", TEXT_PARTS)}))
            case "function_call_output" | "custom_tool_call_output":
                self._say(ToolMessage(_text(item, "output", TEXT_PARTS), item.needed("call_id")))
            case "item_reference":
                raise item.refuse("type", "items are not kept by id; give the item itself, or previous_response_id")
            case _:
                raise item.refuse("type", "give messages, reasoning, and calls of functions or custom tools")

    def messages(self) -> list[Message]:
        """All of it."""
        self._end_turn()
        return self._messages

    def _message(self, item: Fields) -> None:
        role = item.one_of("role", ROLES)
        if role is None:
            raise item.missing("role")
        text = _text(item, "content", TEXT_PARTS)
        if role == "assistant":
            self._mine().content.append(text)
        else:
            self._say(UserMessage(text) if role == "user" else SystemMessage(text))

    def _think(self, item: Fields) -> None:
        """Thinking: its text, or else the summary of it. Encrypted content is an id here, and nothing is behind it."""
        name = "content" if item.items("content") else "summary"
        text = _text(item, name, REASONING_PARTS, REASONING_SEPARATOR) if item.has(name) else ""
        turn = self._mine()
        if turn.content and not turn.calls:
            self._end_turn()
            turn = self._mine()
        if text:
            turn.reasoning.append(text)

    def _call(self, item: Fields, arguments: str) -> None:
        name, namespace = item.needed("name"), item.string("namespace")
        full = f"{namespace}{NAMESPACE}{name}" if namespace else name
        self._mine().calls.append(ToolCall(item.needed("call_id"), full, arguments))

    def _mine(self) -> _Turn:
        self._turn = self._turn or _Turn([], [], [])
        return self._turn

    def _say(self, message: Message) -> None:
        self._end_turn()
        self._messages.append(message)

    def _end_turn(self) -> None:
        turn, self._turn = self._turn, None
        if turn is not None:
            reasoning = REASONING_SEPARATOR.join(turn.reasoning) if self._thinking else None
            self._messages.append(AssistantMessage(PART_SEPARATOR.join(turn.content), reasoning, tuple(turn.calls)))


def _text(item: Fields, name: str, kinds: Sequence[str], separator: str = PART_SEPARATOR) -> str:
    value = item.value(name)
    if isinstance(value, str):
        return value
    if value is None:
        raise item.missing(name)
    if not isinstance(value, list | tuple):
        raise item.refuse(name, "give a string or a list of text parts")
    return separator.join(_part(item.within(part, f"{name}[{i}]"), kinds) for i, part in enumerate(value))


def _part(part: Fields, kinds: Sequence[str]) -> str:
    kind = part.string("type")
    name = "refusal" if kind == "refusal" else "text"  # a replayed refusal is the text the model said
    if name == "text" and kind not in kinds:
        raise part.refuse("type", "this model reads text only, send text parts")
    text = part.string(name)
    if text is None:
        raise part.missing(name)
    return text


# ---- tools


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool as its client knows it. freeform: it takes text, not arguments."""

    name: str
    namespace: str | None = None
    freeform: bool = False


class Tools:
    """Declared tools. definitions: what the model is told. named: the tools by the names it is told. echo: those that
    count, as they were sent. ignored: paths of those that do not."""

    def __init__(self, fields: Fields) -> None:
        self.definitions: list[ToolDefinition] = []
        self.named: dict[str, Tool] = {}
        self.echo: list[dict[str, Any]] = []
        self.ignored: list[str] = []
        for index, tool in enumerate(fields.items("tools") or ()):
            self._take(tool, fields.path(f"tools[{index}]"))

    def _take(self, sent: Mapping[str, Any], path: str) -> None:
        tool = Fields(sent, path)
        kind = tool.needed("type")
        if kind.startswith(HOSTED):
            self.ignored.append(f"{path} ({kind})")
            return
        if kind == "namespace":
            self._namespace(tool)
        else:
            self._declare(tool, None, "")
        bare = {"description": None, "parameters": None, "strict": None} if kind == "function" else {}
        self.echo.append({**bare, **sent})

    def _namespace(self, tool: Fields) -> None:
        """Tools under a common name. What is said of all is said of each."""
        name, about = tool.needed("name"), tool.string("description")
        inner = tool.items("tools")
        if inner is None:
            raise tool.missing("tools")
        for index, value in enumerate(inner):
            self._declare(tool.within(value, f"tools[{index}]"), name, f"{about}\n" if about else "")

    def _declare(self, tool: Fields, namespace: str | None, about: str) -> None:
        kind = tool.needed("type")
        if kind not in ("function", "custom"):
            raise tool.refuse("type", "give function, custom or namespace")
        name, freeform = tool.needed("name"), kind == "custom"
        full = f"{namespace}{NAMESPACE}{name}" if namespace else name
        if not TOOL_NAME.fullmatch(full):
            raise tool.refuse("name", "use at most 128 of A-Z a-z 0-9 _ - . : with its namespace")
        if full in self.named:
            path = tool.path("name")
            raise RefusedError(f"{path} is {shown(full)} a second time; rename one", field=path)
        parameters = _text_parameter(tool) if freeform else _parameters(tool)
        description = about + (tool.string("description") or "")
        self.definitions.append(ToolDefinition(full, description or None, parameters))
        self.named[full] = Tool(name, namespace, freeform)


def _parameters(tool: Fields) -> Mapping[str, Any]:
    parameters: Any = tool.value("parameters")
    if parameters is None:
        return {}
    if not isinstance(parameters, Mapping):
        raise tool.refuse("parameters", "give a JSON schema object")
    try:
        dump_json(parameters)
    except ValueError as error:
        path = tool.path("parameters")
        raise RefusedError(f"{path}: {error}; send plain JSON", field=path) from None
    return parameters


def _text_parameter(tool: Fields) -> Mapping[str, Any]:
    """The parameters of a tool that takes text. The model is told of a grammar for it; nothing enforces it."""
    text = {"type": "string"}
    form = tool.inner("format")
    if form is not None and form.one_of("type", ("text", "grammar")) == "grammar":
        syntax, grammar = form.one_of("syntax", ("lark", "regex")) or "lark", form.needed("definition")
        text["description"] = f"Text that matches this {syntax} grammar:\n{grammar}"
    return {"type": "object", "properties": {FREEFORM: text}, "required": [FREEFORM]}
