"""The endpoints of OpenAI's, Anthropic's and Ollama's APIs.

Owns which path is which endpoint, and what an endpoint needs beside its dialect: the answers that are kept, the list of
models. Refuses to know JSON shapes; the dialects do.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from finback import __version__
from finback.server import several
from finback.server.answer import Outcome
from finback.server.ask import Chat, RefusedError, Stamp
from finback.server.desk import Visit, said
from finback.server.dialects import messages, ollama, ollama_models, responses
from finback.server.dialects.messages import Listed
from finback.server.dialects.ollama_models import ServedModel
from finback.server.models import Described
from finback.server.store import Store
from finback.server.tongues import CHAT, MESSAGES, OLLAMA_CHAT, OLLAMA_GENERATE, RESPONSES, Tongue


class Endpoints:
    """The handlers. described: what is told of the model. store: answers that are kept."""

    def __init__(self, described: Described, store: Store) -> None:
        self._described, self._store = described, store

    # ---- OpenAI

    async def chat(self, visit: Visit) -> Any:
        return await _answered(visit, CHAT)

    async def completions(self, visit: Visit) -> Any:
        return await several.respond(visit.service, await visit.read(), visit.receive, visit.entry)

    async def models(self, visit: Visit) -> Any:
        return said(messages.models_body(self._listed(visit)) | {"models": self._tags(visit)})

    async def model(self, visit: Visit) -> Any:
        visit.service.check_model(visit.id)
        listed = self._listed(visit)[0]
        return said(messages.model_body(replace(listed, id=visit.id)) | self._limits())

    def _listed(self, visit: Visit) -> list[Listed]:
        d = self._described
        return [Listed(name, d.modified, d.context) for name in visit.service.served.names.listed]

    def _limits(self) -> dict[str, Any]:
        """The length of the context by the names that clients look for."""
        context = self._described.context
        return {"max_model_len": context, "context_length": context, "context_window": context}

    # ---- OpenAI responses

    async def responses(self, visit: Visit) -> Any:
        body = await visit.read()
        previous = responses.previous_of(body)
        earlier = self._store.get(previous)
        items = earlier.items if earlier is not None else ()
        ask, style = responses.read(body, visit.service.settings.defaults, items)

        def keep(stamp: Stamp, outcome: Outcome) -> None:
            assert isinstance(body, Mapping)
            said_items = responses.output_items(style, stamp, outcome)
            told = responses.whole(style, stamp, outcome)
            self._store.keep(f"resp_{stamp.id}", told, [*items, *responses.items_of(body), *said_items])

        on_outcome = keep if style.store else None
        return await visit.service.respond(
            RESPONSES, ask, style, visit.receive, visit.entry, on_outcome=on_outcome
        )

    async def response(self, visit: Visit) -> Any:
        kept = self._store.get(visit.id)
        if kept is None:
            raise _no_response(visit.id)
        return said(kept.body)

    async def drop_response(self, visit: Visit) -> Any:
        if not self._store.drop(visit.id):
            raise _no_response(visit.id)
        return said({"id": visit.id, "object": "response", "deleted": True})

    async def cancel_response(self, visit: Visit) -> Any:
        """A response that is being written ends; one that is over stays as it is."""
        for running in visit.service.running.get(visit.id, ()):
            running.cancel()
        kept = self._store.get(visit.id)
        if kept is None and visit.id not in visit.service.running:
            raise _no_response(visit.id)
        body = kept.body if kept is not None else {"id": visit.id, "object": "response", "status": "cancelled"}
        return said(body)

    async def count_response(self, visit: Visit) -> Any:
        body = await visit.read()
        earlier = self._store.get(responses.previous_of(body))
        ask, _ = responses.read(body, visit.service.settings.defaults, earlier.items if earlier else ())
        _, prepared = await visit.service.prepare(ask, visit.receive)
        return said({"object": "response.input_tokens", "input_tokens": len(prepared.encoded.ids)})

    # ---- Anthropic

    async def messages(self, visit: Visit) -> Any:
        return await _answered(visit, MESSAGES)

    async def count_tokens(self, visit: Visit) -> Any:
        ask = messages.read_count(await visit.read(), visit.service.settings.defaults)
        _, prepared = await visit.service.prepare(ask, visit.receive)
        return said(messages.count_body(len(prepared.encoded.ids)))

    # ---- Ollama

    async def ollama_chat(self, visit: Visit) -> Any:
        return await self._ollama(visit, OLLAMA_CHAT)

    async def ollama_generate(self, visit: Visit) -> Any:
        return await self._ollama(visit, OLLAMA_GENERATE)

    async def _ollama(self, visit: Visit, tongue: Tongue) -> Any:
        service, served = visit.service, visit.service.served
        ask, style = tongue.read(await visit.read(), service.settings.defaults)
        stamp = service.stamp(_untagged(ask.model, visit))
        stamp = replace(stamp, model=ask.model)  # told as it was asked for
        if style.load_only:
            if style.keep_alive == 0:
                served.keep_for(0)
            else:
                await served.open()
                if style.keep_alive is not None:
                    served.keep_for(style.keep_alive)
            visit.entry.ended = "unload" if style.keep_alive == 0 else "load"
            return said(ollama.loaded(style, stamp, style.keep_alive == 0))
        response = await service.respond(tongue, ask, style, visit.receive, visit.entry, stamp=stamp)
        if style.keep_alive is not None:
            served.keep_for(style.keep_alive)
        return response

    async def tags(self, visit: Visit) -> Any:
        return said(ollama_models.tags(self._models(visit)))

    async def ps(self, visit: Visit) -> Any:
        loaded = visit.service.served.runner is not None
        return said(ollama_models.ps(self._models(visit)[:1] if loaded else []))

    async def show(self, visit: Visit) -> Any:
        name = ollama_models.read_show(await visit.read())
        visit.service.check_model(_untagged(name, visit))
        return said(ollama_models.show(replace(self._models(visit)[0], name=name)))

    async def version(self, visit: Visit) -> Any:
        return said(ollama_models.version(__version__))

    async def not_here(self, visit: Visit) -> Any:
        raise ollama.not_here(visit.request.scope["path"].split("/")[2])

    def _models(self, visit: Visit) -> list[ServedModel]:
        served = visit.service.served
        runner = served.runner
        memory = 0 if runner is None else sum(v for k, v in runner.engine.memory().items() if k != "budget")
        return [
            replace(self._described.for_ollama(name), memory=memory, expires=served.expires)
            for name in served.names.listed
        ]

    def _tags(self, visit: Visit) -> Any:
        return ollama_models.tags(self._models(visit))["models"]


def _untagged(name: str, visit: Visit) -> str:
    """A model's name as the server knows it: Ollama's clients may add `:latest`."""
    plain = name.removesuffix(":latest")
    return name if visit.service.served.names.has(name) else plain


async def _answered(visit: Visit, tongue: Tongue) -> Any:
    ask, style = tongue.read(await visit.read(), visit.service.settings.defaults)
    if isinstance(ask.prompt, Chat) and not ask.prompt.messages:
        raise RefusedError("messages is empty; give at least one message", field="messages")
    return await visit.service.respond(tongue, ask, style, visit.receive, visit.entry)


def _no_response(id: str) -> RefusedError:
    return RefusedError(f"no response {id[:80]} is kept here", status=404, code="not_found")


