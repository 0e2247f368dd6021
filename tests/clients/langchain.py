"""LangChain's OpenAI package, over chat and responses."""

from __future__ import annotations

from tests.clients.bench import Bench
from tests.clients.loop import check_library

PINS = ("langchain-openai==1.7.4",)
WAYS = {"chat": "", "responses": ""}


def check(bench: Bench) -> str:
    """Two calls at once, a file written, a sentence."""
    return check_library(bench, bench.pip("langchain", *PINS), "over_langchain", WAYS)
