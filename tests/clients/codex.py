"""Codex, over OpenAI's responses."""

from __future__ import annotations

from tests.clients.bench import Bench
from tests.clients.loop import AGAIN, TASK, check_loop
from tests.clients.model import ODD, Call, Model

PIN = "@openai/codex@0.171.0"


def check(bench: Bench) -> str:
    """Two calls at once, a file written, a sentence."""
    program = bench.npm(PIN, "codex")
    model = Model(
        [
            [Call("exec_command", {"cmd": "cat note.txt"}), Call("exec_command", {"cmd": "echo ran > ran.txt"})],
            [Call("exec_command", {"cmd": f"cat > copy.txt <<'THE END'\n{ODD}THE END"})],
        ]
    )
    with bench.serving(model) as server:
        provider = f'{{name="finback",base_url="{server.url}/v1",wire_api="responses"}}'
        settings = [
            "model=scripted",
            "model_context_window=1000000",
            "sandbox_mode=danger-full-access",
            "model_provider=finback",
            f"model_providers.finback={provider}",
        ]
        options = [part for setting in settings for part in ("-c", setting)]
        options.append("--skip-git-repo-check")
        said = bench.run([program, "exec", *options, TASK])
        again = bench.run([program, "exec", "resume", *options, "--last", AGAIN])
        return check_loop(bench, model, said, again)
