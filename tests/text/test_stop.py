"""Stop strings: cut exactly, whatever the pieces."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from finback.errors import RequestError
from finback.text.stop import MAX_STOP_LENGTH, MAX_STOPS, StopMatcher, check_stops


def run(stops, pieces):
    matcher = StopMatcher(stops)
    text = "".join(map(matcher.feed, pieces))
    return text + matcher.flush(), matcher.matched


def expected(stops, text):
    """Slowly: the shortest beginning of `text` that ends in a stop string, without the longest such."""
    for end in range(1, len(text) + 1):
        found = [stop for stop in stops if text[:end].endswith(stop)]
        if found:
            longest = max(found, key=len)
            return text[: end - len(longest)], longest
    return text, None


@settings(max_examples=500, deadline=None)
@given(
    st.lists(st.text("ab>", min_size=1, max_size=5), max_size=4),
    st.lists(st.text("ab>x", max_size=6), max_size=8),
)
def test_any_cut_gives_the_same_text(stops, pieces):
    text = "".join(pieces)
    assert run(stops, pieces) == run(stops, [text]) == run(stops, text) == expected(stops, text)


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.text("ab", min_size=1, max_size=4), min_size=1, max_size=3), st.text("abx", max_size=20)
)
def test_nothing_is_held_back_longer_than_needed(stops, text):
    matcher = StopMatcher(stops)
    seen = "".join(map(matcher.feed, text))
    if matcher.matched is None:
        tails = [text[i:] for i in range(len(text) + 1)]
        assert seen + next(t for t in tails if any(s.startswith(t) for s in stops)) == text


def test_a_stop_string_that_is_the_start_of_another():
    stops = [">>>>>>> UPDATED", ">>>>>>> UPDATED\n"]
    assert run(stops, "x >>>>>>> UPDATED\n y") == ("x ", ">>>>>>> UPDATED")


def test_of_two_completed_by_one_character_the_longer_wins():
    assert run(["END", "THE END"], ["so: THE E", "ND."]) == ("so: ", "THE END")


def test_nothing_comes_after_a_match():
    matcher = StopMatcher(["."])
    assert matcher.feed("one. two") == "one"
    assert matcher.feed("three") == matcher.flush() == ""
    assert matcher.matched == "."


def test_a_long_near_match_is_linear():
    assert run(["a" * 4000 + "b"], ["a" * 200_000]) == ("a" * 200_000, None)


@pytest.mark.parametrize(
    ("value", "match"),
    [
        ("", r"stop\[0\] is an empty string"),
        (["a", ""], r"stop\[1\] is an empty string"),
        (5, "stop is 5"),
        (b"x", "stop is b'x'"),
        ({"a": 1}, "stop is"),
        (["a", 5], r"stop\[1\] is 5"),
        (["a"] * (MAX_STOPS + 1), f"stop has {MAX_STOPS + 1} strings"),
        (["a" * (MAX_STOP_LENGTH + 1)], r"stop\[0\] has 4097 characters"),
    ],
)
def test_bad_stops_are_refused_by_name(value, match):
    with pytest.raises(RequestError, match=match):
        check_stops(value)


def test_good_stops():
    assert check_stops(None) == check_stops([]) == ()
    assert check_stops("x") == ("x",)
    assert check_stops(["b", "a", "b"]) == ("b", "a")
    assert len(check_stops([str(n) for n in range(MAX_STOPS)])) == MAX_STOPS
