"""What a model wrote, taken apart as it comes: reasoning, content and tool calls in DSML, in both spellings.

Owns the streaming parser. The parts do not depend on how the text was cut into pieces; nothing is handed out that a
later character could turn into markup; the work is linear in the text. Refuses to guess: markup that is only talked
about stays text, a call is one when it is written as one, and its arguments are always JSON. docs/text.md has the
rules.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Literal, TypeAlias

from finback.text.jsonform import dump_json, load_json_object
from finback.text.messages import TOOL_NAME
from finback.text.render import DSML
from finback.text.tags import CUT_CLOSE, IN_BARE_VALUE, IN_INVOKE, IN_TEXT, IN_VALUE, OPEN, THINK, Input, Tag, TagForm

SLICE = 4096
"""Characters that are read at once."""

Ended = Literal["stop", "length"]
"""Why a text ended: the model ended it, or something cut it."""


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


def _joined(pieces: Iterable[Piece]) -> list[Piece]:
    """The same with neighbours of a kind made one."""
    joined: list[Piece] = []
    for (kind, index), run in itertools.groupby(pieces, lambda p: (type(p), getattr(p, "index", None))):
        if kind is CallArguments and index is not None:
            joined.append(CallArguments(index, "".join(p.text for p in run if isinstance(p, CallArguments))))
        elif kind is Reasoning:
            joined.append(Reasoning("".join(p.text for p in run if isinstance(p, Reasoning))))
        elif kind is Content:
            joined.append(Content("".join(p.text for p in run if isinstance(p, Content))))
        else:
            joined += run
    return joined


# ---- calls


class _Block:
    """Reads a block of calls from its opening on. `over` behind its end: `unread` is what follows.

    `only` makes it doubt: calls of other tools, text between the tags, another block and `</think>` make it `stray`
    and are left in `unread`; behind its end it looks on, for the answer must end there.
    """

    def __init__(self, only: Collection[str] | None = None) -> None:
        self._only = only
        self._input = Input()
        self._state: Callable[[], bool] = self._between
        self._pieces: list[Piece] = []
        self._name, self._in_call, self._begun = "", False, False
        self._first_parameter, self._string = True, False
        self._value_forms: tuple[TagForm, ...] = IN_VALUE
        self._value: list[str] = []
        self._body: list[str] = []  # text of a call without parameters
        self._tail: list[str] = []  # `</think>` and blanks behind the end
        self.begun, self.ended = 0, 0
        self.over, self.stray, self.unread = False, False, ""

    def feed(self, text: str) -> None:
        self._input.add(text)
        while not self.stray and self._state():
            pass

    def take(self) -> list[Piece]:
        pieces, self._pieces = self._pieces, []
        return pieces

    def finish(self, ended: Ended) -> None:
        """A call that was cut stays open; one that the model left open is closed."""
        if ended == "stop" and self._in_call:
            if self._state == self._read_value:
                held = self._input.rest()
                self._add_value("" if CUT_CLOSE.match(held) else held)
                self._close_value()
            self._close_call()

    def _give_up(self, text: str) -> bool:
        self.stray, self.unread = True, text + self._input.rest()
        return False

    def _doubtful(self, tag: Tag) -> bool:
        if self._only is None:
            return False
        if tag.kind == "open invoke":
            return tag.name not in self._only
        return tag.kind == "close think" or (tag.kind == "open calls" and (self._in_call or self.begun > 0))

    def _between(self) -> bool:
        """Before an invoke or the end. What else stands here says nothing."""
        text, tag = self._input.until_tag(IN_TEXT)
        if self._only is not None and text.strip():
            return self._give_up(text + (tag.text if tag else ""))
        if tag is None:
            return False
        if self._doubtful(tag):
            return self._give_up(tag.text)
        if tag.kind == "open invoke":
            self._begin_call(tag.name)
        elif tag.kind == "close calls":
            self._end()
        return True

    def _in_invoke(self) -> bool:
        """Before a parameter or the end of the invoke."""
        text, tag = self._input.until_tag(IN_INVOKE)
        if self._body or text.strip():
            self._body.append(text)
            if self._only is not None and not (self._first_parameter and self._body[0].lstrip().startswith("{")):
                return self._give_up(text + (tag.text if tag else ""))
        if tag is None:
            return False
        if self._doubtful(tag):
            return self._give_up(tag.text)
        if tag.kind == "open parameter":
            self._begin_value(tag)
        elif tag.kind == "open invoke":  # the one before was not closed
            if self._begun or self._body:
                self._close_call()
            self._begin_call(tag.name)
        else:
            self._close(tag.kind)
        return True

    def _close(self, kind: str) -> None:
        """A closing tag also closes what is open inside of it."""
        if kind in ("close invoke", "close calls"):
            self._close_call()
        if kind == "close calls":
            self._end()

    def _read_value(self) -> bool:
        """In a parameter. Its text is raw: only a closing tag ends it."""
        text, tag = self._input.until_tag(self._value_forms)
        self._add_value(text)
        if tag is None:
            return False
        if tag.kind in ("close parameter", "close invoke", "close calls"):
            self._close_value()
            self._state = self._in_invoke
            self._close(tag.kind)
        elif tag.kind != "open invoke" and self._doubtful(tag):
            return self._give_up(tag.text)
        else:
            self._add_value(tag.text)
        return True

    def _end(self) -> None:
        self.over = True
        self._state = self._look_on if self._only is not None else self._leave

    def _leave(self) -> bool:
        self.unread += self._input.rest()
        return False

    def _look_on(self) -> bool:
        """Only `</think>` may follow; when more does, it ended the reasoning."""
        text, tag = self._input.until_tag((THINK,))
        if text.strip():
            return self._give_up("".join(self._tail) + text + (tag.text if tag else ""))
        if tag is not None or self._tail:
            self._tail += [text if self._tail else "", tag.text if tag else ""]
        return tag is not None

    # ---- calls

    def _begin_call(self, name: str) -> None:
        self._name, self._begun, self._first_parameter, self._body = name, False, True, []
        self._in_call = True
        self._state = self._in_invoke

    def _announce(self) -> None:
        """With its first parameter or its end an invoke is a call; one that another replaces is not."""
        if not self._begun:
            self._pieces.append(CallBegun(self.begun, self._name))
            self._begun = True
            self.begun += 1

    def _close_call(self) -> None:
        """The end of a call. One without parameters may have written its arguments as JSON."""
        self._announce()
        body = "".join(self._body).strip()
        if not self._first_parameter:
            self._argue("}")
        else:
            self._argue(body if load_json_object(body) is not None else "{}")
        self._pieces.append(CallEnded(self.begun - 1))
        self.ended += 1
        self._in_call = False
        self._state = self._between

    def _begin_value(self, tag: Tag) -> None:
        self._announce()
        self._argue(("{" if self._first_parameter else ",") + json.dumps(tag.name, ensure_ascii=False) + ":")
        self._first_parameter, self._value = False, []
        self._string = tag.attributes.get("string") == "true"
        if self._string:
            self._argue('"')
        self._value_forms = IN_VALUE if tag.text.startswith(f"<{DSML}") else IN_BARE_VALUE
        if self._only is not None:
            self._value_forms += (THINK, OPEN)
        self._state = self._read_value

    def _add_value(self, text: str) -> None:
        if self._string:
            self._argue(json.dumps(text, ensure_ascii=False)[1:-1])
        else:
            self._value.append(text)

    def _close_value(self) -> None:
        """The end of a parameter. What is no JSON is a string, whatever the tag says."""
        if self._string:
            self._argue('"')
            return
        text = "".join(self._value)
        self._argue(text.strip() if _is_json(text) else json.dumps(text, ensure_ascii=False))

    def _argue(self, text: str) -> None:
        self._pieces.append(CallArguments(self.begun - 1, text))


def _is_json(text: str) -> bool:
    """Whether every reader of JSON can read it: no NaN, no number beyond doubles, no half characters."""
    try:
        dump_json({"value": json.loads(text)}).encode()
    except (ValueError, OverflowError, RecursionError):
        return False
    return True


class OutputParser:
    """Feed it the text of an answer; `finish` when there is no more."""

    def __init__(self, *, thinking: bool, tools: Collection[str] | None) -> None:
        """thinking: whether the prompt has opened thinking. tools: names of the declared tools; None where there are
        none: calls are then taken out of the content and counted in `dropped`."""
        self._tools = tools
        self._input = Input()
        self._part: type[Reasoning | Content] = Reasoning if thinking else Content
        self._state: Callable[[], bool] = self._talk
        self._blank: list[str] = []  # may turn out to stand before a block
        self._behind_block, self._spoken = False, False  # of this part
        self._opening: list[str] = []  # tags that may begin a block, and blanks
        self._invoked = False
        self._block = _Block()
        self._tried: list[str] = []  # the block in thinking, as it was written
        self._pieces: list[Piece] = []
        self.dropped, self.completed = 0, 0

    def feed(self, text: str) -> list[Piece]:
        """What is certain with `text`, joined as far as it can be."""
        for at in range(0, len(text), SLICE):  # what is looked at again is never more than a slice
            self._input.add(text[at : at + SLICE])
            while self._state():
                pass
        return self._take()

    def finish(self, ended: Ended) -> list[Piece]:
        """What was held back. A call that was cut stays open; one that the model left open is closed."""
        if self._state == self._try and not self._accept():
            self._say("".join(self._tried))
            self._state = self._talk
        if self._state == self._call:
            self._block.finish(ended)
            self._hand_out()
        elif self._state in (self._talk, self._open):
            held = "".join(self._opening) + self._input.rest()
            if ended == "length" and self._part is Content and DSML in held:  # a tag that was cut
                self._behind_block = True
            else:
                self._say(held)
            if not self._behind_block:
                self._emit("".join(self._blank))
        return self._take()

    def _take(self) -> list[Piece]:
        pieces, self._pieces = self._pieces, []
        return _joined(pieces) if len(pieces) > 1 else pieces

    # ---- text

    def _emit(self, text: str) -> None:
        if text:
            self._pieces.append(self._part(text))

    def _say(self, text: str) -> None:
        """Hand out text; blanks at its end wait for what follows."""
        solid = text.rstrip()
        if solid:
            self._emit("".join(self._blank) + solid)
            self._blank = []
            self._behind_block, self._spoken = False, True
        self._blank.append(text[len(solid) :])

    def _talk(self) -> bool:
        """In reasoning or content."""
        text, tag = self._input.until_tag(IN_TEXT)
        self._say(text)
        if tag is None:
            return False
        if tag.kind == "close think":
            if self._part is Reasoning:  # a second one says nothing
                self._emit("".join(self._blank))
                self._blank = []
                self._part, self._spoken = Content, False
        elif tag.kind == "open calls" or (tag.kind == "open invoke" and self._may_call(tag.name)):
            self._opening, self._invoked = [tag.text], tag.kind == "open invoke"
            self._state = self._open
        else:
            self._say(tag.text)
        return True

    def _may_call(self, name: str) -> bool:
        """In thinking only declared tools are called."""
        if name in (self._tools or ()):
            return True
        return self._part is Content and TOOL_NAME.fullmatch(name) is not None

    def _open(self) -> bool:
        """Behind a tag that may begin a block: it does if what follows is more of a call."""
        self._opening.append(self._input.blanks())
        if not self._input.next_char():
            return False
        tag = self._input.next_tag(IN_INVOKE)
        if tag == "partial":
            return False
        kind = tag.kind if tag else ""
        if self._invoked:
            begins = kind in ("open parameter", "close invoke", "close calls") or self._input.next_char() == "{"
        else:
            begins = tag is not None and kind == "open invoke" and self._may_call(tag.name)
        if begins:
            self._begin_block()
        elif tag is not None and not self._invoked and kind == "open calls":
            self._opening.append(tag.text)
            self._input.skip(tag)
        elif tag is not None and not self._invoked and kind == "close calls" and self._part is Content:
            self._input.skip(tag)  # a block without calls
            self._opening, self._behind_block = [], True
            self._state = self._talk
        else:
            self._say("".join(self._opening))
            self._opening = []
            self._state = self._talk
        return True

    # ---- blocks

    def _begin_block(self) -> None:
        opening, self._opening = "".join(self._opening), []
        if self._part is Reasoning:
            self._block, self._tried = _Block(self._tools or ()), [opening]
            self._state = self._try
        else:
            self._block = _Block()
            if self._tools is not None:
                self._separate()
            self._state = self._call
        self._block.feed(opening)

    def _separate(self) -> None:
        """The blank line before a block is no text; blanks alone are none either."""
        blank = "".join(self._blank)
        self._blank = []
        if self._spoken:
            self._emit(blank.removesuffix("\n").removesuffix("\n"))

    def _hand_out(self) -> None:
        for piece in self._block.take():
            if self._tools is None:
                self.dropped += isinstance(piece, CallBegun)
            else:
                self.completed += isinstance(piece, CallEnded)
                self._pieces.append(piece)

    def _call(self) -> bool:
        """In a block of calls, or behind it: then the turn is over, whatever is still said."""
        self._block.feed(self._input.rest())
        self._hand_out()
        if not self._block.over:
            return False
        unread, self._block.unread = self._block.unread, ""
        if self._tools is not None:
            return False
        self._input.add(unread)
        self._behind_block = True
        self._state = self._talk
        return True

    def _try(self) -> bool:
        """In thinking, a block is a call if nothing else follows. Until then it is kept."""
        text = self._input.rest()
        self._tried.append(text)
        self._block.feed(text)
        if not self._block.stray:
            return False
        tried, unread = "".join(self._tried), self._block.unread
        self._say(tried[: len(tried) - len(unread)])
        self._input.add(unread)
        self._state = self._talk
        return True

    def _accept(self) -> bool:
        """The answer ends with a block in thinking: it is one if a call of it is whole."""
        if self._block.ended == 0:
            return False
        self._separate()
        self._state = self._call
        return True
