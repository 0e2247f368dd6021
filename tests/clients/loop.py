"""What a loop of tools must have done, whoever ran it."""

from __future__ import annotations

from collections.abc import Collection

from tests.clients.bench import Bench, ClientError
from tests.clients.model import ODD, Model

TASK = "Read note.txt, copy its word to copy.txt, and tell me the word."


def check_loop(bench: Bench, model: Model, said: str, *, may_fail: Collection[str] = ()) -> str:
    """ClientError, or what was done in a few words. may_fail: requests that need not be answered."""
    if model.sentence not in said:
        raise ClientError(f"it did not print {model.sentence!r}")
    ran, copy = bench.work / "ran.txt", bench.work / "copy.txt"
    if not ran.exists():
        raise ClientError("the command did not run")
    if not copy.exists():
        raise ClientError("the file was not written")
    wanted, found = ODD.replace("{word}", model.word), copy.read_text(encoding="utf-8")
    if found != wanted:
        raise ClientError(f"the file holds {found!r} and was to hold {wanted!r}")
    model.check()
    bench.check_requests(may_fail=may_fail)
    size = len(model.asked[0].prompt)
    return f"{len(model.asked)} rounds, {len(model.beside)} requests beside, prompt of {size} characters"
