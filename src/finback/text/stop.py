"""Stop strings, cut exactly, however the text arrives in pieces.

Owns the search. Each stop string is a small automaton (Knuth-Morris-Pratt) that reads one character at a
time, so its state depends on the characters alone and never on how they were cut into pieces; the longest
state is what must be held back. Refuses empty strings, more than MAX_STOPS of them, and longer ones than
MAX_STOP_LENGTH.

Which match wins: the one completed first, because generation ends on that character and nothing after it may
be needed to decide. Of several completed by the same character the longest wins, so that no part of it stays.
"""

from __future__ import annotations

from collections.abc import Sequence

from finback.errors import RequestError, shown

MAX_STOPS = 16  # OpenAI allows 4, DeepSeek 16; the cost of a character is linear in the number
MAX_STOP_LENGTH = 4096  # characters; what is held back is never longer


def check_stops(value: object) -> tuple[str, ...]:
    """The stop strings of a request field: absent, one string, or a list of strings.

    Raises RequestError naming `stop` for another type, an empty string, too many or too long ones. Repeated
    strings count once.
    """
    if value is None:
        return ()
    stops = [value] if isinstance(value, str) else value
    if not isinstance(stops, Sequence) or isinstance(stops, bytes):
        raise RequestError(f"stop is {shown(value)}; give a string or a list of strings")
    if len(stops) > MAX_STOPS:
        raise RequestError(f"stop has {len(stops)} strings; give at most {MAX_STOPS}")
    for index, stop in enumerate(stops):
        if not isinstance(stop, str):
            raise RequestError(f"stop[{index}] is {shown(stop)}; give a string")
        if not stop:
            raise RequestError(f"stop[{index}] is an empty string, which matches everywhere; leave it out")
        if len(stop) > MAX_STOP_LENGTH:
            raise RequestError(f"stop[{index}] has {len(stop)} characters; give at most {MAX_STOP_LENGTH}")
    return tuple(dict.fromkeys(stops))


class StopMatcher:
    """Passes text through until a stop string is complete.

    What may still become a stop string is held back; what can not is handed out at once. `matched` is the
    stop string that ended the text, or None.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        """Raises RequestError as `check_stops` does."""
        # Longest first: of two completed by one character, the first found is the longer.
        self._stops = sorted(check_stops(list(stops)), key=len, reverse=True)
        self._borders = [_borders(stop) for stop in self._stops]
        self._states = [0] * len(self._stops)  # characters of each stop matched at the end of the text so far
        self._held = ""
        self.matched: str | None = None

    def feed(self, text: str) -> str:
        """The part of the text so far that can be shown and was not yet; after a match nothing more comes."""
        if self.matched is not None:
            return ""
        if not self._stops:
            return text
        for position, char in enumerate(text):
            stop = self._advance(char)
            if stop is not None:
                self.matched = stop
                shown_text = self._held + text[: position + 1]
                self._held = ""
                return shown_text[: -len(stop)]
        whole = self._held + text
        keep = len(whole) - max(self._states)
        self._held = whole[keep:]
        return whole[:keep]

    def flush(self) -> str:
        """The end of the text: what was held back did not become a stop string after all."""
        text, self._held = self._held, ""
        return text

    def _advance(self, char: str) -> str | None:
        """Moves every automaton over one character; the longest stop string it completes, if any."""
        complete: str | None = None
        for index, stop in enumerate(self._stops):
            state = self._states[index]
            while state and stop[state] != char:
                state = self._borders[index][state - 1]
            if stop[state] == char:
                state += 1
            self._states[index] = state
            if complete is None and state == len(stop):
                complete = stop
        return complete


def _borders(stop: str) -> list[int]:
    """Per prefix of `stop`, the length of its longest proper prefix that is also its suffix."""
    borders = [0] * len(stop)
    length = 0
    for index in range(1, len(stop)):
        while length and stop[index] != stop[length]:
            length = borders[length - 1]
        if stop[index] == stop[length]:
            length += 1
        borders[index] = length
    return borders
