"""A byte-level BPE vocabulary, read from tokenizer.json or from GGUF lists, and checked before use.

Owns the reading and every check: which ids exist, which are control tokens, that all 256 bytes can be
spelled, and that no merge makes a control token. Refuses, naming file and field, other models than byte-level
BPE, other pre-tokenizers than the table below, and files that are malformed, oversized, or give an id or a
token twice. The split expressions and the byte alphabet are facts of the published files; NOTICE names their
source.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from finback.errors import ModelFileError, UnsupportedModelError, shown

MAX_FILE_BYTES = 32 << 20  # the largest published tokenizer.json is near 33 MB, DeepSeek's 6 MB
MAX_JSON_ITEMS = 2 << 20  # values in the file; bounds the memory that parsing takes to about 150 MB
MAX_TOKENS = 1 << 20
MAX_CONTENT = 4096  # characters of one token



@dataclass(frozen=True, slots=True)
class PreTokenizer:
    """How text is cut into the pieces that merging never crosses.

    splits: the published expressions; each cuts the pieces of the one before into matches and gaps.
    one_pass: one expression with the same result, in half the time. Digits and CJK runs come first and are
        kept out of every class below, and "no non-space follows" also holds where a digit or CJK run follows,
        because the pieces of the published splits end there. None: text is one piece.
    can_cut: long text may be encoded in parts, cut where tokenizer.SAFE_CUT finds that a piece ends in any context.
    """

    splits: tuple[str, ...]
    one_pass: str | None
    can_cut: bool = False


_CJK = "一-龥぀-ゟ゠-ヿ"
_SIGN_WORD = "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+"

DEEPSEEK = PreTokenizer(
    splits=(
        r"\p{N}{1,3}",
        f"[{_CJK}]+",
        f"{_SIGN_WORD}"
        "|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+"
        "| ?[\\p{P}\\p{S}]+[\r\n]*"
        "|\\s*[\r\n]+"
        "|\\s+(?!\\S)"
        "|\\s+",
    ),
    one_pass=(
        f"\\p{{N}}{{1,3}}|[{_CJK}]+"
        f"|{_SIGN_WORD}"
        f"|[^\r\n\\p{{L}}\\p{{P}}\\p{{S}}\\p{{N}}{_CJK}]?[[\\p{{L}}\\p{{M}}]&&[^{_CJK}]]+"
        f"| ?[[\\p{{P}}\\p{{S}}]&&[^{_CJK}]]+[\r\n]*"
        "|\\s*[\r\n]+"
        f"|\\s+(?![^\\s\\p{{N}}{_CJK}])"
        "|\\s+"
    ),
    can_cut=True,
)
# What small models made with the `tokenizers` library have: the byte mapping alone, or with GPT-2's expression.
BYTE_LEVEL = PreTokenizer(splits=(), one_pass=None)
_GPT2_SPLIT = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
GPT2 = PreTokenizer(splits=(_GPT2_SPLIT,), one_pass=_GPT2_SPLIT)
# GGUF names its pre-tokenizer. Converters write `deepseek-v3` for V3 and `joyai-llm` for V4; all are one.
PRE_TOKENIZERS: Mapping[str, PreTokenizer] = MappingProxyType(
    {"deepseek-v3": DEEPSEEK, "deepseek-v4": DEEPSEEK, "joyai-llm": DEEPSEEK}
)

# GGUF token types. All but NORMAL are out of reach of plain text: they are our control tokens.
_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED, _UNUSED = 1, 2, 3, 4, 5
_TYPES = frozenset((_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED, _UNUSED))

# JSON fields that change what a BPE model does, with the only values that mean "plain byte-level BPE".
_PLAIN_MODEL: Mapping[str, tuple[object, ...]] = MappingProxyType(
    {
        "dropout": (None, 0.0),
        "unk_token": (None,),
        "continuing_subword_prefix": (None, ""),
        "end_of_word_suffix": (None, ""),
        "fuse_unk": (None, False),
        "byte_fallback": (None, False),
        "ignore_merges": (None, False),
    }
)


def _byte_alphabet() -> str:
    """The 256 characters that stand for bytes 0..255 in byte-level vocabularies (the GPT-2 convention).

    Visible Latin-1 characters stand for themselves; the 68 others are numbered up from U+0100.
    """
    visible = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    moved = iter(range(0x100, 0x200))
    return "".join(chr(byte if byte in visible else next(moved)) for byte in range(256))


BYTE_ALPHABET = _byte_alphabet()


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """A checked vocabulary.

    contents: per id 0..n-1 the token: byte-alphabet characters, or, for a control token, its literal content.
    controls: content -> id of the control tokens.
    merges: pairs of ordinary tokens, each as "left right", in order of preference. (Strings, because as many
        tuples would keep the garbage collector busy for longer than everything else here takes.)
    """

    source: str
    contents: tuple[str, ...]
    controls: Mapping[str, int]
    merges: tuple[str, ...]
    pre_tokenizer: PreTokenizer

    def ordinary(self) -> dict[str, int]:
        """Token -> id of all tokens that plain text can produce."""
        return {content: index for index, content in enumerate(self.contents) if content not in self.controls}

    def fingerprint(self) -> str:
        """SHA-256 (hex) over all that decides ids; equal for the same tokenizer in JSON and in GGUF."""
        digest = hashlib.sha256(b"finback byte-level BPE 1\0")
        controls = (str(index) for index in sorted(self.controls.values()))
        for items in (self.pre_tokenizer.splits, self.contents, controls, self.merges):
            encoded = [item.encode() for item in items]
            lengths = ",".join(map(str, map(len, encoded)))
            digest.update(f"{lengths}\0".encode())
            digest.update(b"".join(encoded))
        return digest.hexdigest()


def read_tokenizer_json(path: str | os.PathLike[str]) -> Vocabulary:
    """The vocabulary in the tokenizer.json at `path`. Raises ModelFileError naming the file and the field."""
    try:
        with Path(path).open("rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise ModelFileError(path, f"cannot be read ({error.strerror}); give a tokenizer.json") from None
    return parse_tokenizer_json(data, path)


def parse_tokenizer_json(data: bytes, source: str | os.PathLike[str]) -> Vocabulary:
    """The vocabulary in the bytes of a tokenizer.json; `source` names it in messages.

    Raises ModelFileError naming the field; UnsupportedModelError when well formed but not byte-level BPE.
    """
    root = _object(_load(data, source), source, "the file")
    model = _object(root.get("model"), source, "model")
    _check_plain(root, model, source)
    pre_tokenizer = _json_pre_tokenizer(root.get("pre_tokenizer"), source)
    ids = _object(model.get("vocab"), source, "model.vocab")
    controls = _json_controls(root.get("added_tokens"), ids, source)
    contents = _by_id({**ids, **controls}, source)
    merges = _merges(model.get("merges"), source, "model.merges")
    return _checked(source, contents, controls, merges, pre_tokenizer)


def from_gguf_lists(
    path: str | os.PathLike[str],
    *,
    model: str,
    pre: str,
    tokens: Sequence[str],
    token_types: Sequence[int],
    merges: Sequence[str],
) -> Vocabulary:
    """The vocabulary in the lists under `tokenizer.ggml.` of a GGUF file; `path` names it in messages.

    Raises ModelFileError naming the key.
    """
    if model != "gpt2":
        what = f"tokenizer.ggml.model is {shown(model)}; finback reads byte-level BPE, called 'gpt2'"
        raise UnsupportedModelError(path, what)
    if pre not in PRE_TOKENIZERS:
        known = ", ".join(PRE_TOKENIZERS)
        raise UnsupportedModelError(path, f"tokenizer.ggml.pre is {shown(pre)}; finback knows {known}")
    if len(token_types) != len(tokens):
        what = f"tokenizer.ggml.token_type has {len(token_types)} entries for {len(tokens)} tokens"
        raise ModelFileError(path, what + "; convert the model again")
    controls: dict[str, int] = {}
    seen: set[str] = set()
    for index, (content, kind) in enumerate(zip(tokens, token_types, strict=True)):
        if content in seen:
            raise ModelFileError(path, f"tokenizer.ggml.tokens[{index}] is {shown(content)} a second time")
        seen.add(content)
        if kind not in _TYPES:
            what = f"tokenizer.ggml.token_type[{index}] is {shown(kind)}; byte-level BPE has types 1 to 5"
            raise ModelFileError(path, what)
        if kind != _NORMAL:
            controls[content] = index
    joined = _merges(merges, path, "tokenizer.ggml.merges")
    return _checked(path, tuple(tokens), controls, joined, PRE_TOKENIZERS[pre])


def _checked(
    source: str | os.PathLike[str],
    contents: tuple[str, ...],
    controls: Mapping[str, int],
    merges: tuple[str, ...],
    pre_tokenizer: PreTokenizer,
) -> Vocabulary:
    """The vocabulary, after the checks that both kinds of source share."""
    if not contents or len(contents) > MAX_TOKENS:
        raise ModelFileError(source, f"has {len(contents)} tokens; give 1 to {MAX_TOKENS}")
    frozen = MappingProxyType(dict(controls))
    vocabulary = Vocabulary(os.fspath(source), contents, frozen, merges, pre_tokenizer)
    alphabet = set(BYTE_ALPHABET)
    for index, content in enumerate(contents):
        if not 0 < len(content) <= MAX_CONTENT:
            what = f"token {index} has {len(content)} characters; tokens have 1 to {MAX_CONTENT}"
            raise ModelFileError(source, what)
    try:
        "".join(controls).encode()
    except UnicodeEncodeError:
        raise ModelFileError(source, "a control token holds a lone surrogate, which is not text") from None
    ordinary = vocabulary.ordinary()
    foreign = set("".join(ordinary)) - alphabet
    if foreign:
        odd = next(content for content in ordinary if foreign & set(content))
        what = f"token {ordinary[odd]} {shown(odd)} is neither bytes nor marked as a control token"
        raise ModelFileError(source, what)
    for byte, char in enumerate(BYTE_ALPHABET):
        if char not in ordinary:
            raise ModelFileError(source, f"no token for byte 0x{byte:02x}, so some text could not be encoded")
    for index, merge in enumerate(merges):
        left, _, right = merge.partition(" ")
        if left not in ordinary or right not in ordinary or left + right not in ordinary:
            what = f"merge {index}, {shown(merge)}, needs or makes what is no ordinary token"
            raise ModelFileError(source, what)
    return vocabulary


def _load(data: bytes, source: str | os.PathLike[str]) -> object:
    if len(data) > MAX_FILE_BYTES:
        raise ModelFileError(source, f"is larger than {MAX_FILE_BYTES >> 20} MiB, too large for a tokenizer")
    if sum(map(data.count, (b",", b"[", b"{"))) > MAX_JSON_ITEMS:
        raise ModelFileError(source, f"holds more than {MAX_JSON_ITEMS} values, too many for a tokenizer")

    def unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
        table = dict(pairs)
        if len(table) != len(pairs):
            keys = [key for key, _ in pairs]
            twice = next(key for key in table if keys.count(key) > 1)
            raise ModelFileError(source, f"the key {shown(twice)} appears twice in one object")
        return table

    try:
        return json.loads(data.decode(), object_pairs_hook=unique)
    except (ValueError, RecursionError) as error:
        raise ModelFileError(source, f"is not a tokenizer.json ({error}); download it again") from None


def _check_plain(
    root: Mapping[str, object], model: Mapping[str, object], source: str | os.PathLike[str]
) -> None:
    """Refuses whatever would make the file mean more than byte-level BPE after the splits."""
    if model.get("type") != "BPE":
        what = f"model.type is {shown(model.get('type'))}; finback reads byte-level BPE only"
        raise UnsupportedModelError(source, what)
    for field, plain in _PLAIN_MODEL.items():
        if model.get(field) not in plain:
            what = f"model.{field} is {shown(model[field])}, which byte-level BPE does not use"
            raise UnsupportedModelError(source, what)
    normalizer = root.get("normalizer")
    if normalizer is not None and normalizer != {"type": "Sequence", "normalizers": []}:
        what = f"normalizer is {shown(normalizer)}; finback encodes text as it is"
        raise UnsupportedModelError(source, what)
    decoder = root.get("decoder")
    if not isinstance(decoder, Mapping) or decoder.get("type") != "ByteLevel":
        raise UnsupportedModelError(source, f"decoder is {shown(decoder)}; finback reads ByteLevel only")


def _json_pre_tokenizer(value: object, source: str | os.PathLike[str]) -> PreTokenizer:
    """The entry of our table that `value` is: isolated splits, if any, that end in the byte mapping."""
    last = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    for known in PRE_TOKENIZERS.values():
        steps: list[dict[str, object]] = [
            {"type": "Split", "pattern": {"Regex": split}, "behavior": "Isolated", "invert": False}
            for split in known.splits
        ]
        if value == {"type": "Sequence", "pretokenizers": [*steps, last]}:
            return known
    for known, use_regex in ((BYTE_LEVEL, False), (GPT2, True)):
        for trim in (True, False):  # offsets only; it changes no id
            if value == last | {"use_regex": use_regex, "trim_offsets": trim}:
                return known
    known_names = "DeepSeek's three splits, GPT-2's, and the byte mapping alone"
    raise UnsupportedModelError(source, f"pre_tokenizer is {shown(value)}; finback knows {known_names}")


def _json_controls(
    added: object, ids: Mapping[str, object], source: str | os.PathLike[str]
) -> dict[str, int]:
    if not isinstance(added, list):
        raise ModelFileError(source, f"added_tokens is {shown(added)}; a list is needed")
    controls: dict[str, int] = {}
    for position, entry in enumerate(added):
        where = f"added_tokens[{position}]"
        token = _object(entry, source, where)
        content, index = token.get("content"), token.get("id")
        if not isinstance(index, int):
            raise ModelFileError(source, f"{where}.id is {shown(index)}; a number is needed")
        if not isinstance(content, str):
            raise ModelFileError(source, f"{where}.content is {shown(content)}; a string is needed")
        if content in controls:
            raise ModelFileError(source, f"{where}.content is {shown(content)} a second time")
        if ids.get(content, index) != index:
            what = f"{where}.id is {index}, but model.vocab says {shown(ids[content])}"
            raise ModelFileError(source, what)
        for flag in ("single_word", "lstrip", "rstrip"):
            if token.get(flag):
                what = f"{where}.{flag} is {shown(token[flag])}; finback matches control tokens exactly"
                raise UnsupportedModelError(source, what)
        controls[content] = index
    return controls


def _by_id(ids: Mapping[str, object], source: str | os.PathLike[str]) -> tuple[str, ...]:
    """Contents ordered by id; every id from 0 must be given, and once."""
    contents: list[str | None] = [None] * len(ids)
    for content, index in ids.items():
        if type(index) is not int or not 0 <= index < len(ids):
            what = f"token {shown(content)} has id {shown(index)}; ids are 0 to {len(ids) - 1}"
            raise ModelFileError(source, what)
        if contents[index] is not None:
            what = f"id {index} is given to {shown(contents[index])} and to {shown(content)}"
            raise ModelFileError(source, what)
        contents[index] = content
    return tuple(content for content in contents if content is not None)


def _merges(merges: object, source: str | os.PathLike[str], field: str) -> tuple[str, ...]:
    """Merges as "left right"; files write them so, or as ["left", "right"]."""
    if not isinstance(merges, Sequence) or isinstance(merges, str | bytes):
        raise ModelFileError(source, f"{field} is {shown(merges)}; a list is needed")
    joined: list[str] = []
    for index, merge in enumerate(merges):
        match merge:
            case str():
                joined.append(merge)
            case [str(left), str(right)]:
                joined.append(f"{left} {right}")
            case _:
                raise ModelFileError(source, f"{field}[{index}] is {shown(merge)}; two tokens are needed")
    return tuple(joined)


def _object(value: object, source: str | os.PathLike[str], field: str) -> dict[str, object]:
    if not isinstance(value, dict):
        raise ModelFileError(source, f"{field} is {shown(value)}; an object is needed")
    return value
