"""`finback run`: one prompt, one answer, streamed."""

from __future__ import annotations

import sys
from typing import Any

import click

from finback.cli.common import load_engine, load_options, read_text, sampling_options, take_sampling


@click.command("run")
@load_options
@click.option("-p", "--prompt", metavar="TEXT", help="The prompt.")
@click.option("-f", "--file", metavar="FILE", help="Read the prompt from a file; - is stdin.")
@click.option("--system", metavar="TEXT", help="A system message before the prompt.")
@click.option("--think/--no-think", default=False, help="Let the model think before it answers [default: no-think].")
@click.option("--effort", metavar="WORD", help="How long to think: low, high or max.")
@click.option("--raw", is_flag=True, help="Continue the text as it is, without the chat format.")
@sampling_options
@click.option("--stats", is_flag=True, help="Tokens, speed and memory on stderr when done.")
def command(
    prompt: str | None,
    file: str | None,
    system: str | None,
    think: bool,
    effort: str | None,
    raw: bool,
    stats: bool,
    **options: Any,
) -> None:
    """Write an answer to a prompt, as it is made.

    \b
      finback run -p "Tell me a story about a fox."
      finback run -m model.gguf --temp 0 -p "What is the capital of Norway?"
      cat notes.txt | finback run -m models/V4-Flash --system "Summarise."
      finback run --raw --temp 0 -p "It is a truth universally acknowledged"
    """
    from finback.cli.screen import Bar

    if raw and (system is not None or think or effort is not None):
        raise click.UsageError("--raw continues plain text; it takes no --system, --think or --effort")
    text = read_text(prompt, file)
    sampling = take_sampling(options)
    with load_engine(options) as engine:
        request: Any = text
        if not raw:
            request = [{"role": "system", "content": system}] if system is not None else []
            request = [*request, {"role": "user", "content": text}]
        with Bar("reading the prompt") as bar:
            events = engine.stream(request, sampling, thinking=think, effort=effort, on_prefill=bar)
            _show(engine, events, stats)


def _show(engine: Any, events: Any, stats: bool) -> None:
    """Print the pieces as they come; a final newline only if the answer did not end with one."""
    last_text = ""
    event = None
    try:
        for event in events:
            if event.text:
                sys.stdout.write(event.text)
                sys.stdout.flush()
                last_text = event.text
    finally:
        if last_text and not last_text.endswith("\n"):
            sys.stdout.write("\n")
            sys.stdout.flush()
    if stats and event is not None and event.usage is not None:
        _show_stats(engine, event)


def _show_stats(engine: Any, event: Any) -> None:
    """Tokens, speed and memory, on stderr."""
    usage, times = event.usage, event.timings
    read, write = _rate(usage.prompt_tokens, times.prefill_s), _rate(usage.completion_tokens - 1, times.decode_s)
    click.echo(
        f"prompt {usage.prompt_tokens} tokens in {times.prefill_s:.2f} s ({read}), answer {usage.completion_tokens} "
        f"tokens in {times.decode_s:.2f} s ({write}), {event.finish_reason}",
        err=True,
    )
    if usage.cached_tokens:
        click.echo(f"{usage.cached_tokens} tokens of the prompt were not computed again", err=True)
    memory = engine.memory()
    parts = ", ".join(f"{name} {size / 2**20:.1f}" for name, size in memory.items() if name != "budget" and size)
    total = f"{memory['budget'] / 2**20:.0f}"
    click.echo(f"memory MiB: {parts} of {total}; {engine.isa}, {engine.threads} threads", err=True)


def _rate(tokens: int, seconds: float) -> str:
    return f"{tokens / seconds:.1f} tokens/s" if tokens > 0 and seconds > 0 else "-"
