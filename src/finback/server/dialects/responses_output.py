"""The answers of OpenAI's responses: the object at once, and the events of a stream.

Owns the items of an answer, their ids, and the order of the events: an item is closed before the next is opened, and
the last event holds what the answer at once would. Refuses to know how a request is read.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

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
    Said,
    Thought,
    Token,
    Tokens,
    Usage,
)
from finback.server.ask import RefusedError, Stamp
from finback.server.dialects import openai
from finback.server.dialects.responses_input import FREEFORM, Tool
from finback.server.wire import sse
from finback.text.utf8 import Utf8Decoder

_CUT = ("length", "cancelled")
_HEAD = re.compile(rf'\s*\{{\s*"{FREEFORM}"\s*:\s*"')
_BODY = re.compile(r'(?:[^"\\]+|\\["\\/bfnrt]|\\u[0-9a-fA-F]{4})*')


@dataclass(frozen=True, slots=True)
class Style:
    """How the answer is told. echo: fields of the answer that repeat the request. tools: by the names the model calls
    them. sealed: whether thinking has an id in the place of its encrypted text. previous: id of the answer this one
    goes on from. store: whether the client wants to go on from this one."""

    echo: Mapping[str, Any]
    tools: Mapping[str, Tool] = field(default_factory=dict)
    sealed: bool = False
    previous: str | None = None
    store: bool = True


# ---- the answer at once


def whole(style: Style, stamp: Stamp, outcome: Outcome) -> dict[str, Any]:
    """The body of an answer."""
    answer, t = _answer(outcome), outcome.timings
    body = _response(style, stamp, "incomplete" if answer.reason in _CUT else "completed")
    if answer.reason == "length":
        body["incomplete_details"] = {"reason": "max_output_tokens"}
    if body["status"] == "completed":
        body["completed_at"] = int(stamp.created + t.queue_s + t.prefill_s + t.decode_s)
    body["output"] = output_items(style, stamp, outcome)
    return body | {"usage": _usage(outcome.usage), "stop_reason": openai.stop_reason(answer)}


def output_items(style: Style, stamp: Stamp, outcome: Outcome) -> list[dict[str, Any]]:
    """The items of an answer, as they are told and as a later request brings them back."""
    return _items(style, stamp, _answer(outcome))


def _answer(outcome: Outcome) -> Answer:
    return outcome.answers[0] if outcome.answers else Answer()


def _response(style: Style, stamp: Stamp, status: str) -> dict[str, Any]:
    return {
        "id": f"resp_{stamp.id}",
        "object": "response",
        "created_at": int(stamp.created),
        "status": status,
        "completed_at": None,
        "background": False,
        "error": None,
        "incomplete_details": None,
        "model": stamp.model,
        "output": [],
        **style.echo,
        "previous_response_id": style.previous,
        "store": style.store,
        "usage": None,
    }


def _usage(usage: Usage) -> dict[str, Any]:
    return {
        "input_tokens": usage.prompt,
        "input_tokens_details": {"cached_tokens": usage.cached, "cache_write_tokens": 0},
        "output_tokens": usage.completion,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning},
        "total_tokens": usage.prompt + usage.completion,
    }


def _items(style: Style, stamp: Stamp, answer: Answer) -> list[dict[str, Any]]:
    items = []
    if answer.reasoning:
        seal = f"enc_{stamp.id}" if style.sealed else None
        part = {"type": "reasoning_text", "text": answer.reasoning}
        items.append(_item("reasoning", f"rs_{stamp.id}", summary=[], content=[part], encrypted_content=seal))
    if answer.content:
        logprobs = openai.logprob_items(_tokens_said(answer))
        text = {"type": "output_text", "text": answer.content, "annotations": [], "logprobs": logprobs}
        items.append(_item("message", f"msg_{stamp.id}", role="assistant", content=[text]))
        if answer.calls or answer.reason not in _CUT:  # of a text that was cut nobody knows what it would have been
            items[-1]["phase"] = "commentary" if answer.calls else "final_answer"
    if items and answer.reason in _CUT and not answer.calls:
        items[-1]["status"] = "incomplete"
    return items + [_call(style, f"{stamp.id}_{index}", call) for index, call in enumerate(answer.calls)]


def _item(kind: str, id: str, **more: Any) -> dict[str, Any]:
    return {"id": id, "type": kind, "status": "completed", **more}


def _call(style: Style, id: str, call: Call) -> dict[str, Any]:
    tool = style.tools.get(call.name) or Tool(call.name)
    more = {"call_id": call.id, "name": tool.name} | ({"namespace": tool.namespace} if tool.namespace else {})
    if tool.freeform:
        text = _Freeform()
        item = _item("custom_tool_call", f"ctc_{id}", **more, input=text.feed(call.arguments) + text.end())
    else:
        item = _item("function_call", f"fc_{id}", **more, arguments=call.arguments)
    return item if call.whole else item | {"status": "incomplete"}


class _Freeform:
    """The text in a call's arguments, `{"input": "..."}`, as they come. Arguments of another shape are the text
    themselves, so that the tool can say what is wrong with them."""

    def __init__(self) -> None:
        self._held, self._inside = "", False

    def feed(self, piece: str) -> str:
        """More of the text."""
        self._held += piece
        if not self._inside:
            head = _HEAD.match(self._held)
            if head is None:
                return ""
            self._inside, self._held = True, self._held[head.end() :]
        body = _BODY.match(self._held)
        text = body[0] if body else ""
        self._held = self._held[len(text) :]  # from a closing quote on, it stays there
        return str(json.loads(f'"{text}"', strict=False))

    def end(self) -> str:
        """The rest."""
        return "" if self._inside else self._held


def _tokens_said(answer: Answer) -> Sequence[Token]:
    """The tokens of the content, without those of thinking, markup and calls. If it is not found in them, all that come
    after the thinking."""
    thought = _place(answer.reasoning, answer.tokens)
    after = answer.tokens[thought.stop :] if thought else answer.tokens
    return after[_place(answer.content, after) or slice(None)]


def _place(text: str, tokens: Sequence[Token]) -> slice | None:
    """Which tokens first write a text; None if none do. A character of several tokens is written by its last, and
    those before it go with it."""
    decoder = Utf8Decoder()
    pieces = [decoder.feed(token.data) for token in tokens]
    at = "".join([*pieces, decoder.flush()]).find(text) if text else -1
    if at < 0:
        return None
    begins = [0]
    for piece in pieces:
        begins.append(begins[-1] + len(piece))
    first = min(bisect_left(begins, at), bisect_right(begins, at, 1) - 1)
    return slice(first, bisect_left(begins, at + len(text), 0, len(pieces)))


# ---- the answer as it comes


class Stream:
    """Events to server-sent events of one answer."""

    def __init__(self, style: Style, stamp: Stamp) -> None:
        self._style, self._stamp = style, stamp
        self._outcome = Outcome()
        self._number = 0  # of the next event
        self._at, self._id = -1, ""  # of the last item: where it stands
        self._open = ""  # its kind, as long as it is open
        self._freeform = _Freeform()
        self._tokens: list[Token] = []  # that nothing was told of yet

    def write(self, event: AnswerEvent) -> list[bytes]:
        """What an event makes of the stream."""
        first = [] if self._number else self._begin()
        return first + self._tell(event)

    def _begin(self) -> list[bytes]:
        body = _response(self._style, self._stamp, "in_progress")
        return [self._event("response.created", response=body), self._event("response.in_progress", response=body)]

    def _tell(self, event: AnswerEvent) -> list[bytes]:
        if isinstance(event, Failed):
            return [self._failed(event.refusal)]
        if isinstance(event, Thought | Said | CallArguments) and not event.text:
            return []
        self._outcome.add(event)
        match event:
            case Begun():
                return []
            case Tokens(tokens=tokens):
                self._tokens.extend(tokens)
                return []
            case Thought(text=text):
                self._tokens_of(text)
                return [*self._within("reasoning"), self._delta("reasoning_text", text, content_index=0)]
            case Said(text=text):
                logprobs = openai.logprob_items(self._tokens_of(text))
                more = {"content_index": 0, "logprobs": logprobs}
                return [*self._within("message"), self._delta("output_text", text, **more)]
            case CallBegun():
                return self._close() + self._add()
            case CallArguments(text=text):
                return self._arguments(text)
            case CallEnded() | Ended():
                return self._close()
            case Done():
                body = whole(self._style, self._stamp, self._outcome)
                return [*self._close(), self._event(f"response.{body['status']}", response=body)]

    def _failed(self, refusal: RefusedError) -> bytes:
        code = "server_error" if refusal.status >= 500 else "invalid_prompt"
        code = "rate_limit_exceeded" if refusal.status == 429 else code
        body = _response(self._style, self._stamp, "failed")
        body["error"] = {"code": refusal.code or code, "message": str(refusal)}
        body["output"] = _items(self._style, self._stamp, replace(_answer(self._outcome), reason="cancelled"))
        return self._event("response.failed", response=body)

    def _tokens_of(self, text: str) -> list[Token]:
        """The tokens that write a text; if it is not found in them, all there are. They are done with."""
        place = _place(text, self._tokens) or slice(0, len(self._tokens))
        found, self._tokens = self._tokens[place], self._tokens[place.stop :]
        return found

    # ---- items

    def _within(self, kind: str) -> list[bytes]:
        return [] if self._open == kind else self._close() + self._add()

    def _add(self) -> list[bytes]:
        """Open the newest item."""
        item = self._items()[-1] | {"status": "in_progress"}
        self._at, self._open, self._id = self._at + 1, item["type"], item["id"]
        item.pop("phase", None)
        if self._open in ("reasoning", "message"):
            part = item["content"][0] | {"text": ""}
            part |= {"logprobs": []} if self._open == "message" else {}
            return [self._item_event("added", item | {"content": []}), self._part_event("added", part)]
        self._freeform = _Freeform()
        return [self._item_event("added", item | {"arguments" if self._open == "function_call" else "input": ""})]

    def _close(self) -> list[bytes]:
        """Close the open item, if one is."""
        if not self._open:
            return []
        item, self._open = self._items()[self._at], ""
        where = {"item_id": self._id, "output_index": self._at}
        match item["type"]:
            case "function_call":
                last = [self._event("response.function_call_arguments.done", **where, arguments=item["arguments"])]
            case "custom_tool_call":
                rest = self._freeform.end()
                last = [self._delta("custom_tool_call_input", rest)] if rest else []
                last.append(self._event("response.custom_tool_call_input.done", **where, input=item["input"]))
            case kind:
                part = item["content"][0]
                more = {"content_index": 0, "text": part["text"]}
                if kind == "message":
                    more["logprobs"] = part["logprobs"]
                name = "output_text" if kind == "message" else "reasoning_text"
                last = [self._event(f"response.{name}.done", **where, **more), self._part_event("done", part)]
        return [*last, self._item_event("done", item)]

    def _arguments(self, text: str) -> list[bytes]:
        if self._open == "function_call":
            return [self._delta("function_call_arguments", text)]
        told = self._freeform.feed(text)
        return [self._delta("custom_tool_call_input", told)] if told else []

    def _items(self) -> list[dict[str, Any]]:
        return output_items(self._style, self._stamp, self._outcome)

    # ---- events

    def _delta(self, what: str, text: str, **more: Any) -> bytes:
        place = {"item_id": self._id, "output_index": self._at}
        return self._event(f"response.{what}.delta", **place, **more, delta=text)

    def _part_event(self, what: str, part: Mapping[str, Any]) -> bytes:
        place = {"item_id": self._id, "output_index": self._at, "content_index": 0}
        return self._event(f"response.content_part.{what}", **place, part=part)

    def _item_event(self, what: str, item: Mapping[str, Any]) -> bytes:
        return self._event(f"response.output_item.{what}", output_index=self._at, item=item)

    def _event(self, kind: str, **more: Any) -> bytes:
        self._number += 1
        return sse({"type": kind, "sequence_number": self._number - 1, **more}, kind)
