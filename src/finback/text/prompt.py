"""A prompt before it becomes tokens: runs of plain text between control tokens.

Owns the split that keeps users out of the control vocabulary, and what the model drew apart from what was written. A
renderer says which characters are control tokens by emitting `Control`; everything a user, a tool or a model wrote is
`Text`, and text is encoded without the control vocabulary. One string cannot carry that difference, so the string form
exists for reading only. Refuses to know roles, dialects or token ids of what is written.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class Text:
    """Plain text, encoded without the control vocabulary whatever it spells."""

    value: str


@dataclass(frozen=True, slots=True)
class Control:
    """One control token, named by its content (`<｜User｜>`), never by its number."""

    content: str


@dataclass(frozen=True, slots=True)
class Sampled:
    """Tokens as the model once drew them, written again as they were. text: what they say, for people."""

    ids: tuple[int, ...]
    text: str


Segment: TypeAlias = Text | Control | Sampled


@dataclass(frozen=True, slots=True)
class Prompt:
    """A rendered prompt.

    segments: no two `Text` are neighbours and none is empty, so each is one run for the pre-tokenizer.
    marks: ascending indices into `segments`, each at a `Control`: where a message starts, and the last
        segment when it is one token. The state before a mark is worth keeping: a later request that shares
        the messages before it, or repeats this one exactly, diverges there. The tokens of `segments[:mark]`
        are a prefix of the tokens of the whole, because text never merges across a control token.
    """

    segments: tuple[Segment, ...]
    marks: tuple[int, ...]

    @property
    def text(self) -> str:
        """The prompt as one string, for people. Encoding this string is not equivalent to the segments."""
        return "".join(_shown(segment) for segment in self.segments)


def _shown(segment: Segment) -> str:
    match segment:
        case Text(value):
            return value
        case Control(content):
            return content
        case Sampled(text=text):
            return text


class PromptWriter:
    """Collects segments in order; joins neighbouring texts and drops empty ones."""

    def __init__(self) -> None:
        self._segments: list[Segment] = []
        self._pending: list[str] = []
        self._marks: list[int] = []

    def text(self, *values: str) -> None:
        """Appends plain text."""
        self._pending.extend(values)

    def control(self, content: str) -> None:
        """Appends one control token."""
        self._close_text()
        self._segments.append(Control(content))

    def sampled(self, sampled: Sampled) -> None:
        """Appends tokens that were drawn before."""
        self._close_text()
        self._segments.append(sampled)

    def message(self, content: str) -> None:
        """Appends the control token that opens a message, and marks it."""
        self.control(content)
        self._marks.append(len(self._segments) - 1)

    def finish(self) -> Prompt:
        """The prompt. A final control token is one token before the end, so it is marked too."""
        self._close_text()
        last = len(self._segments) - 1
        if last >= 0 and isinstance(self._segments[last], Control) and last not in self._marks[-1:]:
            self._marks.append(last)
        return Prompt(tuple(self._segments), tuple(self._marks))

    def _close_text(self) -> None:
        value = "".join(self._pending)
        self._pending.clear()
        if value:
            self._segments.append(Text(value))
