"""`finback inspect`: what a model holds, what it would cost, what its program is, whether its numbers are sound."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import asdict
from typing import Any

import click

from finback.cli.common import load_engine, load_options


@click.command("inspect")
@click.argument("path", metavar="MODEL", required=False)
@load_options
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--program", is_flag=True, help="The recorded operations with shapes, bytes and arena offsets.")
@click.option("--check", is_flag=True, help="Read every tensor and look for values that are not finite.")
def command(path: str | None, as_json: bool, program: bool, check: bool, **options: Any) -> None:
    """Show what a model holds: architecture, formats, memory per token. Without MODEL, the embedded one.

    \b
      finback inspect model.gguf
      finback inspect --program
      finback inspect models/V4-Flash --check
    """
    if path is not None and options["model"] is not None:
        raise click.UsageError("the model is named twice: as an argument and with -m")
    options["model"] = path if path is not None else options["model"]
    if program:
        _program(options, as_json)
        return
    from finback.weights.checkpoint import open_checkpoint

    rounding = options["cache_rounding"] is not False
    checkpoint = open_checkpoint(options["model"], cache_rounding=rounding)
    report = _report(checkpoint)
    if check:
        report["check"] = _check(checkpoint)
    if as_json:
        click.echo(json.dumps(report, indent=2))
    else:
        _print(report)
    if check and report["check"]:
        raise click.exceptions.Exit(1)


def _report(checkpoint: Any) -> dict[str, Any]:
    from finback.kv.layout import MAX_DRAFT, plan_layout
    from finback.weights.checkpoint import GgufVocabulary

    config = checkpoint.config
    layout = plan_layout(config, cache_rounding=config.cache_rounding, max_draft=MAX_DRAFT)
    kinds = Counter(layer.kind for layer in config.layers)
    tokenizer = checkpoint.tokenizer
    return {
        "files": [str(p) for p in checkpoint.paths],
        "kind": checkpoint.kind,
        "bytes": checkpoint.nbytes,
        "formats": _formats(checkpoint),
        "layers": {"main": len(config.layers), **kinds, "mtp": len(config.mtp_layers)},
        "experts": f"{config.n_routed_experts}, {config.num_experts_per_tok} a token, {config.n_shared_experts} shared",
        "tokenizer": "none (token ids only)"
        if tokenizer is None
        else f"gguf {tokenizer.pre}"
        if isinstance(tokenizer, GgufVocabulary)
        else str(tokenizer),
        "memory": {
            "bytes_per_token": layout.bytes_per_token(),
            "page_bytes": layout.page_bytes,
            "frontier_bytes": layout.frontier_bytes,
        },
        "notes": list(checkpoint.notes),
        "unused": list(checkpoint.unused),
        "config": asdict(config),
    }


def _formats(checkpoint: Any) -> dict[str, int]:
    """Bytes by stored type; ranges shared by several names count once."""
    totals: Counter[str] = Counter()
    seen = set()
    for tensor in checkpoint.stored():
        if (tensor.file, tensor.offset) not in seen:
            seen.add((tensor.file, tensor.offset))
            totals[tensor.dtype] += tensor.nbytes
    return dict(totals.most_common())


def _print(report: dict[str, Any]) -> None:
    config, layers, memory = report["config"], report["layers"], report["memory"]
    files = report["files"]
    click.echo(f"files      {files[0]}" + (f" and {len(files) - 1} more" if len(files) > 1 else ""))
    click.echo(f"size       {report['bytes'] / 1e9:.3f} GB")
    for name, nbytes in report["formats"].items():
        click.echo(f"           {name:<10} {nbytes / 1e6:12.2f} MB")
    kinds = ", ".join(f"{n} {kind}" for kind, n in layers.items() if kind not in ("main", "mtp"))
    click.echo(f"layers     {layers['main']} ({kinds}), {layers['mtp']} MTP")
    click.echo(f"hidden     {config['hidden_size']}, {config['num_attention_heads']} heads of {config['head_dim']}")
    click.echo(f"experts    {report['experts']}")
    click.echo(f"vocabulary {config['vocab_size']}, tokenizer {report['tokenizer']}")
    click.echo(f"context    up to {config['max_position_embeddings']}")
    token, sequence = memory["bytes_per_token"], memory["frontier_bytes"] / 2**20
    click.echo(f"memory     {token:.1f} bytes a token, {sequence:.2f} MiB a sequence")
    click.echo(f"rounding   {'on' if config['cache_rounding'] else 'off'}")
    for note in report["notes"]:
        click.echo(f"note       {note}")
    if report["unused"]:
        click.echo(f"unused     {len(report['unused'])} tensors, such as {report['unused'][0]}")
    for line in report.get("check", []):
        click.echo(f"check      {line}")
    if report.get("check") == []:
        click.echo("check      every value is finite")


def _program(options: dict[str, Any], as_json: bool) -> None:
    with load_engine(options) as engine:
        rows = [asdict(row) for row in engine.program_listing()]
    if as_json:
        click.echo(json.dumps(rows, indent=2))
        return
    click.echo(f"{'entry':<6} {'operation':<16} {'rows':>6} {'shape':>14} {'bytes':>12} {'offset':>12}")
    for row in rows:
        cells = f"{row['entry']:<6} {row['op']:<16} {row['rows']:>6} {'x'.join(map(str, row['shape'])):>14}"
        click.echo(f"{cells} {row['nbytes']:>12} {row['offset']:>12}")


def _check(checkpoint: Any) -> list[str]:
    """Sentences about tensors that hold values that are not finite."""
    from finback.cli.screen import Bar
    from finback.weights.verify import verify

    with Bar("checking", unit="bytes") as bar:
        return list(verify(checkpoint, on_progress=bar))
