"""What every route does: read a body, answer or refuse in the dialect of the path, and write the line.

Owns how errors become answers of HTTP. Refuses to let one go to the client as it is: what nobody foresaw is a 500 with
a sentence, and its trace goes to the log.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from finback.server.account import Entry
from finback.server.ask import RefusedError
from finback.server.bodies import ClientGoneError, read_json
from finback.server.live import GoneError, Streamed
from finback.server.service import Service
from finback.server.tongues import error_of
from finback.server.wire import to_json

log = logging.getLogger("finback.server")

Handler = Callable[["Visit"], Awaitable[Any]]


class Visit:
    """A request at a route: what it says, and its line. `body` is there after `read`."""

    def __init__(self, service: Service, request: Request, entry: Entry) -> None:
        self.service, self.request, self.entry = service, request, entry
        self.receive = request.receive

    async def read(self) -> object:
        """The body, which is JSON. RefusedError if it is not."""
        settings = self.service.settings
        return await read_json(self.receive, self.request.scope["headers"], settings.body_limit, settings.body_seconds)

    @property
    def id(self) -> str:
        """What the path names."""
        return str(self.request.path_params["id"])


class Route:
    """A route of the application. path: what its requests are counted by, with names for what differs. quiet: no line
    is written, and it is not counted."""

    def __init__(self, service: Service, path: str, handler: Handler, *, quiet: bool = False) -> None:
        self._service, self._path, self._handler, self._quiet = service, path, handler, quiet

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        entry = Entry(self._path)
        visit = Visit(self._service, Request(scope, receive), entry)
        with contextlib.suppress(GoneError, ClientGoneError):
            async with self._closing(entry):
                response = await self._answer(visit)
                if not entry.streams:
                    entry.status = response.status_code
            # Outside: a stream writes its own line when it ends.
            await response(scope, receive, send)

    @contextlib.asynccontextmanager
    async def _closing(self, entry: Entry) -> AsyncIterator[None]:
        """Write the line of a request that has no stream."""
        try:
            yield
        except (GoneError, ClientGoneError):
            entry.status, entry.ended = 499, "client gone"
            raise
        finally:
            if not self._quiet and not entry.streams:
                self._service.account.close(entry)

    async def _answer(self, visit: Visit) -> Any:
        path = visit.request.scope["path"]
        try:
            response = await self._handler(visit)
            visit.entry.streams = isinstance(response, Streamed)
            return response
        except RefusedError as refusal:
            return refused(path, refusal)
        except (GoneError, ClientGoneError):
            raise
        except Exception:
            log.exception("a request of %s failed", path)
            return refused(path, RefusedError("something failed here; the server's log says what", status=500))


def refused(path: str, refusal: RefusedError) -> Response:
    """The answer that refuses a request."""
    headers = {"retry-after": str(refusal.retry_after)} if refusal.retry_after is not None else {}
    body = to_json(error_of(path, refusal))
    return Response(body, refusal.status, headers, "application/json")


def said(body: Any, status: int = 200) -> Response:
    """An answer that is JSON."""
    return Response(to_json(body), status, media_type="application/json")
