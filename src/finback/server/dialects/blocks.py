"""Content blocks, of which a conversation of Anthropic's Messages API is made.

Owns reading `system` and `messages`: which blocks a text model can read, and what each becomes. Refuses, by its path,
every other block: images, files, and what tools that run on Anthropic's servers wrote. As in the published conversion
the texts of one message are joined by a blank line, its thinking likewise, and neighbouring messages stay apart.
"""

from __future__ import annotations

from collections.abc import Mapping

from finback.server.ask import RefusedError
from finback.server.fields import Fields
from finback.text.jsonform import dump_json
from finback.text.messages import (
    PART_SEPARATOR,
    AssistantMessage,
    Message,
    SystemMessage,
    ToolCall,
    ToolMessage,
    UserMessage,
)

ROLES = ("user", "assistant", "system")
BILLING_HEADER = "x-anthropic-billing-header"
REMINDER = "<system-reminder>\n{}\n</system-reminder>"
"""A message of the system among the others, as the published conversion for V4 writes it: in its place, in a turn of
the user. At the head of the prompt each new one would change the prompt from its first words on."""

_UNREADABLE = "this model reads text only, send text blocks"


def objects(fields: Fields, name: str) -> list[Fields]:
    """The objects of a list; none if it is left out."""
    return [fields.within(item, f"{name}[{index}]") for index, item in enumerate(fields.items(name) or ())]


def system(fields: Fields, drop_billing_header: bool) -> list[Message]:
    """What `system` says, if anything.

    drop_billing_header: whether to leave out a first block that Claude Code writes for Anthropic's billing. It differs
    from session to session, and so would every prompt from its first words on.
    """
    if not fields.has("system"):
        return []
    texts = [_text(block) for block in _blocks(fields, "system")]
    in_blocks = not isinstance(fields.value("system"), str)
    if drop_billing_header and in_blocks and texts and texts[0].startswith(BILLING_HEADER):
        del texts[0]
    text = PART_SEPARATOR.join(texts)
    return [SystemMessage(text)] if text else []


def conversation(fields: Fields, think: bool) -> tuple[list[Message], frozenset[str]]:
    """The messages, and the names of tools that messages of the system withdrew.

    think: whether the answer thinks; then a turn without recorded thinking counts as one with empty thinking.
    """
    messages = objects(fields, "messages")
    if not fields.has("messages"):
        raise fields.missing("messages")
    if not messages:
        raise fields.refuse("messages", "give at least one message")
    roles = [message.one_of("role", ROLES) for message in messages]
    found: list[Message] = []
    offered: dict[str, bool] = {}
    for index, (role, message) in enumerate(zip(roles, messages, strict=True)):
        if role == "user":
            found += _user(message)
        elif role == "assistant":
            found.append(_assistant(message, think))
        elif role == "system":
            text, changes = _system(message)
            passing = message.one_of("clear_at", ("never", "next_user_message")) == "next_user_message"
            offered |= changes
            if text and not (passing and "user" in roles[index:]):
                found.append(UserMessage(REMINDER.format(text)))
        else:
            raise message.refuse("role", f"give one of {', '.join(ROLES)}")
    return found, frozenset(name for name, is_offered in offered.items() if not is_offered)


def _blocks(fields: Fields, name: str) -> list[Fields]:
    """Content as blocks; a string is one block of text."""
    value = fields.value(name)
    if isinstance(value, str):
        return [Fields({"type": "text", "text": value}, fields.path(name))]
    if value is None:
        raise fields.missing(name)
    if not isinstance(value, list | tuple):
        raise fields.refuse(name, "give a string or a list of blocks")
    return objects(fields, name)


# ---- messages by role


def _user(message: Fields) -> list[Message]:
    """Results of tools and what the user said, in their order."""
    found: list[Message] = []
    texts: list[str] = []
    for block in _blocks(message, "content"):
        if block.value("type") == "tool_result":
            found += [*_said(texts), _result(block)]
            texts = []
        else:
            texts.append(_readable(block))
    return [*found, *_said(texts)] or [UserMessage("")]


def _said(texts: list[str]) -> list[Message]:
    return [UserMessage(PART_SEPARATOR.join(texts))] if texts else []


def _assistant(message: Fields, think: bool) -> AssistantMessage:
    """A turn of the model. Text after a call counts as before it: the format has its calls last."""
    texts, thoughts, calls = [], [], []
    for block in _blocks(message, "content"):
        match block.value("type"):
            case "text":
                texts.append(_text(block))
            case "thinking":
                block.known("signature")
                thoughts.append(_string(block, "thinking"))
            case "redacted_thinking":  # thinking that nobody but Anthropic can read
                block.known("data")
            case "tool_use":
                calls.append(_call(block))
            case _:
                raise block.refuse("type", "give text, thinking, redacted_thinking or tool_use")
    reasoning = PART_SEPARATOR.join(thoughts) if think else None
    return AssistantMessage(PART_SEPARATOR.join(texts), reasoning, tuple(calls))


def _system(message: Fields) -> tuple[str, dict[str, bool]]:
    """What a message of the system says, and of which tools it says that they are, or are no longer, offered."""
    message.cannot("output_config", {}, why="an answer has one effort, the output_config at the top")
    texts: list[str] = []
    changes: dict[str, bool] = {}
    for block in _blocks(message, "content"):
        kind = block.value("type")
        if kind in ("tool_addition", "tool_removal"):
            changes[_referenced(block)] = kind == "tool_addition"
        else:
            texts.append(_text(block))
    return PART_SEPARATOR.join(texts), changes


def _referenced(block: Fields) -> str:
    block.known("cache_control")
    tool = block.inner("tool")
    if tool is None:
        raise block.missing("tool")
    if tool.value("type") != "tool_reference":
        raise tool.refuse("type", "declare the tool in tools and give a tool_reference")
    return tool.needed("name" if tool.has("name") else "tool_name")


# ---- blocks by type


def _string(block: Fields, name: str) -> str:
    """Text that must be there, but may be empty."""
    text = block.string(name)
    if text is None:
        raise block.missing(name)
    return text


def _text(block: Fields) -> str:
    block.known("cache_control", "citations")
    if block.value("type") != "text":
        raise block.refuse("type", _UNREADABLE)
    return _string(block, "text")


def _readable(block: Fields) -> str:
    """The text of a block of a user or of a tool."""
    match block.value("type"):
        case "document":
            return _document(block)
        case "search_result":
            _no_citations(block)
            texts = [_text(part) for part in _blocks(block, "content")]
            return PART_SEPARATOR.join([_string(block, "title"), _string(block, "source"), *texts])
        case _:
            return _text(block)


def _document(block: Fields) -> str:
    """Its title and what is said of it, if anything, and its text."""
    _no_citations(block)
    source = block.inner("source")
    if source is None:
        raise block.missing("source")
    source.known("media_type")
    match source.value("type"):
        case "text":
            texts = [_string(source, "data")]
        case "content":
            texts = [_text(part) for part in _blocks(source, "content")]
        case _:
            raise source.refuse("type", "this model reads text only, send a source of type text")
    about = [block.string(name) for name in ("title", "context")]
    return PART_SEPARATOR.join([*(text for text in about if text), *texts])


def _no_citations(block: Fields) -> None:
    block.known("cache_control")
    if citations := block.inner("citations"):
        citations.cannot("enabled", False, why="answers come without citations")


def _result(block: Fields) -> ToolMessage:
    """The result of a call. That it is an error is in its text, as the format has no other place for it."""
    block.known("cache_control", "toolset_name")
    block.boolean("is_error")
    parts = _blocks(block, "content") if block.has("content") else ()
    text = PART_SEPARATOR.join(_result_part(part) for part in parts)
    return ToolMessage(text, block.needed("tool_use_id"))


def _result_part(part: Fields) -> str:
    if part.value("type") == "tool_reference":  # found by a tool that searches tools; all are declared from the start
        part.known("cache_control")
        return part.needed("tool_name")
    return _readable(part)


def _call(block: Fields) -> ToolCall:
    block.known("cache_control", "caller", "toolset_name")
    arguments = block.value("input")
    if arguments is None:
        raise block.missing("input")
    if not isinstance(arguments, Mapping):
        raise block.refuse("input", "give an object")
    try:
        spelled = dump_json(arguments)
    except ValueError as error:
        path = block.path("input")
        raise RefusedError(f"{path}: {error}; send plain JSON", field=path) from None
    return ToolCall(block.needed("id"), block.needed("name"), spelled)
