"""pi, over OpenAI's chat completions and responses, and Anthropic's messages."""

from __future__ import annotations

import json

from tests.clients.bench import Bench
from tests.clients.loop import AGAIN, TASK, check_loop
from tests.clients.model import ODD, Call, Model

PIN = "@earendil-works/pi-coding-agent@1.6.0"


APIS = {"openai-completions": "/v1", "openai-responses": "/v1", "anthropic-messages": ""}
"""What comes after the server's address."""


def check(bench: Bench) -> str:
    """Two calls at once, a file written, a sentence: over each of the APIs that pi speaks."""
    program = bench.npm(PIN, "pi")
    return "; ".join(f"{api}: {_loop(bench, program, api, path)}" for api, path in APIS.items())


def _loop(bench: Bench, program: str, api: str, path: str) -> str:
    bench.clear()
    model = Model(
        [
            [Call("read", {"path": "note.txt"}), Call("bash", {"command": "echo ran > ran.txt"})],
            [Call("write", {"path": "copy.txt", "content": ODD})],
        ]
    )
    with bench.serving(model) as server:
        described = {
            "id": "scripted",
            "name": "scripted",
            "reasoning": True,
            "input": ["text"],
            "contextWindow": 1_000_000,
            "maxTokens": 32_000,
            "cost": {"input": 0, "output": 0, "cacheRead": 0, "cacheWrite": 0},
        }
        provider = {
            "baseUrl": server.url + path,
            "api": api,
            "apiKey": "none",
            "models": [described],
        }
        settings = bench.home / ".pi" / "agent"
        settings.mkdir(parents=True)
        (settings / "models.json").write_text(json.dumps({"providers": {"finback": provider}}), encoding="utf-8")
        command, env = [program, "--provider", "finback", "--model", "scripted", "-p"], {"PI_OFFLINE": "1"}
        said, again = bench.run([*command, TASK], env), bench.run([*command, "--continue", AGAIN], env)
        return check_loop(bench, model, said, again)
