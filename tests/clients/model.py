"""What the model says to a client that has tools: some rounds of calls, then a sentence.

Owns the script, and the one word that shows that a loop was real: it is in a file of the working folder, so the model
can say it only if the client ran the tool and sent back what came of it. Refuses to call a tool that was not declared.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from finback.text.render import EOS, THINK
from finback.tools.scripted import Line

ODD = 'The word: {word}\n\n  "quoted" \'single\' <b>&amp;</b> C:\\new\t{"k": [1, null]} 你好 🦊\n'
"""Text to be written to a file to the letter: quotes, tags, backslashes, an empty line, characters of four bytes."""

ASIDE = "A word from a file"
"""The answer to what a client asks beside, such as a title."""

WORD = re.compile("word-[0-9a-f]{12}")


@dataclass(frozen=True)
class Call:
    """A call of a tool. "{word}" in an argument stands for the word that was read."""

    name: str
    arguments: dict[str, Any]

    def text(self, word: str) -> str:
        """As the model writes it."""
        lines = [f'<｜DSML｜invoke name="{self.name}">']
        for name, value in self.arguments.items():
            is_text = isinstance(value, str)
            shown = value.replace("{word}", word) if is_text else json.dumps(value)
            kind = "true" if is_text else "false"
            lines.append(f'<｜DSML｜parameter name="{name}" string="{kind}">{shown}</｜DSML｜parameter>')
        return "\n".join([*lines, "</｜DSML｜invoke>"])


@dataclass(frozen=True)
class Asked:
    """A request of the conversation: its prompt, and what was answered."""

    prompt: str
    answer: str


@dataclass
class Model:
    """Answers prompts. rounds: the calls of each round; () is no tools at all."""

    rounds: Sequence[Sequence[Call]] = ()
    word: str = field(default_factory=lambda: f"word-{secrets.token_hex(6)}")
    asked: list[Asked] = field(default_factory=list)
    beside: list[str] = field(default_factory=list)

    @property
    def sentence(self) -> str:
        """What is said in the end."""
        return f"The file says {self.word}."

    def __call__(self, prompt: str) -> Line:
        thinks = prompt.endswith(THINK)
        answer = self._answer(prompt)
        if answer is None:
            self.beside.append(prompt)
            return Line(f"A title, then.</think>{ASIDE}" if thinks else ASIDE)
        said = f"Let me see what there is to do.</think>{answer}" if thinks else answer
        self.asked.append(Asked(prompt, said))
        return Line(said)

    def _answer(self, prompt: str) -> str | None:
        """What the conversation's next answer is; None to a prompt that is beside it."""
        results = prompt.count("<tool_result>")
        found = WORD.search(prompt)
        word = found[0] if found else "nothing"
        for calls in self.rounds:
            if results <= 0:
                if not all(f'"name": "{call.name}"' in prompt for call in calls):
                    return None
                block = "\n".join(call.text(word) for call in calls)
                return f"I use a tool.\n\n<｜DSML｜tool_calls>\n{block}\n</｜DSML｜tool_calls>"
            results -= len(calls)
        return f"The file says {word}."

    def check(self, turns: int) -> None:
        """AssertionError unless every round came, and a request for each turn, and each prompt begins with the one
        before and its answer as they were: an engine that keeps its work reads only what is new."""
        wanted = len(self.rounds) + turns
        assert len(self.asked) == wanted, (
            f"{wanted} requests were to come and {len(self.asked)} came; {len(self.beside)} beside"
        )
        for before, after in zip(self.asked, self.asked[1:], strict=False):
            whole = before.prompt + before.answer + EOS
            same = _alike(whole, after.prompt)
            assert same == len(whole), (
                f"the prompt changed before its end: {whole[same - 40 : same + 80]!r} became "
                f"{after.prompt[same - 40 : same + 80]!r}"
            )


def _alike(a: str, b: str) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
