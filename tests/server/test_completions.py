"""OpenAI completions as a pure translation, and what evaluation harnesses read of them."""

from __future__ import annotations

from typing import Any

import pytest

from finback.server.answer import (
    AnswerEvent,
    Begun,
    Done,
    Ended,
    Failed,
    Outcome,
    Said,
    Token,
    Tokens,
    Usage,
    outcome,
)
from finback.server.ask import Ask, Defaults, Raw, RefusedError
from finback.server.dialects import completions
from finback.server.dialects.completions import Style
from tests.server.streams import DONE, STAMP, sse_events


def read_all(**body: Any) -> tuple[list[Ask], Style]:
    return completions.read({"model": "m", "prompt": "Hi", **body}, Defaults())


def read(**body: Any) -> Ask:
    (ask,), _ = read_all(**body)
    return ask


# ---- requests


def test_parameters_arrive() -> None:
    (ask,), style = read_all(
        temperature=0.5, top_p=0.9, top_k=40, min_p=0.1, seed=7, n=2, logit_bias={"5": -100}, presence_penalty=1,
        frequency_penalty=0.5, repetition_penalty=1.1, stop=["a", "b"], max_tokens=9, logprobs=3, min_tokens=2,
        ignore_eos=True, stream=True, priority=-3, best_of=2, user="u", stream_options={"include_usage": True},
        stop_token_ids=[4], prompt_logprobs=5,
    )  # fmt: skip
    p = ask.sampling
    assert (p.temperature, p.top_p, p.top_k, p.min_p, p.seed, p.n, p.max_tokens) == (0.5, 0.9, 40, 0.1, 7, 2, 9)
    assert (p.presence_penalty, p.frequency_penalty, p.repetition_penalty) == (1, 0.5, 1.1)
    assert (p.stop, p.logit_bias, p.logprobs, p.min_tokens, p.ignore_eos) == (("a", "b"), {5: -100.0}, 3, 2, True)
    assert (p.stop_token_ids, p.prompt_logprobs) == ((4,), 5)
    assert (ask.model, ask.prompt, ask.stream, ask.priority, ask.ignored) == ("m", Raw("Hi"), True, -3, ())
    assert style == Style(1, 2, echo=False, logprobs=3, prompt_logprobs=5, usage=True)


def test_what_is_left_out() -> None:
    (ask,), style = read_all(
        max_tokens=None, stop=None, logprobs=None, echo=None, suffix="", best_of=None, n=None, response_format=None
    )
    assert (ask.sampling.max_tokens, ask.sampling.logprobs, ask.sampling.prompt_logprobs) == (16, None, None)
    assert (ask.prompt, ask.stream, style) == (Raw("Hi"), False, Style())
    assert read(banana=1, stream_options={"include_usage": True, "x": 1}).ignored == ("banana", "stream_options.x")


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ("", [""]),
        ("a", ["a"]),
        (["a"], ["a"]),
        (["a", "", "b"], ["a", "", "b"]),
        ([5, 6], [(5, 6)]),
        ([0], [(0,)]),
        ([[5, 6], [7]], [(5, 6), (7,)]),
        (["a", [7]], ["a", (7,)]),
    ],
)
def test_prompts(prompt: object, expected: list[Any]) -> None:
    asks, style = read_all(prompt=prompt, n=3, echo=True)
    assert [ask.prompt for ask in asks] == [Raw(one, echo=True) for one in expected]
    assert (style.prompts, style.n) == (len(expected), 3)
    assert len({id(ask.sampling) for ask in asks}) == 1


def test_text_to_fill_in() -> None:
    assert read(suffix="}").prompt == Raw("Hi", "}")
    with pytest.raises(RefusedError) as refused:
        read(suffix="}", echo=True)
    assert refused.value.field == "echo"


def test_a_prompt_that_is_only_read() -> None:
    asked = read(max_tokens=0, echo=True, logprobs=0)
    assert asked.prompt == Raw("Hi", echo=True, only_read=True)
    assert (asked.sampling.prompt_logprobs, asked.sampling.logprobs) == (0, 0)
    assert read(max_tokens=1, echo=True).prompt == Raw("Hi", echo=True)


def test_how_many_of_the_prompt() -> None:
    def of_prompt(**body: Any) -> int | None:
        return read(**body).sampling.prompt_logprobs

    assert of_prompt(logprobs=5) is None
    assert of_prompt(echo=True) is None
    assert of_prompt(echo=True, logprobs=2) == 2
    assert of_prompt(echo=True, logprobs=2, prompt_logprobs=0) == 2
    assert of_prompt(echo=True, logprobs=2, prompt_logprobs=4) == 4
    assert of_prompt(logprobs=2, prompt_logprobs=1) == 1


def test_the_form_of_an_answer() -> None:
    schema = {"type": "object"}
    named = {"type": "json_schema", "json_schema": {"name": "s", "schema": schema}}
    assert read(response_format=named).sampling.json_schema == schema
    assert read(response_format={"type": "json_object"}).sampling.json_object
    assert read(guided_regex="a+").sampling.regex == "a+"
    both = read(response_format={"type": "json_object"}, structured_outputs={"json_object": True})
    assert both.sampling.json_object
    with pytest.raises(RefusedError, match="response_format and guided_regex are given"):
        read(guided_regex="a+", response_format={"type": "json_object"})


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *[("prompt", bad) for bad in (None, 5, True, [], {}, [[]], [{}], ["a", 5], [5, "a"], [[5, -1]], [[1.0]])],
        *[("prompt", bad) for bad in ([True], [None], [2**31], [[5, True]], ["x"] * 1025)],
        *[("max_tokens", bad) for bad in (0, -1, 1.5, "10", True)],
        *[("logprobs", bad) for bad in (-1, 21, True, "5", 1.5)],
        *[("prompt_logprobs", bad) for bad in (-1, 21, True)],
        *[("best_of", bad) for bad in (2, 0, "1")],
        *[("echo", bad) for bad in ("yes", 1)],
        *[("suffix", bad) for bad in (5, ["}"])],
        *[("n", bad) for bad in (0, 65, "2")],
        ("temperature", -1), ("stop", ""), ("stream", "yes"), ("stream_options", True), ("seed", 1.5),
        ("logit_bias", [1]), ("response_format", {"type": "yaml"}), ("model", 5), ("priority", 101),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named(field: str, value: object) -> None:
    with pytest.raises(RefusedError) as refused:
        read_all(**{field: value})
    assert refused.value.status == 400
    assert refused.value.field is not None
    assert refused.value.field.partition("[")[0].partition(".")[0] == field
    assert field in str(refused.value)


@pytest.mark.parametrize(
    ("prompt", "path"), [([[5], [6, -1]], "prompt[1][1]"), ([5, "a"], "prompt[1]"), (["a", []], "prompt[1]")]
)
def test_what_is_wrong_in_a_prompt_has_its_place(prompt: object, path: str) -> None:
    with pytest.raises(RefusedError) as refused:
        read_all(prompt=prompt)
    assert refused.value.field == path
    assert str(refused.value).startswith(f"{path} is ")


@pytest.mark.parametrize("body", [[], "x", None, 5])
def test_a_body_that_is_no_object(body: object) -> None:
    with pytest.raises(RefusedError, match=r"the body is .*; give an object"):
        completions.read(body, Defaults())


# ---- answers


def token(text: str, logprob: float, *top: Token, id: int | None = None, data: bytes | None = None) -> Token:
    return Token(ord(text[0]) if id is None else id, text, text.encode() if data is None else data, logprob, top)


def told(style: Style, events: list[tuple[int, AnswerEvent]], echoed: tuple[str, ...] = ()) -> list[Any]:
    stream = completions.Stream(style, STAMP, echoed)
    read = sse_events(chunk for prompt, event in events for chunk in stream.write(prompt, event))
    assert all(name is None for name, _ in read)
    return [data for _, data in read]


def joined(chunks: list[Any]) -> list[dict[str, Any]]:
    """The choices of a stream put together, as clients do it."""
    found: dict[int, dict[str, Any]] = {}
    for chunk in chunks:
        for piece in chunk["choices"]:
            choice = found.setdefault(piece["index"], {"text": "", "index": piece["index"], "logprobs": None})
            assert choice.get("finish_reason") is None
            choice["text"] += piece["text"]
            lists = piece["logprobs"]
            if lists is not None and choice["logprobs"] is not None:
                lists = {name: choice["logprobs"][name] + lists[name] for name in lists}
            choice["logprobs"] = choice["logprobs"] if lists is None else lists
            choice |= {key: piece[key] for key in piece if key not in ("text", "index", "logprobs")}
    return [found[index] for index in sorted(found)]


def both(style: Style, events: list[list[AnswerEvent]], echoed: tuple[str, ...] = ()) -> dict[str, Any]:
    """The answers at once, which their stream is too, in whatever order the prompts' events come."""
    whole = completions.whole(style, STAMP, [outcome(each) for each in events], echoed)
    in_turn = [(prompt, event) for prompt, each in enumerate(events) for event in each]
    longest = max(len(each) for each in events)
    mixed = [(p, each[i]) for i in range(longest) for p, each in reversed(list(enumerate(events))) if i < len(each)]
    for order in (in_turn, mixed):
        *chunks, last = told(style, order, echoed)
        assert last == "[DONE]"
        assert joined(chunks) == whole["choices"]
    return whole


def text(*pieces: str, answer: int = 0) -> list[AnswerEvent]:
    return [Begun(20), *(Said(answer, piece) for piece in pieces), Ended(answer, "stop"), DONE]


def test_a_whole_answer() -> None:
    body = both(Style(), [text("Hel", "lo")])
    assert list(body) == ["id", "object", "created", "model", "choices", "usage"]
    assert (body["id"], body["object"], body["created"], body["model"]) == (
        "cmpl-" + STAMP.id, "text_completion", 1_700_000_000, "a-model",
    )  # fmt: skip
    assert body["choices"] == [
        {"text": "Hello", "index": 0, "logprobs": None, "finish_reason": "stop", "stop_reason": None}
    ]
    assert (body["usage"]["prompt_tokens"], body["usage"]["completion_tokens"]) == (20, 12)


def test_pieces_come_in_order() -> None:
    head = {"id": "cmpl-" + STAMP.id, "object": "text_completion", "created": 1_700_000_000, "model": "a-model"}
    style = Style(usage=True)
    *chunks, usage, last = told(style, [(0, event) for event in text("Hel", "lo")])
    assert [chunk["choices"][0] for chunk in chunks] == [
        {"text": "Hel", "index": 0, "logprobs": None, "finish_reason": None},
        {"text": "lo", "index": 0, "logprobs": None, "finish_reason": None},
        {"text": "", "index": 0, "logprobs": None, "finish_reason": "stop", "stop_reason": None},
    ]
    assert all({**chunk, "choices": []} == {**head, "choices": []} for chunk in chunks)
    whole = completions.whole(style, STAMP, [outcome(text("x"))])
    assert (usage, last) == ({**head, "choices": [], "usage": whole["usage"]}, "[DONE]")
    assert not any("usage" in chunk for chunk in told(Style(), [(0, event) for event in text("x")])[:-1])


def test_choices_are_numbered_prompt_by_prompt() -> None:
    def answers(name: str) -> list[AnswerEvent]:
        said = [Said(1, name + "1"), Said(0, name), Ended(1, "length"), Said(0, "0"), Ended(0, "stop")]
        return [Begun(3), *said, DONE]

    body = both(Style(3, 2), [answers("a"), answers("b"), answers("c")])
    assert [choice["text"] for choice in body["choices"]] == ["a0", "a1", "b0", "b1", "c0", "c1"]
    assert [choice["index"] for choice in body["choices"]] == list(range(6))
    assert [choice["finish_reason"] for choice in body["choices"]] == ["stop", "length"] * 3
    echoed = both(Style(3, 2, echo=True), [answers("a"), answers("b"), answers("c")], ("x", "y", ""))
    assert [choice["text"] for choice in echoed["choices"]] == ["xa0", "xa1", "yb0", "yb1", "c0", "c1"]


def test_usage_is_summed() -> None:
    first, second = Usage(20, 12, 4, 16), Usage(3, 5, 0, 1)
    events: list[list[AnswerEvent]] = [[*text("x")[:-1], Done(usage)] for usage in (first, second)]
    body = both(Style(2), events)["usage"]
    assert body == {
        "prompt_tokens": 23, "completion_tokens": 17, "total_tokens": 40,
        "prompt_tokens_details": {"cached_tokens": 17}, "completion_tokens_details": {"reasoning_tokens": 4},
        "prompt_cache_hit_tokens": 17, "prompt_cache_miss_tokens": 6,
    }  # fmt: skip
    streamed = told(Style(2, usage=True), [(p, event) for p, each in enumerate(events) for event in each])
    assert [chunk["usage"] for chunk in streamed[:-1] if not chunk["choices"]] == [body]
    assert streamed[-2]["choices"] == []


@pytest.mark.parametrize(
    ("reason", "stop", "expected"),
    [
        ("stop", None, ("stop", None)),
        ("length", None, ("length", None)),
        ("stop_string", "END", ("stop", "END")),
        ("repetition", None, ("stop", "repetition")),
        ("cancelled", None, ("stop", None)),
    ],
)
def test_why_it_ended(reason: Any, stop: str | None, expected: tuple[str, str | None]) -> None:
    choice = both(Style(), [[Begun(1), Said(0, "x"), Ended(0, reason, stop), DONE]])["choices"][0]
    assert (choice["finish_reason"], choice["stop_reason"]) == expected


def test_logprobs() -> None:
    a = token("A", -0.5, token("A", -0.5), token("B", -1.0), token("C", -2.0))
    c = token("C", -3.0, token("A", -0.25), token("B", -1.0))
    events: list[AnswerEvent] = [
        Begun(1), Tokens(0, (a,)), Said(0, "A"), Tokens(0, (c,)), Said(0, "C"), Tokens(0, (token("</s>", -0.1),)),
        Ended(0, "stop"), DONE,
    ]  # fmt: skip
    (choice,) = both(Style(logprobs=2), [events])["choices"]
    assert choice["logprobs"] == {
        "tokens": ["A", "C", "</s>"],
        "token_logprobs": [-0.5, -3.0, -0.1],
        "top_logprobs": [{"A": -0.5, "B": -1.0}, {"A": -0.25, "B": -1.0, "C": -3.0}, {"</s>": -0.1}],
        "text_offset": [0, 1, 2],
    }
    pieces = [chunk["choices"][0]["logprobs"] for chunk in told(Style(logprobs=2), [(0, e) for e in events])[:-1]]
    assert [piece["tokens"] for piece in pieces] == [["A"], ["C"], ["</s>"]]
    only_itself = both(Style(logprobs=0), [events])["choices"][0]["logprobs"]["top_logprobs"]
    assert only_itself == [{"A": -0.5}, {"C": -3.0}, {"</s>": -0.1}]
    empty = both(Style(logprobs=1), [[Begun(1), Ended(0, "stop"), DONE]])["choices"][0]["logprobs"]
    assert empty == {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}


def test_tokens_that_are_no_text() -> None:
    first, second = token("\ufffd", -1.0, data=b"\xc3"), token("\ufffd", -2.0, data=b"\xa9")
    first = Token(1, first.text, first.data, -1.0, (second, first))
    twin = token("!", -5.0, token("!", -0.5, id=900), id=901)
    events: list[AnswerEvent] = [
        Begun(1), Tokens(0, (first, second, twin, token("x", -0.1))), Said(0, "é!x"), Ended(0, "stop"), DONE,
    ]  # fmt: skip
    lists = both(Style(logprobs=2), [events])["choices"][0]["logprobs"]
    assert lists["tokens"] == ["bytes:\\xc3", "bytes:\\xa9", "!", "x"]
    assert lists["top_logprobs"][0] == {"bytes:\\xa9": -2.0, "bytes:\\xc3": -1.0}
    assert lists["top_logprobs"][2] == {"!": -0.5}
    assert lists["text_offset"] == [0, 0, 1, 2]


PROMPT = (None, token("bb", -1.0, token("z", -0.5)), token("é", -0.25, token("é", -0.25)))


def answered(usage: Usage = DONE.usage) -> list[AnswerEvent]:
    written = token("d", -0.125, token("d", -0.125))
    return [Begun(3), Tokens(0, (written,)), Said(0, "d"), Ended(0, "length"), Done(usage, prompt=PROMPT)]


def test_an_echo_with_logprobs() -> None:
    (choice,) = both(Style(echo=True, logprobs=1), [answered()], ("aabbé",))["choices"]
    assert choice["text"] == "aabbéd"
    assert choice["logprobs"] == {
        "tokens": ["aa", "bb", "é", "d"],
        "token_logprobs": [None, -1.0, -0.25, -0.125],
        "top_logprobs": [None, {"z": -0.5, "bb": -1.0}, {"é": -0.25}, {"d": -0.125}],
        "text_offset": [0, 2, 4, 5],
    }
    without_first = both(Style(echo=True, logprobs=1), [answered()], ("bbé",))["choices"][0]["logprobs"]
    assert (without_first["tokens"][0], without_first["text_offset"]) == ("", [0, 0, 2, 3])


def test_an_echo_leads_the_stream() -> None:
    first, *_ = told(Style(echo=True), [(0, Begun(1)), (0, Said(0, "d"))], ("aabbé",))
    assert first["choices"][0] == {"text": "aabbé", "index": 0, "logprobs": None, "finish_reason": None}
    style = Style(echo=True, logprobs=1)
    assert told(style, [(0, event) for event in answered()[:-1]], ("aabbé",)) == []
    lead, *_ = told(style, [(0, event) for event in answered()], ("aabbé",))
    assert (lead["choices"][0]["text"], len(lead["choices"][0]["logprobs"]["tokens"])) == ("aabbé", 3)


def test_a_prompt_that_was_only_read() -> None:
    events: list[AnswerEvent] = [Begun(3), Done(Usage(prompt=3), prompt=PROMPT)]
    body = both(Style(n=2, echo=True, logprobs=1), [events], ("aabbé",))
    assert [choice["text"] for choice in body["choices"]] == ["aabbé"] * 2
    assert [choice["finish_reason"] for choice in body["choices"]] == ["length"] * 2
    assert [len(choice["logprobs"]["tokens"]) for choice in body["choices"]] == [3, 3]


def log_likelihood(choice: dict[str, Any], context: int) -> tuple[float, bool]:
    """What evaluation harnesses compute: of the tokens after the context, without the one that was written."""
    logprobs = choice["logprobs"]
    names = ("tokens", "token_logprobs", "top_logprobs", "text_offset")
    assert len({len(logprobs[name]) for name in names}) == 1
    own, top = logprobs["token_logprobs"][context:-1], logprobs["top_logprobs"][context:-1]
    return sum(own), all(mine == max(others.values()) for mine, others in zip(own, top, strict=True))


def test_log_likelihoods() -> None:
    ids = [[7, 8, 9], [7, 8, 9]]
    asks, style = completions.read(
        {"model": "m", "prompt": ids, "max_tokens": 1, "logprobs": 1, "echo": True, "temperature": 0, "seed": 1234},
        Defaults(),
    )
    assert [ask.prompt for ask in asks] == [Raw((7, 8, 9), echo=True)] * 2
    p = asks[0].sampling
    assert (p.temperature, p.max_tokens, p.logprobs, p.prompt_logprobs, p.seed) == (0, 1, 1, 1, 1234)
    choices = both(style, [answered(), answered()], ("aabbé", "aabbé"))["choices"]
    assert [log_likelihood(choice, 2) for choice in choices] == [(-0.25, True)] * 2
    assert [log_likelihood(choice, 1) for choice in choices] == [(-1.25, False)] * 2


def test_logprobs_of_the_prompt_in_vllms_shape() -> None:
    style = Style(prompt_logprobs=1)
    (choice,) = both(style, [answered()])["choices"]
    assert (choice["text"], choice["logprobs"]) == ("d", None)
    assert choice["prompt_logprobs"] == [
        None,
        {
            "98": {"logprob": -1.0, "rank": None, "decoded_token": "bb"},
            "122": {"logprob": -0.5, "rank": 1, "decoded_token": "z"},
        },
        {"233": {"logprob": -0.25, "rank": 1, "decoded_token": "é"}},
    ]
    pieces = told(style, [(0, event) for event in answered()])[:-1]
    assert ["prompt_logprobs" in piece["choices"][0] for piece in pieces] == [True, False, False]
    fewer = both(Style(echo=True, logprobs=1, prompt_logprobs=0), [answered()], ("aabbé",))["choices"][0]
    assert [None if item is None else list(item) for item in fewer["prompt_logprobs"]] == [None, ["98"], ["233"]]
    assert fewer["logprobs"]["top_logprobs"][1] == {"z": -0.5, "bb": -1.0}


def test_a_failure_ends_the_stream_of_all_prompts() -> None:
    refusal = RefusedError("the model file was cut; pull it again", status=500)
    events: list[tuple[int, AnswerEvent]] = [
        (0, Said(0, "x")), (1, Failed(refusal)), (0, Said(0, "y")), (0, Ended(0, "stop")), (0, DONE),
    ]  # fmt: skip
    first, error, last = told(Style(2), events)
    assert first["choices"][0]["text"] == "x"
    assert (error["error"]["message"], error["error"]["type"], last) == (str(refusal), "server_error", "[DONE]")


def test_the_stream_ends_after_the_last_prompt() -> None:
    stream = completions.Stream(Style(2), STAMP)
    for event in text("x"):
        assert b"[DONE]" not in b"".join(stream.write(1, event))
    for event in text("y")[:-1]:
        assert b"[DONE]" not in b"".join(stream.write(0, event))
    assert stream.write(0, DONE) == [b"data: [DONE]\n\n"]


def test_no_answer_at_all() -> None:
    body = completions.whole(Style(), STAMP, [Outcome()])
    assert body["choices"] == [
        {"text": "", "index": 0, "logprobs": None, "finish_reason": "length", "stop_reason": None}
    ]
