"""What OpenAI's endpoints have in common: parameters, usage, log-probabilities, errors.

Owns the fields that chat, completions and responses share, the extras that other servers made usual, and the shape of
an error. Refuses a known field that is not honoured, with its name.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from finback.engine.sampling import LARGEST_ID, MAX_ANSWERS, MAX_LOGPROBS, MAX_PENALTY, Sampling
from finback.errors import FinbackError, RequestError
from finback.server.answer import Answer, Reason, Token, Usage
from finback.server.ask import Defaults, RefusedError
from finback.server.fields import Fields
from finback.text.render import JsonReply

NOTHING_TO_DO = (
    "user", "metadata", "service_tier", "prompt_cache_key", "prompt_cache_retention", "safety_identifier", "verbosity",
    "prediction",
)  # fmt: skip
"""Fields that are taken and change nothing: who asks, how it is billed, hints of speed and style."""

FINISH: Mapping[Reason, str] = {
    "stop": "stop",
    "stop_string": "stop",
    "length": "length",
    "tool_calls": "tool_calls",
    "repetition": "stop",
    "cancelled": "stop",
}
_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
}
_PATH = re.compile(r"([A-Za-z_][\w.]*(?:\[[^\]]{1,64}\][\w.]*)*)(?: is | has |: )")


# ---- reading


def refusal_of(error: FinbackError) -> RefusedError:
    """An error of the library as a refusal; its field is the path that its sentence begins with, if it does."""
    if isinstance(error, RefusedError):
        return error
    match = _PATH.match(str(error))
    return RefusedError(str(error), field=match[1] if match else None)


def sampling(fields: Fields, **more: Any) -> Sampling:
    """The parameters that all endpoints share, and `more` of them under the names of `Sampling`."""
    seed = fields.whole("seed", -(2**63), 2**64 - 1)
    bias = fields.value("logit_bias")
    ids = fields.items("stop_token_ids") or ()
    try:
        return Sampling(
            temperature=fields.number("temperature", 0, 100),
            top_p=fields.number("top_p", 0, 1),
            top_k=_top_k(fields),
            min_p=fields.number("min_p", 0, 1),
            seed=None if seed in (None, -1) else seed % 2**64,
            n=fields.whole("n", 1, MAX_ANSWERS) or 1,
            logit_bias={} if bias is None else bias,
            repetition_penalty=fields.number("repetition_penalty", 0.01, 100),
            presence_penalty=fields.number("presence_penalty", -MAX_PENALTY, MAX_PENALTY) or 0.0,
            frequency_penalty=fields.number("frequency_penalty", -MAX_PENALTY, MAX_PENALTY) or 0.0,
            min_tokens=fields.whole("min_tokens", 0, LARGEST_ID) or 0,
            stop=fields.strings("stop"),
            stop_token_ids=ids,
            ignore_eos=fields.boolean("ignore_eos"),
            max_repeats=fields.whole("max_repeats", 2, LARGEST_ID),
            **more,
        )
    except RequestError as error:
        raise refusal_of(error) from None


def _top_k(fields: Fields) -> int | None:
    top_k = fields.whole("top_k", -1, LARGEST_ID)
    return 0 if top_k == -1 else top_k  # other servers' way to say off


def logprobs(fields: Fields) -> int | None:
    """How many of the likeliest tokens are reported with each, in the way of chat: a switch and a number."""
    top = fields.whole("top_logprobs", 0, MAX_LOGPROBS)
    if not fields.boolean("logprobs"):
        if top:
            raise fields.refuse("top_logprobs", "set logprobs to true with it")
        return None
    return top or 0


def max_tokens(fields: Fields, *names: str, low: int = 1) -> int | None:
    """The limit of an answer, by the first name that is there."""
    values = [fields.whole(name, low, LARGEST_ID) for name in names]
    return next((value for value in values if value is not None), None)


def priority(fields: Fields) -> int:
    """Who comes first: lower is more urgent."""
    return fields.whole("priority", -100, 100) or 0


def thinking(fields: Fields, defaults: Defaults) -> tuple[bool, str | int | None, int | None]:
    """Whether to think, how hard, and for how many tokens at most, from the many ways to ask for it. An explicit switch
    beats an effort of "none"; a more specific field beats `chat_template_kwargs`."""
    switch: bool | None = None
    effort = _effort(fields, "reasoning_effort")
    budget = max_tokens(fields, "thinking_budget", "max_thinking_tokens", "thinking_token_budget", low=0)
    if block := fields.inner("thinking"):
        switch = block.one_of("type", ("enabled", "disabled", "adaptive")) not in (None, "disabled")
        budget = block.whole("budget_tokens", 0, LARGEST_ID) if budget is None else budget
    if block := fields.inner("reasoning"):
        effort = _effort(block, "effort") if effort is None else effort
        budget = block.whole("max_tokens", 0, LARGEST_ID) if budget is None else budget
        switch = block.boolean("enabled") if switch is None and block.has("enabled") else switch
        block.known("exclude", "summary", "generate_summary")
    if fields.has("enable_thinking"):
        switch = fields.boolean("enable_thinking") if switch is None else switch
    if block := fields.inner("chat_template_kwargs"):
        for name in ("thinking", "enable_thinking"):
            switch = block.boolean(name) if switch is None and block.has(name) else switch
        effort = _effort(block, "reasoning_effort") if effort is None else effort
    if switch is None:
        switch = (defaults.thinking and defaults.effort != "none") if effort is None else effort != "none"
    effort = defaults.effort if effort is None else effort
    return switch, (None if effort == "none" else effort), budget


def _effort(fields: Fields, name: str) -> str | int | None:
    """An effort; which there are is the prompt format's to say."""
    value = fields.value(name)
    if value is not None and (not isinstance(value, str | int) or isinstance(value, bool)):
        raise fields.refuse(name, "give a word such as low, high or max")
    return value


def reply_form(form: Fields | None, nested: str | None) -> tuple[JsonReply | None, dict[str, Any]]:
    """What `response_format` asks of the answer: for the prompt, and as sampling parameters. nested: the field of it in
    which the schema lies, or None if it lies in itself."""
    kind = None if form is None else form.one_of("type", ("text", "json_object", "json_schema"))
    if form is None or kind in (None, "text"):
        return None, {}
    if kind == "json_object":
        return JsonReply(), {"json_object": True}
    inner = form if nested is None else form.inner(nested)
    if inner is None:
        raise form.missing(nested or "schema")
    inner.known("name", "description", "strict")
    schema = inner.value("schema")
    if not isinstance(schema, Mapping):
        raise inner.missing("schema") if schema is None else inner.refuse("schema", "give a JSON schema object")
    return JsonReply(schema), {"json_schema": schema}


def form(fields: Fields, given: Fields | None, nested: str | None) -> tuple[JsonReply | None, dict[str, Any]]:
    """The form of an answer, as `reply_form` reads it or by the names that other servers made usual: for the prompt,
    and as sampling parameters. It has one form at most."""
    reply, parameters = reply_form(given, nested)
    found = [(given.path("").rstrip("."), parameters)] if given is not None and parameters else []
    places = [(fields, "guided_json", "guided_regex", "guided_grammar"), (fields, "json_schema", "regex", "grammar")]
    if block := fields.inner("structured_outputs"):
        places.append((block, "json", "regex", "grammar"))
        if block.boolean("json_object"):
            found.append((block.path("json_object"), {"json_object": True}))
    for place, *names in places:
        for name, parameter in zip(names, ("json_schema", "regex", "grammar"), strict=True):
            if place.has(name):
                value = place.value(name) if parameter == "json_schema" else place.needed(name)
                found.append((place.path(name), {parameter: value}))
    for name, other in found[1:]:
        if other != found[0][1]:
            said = f"{found[0][0]} and {name} are given; an answer has one form, leave one out"
            raise RefusedError(said, field=name)
    return reply, found[0][1] if found else {}


# ---- writing


def error_body(refusal: RefusedError) -> dict[str, Any]:
    """The JSON of a refusal."""
    kind = _TYPES.get(refusal.status, "invalid_request_error" if refusal.status < 500 else "server_error")
    error = {"message": str(refusal), "type": kind, "param": refusal.field, "code": refusal.code}
    return {"error": error}


def usage_body(usage: Usage) -> dict[str, Any]:
    """Usage, in OpenAI's words and DeepSeek's."""
    return {
        "prompt_tokens": usage.prompt,
        "completion_tokens": usage.completion,
        "total_tokens": usage.prompt + usage.completion,
        "prompt_tokens_details": {"cached_tokens": usage.cached},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning},
        "prompt_cache_hit_tokens": usage.cached,
        "prompt_cache_miss_tokens": usage.prompt - usage.cached,
    }


def logprob_items(tokens: Sequence[Token]) -> list[dict[str, Any]]:
    """Tokens as chat and responses report them."""
    return [{**_item(token), "top_logprobs": [_item(other) for other in token.top]} for token in tokens]


def _item(token: Token) -> dict[str, Any]:
    return {"token": token.text, "logprob": token.logprob, "bytes": list(token.data)}


def stop_reason(answer: Answer) -> str | None:
    """What exactly ended an answer, beyond the words that OpenAI has: the stop string, or that it went in circles."""
    return answer.stop if answer.reason == "stop_string" else "repetition" if answer.reason == "repetition" else None
