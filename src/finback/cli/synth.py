"""`finback synth`: random models of real shape, for tests and benchmarks."""

from __future__ import annotations

from pathlib import Path

import click


@click.command("synth")
@click.argument("out", metavar="OUT")
@click.option(
    "--arch",
    type=click.Choice(["v4-flash", "v4-pro", "v4-tiny", "v4-flash-small"]),
    default="v4-tiny",
    show_default=True,
)
@click.option("--layers", type=int, default=None, metavar="N", help="Layers [default: the architecture's].")
@click.option("--experts", type=int, default=None, metavar="N", help="Routed experts [default: the architecture's].")
@click.option("--vocab", type=int, default=None, metavar="N", help="Vocabulary size [default: the architecture's].")
@click.option(
    "--experts-format", default=None, metavar="FORMAT", help="MXFP4, Q4_K, Q8_0, ... [default: as published]."
)
@click.option(
    "--dense-format", default=None, metavar="FORMAT", help="FP8_E4M3, Q8_0, BF16, ... [default: as published]."
)
@click.option("--seed", type=int, default=0, show_default=True, metavar="S", help="The same seed gives the same bytes.")
@click.option("--alias", is_flag=True, help="GGUF only: like layers share their bytes (a small file of full depth).")
def command(
    out: str,
    arch: str,
    layers: int | None,
    experts: int | None,
    vocab: int | None,
    experts_format: str | None,
    dense_format: str | None,
    seed: int,
    alias: bool,
) -> None:
    """Write a random model: a GGUF file if OUT ends in .gguf, else a model folder.

    \b
      finback synth tiny.gguf --experts-format MXFP4 --dense-format Q8_0
      finback synth flash5 --arch v4-flash --layers 5 --experts 8 --vocab 8192
    """
    from finback.cli.screen import Bar
    from finback.tools.synth import synth

    with Bar("writing", unit="bytes") as bar:
        synth(
            out,
            arch,
            layers=layers,
            experts=experts,
            vocab=vocab,
            experts_format=experts_format,
            dense_format=dense_format,
            seed=seed,
            alias=alias,
            progress=bar,
        )
    nbytes = sum(p.stat().st_size for p in ([Path(out)] if Path(out).is_file() else Path(out).iterdir()))
    click.echo(f"{out}: {nbytes / 1e6:.1f} MB")
