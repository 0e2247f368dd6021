"""What several commands share: how a model is named and loaded, where text comes from."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from finback.engine.engine import Engine

F = TypeVar("F", bound=Callable[..., Any])

model_option = click.option(
    "-m",
    "--model",
    type=str,
    default=None,
    metavar="MODEL",
    help="GGUF file or model folder [default: the embedded model].",
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
                type=click.Choice(["auto", "mapped", "resident"]),
                default="auto",
                show_default=True,
                help="Multiply with the file as it lies, or with copies laid out for speed.",
            ),
            click.option("--prefill-chunk", type=int, default=None, metavar="N", help="Tokens per prefill step."),
            click.option(
                "--cache-rounding/--no-cache-rounding",
                default=None,
                help="Round cache rows as the model was trained [default: on for DeepSeek checkpoints].",
            ),
        ]
    ):
        command = option(command)
    return command


def load_engine(options: dict[str, Any]) -> Engine:
    """`finback.load` with the values of `load_options`; a bar on a terminal if it takes over a second."""
    import finback
    from finback.cli.screen import waiting

    with waiting("loading"):
        return finback.load(options.pop("model"), **options)


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
