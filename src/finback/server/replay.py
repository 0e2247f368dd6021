"""Exact replay: the tokens of turns that called tools, kept until the client sends the turn back.

Owns what is remembered of them and when a turn that comes back is the same. A client replays calls as JSON of its own
spelling; rendered anew they would be other tokens, and everything after them would have to be computed again. A turn is
found by the ids of its calls, which nobody can guess, and taken only if names, arguments, content and thinking mean
what they meant. Refuses to keep more than its budget; with a file, turns survive restarts, kill -9 too.
"""

from __future__ import annotations

import json
import os
import struct
import threading
import zlib
from collections import OrderedDict
from dataclasses import replace
from pathlib import Path

import msgspec

from finback.text.jsonform import load_json_object
from finback.text.messages import AssistantMessage, ToolCall
from finback.text.prompt import Sampled

_HEAD = struct.Struct("<II")  # bytes of the record, and their CRC-32
_LARGEST = 64 << 20


class Turn(msgspec.Struct, frozen=True, array_like=True):
    """A turn of the model that called tools: its calls, content, thinking (None without) and tokens."""

    calls: tuple[tuple[str, str, str], ...]  # id, name, arguments
    content: str
    reasoning: str | None
    ids: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """About what it takes in memory."""
        texts = len(self.content) + len(self.reasoning or "") + sum(len(a) + 100 for _, _, a in self.calls)
        return 8 * len(self.ids) + 4 * texts + 500


class Replay:
    """Turns by the id of their first call, the latest used of them in at most `budget` bytes."""

    def __init__(self, budget: int, file: Path | None = None) -> None:
        """file: where they are kept across restarts. What is damaged in it is left out."""
        self._budget, self._held, self._file = budget, 0, file
        self._turns: OrderedDict[str, Turn] = OrderedDict()
        self._lock = threading.Lock()
        self.reused = 0  # turns that were spliced in
        if file is not None:
            self._load(file)

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return self._held

    def __len__(self) -> int:
        return len(self._turns)

    def keep(self, turn: Turn) -> None:
        """Remember a turn, which has calls."""
        with self._lock:
            self._add(turn)
            if self._file is not None:
                _append(self._file, turn)

    def splice(self, message: AssistantMessage) -> AssistantMessage:
        """The message with the tokens it was drawn as, if it is a turn that is known."""
        if not message.tool_calls:
            return message
        with self._lock:
            turn = self._turns.get(min(call.id for call in message.tool_calls))
            if turn is None or not _same(message, turn):
                return message
            self._turns.move_to_end(turn.calls[0][0])
            self.reused += 1
        return replace(message, reasoning=turn.reasoning, sampled=Sampled(turn.ids, turn.content))

    def _add(self, turn: Turn) -> None:
        known = self._turns.pop(turn.calls[0][0], None)
        self._held += turn.nbytes - (known.nbytes if known else 0)
        self._turns[turn.calls[0][0]] = turn
        while self._held > self._budget:
            _, old = self._turns.popitem(last=False)
            self._held -= old.nbytes

    def _load(self, file: Path) -> None:
        """Read the file, and write it anew if much of it is not needed any more."""
        try:
            data = file.read_bytes()
        except FileNotFoundError:
            data = b""
        turns, end = _records(data)
        for turn in turns:
            self._add(turn)
        if end < len(data) or len(turns) > 2 * len(self._turns) + 100:
            fresh = file.with_name(f"{file.name}.{os.getpid()}")
            fresh.unlink(missing_ok=True)
            for turn in self._turns.values():
                _append(fresh, turn)
            fresh.touch(mode=0o600)
            fresh.replace(file)


def _same(message: AssistantMessage, turn: Turn) -> bool:
    """Whether a turn that came back is the one that was kept. Blanks around its texts do not count, and thinking may
    be missing: clients cut the former and leave out the latter."""
    if (message.reasoning is None) != (turn.reasoning is None) or len(message.tool_calls) != len(turn.calls):
        return False
    if message.reasoning and message.reasoning.strip() != (turn.reasoning or "").strip():
        return False
    calls = sorted(message.tool_calls, key=lambda call: call.id)
    return message.content.strip() == turn.content.strip() and all(map(_same_call, calls, sorted(turn.calls)))


def _same_call(call: ToolCall, kept: tuple[str, str, str]) -> bool:
    id, name, arguments = kept
    if call.id != id or call.name != name:
        return False
    return call.arguments == arguments or _spelled(call.arguments) == _spelled(arguments)


def _spelled(arguments: str) -> str:
    """Arguments in one spelling; what is no JSON stays as it is."""
    value = load_json_object(arguments)
    return arguments if value is None else json.dumps(value, sort_keys=True)


def _append(file: Path, turn: Turn) -> None:
    """One more record at the end: a write that is cut is seen by its sum, and is the last thing that is."""
    record = msgspec.msgpack.encode(turn)
    with open(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600), "wb") as out:
        out.write(_HEAD.pack(len(record), zlib.crc32(record)) + record)


def _records(data: bytes) -> tuple[list[Turn], int]:
    """The records up to the first that is damaged, and where that begins."""
    found: list[Turn] = []
    decode = msgspec.msgpack.Decoder(Turn).decode
    at = 0
    while at + _HEAD.size <= len(data):
        size, check = _HEAD.unpack_from(data, at)
        record = data[at + _HEAD.size : at + _HEAD.size + size]
        if size > _LARGEST or len(record) < size or zlib.crc32(record) != check:
            break
        try:
            turn = decode(record)
        except msgspec.DecodeError:
            break
        at += _HEAD.size + size
        if turn.calls:
            found.append(turn)
    return found, at
