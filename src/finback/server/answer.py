"""What an answer is made of, whatever dialect it is told in.

Owns the one event type that every dialect is written from, and answers put together from events. Refuses to know HTTP
and JSON shapes.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from finback.server.ask import RefusedError

Reason = Literal["stop", "stop_string", "length", "tool_calls", "repetition", "cancelled"]
"""Why an answer ended. stop: the model was done. stop_string: one of the client's. tool_calls: it waits for results."""


@dataclass(frozen=True, slots=True)
class Token:
    """A token as logprobs report it: its text (a character that is cut shows as U+FFFD), its bytes, its
    log-probability, and the likeliest in its place."""

    id: int
    text: str
    data: bytes
    logprob: float
    top: tuple[Token, ...] = ()


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of a request. reasoning: of `completion`, those of thinking. cached: of `prompt`, those not computed."""

    prompt: int = 0
    completion: int = 0
    reasoning: int = 0
    cached: int = 0


@dataclass(frozen=True, slots=True)
class Timings:
    """Seconds: waiting, until the first token, from it to the last."""

    queue_s: float = 0.0
    prefill_s: float = 0.0
    decode_s: float = 0.0


# ---- events, in the order in which they come; `answer` numbers the answers of n > 1


@dataclass(frozen=True, slots=True)
class Begun:
    """The request was taken: tokens of its prompt."""

    prompt_tokens: int


@dataclass(frozen=True, slots=True)
class Thought:
    """More of the thinking."""

    answer: int
    text: str


@dataclass(frozen=True, slots=True)
class Said:
    """More of the content."""

    answer: int
    text: str


@dataclass(frozen=True, slots=True)
class CallBegun:
    """A call of a tool, the `call`th of the answer from 0 on."""

    answer: int
    call: int
    id: str
    name: str


@dataclass(frozen=True, slots=True)
class CallArguments:
    """More of its arguments: all pieces together are one JSON object."""

    answer: int
    call: int
    text: str


@dataclass(frozen=True, slots=True)
class CallEnded:
    """The call is whole. A call without this event was cut."""

    answer: int
    call: int


@dataclass(frozen=True, slots=True)
class Tokens:
    """The tokens written since the last such event, where logprobs were asked for. Comes before what they say."""

    answer: int
    tokens: tuple[Token, ...]


@dataclass(frozen=True, slots=True)
class Ended:
    """An answer is over. stop: the stop string that ended it."""

    answer: int
    reason: Reason
    stop: str | None = None


@dataclass(frozen=True, slots=True)
class Done:
    """The last event of a request that went well. prompt: its tokens, where their logprobs were asked for; the first
    has none."""

    usage: Usage
    timings: Timings = field(default_factory=Timings)
    prompt: tuple[Token | None, ...] | None = None


@dataclass(frozen=True, slots=True)
class Failed:
    """The last event of one that did not."""

    refusal: RefusedError


AnswerEvent: TypeAlias = (
    Begun | Thought | Said | CallBegun | CallArguments | CallEnded | Tokens | Ended | Done | Failed
)


# ---- put together


@dataclass(slots=True)
class Call:
    """A call of a tool. arguments: JSON text; of a call that was cut, what there is of it."""

    id: str
    name: str
    arguments: str = ""
    whole: bool = False


@dataclass(slots=True)
class Answer:
    """One answer."""

    reasoning: str = ""
    content: str = ""
    calls: list[Call] = field(default_factory=list)
    tokens: list[Token] = field(default_factory=list)
    reason: Reason = "stop"
    stop: str | None = None


@dataclass(slots=True)
class Outcome:
    """Everything that came of a request."""

    answers: list[Answer] = field(default_factory=list)
    usage: Usage = field(default_factory=Usage)
    timings: Timings = field(default_factory=Timings)
    prompt: tuple[Token | None, ...] | None = None

    def add(self, event: AnswerEvent) -> None:
        """Take in the next event. Raises the RefusedError of a request that failed."""
        match event:
            case Begun():
                pass
            case Failed(refusal):
                raise refusal
            case Done(usage, timings, prompt):
                self.usage, self.timings, self.prompt = usage, timings, prompt
            case _:
                self._add(self._answer(event.answer), event)

    def _answer(self, index: int) -> Answer:
        while len(self.answers) <= index:
            self.answers.append(Answer())
        return self.answers[index]

    @staticmethod
    def _add(
        answer: Answer, event: Thought | Said | CallBegun | CallArguments | CallEnded | Tokens | Ended
    ) -> None:
        match event:
            case Thought(text=text):
                answer.reasoning += text
            case Said(text=text):
                answer.content += text
            case CallBegun(id=id, name=name):
                answer.calls.append(Call(id, name))
            case CallArguments(call=call, text=text):
                answer.calls[call].arguments += text
            case CallEnded(call=call):
                answer.calls[call].whole = True
            case Tokens(tokens=tokens):
                answer.tokens += tokens
            case Ended(reason=reason, stop=stop):
                answer.reason, answer.stop = reason, stop


def outcome(events: Iterable[AnswerEvent]) -> Outcome:
    """All events of a request put together. Raises the RefusedError of one that failed."""
    whole = Outcome()
    for event in events:
        whole.add(event)
    return whole
