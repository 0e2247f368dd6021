"""The generations of the V4 prompt format, as a table.

Owns what differs between them: the texts that ask for a reasoning effort, and which effort words they know.
Refuses an effort outside the tables below, naming `effort`. A new generation is a new `Dialect` here; what no
field can express belongs in a renderer of its own. The effort texts are facts of the format that must match
byte for byte; NOTICE names their source. Source: prompt format, worked examples.

Effort words. Clients send the words of many APIs; the V4 format has three tiers and an off switch:

    none                  thinking off
    minimal, low          low
    medium, high, xhigh   high
    max, ultra            max

This is the mapping of DeepSeek's own API. Numbers are refused: only the V4.1 format has them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from finback.errors import RequestError, shown

_ABSOLUTE_MAXIMUM = (
    "Reasoning Effort: Absolute maximum with no shortcuts permitted.\n"
    "You MUST be very thorough in your thinking and comprehensively decompose the problem to resolve the "
    "root cause, rigorously stress-testing your logic against all potential paths, edge cases, and "
    "adversarial scenarios.\n"
    "Explicitly write out your entire deliberation process, documenting every intermediate step, considered "
    "alternative, and rejected hypothesis to ensure absolutely no assumption is left unchecked.\n\n"
)
_BEYOND_MAXIMUM = (
    "Reasoning Effort: Beyond maximum — exhaustive, relentless, and uncompromising.\n"
    "You MUST reason with the utmost depth and rigor, leaving absolutely nothing to chance: exhaustively "
    "decompose the problem into its most fundamental components, trace every causal chain to its root, and "
    "resolve the underlying cause rather than any surface symptom.\n"
    "Do not stop reasoning until you have independently verified the solution from multiple angles and are "
    "certain that no assumption remains unchecked and no error remains undiscovered.\n\n"
)

EFFORT_OFF = "none"
EFFORT_WORDS: Mapping[str, str] = MappingProxyType(
    {
        "minimal": "low",
        "low": "low",
        "medium": "high",
        "high": "high",
        "xhigh": "high",
        "max": "max",
        "ultra": "max",
    }
)


@dataclass(frozen=True, slots=True)
class Dialect:
    """One generation of the prompt format.

    effort_texts: tier -> the text written before the system message in thinking mode ("" for none).
    default_effort: the tier of a request that names none.
    """

    name: str
    effort_texts: Mapping[str, str]
    default_effort: str

    def effort_text(self, effort: str | int | None) -> str | None:
        """The text that asks for `effort`, or None when `effort` turns thinking off.

        Raises RequestError naming `effort` for an unknown word and for any number.
        """
        if effort is None:
            return self.effort_texts[self.default_effort]
        if effort == EFFORT_OFF:
            return None
        tier = EFFORT_WORDS.get(effort) if isinstance(effort, str) else None
        if tier is None:
            words = ", ".join((EFFORT_OFF, *EFFORT_WORDS))
            raise RequestError(f"effort is {shown(effort)}; the {self.name} prompt format knows {words}")
        return self.effort_texts[tier]


V4_0731 = Dialect(
    "v4-0731", MappingProxyType({"low": "", "high": _ABSOLUTE_MAXIMUM, "max": _BEYOND_MAXIMUM}), "high"
)
V4_PREVIEW = Dialect(
    "v4-preview", MappingProxyType({"low": "", "high": "", "max": _ABSOLUTE_MAXIMUM}), "high"
)

DIALECTS: Mapping[str, Dialect] = MappingProxyType({d.name: d for d in (V4_0731, V4_PREVIEW)})


def find_dialect(name: str) -> Dialect:
    """The dialect called `name`. Raises RequestError listing the known names."""
    if name not in DIALECTS:
        raise RequestError(f"dialect is {shown(name)}; known prompt formats are {', '.join(DIALECTS)}")
    return DIALECTS[name]
