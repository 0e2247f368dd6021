"""The parameters of an answer: their names, ranges and precedence.

Owns what a caller may set. Explicit beats the model's generation_config.json, which beats the library's defaults.
Refuses values outside their range with a sentence that names the parameter. docs/sampling.md says what each does.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from finback.config import GenerationDefaults
from finback.errors import RequestError, shown
from finback.text.stop import check_stops

SEED_RANGE = 2**64
MAX_ANSWERS = 64
MAX_LOGPROBS = 20
MAX_BIASES = 4096
MAX_PENALTY = 2.0
MAX_BIAS = 100.0
LARGEST_ID = 2**31 - 1
FORMS = ("json_schema", "json_object", "regex", "grammar", "calls")


@dataclass(frozen=True, slots=True)
class Sampling:
    """Parameters of one request. None means: the model's generation_config.json, else the library's default.

    Drawing. temperature: 0 is greedy, equal logits to the lowest id. top_k: 0 is off. top_p: 1 is off, 0 keeps one
    token. min_p: share of the greatest probability below which a token is dropped; 0 is off. seed: the same seed gives
    the same answer; None draws one, which the answer reports. n: answers to the one prompt; the first is that of n = 1.

    Changing logits. logit_bias: added to the logit of each token named. repetition_penalty: above 1 makes tokens of
    prompt and answer less likely. presence_penalty, frequency_penalty: taken off tokens of the answer, once, and as
    often as they occur.

    Ending. max_tokens: None is until the context is full. min_tokens: nothing but max_tokens ends the answer before.
    stop: strings that end the answer, not part of it. stop_token_ids: the same by id. ignore_eos: go on past the
    end-of-text token. max_repeats: end when the answer's end is one piece so many times in a row; None is off.

    Thinking. thinking_budget: most tokens of thinking, which is then closed. effort: how long to think, in the words of
    the model's prompt format (low, high, max), or a number where it has one.

    Form, at most one of them, from the end of thinking on. json_schema: a JSON schema. json_object: any JSON object.
    regex, grammar: a regular expression, a grammar in Lark's notation, that the whole answer matches. calls: such a
    grammar as `text.tool_grammar` makes, for an answer that has to call a tool.

    Reporting. logprobs: with each token of the answer its log-probability and that many of the likeliest; None is off.
    prompt_logprobs: the same for the tokens of the prompt.
    """

    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    seed: int | None = None
    n: int = 1
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    repetition_penalty: float | None = None
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    max_tokens: int | None = None
    min_tokens: int = 0
    stop: str | Sequence[str] = ()
    stop_token_ids: Sequence[int] = ()
    ignore_eos: bool = False
    max_repeats: int | None = None
    thinking_budget: int | None = None
    effort: str | int | None = None
    json_schema: Mapping[str, Any] | str | bool | None = None
    json_object: bool = False
    regex: str | None = None
    grammar: str | None = None
    calls: str | None = None
    logprobs: int | None = None
    prompt_logprobs: int | None = None

    def __post_init__(self) -> None:
        _real("temperature", self.temperature, 0.0, 100.0)
        _whole("top_k", self.top_k, 0, LARGEST_ID)
        _real("top_p", self.top_p, 0.0, 1.0)
        _real("min_p", self.min_p, 0.0, 1.0)
        _whole("seed", self.seed, 0, SEED_RANGE - 1)
        _given("n", self.n)
        _whole("n", self.n, 1, MAX_ANSWERS)
        object.__setattr__(self, "logit_bias", _biases(self.logit_bias))
        _real("repetition_penalty", self.repetition_penalty, 0.01, 100.0)
        _given("presence_penalty", self.presence_penalty)
        _real("presence_penalty", self.presence_penalty, -MAX_PENALTY, MAX_PENALTY)
        _given("frequency_penalty", self.frequency_penalty)
        _real("frequency_penalty", self.frequency_penalty, -MAX_PENALTY, MAX_PENALTY)
        _whole("max_tokens", self.max_tokens, 1, LARGEST_ID)
        _given("min_tokens", self.min_tokens)
        _whole("min_tokens", self.min_tokens, 0, LARGEST_ID)
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise RequestError(
                f"min_tokens is {self.min_tokens}, but max_tokens is {self.max_tokens}; lower min_tokens"
            )
        object.__setattr__(self, "stop", check_stops(self.stop))
        object.__setattr__(self, "stop_token_ids", tuple(self.stop_token_ids))
        for token in self.stop_token_ids:
            _given("stop_token_ids", token)
            _whole("stop_token_ids", token, 0, LARGEST_ID)
        if not isinstance(self.ignore_eos, bool):
            raise RequestError(f"ignore_eos is {shown(self.ignore_eos)}; it must be True or False")
        _whole("max_repeats", self.max_repeats, 2, LARGEST_ID)
        _whole("thinking_budget", self.thinking_budget, 0, LARGEST_ID)
        if not isinstance(self.json_object, bool):
            raise RequestError(f"json_object is {shown(self.json_object)}; it must be True or False")
        for name in ("regex", "grammar", "calls"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, str) or not value):
                raise RequestError(f"{name} is {shown(value)}; give a string that is not empty")
        forms = [name for name in FORMS if getattr(self, name) not in (None, False)]
        if self.json_schema is False:
            forms.append("json_schema")
        if len(forms) > 1:
            raise RequestError(f"{' and '.join(forms)} are given; an answer has one form, leave out all but one")
        _whole("logprobs", self.logprobs, 0, MAX_LOGPROBS)
        _whole("prompt_logprobs", self.prompt_logprobs, 0, MAX_LOGPROBS)

    @property
    def stops(self) -> tuple[str, ...]:
        return tuple(self.stop)


def _given(name: str, value: object) -> None:
    if value is None:
        raise RequestError(f"{name} is None; give a number, or leave it out")


def _real(name: str, value: float | None, low: float, high: float) -> None:
    if value is None:
        return
    good = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if not good or not low <= value <= high:
        raise RequestError(f"{name} is {shown(value)}; it must be a number in [{low:g}, {high:g}]")


def _whole(name: str, value: int | None, low: int, high: int) -> None:
    if value is None:
        return
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise RequestError(f"{name} is {shown(value)}; it must be a whole number from {low} to {high}")


def _biases(biases: object) -> dict[int, float]:
    """Token ids and what is added to their logits, ids also as the decimal strings that JSON makes of them."""
    if not isinstance(biases, Mapping):
        raise RequestError(f"logit_bias is {shown(biases)}; give an object of token ids and numbers")
    if len(biases) > MAX_BIASES:
        raise RequestError(f"logit_bias names {len(biases)} tokens; give at most {MAX_BIASES}")
    found: dict[int, float] = {}
    for key, value in biases.items():
        token = int(key) if isinstance(key, str) and key.isascii() and key.isdigit() and len(key) < 11 else key
        if not isinstance(token, int) or isinstance(token, bool) or not 0 <= token <= LARGEST_ID:
            raise RequestError(f"logit_bias has the key {shown(key)}; keys are token ids")
        _given(f"logit_bias[{token}]", value)
        _real(f"logit_bias[{token}]", value, -MAX_BIAS, MAX_BIAS)
        found[token] = float(value)
    return found


@dataclass(frozen=True, slots=True)
class Resolved:
    """Sampling with every default filled in."""

    temperature: float
    top_k: int
    top_p: float
    min_p: float
    seed: int
    n: int
    logit_bias: Mapping[int, float]
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float
    max_tokens: int | None
    min_tokens: int
    stops: tuple[str, ...]
    stop_token_ids: frozenset[int]
    ignore_eos: bool
    max_repeats: int | None
    thinking_budget: int | None
    json_schema: Mapping[str, Any] | str | bool | None
    json_object: bool
    regex: str | None
    grammar: str | None
    calls: str | None
    logprobs: int | None
    prompt_logprobs: int | None


def resolve(sampling: Sampling, defaults: GenerationDefaults) -> Resolved:
    """Fill what `sampling` leaves open: from the model's generation_config.json, else from the library.

    A model that says `do_sample: false` asks for greedy decoding. Library defaults: temperature 1, no filter, no
    penalty.
    """

    def pick(explicit: float | None, model: float | None, library: float) -> float:
        return explicit if explicit is not None else model if model is not None else library

    return Resolved(
        temperature=float(pick(sampling.temperature, defaults.temperature, 1.0)),
        top_k=int(pick(sampling.top_k, defaults.top_k, 0)),
        top_p=float(pick(sampling.top_p, defaults.top_p, 1.0)),
        min_p=float(pick(sampling.min_p, None, 0.0)),
        seed=sampling.seed if sampling.seed is not None else secrets.randbits(53),
        n=sampling.n,
        logit_bias=sampling.logit_bias,
        repetition_penalty=float(pick(sampling.repetition_penalty, defaults.repetition_penalty, 1.0)),
        presence_penalty=float(sampling.presence_penalty),
        frequency_penalty=float(sampling.frequency_penalty),
        max_tokens=sampling.max_tokens,
        min_tokens=sampling.min_tokens,
        stops=sampling.stops,
        stop_token_ids=frozenset(sampling.stop_token_ids),
        ignore_eos=sampling.ignore_eos,
        max_repeats=sampling.max_repeats,
        thinking_budget=sampling.thinking_budget,
        json_schema=sampling.json_schema,
        json_object=sampling.json_object,
        regex=sampling.regex,
        grammar=sampling.grammar,
        calls=sampling.calls,
        logprobs=sampling.logprobs,
        prompt_logprobs=sampling.prompt_logprobs,
    )
