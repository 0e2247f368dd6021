"""OpenAI's Agents SDK, over chat and responses."""

from __future__ import annotations

from tests.clients.bench import Bench
from tests.clients.loop import check_library

PINS = ("openai-agents==0.24.0",)
WAYS = {"chat": "", "responses": ""}


def check(bench: Bench) -> str:
    """Two calls at once, a file written, a sentence."""
    return check_library(bench, bench.pip("openai-agents", *PINS), "over_openai_agents", WAYS)
