"""schemathesis: random requests by the server's OpenAPI document, and whether the answers are what it says."""

from __future__ import annotations

from pathlib import Path

from tests.clients.bench import Bench, SkippedError
from tests.clients.model import Model

PINS = ("schemathesis==4.32.5",)
CHECKS = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance"


def check(bench: Bench) -> str:
    """No request makes the server fail, and none gets an answer that the document does not know. Skipped with a
    sentence where there is no document."""
    with bench.serving(Model()) as server:
        address = f"{server.url}/openapi.json"
        if server.get("/openapi.json").status_code == 404:
            raise SkippedError("the server has no /openapi.json")
        program = Path(bench.pip("schemathesis", *PINS)).parent / "schemathesis"
        options = ["--checks", CHECKS, "--max-examples", "30", "--seed", "1"]
        bench.run([str(program), "run", address, *options], seconds=600)
        return f"{len(bench.requests)} requests"
