"""`finback serve`: the model over HTTP, in the dialects that tools speak."""

from __future__ import annotations

import asyncio
import logging
import math
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from finback.cli.common import load_options

if TYPE_CHECKING:
    from finback.engine.engine import Engine
    from finback.server.guard import Access

DEFAULT_PORT = 8080


@click.command("serve")
@load_options
@click.option("--host", default="127.0.0.1", show_default=True, metavar="ADDRESS", help="Where to listen.")
@click.option("--port", type=int, default=DEFAULT_PORT, show_default=True, metavar="N", help="0 is any that is free.")
@click.option("--name", metavar="NAME", help="What the model is called [default: by its file].")
@click.option("--alias", multiple=True, metavar="NAME", help="Another name for it; '*' takes any. Can be repeated.")
@click.option("--api-key-file", type=click.Path(dir_okay=False), metavar="FILE", help="Keys, one a line.")
@click.option("--no-key", is_flag=True, help="Listen to other machines without a key.")
@click.option("--allow-host", multiple=True, metavar="NAME", help="Also answer to this Host name. Can be repeated.")
@click.option("--allow-origin", multiple=True, metavar="ORIGIN", help="Web pages that may ask, such as http://my.app.")
@click.option("--think/--no-think", default=True, show_default=True, help="Whether requests that do not say think.")
@click.option("--effort", default=None, metavar="WORD", help="How long requests that do not say think.")
@click.option("--queue", type=click.IntRange(1), default=64, show_default=True, metavar="N", help="Most that wait.")
@click.option("--request-timeout", type=float, metavar="S", help="Most seconds of a request [default: any].")
@click.option("--body-limit", default="64MiB", show_default=True, metavar="SIZE", help="Most bytes of a request.")
@click.option("--keep-alive", type=float, metavar="S", help="Unload the model after so long [default: never].")
@click.option("--drain", type=click.IntRange(0), default=30, show_default=True, metavar="S", help="To end with.")
@click.option("--trace", type=click.Path(file_okay=False), metavar="DIR", help="Write whole sessions, texts too.")
def command(**options: Any) -> None:
    """Serve the model: OpenAI's, Anthropic's and Ollama's APIs at one address.

    \b
      finback serve                                      the embedded model at http://127.0.0.1:8080
      finback serve -m org/name:Q4_K_M --kv-dir ~/kv     conversations survive restarts
      FINBACK_API_KEY=secret finback serve --host 0.0.0.0

    Web pages cannot reach it unless --allow-origin names them. To listen beyond this machine a key is required.
    """
    try:
        asyncio.run(_serve(options))
    except KeyboardInterrupt:
        click.echo("finback: stopped", err=True)


async def _serve(options: dict[str, Any]) -> None:
    from finback.errors import RequestError
    from finback.server.account import Account
    from finback.server.app import application
    from finback.server.ask import Defaults, RefusedError
    from finback.server.guard import Guard
    from finback.server.host import listen, server
    from finback.server.models import describe
    from finback.server.served import Names, Served
    from finback.server.service import Service, Settings
    from finback.server.store import Store
    from finback.server.tongues import error_of
    from finback.server.trace import Trace
    from finback.server.wire import to_json
    from finback.weights.checkpoint import open_checkpoint
    from finback.weights.ledger import parse_size

    host, port, drain = options.pop("host"), options.pop("port"), options.pop("drain")
    access = _access(host, options)
    names = Names(options.pop("name") or _name(options["model"]), tuple(options.pop("alias")))
    settings = Settings(
        defaults=Defaults(options.pop("think"), options.pop("effort")),
        body_limit=parse_size(options.pop("body_limit"), "--body-limit"),
        deadline=options.pop("request_timeout"),
    )
    trace, queue, keep = options.pop("trace"), options.pop("queue"), options.pop("keep_alive")
    path, kv_dir = options.pop("model"), options.get("kv_dir")
    listener = listen(host, port)
    logging.basicConfig(format="%(levelname)s %(name)s: %(message)s", stream=sys.stderr)
    served = Served(
        _loader(path, options),
        names,
        queue=queue,
        keep_alive=math.inf if keep is None else keep,
        replay_file=None if kv_dir is None else Path(kv_dir) / "replay",
    )
    try:
        runner = await served.open()
    except RefusedError as refusal:  # before the first request it is the error that it comes from
        raise refusal.__cause__ or refusal from None
    try:
        runner.engine.dialect.effort_text(settings.defaults.effort)
    except RequestError as error:
        raise click.UsageError(f"--{error}") from None
    service = Service(served, Account(lambda line: click.echo(line, err=True)), settings, trace and Trace(Path(trace)))
    described = describe(open_checkpoint(path), names.own, runner.engine.context)
    app = application(service, described, Store(served.kept_bytes))
    guarded = Guard(app, access, refusal_body=lambda where, refusal: to_json(error_of(where, refusal)))
    _say_hello(runner.engine, names.own, *listener.getsockname()[:2], keyed=bool(access.keys))
    await server(guarded, drain=drain).serve(sockets=[listener])


def _loader(path: str | None, options: dict[str, Any]) -> Callable[[], Engine]:
    """How the model is loaded, now and after it was let go of."""
    import finback

    def load() -> Engine:
        engine = finback.load(path, **options)
        for note in engine.notes:
            click.echo(f"finback: {note}", err=True)
        return engine

    return load


def _access(host: str, options: dict[str, Any]) -> Access:
    """Who may reach the server. UsageError if that is everybody and nobody said so."""
    from finback.server.guard import access_to, is_loopback, read_keys

    keys, notes = read_keys(options.pop("api_key_file"), os.environ)
    for note in notes:
        click.echo(f"finback: {note}", err=True)
    waived = options.pop("no_key")
    if not keys and not waived and not is_loopback(host):
        raise click.UsageError(
            f"--host {host} is reached by other machines; set FINBACK_API_KEY or give --api-key-file, "
            f"or --no-key if everybody may use it"
        )
    return access_to(host, keys, options.pop("allow_host"), options.pop("allow_origin"))


def _name(model: str | None) -> str:
    """What a model is called that nobody named: by its file, its folder, or the hub's name."""
    if model is None:
        return "finback-tiny"
    path = Path(model)
    return path.name.removesuffix(".gguf") if path.exists() else model


def _say_hello(engine: Engine, name: str, host: str, port: int, *, keyed: bool) -> None:
    """Where the server is, what it holds, and settings to paste."""
    from finback.errors import shown_size

    shown_host = f"[{host}]" if ":" in host else "127.0.0.1" if host == "0.0.0.0" else host
    url = f"http://{shown_host}:{port}"
    memory = engine.memory()
    plan = ", ".join(f"{entry} {shown_size(size)}" for entry, size in memory.items() if entry != "budget" and size)
    key = "$FINBACK_API_KEY" if keyed else "none"
    click.echo(
        f"""finback serves {name} at {url}
  context {engine.context} tokens, {engine.threads} threads, {engine.isa}
  memory  {shown_size(memory["budget"])}: {plan}

  OpenAI      base URL {url}/v1            (chat, completions, responses)
  Anthropic   base URL {url}               (messages)
  Ollama      host     {url}

  Claude Code   ANTHROPIC_BASE_URL={url} ANTHROPIC_AUTH_TOKEN={key} ANTHROPIC_MODEL={name} \\
                ANTHROPIC_DEFAULT_HAIKU_MODEL={name} CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC=1 claude
  Codex         codex -c model={name} -c model_provider=finback \\
                -c 'model_providers.finback={{name="finback",base_url="{url}/v1",wire_api="responses"}}'
  Open WebUI    OPENAI_API_BASE_URL={url}/v1 OPENAI_API_KEY={key}, or OLLAMA_BASE_URL={url}
  opencode, pi, Cline and others: an OpenAI-compatible provider at {url}/v1, model {name}
"""
    )
