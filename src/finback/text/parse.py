"""What a model wrote, taken apart as it comes: reasoning, content and tool calls in DSML, in both spellings.

Owns the streaming parser. The parts do not depend on how the text was cut into pieces; nothing is handed out that a
later character could turn into markup. Refuses to guess: markup that is only talked about stays text, a call is one
when it is written as one, and its arguments are always JSON. docs/text.md has the rules.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias

from finback.text.render import DSML, END_THINK

LONGEST_TAG = 1024
"""Characters of a tag; what is longer is text."""

_KINDS = "tool_calls", "calls", "invoke", "parameter"
_OPEN = re.compile(rf'<{DSML} ?(?P<kind>tool_calls|calls|invoke|parameter)(?P<rest>(?:\s+[a-z]+="[^"]*")*)\s*>')
_CLOSE = re.compile(rf"</{DSML} ?(?P<kind>tool_calls|calls|invoke|parameter)\s*>")
_BARE = re.compile(r'<parameter(?P<rest>(?:\s+[a-z]+="[^"]*")+)\s*>')
_BARE_CLOSE = re.compile(rf"</(?:{DSML} ?)?parameter\s*>")
_ATTRIBUTE = re.compile(r'([a-z]+)="([^"]*)"')

Ended = Literal["stop", "length"]


@dataclass(frozen=True, slots=True)
class Reasoning:
    """More of what the model thought."""

    text: str


@dataclass(frozen=True, slots=True)
class Content:
    """More of what it said."""

    text: str


@dataclass(frozen=True, slots=True)
class CallBegun:
    """A call of a tool, the `index`th of the answer."""

    index: int
    name: str


@dataclass(frozen=True, slots=True)
class CallArguments:
    """More of a call's arguments: pieces of one JSON object."""

    index: int
    text: str


@dataclass(frozen=True, slots=True)
class CallEnded:
    """The call is whole."""

    index: int


Piece: TypeAlias = Reasoning | Content | CallBegun | CallArguments | CallEnded


class _Tag(NamedTuple):
    """A tag at the beginning of a text. kind: "open calls", "close invoke", "close think", ..."""

    kind: str
    end: int
    attributes: dict[str, str]


def _tag_at(text: str, *, bare: bool) -> _Tag | Literal["partial"] | None:
    """The tag that `text`, which begins with "<", begins with; "partial" if more characters could make it one. bare:
    parameters without the DSML token count, as models write them now and then."""
    if text.startswith(END_THINK):
        return _Tag("close think", len(END_THINK), {})
    for prefix, pattern in (("open ", _OPEN), ("close ", _CLOSE)):
        if match := pattern.match(text):
            kind = "calls" if match["kind"].endswith("calls") else match["kind"]
            attributes = dict(_ATTRIBUTE.findall(match.groupdict().get("rest") or ""))
            if prefix == "open " and kind != "calls" and "name" not in attributes:
                return None  # talk about tags, such as <…invoke>
            return _Tag(prefix + kind, match.end(), attributes)
    if bare:
        if match := _BARE.match(text):
            return _Tag("open parameter", match.end(), dict(_ATTRIBUTE.findall(match["rest"])))
        if match := _BARE_CLOSE.match(text):
            return _Tag("close parameter", match.end(), {})
    return "partial" if _may_become(text, bare) else None


def _may_become(text: str, bare: bool) -> bool:
    """Whether more characters could make a tag of `text`."""
    if len(text) > LONGEST_TAG or ">" in text:
        return False
    if END_THINK.startswith(text):
        return True
    for opening in (f"<{DSML}", f"</{DSML}", *(("<", "</") if bare else ())):
        if opening.startswith(text):
            return True
        if text.startswith(opening):
            word = text[len(opening) :].removeprefix(" ")
            kinds = _KINDS if DSML in opening else ("parameter",)
            for kind in kinds:
                if kind.startswith(word):
                    return True
                if word.startswith(kind) and (word[len(kind)] in ' \n\t"' and "/" not in opening):
                    return True
    return False


class OutputParser:
    """Feed it the text of an answer; `finish` when there is no more."""

    def __init__(self, *, thinking: bool, tools: Collection[str] | None) -> None:
        """thinking: whether the prompt has opened thinking. tools: names of the declared tools; None where there are
        none: blocks of calls are then taken out of the content and counted in `dropped`."""
        self._tools = tools
        self._state: Callable[[], bool] = self._think if thinking else self._talk
        self._buffer, self._blank = "", ""  # not yet looked at; blanks that may turn out to stand before a block
        self._line_start = True
        self._pieces: list[Piece] = []
        self._quoted = ""  # a block in thinking that may be a call
        self._calls = 0  # begun
        self._first_parameter, self._string = True, False
        self._value, self._body = "", ""
        self._in_call = False
        self.dropped, self.completed = 0, 0

    def feed(self, text: str) -> list[Piece]:
        """What is certain with `text`, joined as far as it can be."""
        self._buffer += text
        while self._state():
            pass
        return self._take()

    def finish(self, ended: Ended) -> list[Piece]:
        """What was held back. A call that the limit cut stays open; one that the model left open is closed."""
        if self._state == self._quote:
            self._end_quote()
        if self._state in (self._think, self._talk):
            self._emit(self._blank + self._buffer)
            self._buffer = self._blank = ""
        elif ended == "stop" and self._in_call:
            if self._state == self._read_value:
                self._add_value(self._buffer)
                self._close_value()
            self._buffer = ""
            self._close_call()
        return self._take()

    def _take(self) -> list[Piece]:
        joined: list[Piece] = []
        for piece in self._pieces:
            last = joined[-1] if joined else None
            if isinstance(piece, Reasoning) and isinstance(last, Reasoning):
                joined[-1] = Reasoning(last.text + piece.text)
            elif isinstance(piece, Content) and isinstance(last, Content):
                joined[-1] = Content(last.text + piece.text)
            elif isinstance(piece, CallArguments) and isinstance(last, CallArguments) and piece.index == last.index:
                joined[-1] = CallArguments(piece.index, last.text + piece.text)
            else:
                joined.append(piece)
        self._pieces = []
        return joined

    # ---- text

    def _emit(self, text: str) -> None:
        if text:
            self._line_start = text.endswith("\n")
            self._pieces.append((Reasoning if self._state in (self._think, self._quote) else Content)(text))

    def _text_before(self) -> _Tag | None:
        """Hand out text up to the next tag, and return that. None: more characters are needed."""
        while self._buffer:
            at = self._buffer.find("<")
            text = self._buffer if at < 0 else self._buffer[:at]
            solid = text.rstrip()
            if solid:
                self._emit(self._blank + solid)
                self._blank = ""
            self._blank += text[len(solid) :]
            if at < 0:
                self._buffer = ""
                return None
            self._buffer = self._buffer[at:]
            tag = _tag_at(self._buffer, bare=False)
            if tag == "partial":
                return None
            if tag is not None:
                return tag
            self._emit(self._blank + "<")
            self._blank, self._buffer = "", self._buffer[1:]
        return None

    def _think(self) -> bool:
        tag = self._text_before()
        if tag is None:
            return False
        if tag.kind == "close think":
            self._emit(self._blank)
            self._blank, self._buffer = "", self._buffer[tag.end :]
            self._state = self._talk
            self._line_start = True
        elif tag.kind in ("open calls", "open invoke") and (self._line_start or "\n" in self._blank):
            self._state = self._quote
        else:
            self._pass_on(tag)
        return True

    def _talk(self) -> bool:
        tag = self._text_before()
        if tag is None:
            return False
        if tag.kind == "close think":  # a second one says nothing
            self._buffer = self._buffer[tag.end :]
        elif tag.kind == "open invoke":
            self._blank = ""
            self._state = self._between
        elif tag.kind == "open calls":
            rest = self._buffer[tag.end :].lstrip()
            following = _tag_at(rest, bare=False) if rest.startswith("<") else None
            if not rest or following == "partial":
                return False
            if isinstance(following, _Tag) and following.kind in ("open invoke", "close calls"):
                self._blank, self._buffer = "", self._buffer[tag.end :]
                self._state = self._between
            else:
                self._pass_on(tag)
        else:
            self._pass_on(tag)
        return True

    def _pass_on(self, tag: _Tag) -> None:
        """Markup that is only talked about."""
        self._emit(self._blank + self._buffer[: tag.end])
        self._blank, self._buffer = "", self._buffer[tag.end :]

    # ---- a block in thinking: a call if it is whole, names declared tools, and nothing but the end follows

    def _quote(self) -> bool:
        self._quoted += self._buffer
        self._buffer = ""
        if self._might_call(self._quoted):
            return False
        # It is talk: the first tag is text, and what follows is looked at again.
        tag = _tag_at(self._quoted, bare=False)
        assert isinstance(tag, _Tag)
        self._state = self._think
        self._buffer, self._quoted = self._quoted, ""
        self._pass_on(tag)
        return True

    def _might_call(self, text: str) -> bool:
        """Whether `text` may still be a block of calls with which the answer ends."""
        names = re.findall(rf'<{DSML} ?invoke\s+name="([^"]*)"', text)
        if any(name not in (self._tools or ()) for name in names):
            return False
        opening = _tag_at(text, bare=False)
        assert isinstance(opening, _Tag)
        if opening.kind == "open calls":
            rest = text[opening.end :].lstrip()
            tag = _tag_at(rest, bare=False) if rest.startswith("<") else None
            if rest and tag != "partial" and not (isinstance(tag, _Tag) and tag.kind == "open invoke"):
                return False
        closings = [m for m in _CLOSE.finditer(text) if m["kind"].endswith("calls")]
        if not closings:
            return True
        after = text[closings[-1].end() :].replace(END_THINK, "").strip()
        return not after or END_THINK.startswith(after)

    def _end_quote(self) -> None:
        """The answer ends with a block in thinking: its calls are made if it is whole."""
        block, self._quoted = self._quoted, ""
        whole = any(m["kind"].endswith("invoke") for m in _CLOSE.finditer(block))
        if not whole:
            self._state = self._think
            self._buffer = block
            return
        self._blank, self._buffer, self._state = "", block, self._talk
        while self._state():
            pass

    # ---- calls

    def _next_tag(self, *, bare: bool) -> _Tag | None:
        """The next tag of a block; text between tags goes to `_body`."""
        while self._buffer:
            at = self._buffer.find("<")
            if at < 0:
                self._body += self._buffer
                self._buffer = ""
                return None
            self._body += self._buffer[:at]
            self._buffer = self._buffer[at:]
            tag = _tag_at(self._buffer, bare=bare)
            if tag == "partial":
                return None
            if tag is not None:
                self._buffer = self._buffer[tag.end :]
                return tag
            self._body += "<"
            self._buffer = self._buffer[1:]
        return None

    def _between(self) -> bool:
        """In a block, before an invoke or its end."""
        tag = self._next_tag(bare=False)
        if tag is None:
            return False
        if tag.kind == "open invoke":
            self._body = ""
            self._in_call, self._first_parameter = True, True
            if self._tools is None:
                self.dropped += 1
            else:
                self._pieces.append(CallBegun(self._calls, tag.attributes.get("name", "")))
            self._state = self._in_invoke
        elif tag.kind == "close calls":
            self._state = self._after
        return True

    def _in_invoke(self) -> bool:
        """In an invoke, before a parameter or its end."""
        tag = self._next_tag(bare=True)
        if tag is None:
            return False
        if tag.kind == "open parameter":
            self._argue(("{" if self._first_parameter else ",") + json.dumps(tag.attributes.get("name", "")) + ":")
            self._first_parameter, self._value = False, ""
            self._string = tag.attributes.get("string") == "true"
            if self._string:
                self._argue('"')
            self._state = self._read_value
        elif tag.kind in ("close invoke", "close calls", "open invoke"):
            self._close_call()
            self._state = self._after if tag.kind == "close calls" else self._between
            if tag.kind == "open invoke":  # the one before was not closed
                name = tag.attributes.get("name", "")
                self._buffer = f'<{DSML}invoke name="{name}">' + self._buffer
        return True

    def _read_value(self) -> bool:
        """In a parameter. Its text is raw: only its own closing tag ends it."""
        at = 0
        while (at := self._buffer.find("<", at)) >= 0:
            tag = _tag_at(self._buffer[at:], bare=True)
            if tag == "partial":
                break
            if tag is not None and tag.kind == "close parameter":
                self._add_value(self._buffer[:at])
                self._buffer = self._buffer[at + tag.end :]
                self._close_value()
                self._state = self._in_invoke
                return True
            at += 1
        safe = len(self._buffer) if at < 0 else at
        self._add_value(self._buffer[:safe])
        self._buffer = self._buffer[safe:]
        return False

    def _add_value(self, text: str) -> None:
        if self._string:
            self._argue(json.dumps(text, ensure_ascii=False)[1:-1])
        else:
            self._value += text

    def _close_value(self) -> None:
        """The end of a parameter. What is no JSON is a string, whatever the tag says."""
        if self._string:
            self._argue('"')
            return
        try:
            self._argue(json.dumps(json.loads(self._value), ensure_ascii=False))
        except (ValueError, RecursionError):
            self._argue(json.dumps(self._value, ensure_ascii=False))

    def _close_call(self) -> None:
        """The end of a call. One without parameters may have written its arguments as JSON."""
        if self._first_parameter:
            try:
                found = json.loads(self._body)
            except (ValueError, RecursionError):
                found = None
            self._argue(json.dumps(found, ensure_ascii=False) if isinstance(found, dict) else "{}")
        else:
            self._argue("}")
        self._in_call = False
        self._body = ""
        if self._tools is not None:
            self._pieces.append(CallEnded(self._calls))
            self.completed += 1
            self._calls += 1

    def _argue(self, text: str) -> None:
        if self._tools is not None:
            self._pieces.append(CallArguments(self._calls, text))

    def _after(self) -> bool:
        """Behind the block: the turn is over, whatever is still said."""
        self._buffer = ""
        return False
