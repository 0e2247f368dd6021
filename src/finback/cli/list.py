"""`finback list`: the models in the cache."""

from __future__ import annotations

import datetime
import json

import click


@click.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(as_json: bool) -> None:
    """List the models that were downloaded, by the name that -m takes.

    \b
      finback list
      finback run -m $(finback list --json | jq -r '.[0].name') -p "Hello"
    """
    from finback.cli.table import table
    from finback.errors import FinbackError, shown_size
    from finback.hub.cache import cache_root, kept_models
    from finback.weights.checkpoint import open_checkpoint

    found = []
    for model in kept_models():
        try:
            kind, problem = str(open_checkpoint(model.path).kind), ""
        except FinbackError as error:
            kind, problem = "-", str(error)
        when = datetime.datetime.fromtimestamp(model.modified, datetime.UTC).isoformat(timespec="seconds")
        found.append(
            {"name": model.name, "kind": kind, "bytes": model.size, "modified": when, "problem": problem or None}
            | {"path": str(model.path)}
        )
    if as_json:
        click.echo(json.dumps(found, indent=2))
        return
    if not found:
        click.echo(f"no models in {cache_root()}; finback pull org/name downloads one")
        return
    rows = [
        [str(m["name"]), str(m["kind"]), shown_size(int(str(m["bytes"]))), str(m["modified"])[:10]] for m in found
    ]
    head, *lines = table(["name", "kind", "size", "modified"], rows).splitlines()
    click.echo(head)
    for line, m in zip(lines, found, strict=True):
        click.echo(click.style(f"{line}  {m['problem']}", dim=True) if m["problem"] else line)
