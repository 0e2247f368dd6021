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

from tests.clients import claude_code, codex, opencode, pi
from tests.clients.bench import Bench, ClientError

CLIENTS: dict[str, tuple[str, Callable[[Bench], str]]] = {
    "claude-code": (claude_code.PIN, claude_code.check),
    "codex": (codex.PIN, codex.check),
    "opencode": (opencode.PIN, opencode.check),
    "pi": (pi.PIN, pi.check),
}


def run(name: str, cache: Path) -> bool:
    """One client; whether it did what it should."""
    pin, check = CLIENTS[name]
    begun = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="finback-client-") as folder:
        home, work = Path(folder) / "home", Path(folder) / "work"
        home.mkdir()
        work.mkdir()
        bench = Bench(cache, home, work)
        try:
            said, passed = check(bench), True
        except (ClientError, AssertionError) as error:
            said, passed = str(error), False
            log = cache / f"{name}.log"
            log.write_text("\n".join(bench.log), encoding="utf-8")
            said += f"; see {log}"
    verdict = "passed" if passed else "FAILED"
    print(f"{name:<16} {pin:<40} {verdict} {time.monotonic() - begun:6.1f} s  {said}", flush=True)
    return passed


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
