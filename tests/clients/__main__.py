"""`python -m tests.clients [NAME...]`: real clients against a server with a scripted engine.

Each is installed once, into --cache, and run in a home of its own. What failed leaves its log there.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from tests.clients import (
    claude_code,
    codex,
    langchain,
    litellm,
    lm_eval,
    openai_agents,
    opencode,
    pi,
    pydantic_ai,
    schemathesis,
)
from tests.clients.bench import Bench, ClientError, SkippedError

CLIENTS: dict[str, tuple[str, Callable[[Bench], str]]] = {
    "claude-code": (claude_code.PIN, claude_code.check),
    "codex": (codex.PIN, codex.check),
    "opencode": (opencode.PIN, opencode.check),
    "pi": (pi.PIN, pi.check),
    "litellm": (litellm.PINS[0], litellm.check),
    "langchain": (langchain.PINS[0], langchain.check),
    "pydantic-ai": (pydantic_ai.PINS[0], pydantic_ai.check),
    "openai-agents": (openai_agents.PINS[0], openai_agents.check),
    "lm-eval": (lm_eval.PINS[0], lm_eval.check),
    "schemathesis": (schemathesis.PINS[0], schemathesis.check),
}


def run(name: str, cache: Path) -> bool:
    """One client; whether nothing failed."""
    pin, check = CLIENTS[name]
    begun = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="finback-client-") as folder:
        home, work = Path(folder) / "home", Path(folder) / "work"
        home.mkdir()
        work.mkdir()
        bench = Bench(cache, home, work)
        try:
            said, verdict = check(bench), "passed"
        except SkippedError as reason:
            said, verdict = str(reason), "skipped"
        except (ClientError, AssertionError) as error:
            said, verdict = str(error), "FAILED"
            log = cache / f"{name}.log"
            log.write_text("\n".join(bench.log), encoding="utf-8")
            said += f"; see {log}"
    print(f"{name:<16} {pin:<44} {verdict} {time.monotonic() - begun:6.1f} s  {said}", flush=True)
    return verdict != "FAILED"


def main() -> None:
    """All clients, or those that are named."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(CLIENTS)}")
    parser.add_argument("--cache", type=Path, default=Path("build/clients"), help="where clients are installed")
    args = parser.parse_args()
    unknown = set(args.names) - CLIENTS.keys()
    if unknown:
        parser.error(f"no such client: {', '.join(sorted(unknown))}")
    args.cache.mkdir(parents=True, exist_ok=True)
    results = [run(name, args.cache.resolve()) for name in args.names or CLIENTS]
    sys.exit(not all(results))


if __name__ == "__main__":
    main()
