"""One answer of the engine, told as the server's events.

Owns the way from tokens and text to thinking, content and calls: the parser, the ids of calls, the count of thinking,
why an answer ended. Refuses to know dialects, and to hand out a character that may turn out to be markup.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from finback.engine.result import Event, TokenLogprob
from finback.server import answer as told
from finback.server.answer import AnswerEvent, Reason, Token
from finback.server.replay import Turn
from finback.text import parse
from finback.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class Telling:
    """How answers of a request are told. raw: as text, without taking it apart. thinking: the prompt has opened
    thinking. tools: names of those that may be called, None for none. many: more than one call. opened: what of the
    answer's markup the prompt holds already, as text and as ids."""

    raw: bool = False
    thinking: bool = False
    tools: frozenset[str] | None = None
    many: bool = True
    opened: str = ""
    opened_ids: tuple[int, ...] = ()


class Teller:
    """One answer, the `index`th of its request."""

    def __init__(self, index: int, how: Telling, tokenizer: Tokenizer, think_end: int | None) -> None:
        self._index, self._how, self._tokenizer, self._think_end = index, how, tokenizer, think_end
        self._parser = None if how.raw else parse.OutputParser(thinking=how.thinking, tools=how.tools)
        if self._parser is not None and how.opened:
            self._parser.feed(how.opened)
        self._thinking = how.thinking
        self._ids: list[int] = list(how.opened_ids)
        self._content, self._reasoning = "", ""
        self._calls: list[list[str]] = []  # id, name, arguments
        self._whole = 0  # calls that are
        self._mark = secrets.token_hex(12)  # of the ids of this answer's calls: nobody can guess them
        self.reasoning_tokens = 0
        self.ended = False

    def take(self, event: Event) -> list[AnswerEvent]:
        """What an event of the engine tells."""
        if self.ended:
            return []
        self._count(event.token_ids)
        found: list[AnswerEvent] = []
        ends = (event.end,) if event.end is not None and self._how.raw else ()
        if event.logprobs or ends:
            found.append(told.Tokens(self._index, tuple(self._token(entry) for entry in (*event.logprobs, *ends))))
        found += self._text(event.text)
        if event.finish_reason is not None:
            found += self._end(event)
        return found

    def turn(self) -> Turn | None:
        """The turn as a client will send it back, if it calls tools and is whole."""
        if not self._calls or self._whole < len(self._calls) or not self.ended:
            return None
        calls = tuple((id, name, arguments) for id, name, arguments in self._calls)
        return Turn(calls, self._content, self._reasoning if self._how.thinking else None, tuple(self._ids))

    @property
    def enough(self) -> bool:
        """Whether the call that was to be the only one is whole."""
        return not self._how.many and self._whole > 0

    def _count(self, ids: Sequence[int]) -> None:
        self._ids += ids
        if self._thinking:
            for count, token in enumerate(ids, 1):
                if token == self._think_end:
                    self._thinking = False
                    self.reasoning_tokens += count
                    return
            self.reasoning_tokens += len(ids)

    def _text(self, text: str) -> list[AnswerEvent]:
        if self._parser is None:
            return [told.Said(self._index, text)] if text else []
        return self._pieces(self._parser.feed(text)) if text else []

    def _pieces(self, pieces: Sequence[parse.Piece]) -> list[AnswerEvent]:
        found: list[AnswerEvent] = []
        for piece in pieces:
            if self.enough:
                break
            found.append(self._piece(piece))
        return found

    def _piece(self, piece: parse.Piece) -> AnswerEvent:
        match piece:
            case parse.Reasoning(text):
                self._reasoning += text
                return told.Thought(self._index, text)
            case parse.Content(text):
                self._content += text
                return told.Said(self._index, text)
            case parse.CallBegun(index, name):
                # V4 writes calls in the order of their ids: these are in the order they were made.
                self._calls.append([f"call_{self._mark}_{index:04}", name, ""])
                return told.CallBegun(self._index, index, self._calls[-1][0], name)
            case parse.CallArguments(index, text):
                self._calls[index][2] += text
                return told.CallArguments(self._index, index, text)
            case parse.CallEnded(index):
                self._whole += 1
                return told.CallEnded(self._index, index)

    def end(self, reason: Reason) -> list[AnswerEvent]:
        """The answer is over, whatever the engine would still say."""
        return self._end(Event(finish_reason="stop"), reason)

    def _end(self, event: Event, reason: Reason | None = None) -> list[AnswerEvent]:
        self.ended = True
        reason = reason or self._reason(event)
        found: list[AnswerEvent] = []
        if self._parser is not None:
            found = self._pieces(self._parser.finish("stop" if reason in ("stop", "tool_calls") else "length"))
        if self._whole and self._whole == len(self._calls) and reason == "stop":
            reason = "tool_calls"
        return [*found, told.Ended(self._index, reason, event.stop)]

    @staticmethod
    def _reason(event: Event) -> Reason:
        assert event.finish_reason is not None
        return "stop_string" if event.stop is not None else event.finish_reason

    def _token(self, entry: TokenLogprob) -> Token:
        return token_of(entry, self._tokenizer.id_to_bytes)


def token_of(entry: TokenLogprob, id_to_bytes: Callable[[int], bytes]) -> Token:
    """A token with its log-probability, as answers report it."""
    top = tuple(_plain(id, logprob, id_to_bytes) for id, logprob in entry.top)
    plain = _plain(entry.token, entry.logprob, id_to_bytes)
    return Token(plain.id, plain.text, plain.data, plain.logprob, top)


def _plain(id: int, logprob: float, id_to_bytes: Callable[[int], bytes]) -> Token:
    data = id_to_bytes(id)
    return Token(id, data.decode("utf-8", "replace"), data, logprob)
