"""Text to token ids and back.

Owns the one security property of prompts: plain text never becomes a control token. The encoder is built from
the ordinary tokens alone, so `<｜Assistant｜>` typed by a user is ordinary pieces; control tokens enter only
where a renderer put a `Control` segment, looked up by content. Also owns speed on hostile text, by cutting
long text where the pre-tokenizer splits anyway. The `tokenizers` library does the merging and is imported in
this file only, on first use. Refuses text that is not Unicode (lone surrogates) and ids out of range.
"""

from __future__ import annotations

import bisect
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from finback.errors import ModelFileError, RequestError, shown
from finback.text.prompt import Control, Prompt, Sampled, Segment, Text
from finback.text.token_cache import TokenCache
from finback.text.vocabulary import (
    BYTE_ALPHABET,
    Vocabulary,
    from_gguf_lists,
    parse_tokenizer_json,
    read_tokenizer_json,
)

BOS = "<｜begin▁of▁sentence｜>"
EOS = "<｜end▁of▁sentence｜>"
PAD = "<｜▁pad▁｜>"

# Positions where the pre-tokenizer ends one piece and starts the next whatever surrounds them, so encoding
# the two sides apart gives the same ids: after a letter or number that a space or ASCII sign follows, between
# ASCII letters and digits, and after a line end that an ASCII letter follows. (Not before a digit in general:
# numbers are cut in threes from their start.)
_SAFE_CUT = re.compile(
    r"[^\W_](?=[\t\n\r !-/:-@\[-`{-~])|[A-Za-z](?=[0-9])|[0-9](?=[A-Za-z])|[\r\n](?=[A-Za-z])"
)

# Memory per call and cache misses grow with the piece; 32 Ki characters measured fastest, and pieces of one
# long text are encoded in parallel.
PIECE_CHARS = 32 << 10

_TO_BYTES = {ord(char): byte for byte, char in enumerate(BYTE_ALPHABET)}


@dataclass(frozen=True, slots=True)
class EncodedPrompt:
    """Token ids of a prompt.

    marks: ascending counts of tokens at which the state is worth keeping: before each message, and one token
        before the end.
    """

    ids: list[int]
    marks: list[int]


class Tokenizer:
    """A byte-level BPE tokenizer with its control tokens. Immutable; usable from several threads.

    Opening reads and checks the file; the encoder itself is built on first use (0.3 s for the 129,280 tokens
    of V4, 10 ms for 4,096).
    """

    def __init__(self, vocabulary: Vocabulary, *, bos_id: int, eos_id: int, pad_id: int | None) -> None:
        """Raises ModelFileError when an id lies outside the vocabulary."""
        for name, token_id in (("bos", bos_id), ("eos", eos_id), ("pad", pad_id)):
            if token_id is not None and not 0 <= token_id < len(vocabulary.contents):
                what = f"the {name} token id is {token_id}; ids are 0 to {len(vocabulary.contents) - 1}"
                raise ModelFileError(vocabulary.source, what)
        self._vocabulary = vocabulary
        self._control_ids = frozenset(vocabulary.controls.values())
        self._bytes = _TokenBytes(vocabulary, self._control_ids)
        self.bos_id = bos_id
        self.eos_id = eos_id
        self.pad_id = pad_id

    @classmethod
    def from_file(cls, path: str | os.PathLike[str]) -> Tokenizer:
        """Opens a tokenizer.json. Raises ModelFileError naming the field."""
        return cls._with_named_ids(read_tokenizer_json(path))

    @classmethod
    def from_bytes(cls, data: bytes, source: str | os.PathLike[str] = "tokenizer.json") -> Tokenizer:
        """Reads the content of a tokenizer.json; `source` names it in messages."""
        return cls._with_named_ids(parse_tokenizer_json(data, source))

    @classmethod
    def from_gguf(
        cls,
        path: str | os.PathLike[str],
        *,
        model: str,
        pre: str,
        tokens: Sequence[str],
        token_types: Sequence[int],
        merges: Sequence[str],
        bos_id: int,
        eos_id: int,
        pad_id: int | None = None,
    ) -> Tokenizer:
        """Builds a tokenizer from the values of `tokenizer.ggml.*`; `path` names the file in messages.

        Raises ModelFileError naming the key. `add_bos_token` is not asked for: the renderer writes BOS.
        """
        vocabulary = from_gguf_lists(
            path, model=model, pre=pre, tokens=tokens, token_types=token_types, merges=merges
        )
        return cls(vocabulary, bos_id=bos_id, eos_id=eos_id, pad_id=pad_id)

    @classmethod
    def _with_named_ids(cls, vocabulary: Vocabulary) -> Tokenizer:
        """A tokenizer.json does not say which tokens begin and end a text; DeepSeek's names do."""
        for content in (BOS, EOS):
            if content not in vocabulary.controls:
                raise ModelFileError(vocabulary.source, f"added_tokens lacks {content}; use DeepSeek's file")
        controls = vocabulary.controls
        return cls(vocabulary, bos_id=controls[BOS], eos_id=controls[EOS], pad_id=controls.get(PAD))

    @property
    def vocab_size(self) -> int:
        """Number of ids, 0 .. vocab_size - 1."""
        return len(self._vocabulary.contents)

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 (hex) over everything that decides ids: equal tokenizers, equal text, equal ids."""
        return self._vocabulary.fingerprint()

    def encode(self, text: str) -> list[int]:
        """Ids of plain text; never a control token. Raises RequestError for text with a lone surrogate."""
        return self._encode_texts([text])[0]

    def encode_segments(self, segments: Sequence[Segment]) -> list[int]:
        """Ids of text and control segments. Raises RequestError for an unknown control token."""
        return [token_id for run in self._encode_runs(segments) for token_id in run]

    def encode_prompt(self, prompt: Prompt, cache: TokenCache | None = None) -> EncodedPrompt:
        """Ids of a rendered prompt, with its marks as token counts. cache: what earlier prompts had encoded."""
        ids: list[int] = []
        starts: list[int] = []
        for run in self._encode_runs(prompt.segments, cache):
            starts.append(len(ids))
            ids.extend(run)
        before_end = [len(ids) - 1] if ids else []
        return EncodedPrompt(ids, sorted({*(starts[mark] for mark in prompt.marks), *before_end}))

    def encode_with_controls(self, text: str) -> list[int]:
        """Ids of text in which the spelling of a control token IS that token; the longest one wins.

        For raw prompts of the machine's owner and for tools. Never for text that came from someone else.
        """
        ids: list[int] = []
        end = 0
        for start, content in self._control_finder.find(text):
            ids.extend(self.encode(text[end:start]))
            ids.append(self.control_id(content))
            end = start + len(content)
        ids.extend(self.encode(text[end:]))
        return ids

    def control_id(self, content: str) -> int:
        """Id of a control token. Raises RequestError when the vocabulary has none of that content."""
        token_id = self._vocabulary.controls.get(content)
        if token_id is None:
            raise RequestError(f"{shown(content)} is no control token of this model; check the prompt format")
        return token_id

    def is_control(self, token_id: int) -> bool:
        """Whether plain text can never produce this id."""
        return token_id in self._control_ids

    def id_to_bytes(self, token_id: int) -> bytes:
        """The bytes a token stands for; of a control token, its content in UTF-8.

        Raises RequestError for an id outside the vocabulary.
        """
        return self._bytes[token_id]

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids. Bytes that are no UTF-8 become U+FFFD; streams use `Utf8Decoder` instead."""
        return b"".join([self._bytes[token_id] for token_id in ids]).decode("utf-8", "replace")

    @cached_property
    def _encoder(self) -> Any:
        """The merging machine, over ordinary tokens only."""
        from tokenizers import Regex, Tokenizer, models, pre_tokenizers  # 40 ms, so not before it is needed

        vocabulary = self._vocabulary
        merges: Any = [tuple(merge.split(" ")) for merge in vocabulary.merges]
        encoder: Any = Tokenizer(models.BPE(vocab=vocabulary.ordinary(), merges=merges))
        one_pass = vocabulary.pre_tokenizer.one_pass
        splits = [] if one_pass is None else [pre_tokenizers.Split(Regex(one_pass), "isolated")]
        to_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        encoder.pre_tokenizer = pre_tokenizers.Sequence([*splits, to_bytes])
        return encoder

    @cached_property
    def _control_finder(self) -> _ControlFinder:
        return _ControlFinder(self._vocabulary.controls)

    def _encode_runs(self, segments: Sequence[Segment], cache: TokenCache | None = None) -> Iterator[Sequence[int]]:
        """Ids of each segment."""
        values = [s.value for s in segments if isinstance(s, Text)]
        known = {} if cache is None else cache.find(values)
        new = list(dict.fromkeys(value for value in values if value not in known))
        known |= zip(new, self._encode_texts(new), strict=True)
        if cache is not None:
            cache.keep(known)
        for segment in segments:
            match segment:
                case Text(value):
                    yield known[value]
                case Control(content):
                    yield [self.control_id(content)]
                case Sampled(ids):
                    yield ids

    def _encode_texts(self, texts: Sequence[str]) -> list[list[int]]:
        """Ids of each text, all pieces of all texts in one call, outside the GIL."""
        pieces: list[str] = []
        counts: list[int] = []
        for text in texts:
            _check_unicode(text)
            before = len(pieces)
            pieces.extend(_cut(text, PIECE_CHARS) if self._vocabulary.pre_tokenizer.can_cut else [text])
            counts.append(len(pieces) - before)
        encoded = iter(self._encoder.encode_batch_fast(pieces, add_special_tokens=False))
        return [[token_id for _ in range(count) for token_id in next(encoded).ids] for count in counts]


def _cut(text: str, size: int) -> Iterator[str]:
    """`text` in pieces of at least `size` characters, cut where it does not change the ids."""
    start = 0
    while len(text) - start > size:
        cut = _SAFE_CUT.search(text, start + size - 1)
        if cut is None:
            break
        yield text[start : cut.end()]
        start = cut.end()
    if start < len(text):
        yield text[start:]


def _check_unicode(text: str) -> None:
    try:
        text.isascii() or text.encode()
    except UnicodeEncodeError as error:
        what = f"the text holds the lone surrogate U+{ord(text[error.start]):04X} at character {error.start}"
        raise RequestError(f"{what}; send valid Unicode") from None


class _TokenBytes(dict[int, bytes]):
    """Id -> bytes, worked out when first asked for: a table of all ids would take 0.1 s at the start."""

    def __init__(self, vocabulary: Vocabulary, control_ids: frozenset[int]) -> None:
        super().__init__()
        self._contents = vocabulary.contents
        self._control_ids = control_ids

    def __missing__(self, token_id: int) -> bytes:
        if not 0 <= token_id < len(self._contents):
            raise RequestError(f"token id {token_id} is out of range; ids are 0 to {len(self._contents) - 1}")
        content = self._contents[token_id]
        if token_id in self._control_ids:
            value = content.encode()
        else:
            value = bytes(map(_TO_BYTES.__getitem__, map(ord, content)))
        self[token_id] = value
        return value


class _ControlFinder:
    """Finds control contents in text, leftmost first and longest first."""

    def __init__(self, contents: Iterable[str]) -> None:
        self._sorted = sorted(contents)
        self._longest = max(map(len, self._sorted), default=0)
        self._first = re.compile("|".join(sorted({re.escape(c[0]) for c in self._sorted})) or r"(?!)")
        self._shorter: dict[str, str | None] = {}  # content -> the longest other content it begins with
        nested: list[str] = []
        for content in self._sorted:
            while nested and not content.startswith(nested[-1]):
                nested.pop()
            self._shorter[content] = nested[-1] if nested else None
            nested.append(content)

    def find(self, text: str) -> Iterator[tuple[int, str]]:
        """Start and content of each match; matches do not overlap."""
        position = 0
        while candidate := self._first.search(text, position):
            position = candidate.start()
            content = self._longest_at(text[position : position + self._longest])
            if content is not None:
                yield position, content
            position += len(content) if content is not None else 1

    def _longest_at(self, window: str) -> str | None:
        """The longest content that `window` begins with.

        Strings between a prefix of the window and the window, in sorting order, begin with that prefix too.
        So every content that fits is the last one not after the window, or a prefix of it.
        """
        index = bisect.bisect_right(self._sorted, window)
        content = self._sorted[index - 1] if index else None
        while content is not None and not window.startswith(content):
            content = self._shorter[content]
        return content
