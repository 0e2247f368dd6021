"""The one spelling of JSON that the prompt format uses, and the one reading of JSON it accepts.

Owns the exact characters: ", " and ": " between items, Unicode unescaped, keys in their order, and numbers
as the published encoder prints them (integers of 64 bits, other numbers as shortest doubles). A different
spelling is a different prompt: other tokens, and no prefix reuse. Refuses what has no such spelling: NaN,
infinities, keys that are not strings, nesting beyond MAX_DEPTH. Source: prompt format, tool section.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping

MAX_DEPTH = 127  # containers inside each other; the published encoder reads no deeper
INT_RANGE = (-(2**63), 2**64 - 1)  # integers beyond become doubles, as in the published encoder

_quote: Callable[[str], str] = json.JSONEncoder(ensure_ascii=False).encode


def dump_json(value: object) -> str:
    """`value` (dict, list, tuple, str, int, float, bool, None) in the format's spelling.

    Raises ValueError for anything else, a number without spelling, or nesting beyond MAX_DEPTH.
    """
    out: list[str] = []
    _write(value, out, MAX_DEPTH)
    return "".join(out)


def load_json_object(text: str) -> dict[str, object] | None:
    """The JSON object that `text` is, or None when it is not exactly one that `dump_json` can spell.

    Of a repeated key the last value counts, at the place of the first, as the published encoder does.
    """
    try:
        value = json.loads(text, parse_int=_integer, parse_float=_double, parse_constant=_refuse)
        if not isinstance(value, dict):
            return None
        dump_json(value).encode()  # depth, and lone surrogates that no UTF-8 text can hold
    except (ValueError, RecursionError):
        return None
    return value


def _write(value: object, out: list[str], depth: int) -> None:
    if isinstance(value, str):
        out.append(_quote(value))
    elif value is None:
        out.append("null")
    elif isinstance(value, bool):
        out.append("true" if value else "false")
    elif isinstance(value, int):
        out.append(str(value) if INT_RANGE[0] <= value <= INT_RANGE[1] else _spell_double(float(value)))
    elif isinstance(value, float):
        out.append(_spell_double(value))
    elif depth == 0:
        raise ValueError(f"nested deeper than {MAX_DEPTH} levels")
    elif isinstance(value, Mapping):
        out.append("{")
        for index, (key, item) in enumerate(value.items()):
            if not isinstance(key, str):
                raise ValueError(f"key {key!r} is not a string")
            out.extend((", " if index else "", _quote(key), ": "))
            _write(item, out, depth - 1)
        out.append("}")
    elif isinstance(value, list | tuple):
        out.append("[")
        for index, item in enumerate(value):
            out.append(", " if index else "")
            _write(item, out, depth - 1)
        out.append("]")
    else:
        raise ValueError(f"{type(value).__name__} has no JSON form")


def _spell_double(value: float) -> str:
    """Shortest digits that read back as `value`: Python's, except where it writes e-05 to e-09."""
    if not math.isfinite(value):
        raise ValueError(f"{value} has no JSON form")
    text = repr(value)
    digits, _, exponent = text.partition("e-0")
    if not exponent:
        return text
    if exponent != "5":
        return f"{digits}e-{exponent}"
    sign, figures = ("-", digits[1:]) if digits.startswith("-") else ("", digits)
    return f"{sign}0.0000{figures.replace('.', '')}"


def _integer(text: str) -> int | float:
    if text == "-0":
        return -0.0
    if len(text) > 20:  # longer than any 64-bit integer, and Python caps the digits it converts
        return _double(text)
    value = int(text)
    return value if INT_RANGE[0] <= value <= INT_RANGE[1] else float(value)


def _double(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text[:20]} is beyond the range of a double")
    return value


def _refuse(text: str) -> object:
    raise ValueError(f"{text} is not JSON")
