"""Claude Code, over Anthropic's messages."""

from __future__ import annotations

from tests.clients.bench import Bench
from tests.clients.loop import AGAIN, TASK, check_loop
from tests.clients.model import ODD, Call, Model

PIN = "@anthropic-ai/claude-code@2.1.332"


def check(bench: Bench) -> str:
    """Two calls at once, a file written, a sentence."""
    program = bench.npm(PIN, "claude")
    copy = str(bench.work / "copy.txt")
    model = Model(
        [
            [
                Call("Read", {"file_path": str(bench.work / "note.txt")}),
                Call("Bash", {"command": "echo ran > ran.txt", "description": "Write a file"}),
            ],
            [Call("Write", {"file_path": copy, "content": ODD})],
        ]
    )
    with bench.serving(model) as server:
        env = {
            "ANTHROPIC_BASE_URL": server.url,
            "ANTHROPIC_AUTH_TOKEN": "none",
            "ANTHROPIC_MODEL": "scripted",
            "ANTHROPIC_DEFAULT_HAIKU_MODEL": "scripted",
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            "CLAUDE_CODE_MAX_CONTEXT_TOKENS": "1000000",
        }
        allowed = ["--permission-mode", "acceptEdits", "--allowedTools", "Bash,Read,Write"]
        said = bench.run([program, "-p", TASK, *allowed], env)
        again = bench.run([program, "-p", "--continue", AGAIN], env)
        return check_loop(bench, model, said, again)
