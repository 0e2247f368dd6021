"""Output that fits: JSON schemas, any JSON object, regular expressions and Lark grammars, token by token.

Owns compiled grammars and where an answer stands in one. llguidance knows the languages; here are the limits on what is
compiled, the sentences for what is not, and the rule for text that the grammar leaves no choice about
(docs/structured.md). Refuses keywords that are not supported by name: nothing is ignored silently.
"""

from __future__ import annotations

import json
import re
import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt

from finback.engine.penalties import MASKED, force
from finback.engine.sampling import Resolved
from finback.errors import RequestError, shown

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

    from finback.text.tokenizer import Tokenizer

MAX_SOURCE = 256 << 10
"""Bytes of a schema or grammar."""

MAX_DEPTH = 64
"""Levels of a schema inside each other."""

MAX_MULTIPLE = 10_000
"""Of multipleOf: a number is divided digit by digit, with a state for each remainder."""

KEPT_GRAMMARS = 64

GRAMMAR_BYTES = 1 << 20
"""What a compiled grammar is charged with beside 64 times its source: llguidance does not say what it takes."""

WHITESPACE = r"(\n{1,2} {0,40}| ?)"
"""Between the tokens of JSON: a space, or at most two line breaks and an indentation. A model that likes blanks cannot
fill its limit with them."""

MAX_RULES = 1000
"""Rules of a grammar, references of a schema: each may lead into the next, and every step takes stack."""

STACK_BYTES = 64 << 20
"""Of the thread that compiles and computes masks. 1,000 rules take under 8 MiB."""

LEXER_FUEL, STEP_FUEL, STEP_ITEMS = 400_000, 100_000, 50_000
"""Work for compiling a grammar, and for one mask: under a tenth of a second each by llguidance's own figures."""

LEXER_STATES, GRAMMAR_SYMBOLS = 20_000, 100_000


@dataclass(frozen=True, slots=True)
class Wanted:
    """What an answer must be: one language and its source."""

    field: str  # the parameter that asked for it
    source: str


def wanted(p: Resolved) -> Wanted | None:
    """What the parameters ask for; None if nothing. RequestError for a schema that is too large or too deep."""
    if p.json_schema is not None:
        return Wanted("json_schema", _schema_text(p.json_schema))
    if p.json_object:
        return Wanted("json_object", '{"type": "object"}')
    if p.regex is not None:
        return Wanted("regex", _limited("regex", p.regex))
    if p.grammar is not None:
        return Wanted("grammar", _few("rules", "grammar", p.grammar, p.grammar.count(":")))
    if p.calls is not None:
        return Wanted("calls", _limited("calls", p.calls))
    return None


def _few(what: str, field: str, source: str, count: int) -> str:
    if count > MAX_RULES:
        raise RequestError(f"{field} has {count} {what}; give at most {MAX_RULES}")
    return _limited(field, source)


def _schema_text(schema: Any) -> str:
    if isinstance(schema, str):
        try:
            schema = json.loads(_limited("json_schema", schema))
        except (ValueError, RecursionError) as error:
            raise RequestError(f"json_schema is not JSON ({error}); give an object") from None
    schema = {} if schema is True else schema
    if not isinstance(schema, dict):
        raise RequestError(f"json_schema is {shown(schema)}; give an object")
    _check_tree(schema)
    try:
        source = json.dumps(schema)
    except (TypeError, ValueError) as error:
        raise RequestError(f"json_schema cannot be written as JSON ({error}); give plain values") from None
    return _few("references", "json_schema", source, source.count('"$ref"'))


def _limited(field: str, source: str) -> str:
    if len(source.encode()) > MAX_SOURCE:
        raise RequestError(f"{field} has {len(source.encode())} bytes; give at most {MAX_SOURCE}")
    return source


def _check_tree(schema: Any) -> None:
    """RequestError for a schema that is too deep, or whose numbers make too large an automaton."""
    stack = [(schema, 1)]
    while stack:
        here, depth = stack.pop()
        if depth > MAX_DEPTH:
            raise RequestError(f"json_schema is nested more than {MAX_DEPTH} levels deep; flatten it, or use $ref")
        if isinstance(here, dict):
            step = here.get("multipleOf")
            if isinstance(step, int) and step > MAX_MULTIPLE:
                raise RequestError(f"multipleOf is {shown(step)}; it may be at most {MAX_MULTIPLE}")
        inner = here.values() if isinstance(here, dict) else here if isinstance(here, list | tuple) else ()
        stack += [(item, depth + 1) for item in inner]


class Charged(Protocol):
    """Who grants memory: the pool of pages, which can have the prefix cache make room, or the ledger itself."""

    def reserve(self, name: str, size: int, /) -> None:
        """MemoryBudgetError if it is not there."""

    def release(self, name: str, size: int, /) -> None:
        """Give it back."""


class Grammars:
    """Compiled grammars of one engine, the latest KEPT_GRAMMARS of them kept. From any thread."""

    def __init__(
        self, tokenizer: Callable[[], Tokenizer], vocab: int, end_ids: frozenset[int], account: Charged
    ) -> None:
        self._tokenizer, self._vocab, self._end_ids, self._account = tokenizer, vocab, end_ids, account
        self._lock = threading.Lock()
        self._kept: OrderedDict[Wanted, LLMatcher] = OrderedDict()
        self._guidance: LLTokenizer | None = None
        self._masks = _deep_executor()

    def constraint(self, what: Wanted, start_after: int | None) -> Constraint:
        """Where an answer begins: at once, or after a token, that which closes thinking. RequestError naming what is
        wrong with the grammar, or not supported."""
        with self._lock:
            compiled = self._kept.pop(what, None)
            if compiled is None:
                compiled = self._masks.submit(self._compile, what).result()
                self._account.reserve("grammars", self._size(what))
            self._kept[what] = compiled
            while len(self._kept) > KEPT_GRAMMARS:
                old, _ = self._kept.popitem(last=False)
                self._account.release("grammars", self._size(old))
            return Constraint(compiled.deep_copy(), self._vocab, self._masks, start_after)

    @staticmethod
    def _size(what: Wanted) -> int:
        return GRAMMAR_BYTES + 64 * len(what.source)

    def _compile(self, what: Wanted) -> LLMatcher:
        from llguidance import LLMatcher, LLParserLimits

        try:
            if what.field in ("json_schema", "json_object"):
                options: Any = {"whitespace_pattern": WHITESPACE, "item_separator": ",", "key_separator": ":"}
                source = LLMatcher.grammar_from_json_schema(what.source, defaults=options)
            elif what.field == "regex":
                source = LLMatcher.grammar_from_regex(what.source)
            else:
                source = LLMatcher.grammar_from_lark(what.source)
        except ValueError as error:
            raise RequestError(f"{what.field} is not understood: {_sentence(str(error))}") from None
        limits = LLParserLimits(
            initial_lexer_fuel=LEXER_FUEL,
            step_lexer_fuel=STEP_FUEL,
            step_max_items=STEP_ITEMS,
            max_lexer_states=LEXER_STATES,
            max_grammar_size=GRAMMAR_SYMBOLS,
            verbose_errors=False,
        )
        compiled = LLMatcher(self._open(), source, log_level=0, limits=limits)
        if compiled.is_error():
            raise RequestError(f"{what.field} is not understood: {_sentence(compiled.get_error())}")
        return compiled

    def _open(self) -> LLTokenizer:
        if self._guidance is None:
            from llguidance import LLTokenizer, TokenizerWrapper

            wrapper = TokenizerWrapper(_Vocabulary(self._tokenizer(), self._end_ids))
            self._guidance = LLTokenizer(wrapper, n_vocab=self._vocab, eos_token=sorted(self._end_ids))
        return self._guidance

    def close(self) -> None:
        """Give the grammars back."""
        with self._lock:
            for what in self._kept:
                self._account.release("grammars", self._size(what))
            self._kept.clear()
            self._masks.shutdown()


def _deep_executor() -> ThreadPoolExecutor:
    """One thread with a large stack: llguidance follows rules into each other by recursion."""
    executor = ThreadPoolExecutor(1, "finback-masks")
    before = threading.stack_size(STACK_BYTES)
    try:
        executor.submit(int).result()  # starts it
    finally:
        threading.stack_size(before)
    return executor


def _sentence(text: str) -> str:
    """The first line of a message, without its place in a file that nobody wrote."""
    line = text.strip().splitlines()[0].rstrip(".: ") if text.strip() else "no reason is given"
    return re.sub(r"^at 1\(\d+\): ", "", line)


class _Vocabulary:
    """A tokenizer as llguidance wants it."""

    def __init__(self, tokenizer: Tokenizer, end_ids: frozenset[int]) -> None:
        self._tokenizer = tokenizer
        self.eos_token_id, self.bos_token_id = min(end_ids), None
        self.tokens = [tokenizer.id_to_bytes(i) for i in range(tokenizer.vocab_size)]
        self.special_token_ids = [i for i in range(tokenizer.vocab_size) if tokenizer.is_control(i)]

    def __call__(self, text: bytes) -> list[int]:
        return self._tokenizer.encode(text.decode("utf-8", "replace"))


class Constraint:
    """Where one answer stands in its grammar. The mask of the next token is computed while the step runs that will
    need it. Where the grammar leaves no choice of text, what follows is forced, tokenized as the tokenizer does."""

    def __init__(
        self, matcher: LLMatcher, vocab: int, masks: ThreadPoolExecutor, start_after: int | None
    ) -> None:
        self._matcher, self._vocab, self._masks, self._start_after = matcher, vocab, masks, start_after
        self._forced: list[int] = []
        self._coming: Future[npt.NDArray[np.bool_]] | None = None
        self._stopped = False
        if start_after is None:
            self._prepare()

    @property
    def active(self) -> bool:
        """Whether the answer has come to what the grammar is about."""
        return self._start_after is None

    @property
    def forced(self) -> list[int]:
        """Tokens that come next whatever is drawn."""
        return self._forced

    @property
    def done(self) -> bool:
        """Whether nothing may follow."""
        return self.active and self._stopped

    def _prepare(self) -> None:
        """Look for forced tokens, else let the mask be computed."""
        self._coming = None
        self._stopped = bool(self._matcher.is_stopped())  # asked now: the matcher is another thread's soon
        if self._stopped:
            return
        self._forced = list(self._matcher.compute_ff_tokens())
        if not self._forced:
            self._coming = self._masks.submit(self._mask)

    def _mask(self) -> npt.NDArray[np.bool_]:
        bits = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
        return np.unpackbits(bits, count=self._vocab, bitorder="little").view(np.bool_)

    def apply(self, logits: npt.NDArray[np.float32]) -> None:
        """Mask what may not come next in a row f32 [V]."""
        if not self.active:
            return
        if self._forced:
            force(logits, self._forced[0])
            return
        assert self._coming is not None, "an answer that is done draws no more"
        allowed = self._coming.result()
        if self._matcher.is_error():
            raise RequestError(f"the grammar cannot go on: {_sentence(self._matcher.get_error())}; make it simpler")
        logits[~allowed] = MASKED

    def accept(self, token: int) -> None:
        """The answer goes on with a token that was allowed."""
        if not self.active:
            if token == self._start_after:
                self._start_after = None
                self._prepare()
            return
        if self._forced:
            assert token == self._forced[0]
        if not self._matcher.consume_token(token):
            raise RequestError(f"the grammar cannot go on: {_sentence(self._matcher.get_error())}; make it simpler")
        if self._forced:
            self._forced = self._forced[1:]
            if self._forced:
                return
        self._prepare()
