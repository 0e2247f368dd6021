"""Any cut of any bytes gives the text of the whole."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from finback.text.utf8 import Utf8Decoder

# Bytes that make trouble: leads, continuations, overlongs, surrogates, beyond U+10FFFF.
BYTES = b"a\x80\xbf\xc0\xc2\xe0\xed\xa0\xef\xf0\x90\xf4\xf5\xff\xe4\xb8\xad"
TROUBLE = st.lists(st.sampled_from(list(BYTES)), max_size=6).map(bytes)
PIECES = st.lists(st.binary(max_size=5) | TROUBLE | st.text(max_size=3).map(str.encode), max_size=12)


@settings(max_examples=500, deadline=None)
@given(PIECES)
def test_any_cut_gives_the_text_of_the_whole(pieces):
    decoder = Utf8Decoder()
    text = "".join([*map(decoder.feed, pieces), decoder.flush()])
    assert text == b"".join(pieces).decode("utf-8", "replace")


@settings(max_examples=300, deadline=None)
@given(st.text())
def test_byte_by_byte_no_character_is_ever_split(text):
    decoder = Utf8Decoder()
    shown = [decoder.feed(bytes([byte])) for byte in text.encode()]
    assert "".join(shown) == text
    assert all(len(piece) <= 1 for piece in shown)
    assert decoder.flush() == ""


def test_an_unfinished_character_appears_at_the_end_only():
    decoder = Utf8Decoder()
    assert decoder.feed("😀".encode()[:3]) == ""
    assert decoder.flush() == "\ufffd"
    assert decoder.feed(b"new") == "new"
