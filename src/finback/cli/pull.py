"""`finback pull`: a model from the Hugging Face hub."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator

import click


@click.command("pull")
@click.argument("name", metavar="ORG/NAME")
@click.argument("patterns", nargs=-1, metavar="[PATTERN]...")
@click.option("--revision", default="main", metavar="REV", help="Branch, tag or commit [default: main].")
def command(name: str, patterns: tuple[str, ...], revision: str) -> None:
    """Download a model from the Hugging Face hub, into the cache that other tools share.

    \b
      finback pull org/name                    the one model of a repository
      finback pull org/name:Q4_K_M             the GGUF file with that tag
      finback pull org/name '*Q2_K*.gguf'      files by pattern
      finback run -m org/name:Q4_K_M -p "Hello"

    A transfer that was interrupted goes on where it stopped; files are checked against the hub's hashes before
    they get their names. HF_TOKEN opens gated models, HF_HOME says where the cache is.
    """
    from finback.errors import RequestError, shown
    from finback.hub.names import parse_name
    from finback.hub.pull import pull

    hub_name = parse_name(name)
    if hub_name is None:
        raise RequestError(f"{shown(name)} is no name of a model; give one such as org/name or org/name:Q4_K_M")
    if patterns and (hub_name.tag or hub_name.file):
        raise RequestError(f"{name} names files already; give patterns with {hub_name.repo} alone")
    with _bars() as (on_bytes, on_notice):
        try:
            place = pull(hub_name, patterns, revision=revision, on_bytes=on_bytes, on_notice=on_notice)
        except KeyboardInterrupt:
            on_notice("what has arrived is kept; the same command goes on from there")
            raise
    click.echo(place)


@contextlib.contextmanager
def _bars() -> Iterator[tuple[Callable[[str, int, int], None], Callable[[str], None]]]:
    """A bar for each file on a terminal; notices on stderr."""
    if not sys.stderr.isatty():
        yield lambda *_: None, lambda text: click.echo(text, err=True)
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, TimeRemainingColumn(), console=console) as progress:
        tasks: dict[str, object] = {}

        def on_bytes(name: str, done: int, total: int) -> None:
            if name not in tasks:
                tasks[name] = progress.add_task(name, total=total)
            progress.update(tasks[name], completed=done)  # type: ignore[arg-type]

        yield on_bytes, lambda text: console.print(text, markup=False)
