"""pi, over OpenAI's chat completions."""

from __future__ import annotations

import json

from tests.clients.bench import Bench
from tests.clients.loop import TASK, check_loop
from tests.clients.model import ODD, Call, Model

PIN = "@earendil-works/pi-coding-agent@1.6.0"


def check(bench: Bench) -> str:
    """Two calls at once, a file written, a sentence."""
    program = bench.npm(PIN, "pi")
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
            "baseUrl": f"{server.url}/v1",
            "api": "openai-completions",
            "apiKey": "none",
            "models": [described],
        }
        settings = bench.home / ".pi" / "agent"
        settings.mkdir(parents=True)
        (settings / "models.json").write_text(json.dumps({"providers": {"finback": provider}}), encoding="utf-8")
        said = bench.run([program, "--provider", "finback", "--model", "scripted", "-p", TASK], {"PI_OFFLINE": "1"})
        return check_loop(bench, model, said)
