"""LiteLLM, over every API that this server has, as its providers ask it."""

from __future__ import annotations

from tests.clients.bench import Bench
from tests.clients.loop import check_library

PINS = ("litellm==1.110.2",)
WAYS = {
    "openai/scripted": "/v1",
    "hosted_vllm/scripted": "/v1",
    "lm_studio/scripted": "/v1",
    "deepseek/scripted": "",
    "anthropic/scripted": "",
    "ollama_chat/scripted": "",
}


def check(bench: Bench) -> str:
    """Two calls at once, a file written, a sentence."""
    return check_library(bench, bench.pip("litellm", *PINS), "over_litellm", WAYS)
