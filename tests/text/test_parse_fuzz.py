"""The parser on anything: fragments of markup, whole, cut, bent and repeated, in any order and any cut."""

from __future__ import annotations

import json
import random
import re

from hypothesis import given, settings
from hypothesis import strategies as st

from finback.text import parse, tags
from finback.text.parse import CallArguments, CallBegun, CallEnded, Content, Ended, OutputParser, Piece, Reasoning
from tests.text.test_parse import CALL4, CALL41, TOOLS, D, Whole, block, invoke, parameter, parsed

WHOLE_TAGS = [
    f"<{D}tool_calls>", f"</{D}tool_calls>", f"<{D} calls>", f"</{D} calls>",
    f'<{D}invoke name="look_up">', f'<{D} invoke name="look_up">', f'<{D}invoke name="delete_all">',
    f'<{D}invoke name="$TOOL_NAME">', f"</{D}invoke>", f"</{D} invoke>",
    f'<{D}parameter name="p" string="true">', f'<{D} parameter name="q" string="false">', f'<{D}parameter name="r">',
    f"</{D}parameter>", f"</{D} parameter>", "</think>",
    '<parameter name="bare">', '<parameter name="bare" string="true">', "</parameter>",
]  # fmt: skip
BENT_TAGS = [
    f"<{D}  tool_calls >", f'<{D}invoke\n name = "look_up" >', f'<{D}parameter\tstring="true"  name="p">',
    f"</{D}parameter\n>", f"</{D}parameter", f"</{D}invoke", f"<{D}Tool_Calls>", f'<{D}Invoke name="look_up">',
    "<|DSML|tool_calls>", '<|DSML|invoke name="look_up">', f"<{D}invoke>", f"<{D}parameter string=\"true\">",
    f"<{D}invoke name='look_up'>", f'<{D}invoke name="a>b">', f'<{D}parameter name="a>b" string="true">',
    f'<{D}invoke name="', f"< {D}tool_calls>", f"<{D}tool_calls", f"<{D}<{D}", f"<{D}{D}", f"</{D}foo>", "<think>",
    "</Think>", "</ think>", "</think", f'<{D}parameter name="{"x" * 300}',
]  # fmt: skip
WORDS = [
    "ls 2>&1", "not json", "3", "NaN", "1e999", '"\\ud800"', "[1, 2]", '{"a": 1}', "{", '"', "\\", "a < b", "`",
    "```\n", "\n", "\n\n", " ", "\t", "é", "🦊", "｜", "DSML", "<", ">", "</", "<div>", "</p>", "</th>", "tail",
]  # fmt: skip
CALLS = [CALL4, CALL41, block(invoke("look_up")), block(), invoke("look_up", parameter("p", "v")), block(invoke("x"))]
SPLIT_TAGS = st.sampled_from(WHOLE_TAGS).flatmap(
    lambda tag: st.integers(0, len(tag)).map(lambda n: (tag[:n], tag[n:]))
)
CUT_TAGS = SPLIT_TAGS.map(lambda split: split[0])
FRAGMENTS = st.sampled_from(WHOLE_TAGS) | st.sampled_from(BENT_TAGS) | st.sampled_from(WORDS) | CUT_TAGS
TEXTS = st.lists(FRAGMENTS | st.sampled_from(CALLS), max_size=14).map("".join)
PARSER = st.booleans(), st.sampled_from([TOOLS, None]), st.sampled_from(["stop", "length"])

def strict_json(text: str) -> object:
    """As a reader without Python's extras has it: also no half characters."""
    text.encode()
    return json.loads(text, parse_constant=lambda word: 1 / 0)


def check_order(pieces: list[Piece], tools: tuple[str, ...] | None) -> None:
    """Reasoning, then content, then one call after the other: what was handed out is only ever added to."""
    stage, calls, is_open = 0, 0, False
    for piece in pieces:
        if isinstance(piece, Reasoning | Content):
            assert piece.text
            now = 1 if isinstance(piece, Content) else 0
        else:
            assert tools is not None
            now = 2
        assert now >= stage
        stage = now
        if isinstance(piece, CallBegun):
            assert (piece.index, is_open) == (calls, False)
            calls, is_open = calls + 1, True
        elif isinstance(piece, CallArguments | CallEnded):
            assert (piece.index, is_open) == (calls - 1, True)
            is_open = not isinstance(piece, CallEnded)


def visible(whole: Whole) -> list[str]:
    return [whole.reasoning, whole.content, *whole.arguments]


@settings(max_examples=500, deadline=None, derandomize=True)
@given(TEXTS, *PARSER, st.randoms(use_true_random=False))
def test_anything(text: str, thinking: bool, tools: tuple[str, ...] | None, ended: Ended, dice: random.Random) -> None:
    """The same for any cut, in order, only ever added to, never half a tag, never an exception, always JSON."""
    whole = parsed(text, thinking=thinking, tools=tools, ended=ended)
    parser, found = OutputParser(thinking=thinking, tools=tools), []
    for char in text:
        found += parser.feed(char)
    streamed = Whole(found)
    found += parser.finish(ended)
    check_order(found, tools)
    assert Whole(found) == whole
    for early, late in zip(visible(streamed), visible(whole), strict=False):
        assert late.startswith(early)
    at = sorted(dice.randrange(len(text) + 1) for _ in range(dice.randrange(8)))
    pieces = [text[a:b] for a, b in zip([0, *at], [*at, len(text)], strict=True)]
    assert parsed(pieces, thinking=thinking, tools=tools, ended=ended) == whole
    for index in whole.ended:
        assert isinstance(strict_json(whole.arguments[index]), dict)
    assert parser.completed == len(whole.ended)
    if ended == "stop":
        assert len(whole.ended) == len(whole.names)


@settings(max_examples=400, deadline=None, derandomize=True)
@given(TEXTS, SPLIT_TAGS, TEXTS, *PARSER)
def test_what_follows_takes_nothing_back(
    text: str,
    split: tuple[str, str],
    more: str,
    thinking: bool,
    tools: tuple[str, ...] | None,
    ended: Ended,
) -> None:
    """What a text that ends in half a tag hands out is the beginning of what it says whole, or with anything else."""
    parser = OutputParser(thinking=thinking, tools=tools)
    early = visible(Whole(parser.feed(text + split[0])))
    for rest in (split[1] + more, more):
        late = visible(parsed(text + split[0] + rest, thinking=thinking, tools=tools, ended=ended))
        assert len(early) <= len(late)
        for before, after in zip(early, late, strict=False):
            assert after.startswith(before)


@settings(max_examples=300, deadline=None, derandomize=True)
@given(TEXTS, st.booleans())
def test_text_is_never_lost(text: str, thinking: bool) -> None:
    """Without a call all of a text is there but `</think>` and blocks without calls; with one, all before it."""
    whole = parsed(text, thinking=thinking)
    said = whole.reasoning + whole.content
    if whole.names:
        before = re.split(rf"<{D}\s*(?:tool_calls|calls|invoke)[^>]*>", text)[0]
        assert plain(said).startswith(plain(before))
    else:
        assert plain(said) == plain(text)


def plain(text: str) -> str:
    """Without what may go: blanks, ends of thinking, and what an empty block is made of."""
    return re.sub(rf"\s|</think>|</?{D}\s*(?:tool_)?calls\s*>?", "", text)


def work(monkeypatch, text: str, *, thinking: bool = False, size: int = 4, tools=TOOLS) -> int:
    """Characters that the parser looks at, fed in pieces of a token's size: what each step has before it."""
    looked = 0

    class Counting(parse.Input):
        def add(self, more: str) -> None:
            nonlocal looked
            super().add(more)
            looked += len(self._text)

    real = tags.tag_at

    def counting(text: str, at: int, forms: tuple[tags.TagForm, ...]) -> object:
        nonlocal looked
        looked += min(len(text) - at, tags.LONGEST_TAG) if text[at + 1 : at + 2] in ("/", "｜") else 1
        return real(text, at, forms)

    with monkeypatch.context() as patch:
        patch.setattr(parse, "Input", Counting)
        patch.setattr(tags, "tag_at", counting)
        parser = OutputParser(thinking=thinking, tools=tools)
        for at in range(0, len(text), size):
            parser.feed(text[at : at + size])
        parser.finish("stop")
    return looked


LONG = {
    "prose": lambda n: "word " * n,
    "brackets": lambda n: "a < b " * n,
    "html": lambda n: "<div></div>" * n,
    "blanks": lambda n: "a" + "\n" * 5 * n,
    "mentions": lambda n: f"<{D}tool_calls> and " * n,
    "invokes": lambda n: f'<{D}invoke name="look_up">' * n,
    "openings": lambda n: f"<{D}tool_calls>" * n,
    "empty blocks": lambda n: block() * n,
    "cut tags": lambda n: f'<{D}invoke name="' * n,
    "string": lambda n: block(invoke("look_up", parameter("place", "words " * n))),
    "string of brackets": lambda n: block(invoke("look_up", parameter("place", "a<b</p>" * n))),
    "string of tags": lambda n: block(invoke("look_up", parameter("place", f"<{D}tool_calls>" * n))),
    "json": lambda n: block(invoke("look_up", parameter("place", json.dumps(["x < y"] * n), "false"))),
    "body": lambda n: block(invoke("look_up", json.dumps({"place": ["x < y"] * n}))),
    "calls": lambda n: block(*[invoke("look_up", parameter("place", "x"))] * n),
    "blocks of another": lambda n: (block(invoke("look_up", parameter("place", "x"))) + "so\n") * n,
}  # fmt: skip


def test_the_work_is_linear(monkeypatch) -> None:
    """Twice the text is twice the work, whatever it is, and a piece is not looked at often."""
    for name, make in LONG.items():
        for thinking in (False, True):
            short, long = make(400), make(800)
            a, b = (work(monkeypatch, text, thinking=thinking) for text in (short, long))
            assert b / a < 1.1 * len(long) / len(short), (name, thinking)
            if name in ("prose", "brackets", "html", "string", "string of brackets", "json"):
                assert b < 4 * len(long), (name, thinking)


def test_one_great_piece_is_linear_too(monkeypatch) -> None:
    for name, make in LONG.items():
        for thinking in (False, True):
            short, long = make(400), make(800)
            a, b = (work(monkeypatch, text, thinking=thinking, size=1 << 30) for text in (short, long))
            assert b / a < 1.25 * len(long) / len(short), (name, thinking)
