"""`finback logprobs`: how likely a model finds each token of a text."""

from __future__ import annotations

import json
from typing import Any

import click

from finback.cli.common import load_engine, load_options, read_text


@click.command("logprobs")
@load_options
@click.option("-p", "--prompt", metavar="TEXT", help="The text.")
@click.option("-f", "--file", metavar="FILE", help="Read the text from a file; - is stdin.")
@click.option(
    "--top", type=click.IntRange(0, 100), default=0, metavar="N", help="Also the N likeliest tokens at each place."
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON: one object a token.")
def command(prompt: str | None, file: str | None, top: int, as_json: bool, **options: Any) -> None:
    """Show the log-probability of each token of a text, given the ones before (natural logarithm).

    The begin-of-text token is put before the text and has no log-probability of its own.

    \b
      finback logprobs -p "The capital of Norway is Oslo." --top 3
    """
    from finback.tools.perplexity import score

    text = read_text(prompt, file)
    with load_engine(options) as engine:
        tokenizer = engine.tokenizer
        ids = engine.encode(text)

        def piece(token: int) -> str:
            return tokenizer.id_to_bytes(token).decode("utf-8", "backslashreplace")

        for row in score(engine, ids, top=top):
            best = [{"id": i, "text": piece(i), "logprob": p} for i, p in row.top]
            if as_json:
                record = {"id": row.token, "text": piece(row.token), "logprob": row.log_prob}
                click.echo(json.dumps(record | ({"top": best} if top else {}), ensure_ascii=False))
            else:
                shown = "   " + "  ".join(f"{b['text']!r} {b['logprob']:.4f}" for b in best) if top else ""
                value = "        -" if row.log_prob is None else f"{row.log_prob:9.4f}"
                click.echo(f"{row.token:>7}  {value}  {piece(row.token)!r}{shown}")
