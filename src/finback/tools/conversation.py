"""A conversation with a model: its messages, how they are asked, and its file.

Owns the list of messages and the form in which it is saved. An answer that was cut short stays in it as far as it went.
Refuses files that are not one, naming the field. Knows no terminal; `cli/chat.py` does.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from finback.engine.engine import Engine
from finback.engine.result import Event, Usage
from finback.engine.sampling import Sampling
from finback.errors import FinbackError, RequestError, shown
from finback.text.messages import messages_from_json
from finback.text.render import END_THINK

FORMAT = "finback-chat"
VERSION = 1
MAX_FILE = 256 << 20

Kind = Literal["thinking", "answer"]


class ThinkingSplit:
    """Text of an answer as it comes, cut at the end of thinking. However it comes in pieces, the parts are the same."""

    def __init__(self, thinking: bool) -> None:
        self.thinking = thinking
        self._held = ""

    def feed(self, text: str) -> Iterator[tuple[Kind, str]]:
        """The parts that are certain."""
        if not self.thinking:
            if text:
                yield "answer", text
            return
        whole = self._held + text
        before, mark, after = whole.partition(END_THINK)
        if mark:
            self.thinking, self._held = False, ""
            parts: list[tuple[Kind, str]] = [("thinking", before), ("answer", after)]
        else:
            keep = next(n for n in range(len(END_THINK) - 1, -1, -1) if whole.endswith(END_THINK[:n]))
            self._held = whole[len(whole) - keep :]
            parts = [("thinking", whole[: len(whole) - keep])]
        yield from (part for part in parts if part[1])

    def finish(self) -> Iterator[tuple[Kind, str]]:
        """What was held back, when nothing more comes."""
        if self._held:
            yield "thinking", self._held
        self._held = ""


@dataclass
class Conversation:
    """Messages in OpenAI's shape, the system message apart, and how the next one is asked."""

    sampling: Sampling = field(default_factory=Sampling)
    system: str | None = None
    thinking: bool = False
    effort: str | None = None
    turns: list[dict[str, str]] = field(default_factory=list)
    last: Event | None = None

    @property
    def messages(self) -> list[dict[str, str]]:
        """All of it, as the engine takes it."""
        first = [] if self.system is None else [{"role": "system", "content": self.system}]
        return [*first, *self.turns]

    def count(self, engine: Engine) -> int:
        """Tokens of the conversation."""
        return len(self.tokens(engine))

    def tokens(self, engine: Engine) -> list[int]:
        """The conversation as tokens, rendered for the next turn."""
        return engine.encode(self.messages, thinking=self.thinking, effort=self.effort) if self.messages else []

    def ask(
        self, engine: Engine, text: str, on_prefill: Callable[[int, int], None] | None = None
    ) -> Iterator[tuple[Kind, str]]:
        """Say something, and hear the answer in pieces. Closing the iterator keeps what was said so far; a question
        that is refused, or whose answer fails, leaves the conversation as it was."""
        self.turns.append({"role": "user", "content": text})
        try:
            events = engine.stream(
                self.messages,
                self.sampling,
                thinking=self.thinking,
                effort=self.effort,
                on_prefill=on_prefill,
            )
        except BaseException:
            self.turns.pop()
            raise
        parts: dict[Kind, list[str]] = {"thinking": [], "answer": []}
        try:
            split = ThinkingSplit(self.thinking)
            for event in events:
                self.last = event if event.usage is not None else self.last
                for kind, piece in split.feed(event.text):
                    parts[kind].append(piece)
                    yield kind, piece
            for kind, piece in split.finish():
                parts[kind].append(piece)
                yield kind, piece
        except FinbackError:
            self.turns.pop()
            raise
        except (GeneratorExit, KeyboardInterrupt):
            self._add_answer(parts)
            raise
        self._add_answer(parts)

    def _add_answer(self, parts: dict[Kind, list[str]]) -> None:
        answer = {"role": "assistant", "content": "".join(parts["answer"])}
        if parts["thinking"]:
            answer["reasoning_content"] = "".join(parts["thinking"])
        self.turns.append(answer)

    def undo(self) -> str | None:
        """Take the last question and its answer back; the question, or None if there is none."""
        while self.turns:
            turn = self.turns.pop()
            if turn["role"] == "user":
                return turn["content"]
        return None

    def warm(self, engine: Engine, on_prefill: Callable[[int, int], None] | None = None) -> Usage:
        """Read the conversation, so that the next answer starts at once."""
        if not self.messages:
            return Usage()
        return engine.prefill(self.messages, thinking=self.thinking, effort=self.effort, on_prefill=on_prefill)

    # ---- files

    def save(self, path: Path, engine: Engine, *, replace: bool = False) -> None:
        """Write it as JSON, readable by its owner only. RequestError if the file exists and is not to be replaced, or
        cannot be written."""
        record = {
            "format": FORMAT,
            "version": VERSION,
            "model": engine.path.name,
            "system": self.system,
            "thinking": self.thinking,
            "effort": self.effort,
            "sampling": {k: v for k, v in dataclasses.asdict(self.sampling).items() if v not in (None, (), {})},
            "messages": self.turns,
            "tokens": self.tokens(engine),
        }
        try:
            if path.exists() and not replace:
                raise RequestError(f"{path} exists; give another name, or /save! {path} to replace it")
            temporary = path.with_name(path.name + ".part")
            with suppress(FileNotFoundError):
                temporary.unlink()
            with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as f:
                json.dump(record, f, ensure_ascii=False, indent=1)
            temporary.replace(path)
        except OSError as error:
            raise RequestError(f"{path}: {error.strerror}; choose another place") from None

    def load(self, path: Path) -> list[int]:
        """Become the conversation of a file; the tokens it was saved with. RequestError naming what is wrong with it;
        nothing changes then."""
        record = _read(path)
        turns = _turns(path, record.get("messages"))
        system, thinking, effort = record.get("system"), record.get("thinking"), record.get("effort")
        for name, value, kind in (("system", system, str), ("effort", effort, str), ("thinking", thinking, bool)):
            if not isinstance(value, kind) and not (value is None and kind is str):
                raise RequestError(f"{path}: {name} is {shown(value)}; the file was not written by finback chat")
        tokens = record.get("tokens")
        if not isinstance(tokens, list) or not all(type(token) is int and token >= 0 for token in tokens):
            raise RequestError(f"{path}: tokens is no list of token ids; the file was not written by finback chat")
        options = record.get("sampling")
        known = {f.name for f in dataclasses.fields(Sampling)}
        if not isinstance(options, dict) or not set(options) <= known:
            raise RequestError(f"{path}: sampling is {shown(options)}; the file was not written by finback chat")
        self.sampling = Sampling(**options)
        self.system, self.thinking, self.effort = system, bool(thinking), effort
        self.turns, self.last = turns, None
        return tokens


def _read(path: Path) -> dict[str, Any]:
    try:
        if path.stat().st_size > MAX_FILE:
            raise RequestError(f"{path} has more than {MAX_FILE >> 20} MiB; that is no conversation")
        record = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise RequestError(f"{path}: {error.strerror}; give a file that /save wrote") from None
    except (ValueError, RecursionError):
        raise RequestError(f"{path} is not JSON; give a file that /save wrote") from None
    if not isinstance(record, dict) or record.get("format") != FORMAT:
        raise RequestError(f"{path} is no conversation; give a file that /save wrote")
    if record.get("version") != VERSION:
        raise RequestError(f"{path} has version {shown(record.get('version'))}; this finback reads version {VERSION}")
    return record


def _turns(path: Path, turns: object) -> list[dict[str, str]]:
    if not isinstance(turns, list):
        raise RequestError(f"{path}: messages is {shown(turns)}; the file was not written by finback chat")
    found = []
    for i, turn in enumerate(turns):
        good = isinstance(turn, dict) and all(isinstance(v, str) for v in turn.values())
        if not good or turn.get("role") not in ("user", "assistant"):
            raise RequestError(f"{path}: messages[{i}] is {shown(turn)}; the file was not written by finback chat")
        found.append({str(k): str(v) for k, v in turn.items() if k in ("role", "content", "reasoning_content")})
    if found:
        messages_from_json(found, thinking=True)
    return found
