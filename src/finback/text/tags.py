"""Tags of DSML in a text that is still coming: which stand there, and which may with more characters.

Owns the forms of tags and the reading of text up to the next one. A form is two expressions: one for the whole of it,
one for every beginning of it that is not all. Refuses to know what tags mean: parse.py does.
"""

from __future__ import annotations

import re
from typing import Literal, NamedTuple

from finback.text.render import DSML, END_THINK

LONGEST_TAG = 1024
"""Characters of a tag; what is longer is text."""


class _Form(NamedTuple):
    """A form of text. half: matches to the end of the text where more characters could make `full`."""

    full: str
    half: str


def _word(text: str) -> _Form:
    half = r"\Z"
    for char in reversed(text):
        half = rf"(?:\Z|{re.escape(char)}{half})"
    return _Form(re.escape(text), half)


def _either(*forms: _Form) -> _Form:
    return _Form(*(f"(?:{'|'.join(ways)})" for ways in zip(*forms, strict=True)))


def _then(*forms: _Form) -> _Form:
    half = r"\Z"
    for form in reversed(forms):
        half = f"(?:{form.half}|{form.full}{half})"
    return _Form("".join(form.full for form in forms), half)


def _named(name: str, form: _Form) -> _Form:
    return _Form(f"(?P<{name}>{form.full})", form.half)


def _before(form: _Form) -> _Form:
    """Nothing, where `form` follows."""
    return _Form(f"(?={form.full})", form.half)


_BLANKS = _Form(r"\s*", r"\s*\Z")
_ATTRIBUTES = _Form(
    r'(?:\s+[a-z]+\s*=\s*"[^"]*")*',
    r'(?:\s+[a-z]+\s*=\s*"[^"]*")*(?:\s+(?:[a-z]+\s*(?:=\s*(?:"[^"]*)?)?)?)?\Z',
)
_KIND = _either(*map(_word, ("tool_calls", "calls", "invoke", "parameter")))
_OPENS, _CLOSES = _then(_word(f"<{DSML}"), _BLANKS), _then(_word(f"</{DSML}"), _BLANKS)
_ANOTHER = _either(_word(f"<{DSML}"), _word(f"</{DSML}"))
_INVOKE_GOES_ON = _either(
    _then(_OPENS, _word("parameter")),
    _then(_CLOSES, _either(_word("invoke"), _word("calls"), _word("tool_calls"))),
)


class TagForm(NamedTuple):
    """kind: "open" or "close", and what, where the form says that itself."""

    kind: str
    full: re.Pattern[str]
    half: re.Pattern[str]


def _tag_form(kind: str, *forms: _Form) -> TagForm:
    whole = _then(*forms)
    return TagForm(kind, re.compile(whole.full), re.compile(whole.half))


_NAMED_KIND, _NAMED_ATTRIBUTES = _named("kind", _KIND), _named("attributes", _ATTRIBUTES)
OPEN = _tag_form("open", _OPENS, _NAMED_KIND, _NAMED_ATTRIBUTES, _BLANKS, _word(">"))
# Models now and then leave out the ">" of a closing tag, or the DSML token of a parameter's tags.
_CLOSE = _tag_form("close", _CLOSES, _NAMED_KIND, _BLANKS, _either(_word(">"), _before(_ANOTHER)))
THINK = _tag_form("close think", _word(END_THINK))
_BARE_OPEN = _tag_form("open parameter", _word("<parameter"), _NAMED_ATTRIBUTES, _BLANKS, _word(">"))
_BARE_END = _word("</parameter"), _BLANKS, _word(">")
_BARE_CLOSE = _tag_form("close parameter", *_BARE_END)
_SLOPPY_CLOSE = _tag_form("close parameter", *_BARE_END, _BLANKS, _before(_INVOKE_GOES_ON))

IN_TEXT = OPEN, _CLOSE, THINK
IN_INVOKE = *IN_TEXT, _BARE_OPEN
IN_VALUE = _CLOSE, _SLOPPY_CLOSE
IN_BARE_VALUE = _CLOSE, _BARE_CLOSE

_ATTRIBUTE = re.compile(r'([a-z]+)\s*=\s*"([^"]*)"')
_BLANK = re.compile(r"\s*")
CUT_CLOSE = re.compile(rf"</{DSML}|</parameter\s*>")


class Tag(NamedTuple):
    """kind: "open calls", "close invoke", "close think", ..."""

    kind: str
    text: str
    attributes: dict[str, str]

    @property
    def name(self) -> str:
        return self.attributes.get("name", "")


def tag_at(text: str, at: int, forms: tuple[TagForm, ...]) -> Tag | Literal["partial"] | None:
    """The tag of one of the forms at a "<"; "partial" if more characters could make it one."""
    if text[at + 1 : at + 2] not in ("", "/", "｜", "p"):
        return None
    stop = at + LONGEST_TAG
    partial = False
    for form in forms:
        if match := form.full.match(text, at, stop):
            found = match.groupdict()
            kind = form.kind
            if name := found.get("kind"):
                kind += " calls" if name.endswith("calls") else f" {name}"
            attributes = dict(_ATTRIBUTE.findall(found.get("attributes") or ""))
            if kind in ("open invoke", "open parameter") and "name" not in attributes:
                return None  # talk about tags, such as <…invoke>
            return Tag(kind, match[0].rstrip() if form is _SLOPPY_CLOSE else match[0], attributes)
        partial = partial or (len(text) < stop and form.half.match(text, at) is not None)
    return "partial" if partial else None


class Input:
    """Text that has come and was not read."""

    def __init__(self) -> None:
        self._text, self._at = "", 0

    def add(self, text: str) -> None:
        self._text, self._at = self._text[self._at :] + text, 0

    def rest(self) -> str:
        """All of it."""
        rest, self._text, self._at = self._text[self._at :], "", 0
        return rest

    def until_tag(self, forms: tuple[TagForm, ...]) -> tuple[str, Tag | None]:
        """The text before the next tag, and the tag. None: more characters are needed; a tag they may make is left."""
        text, start = self._text, self._at
        at = start
        while (at := text.find("<", at)) >= 0:
            tag = tag_at(text, at, forms)
            if isinstance(tag, Tag):
                self._at = at + len(tag.text)
                return text[start:at], tag
            if tag == "partial":
                break
            at += 1
        self._at = at if at >= 0 else len(text)
        return text[start : self._at], None

    def blanks(self) -> str:
        match = _BLANK.match(self._text, self._at)
        assert match is not None  # it matches nothing at least
        self._at = match.end()
        return match[0]

    def next_char(self) -> str:
        """It stays; "" when more is needed."""
        return self._text[self._at : self._at + 1]

    def next_tag(self, forms: tuple[TagForm, ...]) -> Tag | Literal["partial"] | None:
        """It stays; None when there is none right here."""
        return tag_at(self._text, self._at, forms) if self.next_char() == "<" else None

    def skip(self, tag: Tag) -> None:
        self._at += len(tag.text)
