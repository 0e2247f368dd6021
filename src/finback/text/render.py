"""Conversations to prompts, in the format the V4 checkpoints were trained on.

Owns every character between the messages: control tokens, the tools section, DSML calls, tool results,
effort and answer-format texts. It renders to segments, so nothing inside a message can become a control
token, and it trims nothing. Refuses to continue a message that is not the model's. The fixed texts below are
facts of the format that must match byte for byte; NOTICE names their source. Source: prompt format, rules and
examples.

One prompt reads: BOS, effort text (thinking only), system texts, tools section, answer format, then turns:
`<｜User｜>` text, `<｜Assistant｜>` reasoning in `<think>…</think>`, content, calls, EOS. It ends after
`<｜Assistant｜>` and the token that opens or closes thinking.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from finback.errors import RequestError
from finback.text.dialects import V4_0731, Dialect
from finback.text.jsonform import dump_json, load_json_object
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
from finback.text.prompt import Prompt, PromptWriter

BOS = "<｜begin▁of▁sentence｜>"
EOS = "<｜end▁of▁sentence｜>"
USER = "<｜User｜>"
ASSISTANT = "<｜Assistant｜>"
REMINDER = "<｜latest_reminder｜>"
THINK = "<think>"
END_THINK = "</think>"
DSML = "｜DSML｜"

# Written with the control tokens spelled out; `_fixed` turns these spellings, and only these, into controls.
_TOOLS_HEAD = f"""

## Tools

You have access to a set of tools to help answer the user's question. You can invoke tools by writing a \
"<{DSML}tool_calls>" block like the following:

<{DSML}tool_calls>
<{DSML}invoke name="$TOOL_NAME">
<{DSML}parameter name="$PARAMETER_NAME" string="true|false">$PARAMETER_VALUE</{DSML}parameter>
...
</{DSML}invoke>
<{DSML}invoke name="$TOOL_NAME2">
...
</{DSML}invoke>
</{DSML}tool_calls>

String parameters should be specified as is and set `string="true"`. For all other types (numbers, booleans, \
arrays, objects), pass the value in JSON format and set `string="false"`.

If thinking_mode is enabled (triggered by {THINK}), you MUST output your complete reasoning inside \
{THINK}...{END_THINK} BEFORE any tool calls or final response.

Otherwise, output directly after {END_THINK} with tool calls or final response.

### Available Tool Schemas

"""
_TOOLS_TAIL = """

You MUST strictly follow the above defined tool name and parameter schemas to invoke tool calls.
"""
_JSON_REPLY = """

You are a helpful assistant designed to output JSON.
## Response Format:

Reply with JSON object ONLY."""
_SCHEMA_REPLY = """

## Response Format:

You MUST strictly adhere to the following schema to reply:
"""


@dataclass(frozen=True, slots=True)
class JsonReply:
    """The answer must be JSON: any object, or one that fits `schema`. The prompt only asks for it."""

    schema: Mapping[str, object] | None = None


def render(
    messages: Sequence[Message],
    *,
    tools: Sequence[ToolDefinition] = (),
    thinking: bool = True,
    effort: str | int | None = None,
    reply: JsonReply | None = None,
    require_call: bool = False,
    continue_last: bool = False,
    dialect: Dialect = V4_0731,
) -> Prompt:
    """The prompt for the next turn of the model.

    tools: declared functions. With tools, reasoning of earlier turns stays in the prompt; without, it goes.
    thinking, effort: `effort` "none" turns thinking off; outside thinking mode the other words do nothing.
    reply: asks for a JSON answer.
    require_call: opens a block of calls, so that the model can only call. Not while thinking.
    continue_last: the last message is an assistant's and is left open, to be continued in place.

    Raises RequestError naming the argument.
    """
    effort_text = dialect.effort_text(effort)
    thinking = thinking and effort_text is not None
    if continue_last and not (messages and isinstance(messages[-1], AssistantMessage)):
        raise RequestError("continue_last needs an assistant message as the last one; there is none")
    if require_call and (thinking or continue_last or not tools):
        raise RequestError("require_call needs tools, thinking off, and a new turn; change one of them")
    writer = PromptWriter()
    writer.control(BOS)
    if thinking and effort_text:
        writer.text(effort_text)
    _write_system(writer, messages, tools, reply)
    turns = _order_results(_join_users([m for m in messages if not isinstance(m, SystemMessage)]))
    _Turns(writer, thinking=thinking, keep_reasoning=bool(tools)).write(turns, continue_last)
    if require_call:
        writer.text("\n\n")
        _write_tag(writer, "<", "tool_calls>\n")
    return writer.finish()


def _write_system(
    writer: PromptWriter,
    messages: Sequence[Message],
    tools: Sequence[ToolDefinition],
    reply: JsonReply | None,
) -> None:
    """System texts from anywhere in the conversation, then what the request adds to them."""
    writer.text("\n\n".join(m.content for m in messages if isinstance(m, SystemMessage) and m.content))
    if tools:
        _write_fixed(writer, _TOOLS_HEAD)
        writer.text("\n".join(_schema_line(tool) for tool in tools), _TOOLS_TAIL)
    if reply is not None and reply.schema is None:
        writer.text(_JSON_REPLY)
    elif reply is not None:
        writer.text(_SCHEMA_REPLY, _spell(reply.schema, "the schema of the reply"))


def _schema_line(tool: ToolDefinition) -> str:
    line = {"name": tool.name, "description": tool.description or "", "parameters": tool.parameters}
    return _spell(line, f"tool {tool.name!r}")


def _spell(value: object, what: str) -> str:
    try:
        return dump_json(value)
    except ValueError as error:
        raise RequestError(f"{what} cannot be written as JSON: {error}; change it") from None


def _join_users(messages: Sequence[Message]) -> list[Message]:
    """Neighbouring user messages as one, their texts joined by a blank line; empty ones add nothing."""
    joined: list[Message] = []
    for message in messages:
        last = joined[-1] if joined else None
        if isinstance(message, UserMessage) and isinstance(last, UserMessage):
            joined[-1] = UserMessage("\n\n".join(t for t in (last.content, message.content) if t))
        else:
            joined.append(message)
    return joined


def _order_results(messages: Sequence[Message]) -> list[Message]:
    """Calls and their results in the order of the call ids, compared as strings.

    The published encoder sorts the n calls of a turn, and the n messages that follow its place when there are
    that many. Well-formed conversations have exactly the n results there; for others its order is kept too.
    """
    ordered: list[Message] = [_order_calls(m) if isinstance(m, AssistantMessage) else m for m in messages]
    for index, message in enumerate(messages):
        n_calls = len(message.tool_calls) if isinstance(message, AssistantMessage) else 0
        start, end = index + 1, index + 1 + n_calls
        if end <= len(ordered):
            ordered[start:end] = sorted(ordered[start:end], key=_result_key)
    return ordered


def _order_calls(message: AssistantMessage) -> AssistantMessage:
    return replace(message, tool_calls=tuple(sorted(message.tool_calls, key=lambda call: call.id)))


def _result_key(message: Message) -> tuple[bool, bool, str]:
    """Results before anything else; a result without an id before those with one."""
    if not isinstance(message, ToolMessage):
        return (True, False, "")
    return (False, message.call_id is not None, message.call_id or "")


class _Turns:
    """Writes the turns of one conversation after its system block."""

    def __init__(self, writer: PromptWriter, *, thinking: bool, keep_reasoning: bool) -> None:
        self._writer = writer
        self._thinking = thinking
        self._keep_reasoning = keep_reasoning

    def write(self, messages: Sequence[Message], continue_last: bool) -> None:
        """Writes all turns; unless the last is continued, opens the model's next one."""
        previous: Message | None = None
        for index, message in enumerate(messages):
            is_open = continue_last and index == len(messages) - 1
            if isinstance(message, AssistantMessage):
                self._assistant(message, is_open)
            elif isinstance(message, ReminderMessage):
                self._writer.message(REMINDER)
                self._writer.text(message.content)
            elif isinstance(message, UserMessage | ToolMessage):
                self._user(message, previous)
            previous = message
        if not continue_last:
            self._writer.message(ASSISTANT)
            self._writer.control(THINK if self._thinking else END_THINK)

    def _user(self, message: UserMessage | ToolMessage, previous: Message | None) -> None:
        """A user turn is results, then texts, joined by blank lines; a result after a text opens another."""
        joins = isinstance(previous, ToolMessage) or (
            isinstance(previous, UserMessage) and isinstance(message, UserMessage)
        )
        if joins:
            self._writer.text("\n\n")
        else:
            self._writer.message(USER)
        if isinstance(message, ToolMessage):
            self._writer.text("<tool_result>", message.content, "</tool_result>")
        else:
            self._writer.text(message.content)

    def _assistant(self, message: AssistantMessage, is_open: bool) -> None:
        writer = self._writer
        writer.message(ASSISTANT)
        if message.sampled is not None and not is_open and (message.reasoning is None or self._keep_reasoning):
            writer.control(END_THINK if message.reasoning is None else THINK)
            writer.sampled(message.sampled)
            writer.control(EOS)
            return
        if message.reasoning is not None and (is_open or self._keep_reasoning):
            writer.control(THINK)
            writer.text(message.reasoning)
        # An open turn without content is still inside its reasoning.
        if not (is_open and self._thinking and not message.content):
            writer.control(END_THINK)
        writer.text(message.content)
        if message.tool_calls:
            _write_calls(writer, message.tool_calls)
        if not is_open:
            writer.control(EOS)


def _write_calls(writer: PromptWriter, calls: Sequence[ToolCall]) -> None:
    """One DSML block of calls. String values are raw, all others JSON."""
    writer.text("\n\n")
    _write_tag(writer, "<", "tool_calls>\n")
    for call in calls:
        _write_tag(writer, "<", f'invoke name="{call.name}">\n')
        arguments = load_json_object(call.arguments)
        # What the model wrote is history even when it is not JSON: it stays, as one string.
        for name, value in (arguments if arguments is not None else {"arguments": call.arguments}).items():
            is_string = isinstance(value, str)
            spelled = value if isinstance(value, str) else dump_json(value)
            _write_tag(writer, "<", f'parameter name="{name}" string="{str(is_string).lower()}">')
            writer.text(spelled)
            _write_tag(writer, "</", "parameter>\n")
        _write_tag(writer, "</", "invoke>\n")
    _write_tag(writer, "</", "tool_calls>")


def _write_tag(writer: PromptWriter, opening: str, rest: str) -> None:
    writer.text(opening)
    writer.control(DSML)
    writer.text(rest)


def _write_fixed(writer: PromptWriter, text: str) -> None:
    """A text of this file, in which the spellings of control tokens are meant as control tokens."""
    for content in (DSML, THINK, END_THINK):
        text = text.replace(content, f"\0{content}\0")
    for index, part in enumerate(text.split("\0")):
        if index % 2:
            writer.control(part)
        else:
            writer.text(part)
