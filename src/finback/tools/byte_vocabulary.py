"""A vocabulary without merges: 256 bytes, the control tokens of the V4 family, and placeholders up to any size.

Owns the list of contents and its two written forms, GGUF lists and tokenizer.json, so that synthetic models can be
talked to. Ids 0, 1 and 2 begin, end and pad a text as in the published vocabulary; the rest are to be looked up by
content. Refuses sizes that the bytes and control tokens do not fit. Source: spec section 10.
"""

from __future__ import annotations

from typing import Final

from finback.errors import RequestError

PRE_TOKENIZER: Final = "deepseek-v3"  # GGUF's name of the expressions below
_FIRST: Final = ("<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜▁pad▁｜>")
_LAST: Final = (
    "<｜fim▁hole｜>", "<｜fim▁begin｜>", "<｜fim▁end｜>", "<｜User｜>", "<｜Assistant｜>", "<|EOT|>",
    "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>", "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>",
    "<｜tool▁outputs▁begin｜>", "<｜tool▁outputs▁end｜>", "<｜tool▁output▁begin｜>", "<｜tool▁output▁end｜>",
    "<｜tool▁sep｜>", "<｜begin▁of▁repo▁name｜>", "<｜end▁of▁repo▁name｜>", "<｜begin▁of▁file▁name｜>",
    "<｜end▁of▁file▁name｜>", "<｜begin▁of▁file｜>", "<｜end▁of▁file｜>", "<think>", "</think>", "｜DSML｜",
    "<｜begin▁sys｜>", "<｜end▁sys｜>", "<｜latest_reminder｜>", "<｜action｜>", "<｜query｜>",
    "<｜authority｜>", "<｜domain｜>", "<｜task｜>", "<｜entity｜>", "<｜title｜>", "<｜safety｜>", "<｜answer｜>",
    "<｜search｜>", "<｜read_url｜>",
)  # fmt: skip
SMALLEST: Final = len(_FIRST) + 256 + len(_LAST)

NORMAL, CONTROL, UNUSED = 1, 3, 5  # GGUF token types


def _byte_letters() -> list[str]:
    """The printable letter that byte-level BPE writes for each byte: itself, or one from 256 up."""
    kept = {*range(33, 127), *range(161, 173), *range(174, 256)}
    moved = iter(range(256, 512))
    return [chr(byte) if byte in kept else chr(next(moved)) for byte in range(256)]


def check_size(size: int) -> None:
    """Raises RequestError if the bytes and the control tokens do not fit into `size` tokens."""
    if size < SMALLEST:
        raise RequestError(
            f"vocab is {size}; a byte-level vocabulary with its control tokens needs {SMALLEST} or more"
        )


def contents(size: int) -> list[str]:
    """`size` token contents in id order. Raises RequestError if size is below `SMALLEST`."""
    check_size(size)
    return [
        *_FIRST,
        *_byte_letters(),
        *_LAST,
        *(f"<｜place▁holder▁no▁{i}｜>" for i in range(size - SMALLEST)),
    ]


def token_types(size: int) -> list[int]:
    """GGUF's type of each token: placeholders are unused, so that no text reaches them."""
    types = [CONTROL] * len(_FIRST) + [NORMAL] * 256 + [CONTROL] * len(_LAST)
    return types + [UNUSED] * (size - SMALLEST)


def tokenizer_json(size: int) -> dict[str, object]:
    """The same vocabulary as the content of a tokenizer.json."""
    tokens = contents(size)
    normal = range(len(_FIRST), len(_FIRST) + 256)
    added = [
        {"id": i, "content": token, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
         "special": i < len(_FIRST)}
        for i, token in enumerate(tokens) if i not in normal
    ]  # fmt: skip
    splits = [
        r"\p{N}{1,3}",
        "[一-龥\u3040-ゟ゠-ヿ]+",
        "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+"
        "| ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+",
    ]
    stages: list[dict[str, object]] = [
        {"type": "Split", "pattern": {"Regex": split}, "behavior": "Isolated", "invert": False}
        for split in splits
    ]
    stages.append({"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False})
    return {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": added, "normalizer": None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": stages}, "post_processor": None,
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": {
            "type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
            "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
            "vocab": {token: i for i, token in enumerate(tokens[: normal.stop])}, "merges": [],
        },
    }  # fmt: skip
