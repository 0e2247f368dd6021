"""The `finback` command. Owns the list of subcommands, loaded only when used, and what an error looks like.

Refuses tracebacks for errors raised on purpose: one sentence on stderr and the error's exit code (1 or 2). Ctrl-C is
130, a closed pipe ends quietly.
"""

from __future__ import annotations

import importlib
import os
import sys

import click

COMMANDS = {
    "run": "Write an answer to a prompt.",
    "chat": "Talk with a model.",
    "serve": "Serve a model over HTTP.",
    "pull": "Download a model from the Hugging Face hub.",
    "list": "List the models that were downloaded.",
    "rm": "Remove downloaded models.",
    "inspect": "Show what a model file holds.",
    "tokenize": "Show the tokens of a text.",
    "logprobs": "Show the log-probability of each token of a text.",
    "perplexity": "Measure the perplexity of a model on a text file.",
    "synth": "Write a random model of real shape.",
    "bench": "Measure speed on this machine, compare measurements.",
    "doctor": "Show what finback sees of this machine.",
}


class LazyGroup(click.Group):
    """Subcommands whose modules are imported when they run: `finback --help` pays for click alone."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            return None
        command = importlib.import_module(f"finback.cli.{name}").command
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


def _version(ctx: click.Context, _param: click.Parameter, value: bool) -> None:
    if value:
        from finback import __version__

        click.echo(f"finback {__version__}")
        ctx.exit()


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.option(
    "--version", is_flag=True, callback=_version, expose_value=False, is_eager=True, help="Show the version and exit."
)
def cli() -> None:
    """Runs DeepSeek-V4-class models on the machine you have, with the same bits every time.

    Without -m, commands use the small model that comes with finback:

      finback run -p "Tell me a story about a fox."
    """


def main() -> None:
    """Entry point: errors become sentences and exit codes."""
    from finback.errors import FinbackError

    try:
        code = cli.main(standalone_mode=False)  # what ctx.exit() was given; None when a command just ended
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except FinbackError as error:
        click.echo(f"finback: {error}", err=True)
        sys.exit(error.exit_code)
    except (KeyboardInterrupt, click.Abort):
        click.echo("finback: interrupted", err=True)
        sys.exit(130)
    except BrokenPipeError:
        # The reader of our output went away (`finback run | head`); keep the interpreter from complaining at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    sys.exit(code)


if __name__ == "__main__":
    main()
