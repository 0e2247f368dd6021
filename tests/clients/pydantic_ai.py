"""pydantic-ai, over chat, responses and messages."""

from __future__ import annotations

from tests.clients.bench import Bench
from tests.clients.loop import check_library

PINS = ("pydantic-ai-slim[openai,anthropic]==2.68.0",)
WAYS = {"chat": "", "responses": "", "anthropic": ""}


def check(bench: Bench) -> str:
    """Two calls at once, a file written, a sentence."""
    return check_library(bench, bench.pip("pydantic-ai", *PINS), "over_pydantic_ai", WAYS)
