"""The application: every path and who answers it.

Owns the table of routes. Paths work with and without /v1, as clients differ in what they append to an address. Refuses
to know how to answer.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route as Path

from finback.server.ask import RefusedError
from finback.server.desk import Handler, Route, refused
from finback.server.dialects.ollama import NOT_HERE
from finback.server.models import Described
from finback.server.native_routes import NativeEndpoints
from finback.server.routes import Endpoints
from finback.server.service import Service
from finback.server.store import Store


def application(service: Service, described: Described, store: Store) -> Starlette:
    """The routes of one service. The engine is closed with the application."""
    endpoints, native = Endpoints(described, store), NativeEndpoints(described)
    paths: list[Path] = []

    def add(path: str, methods: str, handler: Handler, *, quiet: bool = False) -> None:
        paths.append(Path(path, Route(service, path, handler, quiet=quiet), methods=methods.split()))

    for before in ("/v1", ""):
        add(f"{before}/chat/completions", "POST", endpoints.chat)
        add(f"{before}/completions", "POST", endpoints.completions)
        add(f"{before}/responses", "POST", endpoints.responses)
        add(f"{before}/responses/input_tokens", "POST", endpoints.count_response)
        add(f"{before}/responses/{{id}}", "GET", endpoints.response, quiet=True)
        add(f"{before}/responses/{{id}}", "DELETE", endpoints.drop_response, quiet=True)
        add(f"{before}/responses/{{id}}/cancel", "POST", endpoints.cancel_response)
        add(f"{before}/messages", "POST", endpoints.messages)
        add(f"{before}/messages/count_tokens", "POST", endpoints.count_tokens, quiet=True)
        add(f"{before}/models", "GET", endpoints.models, quiet=True)
        add(f"{before}/models/{{id:path}}", "GET", endpoints.model, quiet=True)
    add("/api/chat", "POST", endpoints.ollama_chat)
    add("/api/generate", "POST", endpoints.ollama_generate)
    add("/api/tags", "GET", endpoints.tags, quiet=True)
    add("/api/ps", "GET", endpoints.ps, quiet=True)
    add("/api/show", "POST", endpoints.show, quiet=True)
    add("/api/version", "GET", endpoints.version, quiet=True)
    for name in NOT_HERE:
        path = "/api/blobs/{digest:path}" if name == "blobs" else f"/api/{name}"
        add(path, "GET POST HEAD DELETE", endpoints.not_here)
    add("/", "GET", native.root, quiet=True)
    add("/health", "GET", native.health, quiet=True)
    add("/version", "GET", native.version, quiet=True)
    add("/metrics", "GET", native.metrics, quiet=True)
    add("/props", "GET", native.props, quiet=True)
    add("/slots", "GET", native.slots, quiet=True)
    add("/prefix-cache", "GET", native.prefix_cache, quiet=True)
    add("/tokenize", "POST", native.tokenize, quiet=True)
    add("/detokenize", "POST", native.detokenize, quiet=True)
    add("/apply-template", "POST", native.apply_template, quiet=True)
    add("/tokenizer_info", "GET", native.tokenizer_info, quiet=True)
    add("/stop-thinking", "POST", native.stop_thinking, quiet=True)
    add("/unload", "POST", native.unload)

    @contextlib.asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        yield
        await service.served.close()

    return Starlette(routes=paths, lifespan=lifespan, exception_handlers={404: _lost(404), 405: _lost(405)})


def _lost(status: int) -> Callable[[Request, Exception], Awaitable[Response]]:
    """The answer to a path that is none, or a method that it does not take."""
    what = "there is no such path" if status == 404 else "the path does not take this method"

    async def answer(request: Request, _: Exception) -> Response:
        refusal = RefusedError(f"{what}; GET /v1/models shows that the server is there", status=status)
        return refused(request.scope["path"], refusal)

    return answer
