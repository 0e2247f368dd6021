"""`finback rm`: models out of the cache."""

from __future__ import annotations

import sys

import click


@click.command("rm")
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
def command(names: tuple[str, ...], yes: bool) -> None:
    """Remove models, or single files of them, from the cache that other tools share.

    \b
      finback rm org/name
      finback rm org/name/model-Q4_K_M.gguf -y
    """
    from finback.errors import shown_size
    from finback.hub.cache import removal

    removals = {name: removal(name) for name in dict.fromkeys(names)}
    for name, what in removals.items():
        click.echo(f"{name}: {shown_size(what.size)}")
    if not yes:
        if not sys.stdin.isatty():
            raise click.UsageError("there is no terminal to ask on; give -y to remove without asking")
        click.confirm("remove?", abort=True)
    for name in removals:
        removal(name).carry_out()  # looked at anew: the one before may have left bytes to this one
