"""What a loop of tools must have done, whoever ran it."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from tests.clients.bench import Bench, ClientError
from tests.clients.model import ODD, Call, Model

AGAIN = "Say it again."
TASK = "Read note.txt, copy its word to copy.txt, and tell me the word."


def check_loop(
    bench: Bench, model: Model, said: str, again: str | None = None, *, may_fail: Collection[str] = ()
) -> str:
    """ClientError, or what was done in a few words. said: what was printed. again: and in a second turn, for which the
    client was started anew. may_fail: requests that need not be answered."""
    turns = [said] if again is None else [said, again]
    for turn in turns:
        if model.sentence not in turn:
            raise ClientError(f"it did not print {model.sentence!r}")
    ran, copy = bench.work / "ran.txt", bench.work / "copy.txt"
    if not ran.exists():
        raise ClientError("the command did not run")
    if not copy.exists():
        raise ClientError("the file was not written")
    wanted, found = ODD.replace("{word}", model.word), copy.read_text(encoding="utf-8")
    if found != wanted:
        raise ClientError(f"the file holds {found!r} and was to hold {wanted!r}")
    model.check(len(turns))
    bench.check_requests(may_fail=may_fail)
    size, count = len(model.asked[0].prompt), len(turns)
    requests = f"{len(model.asked)} requests in {count} turn{'s' if count > 1 else ''}"
    return f"{requests}, {len(model.beside)} beside, first prompt of {size} characters"


def check_library(bench: Bench, python: str, program: str, ways: Mapping[str, str]) -> str:
    """ClientError, or what was done: a loop of tools for each way in which a library can ask. ways: what the program
    is given, and what comes after the server's address."""
    done = []
    for way, path in ways.items():
        bench.clear()
        read, run = Call("read", {"path": "note.txt"}), Call("run", {"command": "echo ran > ran.txt", "seconds": 5})
        model = Model([[read, run], [Call("write", {"path": "copy.txt", "content": ODD})]])
        with bench.serving(model) as server:
            said = bench.program(python, program, server.url + path, way, TASK)
            done.append(f"{way}: {check_loop(bench, model, said)}")
    return "; ".join(done)
