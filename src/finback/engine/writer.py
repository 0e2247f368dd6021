"""Tokens in, certain text out.

Owns what a reader may see of an answer so far: whole characters only, stop strings cut exactly. Refuses to know how
tokens are drawn.
"""

from __future__ import annotations

from finback.errors import RequestError
from finback.text.stop import StopMatcher
from finback.text.tokenizer import Tokenizer
from finback.text.utf8 import Utf8Decoder


class Writer:
    """The text of one answer. Without a tokenizer there is none, and stop strings are refused. think_end: the token
    that ends thinking, if the answer begins with it: stop strings are looked for after it."""

    def __init__(
        self, tokenizer: Tokenizer | None, stops: tuple[str, ...], min_tokens: int, think_end: int | None = None
    ) -> None:
        if tokenizer is None and stops:
            raise RequestError("stop strings need a tokenizer, and this model has none; use stop_token_ids")
        self._tokenizer = tokenizer
        self._characters, self._matcher = Utf8Decoder(), StopMatcher(stops)
        self._min_tokens, self._think_end = min_tokens, think_end
        self.count = 0

    @property
    def matched(self) -> str | None:
        """The stop string that is complete, if one is."""
        return self._matcher.matched

    @property
    def stopped(self) -> bool:
        """Whether a stop string is complete."""
        return self.matched is not None

    def write(self, token: int) -> str:
        """The text that became certain with one more token."""
        self.count += 1
        if self._tokenizer is None:
            return ""
        text = self._characters.feed(self._tokenizer.id_to_bytes(token))
        thinking = self._think_end is not None
        if token == self._think_end:
            self._think_end = None
        return text if thinking or self.count < self._min_tokens else self._matcher.feed(text)

    def finish(self) -> str:
        """The rest, when nothing more comes."""
        if self.stopped:
            return ""
        return self._matcher.feed(self._characters.flush()) + self._matcher.flush()
