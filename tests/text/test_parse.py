"""What a model wrote, taken apart: the same parts for any cut of the text, calls that are always JSON, talk that stays
talk."""

from __future__ import annotations

import json
import random

import pytest

from finback.text.messages import messages_from_json, tools_from_json
from finback.text.parse import (
    CallArguments,
    CallBegun,
    CallEnded,
    Content,
    Ended,
    OutputParser,
    Piece,
    Reasoning,
)
from finback.text.render import render
from finback.text.tags import LONGEST_TAG

D = "｜DSML｜"
TOOLS = ("look_up",)


def block(*invokes: str, v41: bool = False) -> str:
    name = " calls" if v41 else "tool_calls"
    return f"<{D}{name}>\n" + "".join(invokes) + f"</{D}{name}>"


def invoke(name: str, *parameters: str, v41: bool = False) -> str:
    gap = " " if v41 else ""
    return f'<{D}{gap}invoke name="{name}">\n' + "".join(parameters) + f"</{D}{gap}invoke>\n"


def parameter(name: str, value: str, string: str | None = "true", v41: bool = False) -> str:
    gap, kind = " " if v41 else "", f' string="{string}"' if string is not None else ""
    return f'<{D}{gap}parameter name="{name}"{kind}>{value}</{D}{gap}parameter>\n'


CALL4, CALL41 = (
    block(
        invoke("look_up", parameter("place", "Oslo", v41=v), parameter("days", "3", "false", v41=v), v41=v), v41=v
    )
    for v in (False, True)
)
WANTED = {"place": "Oslo", "days": 3}


class Whole:
    """All parts of an answer put together."""

    def __init__(self, pieces: list[Piece]) -> None:
        self.reasoning = "".join(p.text for p in pieces if isinstance(p, Reasoning))
        self.content = "".join(p.text for p in pieces if isinstance(p, Content))
        self.names = [p.name for p in pieces if isinstance(p, CallBegun)]
        self.arguments = ["" for _ in self.names]
        for piece in pieces:
            if isinstance(piece, CallArguments):
                self.arguments[piece.index] += piece.text
        self.ended = [p.index for p in pieces if isinstance(p, CallEnded)]

    @property
    def calls(self) -> list[object]:
        return [json.loads(text) for text in self.arguments]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Whole) and vars(self) == vars(other)

    def __repr__(self) -> str:
        return repr(vars(self))


def parsed(
    pieces: list[str] | str, *, thinking: bool = True, tools: tuple[str, ...] | None = TOOLS, ended: Ended = "stop"
) -> Whole:
    parser = OutputParser(thinking=thinking, tools=tools)
    found: list[Piece] = []
    for piece in [pieces] if isinstance(pieces, str) else pieces:
        found += parser.feed(piece)
    return Whole(found + parser.finish(ended))


def cuts(text: str, seed: int = 0) -> list[list[str]]:
    dice = random.Random(seed)
    ways = [[text[:i], text[i:]] for i in range(len(text) + 1)]
    ways += [[text[i : i + n] for i in range(0, len(text), n)] for n in (1, 2, 7)]
    for _ in range(5):
        at = sorted(dice.randrange(len(text) + 1) for _ in range(6))
        ways.append([text[a:b] for a, b in zip([0, *at], [*at, len(text)], strict=True)])
    return ways


@pytest.mark.parametrize("call", [CALL4, CALL41])
def test_any_cut_gives_the_same(call: str) -> None:
    """Case C01."""
    text = "Reason</think>Sure.\n\n" + call
    for pieces in cuts(text):
        parser = OutputParser(thinking=True, tools=TOOLS)
        found = [part for piece in pieces for part in parser.feed(piece)] + parser.finish("stop")
        whole = Whole(found)
        assert (whole.reasoning, whole.content, whole.names, whole.calls) == ("Reason", "Sure.", ["look_up"], [WANTED])
        assert whole.ended == [0]
        for part in found:
            assert "DSML" not in repr(part)
            assert "｜" not in repr(part)


def test_talking_about_the_markup_is_not_a_call() -> None:
    """Case C03."""
    mention = f"The format is `<{D}tool_calls>` followed by invokes."
    for text in (mention + "</think>Done.", mention + "\n" + mention + "</think>Done."):
        for pieces in cuts(text):
            whole = parsed(pieces)
            assert (whole.content, whole.names) == ("Done.", [])
            assert whole.reasoning == text.partition("</think>")[0]
    quoted = "Like this:\n" + block(invoke("example", parameter("a", "b"))) + "\nand so on.</think>Done."
    for pieces in cuts(quoted):
        whole = parsed(pieces)
        assert (whole.content, whole.names) == ("Done.", [])
        assert whole.reasoning == quoted.partition("</think>")[0]
    declared = "Like this:\n" + CALL4 + "\nand so on.</think>Done."
    for pieces in cuts(declared):
        assert parsed(pieces).names == []
        assert parsed(pieces).content == "Done."
    for pieces in cuts(f"Write <{D}tool_calls> or <{D}invoke> or <{D}parameter name> or <{D}, then text."):
        whole = parsed(pieces, thinking=False)
        assert whole.content == "".join(pieces)


@pytest.mark.parametrize("cut", [10, 60, 120, 200, 400])
def test_cut_by_the_limit(cut: int) -> None:
    """Case C05: no call is whole, and what was said of one is the beginning of JSON."""
    text = block(invoke("look_up", parameter("place", "Oslo"), parameter("note", "x" * 400)))[:cut]
    for pieces in cuts(text):
        parser = OutputParser(thinking=False, tools=TOOLS)
        found = [part for piece in pieces for part in parser.feed(piece)] + parser.finish("length")
        assert parser.completed == 0
        assert not any(isinstance(part, CallEnded) for part in found)
        whole = Whole(found)
        if whole.names and whole.arguments[0]:
            assert '{"place":"Oslo","note":"'.startswith(whole.arguments[0][:24])


def test_a_call_that_the_model_left_open_is_closed() -> None:
    text = block(invoke("look_up", parameter("place", "Oslo"), parameter("days", "3", "false")))
    for length in range(text.index("Oslo") + 4, len(text)):
        whole = parsed(text[:length], thinking=False)
        assert whole.ended == [0], text[:length]
        assert whole.calls[0]["place"].startswith("Oslo")  # type: ignore[index]


def test_without_tools_blocks_are_taken_out() -> None:
    """Case C07."""
    for pieces in cuts("Here." + CALL4):
        parser = OutputParser(thinking=False, tools=None)
        found = [part for piece in pieces for part in parser.feed(piece)] + parser.finish("stop")
        assert found
        assert Whole(found).content == "Here."
        assert all(isinstance(part, Content) for part in found)
        assert parser.dropped == 1


def test_twelve_calls() -> None:
    """Case C09: each is whole when its closing tag has come."""
    invokes = [invoke("look_up", parameter("place", str(i))) for i in range(12)]
    parser, found = OutputParser(thinking=False, tools=TOOLS), []
    found += parser.feed(f"<{D}tool_calls>\n")
    for i, text in enumerate(invokes):
        found += parser.feed(text)
        assert parser.completed == i + 1
    whole = Whole(found + parser.feed(f"</{D}tool_calls>") + parser.finish("stop"))
    assert whole.ended == list(range(12))
    assert whole.calls == [{"place": str(i)} for i in range(12)]


def test_a_lone_angle_bracket() -> None:
    """Case C11: what was handed out is only ever added to."""
    pieces = ["run get Interface ", "<", "interface", "> now", "</", "thin", "g>", "</thi", "nk>", "ok"]
    whole = parsed(pieces)
    assert (whole.reasoning, whole.content) == ("run get Interface <interface> now</thing>", "ok")
    for pieces in cuts("a < b </ c <th </think>x <y> </think> z <"):
        whole = parsed(pieces)
        assert (whole.reasoning, whole.content) == ("a < b </ c <th ", "x <y>  z <")


def test_a_closing_tag_after_the_call() -> None:
    """Case C13."""
    for pieces in cuts("Let me check.\n\n" + CALL4 + "\n</think>"):
        whole = parsed(pieces)
        assert (whole.reasoning, whole.content, whole.calls) == ("Let me check.", "", [WANTED])
    for pieces in cuts("Let me check.\n\n" + CALL41):
        assert parsed(pieces).calls == [WANTED]


def test_odd_calls_are_calls_and_always_json() -> None:
    """Case C19, and what is seen in the wild."""
    table: list[tuple[str, str, object]] = [
        (block(invoke("Look_Up", parameter("place", "x"))), "Look_Up", {"place": "x"}),
        (block(invoke("delete_all")), "delete_all", {}),
        (block(invoke("look_up", parameter("place", "a"), parameter("place", "b"))), "look_up", {"place": "b"}),
        (block(invoke("look_up", parameter("days", "not json", "false"))), "look_up", {"days": "not json"}),
        (block(invoke("look_up", parameter("days", " 3 ", "false"))), "look_up", {"days": 3}),
        (block(invoke("look_up", parameter("on", "true", None))), "look_up", {"on": True}),
        (block(invoke("look_up", '<parameter name="on">true</parameter>\n')), "look_up", {"on": True}),
        (block(invoke("look_up", f'<parameter name="on">true</{D}parameter>\n')), "look_up", {"on": True}),
        (block(invoke("look_up", '{"place": "Oslo"}\n')), "look_up", {"place": "Oslo"}),
        (invoke("look_up", parameter("place", "no outer tag")), "look_up", {"place": "no outer tag"}),
        (
            block(
                f'<{D}invoke   name="look_up"  >\n<{D}parameter  name="place"   string="true" >x</{D}parameter>'
                f"</{D}invoke>"
            ),
            "look_up",
            {"place": "x"},
        ),
        (
            block(invoke("look_up", parameter("note", 'a "quote"\n\\ </parameter <x> <｜DSML｜invoke name="y"> é 🦊'))),
            "look_up",
            {"note": 'a "quote"\n\\ </parameter <x> <｜DSML｜invoke name="y"> é 🦊'},
        ),
        (block(invoke("look_up", parameter("k", '{"a": [1, null]}', "false"))), "look_up", {"k": {"a": [1, None]}}),
    ]  # fmt: skip
    for text, name, arguments in table:
        for pieces in cuts(text + "\nand more that nobody reads"):
            whole = parsed(pieces, thinking=False)
            assert (whole.names, whole.calls, whole.content) == ([name], [arguments], ""), text


def test_any_text_gives_the_same_for_any_cut() -> None:
    """Random pieces of markup: the same parts, and JSON, however it is cut."""
    dice = random.Random(4)
    words = [
        "a", " ", "\n", "<", ">", "</think>", f"<{D}", f"</{D}", f"<{D}tool_calls>", f"</{D}tool_calls>",
        f"<{D} calls>",
        f'<{D}invoke name="look_up">', f"</{D}invoke>", f'<{D}parameter name="p" string="true">', f"</{D}parameter>",
        f'<{D}parameter name="q" string="false">', "3", '"', "{", "｜", "DSML",
    ]  # fmt: skip
    for _ in range(400):
        text = "".join(dice.choice(words) for _ in range(dice.randrange(1, 14)))
        thinking, ended = dice.random() < 0.5, dice.choice(["stop", "length"])
        tools = dice.choice([TOOLS, None])
        whole = parsed(text, thinking=thinking, tools=tools, ended=ended)  # type: ignore[arg-type]
        for n in (1, 2, 3):
            pieces = [text[i : i + n] for i in range(0, len(text), n)]
            assert parsed(pieces, thinking=thinking, tools=tools, ended=ended) == whole, text  # type: ignore[arg-type]
        for index in whole.ended:
            assert isinstance(json.loads(whole.arguments[index]), dict)


def test_what_is_rendered_is_parsed_again() -> None:
    """An assistant's turn as the prompt format writes it comes back as it was."""
    dice = random.Random(7)
    texts = ["Sure.", "Two\n\nlines", "a < b", "naïve 🦊", "", "`code`"]
    values: list[object] = ["Oslo", 'say "hi"\n</x>', 3, -1.5, True, None, [1, {"a": []}], {"k": "v"}, ""]
    for _ in range(200):
        calls = [
            {f"p{i}": dice.choice(values) for i in range(dice.randrange(0, 4))} for _ in range(dice.randrange(0, 4))
        ]
        reasoning, content = dice.choice(texts), dice.choice(texts)
        message = {
            "role": "assistant",
            "reasoning_content": reasoning,
            "content": content,
            "tool_calls": [
                {
                    "id": f"call_{i:02}",
                    "type": "function",
                    "function": {"name": "look_up", "arguments": json.dumps(call)},
                }
                for i, call in enumerate(calls)
            ],
        }
        messages = [{"role": "user", "content": "x"}, message]
        tools = [{"type": "function", "function": {"name": "look_up", "parameters": {"type": "object"}}}]
        prompt = render(messages_from_json(messages, thinking=True), tools=tools_from_json(tools), thinking=True)
        said = prompt.text.split("<｜Assistant｜><think>")[1].split("<｜end▁of▁sentence｜>")[0]
        whole = parsed([said[i : i + 5] for i in range(0, len(said), 5)])
        assert (whole.reasoning, whole.calls) == (reasoning, calls), said
        assert whole.content == content or (calls and whole.content == content.rstrip())
        assert whole.ended == list(range(len(calls)))


# ---- tags


TAGS = [
    f"<{D}tool_calls>", f"<{D} calls >", f"<{D}\r\ninvoke\tname = \"look_up\"\n>", f"</{D}  parameter \n>",
    f'<{D}parameter string="true"  name="a>b<c">', f"</{D}invoke>", "</think>",
]  # fmt: skip


@pytest.mark.parametrize("tag", TAGS)
def test_every_beginning_of_a_tag_is_held_back(tag: str) -> None:
    """Spaces, line ends and ">" in attributes included; what is no tag in the end is handed out then."""
    for n in range(1, len(tag)):
        parser = OutputParser(thinking=True, tools=TOOLS)
        assert Whole(parser.feed("text" + tag[:n])).reasoning == "text"
        assert Whole(parser.feed("!") + parser.finish("stop")).reasoning == tag[:n] + "!"


def test_a_tag_has_an_end() -> None:
    """What is longer than LONGEST_TAG is text in one piece as in many."""
    for size in range(LONGEST_TAG - 3, LONGEST_TAG + 3):
        tag = f'<{D}invoke name="look_up"'
        tag += " " * (size - len(tag) - 1) + ">"
        assert len(tag) == size
        for pieces in ([tag + f"</{D}invoke>"], list(tag + f"</{D}invoke>")):
            assert len(parsed(pieces, thinking=False).names) == (size <= LONGEST_TAG)
    held = f'<{D}invoke name="' + "x" * LONGEST_TAG
    parser = OutputParser(thinking=False, tools=TOOLS)
    assert Whole(parser.feed(held)).content == held


def test_a_closing_tag_closes_what_is_open_inside() -> None:
    """A parameter is not lost because its own tag is missing, cut or without its token."""
    start = f'<{D}tool_calls>\n<{D}invoke name="look_up">\n<{D}parameter name="place" string="true">ls 2>&1'
    two = invoke("look_up", parameter("place", "x"))
    for end in (
        f"</{D}parameter>\n</{D}invoke>\n", f"</{D}invoke>\n", f"</{D}parameter\n</{D}invoke>\n",
        f"</{D}parameter</{D}invoke", f"</{D} parameter >", f"</parameter>\n</{D}invoke>\n", f"</{D}parameter\n",
    ):  # fmt: skip
        for pieces in cuts(start + end + two + f"</{D}tool_calls>"):
            whole = parsed(pieces, thinking=False)
            assert whole.calls == [{"place": "ls 2>&1"}, {"place": "x"}], end
    for end in ("", f"</{D}", f"</{D}param", f"</{D}parameter", f"</{D}invoke", f"</{D}tool_calls>", "</parameter>\n"):
        for pieces in cuts(start + end):
            assert parsed(pieces, thinking=False).calls == [{"place": "ls 2>&1"}], end


def test_a_string_is_raw() -> None:
    """It may hold all but a closing tag: tags without the token, opening tags, ends of thinking, halves."""
    for text in (
        "<a><parameter name='x'>1</parameter>\n</invoke></a>", f'<{D}tool_calls>\n<{D}invoke name="y">\n', "</think>",
        f"</{D}x>", f"<{D}", "</parameter> </parameter>", "a <", "</", f"<{D} parameter name=\"q\" string=\"true\">",
    ):  # fmt: skip
        for v41 in (False, True):
            written = block(invoke("look_up", parameter("place", text, v41=v41), v41=v41), v41=v41)
            for pieces in cuts(written):
                assert parsed(pieces, thinking=False).calls == [{"place": text}]


# ---- arguments


@pytest.mark.parametrize(
    "text",
    ["NaN", "-Infinity", "1e999", "1" * 400, "1" * 5000, '"\\ud800"', "[" * 200 + "]" * 200, "[" * 200_000, "{'a': 1}",
     "1,2", "", "01"],
)  # fmt: skip
def test_what_not_every_reader_takes_is_a_string(text: str) -> None:
    whole = parsed(block(invoke("look_up", parameter("days", text, "false"))), thinking=False)
    assert whole.arguments == [json.dumps({"days": text}, separators=(",", ":"))]
    body = parsed(block(invoke("look_up", f'{{"days": {text}}}')), thinking=False)
    assert body.arguments == ["{}"]


@pytest.mark.parametrize("text", ["1.10", "1E5", str(2**70), '"\\u00e9"', '{"a":  [1,\n2]}', "-0", "null"])
def test_json_is_passed_on_as_written(text: str) -> None:
    whole = parsed(block(invoke("look_up", parameter("days", f" {text}\n", "false"))), thinking=False)
    assert whole.arguments == [f'{{"days":{text}}}']
    body = parsed(block(invoke("look_up", f'\n{{"days": {text}}}\n')), thinking=False)
    assert body.arguments == [f'{{"days": {text}}}']


def test_an_invoke_that_another_replaces_is_no_call() -> None:
    twice = f'<{D}tool_calls>\n<{D}invoke name="delete_all">\n' + CALL4.partition("\n")[2]
    for pieces in cuts(twice):
        whole = parsed(pieces, thinking=False)
        assert (whole.names, whole.calls) == (["look_up"], [WANTED])
    left_open = block(f'<{D}invoke name="look_up">\n' + parameter("place", "x") + invoke("look_up"))
    for pieces in cuts(left_open):
        assert parsed(pieces, thinking=False).calls == [{"place": "x"}, {}]


# ---- text around calls


def test_only_the_blank_line_before_a_block_goes() -> None:
    for content in ("Sure.", "Sure. ", "Sure.\n", "Sure.\n\n", "\n\nSure.\t"):
        for pieces in cuts(f"{content}</think>{content}\n\n{CALL4}"):
            assert (parsed(pieces).reasoning, parsed(pieces).content) == (content, content)
        for pieces in cuts(f"{content}\n\n{CALL4}\n</think>"):
            assert (parsed(pieces).reasoning, parsed(pieces).content) == (content, "")
    for blank in ("", "\n", "\n\n", " \n\n\n"):
        assert parsed(f"R</think>{blank}{CALL4}").content == ""


def test_text_after_a_block_without_calls_stays() -> None:
    for pieces in cuts(f"Here.\n\n{block()}\nThere."):
        assert parsed(pieces, thinking=False).content == "Here.\n\n\nThere."
    assert parsed(f"Here.\n\n{block()}", thinking=False).content == "Here."
    for pieces in cuts(f"Here.\n\n{block()}\n{CALL41}"):
        whole = parsed(pieces, thinking=False)
        assert (whole.content.strip(), whole.calls) == ("Here.", [WANTED])
    for pieces in cuts(f"Here.\n\n{CALL4}\nThere.{CALL41} End."):
        parser = OutputParser(thinking=False, tools=None)
        found = [part for piece in pieces for part in parser.feed(piece)] + parser.finish("stop")
        assert (Whole(found).content, parser.dropped) == ("Here.\n\n\nThere. End.", 2)


@pytest.mark.parametrize(
    "talk",
    [
        f'Write <{D}invoke name="look_up"> first.',
        f'A `<{D}invoke name="look_up">`, then more.',
        f'<{D}tool_calls>\n<{D}invoke name="$TOOL_NAME">\n</{D}invoke>\n</{D}tool_calls>',
        f"<{D}tool_calls>\n<{D}tool_calls> twice",
        f"<{D}tool_calls>\n<{D}Invoke name='look_up'>\n",
        CALL4.replace("｜", "|"),
        f"</{D}invoke> and </{D}tool_calls> close it",
        f'<{D}parameter name="place" string="true">x</{D}parameter>',
        f"It ends with <{D}tool_calls>",
        f"It is <{D}",
    ],
)
def test_talk_in_content_stays(talk: str) -> None:
    for tools in (TOOLS, None):
        for pieces in cuts(talk):
            whole = parsed(pieces, thinking=False, tools=tools)
            assert (whole.content, whole.names) == (talk, [])


def test_a_cut_tag_is_not_shown() -> None:
    """The limit comes in the middle of the opening of a block."""
    opening = f'<{D}tool_calls>\n<{D}invoke name="look_up">\n'
    for n in range(len(f"<{D}"), len(opening)):
        for pieces in cuts("Sure.\n\n" + opening[:n]):
            whole = parsed(pieces, thinking=False, ended="length")
            assert (whole.content, whole.names) == ("Sure.", [])


# ---- blocks in thinking


@pytest.mark.parametrize(
    ("text", "reasoning"),
    [
        (f"Like\n{CALL4[:95]}</think>Done.", f"Like\n{CALL4[:95]}"),  # cut in a value
        (f"Like\n{CALL4[:150]}</think>Done.", f"Like\n{CALL4[:150]}"),  # behind one
        (f"Like\n{CALL4[:60]}</think>Done.", f"Like\n{CALL4[:60]}"),  # before a parameter
        (f"Like\n{CALL4}\n</think>Done.", f"Like\n{CALL4}\n"),
        (f"Like\n{CALL4}\n{CALL41}</think>Done.", f"Like\n{CALL4}\n{CALL41}"),
        (f'<{D}invoke name="look_up"> is it.</think>Done.', f'<{D}invoke name="look_up"> is it.'),
        (f"Like\n{block()}</think>Done.", f"Like\n{block()}"),
    ],
)
def test_talk_in_thinking_ends_with_it(text: str, reasoning: str) -> None:
    """However a block is quoted, `</think>` ends the reasoning and the answer is not lost."""
    for pieces in cuts(text):
        whole = parsed(pieces)
        assert (whole.reasoning, whole.content, whole.names) == (reasoning, "Done.", [])
    for pieces in cuts(text + "\n\n" + CALL41):
        whole = parsed(pieces)
        assert (whole.reasoning, whole.content, whole.calls) == (reasoning, "Done.", [WANTED])


def test_the_last_block_in_thinking_counts() -> None:
    """Even where one that was cut would go on to it."""
    in_value = CALL4[: CALL4.index("Oslo") + 2]
    left_open = CALL4.removesuffix(f"\n</{D}tool_calls>")
    for before in (
        f"Like\n{CALL4}\nso: ", f"Like\n{in_value}, so: ", f'<{D}invoke name="look_up">, so: ', f"Like\n{left_open}",
        left_open.rpartition("\n</")[0], f"Like\n{in_value} </think", f"Like\n{CALL4}, and\n{CALL4}",
    ):  # fmt: skip
        for pieces in cuts(before + CALL41):
            whole = parsed(pieces)
            assert (whole.reasoning, whole.content, whole.calls) == (before, "", [WANTED])


@pytest.mark.parametrize("ended", ["stop", "length"])
def test_a_block_in_thinking_without_a_whole_call_is_text(ended: Ended) -> None:
    whole_at = CALL4.index(f"</{D}invoke>") + len(f"</{D}invoke>")
    for n in range(len(CALL4) + 1):
        whole = parsed("Like\n" + CALL4[:n], ended=ended)
        if n < whole_at:
            assert (whole.reasoning, whole.content, whole.names) == ("Like\n" + CALL4[:n], "", [])
        else:
            assert (whole.reasoning, whole.content, whole.calls) == ("Like", "", [WANTED])


def test_without_tools_blocks_in_thinking_stay() -> None:
    for pieces in cuts(f"Like\n{CALL4}</think>Done."):
        whole = parsed(pieces, tools=None)
        assert (whole.reasoning, whole.content) == (f"Like\n{CALL4}", "Done.")


def test_a_block_in_thinking_calls_declared_tools_only() -> None:
    for quoted in (block(invoke("example")), block(invoke("look_up", parameter("place", "x")), invoke("example"))):
        for pieces in cuts("Like\n" + quoted):
            whole = parsed(pieces)
            assert (whole.reasoning, whole.content, whole.names) == ("Like\n" + quoted, "", [])
