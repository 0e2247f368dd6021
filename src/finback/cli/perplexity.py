"""`finback perplexity`: one number for how well a model predicts a text."""

from __future__ import annotations

import json
from typing import Any

import click

from finback.cli.common import load_engine, load_options, read_text


@click.command("perplexity")
@click.argument("paths", metavar="[MODEL] FILE", nargs=-1, required=True)
@load_options
@click.option(
    "--window",
    type=click.IntRange(2),
    default=512,
    show_default=True,
    metavar="N",
    help="Tokens per independent window.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(paths: tuple[str, ...], window: int, as_json: bool, **options: Any) -> None:
    """Measure perplexity on a text file (- is stdin), in independent windows that each begin with the begin-of-text
    token.

    \b
      finback perplexity model.gguf wiki.txt
      finback perplexity wiki.txt                (the embedded model)

    Prints exp of the mean negative log-probability over all predicted tokens, with its standard error.
    """
    from finback.cli.screen import Bar
    from finback.tools.perplexity import perplexity

    *models, file = paths
    if len(models) > 1:
        raise click.UsageError(f"{len(paths)} arguments; give one model and one text file")
    if models and options["model"] is not None:
        raise click.UsageError("the model is named twice: as an argument and with -m")
    options["model"] = models[0] if models else options["model"]
    text = read_text(None, file)
    if options["context"] is None:
        options["context"] = window
    with load_engine(options) as engine, Bar("scoring") as bar:
        result = perplexity(engine, text, window=window, on_progress=bar)
    if as_json:
        click.echo(json.dumps(result.as_dict()))
    else:
        click.echo(
            f"perplexity {result.perplexity:.4f} +- {result.error:.4f} over {result.tokens} tokens "
            f"({result.windows} windows of {window}); {result.bits_per_byte:.4f} bits per byte"
        )
