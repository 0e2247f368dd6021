"""Bytes of tokens to text, without ever splitting a character.

Owns the boundary between tokens, which may end inside a UTF-8 character, and clients, who must never see half
of one. The decoder holds back an unfinished character and replaces bytes that can never become one by U+FFFD,
exactly as `bytes.decode("utf-8", "replace")` would do on the whole. Refuses nothing: any bytes are legal.
"""

from __future__ import annotations

import codecs

_INCREMENTAL = codecs.getincrementaldecoder("utf-8")


class Utf8Decoder:
    """Decodes a stream of byte pieces; the joined output does not depend on where the pieces were cut."""

    def __init__(self) -> None:
        self._decoder = _INCREMENTAL("replace")

    def feed(self, data: bytes) -> str:
        """The text that `data` completes; at most three bytes stay behind."""
        return self._decoder.decode(data)

    def flush(self) -> str:
        """The end of the stream: an unfinished character becomes U+FFFD. Ready for a new stream."""
        text = self._decoder.decode(b"", final=True)
        self._decoder.reset()
        return text
