"""`finback tokenize`: what a text becomes."""

from __future__ import annotations

import json

import click

from finback.cli.common import model_option, read_text


@click.command("tokenize")
@model_option
@click.option("-p", "--prompt", metavar="TEXT", help="The text.")
@click.option("-f", "--file", metavar="FILE", help="Read the text from a file; - is stdin.")
@click.option("--controls", is_flag=True, help="Read control tokens spelled in the text as control tokens.")
@click.option("--ids", is_flag=True, help="Print ids only, separated by spaces.")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON list of {id, text}.")
def command(model: str | None, prompt: str | None, file: str | None, controls: bool, ids: bool, as_json: bool) -> None:
    """Show the tokens of a text: id and piece, one a line.

    \b
      finback tokenize -p "The fin whale sings."
      finback tokenize -m model.gguf --ids -f notes.txt
    """
    from finback.engine.load import open_tokenizer
    from finback.errors import RequestError
    from finback.weights.checkpoint import open_checkpoint

    text = read_text(prompt, file)
    tokenizer = open_tokenizer(open_checkpoint(model))
    if tokenizer is None:
        raise RequestError(f"{model} has no tokenizer; put its tokenizer.json into the folder")
    tokens = tokenizer.encode_with_controls(text) if controls else tokenizer.encode(text)
    pieces = [tokenizer.id_to_bytes(token).decode("utf-8", "backslashreplace") for token in tokens]
    if as_json:
        click.echo(json.dumps([{"id": i, "text": t} for i, t in zip(tokens, pieces, strict=True)], ensure_ascii=False))
    elif ids:
        click.echo(" ".join(map(str, tokens)))
    else:
        for token, piece in zip(tokens, pieces, strict=True):
            click.echo(f"{token:>7}  {piece!r}")
