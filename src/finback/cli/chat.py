"""`finback chat`: a conversation on the terminal, or line by line from a pipe.

Owns lines, commands and colours. Refuses to send a mistyped command to the model, and to lose a conversation to Ctrl-C.
"""

from __future__ import annotations

import contextlib
import difflib
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click

from finback.cli.common import load_engine, load_options, sampling_options, take_sampling

HISTORY_LINES = 1000
DIM, NORMAL = "\x1b[2m", "\x1b[0m"

HELP = """\
  /help              this list
  /system [TEXT]     show or set the system message
  /think on|off      think before answering, or not; /think low|high|max says how long
  /regen             answer the last question again
  /undo              take the last question and its answer back
  /clear             forget the conversation
  /save[!] FILE      write the conversation to a file (! replaces one)
  /load FILE         go on with a saved conversation
  /stats             tokens, speed, memory
  /quit              end; so does Ctrl-D
  A line that ends in \\ goes on in the next; \"\"\" opens and closes a text of several lines.
  // at the beginning sends a text that begins with /. Ctrl-C stops an answer."""

COMMANDS = ("help", "system", "think", "regen", "undo", "clear", "save", "load", "stats", "quit")


@click.command("chat")
@load_options
@click.option("--system", metavar="TEXT", help="A system message.")
@click.option("--think/--no-think", default=False, help="Let the model think before it answers [default: no-think].")
@click.option("--effort", metavar="WORD", help="How long to think: low, high or max.")
@sampling_options
@click.option("--load", "file", metavar="FILE", help="Go on with a conversation that /save wrote.")
@click.option("--history/--no-history", default=True, help="Keep what is typed for the next time [default: history].")
def command(
    system: str | None, think: bool, effort: str | None, file: str | None, history: bool, **options: Any
) -> None:
    """Talk with a model. /help lists what else can be typed.

    \b
      finback chat
      finback chat -m model.gguf --think --system "You are brief."
      printf 'Who are you?\\nWhat can you do?\\n' | finback chat --temp 0
    """
    from finback.tools.conversation import Conversation

    conversation = Conversation(take_sampling(options), system, think, effort)
    with load_engine(options) as engine:
        chat = Chat(engine, conversation)
        if file is not None:
            chat.load(file)
        with lines(history) as read:
            chat.run(read)


class Chat:
    """The loop of questions and answers."""

    def __init__(self, engine: Any, conversation: Any) -> None:
        self._engine, self._conversation = engine, conversation
        self._colour = sys.stdout.isatty()

    def run(self, read: Callable[[str], str | None]) -> None:
        """Until there are no more lines, or /quit. Ctrl-C twice at an empty prompt ends it, too."""
        if sys.stdin.isatty():
            click.echo(f"{self._engine.path.name}; /help lists commands, Ctrl-D ends")
        stopped = False
        while True:
            try:
                text = read_text(read)
            except KeyboardInterrupt:
                click.echo()
                if stopped:
                    return
                stopped = True
                click.echo("Ctrl-C once more, Ctrl-D or /quit ends")
                continue
            stopped = False
            if text is None:
                return
            if not text.strip():
                continue
            if text.startswith("/") and not text.startswith("//"):
                if not self._obey(text):
                    return
            else:
                self._ask(text[1:] if text.startswith("//") else text)

    # ---- answers

    def _ask(self, text: str) -> None:
        """One question and its answer. An error is a sentence, and the conversation goes on."""
        from finback.cli.screen import Bar
        from finback.errors import FinbackError

        kind, last = "answer", ""
        try:
            with Bar("reading the prompt") as bar:
                for said, piece in self._said(text, bar):
                    sys.stdout.write(piece)
                    sys.stdout.flush()
                    kind, last = said, piece
        except KeyboardInterrupt:
            last = ""
            sys.stdout.write("\n")
        except FinbackError as error:
            click.echo(f"{error}", err=True)
            if self._conversation.count(self._engine) + len(text) // 4 > self._engine.context:
                click.echo("/undo and /clear make room; finback chat --context N has more of it", err=True)
        if self._colour and kind == "thinking":
            sys.stdout.write(NORMAL)
        if last and not last.endswith("\n"):
            sys.stdout.write("\n")
        sys.stdout.flush()

    def _said(self, text: str, bar: Any) -> Iterator[tuple[str, str]]:
        """Pieces of an answer, thinking in dim letters where there are colours."""
        before = ""
        with contextlib.closing(self._conversation.ask(self._engine, text, bar)) as pieces:
            for kind, piece in pieces:
                mark = ""
                if kind != before:
                    mark = DIM if kind == "thinking" else NORMAL if before else ""
                    mark = (mark if self._colour else "") + ("\n\n" if before else "")
                before = kind
                yield kind, mark + piece

    # ---- commands

    def _obey(self, line: str) -> bool:
        """Do what a /line says; False ends the chat."""
        from finback.errors import FinbackError

        name, _, rest = line[1:].strip().partition(" ")
        rest = rest.strip()
        if name == "quit":
            return False
        actions: dict[str, Callable[[str], None]] = {
            "help": lambda _: click.echo(HELP),
            "system": self._system,
            "think": self._think,
            "regen": self._regenerate,
            "undo": self._undo,
            "clear": self._clear,
            "save": self._save,
            "save!": lambda file: self._save(file, replace=True),
            "load": self.load,
            "stats": self._stats,
        }
        action = actions.get(name)
        if action is None:
            near = difflib.get_close_matches(name, COMMANDS, 1)
            hint = f"; did you mean /{near[0]}?" if near else "; /help lists them"
            click.echo(f"there is no command /{name}{hint}", err=True)
            return True
        try:
            action(rest)
        except FinbackError as error:
            click.echo(f"{error}", err=True)
        except KeyboardInterrupt:
            click.echo()
        return True

    def _system(self, text: str) -> None:
        if text:
            self._conversation.system = text
        else:
            click.echo(self._conversation.system or "there is no system message")

    def _think(self, word: str) -> None:
        if word in ("on", "off"):
            self._conversation.thinking = word == "on"
        elif word in ("low", "high", "max"):
            self._conversation.thinking, self._conversation.effort = True, word
        else:
            click.echo("/think takes on, off, low, high or max", err=True)

    def _regenerate(self, _: str) -> None:
        question = self._conversation.undo()
        if question is None:
            click.echo("there is no question yet", err=True)
        else:
            self._ask(question)

    def _undo(self, _: str) -> None:
        question = self._conversation.undo()
        click.echo("there is no question yet" if question is None else f"taken back: {question}")

    def _clear(self, _: str) -> None:
        self._conversation.turns.clear()
        self._conversation.last = None

    def _save(self, file: str, *, replace: bool = False) -> None:
        if not file:
            click.echo("/save takes the name of a file", err=True)
            return
        self._conversation.save(Path(file).expanduser(), self._engine, replace=replace)
        click.echo(f"saved {len(self._conversation.turns)} messages to {file}")

    def load(self, file: str) -> None:
        """Go on with a saved conversation, and read it at once."""
        from finback.cli.screen import Bar

        if not file:
            click.echo("/load takes the name of a file", err=True)
            return
        tokens = self._conversation.load(Path(file).expanduser())
        begun = time.perf_counter()
        with Bar("reading the conversation") as bar:
            usage = self._conversation.warm(self._engine, bar)
        same = "" if tokens == self._conversation.tokens(self._engine) else "; the tokens differ from those saved"
        click.echo(
            f"{len(self._conversation.turns)} messages, {usage.prompt_tokens} tokens read in "
            f"{time.perf_counter() - begun:.2f} s ({usage.cached_tokens} were there already){same}"
        )

    def _stats(self, _: str) -> None:
        count = self._conversation.count(self._engine)
        click.echo(f"{count} tokens of {self._engine.context}, {max(0, self._engine.context - count)} left")
        event = self._conversation.last
        if event is not None:
            usage, times = event.usage, event.timings
            click.echo(
                f"last answer: prompt {usage.prompt_tokens} tokens, {usage.cached_tokens} of them kept; first token "
                f"after {times.prefill_s:.2f} s; {usage.completion_tokens} tokens in {times.decode_s:.2f} s; "
                f"{event.finish_reason}"
            )
            click.echo(f"prefix: {usage.cache}")
        parts = [f"{name} {size / 2**20:.1f}" for name, size in self._engine.memory().items()]
        click.echo(f"memory MiB: {', '.join(parts)}; {self._engine.isa}, {self._engine.threads} threads")


# ---- lines


def read_text(read: Callable[[str], str | None]) -> str | None:
    """What is said next: a line, lines joined by a backslash at the end, or all between two \"\"\"; None at the end."""
    line = read(">>> ")
    if line is None:
        return None
    if line.lstrip().startswith('"""'):
        whole = line.lstrip()[3:]
        while not whole.rstrip().endswith('"""'):
            line = read("... ")
            if line is None:
                return whole
            whole += "\n" + line
        return whole.rstrip()[:-3].strip("\n")
    parts = []
    while line is not None and line.endswith("\\"):
        parts.append(line[:-1])
        line = read("... ")
    return "\n".join([*parts, line or ""])


@contextlib.contextmanager
def lines(history: bool) -> Iterator[Callable[[str], str | None]]:
    """Lines from the terminal, with editing and a history, or from a pipe, without prompts."""
    if not sys.stdin.isatty():
        yield lambda _: None if not (line := sys.stdin.readline()) else line.rstrip("\n")
        return
    import readline

    from finback.settings import state_folder

    file = state_folder() / "chat_history"
    if history:
        with contextlib.suppress(OSError):
            readline.read_history_file(file)
    readline.set_history_length(HISTORY_LINES)

    def read(prompt: str) -> str | None:
        try:
            return input(prompt)
        except EOFError:
            click.echo()
            return None

    try:
        yield read
    finally:
        if history:
            with contextlib.suppress(OSError):
                file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
                os.close(os.open(file, os.O_CREAT | os.O_WRONLY, 0o600))
                readline.write_history_file(file)
                file.chmod(0o600)
