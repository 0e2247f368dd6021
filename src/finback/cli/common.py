"""What several commands share: how a model is named and loaded, where text comes from."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from finback.engine.engine import Engine
    from finback.engine.sampling import Sampling

F = TypeVar("F", bound=Callable[..., Any])

model_option = click.option(
    "-m",
    "--model",
    type=str,
    default=None,
    metavar="MODEL",
    help="GGUF file, model folder, or org/name of a downloaded model [default: the embedded model].",
)


def load_options(command: F) -> F:
    """The options of `finback.load`, in the order of --help."""
    for option in reversed(
        [
            model_option,
            click.option(
                "--memory", default=None, metavar="SIZE", help="Memory budget, such as 16GiB [default: 90% of RAM]."
            ),
            click.option(
                "--context", type=int, default=None, metavar="N", help="Most tokens of prompt and answer together."
            ),
            click.option(
                "--threads", type=int, default=None, metavar="N", help="Threads [default: by quota and cores]."
            ),
            click.option(
                "--isa", default=None, metavar="LEVEL", help="Force an instruction set: scalar, avx2, avx512, neon."
            ),
            click.option(
                "--weights",
                type=click.Choice(["auto", "mapped", "resident", "direct"]),
                default="auto",
                show_default=True,
                help="Multiply with the file as it lies, or with copies laid out for speed; direct makes them past "
                "the page cache.",
            ),
            click.option("--pin", is_flag=True, help="Keep the weights in memory, whatever else the machine does."),
            click.option("--prefill-chunk", type=int, default=None, metavar="N", help="Tokens per prefill step."),
            click.option(
                "--prefix-cache",
                default=None,
                metavar="SIZE",
                help="Most memory for what earlier requests left, 0 for none [default: half of what is free].",
            ),
            click.option(
                "--kv-dir", default=None, metavar="DIR", help="Keep what was read across restarts [default: do not]."
            ),
            click.option(
                "--kv-space", default="8GiB", show_default=True, metavar="SIZE", help="Most bytes of --kv-dir."
            ),
            click.option(
                "--speculation",
                type=click.Choice(["lookup", "mtp", "auto"]),
                default=None,
                help="Compute several tokens in a step [default: one].",
            ),
            click.option(
                "--cache-rounding/--no-cache-rounding",
                default=None,
                help="Round cache rows as the model was trained [default: on for DeepSeek checkpoints].",
            ),
        ]
    ):
        command = option(command)
    return command


_SAMPLING = (
    click.option("--max-tokens", type=int, metavar="N", help="Longest answer [default: until the context is full]."),
    click.option("--min-tokens", type=int, default=0, metavar="N", help="Nothing ends the answer before."),
    click.option(
        "--temp", "temperature", type=float, metavar="X", help="Temperature; 0 is greedy [default: the model's]."
    ),
    click.option(
        "--top-p", type=float, metavar="X", help="Keep the likeliest tokens that add up to X [default: the model's]."
    ),
    click.option(
        "--top-k", type=int, metavar="N", help="Keep the N likeliest tokens; 0 is off [default: the model's]."
    ),
    click.option(
        "--min-p", type=float, metavar="X", help="Drop tokens under X times the likeliest [default: the model's]."
    ),
    click.option(
        "--repeat-penalty",
        "repetition_penalty",
        type=float,
        metavar="X",
        help="Above 1: tokens of prompt and answer become less likely [default: the model's].",
    ),
    click.option(
        "--presence-penalty", type=float, default=0.0, metavar="X", help="Taken off tokens that the answer has."
    ),
    click.option(
        "--frequency-penalty", type=float, default=0.0, metavar="X", help="Taken off each time the answer has a token."
    ),
    click.option("--seed", type=int, metavar="N", help="Repeat an answer [default: a new one each time]."),
    click.option("--stop", multiple=True, metavar="TEXT", help="End the answer before this text; can be repeated."),
    click.option("--ignore-eos", is_flag=True, help="Go on past the end-of-text token."),
    click.option(
        "--max-repeats", type=int, metavar="N", help="End an answer that says the same N times in a row [default: off]."
    ),
)

_SAMPLING_FIELDS = (
    "max_tokens",
    "min_tokens",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "seed",
    "stop",
    "ignore_eos",
    "max_repeats",
)


def sampling_options(command: F) -> F:
    """The options of how an answer is drawn, in the order of --help."""
    for option in reversed(_SAMPLING):
        command = option(command)
    return command


def take_sampling(options: dict[str, Any]) -> Sampling:
    """The `Sampling` of the values of `sampling_options`, which are taken out of `options`."""
    from finback.engine.sampling import Sampling

    return Sampling(**{name: options.pop(name) for name in _SAMPLING_FIELDS})


def load_engine(options: dict[str, Any]) -> Engine:
    """`finback.load` with the values of `load_options`; a bar on a terminal if it takes over a second."""
    import finback
    from finback.cli.screen import waiting

    with waiting("loading"):
        engine = finback.load(options.pop("model"), **options)
    for note in engine.notes:
        click.echo(f"finback: {note}", err=True)
    return engine


def read_text(text: str | None, file: str | None) -> str:
    """Text of -p, of -f (`-` is stdin), or of stdin when it is not a terminal."""
    if text is not None and file is not None:
        raise click.UsageError("give the text with -p or with -f, not both")
    if text is not None:
        return text
    if file is not None and file != "-":
        try:
            return Path(file).read_text(encoding="utf-8")
        except UnicodeDecodeError as error:
            raise click.UsageError(f"{file} is not UTF-8 text (byte {error.start}); convert it first") from None
        except OSError as error:
            raise click.UsageError(f"{file}: {error.strerror}") from None
    if file is None and sys.stdin.isatty():
        raise click.UsageError("no text: give it with -p TEXT, -f FILE or on stdin")
    try:
        return sys.stdin.buffer.read().decode("utf-8")
    except UnicodeDecodeError as error:
        raise click.UsageError(f"stdin is not UTF-8 text (byte {error.start}); convert it first") from None
