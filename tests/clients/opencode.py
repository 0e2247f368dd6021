"""opencode, over OpenAI's chat completions."""

from __future__ import annotations

import json

from tests.clients.bench import Bench
from tests.clients.loop import AGAIN, TASK, check_loop
from tests.clients.model import ODD, Call, Model

PIN = "opencode-ai@1.18.33"


def check(bench: Bench) -> str:
    """Two calls at once, a file written, a sentence; a title beside."""
    program = bench.npm(PIN, "opencode")
    copy = str(bench.work / "copy.txt")
    model = Model(
        [
            [
                Call("read", {"filePath": str(bench.work / "note.txt")}),
                Call("bash", {"command": "echo ran > ran.txt", "description": "Write a file"}),
            ],
            [Call("write", {"filePath": copy, "content": ODD})],
        ]
    )
    with bench.serving(model) as server:
        provider = {
            "npm": "@ai-sdk/openai-compatible",
            "options": {"baseURL": f"{server.url}/v1", "apiKey": "none"},
            "models": {"scripted": {"name": "scripted", "limit": {"context": 1_000_000, "output": 32_000}}},
        }
        settings = {"autoupdate": False, "share": "disabled", "provider": {"finback": provider}}
        (bench.work / "opencode.json").write_text(json.dumps(settings), encoding="utf-8")
        env = {"OPENCODE_DISABLE_AUTOUPDATE": "1", "OPENCODE_DISABLE_MODELS_FETCH": "1"}
        said = bench.run([program, "run", "-m", "finback/scripted", TASK], env)
        again = bench.run([program, "run", "-m", "finback/scripted", "--continue", AGAIN], env)
        return check_loop(bench, model, said, again)
