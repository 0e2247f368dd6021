"""Endpoints of the server's own: health, metrics, tokens, and what the engine holds.

Owns their shapes, which follow what other servers made usual. Refuses to show a word of anybody's prompt.
"""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import Any

from starlette.responses import Response

from finback import __version__
from finback.engine.sampling import LARGEST_ID
from finback.errors import RequestError
from finback.server.ask import RefusedError
from finback.server.desk import Visit, said
from finback.server.dialects import chat
from finback.server.fields import Fields
from finback.server.models import Described
from finback.server.runner import refused

MOST_IDS = 4 << 20


class NativeEndpoints:
    """The handlers."""

    def __init__(self, described: Described) -> None:
        self._described = described

    async def root(self, visit: Visit) -> Any:
        return said({"status": "ok", "server": "finback", "version": __version__})

    async def health(self, visit: Visit) -> Any:
        served = visit.service.served
        state = "loaded" if served.runner is not None else "unloaded"
        return said({"status": "ok", "model": served.names.own, "state": state, "waiting": served.waiting})

    async def version(self, visit: Visit) -> Any:
        return said({"version": __version__})

    async def metrics(self, visit: Visit) -> Any:
        served, account = visit.service.served, visit.service.account
        runner = served.runner
        stats = None if runner is None else runner.engine.stats()
        more = {"uptime_seconds": time.time() - account.started, "loaded": float(runner is not None)}
        if runner is not None:
            more |= {"replay_turns": float(len(runner.replay)), "replay_reused": float(runner.replay.reused)}
        text = account.metrics(stats, served.waiting, more)
        return Response(text, media_type="text/plain; version=0.0.4; charset=utf-8")

    async def props(self, visit: Visit) -> Any:
        service, d = visit.service, self._described
        runner = service.served.runner
        return said(
            {
                "model": d.name,
                "model_alias": d.name,
                "n_ctx": d.context,
                "build": __version__,
                "is_sleeping": runner is None,
                "default_generation_settings": {"n_ctx": d.context},
                "thinking": service.settings.defaults.thinking,
                "effort": service.settings.defaults.effort,
                "prompt_format": None if runner is None else runner.engine.dialect.name,
                "modalities": {"vision": False, "audio": False},
            }
        )

    async def slots(self, visit: Visit) -> Any:
        """What is being answered, without a word of it."""
        found = [
            {
                "id": id,
                "is_processing": True,
                "n_prompt": len(request.ids),
                "n_cached": request.cached_tokens,
                "n_limit": request.limit,
                "seconds": round(time.perf_counter() - request.submitted, 3),
            }
            for id, requests in visit.service.running.items()
            for request in requests
        ]
        return said(found)

    async def prefix_cache(self, visit: Visit) -> Any:
        runner = visit.service.served.runner
        stats = None if runner is None else runner.engine.stats()
        prefix = None if stats is None or stats.prefix is None else asdict(stats.prefix)
        disk = None if stats is None or stats.disk is None else asdict(stats.disk)
        replay = None if runner is None else {"turns": len(runner.replay), "bytes": runner.replay.nbytes}
        memory = {} if stats is None else stats.memory
        return said({"prefix": prefix, "disk": disk, "replay": replay, "memory": memory})

    async def stop_thinking(self, visit: Visit) -> Any:
        """Have the model answer now. The id is that of the answer, as the client or the header x-request-id has it."""
        fields = Fields(await visit.read())
        id = fields.needed("id")
        running = visit.service.running.get(id)
        if not running:
            raise RefusedError("id is not that of an answer that is being written", status=404, field="id")
        for request in running:
            request.stop_thinking()
        return said({"id": id, "stopped": True})

    async def unload(self, visit: Visit) -> Any:
        """Let go of weights and pages as soon as nobody uses them; the next request loads them again."""
        visit.service.served.keep_for(0)
        return said({"status": "ok"})

    # ---- tokens

    async def tokenize(self, visit: Visit) -> Any:
        """Text, or a conversation, to ids."""
        body = await visit.read()
        fields = Fields(body)
        runner = await visit.service.served.open()
        tokenizer = runner.engine.tokenizer
        if fields.has("messages"):
            ask, _ = chat.read(body, visit.service.settings.defaults)
            _, prepared = await visit.service.prepare(ask, visit.receive)
            ids = prepared.encoded.ids
        else:
            name = "content" if fields.has("content") else "prompt"
            text = fields.string(name)
            if text is None:
                raise fields.missing("prompt")
            bos = [tokenizer.bos_id] if fields.boolean("add_special") else []
            ids = bos + _encoded(runner.engine, text, name)
        found: dict[str, Any] = {"tokens": ids, "count": len(ids), "max_model_len": self._described.context}
        if fields.boolean("with_pieces"):
            pieces = [tokenizer.id_to_bytes(token) for token in ids]
            found["tokens"] = [
                {"id": token, "piece": piece.decode("utf-8", "replace"), "bytes": list(piece)}
                for token, piece in zip(ids, pieces, strict=True)
            ]
        return said(found)

    async def detokenize(self, visit: Visit) -> Any:
        """Ids to text."""
        fields = Fields(await visit.read())
        ids = fields.items("tokens")
        if ids is None:
            raise fields.missing("tokens")
        if len(ids) > MOST_IDS or not all(type(i) is int and 0 <= i <= LARGEST_ID for i in ids):
            raise RefusedError(f"tokens must be at most {MOST_IDS} token ids", field="tokens")
        runner = await visit.service.served.open()
        try:
            text = runner.engine.tokenizer.decode(ids)
        except RequestError as error:
            raise RefusedError(str(error), field="tokens") from None
        return said({"content": text, "prompt": text})

    async def apply_template(self, visit: Visit) -> Any:
        """A conversation to its prompt, as text and as ids."""
        ask, _ = chat.read(await visit.read(), visit.service.settings.defaults)
        runner, prepared = await visit.service.prepare(ask, visit.receive)
        ids = prepared.encoded.ids
        return said({"prompt": runner.engine.tokenizer.decode(ids), "tokens": ids})

    async def tokenizer_info(self, visit: Visit) -> Any:
        """What evaluation harnesses ask of a tokenizer."""
        tokenizer = (await visit.service.served.open()).engine.tokenizer
        named = {"bos_token": tokenizer.bos_id, "eos_token": tokenizer.eos_id, "pad_token": tokenizer.pad_id}
        texts = {name: None if id is None else tokenizer.id_to_bytes(id).decode() for name, id in named.items()}
        return said({**texts, "vocab_size": tokenizer.vocab_size, "model_max_length": self._described.context})


def _encoded(engine: Any, text: str, field: str) -> list[int]:
    try:
        return list(engine.tokenizer.encode(text))
    except RequestError as error:
        refusal = refused(error)
        raise RefusedError(str(refusal), field=field) from None
