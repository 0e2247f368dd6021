"""Names of models on the hub, and the files that they stand for."""

from __future__ import annotations

import pytest

from finback.errors import RequestError
from finback.hub.names import HubName, choose, gguf_models, has_tag, is_safe, parse_name

GGUF = ["m-Q2_K.gguf", "m-Q4_K_M.gguf", "README.md"]
SPLIT = ["big/m-Q8_0-00001-of-00003.gguf", "big/m-Q8_0-00002-of-00003.gguf", "big/m-Q8_0-00003-of-00003.gguf"]
MODEL = ["config.json", "model-1.safetensors", "model.safetensors.index.json", "tokenizer.json"]
FOLDER = [*MODEL, "README.md", "x/y.json"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("org/name", HubName("org/name")),
        ("deepseek-ai/DeepSeek-V4-Flash", HubName("deepseek-ai/DeepSeek-V4-Flash")),
        ("org/name:Q4_K_M", HubName("org/name", tag="Q4_K_M")),
        ("org/name/sub/file.gguf", HubName("org/name", file="sub/file.gguf")),
        *[
            (text, None)
            for text in (
                "name", "/org/name", "./org/name", "../org/name", "org/../name", "org//name", "org/name/", "org/name:",
                "org/name/../x", "org/name/a//b", "org/name/a\\b", "org\\name", "a b/c", "org/model.gguf", "", "~/x",
                "org/na--me", "org/name:a/b", "org/" + "x" * 97, ".hidden/name", "dir/model.safetensors", "org/name\n",
            )
        ],
    ],
)  # fmt: skip
def test_what_is_a_name(text: str, expected: HubName | None) -> None:
    assert parse_name(text) == expected
    assert expected is None or str(expected) == text


def test_files_that_stay_inside() -> None:
    assert all(is_safe(file) for file in ("a", "a/b.c", "..a/b"))
    lead_out = ("", "/a", "a/", "../a", "a/../b", "a/.", "a\\b", "a\0")
    assert not any(is_safe(file) for file in (*lead_out, "a\x1b[2J", "a\n"))


def test_parts_belong_together() -> None:
    assert gguf_models([*SPLIT[::-1], *GGUF]) == {
        SPLIT[0]: SPLIT, "m-Q2_K.gguf": ["m-Q2_K.gguf"], "m-Q4_K_M.gguf": ["m-Q4_K_M.gguf"],
    }  # fmt: skip


def test_tags_are_words() -> None:
    assert has_tag("m-Q4_K_M.gguf", "q4_k_m")
    assert has_tag("Q8_0/m-Q8_0-00001-of-00003.gguf", "Q8_0")
    assert not has_tag("m-Q4_K_M.gguf", "Q4_K")
    assert not has_tag("m-IQ4_K.gguf", "Q4_K")
    assert not has_tag("m.Q4xK.gguf", "Q4.K")


def test_what_a_name_stands_for() -> None:
    name = HubName("org/name")
    assert choose(name, ["m-Q2_K.gguf", "README.md"]) == ["m-Q2_K.gguf"]
    assert choose(name, [*SPLIT, "README.md"]) == SPLIT
    assert choose(name, FOLDER) == MODEL
    assert choose(HubName("org/name", tag="q4_k_m"), GGUF) == ["m-Q4_K_M.gguf"]
    assert choose(HubName("org/name", file="big/m-Q8_0-00002-of-00003.gguf"), SPLIT) == SPLIT
    assert choose(HubName("org/name", file="README.md"), GGUF) == ["README.md"]
    assert choose(name, [*GGUF, *SPLIT], ["*Q2*", "*00002*"]) == ["m-Q2_K.gguf", SPLIT[1]]
    assert choose(name, [*SPLIT], ["big/*"]) == SPLIT
    assert choose(name, ["../evil.gguf", "/etc/x.gguf", "m.gguf"], ["*"]) == ["m.gguf"]


@pytest.mark.parametrize(
    ("name", "files", "patterns", "said"),
    [
        (HubName("org/name"), GGUF, [], r"holds 2 models; name one: m-Q2_K.gguf m-Q4_K_M.gguf"),
        (HubName("org/name"), [*GGUF[:1], *FOLDER], [], "holds 2 models"),
        (HubName("org/name"), ["README.md"], [], "holds no model: neither GGUF files nor config.json"),
        (HubName("org/name", tag="Q8_0"), GGUF, [], "has no GGUF file tagged Q8_0; name one: m-Q2_K.gguf"),
        (HubName("org/name", tag="K"), ["a-K.gguf", "b-K.gguf"], [], "has 2 GGUF models tagged K"),
        (HubName("org/name", file="x.gguf"), GGUF, [], "has no file 'x.gguf'"),
        (HubName("org/name"), GGUF, ["*.bin"], r"has no file like \*.bin"),
    ],
)
def test_nothing_is_guessed(name: HubName, files: list[str], patterns: list[str], said: str) -> None:
    with pytest.raises(RequestError, match=f"^org/name {said}"):
        choose(name, files, patterns)
