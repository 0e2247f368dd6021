"""Bad tokenizer files: each is refused with a message that names the file and the field."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from finback.errors import MESSAGE_LIMIT, ModelFileError, UnsupportedModelError
from finback.text import vocabulary
from finback.text.tokenizer import Tokenizer
from tests.text.support import gguf_lists, tokenizer_json


def refused(source, match: str, error: type[ModelFileError] = ModelFileError) -> None:
    data = source if isinstance(source, bytes) else json.dumps(source).encode()
    with pytest.raises(error, match=match) as caught:
        Tokenizer.from_bytes(data, "some/tokenizer.json")
    assert str(caught.value).startswith("some/tokenizer.json: ")
    assert len(str(caught.value)) <= MESSAGE_LIMIT


@pytest.mark.parametrize(
    ("data", "match"),
    [
        (b"", "is not a tokenizer.json"),
        (b"{", "is not a tokenizer.json"),
        (b"GGUF\x03\x00\x00\x00", "is not a tokenizer.json"),
        (b"\xff\xfe{}", "is not a tokenizer.json"),
        (b"[" * 100_000, "is not a tokenizer.json"),
        (b'{"model":' * 100_000, "is not a tokenizer.json"),
        (b"[]", "the file is"),
        (b"null", "the file is None"),
        (b"{}", "model is None"),
        (b'{"model": 5}', "model is 5"),
        (b'{"model": {}, "model": {}}', "the key 'model' appears twice"),
        (b"[" + b"0," * (2 << 20) + b"0]", "values, too many"),
        (b" " * ((32 << 20) + 1), "larger than 32 MiB"),
    ],
)
def test_what_is_no_tokenizer_file_at_all(data, match):
    refused(data, match)


@pytest.mark.parametrize("kind", ["WordPiece", "Unigram", "WordLevel", None, 7])
def test_other_models_are_unsupported(kind):
    source = tokenizer_json()
    source["model"]["type"] = kind
    refused(source, "model.type is", UnsupportedModelError)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("dropout", 0.1), ("unk_token", "<unk>"), ("continuing_subword_prefix", "##"),
        ("end_of_word_suffix", "</w>"), ("fuse_unk", True), ("byte_fallback", True), ("ignore_merges", True),
    ],
)  # fmt: skip
def test_variants_of_bpe_are_unsupported(field, value):
    source = tokenizer_json()
    source["model"][field] = value
    refused(source, f"model.{field} is", UnsupportedModelError)


def test_other_pipelines_are_unsupported():
    for field, value in (
        ("normalizer", {"type": "NFC"}),
        ("pre_tokenizer", None),
        ("pre_tokenizer", {"type": "Metaspace"}),
        ("decoder", None),
        ("decoder", {"type": "WordPiece"}),
    ):
        refused({**tokenizer_json(), field: value}, f"{field} is", UnsupportedModelError)
    source = tokenizer_json()
    source["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = r"(\p{N}+)+$"
    refused(source, "pre_tokenizer is .*knows DeepSeek.s three splits", UnsupportedModelError)


@pytest.mark.parametrize("value", [-1, 1 << 40, 5000, 1.5, "7", None, True, [0]])
def test_ids_out_of_range_are_refused(value):
    source = tokenizer_json()
    source["model"]["vocab"]["!"] = value
    refused(source, r"token '!' has id .*; ids are 0 to 4095|id 1 is given to")
    source = tokenizer_json()
    source["added_tokens"][3]["id"] = value
    refused(source, r"added_tokens\[3\].id is|has id .*; ids are 0 to|is given to")


def test_an_id_or_a_content_given_twice_is_refused():
    source = tokenizer_json()
    source["model"]["vocab"]["!"] = source["model"]["vocab"]["#"]
    refused(source, "id 5 is given to '!' and to '#'")
    source = tokenizer_json()
    source["added_tokens"][4] = {**source["added_tokens"][3], "id": source["added_tokens"][4]["id"]}
    refused(source, r"added_tokens\[4\].content is .* a second time")
    source = tokenizer_json()
    source["added_tokens"][4]["content"] = "!"
    refused(source, r"added_tokens\[4\].id is \d+, but model.vocab says 3")
    text = json.dumps(tokenizer_json()).replace('"vocab": {', '"vocab": {"!": 3, ', 1)
    refused(text.encode(), "the key '!' appears twice")


@pytest.mark.parametrize(
    ("token", "match"),
    [
        (None, r"added_tokens\[3\] is None"),
        ({"id": 3}, r"added_tokens\[3\].content is None"),
        ({"content": "<x>"}, r"added_tokens\[3\].id is None"),
        ({"content": "<x>", "id": 4052, "lstrip": True}, r"added_tokens\[3\].lstrip is True"),
        ({"content": "\ud800", "id": 4052}, "a control token holds a lone surrogate"),
        ({"content": "", "id": 4052}, "token 4052 has 0 characters"),
        ({"content": "x" * 5000, "id": 4052}, "token 4052 has 5000 characters"),
    ],
)
def test_malformed_control_tokens_are_refused(token, match):
    source = tokenizer_json()
    source["added_tokens"][3] = token
    refused(source, match)


@pytest.mark.parametrize(
    ("merge", "match"),
    [
        ("a", "merge 0, 'a', needs or makes"),
        ("a b c", "merge 0, 'a b c', needs"),
        ("nowhere t", "merge 0, 'nowhere t', needs"),
        (["a"], r"model.merges\[0\] is \['a'\]"),
        (["a", 5], r"model.merges\[0\] is"),
        (7, r"model.merges\[0\] is 7"),
    ],
)
def test_malformed_merges_are_refused(merge, match):
    source = tokenizer_json()
    source["model"]["merges"][0] = merge
    refused(source, match)


def test_a_merge_that_makes_a_control_token_is_refused():
    source = tokenizer_json()
    source["added_tokens"][3]["content"] = "qz"  # both letters are ordinary tokens
    source["model"]["merges"].append(["q", "z"])
    refused(source, "merge 3793, 'q z', needs or makes what is no ordinary token")


def test_text_must_be_encodable_completely():
    source = tokenizer_json()
    ids = source["model"]["vocab"]
    ids["\u0100\u0100"] = ids.pop("!")
    refused(source, "no token for byte 0x21")
    source = tokenizer_json()
    source["model"]["vocab"]["中"] = source["model"]["vocab"].pop("Ġtheir")
    refused(source, "token .* '中' is neither bytes nor marked as a control token|merge")


def test_a_file_without_begin_and_end_of_text_is_refused():
    source = tokenizer_json()
    source["added_tokens"][0]["content"] = "<s>"
    del source["model"]["vocab"]["<｜begin▁of▁sentence｜>"]
    refused(source, "added_tokens lacks <｜begin▁of▁sentence｜>")


def test_a_missing_file_and_a_folder_are_refused(tmp_path):
    for path in (tmp_path / "tokenizer.json", tmp_path):
        with pytest.raises(ModelFileError, match="cannot be read"):
            Tokenizer.from_file(path)


@pytest.mark.parametrize(
    ("change", "match", "error"),
    [
        ({"model": "llama"}, "tokenizer.ggml.model is 'llama'", UnsupportedModelError),
        ({"pre": "gpt-2"}, "tokenizer.ggml.pre is 'gpt-2'; finback knows deepseek-v3", UnsupportedModelError),
        ({"token_types": [1]}, "token_type has 1 entries for 4096 tokens", ModelFileError),
        ({"token_types": [6] * 4096}, r"token_type\[0\] is 6", ModelFileError),
        ({"tokens": ["a"] * 4096}, r"tokens\[1\] is 'a' a second time", ModelFileError),
        ({"tokens": [], "token_types": []}, "has 0 tokens", ModelFileError),
        ({"merges": ["q qqqq"]}, "merge 0, 'q qqqq', needs", ModelFileError),
        ({"bos_id": 4096}, "the bos token id is 4096; ids are 0 to 4095", ModelFileError),
        ({"eos_id": -1}, "the eos token id is -1", ModelFileError),
        ({"pad_id": 1 << 31}, "the pad token id is", ModelFileError),
    ],
)
def test_bad_gguf_lists_are_refused_by_key(change, match, error):
    lists = gguf_lists(tokenizer_json())
    with pytest.raises(error, match=match) as caught:
        Tokenizer.from_gguf("dir/model.gguf", **{**lists, **change})
    assert str(caught.value).startswith("dir/model.gguf: ")


def test_every_cut_of_a_file_is_refused():
    data = json.dumps(tokenizer_json()).encode()
    for end in range(0, len(data), 9973):
        refused(data[:end], "is not a tokenizer.json")


def test_a_hostile_file_costs_little_memory(tmp_path):
    path = tmp_path / "tokenizer.json"
    path.write_bytes(b"[" + b"[]," * 680_000 + b"[]]")
    code = (
        "import resource, sys\n"
        "from finback.text.tokenizer import Tokenizer\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "try: Tokenizer.from_file(sys.argv[1])\n"
        "except Exception as error: print(type(error).__name__)\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)"
    )
    run = subprocess.run([sys.executable, "-c", code, path], check=True, capture_output=True, text=True)
    name, grown_kib = run.stdout.split()
    assert name == "ModelFileError"
    assert int(grown_kib) < 200 << 10


def test_the_byte_alphabet_is_one_character_a_byte():
    assert len(set(vocabulary.BYTE_ALPHABET)) == 256
    assert vocabulary.BYTE_ALPHABET[ord("A")] == "A"
    assert vocabulary.BYTE_ALPHABET[ord(" ")] == "Ġ"
    assert vocabulary.BYTE_ALPHABET[ord("\n")] == "Ċ"


@pytest.mark.parametrize("use_regex", [False, True])
def test_small_byte_level_tokenizers_are_read(use_regex: bool) -> None:
    """What the `tokenizers` library writes for small models: the byte mapping, with or without GPT-2's expression."""
    import json

    from tokenizers import Tokenizer as Library

    from finback.text.tokenizer import Tokenizer
    from tests.tiny import tokenizer

    text = json.dumps(tokenizer() | {"pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False,
                                                       "trim_offsets": True, "use_regex": use_regex}})  # fmt: skip
    ours, library = Tokenizer.from_bytes(text.encode()), Library.from_str(text)
    for sample in ("", "a", "Don't stop  at\n\n 42 signs!?", "é漢\U0001f40b" * 20, "x" * 70000, "\n" * 70000):
        assert ours.encode(sample) == library.encode(sample, add_special_tokens=False).ids
        assert ours.decode(ours.encode(sample)) == sample
