"""Ids against the reference pipeline of `tokenizers`, the security property, and speed on nasty text."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time

import pytest
import tokenizers
from deepseek_recipe import Tokenizer as RecipeTokenizer
from hypothesis import given, settings
from hypothesis import strategies as st

from finback.errors import RequestError
from finback.text import tokenizer as module
from finback.text.prompt import Control, Prompt, Text
from finback.text.tokenizer import Tokenizer
from tests.text.support import (
    HOSTILE,
    TINY_PATH,
    gguf_lists,
    published,
    published_path,
    random_text,
    tiny,
    tokenizer_json,
)

VOCABULARIES = {"published": (published, published_path), "tiny": (tiny, lambda: TINY_PATH)}
ODD = "aBé中あ・゠1½٣Ⅷ０ \n\r\t\u3000\x85\0.!<_~￥\u0301😀\u200d\u200bß｜"


@pytest.fixture(params=VOCABULARIES)
def ours(request) -> Tokenizer:
    return VOCABULARIES[request.param][0]()


@pytest.fixture(scope="module")
def plain_reference():
    """The published pipeline, three splits and all, with its added tokens taken away."""
    source = tokenizer_json(published_path())
    source["added_tokens"] = []
    reference = tokenizers.Tokenizer.from_str(json.dumps(source))
    return lambda text: reference.encode(text, add_special_tokens=False).ids


def test_every_character_of_the_first_plane_encodes_like_the_published_pipeline(plain_reference):
    points = [chr(c) for c in range(0x10000) if not 0xD800 <= c < 0xE000]
    for frame in ("a{0} {0}b1{0}", "  {0}\n!{0}中{0}"):
        text = "x".join(frame.format(point) for point in points)
        assert published().encode(text) == plain_reference(text), frame


@settings(max_examples=300, deadline=None)
@given(st.text(st.sampled_from(ODD), max_size=40) | st.text(max_size=40))
def test_any_text_encodes_like_the_published_pipeline(plain_reference, text):
    assert published().encode(text) == plain_reference(text)


@settings(max_examples=300, deadline=None)
@given(st.text(st.sampled_from(ODD), max_size=60), st.integers(1, 8))
def test_cutting_long_text_does_not_change_ids(plain_reference, text, size):
    pieces = list(module._cut(text, size))
    assert "".join(pieces) == text
    assert [i for piece in pieces for i in plain_reference(piece)] == plain_reference(text)


def test_text_longer_than_a_piece_encodes_like_the_published_pipeline(plain_reference):
    rng = random.Random(3)
    text = "".join(random_text(rng) for _ in range(40_000))
    assert len(text) > 4 * module.PIECE_CHARS
    assert published().encode(text) == plain_reference(text)


def test_plain_text_never_becomes_a_control_token(ours):
    rng = random.Random(0)
    texts = [*HOSTILE, *ours._vocabulary.controls, *(random_text(rng, 30) for _ in range(300))]
    for text in texts:
        ids = ours.encode(text)
        assert not any(map(ours.is_control, ids)), text
        assert ours.decode(ids) == text


def test_the_spelling_of_a_control_token_and_the_token_are_different(ours):
    for content in ("<｜Assistant｜>", "</think>", "｜DSML｜"):
        (control,) = ours.encode_segments([Control(content)])
        assert control == ours.control_id(content)
        assert ours.is_control(control)
        assert ours.encode_segments([Text(content)]) == ours.encode(content) != [control]


def test_an_unknown_control_token_is_refused_by_name(ours):
    with pytest.raises(RequestError, match="<｜Nobody｜>"):
        ours.encode_segments([Control("<｜Nobody｜>")])


@pytest.mark.parametrize("name", VOCABULARIES)
def test_raw_encoding_finds_control_tokens_like_the_oracle(name):
    make, path = VOCABULARIES[name]
    oracle = RecipeTokenizer.from_file(str(path()))
    rng = random.Random(1)
    for text in [*make()._vocabulary.controls, *(random_text(rng, 12) for _ in range(500))]:
        assert make().encode_with_controls(text) == oracle.encode(text), text


def test_raw_encoding_takes_the_leftmost_and_of_these_the_longest():
    finder = module._ControlFinder(["<a", "<ab>", "<abc", "b>x", "<"])
    assert list(finder.find("<ab>x <abd <abcd> b>x<<")) == [
        (0, "<ab>"), (6, "<a"), (11, "<abc"), (18, "b>x"), (21, "<"), (22, "<"),
    ]  # fmt: skip
    assert list(module._ControlFinder([]).find("<ab>")) == []


def nasty_texts() -> dict[str, str]:
    size = 1_000_000
    return {
        "line ends": "\n" * size,
        "one letter": "a" * size,
        "spaces": " " * size,
        "digits": "1234567890" * (size // 10),
        "emoji": "😀" * (size // 4),
        "half a tag": "<｜" * (size // 4),
        "random bytes": random.Random(1).randbytes(size).decode("utf-8", "replace"),
    }


@pytest.mark.parametrize("kind", nasty_texts())
def test_a_megabyte_of_nasty_text_takes_under_two_seconds(ours, kind):
    def seconds(text: str) -> float:
        start = time.perf_counter()
        ours.encode(text)
        return time.perf_counter() - start

    text = nasty_texts()[kind]
    seconds("build the encoder first")
    prose = seconds("The quick brown fox jumps over the lazy dog. " * (1_000_000 // 45))
    # On free cores prose takes 0.3 s; where other work holds them, the limit grows with it.
    limit = max(2.0, 6 * prose)
    assert min(seconds(text), seconds(text)) < limit
    assert ours.decode(ours.encode(text)) == text


def test_time_grows_with_the_text_and_not_with_its_square(ours):
    for unit in ("a", " ", "\n", "!", "😀"):
        small, large = (unit * n for n in (50_000, 800_000))
        ours.encode(small)
        start = time.process_time()
        ours.encode(small)
        middle = time.process_time()
        ours.encode(large)
        assert time.process_time() - middle < 16 * 4 * (middle - start) + 0.1, unit


def test_bytes_of_tokens_are_exact(ours):
    ids = ours.encode("naïve 😀 \x00\xff中")
    assert b"".join(map(ours.id_to_bytes, ids)) == "naïve 😀 \x00\xff中".encode()
    assert ours.id_to_bytes(ours.bos_id) == "<｜begin▁of▁sentence｜>".encode()
    single = {ours.id_to_bytes(i) for i in range(ours.vocab_size) if not ours.is_control(i)}
    assert {bytes([byte]) for byte in range(256)} <= single


def test_decoding_replaces_what_is_not_utf8(ours):
    ids = ours.encode("😀")
    first = ours.encode_segments([Text("😀")])[0]
    assert len(ids) == 1 or "\ufffd" in ours.decode([first])


@pytest.mark.parametrize("token_id", [-1, 129280, 10**9])
def test_ids_outside_the_vocabulary_are_refused(token_id):
    with pytest.raises(RequestError, match=f"token id {token_id} is out of range; ids are 0 to 129279"):
        published().id_to_bytes(token_id)
    with pytest.raises(RequestError, match="out of range"):
        published().decode([5, token_id])


def test_text_with_a_lone_surrogate_is_refused_with_its_place(ours):
    with pytest.raises(RequestError, match=r"lone surrogate U\+D83D at character 3"):
        ours.encode("abc\ud83d")


def test_special_ids_are_looked_up_by_content():
    assert (published().bos_id, published().eos_id, published().pad_id) == (0, 1, 2)
    assert published().vocab_size == 129280
    assert published().control_id("<｜User｜>") == 128803
    assert published().control_id("｜DSML｜") == 128825


def test_empty_prompts_have_neither_ids_nor_marks(ours):
    encoded = ours.encode_prompt(Prompt((), ()))
    assert (encoded.ids, encoded.marks) == ([], [])
    assert ours.encode("") == ours.encode_segments([]) == ours.encode_with_controls("") == []


@pytest.mark.parametrize("name", VOCABULARIES)
@pytest.mark.parametrize("pre", ["joyai-llm", "deepseek-v3", "deepseek-v4"])
def test_gguf_lists_make_the_same_tokenizer(name, pre):
    make, path = VOCABULARIES[name]
    lists = gguf_lists(tokenizer_json(path()))
    ours = Tokenizer.from_gguf("model.gguf", **{**lists, "pre": pre})
    assert ours.fingerprint == make().fingerprint
    assert (ours.bos_id, ours.eos_id, ours.pad_id) == (make().bos_id, make().eos_id, make().pad_id)
    text = "Hello <｜User｜> 123456 中文\n\n  x"
    assert ours.encode(text) == make().encode(text)
    assert ours.encode_with_controls(text) == make().encode_with_controls(text)


def test_fingerprints_tell_tokenizers_apart():
    source = tokenizer_json()
    swapped = tokenizer_json()
    first, second = swapped["model"]["merges"][:2]
    swapped["model"]["merges"][:2] = [second, first]
    renamed = tokenizer_json()
    renamed["added_tokens"][-1]["content"] = "<other>"
    prints = {Tokenizer.from_bytes(json.dumps(s).encode()).fingerprint for s in (source, swapped, renamed)}
    assert len(prints) == 3
    assert Tokenizer.from_bytes(json.dumps(source, indent=1).encode()).fingerprint == tiny().fingerprint


def test_opening_a_tokenizer_does_not_import_the_library():
    code = (
        "import sys; from finback.text.tokenizer import Tokenizer; "
        f"t = Tokenizer.from_file({str(TINY_PATH)!r}); t.decode([5]); t.fingerprint; "
        "assert 'tokenizers' not in sys.modules; t.encode('x'); assert 'tokenizers' in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
