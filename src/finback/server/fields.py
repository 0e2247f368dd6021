"""Fields of a JSON object, read with their types checked.

Owns the sentences about fields that are missing or of a wrong type, each with the field's path, and knowing which
fields nobody asked for. Refuses to guess: true is no number, "10" is none either. null counts as left out, as clients
send it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from finback.errors import shown
from finback.server.ask import RefusedError


class Fields:
    """The fields of `body`; `path` leads to it from the top ("" is the top)."""

    def __init__(self, body: object, path: str = "") -> None:
        if not isinstance(body, Mapping):
            raise RefusedError(f"{path or 'the body'} is {shown(body)}; give an object", field=path or None)
        self._body, self._path = body, path
        self._read: set[str] = set()
        self._inner: list[Fields] = []

    def path(self, name: str) -> str:
        """The path of a field from the top."""
        return f"{self._path}.{name}" if self._path else name

    def refuse(self, name: str, wanted: str) -> RefusedError:
        """The refusal of a field's value: what it is, and what to give instead."""
        return RefusedError(f"{self.path(name)} is {shown(self._body.get(name))}; {wanted}", field=self.path(name))

    def value(self, name: str) -> Any:
        """The value, or None."""
        self._read.add(name)
        return self._body.get(name)

    def has(self, name: str) -> bool:
        """Whether it is there and not null."""
        return self.value(name) is not None

    def string(self, name: str) -> str | None:
        """Text, or None."""
        value = self.value(name)
        if value is not None and not isinstance(value, str):
            raise self.refuse(name, "give a string")
        return value

    def needed(self, name: str) -> str:
        """Text that must be there."""
        value = self.string(name)
        if not value:
            raise self.refuse(name, "give a string") if name in self._body else self.missing(name)
        return value

    def missing(self, name: str) -> RefusedError:
        """The refusal of a body without a field."""
        return RefusedError(f"{self.path(name)} is missing; give it", field=self.path(name))

    def boolean(self, name: str, default: bool = False) -> bool:
        """true or false."""
        value = self.value(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.refuse(name, "give true or false")
        return value

    def whole(self, name: str, low: int, high: int) -> int | None:
        """A whole number in [low, high]; 3.0 is one."""
        value = self.value(name)
        if value is None:
            return None
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
            raise self.refuse(name, f"give a whole number from {low} to {high}")
        return value

    def number(self, name: str, low: float, high: float) -> float | None:
        """A number in [low, high]."""
        value = self.value(name)
        if value is None:
            return None
        if not isinstance(value, int | float) or isinstance(value, bool) or not low <= value <= high:
            raise self.refuse(name, f"give a number from {low:g} to {high:g}")
        return float(value) if math.isfinite(value) else None

    def items(self, name: str) -> Sequence[Any] | None:
        """A list, or None."""
        value = self.value(name)
        if value is not None and not isinstance(value, list | tuple):
            raise self.refuse(name, "give a list")
        return value

    def inner(self, name: str) -> Fields | None:
        """An object, or None. Its unknown fields count among those of this one."""
        value = self.value(name)
        if value is None:
            return None
        inner = Fields(value, self.path(name))
        self._inner.append(inner)
        return inner

    def within(self, value: object, where: str) -> Fields:
        """An object in a list or the like; `where` is its path from here."""
        inner = Fields(value, self.path(where))
        self._inner.append(inner)
        return inner

    def one_of(self, name: str, words: Iterable[str]) -> str | None:
        """One of some words, or None."""
        value, words = self.value(name), tuple(words)
        if value is not None and (not isinstance(value, str) or value not in words):
            raise self.refuse(name, f"give one of {', '.join(words)}")
        return value

    def strings(self, name: str) -> tuple[str, ...]:
        """A string or a list of them, none of them empty; () if left out."""
        value = self.value(name)
        if value is None:
            return ()
        values = (value,) if isinstance(value, str) else value
        if not isinstance(values, list | tuple) or not all(isinstance(v, str) and v for v in values):
            raise self.refuse(name, "give a string or a list of strings, none empty")
        return tuple(values)

    def cannot(self, name: str, *harmless: object, why: str) -> None:
        """Refuse a known field that is not honoured here, unless its value asks for nothing."""
        value = self.value(name)
        if value is not None and not any(value is h or (value == h and type(value) is type(h)) for h in harmless):
            raise self.refuse(name, f"{why}; leave it out")

    def known(self, *names: str) -> None:
        """Fields that are taken and need nothing done."""
        self._read.update(names)

    def unknown(self) -> tuple[str, ...]:
        """Paths of the fields nobody asked for, here and in the objects within."""
        mine = [self.path(name) for name in self._body if name not in self._read]
        return tuple(mine + [path for inner in self._inner for path in inner.unknown()])
