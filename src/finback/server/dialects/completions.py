"""OpenAI completions, `POST /v1/completions`: text that is gone on with as it is.

Owns the translation: a body to one request for each of its prompts, their events to chunks, their outcomes to a
`text_completion`. Source: the API's reference, vLLM's additions (`prompt_logprobs`) and what evaluation harnesses send
and parse. Refuses `best_of` beyond `n`.

A body without `max_tokens` gets 16 tokens, as in OpenAI's API; 0 is taken with `echo`, to read a prompt and write
nothing. Choices are numbered prompt by prompt, the `n` answers of each in a row. A place in `text_offset` counts the
characters of the choice's own text, with `echo` from the prompt's first on.
"""

from __future__ import annotations

import codecs
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from finback.engine.sampling import LARGEST_ID, MAX_ANSWERS, MAX_LOGPROBS
from finback.errors import shown
from finback.server.answer import (
    Answer,
    AnswerEvent,
    Begun,
    CallArguments,
    CallBegun,
    CallEnded,
    Done,
    Ended,
    Failed,
    Outcome,
    Reason,
    Said,
    Thought,
    Token,
    Tokens,
    Usage,
)
from finback.server.ask import Ask, Defaults, Raw, RefusedError, Stamp
from finback.server.dialects import openai
from finback.server.fields import Fields
from finback.server.wire import COMMENT, sse

PING = COMMENT
MAX_TOKENS = 16
MAX_PROMPTS = 1024


@dataclass(frozen=True, slots=True)
class Style:
    """How the answers are told. prompts, n: how many prompts, and answers to each. echo: whether a text begins with its
    prompt. logprobs, prompt_logprobs: how many of the likeliest tokens are reported with each, of the text, and of the
    prompt in vLLM's shape; None is off. usage: whether a stream ends with it."""

    prompts: int = 1
    n: int = 1
    echo: bool = False
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    usage: bool = False

    @property
    def late(self) -> bool:
        """Whether the first piece needs the prompt's log-probabilities, which come with a request's last event."""
        return self.prompt_logprobs is not None or (self.echo and self.logprobs is not None)


# ---- reading


def read(body: object, defaults: Defaults) -> tuple[list[Ask], Style]:
    """The requests of a body, one for each prompt. defaults: say how to think, which raw text does not. Raises
    RefusedError, naming the field."""
    fields = Fields(body)
    prompts, suffix, echo = _prompts(fields), fields.string("suffix") or None, fields.boolean("echo")
    if echo and suffix is not None:
        raise fields.refuse("echo", "leave it out where suffix is given")
    logprobs = fields.whole("logprobs", 0, MAX_LOGPROBS)
    of_prompt = fields.whole("prompt_logprobs", 0, MAX_LOGPROBS)
    limit, only_read = _limit(fields, echo)
    _, form = openai.form(fields, fields.inner("response_format"), "json_schema")
    wanted = [number for number in (of_prompt, logprobs if echo else None) if number is not None]
    sampling = openai.sampling(
        fields,
        max_tokens=limit,
        logprobs=logprobs,
        prompt_logprobs=max(wanted, default=None),
        **form,
    )
    if fields.whole("best_of", 1, MAX_ANSWERS) not in (None, sampling.n):
        raise fields.refuse("best_of", "no answer is written to be thrown away; give the number of n, or leave it out")
    stream, options = fields.boolean("stream"), fields.inner("stream_options")
    usage = options is not None and options.boolean("include_usage")
    model, priority = fields.string("model") or "", openai.priority(fields)
    fields.known(*openai.NOTHING_TO_DO)
    ignored = fields.unknown()
    asks = [
        Ask(model, Raw(prompt, suffix, echo, only_read), sampling, stream, priority, ignored) for prompt in prompts
    ]
    return asks, Style(len(asks), sampling.n, echo, logprobs, of_prompt, usage)


def _limit(fields: Fields, echo: bool) -> tuple[int, bool]:
    """The tokens to write, at least 1, and whether instead nothing is to be written."""
    limit = fields.whole("max_tokens", 0, LARGEST_ID)
    if limit == 0 and not echo:
        raise fields.refuse("max_tokens", "give at least 1, or set echo to true to read the prompt only")
    return (MAX_TOKENS if limit is None else limit or 1), limit == 0


def _prompts(fields: Fields) -> list[str | tuple[int, ...]]:
    """The prompts: a text, a list of ids, or a list of such."""
    value = fields.value("prompt")
    if value is None:
        raise fields.missing("prompt")
    if isinstance(value, str):
        return [value]
    if not isinstance(value, list | tuple) or not value:
        raise fields.refuse("prompt", "give text, a list of token ids, or a list of such")
    if isinstance(value[0], int):
        return [_ids(value, "prompt")]
    if len(value) > MAX_PROMPTS:
        raise RefusedError(f"prompt has {len(value)} prompts; give at most {MAX_PROMPTS}", field="prompt")
    return [item if isinstance(item, str) else _ids(item, f"prompt[{i}]") for i, item in enumerate(value)]


def _ids(value: object, path: str) -> tuple[int, ...]:
    if not isinstance(value, list | tuple) or not value:
        raise RefusedError(f"{path} is {shown(value)}; give text, or a list of token ids", field=path)
    for index, id in enumerate(value):
        if not isinstance(id, int) or isinstance(id, bool) or not 0 <= id <= LARGEST_ID:
            path = f"{path}[{index}]"
            raise RefusedError(f"{path} is {shown(id)}; give a token id, from 0 to {LARGEST_ID}", field=path)
    return tuple(value)


# ---- log-probabilities


def _name(token: Token) -> str:
    """A token by its text; one that is no text, by its bytes, so that names of different tokens differ."""
    try:
        token.data.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in token.data)
    return token.text


def _top(token: Token, number: int) -> dict[str, float]:
    """The likeliest tokens in a token's place, and the token itself; of a name that two have, the likelier."""
    found: dict[str, float] = {}
    for other in (*token.top[:number], token):
        found[_name(other)] = max(other.logprob, found.get(_name(other), -math.inf))
    return found


def _of_prompt(tokens: Iterable[Token | None], number: int) -> list[dict[str, Any] | None]:
    """The log-probabilities of a prompt in vLLM's shape: for each token the likeliest and itself, by id."""
    found: list[dict[str, Any] | None] = []
    for token in tokens:
        if token is None:
            found.append(None)
            continue
        ranks = {other.id: rank for rank, other in enumerate(token.top, 1)}
        found.append(
            {
                str(other.id): {"logprob": other.logprob, "rank": ranks.get(other.id), "decoded_token": other.text}
                for other in (token, *token.top[:number])
            }
        )
    return found


class _Choice:
    """One choice, told whole or in pieces.

    echoed: the text of its prompt. prompt: the prompt's tokens, where their log-probabilities were asked for. lead,
    lead_tokens: what the text begins with.
    """

    def __init__(self, style: Style, index: int, echoed: str, prompt: Sequence[Token | None]) -> None:
        self._style, self._index, self._prompt = style, index, prompt
        self._first = True
        self._at = 0  # characters of the text before the next token
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        self.lead = echoed if style.echo else ""
        self.lead_tokens = prompt if style.echo else ()

    def tell(
        self, text: str, tokens: Sequence[Token | None], reason: Reason | None = None, stop: str | None = None
    ) -> dict[str, Any]:
        """A piece, the last of them with its reason."""
        lists = None
        if self._style.logprobs is not None and (tokens or reason is not None):
            lists = self._lists(tokens, self._style.logprobs)
        finish = None if reason is None else openai.FINISH[reason]
        choice: dict[str, Any] = {"text": text, "index": self._index, "logprobs": lists, "finish_reason": finish}
        if reason is not None:
            choice["stop_reason"] = openai.stop_reason(Answer(reason=reason, stop=stop))
        if self._first and self._style.prompt_logprobs is not None:
            choice["prompt_logprobs"] = _of_prompt(self._prompt, self._style.prompt_logprobs)
        self._first = False
        return choice

    def _lists(self, tokens: Sequence[Token | None], number: int) -> dict[str, list[Any]]:
        names: list[str] = []
        places: list[int] = []
        for token in tokens:
            places.append(self._at)
            if token is None:
                names.append(self._begins())
                self._at += len(names[-1])
            else:
                names.append(_name(token))
                self._at += len(self._decode(token.data))
        return {
            "tokens": names,
            "token_logprobs": [None if token is None else token.logprob for token in tokens],
            "top_logprobs": [None if token is None else _top(token, number) for token in tokens],
            "text_offset": places,
        }

    def _begins(self) -> str:
        """The text of a prompt's first token, which comes without: what the others leave of the prompt."""
        rest = b"".join(token.data for token in self.lead_tokens if token is not None).decode("utf-8", "replace")
        return self.lead.removesuffix(rest) if self.lead.endswith(rest) else ""


# ---- the answers at once


def whole(style: Style, stamp: Stamp, outcomes: Sequence[Outcome], echoed: Sequence[str] = ()) -> dict[str, Any]:
    """The body of the answers to all prompts. echoed: with `echo` the text of each prompt."""
    choices = []
    for number, outcome in enumerate(outcomes):
        nothing = [Answer(reason="length")] * style.n  # of a prompt that was only read
        for index, answer in enumerate(outcome.answers or nothing):
            text = echoed[number] if style.echo else ""
            choice = _Choice(style, number * style.n + index, text, outcome.prompt or ())
            tokens = [*choice.lead_tokens, *answer.tokens]
            choices.append(choice.tell(choice.lead + answer.content, tokens, answer.reason, answer.stop))
    usage = _sum(outcome.usage for outcome in outcomes)
    return {**_head(stamp), "choices": choices, "usage": openai.usage_body(usage)}


def _head(stamp: Stamp) -> dict[str, Any]:
    return {
        "id": f"cmpl-{stamp.id}",
        "object": "text_completion",
        "created": int(stamp.created),
        "model": stamp.model,
    }


def _sum(usages: Iterable[Usage]) -> Usage:
    total = Usage()
    for usage in usages:
        total = Usage(
            total.prompt + usage.prompt,
            total.completion + usage.completion,
            total.reasoning + usage.reasoning,
            total.cached + usage.cached,
        )
    return total


# ---- the answers as they come


class Stream:
    """Events to server-sent events of the answers to all prompts; echoed: with `echo` the text of each.

    Where the text begins with log-probabilities of the prompt, the events of a prompt are held back until its last one
    brings them. After a failure nothing more is told, of no prompt.
    """

    def __init__(self, style: Style, stamp: Stamp, echoed: Sequence[str] = ()) -> None:
        self._style, self._head, self._echoed = style, _head(stamp), echoed
        self._held: dict[int, list[AnswerEvent]] = {}
        self._prompts: dict[int, Sequence[Token | None]] = {}
        self._choices: dict[int, _Choice] = {}
        self._tokens: dict[int, list[Token]] = {}
        self._ended: set[int] = set()
        self._usages: list[Usage] = []
        self._failed = False

    def write(self, prompt: int, event: AnswerEvent) -> list[bytes]:
        """What an event of the `prompt`th request makes of the stream."""
        if self._failed:
            return []
        match event:
            case Failed(refusal):
                self._failed = True
                return [sse(openai.error_body(refusal)), sse("[DONE]")]
            case Done():
                return self._done(prompt, event)
            case _ if self._style.late:
                self._held.setdefault(prompt, []).append(event)
                return []
            case _:
                return self._tell(prompt, event)

    def _done(self, prompt: int, done: Done) -> list[bytes]:
        self._prompts[prompt] = done.prompt or ()
        chunks = [chunk for event in self._held.pop(prompt, ()) for chunk in self._tell(prompt, event)]
        for answer in range(self._style.n):  # a prompt that was only read
            if self._index(prompt, answer) not in self._ended:
                chunks += self._tell(prompt, Ended(answer, "length"))
        self._usages.append(done.usage)
        if len(self._usages) < self._style.prompts:
            return chunks
        if self._style.usage:
            chunks.append(sse({**self._head, "choices": [], "usage": openai.usage_body(_sum(self._usages))}))
        return [*chunks, sse("[DONE]")]

    def _index(self, prompt: int, answer: int) -> int:
        return prompt * self._style.n + answer

    def _tell(self, prompt: int, event: AnswerEvent) -> list[bytes]:
        match event:
            case Tokens(answer, tokens):
                self._tokens.setdefault(self._index(prompt, answer), []).extend(tokens)
                return []
            case Said(answer, text):
                return self._piece(prompt, answer, text)
            case Ended(answer, reason, stop):
                self._ended.add(self._index(prompt, answer))
                return self._piece(prompt, answer, "", reason, stop)
            case Begun() | Done() | Failed():
                return []
            case Thought() | CallBegun() | CallArguments() | CallEnded():  # raw text is not taken apart
                raise AssertionError("raw text is gone on with in text")

    def _piece(
        self, prompt: int, answer: int, text: str, reason: Reason | None = None, stop: str | None = None
    ) -> list[bytes]:
        index, told = self._index(prompt, answer), []
        if index not in self._choices:
            echoed = self._echoed[prompt] if self._style.echo else ""
            choice = _Choice(self._style, index, echoed, self._prompts.get(prompt, ()))
            self._choices[index] = choice
            if self._style.echo or self._style.late:
                told.append(choice.tell(choice.lead, choice.lead_tokens))
        told.append(self._choices[index].tell(text, self._tokens.pop(index, []), reason, stop))
        return [sse({**self._head, "choices": [choice]}) for choice in told]
