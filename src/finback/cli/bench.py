"""`finback bench`: how fast kernels, steps and starts are here, as tables, records and charts.

Owns the options and the tables; what is measured and how is finback.tools.bench_*. Progress goes to stderr, a record
to stdout with --json.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from finback.cli.common import load_engine, load_options, model_option
from finback.cli.table import table

if TYPE_CHECKING:
    from finback.tools.record import Record

F = TypeVar("F", bound=Callable[..., Any])


def _names(_ctx: click.Context, _param: click.Parameter, value: str | None) -> tuple[str, ...] | None:
    """A comma-separated list of words, each once."""
    if value is None:
        return None
    words = tuple(dict.fromkeys(word.strip() for word in value.split(",") if word.strip()))
    if not words:
        raise click.BadParameter(f"{value!r} is empty; give at least one")
    return words


def _numbers(ctx: click.Context, param: click.Parameter, value: str | None) -> tuple[int, ...] | None:
    """A comma-separated list of whole numbers."""
    words = _names(ctx, param, value)
    if words is None:
        return None
    for word in words:
        if not (word.isascii() and word.isdigit() and len(word) <= 12):
            raise click.BadParameter(f"{word!r} is no whole number")
    return tuple(dict.fromkeys(int(word) for word in words))


def numbers_option(name: str, to: str, text: str, default: str | None = None) -> Callable[[F], F]:
    """An option that takes a list of whole numbers."""
    return click.option(
        name, to, callback=_numbers, default=default, show_default=default is not None, metavar="N,...", help=text
    )


def output_options(command: F) -> F:
    """--json and --plot, which every measurement has."""
    command = click.option("--plot", type=click.Path(dir_okay=False), metavar="OUT.svg", help="Also write a chart.")(
        command
    )
    return click.option("--json", "as_json", is_flag=True, help="Print the record as JSON, for compare.")(command)


@click.group("bench")
def command() -> None:
    """Measure speed on this machine: kernels, decoding, prompts, starting. Compare two measurements.

    \b
      finback bench kernels --format MXFP4,Q8_0 --threads 1,2
      finback bench decode -m model.gguf --depth 1024,32768,262144
      finback bench prefill -m model.gguf --sizes 64,512
      finback bench startup
      finback bench kernels --json > before.json   (change something)
      finback bench kernels --json > after.json
      finback bench compare before.json after.json

    Every number is a median with its quartiles. docs/bench.md says what is measured, and how to read it.
    """


@command.command("kernels")
@click.option("--format", "formats", callback=_names, metavar="F,...", help="Weight formats [default: all].")
@click.option("--shape", "shapes", callback=_names, metavar="RxC,...", help="Rows x columns [default: 2048x4096].")
@numbers_option("--rows", "rows", "Inputs that meet a matrix together [default: 1; with --experts 12].")
@numbers_option("--threads", "threads", "Threads [default: by quota and cores].")
@click.option("--layout", "layouts", callback=_names, metavar="L,...", help="mapped, resident [default: both].")
@click.option("--isa", default=None, metavar="LEVEL", help="Force an instruction set [default: the best here].")
@click.option("--experts", type=click.IntRange(1, 1024), metavar="E", help="Networks of E experts, grouped by expert.")
@click.option("--seconds", type=click.FloatRange(0, 600), default=0.5, show_default=True, help="Time for each row.")
@click.option("--bytes", "size", default="512MiB", show_default=True, metavar="SIZE", help="Weights walked over.")
@output_options
def kernels(
    formats: tuple[str, ...] | None,
    shapes: tuple[str, ...] | None,
    rows: tuple[int, ...] | None,
    threads: tuple[int, ...] | None,
    layouts: tuple[str, ...] | None,
    isa: str | None,
    experts: int | None,
    seconds: float,
    size: str,
    as_json: bool,
    plot: str | None,
) -> None:
    """Measure products of weights with activations, in GB/s of file bytes and GFLOP/s.

    \b
      finback bench kernels --threads 2
      finback bench kernels --format Q4_K --rows 1,64,512 --layout resident
      finback bench kernels --format MXFP4 --experts 32

    `read` is what the same threads read from memory between the windows of the kernel; `share` is GB/s over it: one
    row should be near 1. Weights are --bytes in all, so that caches hold none of them.
    """
    from finback import native
    from finback.cli.screen import Bar
    from finback.settings import default_threads, forced_isa
    from finback.tools import bench_kernels as bench
    from finback.weights.ledger import parse_size

    plan = bench.Plan(
        formats=formats or tuple(native.Format.__members__),
        shapes=tuple(bench.parse_shape(shape) for shape in shapes) if shapes else bench.DEFAULT_SHAPES,
        rows=rows or ((bench.EXPERT_ROWS,) if experts else (1,)),
        threads=threads or (default_threads().count,),
        layouts=layouts or bench.LAYOUTS,
        isa=native.select_level(isa if isa is not None else forced_isa()),
        seconds=seconds,
        bytes=parse_size(size, "bytes"),
        experts=experts,
    )
    with Bar("timing", unit="rows") as bar:
        record = bench.bench_kernels(plan, bar)
    _show(record, as_json, plot, _kernel_table)


def _kernel_table(record: Record) -> str:
    head = ("format", "layout", "shape", "rows", "threads", "GB/s", "quartiles", "read", "share", "GFLOP/s", "Gw/s")
    rows = [
        (
            row["format"],
            row["layout"],
            "x".join(map(str, row["shape"])) + (f" x{row['experts']}" if "experts" in row else ""),
            str(row["rows"]),
            str(row["threads"]),
            f"{row['gbps']:.2f}",
            _quartiles(row["gbps_spread"], 2),
            f"{row['read_gbps']:.1f}",
            f"{row['share']:.2f}",
            f"{row['gflops']:.0f}",
            f"{row['weights_per_s'] / 1e9:.1f}",
        )
        for row in record["rows"]
    ]
    lines = [table(head, rows, left=3)] if rows else []
    lines += [f"not measured: {row['format']} {row['layout']}: {row['reason']}" for row in record["skipped"]]
    windows = sum(row["windows"] for row in record["rows"])
    disturbed = sum(row["disturbed"] for row in record["rows"])
    if disturbed > windows / 2:
        lines.append(f"the machine was busy: {disturbed} of {windows} windows were disturbed by other programs")
    return "\n".join(lines)


@command.command("decode")
@load_options
@numbers_option("--depth", "depths", "Tokens before the ones that are timed.", "0,1024,4096")
@click.option("--tokens", type=click.IntRange(1, 4096), default=16, show_default=True, help="Tokens of an interval.")
@click.option("--repeats", type=click.IntRange(1, 1000), default=7, show_default=True, help="Intervals at each depth.")
@output_options
def decode(
    depths: tuple[int, ...], tokens: int, repeats: int, as_json: bool, plot: str | None, **options: Any
) -> None:
    """Measure tokens a second, one at a time, far into a context.

    \b
      finback bench decode -m model.gguf
      finback bench decode -m model.gguf --depth 4096,131072,262144 --plot decode.svg

    The context is made up in seconds, row by row of the right kind, and then real steps are timed after it. `memory` is
    what a session of that depth holds, over what docs/memory.md says.
    """
    from finback.cli.screen import Bar
    from finback.tools import bench_steps as bench

    if options["context"] is None:
        options["context"] = bench.context_for(depths, tokens * repeats)
    with load_engine(options) as engine, Bar("decoding", unit="depths") as bar:
        how = options["weights"]
        record = bench.bench_decode(engine, depths, tokens=tokens, repeats=repeats, weights=how, on_done=bar)
    _show(record, as_json, plot, _decode_table)


def _decode_table(record: Record) -> str:
    head = ("depth", "threads", "tokens/s", "quartiles", "ms a token", "session MB", "of the formula")
    rows = [
        (
            str(row["depth"]),
            str(row["threads"]),
            f"{row['tokens_per_s']:.2f}",
            _quartiles(row["tokens_per_s_spread"], 2),
            f"{row['ms_per_token']:.2f}",
            f"{row['memory']['held'] / 1e6:.1f}",
            f"{row['memory']['ratio']:.3f}",
        )
        for row in record["rows"]
    ]
    return table(head, rows, left=0)


@command.command("prefill")
@load_options
@numbers_option("--sizes", "sizes", "Tokens of a prompt.", "64,512")
@numbers_option("--depth", "depths", "Tokens before it.", "0")
@click.option("--repeats", type=click.IntRange(1, 1000), default=5, show_default=True, help="Prompts of each size.")
@output_options
def prefill(
    sizes: tuple[int, ...], depths: tuple[int, ...], repeats: int, as_json: bool, plot: str | None, **options: Any
) -> None:
    """Measure tokens a second while a prompt is read.

    \b
      finback bench prefill -m model.gguf --sizes 64,512,2048
      finback bench prefill -m model.gguf --sizes 256 --depth 0,32768
    """
    from finback.cli.screen import Bar
    from finback.tools import bench_steps as bench

    if min(sizes) < 1:
        raise click.UsageError("--sizes holds 0; a prompt has at least 1 token")
    if options["context"] is None:
        options["context"] = bench.context_for(depths, max(sizes))
    with load_engine(options) as engine, Bar("reading", unit="prompts") as bar:
        record = bench.bench_prefill(
            engine, sizes, depths, repeats=repeats, weights=options["weights"], on_done=bar
        )
    _show(record, as_json, plot, _prefill_table)


def _prefill_table(record: Record) -> str:
    head = ("size", "depth", "threads", "tokens/s", "quartiles")
    rows = [
        (
            str(row["size"]),
            str(row["depth"]),
            str(row["threads"]),
            f"{row['tokens_per_s']:.1f}",
            _quartiles(row["tokens_per_s_spread"], 1),
        )
        for row in record["rows"]
    ]
    return table(head, rows, left=0)


@command.command("startup")
@model_option
@click.option("--repeats", type=click.IntRange(1, 1000), default=5, show_default=True, help="Rounds.")
@output_options
def startup(model: str | None, repeats: int, as_json: bool, plot: str | None) -> None:
    """Measure what it costs to begin: opening the files, and the first token of a new process.

    \b
      finback bench startup
      finback bench startup -m models/V4-Flash
    """
    from finback.cli.screen import Bar
    from finback.tools.bench_startup import bench_startup

    with Bar("starting", unit="rounds") as bar:
        record = bench_startup(model, repeats=repeats, on_done=bar)
    _show(record, as_json, plot, _startup_table)


def _startup_table(record: Record) -> str:
    rows = [(row["what"], f"{row['ms']:.1f}", _quartiles(row["ms_spread"], 1)) for row in record["rows"]]
    lines = [table(("", "ms", "quartiles"), rows)]
    if record["pss_two_over_one"] is not None:
        lines.append(f"memory of two processes over that of one: {record['pss_two_over_one']:.2f}")
    return "\n".join(lines)


@command.command("compare")
@click.argument("a", metavar="A.json")
@click.argument("b", metavar="B.json")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def compare_records(a: str, b: str, as_json: bool) -> None:
    """Compare two records row by row: the ratio B / A, and whether it is more than noise.

    \b
      finback bench compare before.json after.json

    A row is better or worse when the quartiles of the two measurements do not overlap; else it is the same.
    """
    from finback.tools.compare import compare
    from finback.tools.record import read_record

    result = compare(read_record(a), read_record(b))
    if as_json:
        click.echo(json.dumps(result.as_dict(), indent=2))
        return
    for name, in_a, in_b in result.differences:
        click.echo(f"{name} differs: {in_a} | {in_b}")
    if result.ratios:
        head = ("row", "measure", "A", "quartiles", "B", "quartiles", "B / A", "")
        rows = [
            (
                ratio.row,
                ratio.measure,
                f"{ratio.a:.4g}",
                _quartiles(ratio.a_spread, 4, "g"),
                f"{ratio.b:.4g}",
                _quartiles(ratio.b_spread, 4, "g"),
                f"{ratio.ratio:.3f}",
                ratio.verdict,
            )
            for ratio in result.ratios
        ]
        click.echo(table(head, rows, left=2))
    for name, labels in (("A", result.only_a), ("B", result.only_b)):
        for label in labels:
            click.echo(f"only in {name}: {label}")


def _quartiles(spread: Any, digits: int, kind: str = "f") -> str:
    return "-".join(f"{value:.{digits}{kind}}" for value in spread)


def _show(record: Record, as_json: bool, plot: str | None, shown: Callable[[Record], str]) -> None:
    """The record as JSON or as a table, with the machine above it; and the chart."""
    if plot is not None:
        from finback.tools.plot import plot as drawn

        try:
            Path(plot).write_text(drawn(record), encoding="utf-8")
        except OSError as error:
            raise click.UsageError(f"{plot}: {error.strerror}") from None
    if as_json:
        click.echo(json.dumps(record, indent=2))
        return
    machine = record["machine"]
    click.echo(
        f"{machine['cpu']}, {machine['cores']} cores, {machine['memory_gib']} GiB; level {record['level']}; "
        f"finback {record['version']} {record['commit'] or ''}".rstrip()
    )
    click.echo(shown(record))
